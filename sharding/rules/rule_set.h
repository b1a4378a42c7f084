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

// What a min_size that is left open stands for, unless it is configured.
inline constexpr int64_t kDefaultMinSize = 16384;

struct RuleSetOptions {
  // Tensors of fewer elements are replicated. nullopt means default_min_size; 0 replicates none.
  std::optional<int64_t> min_size = 0;
  int64_t default_min_size = kDefaultMinSize;
  // Whether shapes count. If not, the rule's spec is returned untouched, for any shape.
  bool strict = true;
  // Whether a faulty pattern is an error only for a tensor whose search comes to it, as in Python,
  // instead of an error of Create.
  bool defer_pattern_errors = false;
  // Asked before each pattern is compiled; true ends Create with CANCELLED.
  std::function<bool()> is_cancelled = {};
};

// Extents of a tensor; nullopt for a leaf of the tree that is no array.
using OptionalShape = std::optional<absl::Span<const int64_t>>;

// A tensor as rules see it. Both views must outlive the call.
struct NamedShape {
  std::string_view name;  // valid UTF-8
  OptionalShape shape;
};

// What a rule set says of one tensor.
struct RuleMatch {
  // Index of the first rule that matches; nullopt if no rule was asked, since a scalar or a leaf
  // without shape is replicated in any case.
  std::optional<int64_t> rule;
  // No rule matches; `spec` is P(). Only where the caller takes that for an answer.
  bool unmatched = false;
  PartitionSpec spec;
  // Why `spec` is not the rule's own: one kBelowMinSize, or one kRankTruncated per entry cut off.
  // As elsewhere, only what the rule asked for is noted, not a none that went.
  std::vector<Correction> corrections;
};

// How MatchTree finds the rules of many names.
enum class MatchStrategy {
  kFastest,     // whichever of the other two costs less on the first names
  kRuleByRule,  // each rule in turn until one matches
  kAtOnce,      // all rules in one pass over the name; kRuleByRule where RE2 cannot do that
};

struct MatchTreeOptions {
  MatchStrategy strategy = MatchStrategy::kFastest;
  // A rising reading in any unit, such as a clock's nanoseconds: what kFastest compares. Without
  // it kFastest is kRuleByRule.
  std::function<int64_t()> cost_reading;
  // Asked now and then; true ends the call with CANCELLED.
  std::function<bool()> is_cancelled;
  // A tensor that no rule matches is an answer, not an error.
  bool keep_unmatched = false;
};

// Example: rules ("kernel$", P('fsdp', 'tp')), (".*", P()): "mlp/kernel" of shape 8x8 gets
// P('fsdp', 'tp'); of shape 8, P('fsdp') and a correction; "mlp/bias" gets P().
// Immutable, hence safe to share between threads; copies are cheap.
class RuleSet {
 public:
  static constexpr int64_t kMaxRules = 10'000;
  static constexpr int64_t kMaxProgramSize = 5'000'000;  // of all patterns, see Pattern
  static constexpr int64_t kDefaultMinSize = shardmesh::kDefaultMinSize;

  // INVALID_ARGUMENT: the first faulty pattern, with its rule's index and Pattern::Create's reason
  // (unless deferred); LIMIT_EXCEEDED for more rules than kMaxRules, or larger ones in sum than
  // kMaxProgramSize. CANCELLED if options.is_cancelled said so.
  static absl::StatusOr<RuleSet> Create(std::vector<Rule> rules,
                                        const RuleSetOptions& options = {});

  // The spec of one tensor: the first rule, in order, that matches the name.
  //
  // Errors, all INVALID_ARGUMENT: UNMATCHED_TENSOR (ValueError) if no rule matches, naming the
  // tensor and the rules that come nearest; INVALID_SHAPE; a deferred pattern error.
  absl::StatusOr<RuleMatch> Match(std::string_view name, OptionalShape shape) const;

  // What follows for a tensor from the rule of this index matching its name: Match from there on.
  // Requires an index of rules() and !ReplicatesUnasked(shape). INVALID_ARGUMENT: INVALID_SHAPE.
  absl::StatusOr<RuleMatch> Apply(int64_t rule, std::string_view name, OptionalShape shape) const;
  // Whether the tensor is P() whatever its name: a strict set asks no rule about scalars and leaves
  // without shape.
  bool ReplicatesUnasked(OptionalShape shape) const;
  // The error of a tensor that no rule matches: UNMATCHED_TENSOR, with the nearest rules.
  absl::Status UnmatchedError(std::string_view name) const;

  // The specs of many tensors, in their order: what Match gives for each, or the first error.
  // CANCELLED if is_cancelled said so.
  absl::StatusOr<std::vector<RuleMatch>> MatchTree(absl::Span<const NamedShape> tensors,
                                                   const MatchTreeOptions& options = {}) const;

  // Indices of all rules whose patterns are found in the name, rising, whatever the shape; rules
  // with a deferred pattern error are not among them.
  // `is_cancelled`, if given, is asked every few rules; once it says true, some may be missing.
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

// Finds the first rules of many names, of which it learns which strategy is the faster one.
// For one thread.
class RuleFinder {
 public:
  // `cost_reading` as in MatchTreeOptions; without it kFastest is kRuleByRule.
  RuleFinder(RuleSet rules, MatchStrategy strategy, std::function<int64_t()> cost_reading);

  // Index of the first rule, in order, that matches; nullopt if none does. Errors: a deferred
  // pattern error. kFastest tries one strategy on the first names and the other on those that
  // follow, then stays with the faster one: names that come in any order cost about the same.
  // `is_cancelled`, if given, is asked every few rules; true ends the search with CANCELLED.
  absl::StatusOr<std::optional<int64_t>> Find(std::string_view name,
                                              const std::function<bool()>& is_cancelled = {});

 private:
  void Decide();

  RuleSet rules_;
  bool at_once_ = false;                   // the strategy in force
  std::function<int64_t()> cost_reading_;  // empty once decided
  int64_t asked_ = 0;
  int64_t started_ = 0;  // the reading when the trial in progress began
  int64_t cost_rule_by_rule_ = 0;
  std::vector<int> matching_;  // kept for its memory
};

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_RULES_RULE_SET_H_
