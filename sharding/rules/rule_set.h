// Ordered (pattern, partition spec) rules that give every tensor of a model its spec by its name.
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
#include "sharding/spec.h"

namespace shardmesh {

struct Rule {
  std::string pattern;  // Python's dialect, see Pattern; searched for anywhere in the name
  PartitionSpec spec;
};

// The value of an open min_size, unless it is configured.
inline constexpr int64_t kDefaultMinSize = 16384;

struct RuleSetOptions {
  // Tensors of fewer elements are replicated. nullopt means default_min_size; 0 replicates none.
  std::optional<int64_t> min_size = 0;
  int64_t default_min_size = kDefaultMinSize;
  // Whether shapes count. If not, the rule's spec is returned unchanged, for any shape.
  bool strict = true;
  // Whether a faulty pattern is an error only for a tensor whose search reaches it, as in Python,
  // instead of an error of Create.
  bool defer_pattern_errors = false;
  // Polled before each pattern is compiled; true ends Create with CANCELLED.
  std::function<bool()> is_cancelled = {};
};

// Extents of a tensor; nullopt for a leaf of the tree that is no array.
using OptionalShape = std::optional<absl::Span<const int64_t>>;

// A tensor as rules see it. Both views must outlive the call.
struct NamedShape {
  std::string_view name;  // valid UTF-8
  OptionalShape shape;
};

// The answer of a rule set for one tensor.
struct RuleMatch {
  // Index of the first rule that matches. Nullopt if no rule was searched: scalars and leaves
  // without shape are always replicated.
  std::optional<int64_t> rule;
  // No rule matches; `spec` is P(). Only for callers that accept this as an answer.
  bool unmatched = false;
  PartitionSpec spec;
  // Why `spec` differs from the rule's own: one kBelowMinSize, or one kRankTruncated per entry cut
  // off. A removed none is not listed, since it requests nothing.
  std::vector<Correction> corrections;
};

// The method by which MatchTree finds the rules of many names.
enum class MatchStrategy {
  kFastest,     // the one of the other two that costs less on the first names
  kRuleByRule,  // each rule in turn until one matches
  kAtOnce,      // all rules in one pass over the name; kRuleByRule where RE2 cannot do that
};

struct MatchTreeOptions {
  MatchStrategy strategy = MatchStrategy::kFastest;
  // A rising reading in any unit, such as a clock's nanoseconds, which kFastest compares. Without
  // it kFastest is kRuleByRule.
  std::function<int64_t()> cost_reading;
  // Polled during the call; true ends it with CANCELLED.
  std::function<bool()> is_cancelled;
  // A tensor that no rule matches is an answer, not an error.
  bool keep_unmatched = false;
};

// Example: rules ("kernel$", P('fsdp', 'tp')), (".*", P()): "mlp/kernel" of shape 8x8 gets
// P('fsdp', 'tp'); of shape 8, P('fsdp') and a correction; "mlp/bias" gets P().
// Immutable, and safe to share between threads; copies are cheap.
class RuleSet {
 public:
  static constexpr int64_t kMaxRules = 10'000;
  static constexpr int64_t kMaxProgramSize = 5'000'000;  // of all patterns, see Pattern
  static constexpr int64_t kDefaultMinSize = shardmesh::kDefaultMinSize;

  // INVALID_ARGUMENT for the first faulty pattern (unless deferred), with its rule's index and
  // Pattern::Create's reason; LIMIT_EXCEEDED for more rules than kMaxRules, or a total size above
  // kMaxProgramSize. CANCELLED if options.is_cancelled returned true.
  static absl::StatusOr<RuleSet> Create(std::vector<Rule> rules,
                                        const RuleSetOptions& options = {});

  // Returns the spec of one tensor, from the first rule, in order, that matches the name.
  //
  // Errors, all INVALID_ARGUMENT: UNMATCHED_TENSOR (ValueError) if no rule matches, with the tensor
  // and the nearest rules; INVALID_SHAPE; a deferred pattern error.
  absl::StatusOr<RuleMatch> Match(std::string_view name, OptionalShape shape) const;

  // Returns the result of Match under the assumption that the rule of this index is the first
  // match. Requires an index of rules() and !ReplicatesUnasked(shape). INVALID_ARGUMENT:
  // INVALID_SHAPE.
  absl::StatusOr<RuleMatch> Apply(int64_t rule, std::string_view name, OptionalShape shape) const;
  // Returns whether the tensor is P() for any name. A strict set decides scalars and leaves without
  // shape without a search.
  bool ReplicatesUnasked(OptionalShape shape) const;
  // Returns the error for a tensor that no rule matches: UNMATCHED_TENSOR, with the nearest rules.
  absl::Status UnmatchedError(std::string_view name) const;

  // Returns the specs of many tensors, in their order, as Match does for each, or the first error.
  // CANCELLED if is_cancelled returned true.
  absl::StatusOr<std::vector<RuleMatch>> MatchTree(absl::Span<const NamedShape> tensors,
                                                   const MatchTreeOptions& options = {}) const;

  // Returns the indices, rising, of all rules whose patterns are found in the name, for any shape.
  // Rules with a deferred pattern error are left out. `is_cancelled`, if given, is polled every few
  // rules; after it returns true, some indices may be missing.
  std::vector<int64_t> MatchingRules(std::string_view name,
                                     const std::function<bool()>& is_cancelled = {}) const;

  // OK unless the rule has a deferred pattern error. Requires an index of rules().
  absl::Status PatternStatus(int64_t rule) const;

  absl::Span<const Rule> rules() const;
  int64_t min_size() const;
  bool strict() const;

 private:
  friend class RuleFinder;
  struct State;

  explicit RuleSet(std::shared_ptr<const State> state) : state_(std::move(state)) {}

  std::shared_ptr<const State> state_;
};

// Finds the first rules of many names, and learns which strategy is faster. For one thread.
class RuleFinder {
 public:
  // `cost_reading` as in MatchTreeOptions; without it kFastest is kRuleByRule.
  RuleFinder(RuleSet rules, MatchStrategy strategy, std::function<int64_t()> cost_reading);

  // Returns the index of the first rule, in order, that matches; nullopt if none does.
  // Errors: a deferred pattern error.
  //
  // kFastest tries one strategy on the first names and the other on the next ones, then keeps the
  // faster one. Names in any order should therefore cost about the same. `is_cancelled`, if given,
  // is polled every few rules; true ends the search with CANCELLED.
  absl::StatusOr<std::optional<int64_t>> Find(std::string_view name,
                                              const std::function<bool()>& is_cancelled = {});

 private:
  void Decide();

  RuleSet rules_;
  bool at_once_ = false;                   // the strategy in force
  std::function<int64_t()> cost_reading_;  // empty once decided
  int64_t asked_ = 0;
  int64_t started_ = 0;  // reading at the start of the current trial
  int64_t cost_rule_by_rule_ = 0;
  std::vector<int> matching_;  // reused for its memory
};

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_RULES_RULE_SET_H_
