// How often the benchmarks of collectives, ours and the peers', make a call.
#ifndef SHARDMESH_BENCH_COLLECTIVE_CALLS_H_
#define SHARDMESH_BENCH_COLLECTIVE_CALLS_H_

#include <algorithm>
#include <cstdint>

namespace shardmesh::bench {

// Of vectors of `bytes`. Either a thousand calls, or as many as take the fastest system that was
// measured on two cores 0.2 s.
inline int64_t CallsFor(int64_t bytes) {
  if (bytes <= 1'024) return 5'000;
  return std::clamp<int64_t>((int64_t{3} << 30) / bytes, 48, 1'000);
}

}  // namespace shardmesh::bench

#endif  // SHARDMESH_BENCH_COLLECTIVE_CALLS_H_
