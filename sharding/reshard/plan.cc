// Computes the pieces of one device, and classifies a reshard as a collective.
#include "sharding/reshard/plan.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "sharding/reshard/layout.h"
#include "sharding/reshard/state.h"
#include "sharding/shape.h"
#include "sharding/spec.h"
#include "status/fact_keys.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh {

using reshard_internal::CommonBoundaries;
using reshard_internal::Digit;
using reshard_internal::DigitOf;
using reshard_internal::Dimension;
using reshard_internal::FindReplicas;
using reshard_internal::Index;
using reshard_internal::Overlap;
using reshard_internal::OverLimit;
using reshard_internal::PartialSums;
using reshard_internal::PositionAt;
using reshard_internal::PositionsMatch;
using reshard_internal::SetWeights;
using reshard_internal::SharedDigits;
using reshard_internal::ShareDigits;
using reshard_internal::Side;
using reshard_internal::SideOf;
using reshard_internal::UsesStride;
using reshard_internal::ValueOf;

ReshardPlan::State::View ReshardPlan::State::ViewOf(DeviceId destination) const {
  View view;
  const std::optional<DeviceId> source = SourceOf(destination);
  int64_t kept = 1;
  for (size_t dim = 0; dim < dims(); ++dim) {
    const int64_t part = dst.PartOf(dim, destination);
    const IndexRange range = dst.dimensions[dim].cut.Range(part);
    view.dst_part.push_back(part);
    view.size *= range.size();
    if (range.size() == 0) {
      view.cells.emplace_back(0, -1);
      view.cell_count = 0;
    } else {
      const auto [first, last] = view.cells.emplace_back(src.dimensions[dim].cut.Meeting(range));
      view.cell_count *= src.dimensions[dim].cut.FilledParts(first, last + 1);
    }
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
      const reshard_internal::Cut& wanted = dst.dimensions[dim].cut;
      turn = turn * wanted.FilledParts(first, last + 1) + wanted.FilledParts(first, dst_part[dim]);
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

bool ReshardPlan::State::NothingMoves() const {
  for (DeviceId device = 0; device < dst.mesh.size(); ++device) {
    if (const View view = ViewOf(device); view.kept != view.size) {
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
  return "";  // not reached: the source mesh has an axis for each shared digit
}

void ReshardPlan::State::Classify() {
  if (empty) {
    pattern = ReshardPattern::kNoop;
    return;
  }
  const auto has_any = [this](bool (*property)(const Dimension&)) {
    return std::any_of(src.dimensions.begin(), src.dimensions.end(), property) ||
           std::any_of(dst.dimensions.begin(), dst.dimensions.end(), property);
  };
  const bool uneven = has_any([](const Dimension& dimension) { return dimension.cut.uneven(); });
  const bool has_empty_parts =
      has_any([](const Dimension& dimension) { return dimension.cut.has_empty_parts(); });
  const bool same_cuts = HasSameCuts();
  const bool can_visit = dst.mesh.size() <= kMaxLinkWalk;
  // Digits tell which axes move. With empty tiles, axes may move and no element with them.
  const bool visits_first = has_empty_parts || boundaries.empty();
  bool nothing_moves = visits_first && can_visit && NothingMoves();
  if (!nothing_moves && !boundaries.empty() && ClassifyByDigits()) {
    return;
  }
  steps.clear();
  if (!visits_first) {
    nothing_moves = uneven && can_visit && NothingMoves();
  }
  if (nothing_moves) {
    pattern = same_cuts ? ReshardPattern::kNoop : ReshardPattern::kSlice;
    return;
  }
  if (same_cuts) {
    pattern = dst.replica_count > src.replica_count ? ReshardPattern::kBroadcast
                                                    : ReshardPattern::kPermute;
  }
}

// Sets pattern and steps from the digits that leave and enter each dimension. Returns false if
// these digits do not describe the reshard.
bool ReshardPlan::State::ClassifyByDigits() {
  if (dst.mesh.size() > shared) {
    return false;  // devices outside the source mesh held no tile before the reshard
  }
  // `leaving` and `entering`: per dimension, the digits that cut the dimension only before the
  // reshard, or only after it. `src_dim` and `dst_dim`: per digit, the dimension that the digit
  // leaves, and the dimension that it enters.
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
  // Returns `dim` if it is a dimension of the tensor; nullopt if it is a dimension of partial sums.
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
    step.group_size = boundaries[digit + 1] / boundaries[digit];
    ReshardStep* last = steps.empty() ? nullptr : &steps.back();
    if (last == nullptr || last->pattern != step.pattern || last->from_dim != step.from_dim ||
        last->to_dim != step.to_dim) {
      steps.push_back(std::move(step));
      return;
    }
    last->group_size *= step.group_size;
    if (last->axes.back() != step.axes.back()) {
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
    return InvalidArgument(
        Reason::kShapeMismatch,
        StrCat("the source layout is of the shape ", ShapeToString(from.shape()),
               " and the destination's of ", ShapeToString(to.shape()),
               "; a reshard keeps the shape"),
        {{fact::kHave, ShapeToString(to.shape())}, {fact::kNeed, ShapeToString(from.shape())}});
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
                 " is not on as many devices; partial sums are added up, never made"),
          {{fact::kAxis, axis}, {fact::kValue, to.spec().ToString()}});
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
  // Check once that the product of the extents fits int64_t. Products of part sizes are at most
  // that product, so they fit as well.
  int64_t elements = 1;
  for (const Dimension& dimension : state->dst.dimensions) {
    state->empty = state->empty || dimension.cut.extent == 0;
  }
  for (const Dimension& dimension : state->dst.dimensions) {
    if (!state->empty && __builtin_mul_overflow(elements, dimension.cut.extent, &elements)) {
      return OverLimit(StrCat("the elements of the shape ", ShapeToString(from.shape()),
                              " times their partial sums do not fit 63 bits"),
                       {{fact::kLimit, std::numeric_limits<int64_t>::max()}});
    }
  }
  FindReplicas(state->src);
  FindReplicas(state->dst);
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
                            max_regions, " asked for"),
                     {{fact::kHave, count}, {fact::kLimit, max_regions}});
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
  // Enumerate the destinations whose new tiles overlap the source's tile: per dimension, the parts
  // that overlap; then all replicas of each combination of parts. Replicas that this source may
  // serve differ only along `places`.
  const Side& src = state_->src;
  const Side& dst = state_->dst;
  absl::InlinedVector<int64_t, 8> cell;
  absl::InlinedVector<std::pair<int64_t, int64_t>, 8> wanted;
  int64_t count = state_->place_count;
  for (size_t dim = 0; dim < state_->dims(); ++dim) {
    cell.push_back(src.PartOf(dim, source));
    const IndexRange held = src.dimensions[dim].cut.Range(cell.back());
    if (held.size() == 0) {
      return links;
    }
    const auto [first, last] = wanted.emplace_back(dst.dimensions[dim].cut.Meeting(held));
    count *= dst.dimensions[dim].cut.FilledParts(first, last + 1);
  }
  if (count > kMaxWalk) {
    return OverLimit(
        StrCat("the tile of device ", source, " is wanted by more than ", kMaxWalk, " devices"),
        {{fact::kLimit, kMaxWalk}});
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
            StrCat("device ", source, " sends to more than the ", max_links, " devices asked for"),
            {{fact::kLimit, max_links}});
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
    part[dim - 1] = dst.dimensions[dim - 1].cut.FilledPartAfter(part[dim - 1]);
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
