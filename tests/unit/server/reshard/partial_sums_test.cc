// The layouts in which partial sums are added up.
#include "server/reshard/partial_sums.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "sharding/mesh.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::StatusIs;

const SpecEntry kNone;
const SpecEntry kX = SpecEntry::Axis("x");
const SpecEntry kY = SpecEntry::Axis("y");
const SpecEntry kBoth = SpecEntry::Axes({"x", "y"});

ArrayDescriptor PartialOf(const Shape& shape, const PartitionSpec& spec) {
  return {.array_id = "a",
          .dtype = Dtype::kF32,
          .shape = shape,
          .spec = spec,
          .mesh_id = "m",
          .mesh_revision = 1,
          .mesh = *Mesh::Parse("one=1,x=2,y=2"),
          .cut_points = {}};
}

TEST(PartialSumsTest, EachAxisScattersTheSumsAlongTheFirstDimensionThatItDivides) {
  const struct Case {
    Shape shape;
    PartitionSpec partial;
    PartitionSpec sums;
  } kCases[] = {
      {{4, 6}, PartitionSpec({kX, kNone}, {"y"}), PartitionSpec({kBoth, kNone})},
      {{6, 4}, PartitionSpec({kX, kNone}, {"y"}), PartitionSpec({kX, kY})},
      {{6, 5}, PartitionSpec({kX, kNone}, {"y"}), PartitionSpec({kX, kNone})},
      {{2, 8}, PartitionSpec({}, {"x", "y"}), PartitionSpec({kX, kY})},
      {{8, 8}, PartitionSpec({}, {"x", "y"}), PartitionSpec({kBoth, kNone})},
      {{8}, PartitionSpec({kNone}, {"one"}), PartitionSpec({kNone})},
      {{0, 4}, PartitionSpec({kNone, kNone}, {"x"}), PartitionSpec({kNone, kX})},
      {{}, PartitionSpec({}, {"x"}), PartitionSpec()},
  };
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.partial.ToString());
    const ArrayDescriptor partial = PartialOf(c.shape, c.partial);
    EXPECT_TRUE(HasPartialSums(partial));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const ArrayDescriptor sums, SumsOf(partial));
    EXPECT_EQ(sums.spec, c.sums);
    EXPECT_FALSE(HasPartialSums(sums));
    EXPECT_EQ(sums.mesh_id, "m");
    EXPECT_EQ(sums.shape, c.shape);
    EXPECT_THAT(sums.Tiling(), test::IsOk());
  }
}

TEST(PartialSumsTest, ADimensionWithCutPointsStaysAsItIs) {
  ArrayDescriptor partial = PartialOf({4, 6}, PartitionSpec({kX, kNone}, {"y"}));
  partial.cut_points = {{0, 1, 4}, {}};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const ArrayDescriptor sums, SumsOf(partial));
  EXPECT_EQ(sums.spec, PartitionSpec({kX, kY}));
  EXPECT_EQ(sums.cut_points, partial.cut_points);
  EXPECT_THAT(sums.Tiling(), test::IsOk());
}

TEST(PartialSumsTest, TypesWithoutArithmeticAreRefused) {
  ArrayDescriptor partial = PartialOf({4, 6}, PartitionSpec({kX}, {"y"}));
  partial.dtype = Dtype::kBool;
  EXPECT_THAT(SumsOf(partial),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kUnsupportedDtype));
}

TEST(PartialSumsTest, TheEntriesOfASpecStayWithoutUnreducedAxes) {
  EXPECT_EQ(WithoutUnreduced(PartitionSpec({kX, kNone}, {"y"})), PartitionSpec({kX, kNone}));
  EXPECT_EQ(WithoutUnreduced(PartitionSpec({kX})), PartitionSpec({kX}));
}

TEST(PartialSumsTest, ScatteredSumsKeepTheAxesThatTheArrayAskedFor) {
  ArrayDefinition array;
  array.descriptor = PartialOf({4, 6}, PartitionSpec({kX, kNone}, {"y"}));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const ArrayDescriptor sums, SumsOf(array.descriptor));
  const PartitionSpec over_x({kX, kNone});
  EXPECT_EQ(RequestedOfSums(array, sums.spec), over_x);
  EXPECT_EQ(RequestedOfSums(array, over_x), std::nullopt);
  EXPECT_EQ(WithoutSums(array).descriptor.spec, over_x);
  EXPECT_EQ(WithoutSums(array).requested_spec, std::nullopt);

  ArrayDefinition whole = array;
  whole.descriptor = PartialOf({5, 5}, PartitionSpec({}, {"y"}));
  EXPECT_EQ(RequestedOfSums(whole, PartitionSpec({kNone, kNone})), std::nullopt);

  ArrayDefinition scattered = array;
  scattered.descriptor = sums;
  scattered.requested_spec = over_x;
  EXPECT_EQ(WithoutSums(scattered).descriptor.spec, over_x);
  EXPECT_EQ(WithoutSums(scattered).requested_spec, std::nullopt);

  // A correction has dropped an axis of this one.
  array.descriptor.spec = PartitionSpec({kNone, kNone}, {"y"});
  array.requested_spec = PartitionSpec({kX, kNone}, {"y"});
  EXPECT_EQ(RequestedOfSums(array, PartitionSpec({kY, kNone})), over_x);
  scattered.descriptor.spec = PartitionSpec({kY, kNone});
  EXPECT_EQ(WithoutSums(scattered).descriptor.spec, PartitionSpec({kNone, kNone}));
  EXPECT_EQ(WithoutSums(scattered).requested_spec, over_x);
}

TEST(PartialSumsTest, AnArrayOfNoSumsKeepsItsSpecs) {
  ArrayDefinition array;
  array.descriptor = PartialOf({4, 6}, PartitionSpec({kX, kNone}));
  array.requested_spec = PartitionSpec({kBoth, kNone});
  EXPECT_EQ(WithoutSums(array).descriptor.spec, array.descriptor.spec);
  EXPECT_EQ(WithoutSums(array).requested_spec, array.requested_spec);
}

}  // namespace
}  // namespace shardmesh::server
