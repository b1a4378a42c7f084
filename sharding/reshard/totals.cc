// Computes sums and extremes over all devices of a reshard, from the dimensions.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sharding/reshard/layout.h"
#include "sharding/reshard/plan.h"
#include "sharding/reshard/state.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

using reshard_internal::Cut;
using reshard_internal::Digit;
using reshard_internal::Index;
using reshard_internal::Overlap;
using reshard_internal::OverLimit;
using reshard_internal::SharedDigit;
using reshard_internal::SharedDigits;
using reshard_internal::ShareDigits;
using reshard_internal::Side;

// Number of steps of a walk between two cancellation checks.
constexpr int64_t kStepsPerQuestion = int64_t{1} << 10;

// The overlap of one destination part of a dimension with the source parts.
struct PartFacts {
  int64_t size = 0;      // 0 for an empty part, whose other facts are 0 as well
  int64_t cells = 0;     // number of source parts that the destination part overlaps
  int64_t best = 0;      // the largest overlap with a source part
  int64_t best_src = 0;  // index of the source part with the largest overlap
  int64_t second = 0;    // the second largest overlap; 0 if only one source part overlaps
  int64_t least = 0;     // the least nonempty overlap
};

std::vector<PartFacts> FactsOf(const Cut& src, const Cut& dst) {
  std::vector<PartFacts> facts(Index(dst.parts));
  for (int64_t part = 0; part < dst.parts; ++part) {
    const IndexRange range = dst.Range(part);
    if (range.size() == 0) {
      continue;
    }
    const auto [first, last] = src.Meeting(range);
    PartFacts& fact = facts[Index(part)];
    fact.size = range.size();
    fact.least = range.size();
    for (int64_t cell = first; cell <= last; ++cell) {
      const int64_t common = Overlap(range, src.Range(cell));
      if (common == 0) {
        continue;
      }
      ++fact.cells;
      fact.least = std::min(fact.least, common);
      if (common > fact.best) {
        fact.second = fact.best;
        fact.best = common;
        fact.best_src = cell;
      } else {
        fact.second = std::max(fact.second, common);
      }
    }
  }
  return facts;
}

// The Pareto frontier of (gain, loss) pairs. For all a, b >= 0 it contains the pair with the
// greatest a * gain - b * loss.
class ParetoFrontier {
 public:
  void Add(absl::int128 gain, absl::int128 loss) {
    if (!pairs_.empty() && pairs_.back().first == gain && pairs_.back().second <= loss) {
      return;
    }
    pairs_.emplace_back(gain, loss);
    if (pairs_.size() >= room_) {
      Prune();
      room_ = std::max<size_t>(64, 2 * pairs_.size());
    }
  }

  // Multiplies each pair of this frontier with each pair of the other frontier.
  absl::Status MultiplyBy(ParetoFrontier& other) {
    Prune();
    other.Prune();
    if (static_cast<int64_t>(pairs_.size()) >
        ReshardPlan::kMaxWalk / static_cast<int64_t>(std::max<size_t>(1, other.pairs_.size()))) {
      return OverLimit("the parts of the two layouts have too many different sizes to compare",
                       {{fact::kLimit, ReshardPlan::kMaxWalk}});
    }
    ParetoFrontier product;
    for (const auto& [gain, loss] : pairs_) {
      for (const auto& [other_gain, other_loss] : other.pairs_) {
        product.Add(gain * other_gain, loss * other_loss);
      }
    }
    *this = std::move(product);
    return absl::OkStatus();
  }

  absl::int128 Greatest(absl::int128 a, absl::int128 b) const {
    absl::int128 greatest = 0;
    for (const auto& [gain, loss] : pairs_) {
      greatest = std::max(greatest, a * gain - b * loss);
    }
    return greatest;
  }

