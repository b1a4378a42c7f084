// Channels, contexts of calls, and the retry loop.
#include "rpc/call.h"

#include <grpc/grpc.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/channel_arguments.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "process/clock.h"
#include "process/host_port.h"
#include "process/steady_deadline.h"
#include "rpc/call_memory.h"
#include "rpc/codec/status.h"
#include "rpc/connect.h"
#include "rpc/tls/dial.h"
#include "rpc/transport_args.h"
#include "status/detail.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {
namespace {

constexpr const char* kTraceparent = "traceparent";
// Time limit for one attempt to connect. A caller that waits for the connection may give up
// earlier.
constexpr absl::Duration kAttemptTimeout = absl::Seconds(10);

// gRPC 1.51 reads connect()'s errno only after other system calls, which may have changed errno. In
// that case gRPC treats a connection in progress as failed (once in a few thousand new processes).
// If a server listens at the address, the channel gets this time for a second attempt, which starts
// after 80 to 120 ms.
constexpr absl::Duration kSecondAttempt = absl::Milliseconds(500);

// Extra time after the connect timeout: to dial the address once more, to see whether the server
// closes the connection at once, and for the channel to report its state.
constexpr absl::Duration kLastLook = absl::Milliseconds(100);
// Part of the connect timeout in which the host's addresses are dialled, to find out which
// addresses answer.
constexpr absl::Duration kDialTime = absl::Seconds(1);
// A server that accepts a connection may need this long to answer. After a shorter wait, its
// silence says nothing about the server.
constexpr absl::Duration kLeastToJudge = absl::Milliseconds(200);
// Interval at which a wait for a connection calls `is_cancelled`.
constexpr absl::Duration kCancellationInterval = absl::Milliseconds(50);

// Converts to milliseconds; negative durations give 0.
int Milliseconds(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(std::max(duration, absl::ZeroDuration())));
}

std::string DoNotAnswer(const std::vector<std::string>& addresses) {
  return StrCat(StrJoin(addresses, ", "),
                addresses.size() == 1 ? " does not answer" : " do not answer");
}

// Whether the listener at `address` accepts connections and closes them without sending a byte. A
// gRPC server would send the first bytes.
bool ClosesAtOnce(std::string_view address) {
  const absl::Time deadline = absl::Now() + kLastLook;
  const absl::StatusOr<FileDescriptor> dialled = Dial(address, deadline);
  char first = 0;
  return dialled.ok() && AwaitReady(dialled->get(), POLLIN, deadline) &&
         recv(dialled->get(), &first, sizeof(first), MSG_DONTWAIT) <= 0;
}

// Waits until the channel leaves `state`, and returns true. Returns false at `deadline`, or at most
// kCancellationInterval after `is_cancelled`, if given, begins to return true.
bool AwaitChange(grpc::Channel& channel, grpc_connectivity_state state,
                 const SteadyDeadline& deadline, const std::function<bool()>& is_cancelled) {
  if (!is_cancelled) return channel.WaitForStateChange(state, absl::ToChronoTime(deadline.wall()));
  while (!is_cancelled()) {
    const absl::Duration slice = std::min(deadline.left(), kCancellationInterval);
    if (channel.WaitForStateChange(state, absl::ToChronoTime(absl::Now() + slice))) return true;
    if (deadline.is_over()) break;
  }
  return false;
}

// Returns the host's addresses that do not answer, as the end of a sentence; empty if all answer.
std::string Silent(const DialledAddresses& dialled) {
  return dialled.silent.empty() ? "" : StrCat("; of its addresses ", DoNotAnswer(dialled.silent));
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> CreateChannel(const std::string& address,
                                                             const ChannelOptions& options) {
  SHARDMESH_RETURN_IF_ERROR(CheckAddress(address));
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  args.SetMaxSendMessageSize(static_cast<int>(options.max_message_bytes));
  for (const TransportArg& arg : kTransportArgs) {
    args.SetInt(arg.name, arg.value);
  }
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(options.keepalive_interval));
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(options.keepalive_timeout));
  args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // Despite the option's name, gRPC uses its value as the time limit of an attempt to connect.
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, Milliseconds(kAttemptTimeout));
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, options.own_connection ? 1 : 0);
  // A process may restart on another host, so the address behind a host name may change soon.
  args.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 1000);
  // The function Retry retries calls. gRPC's own retries would buffer every message of a stream.
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // Ignores the environment's proxy: it is for the web, not for traffic inside a cluster.
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address, options.credentials.channel(options.peer), args);
}

