// WithOutputSpecs: a program whose results are to lie in given ways.
#include "server/steps/step_outputs.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "program/step_plan.h"
#include "sharding/mesh.h"
#include "status/reason.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;

PartitionSpec Over(const char* axis) { return PartitionSpec({SpecEntry::Axis(axis), SpecEntry()}); }

const Mesh& TheMesh() {
  static const auto* const mesh = new Mesh(*Mesh::Parse("x=2,y=2"));
  return *mesh;
}

// The product of two 8x8 matrices, of which the first has its rows over x.
absl::StatusOr<Plan> PlanOf(const StepOutputs& outputs) {
  const Program product = {
      .operand_count = 2, .ops = {MatmulOp{.lhs = 0, .rhs = 1}}, .outputs = {2}};
  const absl::StatusOr<Program> program = WithOutputSpecs(product, outputs);
  if (!program.ok()) return program.status();
  const ValueDescriptor lhs = {.dtype = Dtype::kF32, .shape = {8, 8}, .spec = Over("x")};
  const ValueDescriptor rhs = {.dtype = Dtype::kF32, .shape = {8, 8}, .spec = PartitionSpec()};
  return PlanProgram(*program, std::vector<ValueDescriptor>{lhs, rhs},
                     {.mesh_id = "m", .mesh_revision = 1, .mesh = TheMesh()});
}

TEST(WithOutputSpecsTest, LaysAResultOutAsItIsAskedFor) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Plan free, PlanOf({}));
  EXPECT_EQ(free.values[free.outputs[0]].spec, Over("x"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Plan plan, PlanOf({.specs = {Over("y")}}));
  EXPECT_EQ(plan.values[plan.outputs[0]].spec, Over("y"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Plan unset, PlanOf({.specs = {std::nullopt}}));
  EXPECT_EQ(unset, free);
}

TEST(DescribeOutputsTest, PartialSumsHaveTheRevisionOfTheRanks) {
  const auto described = [](CollectiveKind kind) {
    const Program program = {.operand_count = 1,
                             .ops = {CollectiveOp{.input = 0, .kind = kind, .axes = {"x"}}},
                             .outputs = {1}};
    const ValueDescriptor operand = {.dtype = Dtype::kF32, .shape = {8, 8}, .spec = Over("x")};
    const absl::StatusOr<Plan> plan =
        PlanProgram(program, std::vector<ValueDescriptor>{operand},
                    {.mesh_id = "m", .mesh_revision = 1, .mesh = TheMesh()});
    EXPECT_THAT(plan.status(), IsOk());
    return DescribeOutputs(*plan, /*ranks_revision=*/9).front();
  };
  const ArrayDescriptor gathered = described(CollectiveKind::kAllGather);
  EXPECT_TRUE(gathered.spec.unreduced().empty());
  EXPECT_EQ(gathered.mesh_revision, 1);
  // A reduction to one place leaves a partial sum.
  const ArrayDescriptor partial = described(CollectiveKind::kReduce);
  EXPECT_FALSE(partial.spec.unreduced().empty());
  EXPECT_EQ(partial.mesh_revision, 9);
}

TEST(WithOutputSpecsTest, RefusesASpecThatDoesNotFit) {
  EXPECT_THAT(PlanOf({.specs = {Over("z")}}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kAxisNotInMesh));
}

TEST(WithOutputSpecsTest, RefusesMoreSpecsThanResults) {
  EXPECT_THAT(PlanOf({.specs = {Over("x"), Over("y")}}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
}

}  // namespace
}  // namespace shardmesh::server
