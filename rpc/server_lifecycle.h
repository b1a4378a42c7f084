// A gRPC server from start to end: limits, health, reflection, metrics, drain.
#ifndef SHARDMESH_RPC_SERVER_LIFECYCLE_H_
#define SHARDMESH_RPC_SERVER_LIFECYCLE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "rpc/call.h"
#include "rpc/listener.h"
#include "rpc/metrics/metrics.h"
#include "rpc/tls/credentials.h"

namespace grpc {
class Server;
class ServerBuilder;
class Service;
}  // namespace grpc

namespace shardmesh::rpc {

struct ServerOptions {
  // `host:port` (port 0: any free port) or `unix:/path`. Empty: the server does not listen, and
  // calls come only over server().InProcessChannel(). After Drain no such call may begin: gRPC 1.51
  // would crash.
  std::string address = "127.0.0.1:0";
  Credentials credentials = Credentials::Insecure();
  // Allows plaintext on addresses beyond loopback.
  bool insecure = false;
  int64_t max_message_bytes = kMaxControlMessageBytes;
  // Memory that gRPC may use for running calls. If calls need more memory, gRPC refuses connections
  // and cancels random streams. 0: no limit, for servers that bound the memory of their peers
  // themselves.
  int64_t memory_quota_bytes = 0;
  // Maximum number of concurrent calls of one connection. Further calls wait in the client.
  int max_streams = 1024;
  // Keepalive: an idle connection is probed at this interval. The connection is closed if no answer
  // comes within the timeout. Without keepalive, the streams of a peer whose host is cut off would
  // stay open for hours.
  absl::Duration keepalive_interval = absl::Seconds(20);
  absl::Duration keepalive_timeout = absl::Seconds(10);
  // A connection without calls is closed after this time. Its client reconnects for the next call.
  // The age of a connection has no limit, because Attach and Exchange streams live as long as their
  // processes.
  absl::Duration max_idle = absl::Minutes(10);
  // Limits on connections. A connection above a limit is closed at once.
  ConnectionLimits max_connections = {};
  // Whether the server has the health service. gRPC's own threads poll for that service, and so
  // serve all connections of the server. A server that polls its own queue is faster without it.
  bool health = true;
  // Counts and times calls by method and code. Also counts refused connections: those over a limit,
  // and those for which no descriptor was free. Null: no metrics. Must outlive the server.
  Metrics* metrics = nullptr;
  // Called once at the start of Drain: after the server stops being ready and before it refuses
  // calls. The function should end the streams that would not end by themselves. May be null.
  std::function<void()> on_drain = nullptr;
  // Makes further settings of the builder, such as completion queues. May be null.
  std::function<void(grpc::ServerBuilder&)> customize = nullptr;
};

// A service and its full name. For a generated class: `{MyService::service_full_name(), &service}`.
struct NamedService {
  std::string name;
  grpc::Service* service = nullptr;
};

// A running server. Beside the given services it has reflection and, unless disabled, the standard
// health service. In the health service, the name "live" is serving from the start. The names "",
// "ready" and each service's full name follow SetReady. With TLS, the health service is also at
// HealthAddress(port()).
//
// A Listener accepts the connections. Calls with a compressed message fail, because gRPC 1.51 would
// inflate the message before it checks the size. The error code depends on what fails first: gRPC's
// check of the message, or its parsing.
//
// States: not ready <-> ready (SetReady); from either of the two, draining (Drain) -> stopped.
// Thread-safe.
class ServerLifecycle {
 public:
  // Binds the address and serves, not ready yet. `services` must outlive the server. Errors: those
  // of CheckBindAddress; ALREADY_EXISTS: the port is in use or cannot be bound.
  static absl::StatusOr<std::unique_ptr<ServerLifecycle>> Start(
      const ServerOptions& options, absl::Span<const NamedService> services);
  // Stops at once, unless Drain was called.
  ~ServerLifecycle();
  ServerLifecycle(const ServerLifecycle&) = delete;
  ServerLifecycle& operator=(const ServerLifecycle&) = delete;

  // The bound port; 0 for a unix socket, and if the server does not listen.
  int port() const { return port_; }
  // Returns the address with the bound port.
  const std::string& address() const { return address_; }
  grpc::Server& server() { return *server_; }

  // Sets the health status of "", "ready" and the services. No effect while draining.
  void SetReady(bool ready);
  bool ready() const;

  // Sets the health status to not serving, also for "live": the process cannot continue and is
  // about to end. May be called on any thread; does not wait for another thread.
  void Fail();

  // Drains the server: sets it not ready, calls on_drain, refuses new calls (UNAVAILABLE), waits
  // for running calls until `deadline`, then cancels them. Returns when all calls have ended. Must
  // not be called from a reaction (gRPC callback). A second call waits for the first.
  void Drain(absl::Time deadline);

 private:
  ServerLifecycle(std::function<void()> on_drain, std::vector<std::string> health_names);

  // Sets the health status of one name on all servers.
  void SetServing(const std::string& name, bool serving);
  void SetHealth(bool serving);

  const std::function<void()> on_drain_;
  const std::vector<std::string> health_names_;  // names that follow SetReady
  std::string address_;
  int port_ = 0;
  // Each outlives the server that offers it.
  std::unique_ptr<grpc::Service> reflection_;
  std::unique_ptr<grpc::Service> local_reflection_;
  // Each listener passes connections to the server that is declared before the listener, so the
  // listener must end before that server.
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<grpc::Server> local_health_;  // with TLS: see HealthAddress
  std::unique_ptr<Listener> local_listener_;

  mutable absl::Mutex mutex_;
  bool ready_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_SERVER_LIFECYCLE_H_
