// Finds the first matching rule, by searching one rule after another or with an RE2::Set.
#include "sharding/rules/rule_set.h"

#include <algorithm>
#include <cstddef>

#include "absl/base/call_once.h"
#include "absl/strings/cord.h"
#include "re2/re2.h"
#include "re2/set.h"
#include "sharding/axis_value.h"
#include "sharding/pattern/syntax.h"
#include "sharding/rules/rule_explanation.h"
#include "sharding/shape.h"
#include "status/fact_keys.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

// Number of names on which kFastest tries each method. After that many names, RE2 has built most of
// the states that it will use.
constexpr int64_t kTrialNames = 64;
// Number of names before the first trial: for a smaller tree, building an RE2::Set does not pay
// off.
constexpr int64_t kNamesBeforeTrial = 128;
// Number of rules between two cancellation checks. The search for one rule takes up to about ten
// microseconds. A rule that backtracks may take a thousand times as long, so a check follows it.
constexpr size_t kRulesPerCancellationCheck = 16;
// Upper bound on the instructions of all patterns in one RE2::Set: RE2's memory limit allows no
// more. For a larger rule set, kAtOnce is kRuleByRule.
constexpr int64_t kMaxAutomatonSize = 300'000;
constexpr int64_t kNearestRules = 3;

absl::Status Prefixed(const std::string& prefix, const absl::Status& status) {
  absl::Status out(status.code(), StrCat(prefix, status.message()));
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { out.SetPayload(url, payload); });
  return out;
}

bool AsksForAnything(const PartitionSpec& spec) {
  return std::any_of(spec.entries().begin(), spec.entries().end(),
                     [](const SpecEntry& entry) { return !entry.is_none(); });
}

std::vector<std::string> Unreduced(const PartitionSpec& spec) {
  return {spec.unreduced().begin(), spec.unreduced().end()};
}

bool IsTimeToStop(absl::Span<const absl::StatusOr<Pattern>> patterns, size_t rule,
                  const std::function<bool()>& is_cancelled) {
  const bool after_backtracking =
      rule > 0 && patterns[rule - 1].ok() && patterns[rule - 1]->backtracks();
  return is_cancelled != nullptr &&
         (after_backtracking ||
          rule % kRulesPerCancellationCheck == kRulesPerCancellationCheck - 1) &&
         is_cancelled();
}

// Returns whether the rule's pattern is found in the name. Errors name the rule.
absl::StatusOr<bool> SearchFor(size_t rule, const Pattern& pattern, std::string_view name,
                               SearchBudget* budget) {
  absl::StatusOr<bool> found = pattern.Search(name, budget);
  if (!found.ok()) {
    return Prefixed(StrCat("rule ", rule, ": "), found.status());
  }
  return found;
}

absl::Status Unmatched(std::string_view name, absl::Span<const Rule> rules) {
  const std::vector<int64_t> nearest = NearestRules(rules, name, kNearestRules);
  const std::string named = StrJoin(nearest, ", ", [&rules](std::string* out, int64_t rule) {
    StrAppend(out, "rule ", rule, " ", QuotePattern(rules[static_cast<size_t>(rule)].pattern));
  });
  const std::string message =
      StrCat("none of the ", rules.size(), " rules matches the tensor ", PythonRepr(name),
             named.empty() ? "" : "; nearest: ", named, "; add a rule for it, or a last rule '.*'");
  return InvalidArgument(
      Reason::kUnmatchedTensor, message,
      {{fact::kTensor, name},
       {fact::kNearest, nearest.empty() ? "" : rules[static_cast<size_t>(nearest[0])].pattern}});
}

}  // namespace

struct RuleSet::State {
  std::vector<Rule> rules;
  std::vector<absl::StatusOr<Pattern>> patterns;  // one per rule
  int64_t min_size = 0;
  bool strict = true;
  bool backtracks = false;   // whether any pattern does
  int64_t program_size = 0;  // of all patterns

