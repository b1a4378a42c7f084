// How a client hands a tile over to a worker on its host instead of streaming the tile's pieces.
//
// clang-format off
//   client: fills and seals memory (process/sealed/sealed_memory.h)
//   client -> IdentifyResponse.handover_socket:  an id, with the memory's descriptor
//   worker -> client, on that socket:            kHandoverKept or kHandoverFull
//   client -> PutTiles stream:                   a header with that id, and no pieces
// clang-format on
//
// The id, of random bytes that the client draws, binds the memory to the header, and so to the
// token in the header: another process cannot know it. After kHandoverFull the client sends this
// tile in pieces.
#ifndef SHARDMESH_RPC_STREAM_HANDOVER_H_
#define SHARDMESH_RPC_STREAM_HANDOVER_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace shardmesh::rpc {

inline constexpr size_t kHandoverIdBytes = 16;
// The worker keeps the memory until a header names it, or until the socket is closed.
inline constexpr std::string_view kHandoverKept = "kept";
// The worker has closed the descriptor: it keeps as many as it may.
inline constexpr std::string_view kHandoverFull = "full";

// Sizes of tiles that clients hand over. Memory of its own costs smaller tiles more than it saves.
// A larger tile would take the client longer to fill than the worker waits for a message.
inline constexpr int64_t kMinHandoverBytes = int64_t{1} << 20;
inline constexpr int64_t kMaxHandoverBytes = int64_t{8} << 30;

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_STREAM_HANDOVER_H_
