// Settings of gRPC's transport that channels and servers share.
#ifndef SHARDMESH_RPC_TRANSPORT_ARGS_H_
#define SHARDMESH_RPC_TRANSPORT_ARGS_H_

#include <grpc/grpc.h>

#include <array>

namespace shardmesh::rpc {

struct TransportArg {
  const char* name;
  int value;
};

// Initial receive window of a stream. gRPC starts at 64 KiB, far below one message of 1 MiB, and
// probes widen the window. A receiver sometimes postpones the widening to its next write. In that
// case both ends wait for the next keepalive ping. A window of several messages avoids that wait,
// and moves large messages about twice as fast. Memory: each stream may hold this many bytes that
// its reader has not read.
inline constexpr int kLookaheadBytes = 8 << 20;

inline constexpr std::array<TransportArg, 3> kTransportArgs = {{
    {GRPC_ARG_HTTP2_BDP_PROBE, 0},
    {GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kLookaheadBytes},
    {GRPC_ARG_HTTP2_MAX_FRAME_SIZE, (2 << 20)},
}};

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_TRANSPORT_ARGS_H_
