// The sockets at which a server takes connections in.
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

// Raises the limit of this process's file descriptors to the highest that it may have. Each
// connection and each large tile of shared memory needs one; the usual limit is 1024. In main.
void RaiseDescriptorLimit();

// Listens, and hands over each connection. gRPC's own listener ends for good, without a word, when
// accept() fails for want of a descriptor. This one goes on.
//
// It keeps a reserve of descriptors for the process itself, for files and for connections that it
// makes: an eighth of its limit, 32 to 256. A connection that would take one of them is closed at
// once; the log says so, and says when connections are taken in again.
//
// Thread-safe.
class Listener {
 public:
  // `descriptor` is a connected socket that does not block, and is the function's from then on.
  // Called on the listener's thread.
  using Handler = std::function<void(int descriptor)>;

  // Binds. `address`: `host:port`, port 0 for a free one, on all addresses of the host's name, and
  // for 0.0.0.0 on those of IPv6 too, where there are any; `unix:/path`, which replaces a file that
  // is there; or `unix-abstract:name`. `refused` counts connections that were closed at once: those
  // over a limit, too.
  // ALREADY_EXISTS for one that is in use or cannot be bound, INVALID_ARGUMENT for other text.
  static absl::StatusOr<std::unique_ptr<Listener>> Create(
      const std::string& address, std::optional<Counter> refused = std::nullopt,
      ConnectionLimits limits = {});
  // Stops.
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // Of `host:port`; 0 for a unix socket.
  int port() const { return port_; }

  // Begins to take connections in; those that came before have waited. Once.
  void Start(Handler handler);
  // Closes the sockets; the handler is not called any more. A second call does nothing.
  void Stop();

 private:
  Listener(std::string address, std::vector<FileDescriptor> sockets, FileDescriptor stop, int port,
           std::string path, std::optional<Counter> refused, ConnectionLimits limits);

  void Run();
  // Of one socket that has some; false if the listener is to rest.
  bool Accept(int socket);
  void Refuse(const std::string& why);

  const std::string address_;
  const int port_;
  const std::string path_;  // of a unix socket, to be removed; may be empty
  const std::optional<Counter> refused_;
  const FileDescriptor stop_;  // readable from Stop on
  Handler handler_;            // constant from Start

  // Of the thread, while it runs.
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