 private:
  void Prune() {
    // Sort by falling gain, then rising loss. Keep a pair if its loss is less than that of all
    // pairs before it.
    std::sort(pairs_.begin(), pairs_.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
    size_t kept = 0;
    for (const auto& pair : pairs_) {
      if (kept == 0 || pair.second < pairs_[kept - 1].second) {
        pairs_[kept++] = pair;
      }
    }
    pairs_.resize(kept);
  }

  std::vector<std::pair<absl::int128, absl::int128>> pairs_;
  size_t room_ = 64;
};

// The contribution of some dimensions to the totals: sums over all combinations of the digits of
// these dimensions ("coordinates").
struct Sums {
  absl::int128 kept = 0;  // kept elements
  // Number of coordinates whose device has a nonempty new part and keeps all of it.
  absl::int128 full = 0;
  absl::int128 touching = 0;  // number of coordinates whose device keeps some of its new part
  ParetoFrontier need;        // pairs (size of the new part, elements of it that are kept)
  ParetoFrontier sent;        // pairs (size of a source part, elements of it that holders keep)
  int64_t best = 0;           // the largest overlap of a new part with a source part
  int64_t best_other = 0;     // the largest overlap with a source part of another device
};

// Polls `is_cancelled` for a walk, once in many steps.
class Patience {
 public:
  explicit Patience(const std::function<bool()>& is_cancelled) : is_cancelled_(is_cancelled) {}

  // Polls once in `kStepsPerQuestion` calls.
  bool IsOver() {
    return ++steps_ % kStepsPerQuestion == 0 && is_cancelled_ != nullptr && is_cancelled_();
  }
  static absl::Status Cancelled() {
    return WithReason(absl::CancelledError("adding up the reshard was cancelled"),
                      Reason::kCancelled);
  }

 private:
  const std::function<bool()>& is_cancelled_;
  int64_t steps_ = 0;
};

absl::StatusOr<int64_t> ToInt64(const absl::int128& value) {
  if (value > std::numeric_limits<int64_t>::max()) {
    return OverLimit("a sum over all devices of the reshard does not fit 63 bits",
                     {{fact::kLimit, std::numeric_limits<int64_t>::max()}});
  }
  return static_cast<int64_t>(value);
}

// One dimension as the sums use it: without the leading digits that both sides have in common. All
// values of these leading digits give the same sums; `prefix` is the number of these values.
struct Problem {
  bool constant = false;  // whether all coordinates have the same `fact` and `kept`
  PartFacts fact;
  int64_t kept = 0;
  int64_t src_size = 0;  // size of a source part, if constant

