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

// Initial window of a stream. gRPC's default starts at 64 KiB, far below one of our 1 MiB messages,
// and probes widen it. A receiver sometimes postpones the widening to its next write, and both ends
// then wait for the keepalive ping. A window of several messages avoids that, and moves large
// messages about twice as fast. Memory: a stream may have this much waiting for its reader.
inline constexpr int kLookaheadBytes = 8 << 20;

inline constexpr std::array<TransportArg, 3> kTransportArgs = {{
    {GRPC_ARG_HTTP2_BDP_PROBE, 0},
    {GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kLookaheadBytes},
    {GRPC_ARG_HTTP2_MAX_FRAME_SIZE, (2 << 20)},
}};

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_TRANSPORT_ARGS_H_
