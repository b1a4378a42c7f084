// Exchanges between sibling blocks of places (blocks.h), from single ranks up to the whole group.
#include "worker/collective/doubling.h"

#include <cstring>
#include <vector>

#include "status/status_macros.h"
#include "status/str_cat.h"
#include "worker/collective/blocks.h"

namespace shardmesh::worker {
namespace {

// The data that a rank holds during a reduction: its operand before its first combination, then
// partial results.
struct Held {
  OwnedBytes bytes;
  ElementForm form = ElementForm::kOperand;
};

// Returns the place of the sibling block from which the rank at `place` receives.
int64_t SourceOf(const BlockPair& pair, int64_t place) {
  return pair.sibling.begin + (place - pair.mine.begin) % pair.sibling.size;
}

// Sends `bytes` to each place of the sibling block that receives from this rank (see SourceOf).
absl::Status SendToSibling(const CollectiveCall& call, const BlockPair& pair, int64_t round,
                           const OwnedBytes& bytes) {
  for (int64_t offset = call.group->place() - pair.mine.begin; offset < pair.sibling.size;
       offset += pair.mine.size) {
    SHARDMESH_RETURN_IF_ERROR(SendTo(call, pair.sibling.begin + offset, round, bytes));
  }
  return absl::OkStatus();
}

// Returns the place that holds T(block), the block's combined operands, in a reduction to `root`.
int64_t LeaderOf(const Block& block, int64_t root) {
  return block.contains(root) ? root : block.begin;
}

// Returns the direction of the transfer between the leaders of two sibling blocks. True: the
// sibling's leader receives. False: the leader of `pair.mine` receives.
bool SiblingLeads(const BlockPair& pair, int64_t root) {
  return pair.sibling.contains(root) || (!pair.is_left && !pair.mine.contains(root));
}

// Returns memory for the partial results of the next combination. For the last combination, returns
// `out` if partial results need no conversion to results.
absl::StatusOr<OwnedMutableBytes> NextPartials(const CollectiveCall& call, const Combiner& combiner,
                                               int64_t count, bool is_last, absl::Span<char> out) {
  if (is_last && !combiner.finish) return OwnedMutableBytes{out, nullptr};
  return Scratch(call, count * combiner.partial_bytes);
}

}  // namespace

absl::Status DoublingAllReduce(const CollectiveCall& call, const Combiner& combiner,
                               const OwnedBytes& operand, absl::Span<char> out) {
  SHARDMESH_RETURN_IF_ERROR(CheckReduction("all-reduce", combiner, operand.bytes, out.size()));
  const DeviceGroup& group = *call.group;
  const int64_t count = SizeOf(operand) / combiner.operand_bytes;
  if (count == 0) return absl::OkStatus();
  const int64_t levels = LevelsOf(group.size());
  if (levels == 0) {
    CombineAlone(combiner, operand.bytes, out.data());
    return absl::OkStatus();
  }
  Held held{.bytes = operand};
  for (int64_t level = 0; level < levels; ++level) {
    const BlockPair pair = PairOf(group.size(), level, group.place());
    if (pair.sibling.size == 0) continue;
    SHARDMESH_RETURN_IF_ERROR(SendToSibling(call, pair, level, held.bytes));
    SHARDMESH_ASSIGN_OR_RETURN(const OwnedMutableBytes partials,
                               NextPartials(call, combiner, count, level + 1 == levels, out));
    SHARDMESH_RETURN_IF_ERROR(CombineArriving(
        call, combiner, {.elements = held.bytes.bytes, .form = held.form, .is_left = pair.is_left},
        SourceOf(pair, group.place()), level, FormOf(pair.sibling), partials.bytes.data()));
    held = {.bytes = {partials.bytes, partials.owner}, .form = ElementForm::kPartial};
  }
  if (combiner.finish) combiner.finish(held.bytes.bytes.data(), count, out.data());
  return absl::OkStatus();
}

absl::Status DoublingAllGather(const CollectiveCall& call, const OwnedBytes& mine,
                               absl::Span<const int64_t> sizes_bytes, PlaceFn place_fn) {
  SHARDMESH_RETURN_IF_ERROR(CheckAllGather(call, mine, sizes_bytes));
  const DeviceGroup& group = *call.group;
  const int64_t ranks = group.size();
  std::vector<int64_t> cuts = {0};
  for (const int64_t size : sizes_bytes) cuts.push_back(cuts.back() + size);
  SHARDMESH_ASSIGN_OR_RETURN(const OwnedMutableBytes all, Scratch(call, cuts.back()));
  const auto part = [&](const Block& block) {
    return PartOf(all, cuts[Index(block.begin)], cuts[Index(block.begin + block.size)]);
  };
  if (!mine.bytes.empty()) {
    std::memcpy(part({group.place(), 1}).bytes.data(), mine.bytes.data(), mine.bytes.size());
  }
  for (int64_t level = 0; level < LevelsOf(ranks); ++level) {
    const BlockPair pair = PairOf(ranks, level, group.place());
    if (pair.sibling.size == 0) continue;
    const OwnedMutableBytes own = part(pair.mine);
    SHARDMESH_RETURN_IF_ERROR(SendToSibling(call, pair, level, OwnedBytes{own.bytes, own.owner}));
    SHARDMESH_RETURN_IF_ERROR(
        ReceiveInto(call, SourceOf(pair, group.place()), level, part(pair.sibling).bytes));
  }
  for (int64_t place = 0; place < ranks; ++place) {
    const absl::Span<const char> bytes = part({place, 1}).bytes;
    if (!bytes.empty()) place_fn(place, 0, bytes);
  }
  return absl::OkStatus();
}

absl::Status DoublingBarrier(const CollectiveCall& call) {
  static constexpr char kHere = 1;
  const DeviceGroup& group = *call.group;
  for (int64_t level = 0; level < LevelsOf(group.size()); ++level) {
    const int64_t distance = int64_t{1} << level;
    SHARDMESH_RETURN_IF_ERROR(SendTo(call, (group.place() + distance) % group.size(), level,
                                     {absl::MakeConstSpan(&kHere, 1), nullptr}));
    char heard = 0;
    SHARDMESH_RETURN_IF_ERROR(ReceiveInto(call,
                                          (group.place() - distance + group.size()) % group.size(),
                                          level, absl::MakeSpan(&heard, 1)));
  }
  return absl::OkStatus();
}

absl::Status BinomialReduce(const CollectiveCall& call, const Combiner& combiner, int64_t root,
                            const OwnedBytes& operand, absl::Span<char> out) {
  const DeviceGroup& group = *call.group;
  if (root < 0 || root >= group.size()) {
    return absl::InvalidArgumentError(
        StrCat("reduce with place ", root, " of a group of ", group.size(), " ranks as its root"));
  }
  const bool is_root = root == group.place();
  if (is_root) {
    SHARDMESH_RETURN_IF_ERROR(CheckReduction("reduce", combiner, operand.bytes, out.size()));
  }
  const int64_t count = SizeOf(operand) / combiner.operand_bytes;
  if (count == 0) return absl::OkStatus();
  const int64_t levels = LevelsOf(group.size());
  if (levels == 0) {
    CombineAlone(combiner, operand.bytes, out.data());
    return absl::OkStatus();
  }
  Held held{.bytes = operand};
  for (int64_t level = 0; level < levels; ++level) {
    const BlockPair pair = PairOf(group.size(), level, group.place());
    if (pair.sibling.size == 0) continue;
    if (SiblingLeads(pair, root)) {
      return SendTo(call, LeaderOf(pair.sibling, root), level, held.bytes);
    }
    SHARDMESH_ASSIGN_OR_RETURN(
        const OwnedMutableBytes partials,
        NextPartials(call, combiner, count, is_root && level + 1 == levels, out));
    SHARDMESH_RETURN_IF_ERROR(CombineArriving(
        call, combiner, {.elements = held.bytes.bytes, .form = held.form, .is_left = pair.is_left},
        LeaderOf(pair.sibling, root), level, FormOf(pair.sibling), partials.bytes.data()));
    held = {.bytes = {partials.bytes, partials.owner}, .form = ElementForm::kPartial};
  }
  if (combiner.finish) combiner.finish(held.bytes.bytes.data(), count, out.data());
  return absl::OkStatus();
}

std::vector<int64_t> DoublingSources(const DeviceGroup& group) {
  std::vector<int64_t> sources;
  for (int64_t level = 0; level < LevelsOf(group.size()); ++level) {
    const BlockPair pair = PairOf(group.size(), level, group.place());
    if (pair.sibling.size > 0) sources.push_back(SourceOf(pair, group.place()));
  }
  return sources;
}

std::vector<int64_t> DoublingBarrierSources(const DeviceGroup& group) {
  std::vector<int64_t> sources;
  for (int64_t distance = 1; distance < group.size(); distance *= 2) {
    sources.push_back((group.place() - distance + group.size()) % group.size());
  }
  return sources;
}

std::vector<int64_t> BinomialReduceSources(const DeviceGroup& group, int64_t root) {
  std::vector<int64_t> sources;
  for (int64_t level = 0; level < LevelsOf(group.size()); ++level) {
    const BlockPair pair = PairOf(group.size(), level, group.place());
    if (pair.sibling.size == 0) continue;
    if (SiblingLeads(pair, root)) break;
    sources.push_back(LeaderOf(pair.sibling, root));
  }
  return sources;
}

}  // namespace shardmesh::worker
