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

// Upper bound on the bytes of a text of rules.
inline constexpr size_t kMaxPatternRulesBytes = 1 << 20;

// Parses the text without trimming or escapes, in this order:
//   - Commas separate pieces. A piece without `->` is no rule and is skipped.
//   - Before the arrow are patterns, separated by bars; each pattern makes one rule. A pattern
//     that needs a comma or a bar, such as `(q|k)_proj`, cannot be written. An empty pattern
//     matches every name.
//   - After the arrow is the spec of these rules, with dots between dimensions. An empty dimension
//     is not partitioned, and an empty spec, as in `kernel->`, is P(None). `None` is an axis name.
// Example: `a|b->dp..tp` is ("a", P('dp', None, 'tp')), ("b", P('dp', None, 'tp')).
//
// The function does not compile the patterns.
// Errors are INVALID_ARGUMENT: BAD_PATTERN (Python: ValueError) for a piece with two arrows;
// LIMIT_EXCEEDED for a text of more than kMaxPatternRulesBytes bytes, more rules than a rule set
// may have, or a spec of more than kMaxRank dimensions.
absl::StatusOr<std::vector<Rule>> ParsePatternRules(std::string_view text);

// Pattern rules, and a default spec for names that no rule matches. Immutable, and safe to share
// between threads; copies are cheap.
class PatternRules {
 public:
  // Errors as ParsePatternRules, then as RuleSet::Create, which polls `is_cancelled`.
  //
  // Under kExact, a faulty pattern is an error only when a search reaches it. An empty mesh is
  // FAILED_PRECONDITION (NO_MESH; Python: AssertionError), as in the Python original, although no
  // answer depends on the mesh. Under kDefault, Create refuses faulty patterns and ignores `mesh`.
  static absl::StatusOr<PatternRules> Create(std::string_view text, PartitionSpec default_spec,
                                             const Mesh& mesh,
                                             Compatibility compatibility = Compatibility::kDefault,
                                             const std::function<bool()>& is_cancelled = {});

  // Returns the spec of the first rule whose pattern is found in the name, else the default spec.
  // The spec does not depend on the tensor's shape. Errors: LIMIT_EXCEEDED as for
  // RuleSet::Match; under kExact also those of a faulty pattern that the search reaches.
  absl::StatusOr<PartitionSpec> SpecOf(std::string_view name) const;
  // Returns the index of the first rule whose pattern is found in the name; nullopt if no pattern
  // is found. Errors as SpecOf; also CANCELLED if `is_cancelled`, which may be null and which the
  // search polls, returned true.
  absl::StatusOr<std::optional<int64_t>> RuleOf(
      std::string_view name, const std::function<bool()>& is_cancelled = {}) const;

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