  int64_t prefix = 1;  // number of values of the common leading digits
  Cut src;
  Cut dst;
  SharedDigits src_digits;
  SharedDigits dst_digits;
  std::vector<PartFacts> facts;  // one for each part of `dst`
};

Problem ProblemOf(const Cut& src, const Cut& dst, SharedDigits src_digits, SharedDigits dst_digits,
                  const std::vector<int64_t>& boundaries) {
  Problem problem;
  problem.src = src;
  problem.dst = dst;
  const bool equal = src.points.empty() && dst.points.empty();
  if (equal && src_digits.complete && dst_digits.complete) {
    size_t common = 0;
    while (common < src_digits.digits.size() && common < dst_digits.digits.size() &&
           src_digits.digits[common].id == dst_digits.digits[common].id) {
      const size_t id = src_digits.digits[common].id;
      problem.prefix *= boundaries[id + 1] / boundaries[id];
      ++common;
    }
    problem.src.extent /= problem.prefix;
    problem.src.parts /= problem.prefix;
    problem.dst.extent /= problem.prefix;
    problem.dst.parts /= problem.prefix;
    const auto skip = static_cast<std::ptrdiff_t>(common);
    src_digits.digits.erase(src_digits.digits.begin(), src_digits.digits.begin() + skip);
    dst_digits.digits.erase(dst_digits.digits.begin(), dst_digits.digits.begin() + skip);
  }
  problem.src_digits = std::move(src_digits);
  problem.dst_digits = std::move(dst_digits);
  if (equal && (problem.src.parts == 1 || problem.dst.parts == 1)) {
    const int64_t src_size = problem.src.Range(0).size();
    const int64_t dst_size = problem.dst.Range(0).size();
    problem.constant = true;
    problem.kept = std::min(src_size, dst_size);
    problem.src_size = src_size;
    problem.fact.size = dst_size;
    problem.fact.cells = problem.src.parts;
    problem.fact.best = problem.kept;
    problem.fact.second = problem.src.parts > 1 ? problem.kept : 0;
    problem.fact.least = problem.kept;
  }
  return problem;
}

absl::StatusOr<std::vector<Problem>> ProblemsOf(const Side& src, const Side& dst,
                                                const std::vector<int64_t>& boundaries) {
  std::vector<Problem> problems;
  for (size_t dim = 0; dim < src.dimensions.size(); ++dim) {
    problems.push_back(ProblemOf(src.dimensions[dim].cut, dst.dimensions[dim].cut,
                                 ShareDigits(src.dimensions[dim], boundaries),
                                 ShareDigits(dst.dimensions[dim], boundaries), boundaries));
    Problem& problem = problems.back();
    if (!problem.constant) {
      if (problem.src.parts + problem.dst.parts > ReshardPlan::kMaxWalk) {
        return OverLimit(StrCat("dimension ", dim, " has more parts than the ",
                                ReshardPlan::kMaxWalk, " that are looked through"),
                         {{fact::kLimit, ReshardPlan::kMaxWalk}});
      }
      problem.facts = FactsOf(problem.src, problem.dst);
    }
  }
  return problems;
}

// Sums over all coordinates of the dimensions `members`, which share digits with each other and
// with no other dimension. `sizes` has the sizes of the digits.
class ComponentWalk {
 public:
  ComponentWalk(const std::vector<Problem>& problems, const std::vector<size_t>& members,
                const std::vector<int64_t>& sizes, const std::vector<bool>& used_by_src)
      : problems_(problems), members_(members) {
    for (size_t at = 0; at < members.size(); ++at) {
      const Problem& problem = problems[members[at]];
      for (const SharedDigit& digit : problem.src_digits.digits) {
        VariableOf(digit.id, sizes).src.push_back({at, digit.weight});
      }
      for (const SharedDigit& digit : problem.dst_digits.digits) {
        VariableOf(digit.id, sizes).dst.push_back({at, digit.weight});
      }
    }
    // A variable is a digit that the walk counts through. Put first the variables that identify the
    // source tile, including those used in a constant dimension. All coordinates of one source tile
    // are then consecutive.
    const auto inner = std::stable_partition(
        variables_.begin(), variables_.end(),
        [&used_by_src](const Variable& variable) { return used_by_src[variable.id]; });
    source_variables_ = Index(inner - variables_.begin());
  }

  // Marks the digits that this walk covers.
  void MarkWalked(std::vector<bool>& walked) const {
    for (const Variable& variable : variables_) {
      walked[variable.id] = true;
    }
  }

  absl::StatusOr<Sums> Run(Patience& patience) {
    int64_t count = 1;
    for (const Variable& variable : variables_) {
      count *= variable.size;
      if (count > ReshardPlan::kMaxWalk) {
        return OverLimit(
            StrCat("the dimensions that share axes have more than the ", ReshardPlan::kMaxWalk,
                   " coordinates that are walked; ask about single devices"),
            {{fact::kLimit, ReshardPlan::kMaxWalk}});
      }
    }
    src_part_.assign(members_.size(), 0);
    dst_part_.assign(members_.size(), 0);
    Sums sums;
    absl::int128 kept_of_source = 0;
    while (true) {
      if (patience.IsOver()) {
        return Patience::Cancelled();
      }
      const Step step = Look();
      sums.kept += step.kept;
      kept_of_source += step.kept;
      sums.full += step.size > 0 && step.kept == step.size ? 1 : 0;
      sums.touching += step.kept > 0 ? 1 : 0;
      sums.need.Add(step.size, step.kept);
      sums.best = std::max(sums.best, step.best);
      sums.best_other = std::max(sums.best_other, step.best_other);
      const int64_t source_size = SourceSize();
      size_t turned = variables_.size();
      while (turned > 0 && !Advance(variables_[turned - 1])) {
        --turned;
      }
      if (turned <= source_variables_) {  // the next coordinates belong to another source tile
        sums.sent.Add(source_size, kept_of_source);
        kept_of_source = 0;
      }
      if (turned == 0) {
        return sums;
      }
    }
  }

