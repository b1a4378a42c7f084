// Bounds the steps that many searches take together.
#ifndef SHARDMESH_SHARDING_PATTERN_SEARCH_BUDGET_H_
#define SHARDMESH_SHARDING_PATTERN_SEARCH_BUDGET_H_

#include <algorithm>
#include <cstdint>

namespace shardmesh {

// The steps that the searches of one call, such as RuleSet::MatchTree, may take together. Only
// searches for patterns that backtrack count. The first kFreeSteps of each search do not count,
// because they take about as long as a search for another pattern. A large tree therefore needs no
// larger budget, unless some searches backtrack far.
//
// Example: a budget of 5,000 steps allows two searches of 3,000 steps, and any number of searches
// of 1,000 steps. Not thread-safe.
class SearchBudget {
 public:
  static constexpr int64_t kMaxSteps = 200'000'000;  // take some four seconds
  static constexpr int64_t kFreeSteps = 1'000;       // take some 20 us

  explicit SearchBudget(int64_t steps = kMaxSteps) : steps_(steps), left_(steps) {}

  // Returns the whole budget.
  int64_t steps() const { return steps_; }
  // Returns the number of steps that the next search may take.
  int64_t StepsOfNext() const { return left_ + kFreeSteps; }
  // Counts a search that took so many steps.
  void Count(int64_t steps) {
    left_ = std::max<int64_t>(0, left_ - std::max<int64_t>(0, steps - kFreeSteps));
  }

 private:
  int64_t steps_;
  int64_t left_;
};

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_PATTERN_SEARCH_BUDGET_H_
