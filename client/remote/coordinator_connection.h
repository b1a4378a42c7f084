// The connection to a coordinator: stubs, calls with retries, and the encoding of values that
// requests of several services have.
#ifndef SHARDMESH_CLIENT_REMOTE_COORDINATOR_CONNECTION_H_
#define SHARDMESH_CLIENT_REMOTE_COORDINATOR_CONNECTION_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/types/array.h"
#include "client/types/cancellation.h"
#include "client/types/plan_questions.h"
#include "process/thread_pool.h"
#include "rpc/call.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/flight_codec.h"
#include "rpc/codec/link_codec.h"
#include "rpc/codec/plan_codec.h"
#include "rpc/codec/source_codec.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "rpc/tls/credentials.h"
#include "shardmesh/compat/v1/compat_service.grpc.pb.h"
#include "shardmesh/v1/admin_service.grpc.pb.h"
#include "shardmesh/v1/array_service.grpc.pb.h"
#include "shardmesh/v1/catalog_service.grpc.pb.h"
#include "shardmesh/v1/cluster_service.grpc.pb.h"
#include "shardmesh/v1/compute_service.grpc.pb.h"
#include "shardmesh/v1/layout_service.grpc.pb.h"
#include "shardmesh/v1/mesh_service.grpc.pb.h"
#include "shardmesh/v1/operation_service.grpc.pb.h"
#include "shardmesh/v1/reshard_service.grpc.pb.h"
#include "shardmesh/v1/resolve_service.grpc.pb.h"
#include "shardmesh/v1/rule_service.grpc.pb.h"
#include "shardmesh/v1/save_service.grpc.pb.h"
#include "shardmesh/v1/session_service.grpc.pb.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {

// Options for the retries of calls.
struct RetryOptions {
  // See MeshClientOptions.
  bool await_coordinator = false;
  std::function<void(const absl::Status& why)> on_wait = nullptr;
};

// The limits of one call, or of one of its attempts.
struct CallLimit {
  // InfiniteFuture means no deadline, for long-lived streams.
  absl::Time deadline = absl::InfiniteFuture();
  Cancellation* cancellation = nullptr;  // may be null
  std::string traceparent = {};
  // How long an attempt that began before `deadline` waits for its answer after `deadline`. For
  // calls that the coordinator answers at the deadline.
  absl::Duration answer_time = absl::ZeroDuration();

  static CallLimit Within(absl::Duration timeout) { return {.deadline = absl::Now() + timeout}; }
  bool is_cancelled() const { return cancellation != nullptr && cancellation->is_cancelled(); }
};

// A channel to a coordinator with the stubs of its services.
//
// Errors are those of the server, with all details. If the connection failed, the message begins
// with the address.
//
// Call and Repeat retry by the rule of status/retry.h. No attempt begins after the deadline:
//   - until the deadline, if the coordinator recovers or still runs the first request with the same
//     request_id. Likewise if gRPC ended the call because gRPC's memory for calls was exhausted;
//   - a few times (kFewAttempts) if the coordinator is unreachable, does not serve or is
//     overloaded. With RetryOptions::await_coordinator, attempts go on until the deadline if the
//     coordinator is unreachable or does not serve;
//   - never after other errors, even if they have a retry delay: a person or the caller must act
//     first.
// The delay between attempts is never less than the coordinator asks for. Thread-safe.
class CoordinatorConnection {
 public:
  // Connects. INVALID_ARGUMENT: `address` is malformed. UNAVAILABLE, with the address: no
  // connection within 3 s, or within `timeout` if that is shorter. A host may have several
  // addresses, of which one does not answer and another accepts connections. In that case the limit
  // is `timeout`.
  static absl::StatusOr<std::unique_ptr<CoordinatorConnection>> Connect(
      const std::string& address, const rpc::Credentials& credentials,
      absl::Duration timeout = rpc::kConnectTimeout, const RetryOptions& retries = {});
  // Returns a connection over a channel to a server of this process. The server outlives the
  // connection. The connection has no address and never reconnects.
  static std::unique_ptr<CoordinatorConnection> InProcess(
      const std::shared_ptr<grpc::Channel>& channel, const RetryOptions& retries = {});

