// The bytes that moving arrays take on each worker.
#ifndef SHARDMESH_SERVER_RESHARD_WORKER_LOADS_H_
#define SHARDMESH_SERVER_RESHARD_WORKER_LOADS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensor/array_descriptor.h"

namespace shardmesh::server {

// Adds up what workers take and drop, in the order of the calls. For one thread.
class WorkerLoads {
 public:
  // `moves_at_once`: how many arrays move at the same time, at least one.
  explicit WorkerLoads(size_t moves_at_once = 1) : moves_at_once_(moves_at_once) {}

  // The workers of the array's ranks make its tiles. `workers`: identities by rank; ranks beyond
  // them count for nothing. `copies_bytes`: that each of them has beside its tiles, at most, while
  // the array moves.
  absl::Status Take(const ArrayDescriptor& array, const std::vector<std::string>& workers,
                    int64_t copies_bytes = 0);
  // The workers drop the array's tiles. The ranks `missing_ranks`, in rising order, have none.
  absl::Status Drop(const ArrayDescriptor& array, const std::vector<std::string>& workers,
                    const std::vector<int64_t>& missing_ranks = {});

  // Whether a worker of `limits`, which is by identity, would at one time have more bytes than its
  // limit if `next` came after the calls so far.
  bool WouldExceed(const WorkerLoads& next, const std::map<std::string, int64_t>& limits) const;
  // Returns the most bytes of the worker at one time, beyond those before the first call. Of the
  // copies, those of the arrays count that may move at the same time.
  int64_t PeakOf(const std::string& worker) const;
  // Returns the bytes of the worker's largest part of one array, with its copies.
  int64_t LargestOf(const std::string& worker) const;

 private:
  struct Load {
    int64_t now = 0;  // may be negative
    int64_t peak = 0;
    int64_t largest = 0;
    // The largest copies of earlier arrays that may still move, in falling order: at most
    // moves_at_once_ - 1.
    std::vector<int64_t> copies = {};
  };

  // The array taken now moves with `copies_bytes`, beside the earlier ones with the most copies.
  void Copy(int64_t copies_bytes, Load* load) const;

  size_t moves_at_once_;
  std::map<std::string, Load> loads_;  // by identity
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_RESHARD_WORKER_LOADS_H_
