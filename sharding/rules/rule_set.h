// Rule sets: ordered (pattern, partition spec) rules. The first rule that matches a tensor's name
// gives the tensor its spec.
#ifndef SHARDMESH_SHARDING_RULES_RULE_SET_H_
#define SHARDMESH_SHARDING_RULES_RULE_SET_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/correction.h"
#include "sharding/pattern/pattern.h"
#include "sharding/pattern/search_budget.h"
#include "sharding/spec.h"

namespace shardmesh {

struct Rule {
  std::string pattern;  // Python's dialect, see Pattern; searched for anywhere in the name
  PartitionSpec spec;
};

// The min_size of rule sets that do not set it, unless the coordinator's configuration sets another
// default.
inline constexpr int64_t kDefaultMinSize = 16384;

struct RuleSetOptions {
  // The rule set replicates tensors of fewer elements; 0 replicates none. nullopt stands for
  // default_min_size.
  std::optional<int64_t> min_size = 0;
  int64_t default_min_size = kDefaultMinSize;
  // Whether specs depend on shapes. If false, every shape gets the rule's spec unchanged.
  bool strict = true;
  // Whether Create accepts faulty patterns. A faulty pattern is then an error of each search that
  // reaches it, as in Python.
  bool defer_pattern_errors = false;
  // Create calls this before it compiles each pattern. If it returns true, Create returns
  // CANCELLED.
  std::function<bool()> is_cancelled = {};
};

// The extents of a tensor; nullopt for a leaf of the tree that is no array.
using OptionalShape = std::optional<absl::Span<const int64_t>>;

// The name and the shape of a tensor, which decide its spec. Both views must outlive the call.
struct NamedShape {
  std::string_view name;  // valid UTF-8
  OptionalShape shape;
};

// The answer of a rule set for one tensor.
struct RuleMatch {
  // Index of the first rule that matches. Nullopt if the rule set replicates the tensor without a
  // search: scalars, and leaves without shape. Nullopt also if `unmatched`.
  std::optional<int64_t> rule;
  // Whether no rule matches; `spec` is then P(). Only MatchTree with keep_unmatched sets it; other
  // calls return an error.
  bool unmatched = false;
  PartitionSpec spec;
  // Why `spec` differs from the rule's spec: one kBelowMinSize, or one kRankTruncated for each
  // entry that was cut off. A none that was cut off is not listed, because it requests nothing.
  std::vector<Correction> corrections;
};

// The rules whose patterns are found in a name.
struct RulesOfName {
  std::vector<int64_t> matching;  // rising indices
  // Rules whose pattern backtracks, and whose search takes too many steps, in rising order. Match
  // returns this error if it reaches the rule.
  struct GivenUp {
    int64_t rule = 0;
    absl::Status status;  // INVALID_ARGUMENT (LIMIT_EXCEEDED)
  };
  std::vector<GivenUp> given_up;
};

// The method by which MatchTree finds the rules of many names.
enum class MatchStrategy {
  kFastest,     // kRuleByRule or kAtOnce, whichever costs less on the first names
  kRuleByRule,  // searches each rule in turn until one matches
  kAtOnce,      // searches all rules in one pass over the name; kRuleByRule if RE2 cannot do that
};

struct MatchTreeOptions {
  MatchStrategy strategy = MatchStrategy::kFastest;
  // Returns the cost so far in any unit, such as a clock's nanoseconds. kFastest compares such
  // readings. Without this function, kFastest is kRuleByRule.
  std::function<int64_t()> cost_reading;
  // MatchTree calls this every few rules. If it returns true, MatchTree returns CANCELLED.
  std::function<bool()> is_cancelled;
  // Whether a tensor that no rule matches gets an answer (RuleMatch::unmatched) instead of an
  // error.
  bool keep_unmatched = false;
  // The steps that all searches for patterns that backtrack may take together.
  SearchBudget budget = SearchBudget();
};

// Example: rules ("kernel$", P('fsdp', 'tp')), (".*", P()). "mlp/kernel" of shape (8, 8) gets
// P('fsdp', 'tp'). With the shape (8,), it gets P('fsdp') and a correction. "mlp/bias" gets P().
// Immutable, and safe to share between threads; copies are cheap.
class RuleSet {
 public:
  static constexpr int64_t kMaxRules = 10'000;
  static constexpr int64_t kMaxProgramSize = 5'000'000;  // sum of Pattern::program_size()
  static constexpr int64_t kDefaultMinSize = shardmesh::kDefaultMinSize;

