// Connects again to an address at which earlier connections were lost.
#ifndef SHARDMESH_RPC_CONNECTOR_H_
#define SHARDMESH_RPC_CONNECTOR_H_

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "rpc/call.h"

namespace shardmesh::rpc {

// Connects to one address any number of times, each time with new channels.
//
// A channel that outlives its connection reconnects slowly, for these reasons:
// - It keeps the backoff of earlier failures and the old address of its host's name.
// - The kernel resends a lost SYN only after seconds.
// - While its calls fail at once, no thread polls its socket (PollOwnConnections), and a TLS
//   handshake does not proceed.
// A Connector avoids this: the calling thread polls, and nothing is kept between connections.
//
// At most two attempts run at a time. The first attempt has 10 s, for slow servers. The second
// attempt is replaced every kRenewal, for addresses that do not answer: each new attempt resolves
// the name and sends a SYN again. When the server becomes reachable, the connection is therefore
// established within kRenewal plus the time of a handshake.
//
// Thread-safe; one call of Connect at a time.
class Connector {
 public:
  static constexpr absl::Duration kRenewal = absl::Seconds(1);

  // `address` as in CreateChannel; INVALID_ARGUMENT for other text.
  static absl::StatusOr<std::unique_ptr<Connector>> Create(std::string address,
                                                           ChannelOptions options);
  Connector(const Connector&) = delete;
  Connector& operator=(const Connector&) = delete;

  // Blocks until a channel is connected or has failed, and returns that channel. A call on a failed
  // channel ends at once with UNAVAILABLE and the reason. DEADLINE_EXCEEDED after `timeout`;
  // CANCELLED after Cancel.
  absl::StatusOr<std::shared_ptr<grpc::Channel>> Connect(absl::Duration timeout);

  // Ends a running call of Connect within some tens of milliseconds. Later calls of Connect return
  // CANCELLED at once.
  void Cancel();

 private:
  Connector(std::string address, ChannelOptions options);

  bool is_cancelled() const;

  const std::string address_;
  const ChannelOptions options_;

  mutable absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CONNECTOR_H_
