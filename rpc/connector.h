// New connections to an address at which connections were lost before.
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

// Connects to one address as often as asked, each time with channels of their own.
//
// A channel that outlives its connection is slow to come back: it keeps the delay of earlier
// failures and the address that its host's name had, a SYN that the network swallowed is sent again
// after seconds, and while its calls fail at once no thread polls its socket (PollOwnConnections),
// so that a TLS handshake does not proceed. Here the calling thread polls, and nothing is kept.
//
// At most two attempts run at a time. The first has 10 s, which is for servers that are slow. The
// second is replaced by a new one every kRenewal: it resolves the name and sends a SYN anew, which
// is for addresses that answer nothing. Hence a connection comes about within kRenewal and the time
// of a handshake of the moment at which the server can be reached.
//
// Thread-safe; one call of Connect at a time.
class Connector {
 public:
  static constexpr absl::Duration kRenewal = absl::Seconds(1);

  // INVALID_ARGUMENT for text that is not an address.
  static absl::StatusOr<std::unique_ptr<Connector>> Create(std::string address,
                                                           ChannelOptions options);
  Connector(const Connector&) = delete;
  Connector& operator=(const Connector&) = delete;

  // Blocks until a channel is connected or has failed, and returns it: a call on a channel that has
  // failed ends at once with UNAVAILABLE and the reason. DEADLINE_EXCEEDED after `timeout`;
  // CANCELLED after Cancel.
  absl::StatusOr<std::shared_ptr<grpc::Channel>> Connect(absl::Duration timeout);

  // Ends a call of Connect within some tens of milliseconds; later calls end at once.
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
