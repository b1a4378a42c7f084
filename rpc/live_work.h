// The bound on concurrent steps and transfers, for objects that keep state for each.
#ifndef SHARDMESH_RPC_LIVE_WORK_H_
#define SHARDMESH_RPC_LIVE_WORK_H_

#include <cstdint>

namespace shardmesh::rpc {

// Upper bound on running steps and transfers of a coordinator, for any flags. A worker may be that
// far ahead of a slow peer, whose streams must not break for that.
inline constexpr int64_t kMaxLiveWork = 100'000;

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_LIVE_WORK_H_
