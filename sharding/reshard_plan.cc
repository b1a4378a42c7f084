// Both layouts as parts per dimension, the pieces of one device from them, and sums over all
// devices by dimensions that share no axis.
#include "sharding/reshard_plan.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "sharding/reason.h"
#include "sharding/shape.h"
#include "sharding/spec.h"
#include "sharding/status_macros.h"
#include "sharding/str_cat.h"

namespace shardmesh {
namespace {

// How often a walk asks whether it was cancelled.
constexpr int64_t kStepsPerQuestion = int64_t{1} << 16;

constexpr size_t Index(int64_t i) { return static_cast<size_t>(i); }

absl::Status OverLimit(std::string_view what) {
  return WithReason(absl::ResourceExhaustedError(absl::string_view(what.data(), what.size())),
                    Reason::kLimitExceeded);
}

// One digit of a device's position: position / stride % size, worth `weight`.
struct Digit {
  int64_t stride = 1;
  int64_t size = 1;
  int64_t weight = 1;

  int64_t CoordinateOf(int64_t position) const { return position / stride % size; }
};

// Weights such that the last digit is worth 1. Returns the number of values.
int64_t SetWeights(std::vector<Digit>& digits) {
  int64_t count = 1;
  for (auto digit = digits.rbegin(); digit != digits.rend(); ++digit) {
    digit->weight = count;
    count *= digit->size;
  }
  return count;
}

int64_t ValueOf(const std::vector<Digit>& digits, int64_t position) {
  int64_t value = 0;
  for (const Digit& digit : digits) {
    value += digit.CoordinateOf(position) * digit.weight;
  }
  return value;
}

// The part of a position that these digits make up when they show `value`.
int64_t PositionAt(const std::vector<Digit>& digits, int64_t value) {
  int64_t position = 0;
  for (const Digit& digit : digits) {
    position += value / digit.weight % digit.size * digit.stride;
  }
  return position;
}

// A dimension cut into parts, none of them empty.
struct Cut {
  int64_t extent = 1;
  int64_t parts = 1;
  CutPoints points;  // empty: equal parts

  IndexRange Range(int64_t part) const {
    if (!points.empty()) {
      return {points[Index(part)], points[Index(part) + 1]};
    }
    const int64_t size = extent / parts;
    return {part * size, (part + 1) * size};
  }
  int64_t Holding(int64_t index) const {
    if (!points.empty()) {
      return std::upper_bound(points.begin(), points.end(), index) - points.begin() - 1;
    }
    return index / (extent / parts);
  }
  // First and last part that a range meets. Requires a range within, not empty.
  std::pair<int64_t, int64_t> Meeting(const IndexRange& range) const {
    return {Holding(range.start), Holding(range.stop - 1)};
  }

  bool uneven() const { return !points.empty(); }

  friend bool operator==(const Cut&, const Cut&) = default;
};

int64_t Overlap(const IndexRange& a, const IndexRange& b) {
  return std::max<int64_t>(0, std::min(a.stop, b.stop) - std::max(a.start, b.start));
}

struct Dimension {
  std::vector<Digit> digits;  // major to minor, none of size 1
  Cut cut;
};

// One layout. Its dimensions are those of the tensor, then one for every unreduced axis of the
// source, whose indices number the partial sums.
struct Side {
  Mesh mesh;
  std::vector<Dimension> dimensions;
  std::vector<Digit> replicas;  // the axes that cut nothing, none of size 1
  int64_t replica_count = 1;