  // Returns an RE2::Set of all patterns, built at the first call; null if RE2 cannot build the set.
  const RE2::Set* AllAtOnce() const;
  // Returns the first rule that matches, searching one rule after another.
  absl::StatusOr<std::optional<int64_t>> FindRuleByRule(std::string_view name,
                                                        const std::function<bool()>& is_cancelled,
                                                        SearchBudget* budget) const;
  // Like FindRuleByRule, but searches with `set` if RE2 is exact for the name. `matching` is a
  // reusable buffer.
  absl::StatusOr<std::optional<int64_t>> FindAtOnce(std::string_view name, const RE2::Set& set,
                                                    std::vector<int>* matching,
                                                    const std::function<bool()>& is_cancelled,
                                                    SearchBudget* budget) const;

 private:
  mutable absl::once_flag set_once_;
  mutable std::unique_ptr<RE2::Set> set_;  // written under set_once_
};

const RE2::Set* RuleSet::State::AllAtOnce() const {
  absl::call_once(set_once_, [this] {
    if (program_size > kMaxAutomatonSize) {
      return;
    }
    RE2::Options options;
    options.set_log_errors(false);
    options.set_never_capture(true);
    auto set = std::make_unique<RE2::Set>(options, RE2::UNANCHORED);
    for (const absl::StatusOr<Pattern>& pattern : patterns) {
      if (!pattern.ok() || !pattern->re2_text().has_value() ||
          set->Add(*pattern->re2_text(), nullptr) < 0) {
        return;
      }
    }
    if (set->Compile()) {
      set_ = std::move(set);
    }
  });
  return set_.get();
}

absl::StatusOr<std::optional<int64_t>> RuleSet::State::FindRuleByRule(
    std::string_view name, const std::function<bool()>& is_cancelled, SearchBudget* budget) const {
  for (size_t i = 0; i < patterns.size(); ++i) {
    if (IsTimeToStop(patterns, i, is_cancelled)) {
      return absl::CancelledError(
          StrCat("matching was cancelled after ", i, " of ", patterns.size(), " rules"));
    }
    SHARDMESH_RETURN_IF_ERROR(patterns[i].status());
    SHARDMESH_ASSIGN_OR_RETURN(const bool found, SearchFor(i, *patterns[i], name, budget));
    if (found) {
      return static_cast<int64_t>(i);
    }
  }
  return std::nullopt;
}

absl::StatusOr<std::optional<int64_t>> RuleSet::State::FindAtOnce(
    std::string_view name, const RE2::Set& set, std::vector<int>* matching,
    const std::function<bool()>& is_cancelled, SearchBudget* budget) const {
  RE2::Set::ErrorInfo error;
  if (!Pattern::IsPlain(name) ||
      (!set.Match(re2::StringPiece(name.data(), name.size()), matching, &error) &&
       error.kind != RE2::Set::kNoError)) {
    return FindRuleByRule(name, is_cancelled, budget);
  }
  if (matching->empty()) {
    return std::nullopt;
  }
  return *std::min_element(matching->begin(), matching->end());
}

absl::StatusOr<RuleMatch> RuleSet::Apply(int64_t rule, std::string_view name,
                                         OptionalShape shape) const {
  const PartitionSpec& spec = rules()[static_cast<size_t>(rule)].spec;
  const int64_t min_size = state_->min_size;
  RuleMatch match{.rule = rule, .spec = spec, .corrections = {}};
  if (!strict()) {
    return match;
  }
  const absl::StatusOr<int64_t> elements = ElementCount(*shape);
  if (!elements.ok()) {
    return Prefixed(StrCat("tensor ", PythonRepr(name), ": "), elements.status());
  }
  if (*elements < min_size) {
    match.spec = PartitionSpec({}, Unreduced(spec));
    if (AsksForAnything(spec)) {
      match.corrections.push_back(
          {-1, SpecEntry::None(), Reason::kBelowMinSize, *elements, min_size});
    }
    return match;
  }
  const auto rank = static_cast<int64_t>(shape->size());
  if (spec.size() <= rank) {
    return match;
  }
  const absl::Span<const SpecEntry> entries = spec.entries();
  match.spec = PartitionSpec({entries.begin(), entries.begin() + rank}, Unreduced(spec));
  for (int64_t dim = rank; dim < spec.size(); ++dim) {
    if (!entries[dim].is_none()) {
      match.corrections.push_back({dim, entries[dim], Reason::kRankTruncated, rank, spec.size()});
    }
  }
  return match;
}

