// The calling side: channels, deadlines and trace context of calls, and retries of idempotent ones.
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

namespace grpc {
class Channel;
class ChannelInterface;
class ClientContext;
class ServerContextBase;
class Status;
}  // namespace grpc

namespace shardmesh::rpc {

// Message limit of control services, on both sides. Anything longer is streamed in pieces of 1 MiB.
inline constexpr int64_t kMaxControlMessageBytes = int64_t{4} << 20;
// Message limit of worker's services and of the channels to them.
inline constexpr int64_t kMaxDataMessageBytes = (int64_t{1} << 20) + (int64_t{64} << 10);

struct ChannelOptions {
  Credentials credentials = Credentials::Insecure();
  // Who is to answer there; over plaintext nobody is asked.
  ExpectedPeer peer = ExpectedPeer::Coordinator();
  int64_t max_message_bytes = kMaxControlMessageBytes;
  // A quiet connection is probed this often, and is broken when no answer comes within the timeout.
  absl::Duration keepalive_interval = absl::Seconds(10);
  absl::Duration keepalive_timeout = absl::Seconds(5);
  // Channels of one process to one address share a connection unless this says so.
  bool own_connection = false;
};

// A channel that connects when it is first used, and again whenever the connection is lost, at most
// 1 s apart. `address`: `host:port`, `[v6]:port` or `unix:/path`. INVALID_ARGUMENT for other text.
absl::StatusOr<std::shared_ptr<grpc::Channel>> CreateChannel(const std::string& address,
                                                             const ChannelOptions& options = {});

// How long a connection may take to come about.
inline constexpr absl::Duration kConnectTimeout = absl::Seconds(3);

// Blocks until the channel, made for `address` with `options`, is connected. UNAVAILABLE, naming
// the address, if that takes longer than `timeout`, as soon as the connection is refused or what is
// wrong is known (plaintext against TLS, a certificate that is not taken), or half a second after
// it fails otherwise.
absl::Status WaitForConnected(grpc::Channel& channel, std::string_view address,
                              absl::Duration timeout = kConnectTimeout,
                              const ChannelOptions& options = {});

// Before a call on a channel that lost its connection before: where the last attempt to connect
// failed, so that a call would fail at once, waits until another succeeds, but not beyond
// `deadline`. Polls meanwhile: an attempt that nobody polls for does not proceed.
void AwaitReconnected(grpc::Channel& channel, absl::Time deadline);

// What holds for one call.
struct CallOptions {
  // The call fails then with DEADLINE_EXCEEDED. InfiniteFuture: never, for streams that live on.
  absl::Time deadline = absl::InfiniteFuture();
  // W3C trace context to pass on; empty for none.
  std::string traceparent;

  static CallOptions Within(absl::Duration timeout) { return {absl::Now() + timeout, {}}; }
};

// Sets up `context` for a call.
void Apply(const CallOptions& options, grpc::ClientContext* context);
// The options under which calls are made on behalf of a call that this process serves: its deadline
// and trace context.
CallOptions OptionsOf(const grpc::ServerContextBase& context);

// The outcome of a call that this side did not cancel: FromGrpc's, but UNAVAILABLE if it was ended
// without an answer. gRPC tells CANCELLED of a call that reaches a server while that one stops.
absl::Status OutcomeOf(const grpc::Status& status);

// How long to wait between tries.
struct RetryPolicy {
  int max_attempts = 5;
  absl::Duration initial_delay = absl::Milliseconds(50);
  absl::Duration max_delay = absl::Seconds(2);
};

// Delays that double from one to the next, each drawn anew between half and all of its measure, so
// that many who failed together do not come back together. Not thread-safe.
class Backoff {
 public:
  explicit Backoff(const RetryPolicy& policy) : policy_(policy), delay_(policy.initial_delay) {}

  // The delay before the next try; never less than what the server asked for (RetryDelayOf).
  absl::Duration NextDelay(const absl::Status& last_error);
  // After a success: starts again at the initial delay.
  void Reset() { delay_ = policy_.initial_delay; }

 private:
  const RetryPolicy policy_;
  absl::Duration delay_;
  absl::BitGen random_;
};

// Whether the same call may succeed if it is tried again: UNAVAILABLE, or an error that says when
// to come back.
bool IsRetryable(const absl::Status& status);

// Makes an idempotent call until it succeeds, fails for good, the attempts are used up or the next
// try would begin after `deadline`; returns the last outcome. Blocks between the tries. A call is
// idempotent if it changes nothing, or if it carries a request_id.
absl::Status Retry(const RetryPolicy& policy, absl::Time deadline,
                   const std::function<absl::Status()>& idempotent_call);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CALL_H_
