// The bytes that each place of a group sends to each other place in one collective.
#ifndef SHARDMESH_PROGRAM_COLLECTIVE_TRAFFIC_H_
#define SHARDMESH_PROGRAM_COLLECTIVE_TRAFFIC_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "program/program.h"
#include "tensor/dtype.h"

namespace shardmesh {

// Returns the number of chunks of an all-reduce by halving, for an operand of this size: chunks of
// at least 256 KiB, at most 16.
int64_t HalvingChunks(int64_t operand_bytes);

// Bytes from each place of a group to each other place. A place sends nothing to itself.
class PlaceTraffic {
 public:
  // Requires places >= 1. Takes memory for all pairs of places.
  explicit PlaceTraffic(int64_t places)
      : places_(places), bytes_(static_cast<size_t>(places * places)) {}

  int64_t places() const { return places_; }

  // Both require places of the group.
  int64_t BytesBetween(int64_t sender, int64_t receiver) const {
    return bytes_[IndexOf(sender, receiver)];
  }
  // Adds to the pair's bytes, which are capped at 64 bits. Ignores a place that is both ends.
  void Add(int64_t sender, int64_t receiver, int64_t bytes);

 private:
  size_t IndexOf(int64_t sender, int64_t receiver) const {
    return static_cast<size_t>(sender * places_ + receiver);
  }

  int64_t places_;
  std::vector<int64_t> bytes_;
};

// The tiles of one group in one collective.
struct GroupTiles {
  Dtype operand_dtype = Dtype::kF32;
  Dtype result_dtype = Dtype::kF32;
  // The elements of the operand's tile at each place. At least one place.
  std::vector<int64_t> elements;
  // Extents of the parts for each place, along the dimension that the collective splits. Used only
  // by kinds that split tiles: reduce-scatter, all-to-all and scatter.
  std::vector<int64_t> split_extents = {};
};

// Adds the bytes of one collective in one group. Counts the contents of messages, not their frames.
//
// Follows the algorithms of worker/collective message by message: change both together. Numbers
// beyond 64 bits are capped. Requires an op that CheckPlan accepts on such tiles, and as many
// places in `tiles` as in `traffic`. Takes O(P^2 log P) for P places.
//
// Example: 3 places, broadcast from place 0 by chain, 8 bytes -> 8 from 0 to 1, 8 from 1 to 2.
void AddCollectiveTraffic(const CollectiveOp& op, const GroupTiles& tiles, PlaceTraffic* traffic);

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_COLLECTIVE_TRAFFIC_H_