 private:
  struct Use {
    size_t member;
    int64_t weight;
  };
  struct Variable {
    size_t id;
    int64_t size;
    int64_t value = 0;
    std::vector<Use> src;
    std::vector<Use> dst;
  };
  struct Step {
    int64_t size = 1;
    int64_t kept = 1;
    int64_t best = 1;
    int64_t best_other = 0;
  };

  Variable& VariableOf(size_t id, const std::vector<int64_t>& sizes) {
    for (Variable& variable : variables_) {
      if (variable.id == id) {
        return variable;
      }
    }
    variables_.push_back({id, sizes[id], 0, {}, {}});
    return variables_.back();
  }

  // Adds 1 to the variable; returns false if the variable wrapped to 0.
  bool Advance(Variable& variable) {
    const bool wraps = ++variable.value == variable.size;
    const int64_t change = wraps ? 1 - variable.size : 1;
    for (const Use& use : variable.src) {
      src_part_[use.member] += change * use.weight;
    }
    for (const Use& use : variable.dst) {
      dst_part_[use.member] += change * use.weight;
    }
    if (wraps) {
      variable.value = 0;
    }
    return !wraps;
  }

  Step Look() const {
    Step step;
    bool best_is_own = true;
    for (size_t at = 0; at < members_.size(); ++at) {
      const Problem& problem = problems_[members_[at]];
      const PartFacts& fact = problem.facts[Index(dst_part_[at])];
      step.size *= fact.size;
      step.kept *= Overlap(problem.src.Range(src_part_[at]), problem.dst.Range(dst_part_[at]));
      step.best *= fact.best;
      best_is_own = best_is_own && fact.best_src == src_part_[at];
    }
    if (!best_is_own || step.best == 0) {
      step.best_other = step.best;
      return step;
    }
    for (size_t at = 0; at < members_.size(); ++at) {
      const PartFacts& fact = problems_[members_[at]].facts[Index(dst_part_[at])];
      step.best_other = std::max(step.best_other, step.best / fact.best * fact.second);
    }
    return step;
  }

  int64_t SourceSize() const {
    int64_t size = 1;
    for (size_t at = 0; at < members_.size(); ++at) {
      size *= problems_[members_[at]].src.Range(src_part_[at]).size();
    }
    return size;
  }

