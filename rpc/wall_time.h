// From a clock's time to the wall clock's.
#ifndef SHARDMESH_RPC_WALL_TIME_H_
#define SHARDMESH_RPC_WALL_TIME_H_

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "rpc/clock.h"

namespace shardmesh::rpc {

// What the wall clock will show when `clock` shows `time`, if nobody steps it until then. For waits
// of Abseil's, which take times of the wall clock: a RealClock goes on from the wall clock's time
// of its own start, and may be far from it by now. An infinite time stays so.
inline absl::Time WallTime(const Clock& clock, absl::Time time) {
  return absl::Now() + (time - clock.Now());
}

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_WALL_TIME_H_
