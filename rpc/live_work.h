// The most steps and transfers at one time, for objects that keep state for each.
#ifndef SHARDMESH_RPC_LIVE_WORK_H_
#define SHARDMESH_RPC_LIVE_WORK_H_

#include <cstdint>

namespace shardmesh::rpc {

// Most running steps and transfers of a coordinator, whatever its flags say. A worker may be that
// many steps ahead of a slow peer, and their streams must not break because of it.
inline constexpr int64_t kMaxLiveWork = 100'000;

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_LIVE_WORK_H_