  // Returns INVALID_ARGUMENT for the first faulty pattern (unless deferred), with its rule's index
  // and the reason of Pattern::Create. Returns LIMIT_EXCEEDED for more than kMaxRules rules, or if
  // the patterns' total program size exceeds kMaxProgramSize. Returns CANCELLED if
  // options.is_cancelled returned true.
  static absl::StatusOr<RuleSet> Create(std::vector<Rule> rules,
                                        const RuleSetOptions& options = {});

  // Returns the spec of one tensor, from the first rule, in order, that matches the name.
  //
  // Errors, all INVALID_ARGUMENT: UNMATCHED_TENSOR (Python: ValueError) if no rule matches, with
  // the tensor and the nearest rules; INVALID_SHAPE for a malformed shape; the deferred error of a
  // faulty pattern that the search reaches; LIMIT_EXCEEDED if the searches for patterns that
  // backtrack take too many steps: one of them more than BacktrackingProgram::kMaxSteps, or all
  // more than SearchBudget::kMaxSteps.
  absl::StatusOr<RuleMatch> Match(std::string_view name, OptionalShape shape) const;

  // Returns the result of Match under the assumption that the rule of this index is the first
  // match. Requires an index of rules() and !ReplicatesUnasked(shape). The only error is
  // INVALID_ARGUMENT (INVALID_SHAPE).
  absl::StatusOr<RuleMatch> Apply(int64_t rule, std::string_view name, OptionalShape shape) const;
  // Returns whether a tensor of this shape gets P() regardless of its name: true if the set is
  // strict, and the tensor is a scalar or a leaf without shape. Match then searches no rules.
  bool ReplicatesUnasked(OptionalShape shape) const;
  // Returns the error for a tensor that no rule matches: UNMATCHED_TENSOR, with the nearest rules.
  absl::Status UnmatchedError(std::string_view name) const;

  // Returns the specs of many tensors, in the order of `tensors`, as Match does for each tensor.
  // Returns the first error of Match, with options.budget for all names. CANCELLED if is_cancelled
  // returned true.
  absl::StatusOr<std::vector<RuleMatch>> MatchTree(absl::Span<const NamedShape> tensors,
                                                   const MatchTreeOptions& options = {}) const;

  // Returns all rules whose patterns are found in the name, regardless of the shape. Leaves out
  // rules with a deferred pattern error. Polls `is_cancelled`, if given, every few rules; after it
  // has returned true, some rules may be missing. `budget`, which may be null, counts the searches.
  RulesOfName MatchingRules(std::string_view name, const std::function<bool()>& is_cancelled = {},
                            SearchBudget* budget = nullptr) const;

  // Returns the deferred pattern error of a rule, else OK. Requires an index of rules().
  absl::Status PatternStatus(int64_t rule) const;

  absl::Span<const Rule> rules() const;
  // Returns whether any pattern backtracks: a search may then take a thousand times as long as a
  // search for other patterns.
  bool backtracks() const;
  int64_t min_size() const;
  bool strict() const;

 private:
  friend class RuleFinder;
  struct State;

  explicit RuleSet(std::shared_ptr<const State> state) : state_(std::move(state)) {}

  std::shared_ptr<const State> state_;
};

// Finds the first matching rule of many names, and learns which strategy is faster. Not
// thread-safe.
class RuleFinder {
 public:
  // `cost_reading` as in MatchTreeOptions; without it kFastest is kRuleByRule. `budget`: for all
  // names.
  RuleFinder(RuleSet rules, MatchStrategy strategy, std::function<int64_t()> cost_reading,
             SearchBudget budget = SearchBudget());

  // Returns the index of the first rule, in order, that matches; nullopt if no rule matches.
  // Errors: the deferred error of a faulty pattern that the search reaches; LIMIT_EXCEEDED as for
  // RuleSet::Match.
  //
  // kFastest tries one strategy on the first names and the other strategy on the next names, then
  // keeps the faster strategy. The comparison is fair only if these names cost about the same.
  // Polls `is_cancelled`, if given, every few rules; true ends the search with CANCELLED.
  absl::StatusOr<std::optional<int64_t>> Find(std::string_view name,
                                              const std::function<bool()>& is_cancelled = {});

 private:
  void Decide();

  RuleSet rules_;
  SearchBudget budget_;
  bool at_once_ = false;                   // whether the current strategy is kAtOnce
  std::function<int64_t()> cost_reading_;  // empty once decided
  int64_t asked_ = 0;
  int64_t started_ = 0;  // cost reading at the start of the current trial
  int64_t cost_rule_by_rule_ = 0;
  std::vector<int> matching_;  // reusable buffer of FindAtOnce
};

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_RULES_RULE_SET_H_
