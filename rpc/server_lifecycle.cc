// Builds a server, keeps its health, and brings it to its end.
#include "rpc/server_lifecycle.h"

#include <grpc/grpc.h>
#include <grpcpp/ext/health_check_service_server_builder_option.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <utility>

#include "grpc/health/v1/health.pb.h"
#include "rpc/call_interceptors.h"
#include "rpc/host_port.h"
#include "rpc/library_logs.h"
#include "rpc/transport_args.h"
#include "sharding/reason.h"
#include "sharding/status_macros.h"
#include "sharding/str_cat.h"

namespace shardmesh::rpc {
namespace {

constexpr const char* kLive = "live";
constexpr const char* kReady = "ready";

// Peers probe quiet connections as often as ChannelOptions says; gRPC's own limit is minutes.
constexpr absl::Duration kMinPingInterval = absl::Seconds(1);
// A quiet connection is probed this often, and broken when no answer comes within the timeout.
constexpr absl::Duration kKeepaliveInterval = absl::Seconds(20);
constexpr absl::Duration kKeepaliveTimeout = absl::Seconds(10);
constexpr absl::Duration kMaxIdle = absl::Minutes(10);

int MillisecondsOf(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

// gRPC's health service and reflection have to be asked for before the first builder is made.
void EnablePlugins() {
  static const bool once = [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    TakeLibraryLogs();
    // Links the descriptor of the health service, so that reflection can describe it.
    return grpc::health::v1::HealthCheckRequest::descriptor() != nullptr;
  }();
  static_cast<void>(once);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServerLifecycle>> ServerLifecycle::Start(
    const ServerOptions& options, absl::Span<const NamedService> services) {
  if (!options.credentials.is_secure()) {
    SHARDMESH_RETURN_IF_ERROR(CheckBindAddress(options.address, options.insecure));
  }
  EnablePlugins();

  std::vector<std::string> service_names;
  grpc::ServerBuilder builder;
  for (const NamedService& service : services) {
    builder.RegisterService(service.service);
    service_names.push_back(service.name);
  }
  builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  builder.SetMaxSendMessageSize(static_cast<int>(options.max_message_bytes));
  for (const TransportArg& arg : kTransportArgs) {
    builder.AddChannelArgument(arg.name, arg.value);
  }
  // Two servers on one port would share its calls in silence.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             MillisecondsOf(kMinPingInterval));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // A peer whose host is cut off would hold its streams for hours otherwise.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, MillisecondsOf(kKeepaliveInterval));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, MillisecondsOf(kKeepaliveTimeout));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Connections without a call are told to go; the client connects again when it has one. There is
  // no limit of a connection's age: Attach and Exchange streams live as long as their processes.
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, MillisecondsOf(kMaxIdle));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_streams);
  if (options.memory_quota_bytes > 0) {
    builder.SetResourceQuota(
        grpc::ResourceQuota("server").Resize(static_cast<size_t>(options.memory_quota_bytes)));
  }
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> creators;
  creators.push_back(CallInterceptors(options.metrics, service_names));
  builder.experimental().SetInterceptorCreators(std::move(creators));
  if (!options.health) {
    builder.SetOption(std::make_unique<grpc::HealthCheckServiceServerBuilderOption>(nullptr));
  }
  if (options.customize) {
    options.customize(builder);
  }
  int port = 0;
  builder.AddListeningPort(options.address, options.credentials.server(), &port);

  std::vector<std::string> health_names = {"", kReady};
  health_names.insert(health_names.end(), service_names.begin(), service_names.end());
  auto lifecycle = std::unique_ptr<ServerLifecycle>(
      new ServerLifecycle(options.on_drain, std::move(health_names)));
  lifecycle->server_ = builder.BuildAndStart();
  const bool is_unix = IsUnixAddress(options.address);
  if (lifecycle->server_ == nullptr || (!is_unix && port == 0)) {
    return WithReason(
        absl::AlreadyExistsError(StrCat("cannot listen on ", options.address,
                                        "; the port is in use, or the address is not this host's. "
                                        "Stop what listens there, choose another port, or 0 for a "
                                        "free one")),
        Reason::kAlreadyExists);
  }
  lifecycle->address_ = options.address;
  if (!is_unix) {
    SHARDMESH_ASSIGN_OR_RETURN(HostPort bound, ParseHostPort(options.address));
    bound.port = port;
    lifecycle->port_ = port;
    lifecycle->address_ = bound.ToString();
  }
  if (options.health && options.credentials.is_secure() && !is_unix) {
    const std::string address = HealthAddress(port);
    grpc::ServerBuilder local;
    int bound = 0;
    local.AddListeningPort(address, grpc::InsecureServerCredentials(), &bound);
    lifecycle->local_health_ = local.BuildAndStart();
    if (lifecycle->local_health_ == nullptr || bound == 0) {
      return WithReason(
          absl::AlreadyExistsError(StrCat("cannot listen on ", address,
                                          ", where probes ask for health; "
                                          "another process of this host has taken the name")),
          Reason::kAlreadyExists);
    }
  }
  lifecycle->SetHealth(false);
  lifecycle->SetServing(kLive, true);
  return lifecycle;
}

ServerLifecycle::ServerLifecycle(std::function<void()> on_drain,
                                 std::vector<std::string> health_names)
    : on_drain_(std::move(on_drain)), health_names_(std::move(health_names)) {}

ServerLifecycle::~ServerLifecycle() {
  if (server_ != nullptr) {
    Drain(absl::InfinitePast());
  }
}

void ServerLifecycle::SetServing(const std::string& name, bool serving) {
  for (grpc::Server* const server : {server_.get(), local_health_.get()}) {
    auto* const health = server == nullptr ? nullptr : server->GetHealthCheckService();
    if (health != nullptr) health->SetServingStatus(name, serving);
  }
}

void ServerLifecycle::SetHealth(bool serving) {
  for (const std::string& name : health_names_) {
    SetServing(name, serving);
  }
}

void ServerLifecycle::SetReady(bool ready) {
  absl::MutexLock lock(&mutex_);
  if (!draining_ && ready_ != ready) {
    ready_ = ready;
    SetHealth(ready);
  }
}

void ServerLifecycle::Fail() {
  SetServing(kLive, false);
  SetHealth(false);
}

bool ServerLifecycle::ready() const {
  absl::MutexLock lock(&mutex_);
  return ready_;
}

void ServerLifecycle::Drain(absl::Time deadline) {
  {
    absl::MutexLock lock(&mutex_);
    if (draining_) {
      mutex_.Await(absl::Condition(&stopped_));
      return;
    }
    draining_ = true;
    ready_ = false;
    SetHealth(false);
  }
  if (on_drain_) {
    on_drain_();
  }
  // Tells peers to go, refuses new calls, and cancels at the deadline what still runs.
  server_->Shutdown(absl::ToChronoTime(deadline));
  server_->Wait();
  if (local_health_ != nullptr) {
    local_health_->Shutdown(absl::ToChronoTime(absl::Now()));
    local_health_->Wait();
  }
  absl::MutexLock lock(&mutex_);
  stopped_ = true;
}

}  // namespace shardmesh::rpc
