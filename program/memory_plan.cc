// Finds the live ranges of a plan's temporaries, packs them into one block, and adds up the memory
// of a run.
#include "program/memory_plan.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>
#include <variant>

#include "absl/numeric/int128.h"
#include "absl/status/statusor.h"
#include "program/collective_choice.h"
#include "program/fuse/fuse_exchanges.h"
#include "program/move_plan.h"
#include "program/value_layout.h"
#include "sharding/reshard/plan.h"

namespace shardmesh {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

int64_t Capped(absl::int128 bytes) {
  return static_cast<int64_t>(std::min<absl::int128>(bytes, kMost));
}

int64_t RoundedUp(int64_t size_bytes) {
  if (size_bytes > kMost - kBlockAlignment) return kMost;
  return (size_bytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
}

// A range that has an offset. Its size is rounded up, and not 0: empty ranges are not placed, and
// have offset 0.
struct Placed {
  int64_t begin_bytes = 0;
  int64_t end_bytes = 0;
  size_t first = 0;
  size_t last = 0;
};

bool AreLiveTogether(const Placed& placed, const LiveRange& range) {
  return placed.first <= range.last && range.first <= placed.last;
}

// Returns the lowest offset at which the range fits beside the `placed` ranges, which are sorted by
// their offsets.
int64_t LowestFit(const std::vector<Placed>& placed, const LiveRange& range) {
  const int64_t size_bytes = RoundedUp(range.size_bytes);
  int64_t offset = 0;
  for (const Placed& each : placed) {
    if (!AreLiveTogether(each, range)) continue;
    if (each.begin_bytes >= offset && each.begin_bytes - offset >= size_bytes) break;
    offset = std::max(offset, each.end_bytes);
  }
  return offset;
}

// Returns the highest offset at which a range of `size_bytes` fits below `limit_bytes`, beside the
// `placed` ranges; negative if there is none. The `placed` ranges are sorted by their offsets and
// do not overlap.
int64_t HighestFit(const std::vector<Placed>& placed, int64_t size_bytes, int64_t limit_bytes) {
  int64_t end = limit_bytes;
  for (auto each = placed.rbegin(); each != placed.rend(); ++each) {
    if (end - each->end_bytes >= size_bytes) break;
    end = each->begin_bytes;
  }
  return end - size_bytes;
}

void Insert(const LiveRange& range, int64_t offset, std::vector<Placed>* placed) {
  Placed added{
      .begin_bytes = offset, .end_bytes = offset, .first = range.first, .last = range.last};
  AddTo(added.end_bytes, RoundedUp(range.size_bytes));
  const auto at = std::upper_bound(
      placed->begin(), placed->end(), added,
      [](const Placed& a, const Placed& b) { return a.begin_bytes < b.begin_bytes; });
  placed->insert(at, added);
}

// Places the ranges at the two ends of a block of `limit_bytes` in turn. Returns nullopt if that
// does not fit.
std::optional<BlockLayout> PlaceAtEnds(absl::Span<const LiveRange> ranges, int64_t limit_bytes) {
  std::vector<size_t> order(ranges.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return ranges[a].first < ranges[b].first; });
  BlockLayout layout{.offsets = std::vector<int64_t>(ranges.size()), .size_bytes = limit_bytes};
  std::vector<Placed> placed;
  bool is_low = true;
  for (const size_t i : order) {
    const LiveRange& range = ranges[i];
    const int64_t size_bytes = RoundedUp(range.size_bytes);
    if (size_bytes == 0) continue;
    // Ranges that have ended do not matter to this range, nor to those after it. The others are all
    // in use at range.first, so they do not overlap.
    std::erase_if(placed, [&](const Placed& each) { return each.last < range.first; });
    const int64_t offset =
        is_low ? LowestFit(placed, range) : HighestFit(placed, size_bytes, limit_bytes);
    if (offset < 0 || offset > limit_bytes - size_bytes) return std::nullopt;
    layout.offsets[i] = offset;
    Insert(range, offset, &placed);
    is_low = !is_low;
  }
  return layout;
}

BlockLayout PlaceLargestFirst(absl::Span<const LiveRange> ranges) {
  std::vector<size_t> order(ranges.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return ranges[a].size_bytes > ranges[b].size_bytes; });
  BlockLayout layout{.offsets = std::vector<int64_t>(ranges.size())};
  std::vector<Placed> placed;
  for (const size_t i : order) {
    if (ranges[i].size_bytes == 0) continue;
    layout.offsets[i] = LowestFit(placed, ranges[i]);
    Insert(ranges[i], layout.offsets[i], &placed);
  }
  for (const Placed& each : placed) {
    layout.size_bytes = std::max(layout.size_bytes, each.end_bytes);
  }
  return layout;
}

