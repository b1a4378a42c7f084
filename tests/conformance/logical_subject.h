// Questions about flax's logical axis rules, those of flax.core.spmd and those of flax.linen.
#ifndef SHARDMESH_TESTS_CONFORMANCE_LOGICAL_SUBJECT_H_
#define SHARDMESH_TESTS_CONFORMANCE_LOGICAL_SUBJECT_H_

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "client/mesh_client.h"
#include "sharding/axis_value.h"
#include "sharding/mesh.h"
#include "sharding/rules/logical_rules.h"
#include "sharding/spec.h"
#include "tests/conformance/question.h"

namespace shardmesh::conformance {

// Who answers. Each method is the function of sharding/rules/logical_rules.h of that name.
class LogicalSubject {
 public:
  virtual ~LogicalSubject() = default;

  virtual absl::StatusOr<LogicalRules> CompositeRules(const LogicalRules& first,
                                                      const LogicalRules& second) const = 0;
  virtual absl::StatusOr<std::vector<AxisValue>> ApplyLogicalRules(
      const std::vector<AxisValue>& names, const LogicalRules& rules) const = 0;
  virtual absl::StatusOr<PartitionSpec> ResolveLogicalSpec(const std::vector<AxisValue>& names,
                                                           const LogicalRules& rules,
                                                           const LogicalRules& context) const = 0;
  virtual absl::StatusOr<ShardValueDecision> ResolveShardValue(
      const std::vector<AxisValue>& names, const LogicalRules& rules, const Mesh& mesh,
      const LogicalRules& context) const = 0;
  virtual absl::StatusOr<std::optional<PartitionSpec>> ResolveLogicalAxes(
      const std::vector<AxisValue>& names, const LogicalRules& rules,
      RulesFallback fallback) const = 0;
  virtual absl::StatusOr<std::optional<PartitionSpec>> ResolveLogicalConstraint(
      const std::vector<AxisValue>& names, const LogicalRules& rules,
      RulesFallback fallback) const = 0;
};

std::shared_ptr<const LogicalSubject> LibraryLogical();
// `client` outlives the subject.
std::shared_ptr<const LogicalSubject> WireLogical(client::MeshClient& client);

// composite_rules, from_sharding_rules, get_pspec, logical_axis_rules, logical_axis_rules_threads,
// shard_value, logical_to_mesh_axes, with_logical_constraint.
void AddLogicalQuestions(std::shared_ptr<const LogicalSubject> subject, Questions* questions);

}  // namespace shardmesh::conformance

#endif  // SHARDMESH_TESTS_CONFORMANCE_LOGICAL_SUBJECT_H_
