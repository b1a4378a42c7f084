// Ring algorithms: parts travel around the ring; in a reduction each rank adds its operand to a
// part before it sends the part on.
#include "worker/collective/ring.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::worker {
namespace {

constexpr int64_t kChunkBytes = int64_t{256} << 10;

int64_t Before(const DeviceGroup& group, int64_t by = 1) {
  return (group.place() - by % group.size() + group.size()) % group.size();
}
int64_t After(const DeviceGroup& group) { return (group.place() + 1) % group.size(); }

// How a part is cut into chunks. Chunk i has the units [cuts[i], cuts[i+1]) of the part; a unit is
// an element or a byte. An empty part has no chunks.
struct Chunks {
  int64_t count = 0;
  std::vector<int64_t> cuts = {0};
};

Chunks ChunksOf(int64_t units, int64_t unit_bytes) {
  const int64_t chunk_units = std::max(kChunkBytes / unit_bytes, int64_t{1});
  Chunks chunks{.count = (units + chunk_units - 1) / chunk_units};
  chunks.cuts = EvenCuts(units, std::max(chunks.count, int64_t{1}));
  return chunks;
}

// Numbers the chunks of all rounds of the ring: returns the round number, within the call, for
// chunk `chunk` in round `round` of the ring. A round of the ring has at most `chunks` chunks.
int64_t RoundOf(int64_t round, int64_t chunks, int64_t chunk) { return round * chunks + chunk; }

}  // namespace

