// HalvingAllReduce: computes which rank holds which part at each level, and runs the exchanges.
#include "worker/collective/halving.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "program/collective_traffic.h"
#include "status/status_macros.h"
#include "worker/collective/blocks.h"

namespace shardmesh::worker {
namespace {

// Returns the places of all ranks in the order of their bit-reversed numbers.
std::vector<int64_t> BackwardOrder(int64_t ranks) {
  const int64_t levels = LevelsOf(ranks);
  std::vector<int64_t> order;
  for (int64_t i = 0; i < int64_t{1} << levels; ++i) {
    int64_t place = 0;
    for (int64_t bit = 0; bit < levels; ++bit) {
      place |= (i >> bit & 1) << (levels - 1 - bit);
    }
    if (place < ranks) order.push_back(place);
  }
  return order;
}

// Returns the place that holds T(block) for one part: the combined operands of the block with
// number `index` of a level. `owner` is the place that owns the part.
int64_t HolderOf(int64_t ranks, int64_t level, int64_t index, int64_t owner) {
  const Block block = BlockAt(ranks, level, index);
  if (block.contains(owner)) return owner;
  const int64_t same_place = block.begin + (owner & ((int64_t{1} << level) - 1));
  if (same_place < block.begin + block.size) return same_place;
  // The block has no place that matches `owner`, because it is not full. The holder of the block's
  // left half holds the part instead.
  return HolderOf(ranks, level - 1, index * 2, owner);
}

// Consecutive parts [first, last), in bit-reversed order, that this rank exchanges with one peer in
// one direction.
struct Run {
  int64_t first = 0;
  int64_t last = 0;
  int64_t peer = 0;    // place of the peer
  bool hands = false;  // if true, this rank sends the parts; otherwise it receives them
};

// Returns this rank's exchanges at one level, in rising order of parts.
std::vector<Run> RunsOf(const std::vector<int64_t>& order, int64_t level, int64_t place) {
  const auto ranks = static_cast<int64_t>(order.size());
  std::vector<Run> runs;
  const BlockPair pair = PairOf(ranks, level, place);
  if (pair.sibling.size == 0) return runs;
  const int64_t index = place >> level;
  for (int64_t part = 0; part < ranks; ++part) {
    const int64_t owner = order[Index(part)];
    if (HolderOf(ranks, level, index, owner) != place) continue;
    const int64_t peer = HolderOf(ranks, level, index ^ 1, owner);
    const bool hands = HolderOf(ranks, level + 1, index / 2, owner) == peer;
    Run* const last = runs.empty() ? nullptr : &runs.back();
    if (last != nullptr && last->last == part && last->peer == peer && last->hands == hands) {
      ++last->last;
    } else {
      runs.push_back({.first = part, .last = part + 1, .peer = peer, .hands = hands});
    }
  }
  return runs;
}

// One chunk of the vector, which goes through the exchanges of all levels.
class Chunk {
 public:
  // `runs` has the exchanges of each level. `runs` and the combiner outlive the chunk. The partial
  // result of an element lies at the element's position in `partials`. `partials` may be the same
  // memory as `out`: results overwrite a part only after the peer has read its partial results.
  Chunk(const CollectiveCall& call, const Combiner& combiner,
        const std::vector<std::vector<Run>>& runs, OwnedBytes operand, OwnedMutableBytes partials,
        OwnedMutableBytes out)
      : call_(call),
        combiner_(combiner),
        ranks_(call.group->size()),
        place_(call.group->place()),
        runs_(runs),
        operand_(std::move(operand)),
        partials_(std::move(partials)),
        out_(std::move(out)),
        cuts_(EvenCuts(SizeOf(operand_) / combiner.operand_bytes, ranks_)) {}

  absl::Status HandOver(int64_t level) {
    for (const Run& run : runs_[Index(level)]) {
      if (!run.hands) continue;
      SHARDMESH_RETURN_IF_ERROR(SendTo(call_, run.peer, RoundOf(level, run), Held(level, run)));
    }
    return absl::OkStatus();
  }

  absl::Status TakeOver(int64_t level) {
    const BlockPair pair = PairOf(ranks_, level, place_);
    for (const Run& run : runs_[Index(level)]) {
      if (run.hands) continue;
      SHARDMESH_RETURN_IF_ERROR(CombineArriving(
          call_, combiner_,
          {.elements = Held(level, run).bytes, .form = FormOf(pair.mine), .is_left = pair.is_left},
          run.peer, RoundOf(level, run), FormOf(pair.sibling), PartialsOf(run).bytes.data()));
    }
    return absl::OkStatus();
  }

  // Converts the partial results of a part, which now cover all ranks, to results.
  void Finish(int64_t part) {
    const Run own = {.first = part, .last = part + 1};
    const int64_t count = cuts_[Index(part) + 1] - cuts_[Index(part)];
    if (combiner_.finish && count > 0) {
      combiner_.finish(PartialsOf(own).bytes.data(), count, ResultsOf(own).bytes.data());
    }
  }

  // For the second half of the all-reduce. At this level of the first half, this rank took over
  // parts from peers. It now sends the results of these parts back to the same peers.
  absl::Status HandBack(int64_t level) {
    for (const Run& run : runs_[Index(level)]) {
      if (run.hands) continue;
      const OwnedMutableBytes results = ResultsOf(run);
      SHARDMESH_RETURN_IF_ERROR(
          SendTo(call_, run.peer, BackRoundOf(level, run), {results.bytes, results.owner}));
    }
    return absl::OkStatus();
  }
  absl::Status TakeBack(int64_t level) {
    for (const Run& run : runs_[Index(level)]) {
      if (!run.hands) continue;
      SHARDMESH_RETURN_IF_ERROR(
          ReceiveInto(call_, run.peer, BackRoundOf(level, run), ResultsOf(run).bytes));
    }
    return absl::OkStatus();
  }