// Returns whether the tiles of the two values have the same size on each rank. May return false
// although they have.
bool HaveTilesOfOneSize(const Plan& plan, const ValueDescriptor& a, const ValueDescriptor& b) {
  if (a == b) return true;
  return a.dtype == b.dtype && a.cut_points == b.cut_points &&
         TileShape(plan.mesh, a) == TileShape(plan.mesh, b);
}

// Returns the inputs that a tensor op may overwrite with its result.
std::vector<ValueIndex> Overwritable(const Plan& plan, const TensorOp& op,
                                     const ValueDescriptor& output) {
  const std::vector<ValueIndex> inputs = InputsOf(op);
  // The tiles of a reshape have the same elements, in other shapes.
  const bool has_same_elements = std::holds_alternative<ReshapeOp>(op);
  std::vector<ValueIndex> found;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (MayOverwriteInput(op, i) && std::count(inputs.begin(), inputs.end(), inputs[i]) == 1 &&
        (has_same_elements || HaveTilesOfOneSize(plan, plan.values[inputs[i]], output))) {
      found.push_back(inputs[i]);
    }
  }
  return found;
}

// Returns the inputs that the instruction may overwrite with its result. Their tiles have the size
// of the result's tiles.
std::vector<ValueIndex> Overwritable(const Plan& plan, const Instruction& instruction) {
  const ValueDescriptor& output = plan.values[instruction.output];
  const auto if_same_size = [&](ValueIndex input) {
    return HaveTilesOfOneSize(plan, plan.values[input], output) ? std::vector<ValueIndex>{input}
                                                                : std::vector<ValueIndex>();
  };
  if (const auto* epilogue = std::get_if<LocalEpilogue>(&instruction.kind)) {
    if (epilogue->bias == epilogue->input) return {};
    return if_same_size(epilogue->input);
  }
  if (const auto* slice = std::get_if<LocalSlice>(&instruction.kind)) {
    if (plan.values[slice->input] != output) return {};
    return {slice->input};
  }
  if (const auto* collective = std::get_if<GroupCollective>(&instruction.kind)) {
    if (!MayOverwriteOperand(collective->kind, collective->algorithm)) return {};
    return if_same_size(collective->input);
  }
  if (const auto* compute = std::get_if<LocalCompute>(&instruction.kind)) {
    return Overwritable(plan, compute->op, output);
  }
  if (const auto* fused = std::get_if<FusedCompute>(&instruction.kind)) {
    std::vector<ValueIndex> found;
    for (const ValueIndex input : fused->inputs) {
      if (HaveTilesOfOneSize(plan, plan.values[input], output)) found.push_back(input);
    }
    return found;
  }
  return {};
}

// Returns, by value, whether it is an output or the value of an update that has memory of its own.
std::vector<bool> AreOutputs(const Plan& plan) {
  const std::vector<std::optional<ValueIndex>> state = StatePlaces(plan);
  std::vector<bool> are_outputs(plan.values.size(), false);
  for (const ValueIndex output : plan.outputs) are_outputs[output] = true;
  for (const StateUpdate& update : plan.updates) {
    if (!state[update.value].has_value()) are_outputs[update.value] = true;
  }
  return are_outputs;
}

// The temporaries of a plan, before they have offsets.
struct Temporaries {
  std::vector<std::optional<BlockPlace>> places;  // by value; set for temporaries
  std::vector<LiveRange> ranges;
  std::vector<size_t> range_of;  // by value; the index of a temporary's range
  std::vector<bool> is_output;   // by value: outputs, and values of updates, in memory of their own
};

Temporaries TemporariesOf(const Plan& plan) {
  Temporaries found{.places = std::vector<std::optional<BlockPlace>>(plan.values.size()),
                    .ranges = {},
                    .range_of = std::vector<size_t>(plan.values.size(), 0),
                    .is_output = {}};
  std::vector<size_t> last_use(plan.values.size(), 0);
  for (size_t i = 0; i < plan.instructions.size(); ++i) {
    last_use[plan.instructions[i].output] = i;
    for (const ValueIndex input : InputsOf(plan.instructions[i])) last_use[input] = i;
  }
  found.is_output = AreOutputs(plan);
  const std::vector<std::optional<ValueIndex>> state = StatePlaces(plan);

  // Temporaries that are made over one another share a range.
  std::vector<LiveRange>& ranges = found.ranges;
  std::vector<size_t>& range_of = found.range_of;
  for (size_t i = 0; i < plan.instructions.size(); ++i) {
    const Instruction& instruction = plan.instructions[i];
    const ValueIndex output = instruction.output;
    if (found.is_output[output] || state[output].has_value()) continue;
    const ValueDescriptor& value = plan.values[output];
    std::optional<BlockPlace>& place = found.places[output];
    place.emplace();
    const std::vector<ValueIndex> inputs = Overwritable(plan, instruction);
    const auto over = std::find_if(inputs.begin(), inputs.end(), [&](ValueIndex input) {
      return found.places[input].has_value() && last_use[input] == i;
    });
    if (over != inputs.end()) {
      place->over = *over;
      range_of[output] = range_of[*over];
      ranges[range_of[output]].last = last_use[output];
      continue;
    }
    range_of[output] = ranges.size();
    ranges.push_back(
        {.size_bytes = TileBytes(plan.mesh, value), .first = i, .last = last_use[output]});
  }
  return found;
}

}  // namespace

