// How the benchmarks of collectives, ours and the peers', make their calls.
#ifndef SHARDMESH_BENCH_COLLECTIVE_CALLS_H_
#define SHARDMESH_BENCH_COLLECTIVE_CALLS_H_

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace shardmesh::bench {

// Returns the number of calls with vectors of `bytes`: a thousand, or as many as take the fastest
// measured system 0.2 s on two cores.
inline int64_t CallsFor(int64_t bytes) {
  if (bytes <= 1'024) return 5'000;
  return std::clamp<int64_t>((int64_t{3} << 30) / bytes, 48, 1'000);
}

// Returns whether some ranks finish their part before others have theirs. In a row of such calls
// the first rank would run ahead, and the others would find the next bytes ready, which falsifies
// the time. Each such call therefore begins after a barrier, which is not timed.
inline bool IsOneWay(std::string_view op) { return op == "broadcast"; }

}  // namespace shardmesh::bench

#endif  // SHARDMESH_BENCH_COLLECTIVE_CALLS_H_