  CoordinatorConnection(std::string coordinator, const std::shared_ptr<grpc::Channel>& to,
                        RetryOptions retry_options)
      : address(std::move(coordinator)),
        retries(std::move(retry_options)),
        channel(to),
        admin(v1::AdminService::NewStub(channel)),
        arrays(v1::ArrayService::NewStub(channel)),
        catalog(v1::CatalogService::NewStub(channel)),
        cluster(v1::ClusterService::NewStub(channel)),
        compute(v1::ComputeService::NewStub(channel)),
        compat(compat::v1::CompatService::NewStub(channel)),
        layouts(v1::LayoutService::NewStub(channel)),
        meshes(v1::MeshService::NewStub(channel)),
        operations(v1::OperationService::NewStub(channel)),
        reshards(v1::ReshardService::NewStub(channel)),
        resolve(v1::ResolveService::NewStub(channel)),
        rules(v1::RuleService::NewStub(channel)),
        saves(v1::SaveService::NewStub(channel)),
        sessions(v1::SessionService::NewStub(channel)) {}

  // How long each attempt of a call waits until a lost connection is restored.
  static constexpr absl::Duration kReconnectTimeout = absl::Seconds(1);

  const std::string address;  // empty: the server is in this process
  const RetryOptions retries;
  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<v1::AdminService::Stub> admin;
  const std::unique_ptr<v1::ArrayService::Stub> arrays;
  const std::unique_ptr<v1::CatalogService::Stub> catalog;
  const std::unique_ptr<v1::ClusterService::Stub> cluster;
  const std::unique_ptr<v1::ComputeService::Stub> compute;
  const std::unique_ptr<compat::v1::CompatService::Stub> compat;
  const std::unique_ptr<v1::LayoutService::Stub> layouts;
  const std::unique_ptr<v1::MeshService::Stub> meshes;
  const std::unique_ptr<v1::OperationService::Stub> operations;
  const std::unique_ptr<v1::ReshardService::Stub> reshards;
  const std::unique_ptr<v1::ResolveService::Stub> resolve;
  const std::unique_ptr<v1::RuleService::Stub> rules;
  const std::unique_ptr<v1::SaveService::Stub> saves;
  const std::unique_ptr<v1::SessionService::Stub> sessions;

  // Returns the status of a call. Adds the address to the message of UNAVAILABLE, DEADLINE_EXCEEDED
  // and UNIMPLEMENTED if the status has no reason: such an error may come from gRPC and not from
  // the coordinator.
  absl::Status StatusOf(const grpc::Status& from) const {
    absl::Status status = rpc::OutcomeOf(from);
    if (absl::IsUnimplemented(status) && ReasonOf(status) == Reason::kUnspecified) {
      if (address.empty()) {
        return absl::UnimplementedError(
            "this call needs a cluster; questions alone are answered in this process");
      }
      return absl::UnimplementedError(
          StrCat(address, " does not know this call: it is no shardmesh coordinator, or one of an ",
                 "older version"));
    }
    const bool is_own =
        !address.empty() && (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status));
    return is_own && ReasonOf(status) == Reason::kUnspecified
               ? WithContext(status, StrCat("coordinator at ", address))
               : status;
  }

  // Sets up `context` for a call. If the connection was lost, waits until the connection is
  // restored, for at most kReconnectTimeout. Does not register the limit's cancellation;
  // CallContext does that.
  void Prepare(const CallLimit& limit, grpc::ClientContext* context) const {
    if (!address.empty()) {
      rpc::AwaitReconnected(*channel, std::min(limit.deadline, absl::Now() + kReconnectTimeout));
    }
    rpc::Apply({limit.deadline + limit.answer_time, limit.traceparent}, context);
  }

  // Makes a unary call, with the retries of the class comment.
  // Example: Call(sessions, &v1::SessionService::Stub::CloseSession, request, limit, &response)
  template <typename Stub, typename Request, typename Response>
  absl::Status Call(const std::unique_ptr<Stub>& stub,
                    grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request, const CallLimit& limit, Response* response) const;

  // Repeats an idempotent call until it succeeds or must not be retried (see the class comment).
  // The remaining time is measured with the steady clock, so each attempt gets a newly computed
  // wall-clock deadline. CANCELLED (CANCELLED) once the limit's cancellation is cancelled.
  absl::Status Repeat(const CallLimit& limit,
                      const std::function<absl::Status(const CallLimit& attempt)>& call) const;
};