  const std::vector<Problem>& problems_;
  const std::vector<size_t>& members_;
  std::vector<Variable> variables_;
  size_t source_variables_ = 0;
  std::vector<int64_t> src_part_;
  std::vector<int64_t> dst_part_;
};

// Returns the sums of a dimension that shares no digits with other dimensions, and whose source and
// destination digits are disjoint. Every pair of a source part and a new part then occurs on some
// device. If `holders_agree`, all holders of one source tile have the same new part in this
// dimension; if not, all new parts occur among the holders.
Sums SweepAlone(const Problem& problem, bool holders_agree) {
  Sums sums;
  sums.kept = problem.dst.extent;
  for (const PartFacts& fact : problem.facts) {
    sums.touching += fact.cells;
    sums.full += fact.size > 0 && fact.best == fact.size ? 1 : 0;
    sums.need.Add(fact.size, fact.cells < problem.src.parts ? 0 : fact.least);
    sums.best = std::max(sums.best, fact.best);
  }
  // If there are several source parts, some device with the best new part holds another source
  // part.
  sums.best_other = problem.src.parts > 1 ? sums.best : 0;
  for (const PartFacts& cell : FactsOf(problem.dst, problem.src)) {
    const int64_t least = cell.cells < problem.dst.parts ? 0 : cell.least;
    sums.sent.Add(cell.size, holders_agree ? least : cell.size);
  }
  return sums;
}

Sums OfConstant(const Problem& problem) {
  Sums sums;
  sums.kept = problem.kept;
  sums.full = problem.kept == problem.fact.size ? 1 : 0;
  sums.touching = 1;
  sums.need.Add(problem.fact.size, problem.kept);
  sums.sent.Add(problem.src_size, problem.kept);
  sums.best = problem.fact.best;
  sums.best_other = problem.fact.second;
  return sums;
}

// The devices that GreatestFrom considers, among the devices from `first` on.
enum class Beyond {
  kAll,
  kWithTilesOfTheirOwn,  // only devices whose tile no device before `first` holds
};

// Considers the devices from `first` on, as `beyond` restricts them. Returns the greatest product,
// over all dimensions, of `value(dim, part)` of a device's parts. If `uniform(dim)` is true, all
// parts of the dimension have the value of part 0. Requires, for each axis, that its stride divides
// `first` or that `first` divides the stride.
template <typename Value, typename Uniform>
absl::StatusOr<int64_t> GreatestFrom(const Side& side, int64_t first, Beyond beyond,
                                     const Value& value, const Uniform& uniform) {
  // Returns the greatest value over the parts whose `digit` is at least `least`.
  const auto greatest_of = [&](size_t dim, const Digit& digit, int64_t least) {
    int64_t best = 0;
    for (int64_t part = 0; part < (uniform(dim) ? 1 : side.dimensions[dim].cut.parts); ++part) {
      if (uniform(dim) || part / digit.weight % digit.size >= least) {
        best = std::max(best, value(dim, part));
      }
    }
    return best;
  };
  std::vector<int64_t> free_best;
  for (size_t dim = 0; dim < side.dimensions.size(); ++dim) {
    if (!uniform(dim) && side.dimensions[dim].cut.parts > ReshardPlan::kMaxWalk) {
      return OverLimit(StrCat("dimension ", dim, " has more parts than the ", ReshardPlan::kMaxWalk,
                              " that are looked through"),
                       {{fact::kLimit, ReshardPlan::kMaxWalk}});
    }
    free_best.push_back(greatest_of(dim, Digit(), 0));
  }
  // A device is at or after `first` exactly if, along some axis that reaches beyond `first`, its
  // coordinate is at least `least`. Take the greatest product over these axes.
  int64_t greatest = 0;
  for (int64_t axis = 0; axis < side.mesh.axis_count(); ++axis) {
    const int64_t stride = side.mesh.stride(axis);
    const int64_t size = side.mesh.axes()[Index(axis)].size;
    if (size == 1 || stride * size <= first) {
      continue;
    }
    const int64_t least = stride < first ? first / stride : 1;
    int64_t product = 1;
    bool cuts = false;
    for (size_t dim = 0; dim < side.dimensions.size(); ++dim) {
      int64_t best = free_best[dim];
      for (const Digit& digit : side.dimensions[dim].digits) {
        if (digit.stride == stride) {
          best = greatest_of(dim, digit, least);
          cuts = true;
        }
      }
      product *= best;
    }
    if (cuts || beyond == Beyond::kAll) {
      greatest = std::max(greatest, product);
    }
  }
  return greatest;
}

}  // namespace

