// Idle connections to workers, kept between the reads of one client.
#ifndef SHARDMESH_CLIENT_REMOTE_WORKER_CONNECTIONS_H_
#define SHARDMESH_CLIENT_REMOTE_WORKER_CONNECTIONS_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/remote/worker_client.h"
#include "process/steady_deadline.h"

namespace shardmesh::client {

// Keeps the connections of finished reads for later reads: a read of a small slice takes less time
// than a new connection. A connection belongs to one process of a worker: a worker that was started
// again gets a new connection.
//
// A kept connection may have broken in the meantime. If its first call fails with UNAVAILABLE,
// connect anew before you count the worker as lost. Thread-safe.
class WorkerConnections {
 public:
  // Maximum number of idle connections; the one that was idle longest is closed first. Bounds the
  // descriptors and the pings of a client of a large mesh.
  static constexpr size_t kMaxIdle = 32;
  // Time after which an idle connection is not used again. It is closed at the next call of Take or
  // Keep, or by the worker.
  static constexpr absl::Duration kMaxIdleTime = absl::Minutes(1);

  // Returns an idle connection to this process of the worker; null if there is none.
  std::unique_ptr<WorkerClient> Take(const std::string& identity, uint64_t incarnation);
  // Keeps a connection whose last call has succeeded.
  void Keep(const std::string& identity, uint64_t incarnation,
            std::unique_ptr<WorkerClient> connection);
  size_t size() const;

 private:
  struct Idle {
    std::string identity;
    uint64_t incarnation = 0;
    SteadyDeadline until;
    std::unique_ptr<WorkerClient> connection;
  };
  // Moves the connections that must be closed to the result. They are closed without the lock.
  std::list<Idle> Excess() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::list<Idle> idle_ ABSL_GUARDED_BY(mutex_);  // the one that was idle longest first
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_REMOTE_WORKER_CONNECTIONS_H_
