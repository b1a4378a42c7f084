// How gRPC moves bytes: settings that channels and servers share.
#ifndef SHARDMESH_RPC_TRANSPORT_ARGS_H_
#define SHARDMESH_RPC_TRANSPORT_ARGS_H_

#include <grpc/grpc.h>
#include <stdlib.h>

#include <array>

namespace shardmesh::rpc {

struct TransportArg {
  const char* name;
  int value;
};

// With gRPC's defaults a stream's window starts at 64 KiB, far below one of our 1 MiB messages, and
// is widened by probes; a receiver now and then leaves the widening to its next write, and both
// ends then wait for the keepalive ping. A window of several messages from the start never comes to
// that, and moves large messages about twice as fast. Memory: a stream may have this much waiting
// for its reader.
inline constexpr std::array<TransportArg, 3> kTransportArgs = {{
    {GRPC_ARG_HTTP2_BDP_PROBE, 0},
    {GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 8 << 20},
    {GRPC_ARG_HTTP2_MAX_FRAME_SIZE, (2 << 20)},
}};

// Has each completion queue's poller wait for its own connections with poll(2), where by default
// one thread of the process waits for all of them and hands both the event and its place on: that
// wakes two other threads for each message. Costs a few microseconds more for each hundred
// connections. GRPC_POLL_STRATEGY in the environment goes before it. Before gRPC is used and before
// any thread starts.
inline void PollOwnConnections() { setenv("GRPC_POLL_STRATEGY", "poll", /*overwrite=*/0); }

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_TRANSPORT_ARGS_H_