absl::StatusOr<ReshardTotals> ReshardPlan::State::TotalsByDigits(
    const std::function<bool()>& is_cancelled) const {
  Patience patience(is_cancelled);
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<Problem> problems, ProblemsOf(src, dst, boundaries));

  // Group the dimensions that share digits.
  const size_t digit_count = boundaries.size() - 1;
  std::vector<int64_t> sizes(digit_count);
  std::vector<bool> used_by_src(digit_count, false);
  std::vector<bool> used_by_dst(digit_count, false);
  std::vector<size_t> group(dims());
  std::iota(group.begin(), group.end(), size_t{0});
  std::vector<std::optional<size_t>> first_user(digit_count);
  for (size_t id = 0; id < digit_count; ++id) {
    sizes[id] = boundaries[id + 1] / boundaries[id];
  }
  for (size_t dim = 0; dim < dims(); ++dim) {
    for (const SharedDigit& digit : ShareDigits(src.dimensions[dim], boundaries).digits) {
      used_by_src[digit.id] = true;
    }
    for (const SharedDigit& digit : ShareDigits(dst.dimensions[dim], boundaries).digits) {
      used_by_dst[digit.id] = true;
    }
    if (problems[dim].constant) {
      continue;
    }
    for (const SharedDigits* side : {&problems[dim].src_digits, &problems[dim].dst_digits}) {
      for (const SharedDigit& digit : side->digits) {
        if (!first_user[digit.id].has_value()) {
          first_user[digit.id] = dim;
          continue;
        }
        const size_t old_group = group[*first_user[digit.id]];
        std::replace(group.begin(), group.end(), old_group, group[dim]);
      }
    }
  }

  // Compute the sums of each group. `walked` marks the digits that the groups cover.
  std::vector<Sums> parts;
  std::vector<bool> walked(digit_count, false);
  for (size_t dim = 0; dim < dims(); ++dim) {
    if (problems[dim].constant) {
      parts.push_back(OfConstant(problems[dim]));
      continue;
    }
    std::vector<size_t> members;
    for (size_t other = 0; other < dims(); ++other) {
      if (!problems[other].constant && group[other] == group[dim]) {
        members.push_back(other);
      }
    }
    if (members.front() != dim) {
      continue;  // the first dimension of the group adds the sums of the whole group
    }
    ComponentWalk walk(problems, members, sizes, used_by_src);
    walk.MarkWalked(walked);
    const SharedDigits& old_digits = problems[dim].src_digits;
    const SharedDigits& new_digits = problems[dim].dst_digits;
    bool disjoint = true;
    size_t agreeing = 0;  // number of new digits that identify the source tile in another dimension
    for (const SharedDigit& digit : new_digits.digits) {
      disjoint = disjoint && std::none_of(old_digits.digits.begin(), old_digits.digits.end(),
                                          [&digit](const SharedDigit& old_digit) {
                                            return old_digit.id == digit.id;
                                          });
      agreeing += used_by_src[digit.id] ? 1 : 0;
    }
    if (members.size() == 1 && disjoint && old_digits.complete && new_digits.complete &&
        (agreeing == 0 || agreeing == new_digits.digits.size())) {
      parts.push_back(SweepAlone(problems[dim], agreeing > 0));
    } else {
      SHARDMESH_ASSIGN_OR_RETURN(Sums sums, walk.Run(patience));
      parts.push_back(std::move(sums));
    }
  }
  absl::int128 repeats = 1;         // number of combinations of the digits that no group covers
  absl::int128 source_repeats = 1;  // like `repeats`, without digits that identify a source tile
  bool own_is_certain = true;       // whether a device's new tile determines its source tile
  for (size_t id = 0; id < digit_count; ++id) {
    own_is_certain = own_is_certain && (!used_by_src[id] || used_by_dst[id]);
    if (!walked[id]) {
      repeats *= sizes[id];
      source_repeats *= used_by_src[id] ? 1 : sizes[id];
    }
  }

  absl::int128 kept = repeats;
  absl::int128 full = repeats;
  absl::int128 touching = repeats;
  absl::int128 best = 1;
  ParetoFrontier need;
  ParetoFrontier sent;
  need.Add(1, 1);
  sent.Add(1, 1);
  for (Sums& part : parts) {
    kept *= part.kept;
    full *= part.full;
    touching *= part.touching;
    best *= part.best;
    SHARDMESH_RETURN_IF_ERROR(need.MultiplyBy(part.need));
    SHARDMESH_RETURN_IF_ERROR(sent.MultiplyBy(part.sent));
  }
  absl::int128 max_link = best;
  if (own_is_certain && best > 0) {  // 0: the new tiles of all shared devices are empty
    max_link = 0;
    for (const Sums& part : parts) {
      max_link = std::max(max_link, best / part.best * part.best_other);
    }
  }
  absl::int128 max_need = need.Greatest(1, 1);
  absl::int128 max_sent = sent.Greatest(dst.replica_count, source_repeats);

  // Add the destinations outside the source mesh, which keep nothing.
  const absl::int128 others = dst.mesh.size() - shared;
  absl::int128 held = dst.replica_count;
  absl::int128 cells = dst.replica_count;
  absl::int128 holders_of_any = dst.replica_count;  // devices whose new tile is not empty
  for (size_t dim = 0; dim < dims(); ++dim) {
    const Problem& problem = problems[dim];
    held *= dst.dimensions[dim].cut.extent;
    holders_of_any *= dst.dimensions[dim].cut.FilledParts();
    absl::int128 met = 0;
    if (problem.constant) {
      met = absl::int128(problem.fact.cells) * problem.dst.parts;
    }
    for (const PartFacts& fact : problem.facts) {
      met += fact.cells;
    }
    cells *= met * problem.prefix;
  }
  if (others > 0) {
    const auto fact_of = [&problems](size_t dim, int64_t part) -> const PartFacts& {
      const Problem& problem = problems[dim];
      return problem.constant ? problem.fact : problem.facts[Index(part % problem.dst.parts)];
    };
    const auto is_constant = [&problems](size_t dim) { return problems[dim].constant; };
    SHARDMESH_ASSIGN_OR_RETURN(
        const int64_t largest,
        GreatestFrom(
            dst, shared, Beyond::kAll,
            [&fact_of](size_t dim, int64_t part) { return fact_of(dim, part).size; }, is_constant));
    SHARDMESH_ASSIGN_OR_RETURN(
        const int64_t busiest,
        GreatestFrom(
            dst, shared, Beyond::kAll,
            [&fact_of](size_t dim, int64_t part) { return fact_of(dim, part).best; }, is_constant));
    max_need = std::max<absl::int128>(max_need, largest);
    max_link = std::max<absl::int128>(max_link, busiest);
  }
  if (src.mesh.size() > shared) {
    // Source devices beyond the shared positions are no destinations and keep nothing. Their
    // elements go to all destinations whose new tiles contain these elements.
    SHARDMESH_ASSIGN_OR_RETURN(
        const int64_t largest,
        GreatestFrom(
            src, shared, Beyond::kWithTilesOfTheirOwn,
            [this](size_t dim, int64_t part) { return src.dimensions[dim].cut.Range(part).size(); },
            [this](size_t dim) { return !src.dimensions[dim].cut.uneven(); }));
    max_sent = std::max<absl::int128>(max_sent, absl::int128(dst.replica_count) * largest);
  }

  ReshardTotals totals;
  SHARDMESH_ASSIGN_OR_RETURN(totals.kept, ToInt64(kept));
  SHARDMESH_ASSIGN_OR_RETURN(totals.need, ToInt64(held - kept));
  SHARDMESH_ASSIGN_OR_RETURN(totals.max_need, ToInt64(max_need));
  SHARDMESH_ASSIGN_OR_RETURN(totals.receivers, ToInt64(holders_of_any - full));
  SHARDMESH_ASSIGN_OR_RETURN(totals.links, ToInt64(cells - touching));
  totals.noop = totals.need == 0;
  SHARDMESH_ASSIGN_OR_RETURN(totals.max_link, ToInt64(totals.noop ? 0 : max_link));
  if (turn_count == 1) {
    // Holders do not take turns, so all holders of a tile serve equally many destinations.
    const absl::int128 holders = src.replica_count;
    SHARDMESH_ASSIGN_OR_RETURN(totals.max_sent, ToInt64(max_sent / holders));
  }
  SHARDMESH_RETURN_IF_ERROR(FinishSent(totals, is_cancelled));
  return totals;
}