absl::Status RingReduceScatter(const CollectiveCall& call, const Combiner& combiner,
                               absl::Span<const OwnedBytes> parts, absl::Span<char> out) {
  const DeviceGroup& group = *call.group;
  const int64_t ranks = group.size();
  if (static_cast<int64_t>(parts.size()) != ranks) {
    return absl::InvalidArgumentError(
        StrCat("reduce-scatter over ", ranks, " ranks was given ", parts.size(), " parts"));
  }
  int64_t most_chunks = 1;
  for (const OwnedBytes& part : parts) {
    SHARDMESH_RETURN_IF_ERROR(CheckReduction(
        "reduce-scatter", combiner, part.bytes,
        part.bytes.size() / Index(combiner.operand_bytes) * Index(combiner.result_bytes)));
    most_chunks = std::max(
        most_chunks, ChunksOf(SizeOf(part) / combiner.operand_bytes, combiner.partial_bytes).count);
  }
  const absl::Span<const char> own = parts[Index(group.place())].bytes;
  SHARDMESH_RETURN_IF_ERROR(CheckReduction("reduce-scatter", combiner, own, out.size()));
  if (ranks == 1) {
    CombineAlone(combiner, own, out.data());
    return absl::OkStatus();
  }

  // In round r a rank sends the part that belongs to the place 1 + r places before its own.
  const auto chunk_of = [&](const OwnedBytes& part, const Chunks& chunks, int64_t chunk) {
    return PartOf(part, chunks.cuts[Index(chunk)] * combiner.operand_bytes,
                  chunks.cuts[Index(chunk) + 1] * combiner.operand_bytes);
  };
  const OwnedBytes& first = parts[Index(Before(group))];
  const Chunks first_chunks =
      ChunksOf(SizeOf(first) / combiner.operand_bytes, combiner.partial_bytes);
  for (int64_t chunk = 0; chunk < first_chunks.count; ++chunk) {
    SHARDMESH_RETURN_IF_ERROR(SendTo(call, After(group), RoundOf(0, most_chunks, chunk),
                                     chunk_of(first, first_chunks, chunk)));
  }
  for (int64_t round = 0; round + 1 < ranks; ++round) {
    const OwnedBytes& part = parts[Index(Before(group, round + 2))];
    const Chunks chunks = ChunksOf(SizeOf(part) / combiner.operand_bytes, combiner.partial_bytes);
    const bool is_own = round + 2 == ranks;
    for (int64_t chunk = 0; chunk < chunks.count; ++chunk) {
      const OwnedBytes mine = chunk_of(part, chunks, chunk);
      const int64_t begin = chunks.cuts[Index(chunk)];
      const int64_t count = chunks.cuts[Index(chunk) + 1] - begin;
      OwnedMutableBytes partials;
      if (is_own && !combiner.finish) {
        partials.bytes =
            out.subspan(Index(begin * combiner.result_bytes), Index(count * combiner.result_bytes));
      } else {
        SHARDMESH_ASSIGN_OR_RETURN(partials, Scratch(call, count * combiner.partial_bytes));
      }
      SHARDMESH_RETURN_IF_ERROR(CombineArriving(
          call, combiner, {.elements = mine.bytes, .is_left = false}, Before(group),
          RoundOf(round, most_chunks, chunk),
          round == 0 ? ElementForm::kOperand : ElementForm::kPartial, partials.bytes.data()));
      if (!is_own) {
        SHARDMESH_RETURN_IF_ERROR(SendTo(call, After(group), RoundOf(round + 1, most_chunks, chunk),
                                         {partials.bytes, partials.owner}));
      } else if (combiner.finish) {
        combiner.finish(partials.bytes.data(), count, out.data() + begin * combiner.result_bytes);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status RingAllGather(const CollectiveCall& call, const OwnedBytes& mine,
                           absl::Span<const int64_t> sizes_bytes, PlaceFn place_fn) {
  SHARDMESH_RETURN_IF_ERROR(CheckAllGather(call, mine, sizes_bytes));
  const DeviceGroup& group = *call.group;
  const int64_t ranks = group.size();
  int64_t most_chunks = 1;
  for (const int64_t size : sizes_bytes) {
    most_chunks = std::max(most_chunks, ChunksOf(size, 1).count);
  }
  if (!mine.bytes.empty()) place_fn(group.place(), 0, mine.bytes);
  if (ranks == 1) return absl::OkStatus();
  const Chunks own = ChunksOf(SizeOf(mine), 1);
  for (int64_t chunk = 0; chunk < own.count; ++chunk) {
    SHARDMESH_RETURN_IF_ERROR(
        SendTo(call, After(group), RoundOf(0, most_chunks, chunk),
               PartOf(mine, own.cuts[Index(chunk)], own.cuts[Index(chunk) + 1])));
  }
  // In round r a rank receives the data that the rank 1 + r places before it contributed.
  for (int64_t round = 0; round + 1 < ranks; ++round) {
    const int64_t place = Before(group, round + 1);
    const Chunks chunks = ChunksOf(sizes_bytes[Index(place)], 1);
    const bool passes_on = round + 2 < ranks;
    for (int64_t chunk = 0; chunk < chunks.count; ++chunk) {
      const int64_t begin = chunks.cuts[Index(chunk)];
      const int64_t size = chunks.cuts[Index(chunk) + 1] - begin;
      OwnedMutableBytes copy;
      if (passes_on) {
        SHARDMESH_ASSIGN_OR_RETURN(copy, Scratch(call, size));
      }
      SHARDMESH_RETURN_IF_ERROR(
          ReceivePieces(call, Before(group), RoundOf(round, most_chunks, chunk), size,
                        [&](int64_t offset_bytes, absl::Span<const char> bytes) {
                          place_fn(place, begin + offset_bytes, bytes);
                          if (passes_on) {
                            CopyReceived(call, bytes, copy.bytes.data() + offset_bytes);
                          }
                        }));
      if (passes_on) {
        SHARDMESH_RETURN_IF_ERROR(SendTo(call, After(group), RoundOf(round + 1, most_chunks, chunk),
                                         {copy.bytes, copy.owner}));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status RingAllReduce(const CollectiveCall& call, const Combiner& combiner,
                           const OwnedBytes& operand, const OwnedMutableBytes& out) {
  SHARDMESH_RETURN_IF_ERROR(
      CheckReduction("all-reduce", combiner, operand.bytes, out.bytes.size()));
  const DeviceGroup& group = *call.group;
  const std::vector<int64_t> cuts =
      EvenCuts(SizeOf(operand) / combiner.operand_bytes, group.size());
  std::vector<OwnedBytes> parts;
  std::vector<int64_t> sizes_bytes;
  int64_t most_chunks = 1;
  for (size_t place = 0; place + 1 < cuts.size(); ++place) {
    parts.push_back(PartOf(operand, cuts[place] * combiner.operand_bytes,
                           cuts[place + 1] * combiner.operand_bytes));
    sizes_bytes.push_back((cuts[place + 1] - cuts[place]) * combiner.result_bytes);
    most_chunks = std::max(most_chunks,
                           ChunksOf(cuts[place + 1] - cuts[place], combiner.partial_bytes).count);
  }
  const int64_t begin_bytes = cuts[Index(group.place())] * combiner.result_bytes;
  const OwnedMutableBytes own =
      PartOf(out, begin_bytes, begin_bytes + sizes_bytes[Index(group.place())]);
  SHARDMESH_RETURN_IF_ERROR(RingReduceScatter(call, combiner, parts, own.bytes));

  CollectiveCall gather = call;
  gather.round = call.round + RoundOf(group.size() - 1, most_chunks, 0);
  return RingAllGather(
      gather, OwnedBytes{own.bytes, own.owner}, sizes_bytes,
      [&](int64_t place, int64_t offset_bytes, absl::Span<const char> bytes) {
        if (place == group.place()) return;  // this rank's part is already in `out`
        CopyReceived(call, bytes,
                     out.bytes.data() + cuts[Index(place)] * combiner.result_bytes + offset_bytes);
      });
}

}  // namespace shardmesh::worker