  int64_t PartOf(size_t dim, DeviceId device) const {
    return ValueOf(dimensions[dim].digits, device);
  }
};

Digit DigitOf(const Mesh& mesh, std::string_view axis) {
  const int64_t index = *mesh.FindAxis(axis);
  return {mesh.stride(index), mesh.axes()[Index(index)].size, 1};
}

Cut CutOf(const Tiling& tiling, int64_t dim) {
  Cut cut;
  cut.extent = tiling.shape()[Index(dim)];
  cut.parts = tiling.PartCount(dim);
  if (tiling.has_equal_tiles()) {
    return cut;
  }
  const int64_t first = tiling.PartRange(dim, 0).size();
  bool equal = true;
  for (int64_t part = 0; part < cut.parts; ++part) {
    equal = equal && tiling.PartRange(dim, part).size() == first;
  }
  if (!equal) {
    for (int64_t part = 0; part < cut.parts; ++part) {
      cut.points.push_back(tiling.PartRange(dim, part).start);
    }
    cut.points.push_back(cut.extent);
  }
  return cut;
}

Side SideOf(const Tiling& tiling) {
  Side side;
  side.mesh = tiling.mesh();
  for (int64_t dim = 0; dim < tiling.rank(); ++dim) {
    Dimension dimension;
    for (const AxisName& name : tiling.spec().entry(dim).axes()) {
      const Digit digit = DigitOf(side.mesh, *name);
      if (digit.size > 1) {
        dimension.digits.push_back(digit);
      }
    }
    SetWeights(dimension.digits);
    dimension.cut = CutOf(tiling, dim);
    side.dimensions.push_back(std::move(dimension));
  }
  return side;
}

// A dimension of `count` partial sums, one per device along `axis`; all of them in every device if
// there is no axis.
Dimension PartialSums(const Mesh& mesh, std::optional<std::string_view> axis, int64_t count) {
  Dimension dimension;
  dimension.cut.extent = count;
  if (axis.has_value()) {
    dimension.digits.push_back(DigitOf(mesh, *axis));
    dimension.cut.parts = count;
  }
  return dimension;
}

bool UsesStride(const Side& side, int64_t stride) {
  for (const Dimension& dimension : side.dimensions) {
    for (const Digit& digit : dimension.digits) {
      if (digit.stride == stride) {
        return true;
      }
    }
  }
  return false;
}

void FindReplicas(Side& side) {
  for (int64_t axis = 0; axis < side.mesh.axis_count(); ++axis) {
    const Digit digit = {side.mesh.stride(axis), side.mesh.axes()[Index(axis)].size, 1};
    // Among axes of more than one device the stride identifies the axis.
    if (digit.size > 1 && !UsesStride(side, digit.stride)) {
      side.replicas.push_back(digit);
    }
  }
  side.replica_count = SetWeights(side.replicas);
}

// Whether each device bears its position as its number.
bool IsNumberedByPosition(const Mesh& mesh) {
  MeshOptions options;
  options.allow_degenerate = true;
  const absl::StatusOr<Mesh> plain =
      Mesh::Create(std::vector<MeshAxis>(mesh.axes().begin(), mesh.axes().end()), options);
  return plain.ok() && *plain == mesh;
}

// Whether equal positions are the same device, as far as both meshes reach.
bool PositionsMatch(const Mesh& a, const Mesh& b) {
  const bool a_plain = IsNumberedByPosition(a);
  const bool b_plain = IsNumberedByPosition(b);
  if (a_plain || b_plain) {
    return a_plain && b_plain;
  }
  if (a.size() != b.size()) {
    return false;
  }
  for (DeviceId device = 0; device < a.size(); ++device) {
    if (a.GlobalIdOf(device) != b.GlobalIdOf(device)) {
      return false;
    }
  }
  return true;
}

// The positions below `limit` as digits so fine that every axis of both meshes is a run of them:
// digit k is position / boundaries[k] % (boundaries[k + 1] / boundaries[k]). Empty if there are no
// such digits.
std::vector<int64_t> CommonBoundaries(const Mesh& a, const Mesh& b, int64_t limit) {
  std::vector<int64_t> boundaries = {1, limit};
  for (const Mesh* mesh : {&a, &b}) {
    for (int64_t axis = 0; axis < mesh->axis_count(); ++axis) {
      for (const int64_t boundary :
           {mesh->stride(axis), mesh->stride(axis) * mesh->axes()[Index(axis)].size}) {
        if (boundary < limit) {
          boundaries.push_back(boundary);
        }
      }
    }
  }
  std::sort(boundaries.begin(), boundaries.end());
  boundaries.erase(std::unique(boundaries.begin(), boundaries.end()), boundaries.end());
  for (size_t i = 1; i < boundaries.size(); ++i) {
    if (boundaries[i] % boundaries[i - 1] != 0) {
      return {};
    }
  }
  return boundaries;
}

// A digit that both meshes know, and what it is worth in a part's number.
struct SharedDigit {
  size_t id = 0;
  int64_t weight = 1;
};

// The digits of one dimension on one side, in terms of those that both meshes know.
struct SharedDigits {
  std::vector<SharedDigit> digits;  // major to minor
  bool complete = true;  // false if some parts belong to positions beyond the shared ones
};

SharedDigits ShareDigits(const Dimension& dimension, const std::vector<int64_t>& boundaries) {
  SharedDigits shared;
  const int64_t limit = boundaries.back();
  for (const Digit& digit : dimension.digits) {
    const int64_t end = digit.stride * digit.size;
    shared.complete = shared.complete && end <= limit;
    for (size_t k = boundaries.size() - 1; k-- > 0;) {
      if (boundaries[k] >= digit.stride && boundaries[k] < end) {
        shared.digits.push_back({k, digit.weight * (boundaries[k] / digit.stride)});
      }
    }
  }
  return shared;
}

// What the parts of one dimension have in common with the parts of the other side.
struct PartFacts {
  int64_t size = 0;
  int64_t cells = 0;     // how many source parts it meets
  int64_t best = 0;      // the most that it has in common with one of them
  int64_t best_src = 0;  // which
  int64_t second = 0;    // the most with another one; 0 if there is none
  int64_t least = 0;     // the least with one that it meets
};

std::vector<PartFacts> FactsOf(const Cut& src, const Cut& dst) {
  std::vector<PartFacts> facts(Index(dst.parts));
  for (int64_t part = 0; part < dst.parts; ++part) {
    const IndexRange range = dst.Range(part);
    const auto [first, last] = src.Meeting(range);
    PartFacts& fact = facts[Index(part)];
    fact.size = range.size();
    fact.cells = last - first + 1;
    fact.least = range.size();
    for (int64_t cell = first; cell <= last; ++cell) {
      const int64_t common = Overlap(range, src.Range(cell));
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

// Pairs of a gain and a loss of which only those that no other pair beats in both are kept: the
// greatest of a * gain - b * loss is always among them, for all a, b >= 0.
class Front {
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

  // The products of each pair here with each there.
  absl::Status MultiplyBy(Front& other) {
    Prune();
    other.Prune();
    if (static_cast<int64_t>(pairs_.size()) >
        ReshardPlan::kMaxWalk / static_cast<int64_t>(std::max<size_t>(1, other.pairs_.size()))) {
      return OverLimit("the parts of the two layouts have too many different sizes to compare");
    }
    Front product;
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
    // By falling gain, then rising loss: a pair stays if its loss is the least so far.
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

// What a set of dimensions adds to the sums, over the coordinates of its own digits.
struct Sums {
  absl::int128 kept = 0;      // of what is kept
  absl::int128 full = 0;      // coordinates where all is kept
  absl::int128 touching = 0;  // coordinates where something is kept
  Front need;                 // (size of the new part, what is kept of it)
  Front sent;                 // per source part: (its size, what its holders keep of it)
  int64_t best = 0;           // the most that a new part has in common with a source part
  int64_t best_other = 0;     // with one that is not the device's own
};

// Asks now and then whether to go on.
class Patience {
 public:
  explicit Patience(const std::function<bool()>& is_cancelled) : is_cancelled_(is_cancelled) {}

  // Every `kStepsPerQuestion` steps.
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
    return OverLimit("a sum over all devices of the reshard does not fit 63 bits");
  }
  return static_cast<int64_t>(value);
}

// A dimension as the sums see it: without the leading digits that both sides share, within a part
// of which everything repeats.
struct Problem {
  bool constant = false;  // the same for all coordinates, as `fact` says, of which `kept` is kept
  PartFacts fact;
  int64_t kept = 0;
  int64_t src_size = 0;  // of a source part, if constant

  int64_t prefix = 1;  // how many times it repeats
  Cut src;
  Cut dst;
  SharedDigits src_digits;
  SharedDigits dst_digits;
  std::vector<PartFacts> facts;  // by part of dst
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

}  // namespace

struct ReshardPlan::State {
  State(const Tiling& from_tiling, const Tiling& to_tiling) : from(from_tiling), to(to_tiling) {}

  Tiling from;
  Tiling to;
  Side src;
  Side dst;
  bool empty = false;  // the tensor has no elements

  // The common prefix of positions: how many are shared, and their common digits. No digits: the
  // devices have to be matched one by one.
  int64_t shared = 0;
  std::vector<int64_t> boundaries;
  bool same_mesh = false;

  // Which replica of a source tile serves a destination. `own` are the source's replica axes along
  // which the destination's own coordinate is taken; the rest are `turns`, in which destinations,
  // numbered along `places` among those of the same part, take turns.
  std::vector<Digit> own;
  std::vector<Digit> turns;
  int64_t turn_count = 1;
  std::vector<Digit> places;
  int64_t place_count = 1;

  ReshardPattern pattern = ReshardPattern::kGeneral;
  std::vector<ReshardStep> steps;

  size_t dims() const { return src.dimensions.size(); }

  std::optional<DeviceId> SourceOf(DeviceId destination) const {
    return src.mesh.DeviceOfGlobalId(dst.mesh.GlobalIdOf(destination));
  }

  // The parts and what follows from them, per dimension, of one destination.
  struct View {
    absl::InlinedVector<int64_t, 8> dst_part;
    absl::InlinedVector<int64_t, 8> src_part;                   // empty without a source
    absl::InlinedVector<std::pair<int64_t, int64_t>, 8> cells;  // source parts that it meets
    int64_t size = 1;
    int64_t kept = 0;
    int64_t cell_count = 1;
  };
  View ViewOf(DeviceId destination) const;

  // The device that sends the piece that destination `destination` wants of a source tile.
  DeviceId HolderFor(DeviceId destination, absl::Span<const int64_t> dst_part,
                     absl::Span<const int64_t> cell) const;

  // The tensor's own dimensions of a box.
  Tile TensorTile(absl::Span<const IndexRange> ranges) const {
    Tile tile;
    for (int64_t dim = 0; dim < from.rank(); ++dim) {
      tile.ranges.push_back(ranges[Index(dim)]);
    }
    return tile;
  }

  // Calls visit(tile, elements, source) for each region, in row-major order.
  template <typename Visit>
  void VisitRegions(DeviceId destination, const View& view, const Visit& visit) const;

  void ChooseTurns();
  void Classify();
  bool ClassifyByDigits();
  bool HasSameCuts() const;
  // Name of the source mesh's axis that has a digit of this stride.
  std::string SourceAxisAt(int64_t stride) const;

  // All dimensions, in terms of the digits that both meshes share.
  absl::StatusOr<std::vector<Problem>> Problems() const;
  absl::StatusOr<ReshardTotals> TotalsByDigits(const std::function<bool()>& is_cancelled) const;
  absl::StatusOr<ReshardTotals> TotalsByDevice(const std::function<bool()>& is_cancelled) const;
  // Sets mean_sent and, where the links have to be walked for it, max_sent.
  absl::Status FinishSent(ReshardTotals& totals, Patience& patience) const;
};

ReshardPlan::State::View ReshardPlan::State::ViewOf(DeviceId destination) const {
  View view;
  const std::optional<DeviceId> source = SourceOf(destination);
  int64_t kept = 1;
  for (size_t dim = 0; dim < dims(); ++dim) {
    const int64_t part = dst.PartOf(dim, destination);
    const IndexRange range = dst.dimensions[dim].cut.Range(part);
    view.dst_part.push_back(part);
    view.size *= range.size();
    view.cells.push_back(src.dimensions[dim].cut.Meeting(range));
    view.cell_count *= view.cells.back().second - view.cells.back().first + 1;
    if (source.has_value()) {
      view.src_part.push_back(src.PartOf(dim, *source));
      kept *= Overlap(range, src.dimensions[dim].cut.Range(view.src_part.back()));
    }
  }
  view.kept = source.has_value() ? kept : 0;
  return view;
}

DeviceId ReshardPlan::State::HolderFor(DeviceId destination, absl::Span<const int64_t> dst_part,
                                       absl::Span<const int64_t> cell) const {
  DeviceId holder = 0;
  int64_t turn = 0;
  for (size_t dim = 0; dim < dims(); ++dim) {
    holder += PositionAt(src.dimensions[dim].digits, cell[dim]);
    if (turn_count > 1) {
      const auto [first, last] =
          dst.dimensions[dim].cut.Meeting(src.dimensions[dim].cut.Range(cell[dim]));
      turn = turn * (last - first + 1) + dst_part[dim] - first;
    }
  }
  for (const Digit& digit : own) {
    holder += digit.CoordinateOf(destination) * digit.stride;
  }
  if (turn_count > 1) {
    turn = turn * place_count + ValueOf(places, destination);
    holder += PositionAt(turns, turn % turn_count);
  }
  return holder;
}

template <typename Visit>
void ReshardPlan::State::VisitRegions(DeviceId destination, const View& view,
                                      const Visit& visit) const {
  absl::InlinedVector<int64_t, 8> cell;
  absl::InlinedVector<IndexRange, 8> ranges(dims());
  for (const auto& [first, last] : view.cells) {
    cell.push_back(first);
  }
  // An odometer over the source tiles that the new tile meets, the last dimension fastest.
  while (true) {
    const bool own_cell =
        view.kept > 0 && std::equal(cell.begin(), cell.end(), view.src_part.begin());
    if (!own_cell) {
      int64_t elements = 1;
      for (size_t dim = 0; dim < dims(); ++dim) {
        const IndexRange wanted = dst.dimensions[dim].cut.Range(view.dst_part[dim]);
        const IndexRange held = src.dimensions[dim].cut.Range(cell[dim]);
        ranges[dim] = {std::max(wanted.start, held.start), std::min(wanted.stop, held.stop)};
        elements *= ranges[dim].size();
      }
      visit(ranges, elements, HolderFor(destination, view.dst_part, cell));
    }
    size_t dim = dims();
    while (dim > 0 && cell[dim - 1] == view.cells[dim - 1].second) {
      --dim;
      cell[dim] = view.cells[dim].first;
    }
    if (dim == 0) {
      return;
    }
    ++cell[dim - 1];
  }
}

void ReshardPlan::State::ChooseTurns() {
  for (const Digit& digit : src.replicas) {
    (same_mesh && !UsesStride(dst, digit.stride) ? own : turns).push_back(digit);
  }
  for (const Digit& digit : dst.replicas) {
    if (!same_mesh || UsesStride(src, digit.stride)) {
      places.push_back(digit);
    }
  }
  SetWeights(own);
  turn_count = SetWeights(turns);
  place_count = SetWeights(places);
}

bool ReshardPlan::State::HasSameCuts() const {
  for (size_t dim = 0; dim < dims(); ++dim) {
    if (!(src.dimensions[dim].cut == dst.dimensions[dim].cut)) {
      return false;
    }
  }
  return true;
}

std::string ReshardPlan::State::SourceAxisAt(int64_t stride) const {
  for (int64_t axis = 0; axis < src.mesh.axis_count(); ++axis) {
    const MeshAxis& candidate = src.mesh.axes()[Index(axis)];
    if (src.mesh.stride(axis) <= stride && stride < src.mesh.stride(axis) * candidate.size) {
      return candidate.name;
    }
  }
  return "";  // beyond the source mesh, where no shared digit lies
}

void ReshardPlan::State::Classify() {
  if (empty) {
    pattern = ReshardPattern::kNoop;
    return;
  }
  if (!boundaries.empty() && ClassifyByDigits()) {
    return;
  }
  steps.clear();
  const bool same_cuts = HasSameCuts();
  const auto is_uneven = [](const Side& side) {
    return std::any_of(side.dimensions.begin(), side.dimensions.end(),
                       [](const Dimension& dimension) { return dimension.cut.uneven(); });
  };
  if ((boundaries.empty() || is_uneven(src) || is_uneven(dst)) && dst.mesh.size() <= kMaxLinkWalk) {
    bool all_kept = true;
    for (DeviceId device = 0; all_kept && device < dst.mesh.size(); ++device) {
      const View view = ViewOf(device);
      all_kept = view.kept == view.size;
    }
    if (all_kept) {
      pattern = same_cuts ? ReshardPattern::kNoop : ReshardPattern::kSlice;
      return;
    }
  }
  if (same_cuts) {
    pattern = dst.replica_count > src.replica_count ? ReshardPattern::kBroadcast
                                                    : ReshardPattern::kPermute;
  }
}

// Decides by which digits leave and enter which dimension. False if that does not decide.
bool ReshardPlan::State::ClassifyByDigits() {
  if (dst.mesh.size() > shared) {
    return false;  // the other devices had nothing
  }
  // Per dimension the digits that only one side has there, and where each has gone.
  std::vector<std::vector<size_t>> leaving(dims());
  std::vector<std::vector<size_t>> entering(dims());
  std::vector<std::optional<size_t>> src_dim(boundaries.size());
  std::vector<std::optional<size_t>> dst_dim(boundaries.size());
  for (size_t dim = 0; dim < dims(); ++dim) {
    const Dimension& before = src.dimensions[dim];
    const Dimension& after = dst.dimensions[dim];
    const SharedDigits old_digits = ShareDigits(before, boundaries);
    const SharedDigits new_digits = ShareDigits(after, boundaries);
    size_t common = 0;
    while (common < old_digits.digits.size() && common < new_digits.digits.size() &&
           old_digits.digits[common].id == new_digits.digits[common].id) {
      ++common;
    }
    const bool nested = common == old_digits.digits.size() || common == new_digits.digits.size();
    const bool comparable = before.cut == after.cut || before.cut.parts == 1 ||
                            after.cut.parts == 1 || !(before.cut.uneven() || after.cut.uneven());
    if (!old_digits.complete || !nested || !comparable) {
      return false;
    }
    for (size_t i = common; i < old_digits.digits.size(); ++i) {
      leaving[dim].push_back(old_digits.digits[i].id);
      src_dim[old_digits.digits[i].id] = dim;
    }
    for (size_t i = common; i < new_digits.digits.size(); ++i) {
      entering[dim].push_back(new_digits.digits[i].id);
      dst_dim[new_digits.digits[i].id] = dim;
    }
  }
  // The dimension, if it is one of the tensor and not of partial sums.
  const auto of_tensor = [this](const std::optional<size_t>& dim) -> std::optional<int64_t> {
    return dim.has_value() && *dim < Index(from.rank())
               ? std::optional<int64_t>(static_cast<int64_t>(*dim))
               : std::nullopt;
  };
  const auto add = [&](size_t digit) {
    ReshardStep step;
    step.from_dim = of_tensor(src_dim[digit]);
    step.to_dim = of_tensor(dst_dim[digit]);
    const bool partial_sums = src_dim[digit].has_value() && !step.from_dim.has_value();
    if (partial_sums) {
      step.pattern =
          step.to_dim.has_value() ? ReshardPattern::kReduceScatter : ReshardPattern::kAllReduce;
    } else if (step.from_dim.has_value()) {
      step.pattern =
          step.to_dim.has_value() ? ReshardPattern::kAllToAll : ReshardPattern::kAllGather;
    } else {
      step.pattern = ReshardPattern::kSlice;
    }
    step.axes.push_back(SourceAxisAt(boundaries[digit]));
    ReshardStep* last = steps.empty() ? nullptr : &steps.back();
    if (last == nullptr || last->pattern != step.pattern || last->from_dim != step.from_dim ||
        last->to_dim != step.to_dim) {
      steps.push_back(std::move(step));
    } else if (last->axes.back() != step.axes.back()) {
      last->axes.push_back(step.axes.back());
    }
  };
  for (size_t dim = 0; dim < dims(); ++dim) {
    std::for_each(leaving[dim].begin(), leaving[dim].end(), add);
    for (const size_t digit : entering[dim]) {
      if (!src_dim[digit].has_value()) {
        add(digit);
      }
    }
  }
  pattern = ReshardPattern::kNoop;
  for (const ReshardStep& step : steps) {
    if (pattern == ReshardPattern::kNoop || pattern == ReshardPattern::kSlice) {
      pattern = step.pattern;
    } else if (step.pattern != ReshardPattern::kSlice && step.pattern != pattern) {
      pattern = ReshardPattern::kGeneral;
    }
  }
  return true;
}

absl::StatusOr<std::vector<Problem>> ReshardPlan::State::Problems() const {
  std::vector<Problem> problems;
  for (size_t dim = 0; dim < dims(); ++dim) {
    problems.push_back(ProblemOf(src.dimensions[dim].cut, dst.dimensions[dim].cut,
                                 ShareDigits(src.dimensions[dim], boundaries),
                                 ShareDigits(dst.dimensions[dim], boundaries), boundaries));
    Problem& problem = problems.back();
    if (!problem.constant) {
      if (problem.src.parts + problem.dst.parts > kMaxWalk) {
        return OverLimit(StrCat("dimension ", dim, " has more parts than the ", kMaxWalk,
                                " that are looked through"));
      }
      problem.facts = FactsOf(problem.src, problem.dst);
    }
  }
  return problems;
}

namespace {

// Walks the coordinates of the dimensions `members`, which share digits with each other and with
// no other dimension. `sizes`: of the digits.
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
    // Those first that say which source tile it is, here or in a constant dimension, so that all
    // coordinates of one source tile follow each other.
    const auto inner = std::stable_partition(
        variables_.begin(), variables_.end(),
        [&used_by_src](const Variable& variable) { return used_by_src[variable.id]; });
    source_variables_ = Index(inner - variables_.begin());
  }

  // The digits that it walks.
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
        return OverLimit(StrCat("the dimensions that share axes have more than the ",
                                ReshardPlan::kMaxWalk,
                                " coordinates that are walked; ask about single devices"));
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
      sums.full += step.kept == step.size ? 1 : 0;
      sums.touching += step.kept > 0 ? 1 : 0;
      sums.need.Add(step.size, step.kept);
      sums.best = std::max(sums.best, step.best);
      sums.best_other = std::max(sums.best_other, step.best_other);
      const int64_t source_size = SourceSize();
      size_t turned = variables_.size();
      while (turned > 0 && !Advance(variables_[turned - 1])) {
        --turned;
      }
      if (turned <= source_variables_) {  // the next coordinates are of another source part
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

  // Adds one; false if that made it 0 again.
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
    if (!best_is_own) {
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

// A dimension whose digits are its own and differ between the sides: every part of one side meets
// every part of the other in some device. `holders_agree`: the devices that have one source tile
// are all of one part of the new layout here, instead of all parts.
Sums SweepAlone(const Problem& problem, bool holders_agree) {
  Sums sums;
  sums.kept = problem.dst.extent;
  for (const PartFacts& fact : problem.facts) {
    sums.touching += fact.cells;
    sums.full += fact.best == fact.size ? 1 : 0;
    sums.need.Add(fact.size, fact.cells < problem.src.parts ? 0 : fact.least);
    sums.best = std::max(sums.best, fact.best);
  }
  sums.best_other = sums.best;  // some device has another source part than the best
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

// Which devices GreatestFrom looks at, of those from a first one on.
enum class Beyond {
  kAll,
  kWithTilesOfTheirOwn,  // whose tile no device before the first one has
};

// The greatest product over dimensions of `value(dim, part)` among the devices from `first` on.
// Where `uniform(dim)` holds, all parts have the value of part 0. Requires that the digits of the
// mesh nest with `first`.
template <typename Value, typename Uniform>
absl::StatusOr<int64_t> GreatestFrom(const Side& side, int64_t first, Beyond beyond,
                                     const Value& value, const Uniform& uniform) {
  // Over the parts whose digit of `stride` is at least `least`.
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
                              " that are looked through"));
    }
    free_best.push_back(greatest_of(dim, Digit(), 0));
  }
  // A device is from `first` on exactly if an axis that reaches beyond has a large enough
  // coordinate.
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
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<Problem> problems, Problems());

  // Digits by the dimensions that they join.
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

  // The sums of each group, and how often its coordinates repeat in those of the rest.
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
      continue;  // done with its first
    }
    ComponentWalk walk(problems, members, sizes, used_by_src);
    walk.MarkWalked(walked);
    const SharedDigits& old_digits = problems[dim].src_digits;
    const SharedDigits& new_digits = problems[dim].dst_digits;
    bool disjoint = true;
    size_t agreeing = 0;  // digits of the new layout that say which source tile it is elsewhere
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
  absl::int128 repeats = 1;         // coordinates of the digits that nobody walked
  absl::int128 source_repeats = 1;  // those of them that are free within one source tile
  bool own_is_certain = true;       // a new tile says which source tile its device has
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
  Front need;
  Front sent;
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
  if (own_is_certain) {
    max_link = 0;
    for (const Sums& part : parts) {
      max_link = std::max(max_link, best / part.best * part.best_other);
    }
  }
  absl::int128 max_need = need.Greatest(1, 1);
  absl::int128 max_sent = sent.Greatest(dst.replica_count, source_repeats);

  // Of all destinations, those outside the source mesh included.
  const absl::int128 others = dst.mesh.size() - shared;
  absl::int128 held = dst.replica_count;
  absl::int128 cells = dst.replica_count;
  for (size_t dim = 0; dim < dims(); ++dim) {
    const Problem& problem = problems[dim];
    held *= dst.dimensions[dim].cut.extent;
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
    // What no destination had is sent to all whose new tiles cover it.
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
  SHARDMESH_ASSIGN_OR_RETURN(totals.receivers, ToInt64(dst.mesh.size() - full));
  SHARDMESH_ASSIGN_OR_RETURN(totals.links, ToInt64(cells - touching));
  totals.noop = totals.need == 0;
  SHARDMESH_ASSIGN_OR_RETURN(totals.max_link, ToInt64(totals.noop ? 0 : max_link));
  if (turn_count == 1) {
    // Each holder of a tile serves as many.
    const absl::int128 holders = src.replica_count;
    SHARDMESH_ASSIGN_OR_RETURN(totals.max_sent, ToInt64(max_sent / holders));
  }
  SHARDMESH_RETURN_IF_ERROR(FinishSent(totals, patience));
  return totals;
}

absl::StatusOr<ReshardTotals> ReshardPlan::State::TotalsByDevice(
    const std::function<bool()>& is_cancelled) const {
  if (dst.mesh.size() > kMaxWalk) {
    return OverLimit(StrCat("the positions of the two meshes do not match and there are more than ",
                            kMaxWalk, " devices; ask about single ones"));
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
  SHARDMESH_RETURN_IF_ERROR(FinishSent(totals, patience));
  return totals;
}

absl::Status ReshardPlan::State::FinishSent(ReshardTotals& totals, Patience& patience) const {
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

std::string_view ReshardPatternName(ReshardPattern pattern) {
  switch (pattern) {
    case ReshardPattern::kNoop:
      return "noop";
    case ReshardPattern::kSlice:
      return "slice";
    case ReshardPattern::kAllGather:
      return "all-gather";
    case ReshardPattern::kAllToAll:
      return "all-to-all";
    case ReshardPattern::kPermute:
      return "permute";
    case ReshardPattern::kBroadcast:
      return "broadcast";
    case ReshardPattern::kReduceScatter:
      return "reduce-scatter";
    case ReshardPattern::kAllReduce:
      return "all-reduce";
    case ReshardPattern::kGeneral:
      return "general";
  }
  return "general";
}

absl::StatusOr<ReshardPlan> ReshardPlan::Create(const Tiling& from, const Tiling& to) {
  if (from.shape() != to.shape()) {
    return InvalidArgument(Reason::kShapeMismatch,
                           StrCat("the source layout is of the shape ", ShapeToString(from.shape()),
                                  " and the destination's of ", ShapeToString(to.shape()),
                                  "; a reshard keeps the shape"));
  }
  auto state = std::make_shared<State>(from, to);
  state->src = SideOf(from);
  state->dst = SideOf(to);
  for (const std::string& axis : to.spec().unreduced()) {
    const int64_t size = DigitOf(to.mesh(), axis).size;
    const auto before = from.spec().unreduced();
    const bool is_there = std::find(before.begin(), before.end(), axis) != before.end();
    if (size > 1 && (!is_there || DigitOf(from.mesh(), axis).size != size)) {
      return InvalidArgument(
          Reason::kInvalidSpec,
          StrCat("the destination ", to.spec().ToString(), " is to be unreduced along ",
                 PythonRepr(axis), ", which the source ", from.spec().ToString(),
                 " is not on as many devices; partial sums are added up, never made"));
    }
  }
  for (const std::string& axis : from.spec().unreduced()) {
    const int64_t size = DigitOf(from.mesh(), axis).size;
    if (size == 1) {
      continue;
    }
    const auto after = to.spec().unreduced();
    const bool stays = std::find(after.begin(), after.end(), axis) != after.end();
    state->src.dimensions.push_back(PartialSums(from.mesh(), axis, size));
    state->dst.dimensions.push_back(
        PartialSums(to.mesh(), stays ? std::optional<std::string_view>(axis) : std::nullopt, size));
  }
  FindReplicas(state->src);
  FindReplicas(state->dst);
  state->empty = std::any_of(from.shape().begin(), from.shape().end(),
                             [](int64_t extent) { return extent == 0; });
  state->same_mesh = from.mesh() == to.mesh();
  if (state->same_mesh || PositionsMatch(from.mesh(), to.mesh())) {
    state->shared = std::min(from.mesh().size(), to.mesh().size());
    state->boundaries = CommonBoundaries(from.mesh(), to.mesh(), state->shared);
  }
  state->ChooseTurns();
  state->Classify();
  return ReshardPlan(std::move(state));
}

const Tiling& ReshardPlan::from() const { return state_->from; }
const Tiling& ReshardPlan::to() const { return state_->to; }
ReshardPattern ReshardPlan::pattern() const { return state_->pattern; }
absl::Span<const ReshardStep> ReshardPlan::steps() const { return state_->steps; }

std::optional<DeviceId> ReshardPlan::SourceOf(DeviceId destination) const {
  return state_->SourceOf(destination);
}

DeviceReshard ReshardPlan::DeviceOf(DeviceId destination) const {
  DeviceReshard device;
  if (const std::optional<DeviceId> source = SourceOf(destination); source.has_value()) {
    device.src = state_->from.TileOf(*source);
  }
  device.dst = state_->to.TileOf(destination);
  if (!state_->empty) {
    const State::View view = state_->ViewOf(destination);
    device.kept = view.kept;
    device.need = view.size - view.kept;
    device.region_count = view.cell_count - (view.kept > 0 ? 1 : 0);
  }
  return device;
}

absl::StatusOr<std::vector<FetchRegion>> ReshardPlan::RegionsOf(DeviceId destination,
                                                                int64_t max_regions) const {
  std::vector<FetchRegion> regions;
  if (state_->empty) {
    return regions;
  }
  const State::View view = state_->ViewOf(destination);
  const int64_t count = view.cell_count - (view.kept > 0 ? 1 : 0);
  if (count > max_regions) {
    return OverLimit(StrCat("device ", destination, " receives ", count, " regions, more than the ",
                            max_regions, " asked for"));
  }
  regions.reserve(Index(count));
  state_->VisitRegions(destination, view,
                       [&](absl::Span<const IndexRange> ranges, int64_t elements, DeviceId source) {
                         regions.push_back({state_->TensorTile(ranges), source, elements});
                       });
  return regions;
}

absl::StatusOr<std::vector<ReshardLink>> ReshardPlan::LinksOutOf(DeviceId source,
                                                                 int64_t max_links) const {
  std::vector<ReshardLink> links;
  if (state_->empty) {
    return links;
  }
  // The destinations whose new tiles meet the source's: their parts per dimension, and then all
  // replicas of those, which differ from the source's own along `places` alone.
  const Side& src = state_->src;
  const Side& dst = state_->dst;
  absl::InlinedVector<int64_t, 8> cell;
  absl::InlinedVector<std::pair<int64_t, int64_t>, 8> wanted;
  int64_t count = state_->place_count;
  for (size_t dim = 0; dim < state_->dims(); ++dim) {
    cell.push_back(src.PartOf(dim, source));
    wanted.push_back(dst.dimensions[dim].cut.Meeting(src.dimensions[dim].cut.Range(cell.back())));
    count *= wanted.back().second - wanted.back().first + 1;
  }
  if (count > kMaxWalk) {
    return OverLimit(
        StrCat("the tile of device ", source, " is wanted by more than ", kMaxWalk, " devices"));
  }
  DeviceId own = 0;
  for (const Digit& digit : state_->own) {
    own += digit.CoordinateOf(source) * digit.stride;
  }
  absl::InlinedVector<int64_t, 8> part;
  for (const auto& [first, last] : wanted) {
    part.push_back(first);
  }
  absl::InlinedVector<IndexRange, 8> ranges(state_->dims());
  while (true) {
    DeviceId base = own;
    int64_t elements = 1;
    for (size_t dim = 0; dim < state_->dims(); ++dim) {
      base += PositionAt(dst.dimensions[dim].digits, part[dim]);
      const IndexRange held = src.dimensions[dim].cut.Range(cell[dim]);
      const IndexRange want = dst.dimensions[dim].cut.Range(part[dim]);
      ranges[dim] = {std::max(held.start, want.start), std::min(held.stop, want.stop)};
      elements *= ranges[dim].size();
    }
    for (int64_t place = 0; place < state_->place_count; ++place) {
      const DeviceId destination = base + PositionAt(state_->places, place);
      if (state_->HolderFor(destination, part, cell) != source) {
        continue;
      }
      const std::optional<DeviceId> before = state_->SourceOf(destination);
      bool has_it = before.has_value();
      for (size_t dim = 0; has_it && dim < state_->dims(); ++dim) {
        has_it = src.PartOf(dim, *before) == cell[dim];
      }
      if (has_it) {
        continue;
      }
      if (static_cast<int64_t>(links.size()) == max_links) {
        return OverLimit(
            StrCat("device ", source, " sends to more than the ", max_links, " devices asked for"));
      }
      links.push_back({source, destination, state_->TensorTile(ranges), elements});
    }
    size_t dim = state_->dims();
    while (dim > 0 && part[dim - 1] == wanted[dim - 1].second) {
      --dim;
      part[dim] = wanted[dim].first;
    }
    if (dim == 0) {
      break;
    }
    ++part[dim - 1];
  }
  std::sort(links.begin(), links.end(), [](const ReshardLink& a, const ReshardLink& b) {
    return a.destination < b.destination;
  });
  return links;
}

absl::StatusOr<ReshardTotals> ReshardPlan::Totals(const std::function<bool()>& is_cancelled) const {
  if (state_->empty) {
    ReshardTotals totals;
    totals.max_sent = 0;
    return totals;
  }
  return state_->boundaries.empty() ? state_->TotalsByDevice(is_cancelled)
                                    : state_->TotalsByDigits(is_cancelled);
}

}  // namespace shardmesh
