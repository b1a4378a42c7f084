// How many steps and transfers can be under way, for those who keep something of each.
#ifndef SHARDMESH_RPC_LIVE_WORK_H_
#define SHARDMESH_RPC_LIVE_WORK_H_

#include <cstdint>

namespace shardmesh::rpc {

// The most that a coordinator lets be under way, whatever its flags say. A worker may be as far
// ahead of a peer that is late, whose streams must not break for that.
inline constexpr int64_t kMaxLiveWork = 100'000;

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_LIVE_WORK_H_
