// A coordinator's answers about logical axis rules.
#include <utility>

#include "status/status_macros.h"
#include "tests/conformance/logical_subject.h"

namespace shardmesh::conformance {
namespace {

class Logical final : public LogicalSubject {
 public:
  explicit Logical(client::MeshClient& client) : client_(client) {}

  absl::StatusOr<LogicalRules> CompositeRules(const LogicalRules& first,
                                              const LogicalRules& second) const override {
    return client_.layouts().ComposeLogicalRules(first, second);
  }

  absl::StatusOr<std::vector<AxisValue>> ApplyLogicalRules(
      const std::vector<AxisValue>& names, const LogicalRules& rules) const override {
    SHARDMESH_ASSIGN_OR_RETURN(
        client::SpmdAnswer answer,
        client_.layouts().ResolveSpmdAxes({.names = names,
                                           .rules = rules,
                                           .values_only = true,
                                           .compatibility = Compatibility::kExact}));
    return std::move(answer.values);
  }

  absl::StatusOr<PartitionSpec> ResolveLogicalSpec(const std::vector<AxisValue>& names,
                                                   const LogicalRules& rules,
                                                   const LogicalRules& context) const override {
    SHARDMESH_ASSIGN_OR_RETURN(
        client::SpmdAnswer answer,
        client_.layouts().ResolveSpmdAxes({.names = names,
                                           .rules = rules,
                                           .context_rules = context,
                                           .compatibility = Compatibility::kExact}));
    return answer.spec.value();
  }

  // No mesh at all is one without axes.
  absl::StatusOr<ShardValueDecision> ResolveShardValue(const std::vector<AxisValue>& names,
                                                       const LogicalRules& rules, const Mesh& mesh,
                                                       const LogicalRules& context) const override {
    SHARDMESH_ASSIGN_OR_RETURN(
        client::SpmdAnswer answer,
        client_.layouts().ResolveSpmdAxes({.names = names,
                                           .rules = rules,
                                           .context_rules = context,
                                           .mesh = client::MeshSelector(mesh),
                                           .compatibility = Compatibility::kExact}));
    return ShardValueDecision{answer.action.value(), answer.spec.value_or(PartitionSpec())};
  }

  absl::StatusOr<std::optional<PartitionSpec>> ResolveLogicalAxes(
      const std::vector<AxisValue>& names, const LogicalRules& rules,
      RulesFallback fallback) const override {
    return client_.layouts().ResolveLinenAxes(
        {.names = names, .rules = rules, .fallback = fallback});
  }

  absl::StatusOr<std::optional<PartitionSpec>> ResolveLogicalConstraint(
      const std::vector<AxisValue>& names, const LogicalRules& rules,
      RulesFallback fallback) const override {
    return client_.layouts().ResolveLinenAxes(
        {.names = names, .rules = rules, .fallback = fallback, .constrain = true});
  }

 private:
  client::MeshClient& client_;
};

}  // namespace

std::shared_ptr<const LogicalSubject> WireLogical(client::MeshClient& client) {
  return std::make_shared<Logical>(client);
}

}  // namespace shardmesh::conformance