absl::Status WaitForConnected(grpc::Channel& channel, std::string_view address,
                              const ConnectOptions& wait, const ChannelOptions& options) {
  DialledAddresses dialled;
  const auto unavailable = [&](std::string_view why, std::string_view hint) {
    return absl::UnavailableError(
        StrCat("cannot reach ", address, ": ", why, Silent(dialled), hint));
  };
  constexpr std::string_view kHint = "; is it running, and is the address right?";
  const auto end = SteadyDeadline::After(std::max(wait.limit, wait.timeout));
  // `time`: length of the whole wait, which error messages show. `limit`: when the whole wait ends.
  absl::Duration time = std::max(wait.timeout, absl::ZeroDuration());
  auto limit = SteadyDeadline::After(time);
  // When the wait for the channel ends. The time from then until `limit` is reserved for finding
  // out which addresses answer.
  auto deadline = SteadyDeadline::After(time - std::min(kDialTime, time / 2));
  bool has_dialled = false;
  bool failed = false;
  const auto is_cancelled = [&wait] { return wait.is_cancelled && wait.is_cancelled(); };
  const auto cancelled = [address] {
    return absl::CancelledError(StrCat("the connection to ", address, " is no longer wanted"));
  };
  if (is_cancelled()) return cancelled();
  grpc_connectivity_state state = channel.GetState(/*try_to_connect=*/true);
  while (state != GRPC_CHANNEL_READY) {
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE && !failed) {
      failed = true;
      const absl::Status accepts =
          Dial(address, std::min(limit.wall(), absl::Now() + kSecondAttempt)).status();
      if (absl::IsNotFound(accepts)) {
        return unavailable(ToStd(accepts.message()), "; is the address right?");
      }
      if (!accepts.ok()) {
        return unavailable("the connection was refused or failed", kHint);
      }
      if (const std::string found =
              DiagnoseConnection(address, options.credentials, options.peer, limit.wall());
          !found.empty()) {
        return unavailable(found, "");
      }
      deadline = SteadyDeadline::After(std::min(limit.left(), kSecondAttempt));
    }
    if (state == GRPC_CHANNEL_SHUTDOWN) {
      return unavailable("the channel was shut down", "");
    }
    if (!AwaitChange(channel, state, deadline, wait.is_cancelled)) {
      if (is_cancelled()) return cancelled();
      if (!failed && !has_dialled) {
        has_dialled = true;
        dialled = DialEach(address, limit.wall());
        if (!dialled.accepting.empty() && !dialled.silent.empty() && wait.limit > wait.timeout) {
          const auto silent = static_cast<int64_t>(dialled.silent.size());
          const absl::Duration more =
              std::min(end.left(), kAttemptTimeout * silent + kConnectTimeout);
          time += more;
          limit = SteadyDeadline::After(more);
          if (wait.on_wait) {
            wait.on_wait(
                absl::UnavailableError(StrCat(address, ": ", DoNotAnswer(dialled.silent),
                                              "; now trying ", StrJoin(dialled.accepting, ", "))));
          }
        }
        // While this thread dialled, nobody polled for the channel. Give the channel time to report
        // its state.
        const absl::Duration least = dialled.silent.empty() ? absl::ZeroDuration() : kLastLook;
        deadline = SteadyDeadline::After(std::max(limit.left(), least));
        state = channel.GetState(/*try_to_connect=*/true);
        continue;
      }
      const bool accepts =
          failed || !dialled.accepting.empty() || Dial(address, absl::Now() + kLastLook).ok();
      if (accepts && ClosesAtOnce(address)) {
        return unavailable("the process there closes connections at once",
                           ": it is short of file descriptors (its log says so; raise ulimit -n), "
                           "or it is another server");
      }
      const std::string why = failed ? std::string("the connection failed")
                              : time < absl::Microseconds(1)
                                  ? std::string("no time was left to connect")
                                  : StrCat("no connection within ", FormatRounded(time));
      if (accepts && !failed && time < kLeastToJudge) {
        return unavailable(why, "; a process accepts connections there: give it more time");
      }
      return unavailable(
          why,
          accepts ? "; a process accepts connections there, but does not answer as shardmesh does: "
                    "it is another server, hangs, or is short of file descriptors"
                  : kHint);
    }
    state = channel.GetState(/*try_to_connect=*/true);
  }
  return absl::OkStatus();
}

