// Broadcasts in which a rank forwards each chunk to the next ranks as soon as the chunk arrives.
#include "worker/collective/chain.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <vector>

#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::worker {
namespace {

constexpr int64_t kChunkBytes = int64_t{256} << 10;

// The place from which a rank receives, nullopt for the root; and the places to which the rank
// sends, in the order of sending.
struct Neighbours {
  std::optional<int64_t> before;
  std::vector<int64_t> after;
};

absl::Status PassOn(const CollectiveCall& call, const Neighbours& neighbours,
                    const OwnedBytes& mine, const OwnedMutableBytes& out) {
  const auto size_bytes = static_cast<int64_t>(out.bytes.size());
  const bool is_root = !neighbours.before.has_value();
  if (is_root && SizeOf(mine) != size_bytes) {
    return absl::InvalidArgumentError(
        StrCat("broadcast of ", SizeOf(mine), " bytes to memory of ", size_bytes, " bytes"));
  }
  for (int64_t begin = 0, round = 0; begin < size_bytes; begin += kChunkBytes, ++round) {
    const int64_t end = std::min(begin + kChunkBytes, size_bytes);
    OwnedBytes chunk;
    if (is_root) {
      chunk = PartOf(mine, begin, end);
    } else {
      const OwnedMutableBytes arriving = PartOf(out, begin, end);
      SHARDMESH_RETURN_IF_ERROR(ReceiveInto(call, *neighbours.before, round, arriving.bytes));
      chunk = {arriving.bytes, arriving.owner};
    }
    for (const int64_t place : neighbours.after) {
      SHARDMESH_RETURN_IF_ERROR(SendTo(call, place, round, chunk));
    }
  }
  if (is_root) CopyUnlessThere(mine.bytes, out.bytes);
  return absl::OkStatus();
}

// Returns the distance of this rank's place from `root`, counted upwards around the group.
absl::StatusOr<int64_t> DistanceFrom(int64_t root, const DeviceGroup& group) {
  if (root < 0 || root >= group.size()) {
    return absl::InvalidArgumentError(StrCat("broadcast with place ", root, " of a group of ",
                                             group.size(), " ranks as its root"));
  }
  return (group.place() - root + group.size()) % group.size();
}

}  // namespace

absl::Status BinomialBroadcast(const CollectiveCall& call, int64_t root, const OwnedBytes& mine,
                               const OwnedMutableBytes& out) {
  const int64_t ranks = call.group->size();
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t distance, DistanceFrom(root, *call.group));
  const auto place_at = [&](int64_t behind) { return (root + behind) % ranks; };
  Neighbours neighbours;
  // This rank sends to the ranks at distance + bit/2, ..., distance + 2, distance + 1. `bit` is the
  // lowest set bit of this rank's distance; for the root, a bit above all distances.
  int64_t bit = int64_t{1} << std::bit_width(static_cast<uint64_t>(ranks - 1));
  if (distance != 0) {
    bit = distance & -distance;
    neighbours.before = place_at(distance - bit);
  }
  for (int64_t below = bit / 2; below > 0; below /= 2) {
    if (distance + below < ranks) neighbours.after.push_back(place_at(distance + below));
  }
  return PassOn(call, neighbours, mine, out);
}

absl::Status ChainBroadcast(const CollectiveCall& call, int64_t root, const OwnedBytes& mine,
                            const OwnedMutableBytes& out) {
  const int64_t ranks = call.group->size();
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t distance, DistanceFrom(root, *call.group));
  Neighbours neighbours;
  if (distance > 0) neighbours.before = (call.group->place() - 1 + ranks) % ranks;
  if (distance + 1 < ranks) neighbours.after.push_back((call.group->place() + 1) % ranks);
  return PassOn(call, neighbours, mine, out);
}

std::vector<int64_t> BinomialBroadcastSources(const DeviceGroup& group, int64_t root) {
  const int64_t distance = (group.place() - root + group.size()) % group.size();
  if (distance == 0) return {};
  return {(root + distance - (distance & -distance)) % group.size()};
}

}  // namespace shardmesh::worker
