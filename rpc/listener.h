// The sockets at which a server accepts connections.
#ifndef SHARDMESH_RPC_LISTENER_H_
#define SHARDMESH_RPC_LISTENER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "process/file.h"
#include "rpc/connection_limit.h"
#include "rpc/metrics/metrics.h"

namespace shardmesh::rpc {

// Raises this process's limit of open file descriptors to the allowed maximum. Each connection and
// each large tile in shared memory needs a descriptor, and the usual limit is 1024. Call this in
// main.
void RaiseDescriptorLimit();

// Accepts connections and passes each one to a handler. If accept() fails for lack of a descriptor,
// gRPC's own listener stops for good, without a message. This listener continues.
//
// The listener reserves descriptors for the process's files and outgoing connections: an eighth of
// the limit, but at least 32 and at most 256. It immediately closes a connection that would take a
// reserved descriptor. It logs when it begins to close connections, and when it accepts connections
// again.
//
// Thread-safe.
class Listener {
 public:
  // `descriptor` is a connected non-blocking socket, which the handler owns. Called on the
  // listener's thread.
  using Handler = std::function<void(int descriptor)>;

  // Binds `address`:
  // - `host:port`: all addresses of the host's name; port 0 for a free port. 0.0.0.0 includes the
  //   IPv6 addresses if there are any.
  // - `unix:/path`: replaces an existing file.
  // - `unix-abstract:name`: an abstract socket, without a file.
  // `refused` counts connections that the listener closed at once, including those over a limit.
  //
  // ALREADY_EXISTS for an address that is in use or cannot be bound, INVALID_ARGUMENT for other
  // text.
  static absl::StatusOr<std::unique_ptr<Listener>> Create(
      const std::string& address, std::optional<Counter> refused = std::nullopt,
      ConnectionLimits limits = {});
  // Calls Stop.
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // The bound port of `host:port`; 0 for a unix socket.
  int port() const { return port_; }

  // Starts to accept connections. Clients that connected earlier have waited in the backlog. Call
  // this function once.
  void Start(Handler handler);
  // Closes the sockets. The handler is not called any more. A second call does nothing.
  void Stop();

 private:
  Listener(std::string address, std::vector<FileDescriptor> sockets, FileDescriptor stop, int port,
           std::string path, std::optional<Counter> refused, ConnectionLimits limits);

  void Run();
  // Accepts the connections that wait at one socket. Returns false if the listener must pause.
  bool Accept(int socket);
  void Refuse(const std::string& why);

  const std::string address_;
  const int port_;
  const std::string path_;  // the unix socket's file, which Stop removes; empty if there is none
  const std::optional<Counter> refused_;
  const FileDescriptor stop_;  // readable after Stop
  Handler handler_;            // constant after Start

  // While the thread runs, only the thread uses the following four members.
  std::vector<FileDescriptor> sockets_;
  ConnectionLimit limit_;
  int64_t refused_in_a_row_ = 0;
  absl::Time log_time_ = absl::InfinitePast();

  absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_LISTENER_H_
