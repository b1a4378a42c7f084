// The client side of RPCs: channels, deadlines and trace context, and retries of idempotent calls.
#ifndef SHARDMESH_RPC_CALL_H_
#define SHARDMESH_RPC_CALL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/random/random.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "rpc/tls/credentials.h"
#include "rpc/tls/peer_name.h"
#include "status/detail.h"

namespace grpc {
class Channel;
class ChannelInterface;
class ClientContext;
class ServerContextBase;
class Status;
}  // namespace grpc

namespace shardmesh::rpc {

// Maximum size, in bytes, of a message to or from control services. Longer data is streamed in
// pieces of 1 MiB.
inline constexpr int64_t kMaxControlMessageBytes = int64_t{4} << 20;
// Maximum size, in bytes, of a message to or from the workers' services.
inline constexpr int64_t kMaxDataMessageBytes = (int64_t{1} << 20) + (int64_t{64} << 10);

struct ChannelOptions {
  Credentials credentials = Credentials::Insecure();
  // The peer that the certificate must name. Plaintext does not authenticate the peer.
  ExpectedPeer peer = ExpectedPeer::Coordinator();
  int64_t max_message_bytes = kMaxControlMessageBytes;
  // Keepalive: an idle connection is probed at this interval. The connection is closed if no answer
  // comes within the timeout.
  absl::Duration keepalive_interval = absl::Seconds(10);
  absl::Duration keepalive_timeout = absl::Seconds(5);
  // Whether the channel has its own connection. By default, the channels of one process to one
  // address share a connection.
  bool own_connection = false;
};

// Creates a channel. The channel connects when it is first used, and again after each loss of the
// connection, with pauses of at most 1 s. `address`: `host:port`, `[v6]:port` or `unix:/path`.
// INVALID_ARGUMENT for other text.
absl::StatusOr<std::shared_ptr<grpc::Channel>> CreateChannel(const std::string& address,
                                                             const ChannelOptions& options = {});

// Time limit for establishing a connection.
inline constexpr absl::Duration kConnectTimeout = absl::Seconds(3);

// Blocks until `channel` is connected. `address` and `options` are those that the channel was made
// with. Returns UNAVAILABLE, with the address, in these cases:
// - after `timeout`;
// - at once if the connection is refused or the fault is known (plaintext against TLS, a rejected
//   certificate);
// - half a second after any other failure.
absl::Status WaitForConnected(grpc::Channel& channel, std::string_view address,
                              absl::Duration timeout = kConnectTimeout,
                              const ChannelOptions& options = {});

// Use this function before a call on a channel that lost its connection. If the last attempt to
// connect failed, the call would fail at once. In that case the function waits until a new attempt
// succeeds, at most until `deadline`. It polls during the wait, because an attempt proceeds only
// while a thread polls.
void AwaitReconnected(grpc::Channel& channel, absl::Time deadline);

// Options of one call.
struct CallOptions {
  // The time at which the call fails with DEADLINE_EXCEEDED. InfiniteFuture, for streams that live
  // long: the call has no deadline.
  absl::Time deadline = absl::InfiniteFuture();
  // W3C trace context to send with the call; empty: none.
  std::string traceparent;

  static CallOptions Within(absl::Duration timeout) { return {absl::Now() + timeout, {}}; }
};

// Sets the deadline and the trace context of `options`, if they are set, in the context of a call.
void Apply(const CallOptions& options, grpc::ClientContext* context);
// Returns the options for calls that this process makes while it serves a call: the served call's
// deadline and trace context.
CallOptions OptionsOf(const grpc::ServerContextBase& context);

// Converts the status of a call that this side did not cancel, like FromGrpc, with two differences.
// A CANCELLED without a reason becomes UNAVAILABLE: gRPC reports it for a call that reaches a
// stopping server. ExplainCallMemory (rpc/call_memory.h) is applied to every other status.
absl::Status OutcomeOf(const grpc::Status& status);

// The number of attempts of Retry, and the delays between the attempts.
struct RetryPolicy {
  int max_attempts = 5;
  absl::Duration initial_delay = absl::Milliseconds(50);
  absl::Duration max_delay = absl::Seconds(2);
};

// Delays that double each time. Each delay is chosen at random between half and all of its nominal
// length. Clients that failed at the same time therefore retry at different times. Not thread-safe.
class Backoff {
 public:
  explicit Backoff(const RetryPolicy& policy) : policy_(policy), delay_(policy.initial_delay) {}

  // Returns the delay before the next attempt. It is at least the delay that the server requested
  // (RetryDelayOf).
  absl::Duration NextDelay(const absl::Status& last_error);
  // Makes the next delay the initial one again. Call this after a success.
  void Reset() { delay_ = policy_.initial_delay; }

 private:
  const RetryPolicy policy_;
  absl::Duration delay_;
  absl::BitGen random_;
};

// Whether a retry of the same call may succeed: after UNAVAILABLE, or after an error with a retry
// delay.
bool IsRetryable(const absl::Status& status);

// Makes an idempotent call until it succeeds or fails with an error that is not IsRetryable. Also
// stops after policy.max_attempts attempts, or if the next attempt would begin after `deadline`.
// Returns the outcome of the last attempt. Blocks between the attempts. A call is idempotent if it
// changes nothing or carries a request_id.
absl::Status Retry(const RetryPolicy& policy, absl::Time deadline,
                   const std::function<absl::Status()>& idempotent_call);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CALL_H_
