// Waits for a connection to a host of which some addresses may answer nothing.
#ifndef SHARDMESH_RPC_CONNECT_H_
#define SHARDMESH_RPC_CONNECT_H_

#include <functional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "rpc/call.h"

namespace shardmesh::rpc {

struct ConnectOptions {
  absl::Duration timeout = kConnectTimeout;
  // A host may have several addresses, which gRPC tries one after the other. Where one of them
  // answers nothing and another one accepts connections, the wait goes on beyond `timeout`: 10 s
  // for each address that answers nothing and 3 s more, but no longer than `limit` in all.
  absl::Duration limit = absl::ZeroDuration();
  // Called once before that, with the addresses that answer nothing. May be empty.
  std::function<void(const absl::Status& why)> on_wait = nullptr;
};

// As WaitForConnected of rpc/call.h, which does not go on beyond its timeout.
absl::Status WaitForConnected(grpc::Channel& channel, std::string_view address,
                              const ConnectOptions& wait, const ChannelOptions& options);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CONNECT_H_
