// Values, targets and plans of one op, for tests of plans.
#ifndef SHARDMESH_TESTS_UNIT_PROGRAM_PLAN_EXAMPLES_H_
#define SHARDMESH_TESTS_UNIT_PROGRAM_PLAN_EXAMPLES_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "program/program.h"
#include "program/step_plan.h"
#include "sharding/mesh.h"
#include "sharding/shape.h"
#include "sharding/spec.h"
#include "sharding/tile.h"
#include "tensor/dtype.h"

namespace shardmesh {

inline PartitionSpec Spec(std::vector<std::vector<std::string>> dims,
                          std::vector<std::string> unreduced = {}) {
  std::vector<SpecEntry> entries;
  for (const std::vector<std::string>& axes : dims) {
    entries.push_back(SpecEntry::Axes({axes.begin(), axes.end()}));
  }
  return PartitionSpec(std::move(entries), std::move(unreduced));
}

inline PlanTarget Target(std::string_view mesh) {
  return PlanTarget{.mesh_id = "m", .mesh_revision = 1, .mesh = *Mesh::Parse(mesh)};
}

inline ValueDescriptor Value(Shape shape, PartitionSpec spec, Dtype dtype = Dtype::kF32) {
  return ValueDescriptor{.dtype = dtype, .shape = std::move(shape), .spec = std::move(spec)};
}

inline ValueDescriptor CutValue(Shape shape, const PartitionSpec& spec,
                                std::vector<CutPoints> points) {
  ValueDescriptor value = Value(std::move(shape), spec);
  value.cut_points = std::move(points);
  return value;
}

// A collective of the kind that is possible on a matrix partitioned over tp along dimension 0.
inline CollectiveOp PossibleOp(CollectiveKind kind) {
  CollectiveOp op = {.kind = kind, .axes = {"tp"}};
  if (kind == CollectiveKind::kAllToAll) op.split_dimension = 1;
  if (kind == CollectiveKind::kPermute) op.permutation = {{0, 0}};
  return op;
}

inline absl::StatusOr<Plan> PlanOf(CollectiveOp op, ValueDescriptor operand,
                                   std::string_view mesh = "dp=3,tp=2,one=1") {
  return PlanProgram(Program{.operand_count = 1, .ops = {std::move(op)}, .outputs = {1}},
                     {std::move(operand)}, Target(mesh));
}

}  // namespace shardmesh

#endif  // SHARDMESH_TESTS_UNIT_PROGRAM_PLAN_EXAMPLES_H_
