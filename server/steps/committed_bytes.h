// The bytes of the committed tiles on each worker, as the registry counts them.
#ifndef SHARDMESH_SERVER_STEPS_COMMITTED_BYTES_H_
#define SHARDMESH_SERVER_STEPS_COMMITTED_BYTES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/state/array_registry.h"
#include "server/state/membership.h"
#include "sharding/tile.h"
#include "tensor/array_descriptor.h"

namespace shardmesh::server {

// Returns a + b, or the largest int64 if the sum is larger. Requires b >= 0.
int64_t AddCapped(int64_t a, int64_t b);

// Returns the bytes of the rank's tile. `tiling`: that of the array.
absl::StatusOr<int64_t> RankTileBytes(const ArrayDescriptor& descriptor, const Tiling& tiling,
                                      int64_t rank);

// Whether the bytes take at most half of the memory that the worker has left by its heartbeats.
// Checks of such small needs do not count all arrays, which takes time: the worker itself refuses a
// tile that does not fit.
bool FitsEasily(const WorkerStatus& worker, int64_t need_bytes);

// The bytes in use on each worker, for checks whether more tiles fit. Cached tiles count as free:
// ArrayCache::Limit frees their memory when it is needed. Heartbeats tell these bytes
// only from time to time: they know nothing yet of a put that has just ended, and still count what
// was released just now. This class therefore counts the committed arrays too. For one thread.
class CommittedBytes {
 public:
  // `view` outlives the object. Finds out whether a worker has yet to confirm a release.
  CommittedBytes(const MembershipView& view, const ArrayRegistry& registry);

  // Adds all committed arrays. Adds none if each worker has sent a heartbeat since the last commit
  // and has confirmed all releases. CANCELLED: `is_cancelled`, which is polled, returned true.
  absl::Status AddAll(const ArrayRegistry& registry, const std::function<bool()>& is_cancelled);

  // Adds all committed arrays, whatever the heartbeats say, without those that are given to a step:
  // the step uses up their memory.
  absl::Status CountAll(const ArrayRegistry& registry);
  // Returns the bytes of the arrays that were added, on the worker.
  int64_t CountedOn(const std::string& identity) const { return Of(identity); }

  // Returns the bytes in use on the worker, as far as they are known, without cached tiles. They
  // may be more than its capacity: arrays on disk that left its memory while they are moved count.
  int64_t UsedOn(const std::string& identity, const WorkerStatus& worker) const;
  // Returns the bytes that the worker has left for tiles; never negative.
  int64_t LeftOn(const std::string& identity, const WorkerStatus& worker) const;

 private:
  int64_t Of(const std::string& identity) const;
  absl::Time OldestHeartbeat() const;
  absl::Status Add(const Array& array);

  const MembershipView& view_;
  const bool is_releasing_;  // a worker has not confirmed some release yet
  const ArrayRegistry::BytesByMesh cached_;
  std::map<std::string, int64_t> by_mesh_;    // bytes on each rank of the mesh
  std::map<std::string, int64_t> by_worker_;  // of arrays whose tiles differ
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_COMMITTED_BYTES_H_