absl::StatusOr<RuleSet> RuleSet::Create(std::vector<Rule> rules, const RuleSetOptions& options) {
  if (static_cast<int64_t>(rules.size()) > kMaxRules) {
    return InvalidArgument(Reason::kLimitExceeded,
                           StrCat("a rule set of ", rules.size(), " rules; the limit is ",
                                  kMaxRules, ", join patterns with |"),
                           {{fact::kHave, rules.size()}, {fact::kLimit, kMaxRules}});
  }
  auto state = std::make_shared<State>();
  state->patterns.reserve(rules.size());
  int64_t program_size = 0;
  for (size_t i = 0; i < rules.size(); ++i) {
    if (options.is_cancelled != nullptr && options.is_cancelled()) {
      return absl::CancelledError(
          StrCat("compiling was cancelled after ", i, " of ", rules.size(), " patterns"));
    }
    absl::StatusOr<Pattern> pattern = Pattern::Create(rules[i].pattern);
    if (!pattern.ok()) {
      pattern = Prefixed(StrCat("rule ", i, ": "), pattern.status());
      if (!options.defer_pattern_errors) {
        return pattern.status();
      }
    } else if (program_size += pattern->program_size(); program_size > kMaxProgramSize) {
      return InvalidArgument(
          Reason::kLimitExceeded,
          StrCat("the patterns up to rule ", i, " compile to ", program_size,
                 " instructions; the limit is ", kMaxProgramSize, ", lower their repeats"),
          {{fact::kHave, program_size}, {fact::kLimit, kMaxProgramSize}});
    }
    state->backtracks = state->backtracks || (pattern.ok() && pattern->backtracks());
    state->patterns.push_back(std::move(pattern));
  }
  state->rules = std::move(rules);
  state->program_size = program_size;
  state->min_size = options.min_size.value_or(options.default_min_size);
  state->strict = options.strict;
  return RuleSet(std::move(state));
}

bool RuleSet::ReplicatesUnasked(OptionalShape shape) const {
  return strict() && (!shape.has_value() || shape->empty());
}

absl::Status RuleSet::UnmatchedError(std::string_view name) const {
  return Unmatched(name, rules());
}

absl::StatusOr<RuleMatch> RuleSet::Match(std::string_view name, OptionalShape shape) const {
  if (ReplicatesUnasked(shape)) {
    return RuleMatch{};
  }
  SearchBudget budget;
  SHARDMESH_ASSIGN_OR_RETURN(const std::optional<int64_t> rule,
                             state_->FindRuleByRule(name, {}, &budget));
  return rule.has_value() ? Apply(*rule, name, shape) : UnmatchedError(name);
}

absl::StatusOr<std::vector<RuleMatch>> RuleSet::MatchTree(absl::Span<const NamedShape> tensors,
                                                          const MatchTreeOptions& options) const {
  RuleFinder finder(*this, options.strategy, options.cost_reading, options.budget);
  std::vector<RuleMatch> matches;
  matches.reserve(tensors.size());
  for (const NamedShape& tensor : tensors) {
    if (options.is_cancelled != nullptr && options.is_cancelled()) {
      return absl::CancelledError(StrCat("matching was cancelled after ", matches.size(), " of ",
                                         tensors.size(), " tensors"));
    }
    if (ReplicatesUnasked(tensor.shape)) {
      matches.emplace_back();
      continue;
    }
    SHARDMESH_ASSIGN_OR_RETURN(const std::optional<int64_t> rule,
                               finder.Find(tensor.name, options.is_cancelled));
    if (rule.has_value()) {
      SHARDMESH_ASSIGN_OR_RETURN(RuleMatch match, Apply(*rule, tensor.name, tensor.shape));
      matches.push_back(std::move(match));
    } else if (options.keep_unmatched) {
      matches.push_back({.rule = std::nullopt, .unmatched = true, .spec = {}, .corrections = {}});
    } else {
      return UnmatchedError(tensor.name);
    }
  }
  return matches;
}