absl::Status WaitForConnected(grpc::Channel& channel, std::string_view address,
                              absl::Duration timeout, const ChannelOptions& options) {
  return WaitForConnected(channel, address, ConnectOptions{.timeout = timeout}, options);
}

void AwaitReconnected(grpc::Channel& channel, absl::Time deadline) {
  grpc_connectivity_state state = channel.GetState(/*try_to_connect=*/true);
  if (state != GRPC_CHANNEL_TRANSIENT_FAILURE) {
    return;  // no failed attempt: a call waits for the attempt in progress, and polls itself
  }
  while (state != GRPC_CHANNEL_READY && state != GRPC_CHANNEL_SHUTDOWN &&
         channel.WaitForStateChange(state, absl::ToChronoTime(deadline))) {
    state = channel.GetState(/*try_to_connect=*/true);
  }
}

void Apply(const CallOptions& options, grpc::ClientContext* context) {
  if (options.deadline != absl::InfiniteFuture()) {
    context->set_deadline(absl::ToChronoTime(options.deadline));
  }
  if (!options.traceparent.empty()) {
    context->AddMetadata(kTraceparent, options.traceparent);
  }
}

CallOptions OptionsOf(const grpc::ServerContextBase& context) {
  CallOptions options;
  if (context.deadline() != std::chrono::system_clock::time_point::max()) {
    options.deadline = absl::FromChrono(context.deadline());
  }
  const auto& metadata = context.client_metadata();
  if (const auto found = metadata.find(kTraceparent); found != metadata.end()) {
    options.traceparent.assign(found->second.data(), found->second.size());
  }
  return options;
}

absl::Status OutcomeOf(const grpc::Status& status) {
  absl::Status outcome = FromGrpc(status);
  if (absl::IsCancelled(outcome) && ReasonOf(outcome) == Reason::kUnspecified) {
    return absl::UnavailableError(
        "the process ended the call without an answer; it may be stopping: try again when it is "
        "back");
  }
  return ExplainCallMemory(std::move(outcome));
}

absl::Duration Backoff::NextDelay(const absl::Status& last_error) {
  const absl::Duration delay = delay_ * absl::Uniform(random_, 0.5, 1.0);
  delay_ = std::min(delay_ * 2, policy_.max_delay);
  return std::max(delay, RetryDelayOf(last_error).value_or(absl::ZeroDuration()));
}

bool IsRetryable(const absl::Status& status) {
  return absl::IsUnavailable(status) || RetryDelayOf(status).has_value();
}

absl::Status Retry(const RetryPolicy& policy, absl::Time deadline,
                   const std::function<absl::Status()>& idempotent_call) {
  const auto until = SteadyDeadline::At(deadline);
  Backoff backoff(policy);
  for (int attempt = 1;; ++attempt) {
    absl::Status status = idempotent_call();
    if (!IsRetryable(status) || attempt >= policy.max_attempts) {
      return status;
    }
    const absl::Duration delay = backoff.NextDelay(status);
    if (delay >= until.left()) {
      return status;
    }
    absl::SleepFor(delay);
  }
}

}  // namespace shardmesh::rpc
