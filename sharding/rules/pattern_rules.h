// Rules in one line of text, such as `attention|mlp->data,kernel$->fsdp.tp`.
#ifndef SHARDMESH_SHARDING_RULES_PATTERN_RULES_H_
#define SHARDMESH_SHARDING_RULES_PATTERN_RULES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/compatibility.h"
#include "sharding/mesh.h"
#include "sharding/rules/rule_set.h"
#include "sharding/spec.h"

namespace shardmesh {

// Most bytes of such a text.
inline constexpr size_t kMaxPatternRulesBytes = 1 << 20;

// Reads the text, piece by piece in this order, without anything trimmed or escaped:
//   - commas part it; a piece without `->` is no rule, and is passed over;
//   - before the arrow stand patterns, parted by bars, each a rule of its own: one that needs a
//     comma or a bar, such as `(q|k)_proj`, cannot be written. An empty one matches every name;
//   - after it stands their spec, its dimensions parted by dots; nothing between two dots means not
//     partitioned, and so does nothing at all: `kernel->` asks for P(None). `None` is an axis name.
// Example: `a|b->dp..tp` is ("a", P('dp', None, 'tp')), ("b", P('dp', None, 'tp')).
//
// Patterns are not compiled here. Errors are INVALID_ARGUMENT: BAD_PATTERN (ValueError) for a piece
// with two arrows; LIMIT_EXCEEDED for a text of more than kMaxPatternRulesBytes bytes, more rules
// than a rule set may have, or a spec of more than kMaxRank dimensions.
absl::StatusOr<std::vector<Rule>> ParsePatternRules(std::string_view text);

// Such rules, and a spec for the names that none of them matches.
// Immutable, hence safe to share between threads; copies are cheap.
class PatternRules {
 public:
  // Errors: ParsePatternRules', then RuleSet::Create's, which asks `is_cancelled`.
  //
  // kExact: a faulty pattern is an error only of a search that comes to it; and FAILED_PRECONDITION
  // (NO_MESH; AssertionError) on an empty mesh, which the original insists on although nothing in
  // its answers depends on it. kDefault: faulty patterns are refused here; `mesh` is not looked at.
  static absl::StatusOr<PatternRules> Create(std::string_view text, PartitionSpec default_spec,
                                             const Mesh& mesh,
                                             Compatibility compatibility = Compatibility::kDefault,
                                             const std::function<bool()>& is_cancelled = {});

  // The spec of the first rule whose pattern is found in the name, else the default one. Shapes do
  // not count. Only in kExact there are errors: those of a pattern that is reached.
  absl::StatusOr<PartitionSpec> SpecOf(std::string_view name) const;
  // The index of that rule; nullopt if none matches.
  absl::StatusOr<std::optional<int64_t>> RuleOf(std::string_view name) const;

  absl::Span<const Rule> rules() const { return rule_set_.rules(); }
  const PartitionSpec& default_spec() const { return default_spec_; }

 private:
  PatternRules(RuleSet rule_set, PartitionSpec default_spec)
      : rule_set_(std::move(rule_set)), default_spec_(std::move(default_spec)) {}

  RuleSet rule_set_;
  PartitionSpec default_spec_;
};

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_RULES_PATTERN_RULES_H_
