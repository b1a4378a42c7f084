// The number and form of calls in the benchmarks of collectives: of ours, of Gloo's and of MPI's.
#ifndef SHARDMESH_BENCH_COLLECTIVE_CALLS_H_
#define SHARDMESH_BENCH_COLLECTIVE_CALLS_H_

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace shardmesh::bench {

// Returns the number of calls with vectors of `bytes`: 5,000 for vectors of at most 1 KiB. For
// larger vectors, as many calls as move 3 GiB of vectors in total, but at least 48 and at most
// 1,000.
inline int64_t CallsFor(int64_t bytes) {
  if (bytes <= 1'024) return 5'000;
  return std::clamp<int64_t>((int64_t{3} << 30) / bytes, 48, 1'000);
}

// Returns whether some ranks of the collective finish while others still wait for data. In a series
// of such calls without pauses, the first rank would begin later calls early. The other ranks would
// find the data of these calls ready, which falsifies the time. Each such call therefore begins
// after a barrier, which is not timed.
inline bool IsOneWay(std::string_view op) { return op == "broadcast"; }

}  // namespace shardmesh::bench

#endif  // SHARDMESH_BENCH_COLLECTIVE_CALLS_H_