absl::StatusOr<ReshardTotals> ReshardPlan::State::TotalsByDevice(
    const std::function<bool()>& is_cancelled) const {
  if (dst.mesh.size() > kMaxWalk) {
    return OverLimit(StrCat("the positions of the two meshes do not match and there are more than ",
                            kMaxWalk, " devices; ask about single ones"),
                     {{fact::kLimit, kMaxWalk}});
  }
  Patience patience(is_cancelled);
  std::vector<std::vector<PartFacts>> facts;
  for (size_t dim = 0; dim < dims(); ++dim) {
    facts.push_back(FactsOf(src.dimensions[dim].cut, dst.dimensions[dim].cut));
  }
  absl::int128 kept = 0;
  absl::int128 need = 0;
  absl::int128 links = 0;
  ReshardTotals totals;
  for (DeviceId device = 0; device < dst.mesh.size(); ++device) {
    if (patience.IsOver()) {
      return Patience::Cancelled();
    }
    const View view = ViewOf(device);
    kept += view.kept;
    need += view.size - view.kept;
    links += view.cell_count - (view.kept > 0 ? 1 : 0);
    totals.max_need = std::max(totals.max_need, view.size - view.kept);
    totals.receivers += view.kept < view.size ? 1 : 0;
    int64_t best = 1;
    bool best_is_own = view.kept > 0;
    for (size_t dim = 0; dim < dims(); ++dim) {
      const PartFacts& fact = facts[dim][Index(view.dst_part[dim])];
      best *= fact.best;
      best_is_own = best_is_own && fact.best_src == view.src_part[dim];
    }
    for (size_t dim = 0; best_is_own && dim < dims(); ++dim) {
      const PartFacts& fact = facts[dim][Index(view.dst_part[dim])];
      totals.max_link = std::max(totals.max_link, best / fact.best * fact.second);
    }
    totals.max_link = std::max(totals.max_link, best_is_own ? 0 : best);
  }
  SHARDMESH_ASSIGN_OR_RETURN(totals.kept, ToInt64(kept));
  SHARDMESH_ASSIGN_OR_RETURN(totals.need, ToInt64(need));
  SHARDMESH_ASSIGN_OR_RETURN(totals.links, ToInt64(links));
  totals.noop = totals.need == 0;
  SHARDMESH_RETURN_IF_ERROR(FinishSent(totals, is_cancelled));
  return totals;
}

absl::Status ReshardPlan::State::FinishSent(ReshardTotals& totals,
                                            const std::function<bool()>& is_cancelled) const {
  Patience patience(is_cancelled);
  totals.mean_sent = static_cast<double>(totals.need) / static_cast<double>(src.mesh.size());
  if (totals.noop) {
    totals.max_sent = 0;
  }
  if (totals.max_sent.has_value() || totals.links > kMaxLinkWalk || dst.mesh.size() > kMaxWalk ||
      src.mesh.size() > kMaxWalk) {
    return absl::OkStatus();
  }
  std::vector<int64_t> sent(Index(src.mesh.size()), 0);
  for (DeviceId device = 0; device < dst.mesh.size(); ++device) {
    if (patience.IsOver()) {
      return Patience::Cancelled();
    }
    VisitRegions(device, ViewOf(device),
                 [&sent](absl::Span<const IndexRange> /*ranges*/, int64_t elements,
                         DeviceId source) { sent[Index(source)] += elements; });
  }
  totals.max_sent = *std::max_element(sent.begin(), sent.end());
  return absl::OkStatus();
}

}  // namespace shardmesh
