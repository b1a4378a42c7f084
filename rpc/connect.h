// Waits for a connection to a host of which some addresses may not answer.
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
  // A host may have several addresses, which gRPC tries one after the other. If some address does
  // not answer and another address accepts connections, the wait continues beyond `timeout`: by 10
  // s for each silent address, plus 3 s. The whole wait takes at most `limit`.
  absl::Duration limit = absl::ZeroDuration();
  // Called once before the wait continues beyond `timeout`, with the silent addresses. May be null.
  std::function<void(const absl::Status& why)> on_wait = nullptr;
  // Called every 50 ms. The wait ends with CANCELLED once the callback returns true. May be null.
  std::function<bool()> is_cancelled = nullptr;
};

// Like WaitForConnected of rpc/call.h, but can wait beyond the timeout: see `limit`.
absl::Status WaitForConnected(grpc::Channel& channel, std::string_view address,
                              const ConnectOptions& wait, const ChannelOptions& options);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CONNECT_H_
