// Idle connections to workers.
#include "client/remote/worker_connections.h"

#include <iterator>
#include <utility>

namespace shardmesh::client {

std::unique_ptr<WorkerClient> WorkerConnections::Take(const std::string& identity,
                                                      uint64_t incarnation) {
  std::list<Idle> closed;
  absl::MutexLock lock(&mutex_);
  closed = Excess();
  // The newest first, so that the others age and close.
  for (auto each = idle_.rbegin(); each != idle_.rend(); ++each) {
    if (each->identity != identity || each->incarnation != incarnation) continue;
    std::unique_ptr<WorkerClient> connection = std::move(each->connection);
    idle_.erase(std::next(each).base());
    return connection;
  }
  return nullptr;
}

void WorkerConnections::Keep(const std::string& identity, uint64_t incarnation,
                             std::unique_ptr<WorkerClient> connection) {
  std::list<Idle> closed;
  absl::MutexLock lock(&mutex_);
  idle_.push_back({.identity = identity,
                   .incarnation = incarnation,
                   .until = SteadyDeadline::After(kMaxIdleTime),
                   .connection = std::move(connection)});
  closed = Excess();
}

size_t WorkerConnections::size() const {
  absl::MutexLock lock(&mutex_);
  return idle_.size();
}

std::list<WorkerConnections::Idle> WorkerConnections::Excess() {
  std::list<Idle> closed;
  while (!idle_.empty() && (idle_.size() > kMaxIdle || idle_.front().until.is_over())) {
    closed.splice(closed.end(), idle_, idle_.begin());
  }
  return closed;
}

}  // namespace shardmesh::client