 private:
  // Runs of one level have different first parts, so each run gets a different round number.
  int64_t RoundOf(int64_t level, const Run& run) const { return level * ranks_ + run.first; }
  int64_t BackRoundOf(int64_t level, const Run& run) const {
    return (static_cast<int64_t>(runs_.size()) + level) * ranks_ + run.first;
  }

  OwnedMutableBytes PartialsOf(const Run& run) const {
    return PartOf(partials_, cuts_[Index(run.first)] * combiner_.partial_bytes,
                  cuts_[Index(run.last)] * combiner_.partial_bytes);
  }
  OwnedMutableBytes ResultsOf(const Run& run) const {
    return PartOf(out_, cuts_[Index(run.first)] * combiner_.result_bytes,
                  cuts_[Index(run.last)] * combiner_.result_bytes);
  }
  // Returns this rank's data for the parts of a run. While this rank's block consists only of this
  // rank's place, the data is the operand. In a larger block, the data is partial results.
  OwnedBytes Held(int64_t level, const Run& run) const {
    if (FormOf(PairOf(ranks_, level, place_).mine) == ElementForm::kOperand) {
      return PartOf(operand_, cuts_[Index(run.first)] * combiner_.operand_bytes,
                    cuts_[Index(run.last)] * combiner_.operand_bytes);
    }
    const OwnedMutableBytes partials = PartialsOf(run);
    return {partials.bytes, partials.owner};
  }

  CollectiveCall call_;
  const Combiner& combiner_;
  int64_t ranks_;
  int64_t place_;
  const std::vector<std::vector<Run>>& runs_;
  OwnedBytes operand_;
  OwnedMutableBytes partials_;
  OwnedMutableBytes out_;
  std::vector<int64_t> cuts_;  // where the parts of the chunk begin and end, in elements
};

}  // namespace

absl::Status HalvingAllReduce(const CollectiveCall& call, const Combiner& combiner,
                              const OwnedBytes& operand, const OwnedMutableBytes& out) {
  SHARDMESH_RETURN_IF_ERROR(
      CheckReduction("all-reduce", combiner, operand.bytes, out.bytes.size()));
  const int64_t ranks = call.group->size();
  const int64_t place = call.group->place();
  const int64_t count = SizeOf(operand) / combiner.operand_bytes;
  if (ranks == 1) {
    CombineAlone(combiner, operand.bytes, out.bytes.data());
    return absl::OkStatus();
  }
  const int64_t levels = LevelsOf(ranks);
  const std::vector<int64_t> order = BackwardOrder(ranks);
  std::vector<std::vector<Run>> runs;
  for (int64_t level = 0; level < levels; ++level) runs.push_back(RunsOf(order, level, place));
  const int64_t own_part = std::find(order.begin(), order.end(), place) - order.begin();

  const int64_t chunk_count = HalvingChunks(SizeOf(operand));
  const std::vector<int64_t> cuts = EvenCuts(count, chunk_count);
  OwnedMutableBytes partials = out;
  if (combiner.finish) {
    SHARDMESH_ASSIGN_OR_RETURN(partials, Scratch(call, count * combiner.partial_bytes));
  }
  std::vector<Chunk> chunks;
  for (int64_t i = 0; i < chunk_count; ++i) {
    CollectiveCall part = call;
    part.round = call.round + i * 2 * levels * ranks;
    const auto [begin, end] = std::pair(cuts[Index(i)], cuts[Index(i) + 1]);
    chunks.emplace_back(
        part, combiner, runs,
        PartOf(operand, begin * combiner.operand_bytes, end * combiner.operand_bytes),
        PartOf(partials, begin * combiner.partial_bytes, end * combiner.partial_bytes),
        PartOf(out, begin * combiner.result_bytes, end * combiner.result_bytes));
    SHARDMESH_RETURN_IF_ERROR(chunks.back().HandOver(0));
  }
  for (int64_t level = 0; level < levels; ++level) {
    for (Chunk& chunk : chunks) {
      SHARDMESH_RETURN_IF_ERROR(chunk.TakeOver(level));
      if (level + 1 < levels) {
        SHARDMESH_RETURN_IF_ERROR(chunk.HandOver(level + 1));
      } else {
        chunk.Finish(own_part);
        SHARDMESH_RETURN_IF_ERROR(chunk.HandBack(level));
      }
    }
  }
  for (int64_t level = levels; level-- > 0;) {
    for (Chunk& chunk : chunks) {
      SHARDMESH_RETURN_IF_ERROR(chunk.TakeBack(level));
      if (level > 0) SHARDMESH_RETURN_IF_ERROR(chunk.HandBack(level - 1));
    }
  }
  return absl::OkStatus();
}

std::vector<int64_t> HalvingSources(const DeviceGroup& group) {
  const std::vector<int64_t> order = BackwardOrder(group.size());
  std::vector<int64_t> sources;
  for (int64_t level = 0; level < LevelsOf(group.size()); ++level) {
    for (const Run& run : RunsOf(order, level, group.place())) sources.push_back(run.peer);
  }
  return sources;
}

}  // namespace shardmesh::worker