int64_t LeastBlockBytes(absl::Span<const LiveRange> ranges) {
  size_t instructions = 0;
  for (const LiveRange& range : ranges) instructions = std::max(instructions, range.last + 1);
  // 128 bits, because sums of 64-bit sizes may exceed 64 bits, and a capped sum would be wrong
  // after a subtraction.
  std::vector<absl::int128> change(instructions + 1);
  for (const LiveRange& range : ranges) {
    change[range.first] += RoundedUp(range.size_bytes);
    change[range.last + 1] -= RoundedUp(range.size_bytes);
  }
  absl::int128 now = 0;
  absl::int128 most = 0;
  for (const absl::int128 each : change) {
    now += each;
    most = std::max(most, now);
  }
  return Capped(most);
}

BlockLayout LayOutBlock(absl::Span<const LiveRange> ranges) {
  const int64_t least_bytes = LeastBlockBytes(ranges);
  if (least_bytes < kMost) {
    if (auto layout = PlaceAtEnds(ranges, least_bytes); layout.has_value()) {
      return *std::move(layout);
    }
  }
  return PlaceLargestFirst(ranges);
}

MemoryPlan MemoryPlanOf(const Plan& plan) {
  Temporaries temporaries = TemporariesOf(plan);
  MemoryPlan memory;
  memory.places = std::move(temporaries.places);
  const std::vector<LiveRange>& ranges = temporaries.ranges;
  if (ranges.empty()) return memory;
  const BlockLayout layout = LayOutBlock(ranges);
  memory.block_bytes = layout.size_bytes;
  memory.first = ranges.front().first;
  for (const LiveRange& range : ranges) memory.last = std::max(memory.last, range.last);
  for (size_t value = 0; value < memory.places.size(); ++value) {
    if (memory.places[value].has_value()) {
      memory.places[value]->offset_bytes = layout.offsets[temporaries.range_of[value]];
    }
  }
  return memory;
}

int64_t PeakBytesOf(const Plan& plan) {
  const MemoryPlan memory = MemoryPlanOf(plan);
  const std::vector<bool> is_output = AreOutputs(plan);
  absl::int128 outputs_bytes = 0;
  absl::int128 peak = 0;
  for (size_t i = 0; i < plan.instructions.size(); ++i) {
    const Instruction& instruction = plan.instructions[i];
    const ValueDescriptor& value = plan.values[instruction.output];
    if (is_output[instruction.output]) outputs_bytes += TileBytes(plan.mesh, value);
    absl::int128 now = outputs_bytes;
    if (memory.first <= i && i <= memory.last) now += memory.block_bytes;
    if (const auto* const move = std::get_if<MoveRegions>(&instruction.kind); move != nullptr) {
      const ReshardPlan regions = *MovePlan(plan.mesh, plan.values[move->input], value);
      const absl::StatusOr<ReshardTotals> totals = regions.Totals();
      now += totals.ok() ? MoveCopiesBytes(regions, value.dtype, *totals)
                         : MoveWindowBytes(plan.mesh.size());
    }
    now += FusedCopiesBytes(plan, instruction);
    peak = std::max(peak, now);
  }
  return Capped(peak);
}

int64_t LeastBytesOf(const Plan& plan) {
  const Temporaries temporaries = TemporariesOf(plan);
  // The bytes that the instruction takes more than the one before it.
  std::vector<absl::int128> change(plan.instructions.size() + 1);
  for (const LiveRange& range : temporaries.ranges) {
    change[range.first] += range.size_bytes;
    change[range.last + 1] -= range.size_bytes;
  }
  absl::int128 now = 0;
  absl::int128 most = 0;
  for (size_t i = 0; i < plan.instructions.size(); ++i) {
    const ValueIndex made = plan.instructions[i].output;
    now += change[i];
    if (temporaries.is_output[made]) now += TileBytes(plan.mesh, plan.values[made]);
    most = std::max(most, now);
  }
  return Capped(most);
}

}  // namespace shardmesh
