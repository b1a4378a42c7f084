// A gRPC server from its start to its end: limits, health, reflection, metrics, drain.
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
  // `host:port`, port 0 for a free one; or `unix:/path`. Empty: the server listens nowhere, and
  // calls come over server().InProcessChannel() alone. No such call may begin after Drain:
  // gRPC 1.51 crashes on it.
  std::string address = "127.0.0.1:0";
  Credentials credentials = Credentials::Insecure();
  // Allows plaintext beyond loopback.
  bool insecure = false;
  int64_t max_message_bytes = kMaxControlMessageBytes;
  // Bytes that gRPC may take for the calls under way. Beyond that it refuses connections and
  // cancels streams at random. 0: no limit, for servers that bound their peers themselves.
  int64_t memory_quota_bytes = 0;
  // Calls of one connection at a time; those beyond wait at the client.
  int max_streams = 1024;
  // A quiet connection is probed this often, and broken when no answer comes within the timeout: a
  // peer whose host is cut off would hold its streams for hours otherwise.
  absl::Duration keepalive_interval = absl::Seconds(20);
  absl::Duration keepalive_timeout = absl::Seconds(10);
  // A connection without a call is told to go then; its client connects again when it has one.
  // There is no limit of a connection's age: Attach and Exchange streams live as long as their
  // processes.
  absl::Duration max_idle = absl::Minutes(10);
  // Connections; one beyond is closed at once.
  ConnectionLimits max_connections = {};
  // Whether it has the health service. That one is polled for by threads of gRPC's, which look
  // after every connection of the server: one that polls a queue of its own is quicker without.
  bool health = true;
  // Where calls are counted and timed, by method and code, and connections that were refused for
  // want of descriptors or over a limit; null: nowhere. Outlives the server.
  Metrics* metrics = nullptr;
  // Called once when Drain begins, after the server is no longer ready and before it refuses calls:
  // ends streams that would not end by themselves. May be empty.
  std::function<void()> on_drain = nullptr;
  // Adds to the builder what the rest does not know, such as completion queues. May be empty.
  std::function<void(grpc::ServerBuilder&)> customize = nullptr;
};

// A service and its full name, as `{MyService::service_full_name(), &service}` with the generated
// class.
struct NamedService {
  std::string name;
  grpc::Service* service = nullptr;
};

// A running server. It has, beside the given services, reflection and, unless told otherwise, the
// standard health service, in which "live" serves from the start, and "", "ready" and each
// service's full name follow SetReady. With TLS the health service is at HealthAddress(port()) too.
// Connections come in by a Listener. Calls with a compressed message fail; gRPC 1.51 would inflate
// it before it looks at its size. The code depends on what fails first: gRPC's check, or parsing.
//
// States: not ready -> (SetReady) <-> ready -> draining (Drain) -> stopped. Thread-safe.
class ServerLifecycle {
 public:
  // Binds and serves; not ready yet. `services` outlive the server.
  // Errors: CheckBindAddress's; ALREADY_EXISTS for a port in use (or that cannot be bound).
  static absl::StatusOr<std::unique_ptr<ServerLifecycle>> Start(
      const ServerOptions& options, absl::Span<const NamedService> services);
  // Stops at once if Drain was not called.
  ~ServerLifecycle();
  ServerLifecycle(const ServerLifecycle&) = delete;
  ServerLifecycle& operator=(const ServerLifecycle&) = delete;

  // The port that was bound; 0 for a unix socket, and where the server listens nowhere.
  int port() const { return port_; }
  // The address with the port that was bound.
  const std::string& address() const { return address_; }
  grpc::Server& server() { return *server_; }

  // What health says from now on. No effect once draining.
  void SetReady(bool ready);
  bool ready() const;

  // Health says no from now on, to "live" too: the process cannot go on, and is about to end. Any
  // thread, and without waiting for one.
  void Fail();

  // Not ready; on_drain; refuses new calls (UNAVAILABLE); waits for running ones until `deadline`,
  // then cancels them; returns when all have ended. Must not be called from a reaction. A second
  // call waits for the first.
  void Drain(absl::Time deadline);

 private:
  ServerLifecycle(std::function<void()> on_drain, std::vector<std::string> health_names);

  // On all servers, of one name.
  void SetServing(const std::string& name, bool serving);
  void SetHealth(bool serving);

  const std::function<void()> on_drain_;
  const std::vector<std::string> health_names_;  // that follow SetReady
  std::string address_;
  int port_ = 0;
  // A listener hands its connections to a server, so it ends before that.
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
