// The library's answers about rules.
#include <utility>

#include "sharding/compatibility.h"
#include "sharding/pattern/pattern.h"
#include "sharding/rules/pattern_rules.h"
#include "status/status_macros.h"
#include "tests/conformance/rules_subject.h"

namespace shardmesh::conformance {
namespace {

class RulesLibrary final : public RulesSubject {
 public:
  absl::StatusOr<std::vector<PartitionSpec>> MatchTree(
      const std::vector<Rule>& rules, std::optional<int64_t> min_size, bool strict,
      absl::Span<const test::TreeLeaf> leaves) const override {
    RuleSetOptions options;
    options.min_size = min_size;
    options.strict = strict;
    options.defer_pattern_errors = true;
    SHARDMESH_ASSIGN_OR_RETURN(const RuleSet rule_set, RuleSet::Create(rules, options));
    std::vector<NamedShape> tensors;
    for (const test::TreeLeaf& leaf : leaves) {
      tensors.push_back(
          {leaf.name, leaf.shape.has_value() ? OptionalShape(*leaf.shape) : std::nullopt});
    }
    SHARDMESH_ASSIGN_OR_RETURN(std::vector<RuleMatch> matches, rule_set.MatchTree(tensors));
    std::vector<PartitionSpec> specs;
    for (RuleMatch& match : matches) {
      specs.push_back(std::move(match.spec));
    }
    return specs;
  }

  absl::StatusOr<PartitionSpec> SpecByPatternText(std::string_view text, std::string_view name,
                                                  const PartitionSpec& default_spec,
                                                  const Mesh& mesh) const override {
    SHARDMESH_ASSIGN_OR_RETURN(
        const PatternRules rules,
        PatternRules::Create(text, default_spec, mesh, Compatibility::kExact));
    return rules.SpecOf(name);
  }

  absl::StatusOr<bool> Search(std::string_view pattern, std::string_view name) const override {
    SHARDMESH_ASSIGN_OR_RETURN(const Pattern compiled, Pattern::Create(pattern));
    return compiled.Search(name);
  }
};

}  // namespace

std::shared_ptr<const RulesSubject> LibraryRules() { return std::make_shared<RulesLibrary>(); }

}  // namespace shardmesh::conformance
