// Constants of the wire contract that both ends of a call need.
#ifndef SHARDMESH_RPC_CONTRACT_H_
#define SHARDMESH_RPC_CONTRACT_H_

#include <cstdint>

namespace shardmesh::rpc {

// The version of the protocol between coordinator, workers and clients.
inline constexpr int32_t kProtocolVersion = 1;

// Most tiles that one GetTiles call asks for.
inline constexpr int kMaxTilesPerGet = 10'000;

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CONTRACT_H_