// The gRPC context of one attempt of a call. Cancelling the limit's cancellation cancels the
// context.
class CallContext {
 public:
  CallContext(const CoordinatorConnection& connection, const CallLimit& limit) {
    connection.Prepare(limit, &context_);
    if (limit.cancellation != nullptr) {
      registration_.emplace(limit.cancellation, [this] { context_.TryCancel(); });
    }
  }
  CallContext(const CallContext&) = delete;
  CallContext& operator=(const CallContext&) = delete;

  grpc::ClientContext* get() { return &context_; }
  void TryCancel() { context_.TryCancel(); }

 private:
  grpc::ClientContext context_;
  std::optional<Cancellation::Registration> registration_;  // declared last: uses the context
};

// The error of a call that its caller cancelled.
absl::Status CancelledByCaller();
// Waits for `delay`. The wait ends earlier if `cancellation`, which may be null, is cancelled.
void SleepUnlessCancelled(absl::Duration delay, Cancellation* cancellation);

template <typename Stub, typename Request, typename Response>
absl::Status CoordinatorConnection::Call(const std::unique_ptr<Stub>& stub,
                                         grpc::Status (Stub::*method)(grpc::ClientContext*,
                                                                      const Request&, Response*),
                                         const Request& request, const CallLimit& limit,
                                         Response* response) const {
  return Repeat(limit, [&](const CallLimit& attempt) {
    if (absl::Now() >= attempt.deadline) {  // gRPC would still send the call, with 1 ms to answer
      return StatusOf({grpc::StatusCode::DEADLINE_EXCEEDED, "Deadline Exceeded"});
    }
    CallContext context(*this, attempt);
    return StatusOf(((*stub).*method)(context.get(), request, response));
  });
}

// Returns an id that no other request has.
std::string NewRequestId();

// Runs `write` on another thread and `read` on this one. Thus the two directions of a stream do not
// wait for each other. RESOURCE_EXHAUSTED: the host allows no more threads, and neither has run.
template <typename Write, typename Read>
absl::Status WriteWhileReading(const Write& write, const Read& read) {
  SHARDMESH_ASSIGN_OR_RETURN(std::thread writer, StartThread(write));
  read();
  writer.join();
  return absl::OkStatus();
}

// Upper bound on the bytes of entries in one message of a stream.
inline constexpr size_t kBatchBytes = size_t{256} << 10;

template <typename Value, typename WireSelector>
void EncodeSelector(const std::variant<std::monostate, std::string, Value>& from,
                    WireSelector* to) {
  if (const std::string* name = std::get_if<std::string>(&from)) {
    to->set_name(*name);
  } else if (const Value* value = std::get_if<Value>(&from)) {
    rpc::Encode(*value, to->mutable_value());
  }
}

void EncodeSelector(const ArraySelector& from, v1::ArraySelector* to);

v1::CorrectionPolicy EncodePolicy(bool strict);
v1::Compatibility EncodeCompatibility(Compatibility compatibility);

// Returns the error for an answer of the server that cannot be decoded: INTERNAL, because the
// server is at fault.
absl::Status BadAnswer(const absl::Status& status);
template <typename Wire>
auto DecodeAnswer(const Wire& from) {
  auto decoded = rpc::Decode(from);
  return decoded.ok() ? std::move(decoded)
                      : decltype(decoded)(BadAnswer(std::move(decoded).status()));
}
template <typename Wire, typename Value>
absl::Status DecodeAnswers(const google::protobuf::RepeatedPtrField<Wire>& from,
                           std::vector<Value>* to) {
  to->reserve(static_cast<size_t>(from.size()));
  for (const Wire& wire : from) {
    auto value = DecodeAnswer(wire);
    if (!value.ok()) {
      return std::move(value).status();
    }
    to->push_back(*std::move(value));
  }
  return absl::OkStatus();
}

absl::StatusOr<Array> DecodeArray(const v1::Array& from);
absl::StatusOr<TreeReport> DecodeReport(const v1::LayoutReport& from);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_REMOTE_COORDINATOR_CONNECTION_H_
