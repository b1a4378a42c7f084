// A coordinator's answers about rules.
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "sharding/compatibility.h"
#include "status/status_macros.h"
#include "tests/conformance/rules_subject.h"

namespace shardmesh::conformance {
namespace {

class Rules final : public RulesSubject {
 public:
  explicit Rules(client::MeshClient& client) : client_(client) {}

  // A tree on the wire lists a name once, and shapes of all its tensors. A list that has a name
  // twice goes in pieces, at each of which the next tree begins; a leaf without shape goes as a
  // scalar, which rules treat alike: strict ones ask neither, the others look at no shape.
  absl::StatusOr<std::vector<PartitionSpec>> MatchTree(
      const std::vector<Rule>& rules, std::optional<int64_t> min_size, bool strict,
      absl::Span<const test::TreeLeaf> leaves) const override {
    RuleSetOptions options;
    options.min_size = min_size;
    options.strict = strict;
    options.defer_pattern_errors = true;
    SHARDMESH_ASSIGN_OR_RETURN(RuleSet rule_set, RuleSet::Create(rules, options));
    client::TreeQuestion question;
    question.rules = RuleSetDefinition{
        .rules = std::move(rule_set), .slashes = false, .default_min_size = !min_size.has_value()};
    question.match_only = true;
    question.compatibility = Compatibility::kExact;
    std::vector<PartitionSpec> specs;
    while (!leaves.empty()) {
      std::vector<client::TreeTensor> tree;
      absl::flat_hash_set<std::string_view> names;
      while (!leaves.empty() && names.insert(leaves.front().name).second) {
        tree.push_back(
            {.name = leaves.front().name, .shape = leaves.front().shape.value_or(Shape())});
        leaves.remove_prefix(1);
      }
      SHARDMESH_ASSIGN_OR_RETURN(const client::TreeAnswer answer,
                                 client_.layouts().ResolveTree(question, tree));
      for (const client::TreePlacement& placement : answer.placements) {
        specs.push_back(answer.specs[placement.spec_index].effective);
      }
    }
    return specs;
  }

  absl::StatusOr<PartitionSpec> SpecByPatternText(std::string_view text, std::string_view name,
                                                  const PartitionSpec& default_spec,
                                                  const Mesh& mesh) const override {
    SHARDMESH_ASSIGN_OR_RETURN(
        client::PatternRulesAnswer answer,
        client_.layouts().ParsePatternRules({.text = std::string(text),
                                             .name = std::string(name),
                                             .default_spec = default_spec,
                                             .compatibility = Compatibility::kExact,
                                             .mesh = client::MeshSelector(mesh)}));
    return answer.spec.value();
  }

  absl::StatusOr<bool> Search(std::string_view pattern, std::string_view name) const override {
    SHARDMESH_ASSIGN_OR_RETURN(
        const client::PatternCheck check,
        client_.layouts().CheckPattern(std::string(pattern), {{std::string(name)}}));
    return check.found.front();
  }

 private:
  client::MeshClient& client_;
};

}  // namespace

std::shared_ptr<const RulesSubject> WireRules(client::MeshClient& client) {
  return std::make_shared<Rules>(client);
}

}  // namespace shardmesh::conformance
