// The library answers about logical axis rules.
#include "sharding/rules/logical_rules.h"
#include "tests/conformance/logical_subject.h"

namespace shardmesh::conformance {
namespace {

class LibraryLogicalSubject final : public LogicalSubject {
 public:
  absl::StatusOr<LogicalRules> CompositeRules(const LogicalRules& first,
                                              const LogicalRules& second) const override {
    return shardmesh::CompositeRules(first, second);
  }
  absl::StatusOr<std::vector<AxisValue>> ApplyLogicalRules(
      const std::vector<AxisValue>& names, const LogicalRules& rules) const override {
    return shardmesh::ApplyLogicalRules(names, rules);
  }
  absl::StatusOr<PartitionSpec> ResolveLogicalSpec(const std::vector<AxisValue>& names,
                                                   const LogicalRules& rules,
                                                   const LogicalRules& context) const override {
    return shardmesh::ResolveLogicalSpec(names, rules, context);
  }
  absl::StatusOr<ShardValueDecision> ResolveShardValue(const std::vector<AxisValue>& names,
                                                       const LogicalRules& rules, const Mesh& mesh,
                                                       const LogicalRules& context) const override {
    return shardmesh::ResolveShardValue(names, rules, mesh, context);
  }
  absl::StatusOr<std::optional<PartitionSpec>> ResolveLogicalAxes(
      const std::vector<AxisValue>& names, const LogicalRules& rules,
      RulesFallback fallback) const override {
    return shardmesh::ResolveLogicalAxes(names, rules, fallback);
  }
  absl::StatusOr<std::optional<PartitionSpec>> ResolveLogicalConstraint(
      const std::vector<AxisValue>& names, const LogicalRules& rules,
      RulesFallback fallback) const override {
    return shardmesh::ResolveLogicalConstraint(names, rules, fallback);
  }
};

}  // namespace

std::shared_ptr<const LogicalSubject> LibraryLogical() {
  return std::make_shared<LibraryLogicalSubject>();
}

}  // namespace shardmesh::conformance