RulesOfName RuleSet::MatchingRules(std::string_view name, const std::function<bool()>& is_cancelled,
                                   SearchBudget* budget) const {
  RulesOfName rules;
  std::vector<int> found;
  RE2::Set::ErrorInfo error;
  const RE2::Set* set = Pattern::IsPlain(name) ? state_->AllAtOnce() : nullptr;
  if (set != nullptr && (set->Match(re2::StringPiece(name.data(), name.size()), &found, &error) ||
                         error.kind == RE2::Set::kNoError)) {
    rules.matching.assign(found.begin(), found.end());
    std::sort(rules.matching.begin(), rules.matching.end());
    return rules;
  }
  const std::vector<absl::StatusOr<Pattern>>& patterns = state_->patterns;
  for (size_t i = 0; i < patterns.size() && !IsTimeToStop(patterns, i, is_cancelled); ++i) {
    if (!patterns[i].ok()) {
      continue;
    }
    const absl::StatusOr<bool> is_match = SearchFor(i, *patterns[i], name, budget);
    if (!is_match.ok()) {
      rules.given_up.push_back({static_cast<int64_t>(i), is_match.status()});
    } else if (*is_match) {
      rules.matching.push_back(static_cast<int64_t>(i));
    }
  }
  return rules;
}

absl::Status RuleSet::PatternStatus(int64_t rule) const {
  return state_->patterns[static_cast<size_t>(rule)].status();
}

RuleFinder::RuleFinder(RuleSet rules, MatchStrategy strategy, std::function<int64_t()> cost_reading,
                       SearchBudget budget)
    : rules_(std::move(rules)), budget_(budget) {
  if (strategy == MatchStrategy::kAtOnce) {
    at_once_ = rules_.state_->AllAtOnce() != nullptr;
  } else if (strategy == MatchStrategy::kFastest) {
    cost_reading_ = std::move(cost_reading);
  }
}

// Phases by the number of names searched before:
//   1. kNamesBeforeTrial names rule by rule, unmeasured, so that RE2 builds its states;
//   2. kTrialNames names rule by rule, measured;
//   3. kTrialNames names all at once, unmeasured, so that the RE2::Set builds its states;
//   4. kTrialNames names all at once, measured. The cheaper method stays.
void RuleFinder::Decide() {
  constexpr int64_t kFirstEnd = kNamesBeforeTrial + kTrialNames;
  constexpr int64_t kSecondStart = kFirstEnd + kTrialNames;
  switch (asked_) {
    case kNamesBeforeTrial:
      started_ = cost_reading_();
      break;
    case kFirstEnd:
      cost_rule_by_rule_ = cost_reading_() - started_;
      at_once_ = rules_.state_->AllAtOnce() != nullptr;
      if (!at_once_) {
        cost_reading_ = nullptr;
      }
      break;
    case kSecondStart:
      started_ = cost_reading_();
      break;
    case kSecondStart + kTrialNames:
      at_once_ = cost_reading_() - started_ <= cost_rule_by_rule_;
      cost_reading_ = nullptr;
      break;
    default:
      break;
  }
  ++asked_;
}

absl::StatusOr<std::optional<int64_t>> RuleFinder::Find(std::string_view name,
                                                        const std::function<bool()>& is_cancelled) {
  if (cost_reading_ != nullptr) {
    Decide();
  }
  return at_once_ ? rules_.state_->FindAtOnce(name, *rules_.state_->AllAtOnce(), &matching_,
                                              is_cancelled, &budget_)
                  : rules_.state_->FindRuleByRule(name, is_cancelled, &budget_);
}

absl::Span<const Rule> RuleSet::rules() const { return state_->rules; }
bool RuleSet::backtracks() const { return state_->backtracks; }
int64_t RuleSet::min_size() const { return state_->min_size; }
bool RuleSet::strict() const { return state_->strict; }

}  // namespace shardmesh
