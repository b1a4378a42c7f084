// Builds a server, sets its health status, and drains it.
#include "rpc/server_lifecycle.h"

#include <grpc/grpc.h>
#include <grpcpp/ext/health_check_service_server_builder_option.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <optional>
#include <utility>

#include "grpc/health/v1/health.pb.h"
#include "process/host_port.h"
#include "rpc/interceptors.h"
#include "rpc/library_logs.h"
#include "rpc/reflection_service.h"
#include "rpc/transport_args.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {
namespace {

constexpr const char* kLive = "live";
constexpr const char* kReady = "ready";
constexpr const char* kHealthService = "grpc.health.v1.Health";

// Minimum interval of a peer's keepalive pings. Peers ping at the intervals of ChannelOptions;
// gRPC's default minimum is minutes.
constexpr absl::Duration kMinPingInterval = absl::Seconds(1);

int MillisecondsOf(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

using Acceptor = grpc::experimental::ExternalConnectionAcceptor;

// Adds an acceptor, to which a Listener passes its connections. Call this before the server is
// built.
std::unique_ptr<Acceptor> AddAcceptor(grpc::ServerBuilder& builder,
                                      std::shared_ptr<grpc::ServerCredentials> credentials) {
  return builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      std::move(credentials));
}

// Starts to pass the listener's connections to the server. Call this when the server runs.
void Serve(Listener& listener, std::unique_ptr<Acceptor> acceptor) {
  listener.Start([acceptor = std::shared_ptr<Acceptor>(std::move(acceptor))](int descriptor) {
    Acceptor::NewConnectionParameters connection;
    connection.fd = descriptor;
    acceptor->HandleNewConnection(&connection);
  });
}

// Refuses compressed messages. A compressed message may inflate a thousandfold, and gRPC 1.51
// checks the size limit only after it has inflated the message.
void RefuseCompression(grpc::ServerBuilder& builder) {
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  // Without this argument, gRPC inflates the message while it checks the algorithm, not after the
  // check.
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
}

// Returns a server that exists until the process ends. When the last server of a process ends, gRPC
// 1.51 ends the threads of its callback queue, and sometimes aborts in these threads.
grpc::Server* KeptServer() {
  grpc::ServerBuilder builder;
  // gRPC starts no server without a service.
  builder.RegisterService(MakeReflectionService({}).release());
  return builder.BuildAndStart().release();
}

// Enables gRPC's health service. This must happen before the first builder exists.
void EnableHealth() {
  static const grpc::Server* const kept = [] {
    grpc::EnableDefaultHealthCheckService(true);
    TakeLibraryLogs();
    // Links the health service's descriptor into the program, so that reflection can describe it.
    grpc::health::v1::HealthCheckRequest::descriptor();
    return KeptServer();
  }();
  static_cast<void>(kept);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServerLifecycle>> ServerLifecycle::Start(
    const ServerOptions& options, absl::Span<const NamedService> services) {
  const bool listens = !options.address.empty();
  if (listens && !options.credentials.is_secure()) {
    SHARDMESH_RETURN_IF_ERROR(CheckBindAddress(options.address, options.insecure));
  }
  EnableHealth();

  std::optional<Counter> refused;
  if (options.metrics != nullptr) {
    refused = options.metrics->AddCounter("shardmesh_connections_refused_total",
                                          "Connections that were closed at once: too few file "
                                          "descriptors were left, or they were over "
                                          "a limit.");
  }
  std::unique_ptr<Listener> listener;
  if (listens) {
    SHARDMESH_ASSIGN_OR_RETURN(listener,
                               Listener::Create(options.address, refused, options.max_connections));
  }

  std::vector<std::string> service_names;
  grpc::ServerBuilder builder;
  for (const NamedService& service : services) {
    builder.RegisterService(service.service);
    service_names.push_back(service.name);
  }
  std::vector<std::string> described_names = service_names;
  if (options.health) described_names.push_back(kHealthService);
  std::unique_ptr<grpc::Service> reflection = MakeReflectionService(std::move(described_names));
  builder.RegisterService(reflection.get());
  builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  builder.SetMaxSendMessageSize(static_cast<int>(options.max_message_bytes));
  for (const TransportArg& arg : kTransportArgs) {
    builder.AddChannelArgument(arg.name, arg.value);
  }
  RefuseCompression(builder);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             MillisecondsOf(kMinPingInterval));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS,
                             MillisecondsOf(options.keepalive_interval));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                             MillisecondsOf(options.keepalive_timeout));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, MillisecondsOf(options.max_idle));
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
  std::unique_ptr<Acceptor> acceptor =
      listens ? AddAcceptor(builder, options.credentials.server()) : nullptr;

  std::vector<std::string> health_names = {"", kReady};
  health_names.insert(health_names.end(), service_names.begin(), service_names.end());
  auto lifecycle = std::unique_ptr<ServerLifecycle>(
      new ServerLifecycle(options.on_drain, std::move(health_names)));
  lifecycle->reflection_ = std::move(reflection);
  lifecycle->server_ = builder.BuildAndStart();
  if (lifecycle->server_ == nullptr) {
    return absl::InternalError(StrCat("gRPC cannot start a server at ", options.address));
  }
  if (!listens) {
    lifecycle->SetHealth(false);
    return lifecycle;
  }
  lifecycle->address_ = WithPort(options.address, listener->port());
  lifecycle->port_ = listener->port();
  if (options.health && options.credentials.is_secure() && listener->port() != 0) {
    const std::string address = HealthAddress(listener->port());
    SHARDMESH_ASSIGN_OR_RETURN(lifecycle->local_listener_, Listener::Create(address, refused));
    lifecycle->local_reflection_ = MakeReflectionService({kHealthService});
    grpc::ServerBuilder local;
    local.RegisterService(lifecycle->local_reflection_.get());
    RefuseCompression(local);
    std::unique_ptr<Acceptor> local_acceptor =
        AddAcceptor(local, grpc::InsecureServerCredentials());
    lifecycle->local_health_ = local.BuildAndStart();
    if (lifecycle->local_health_ == nullptr) {
      return absl::InternalError(StrCat("gRPC cannot start a server at ", address));
    }
    Serve(*lifecycle->local_listener_, std::move(local_acceptor));
  }
  lifecycle->listener_ = std::move(listener);
  lifecycle->SetHealth(false);
  lifecycle->SetServing(kLive, true);
  Serve(*lifecycle->listener_, std::move(acceptor));
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
  if (listener_ != nullptr) listener_->Stop();
  // Sends GOAWAY to peers, refuses new calls, and cancels the calls that still run at the deadline.
  server_->Shutdown(absl::ToChronoTime(deadline));
  server_->Wait();
  if (local_health_ != nullptr) {
    local_listener_->Stop();
    local_health_->Shutdown(absl::ToChronoTime(absl::Now()));
    local_health_->Wait();
  }
  absl::MutexLock lock(&mutex_);
  stopped_ = true;
}

}  // namespace shardmesh::rpc
