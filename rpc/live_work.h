// The maximum number of steps and transfers at one time, for objects that keep state for each of
// them.
#ifndef SHARDMESH_RPC_LIVE_WORK_H_
#define SHARDMESH_RPC_LIVE_WORK_H_

#include <cstdint>

namespace shardmesh::rpc {

// Maximum number of running steps and transfers of a coordinator, for any values of its flags. A
// worker may be that many steps ahead of a slow peer. The streams between the two workers must
// survive this.
inline constexpr int64_t kMaxLiveWork = 100'000;

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_LIVE_WORK_H_
