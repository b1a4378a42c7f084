// The write side of one attach stream.
#ifndef SHARDMESH_WORKER_SERVICE_ATTACH_SINK_H_
#define SHARDMESH_WORKER_SERVICE_ATTACH_SINK_H_

#include <memory>
#include <string>

#include "shardmesh/internal/v1/attach_service.pb.h"

namespace shardmesh::worker {

// Queues the worker's messages to the coordinator. Thread-safe.
class AttachSink {
 public:
  virtual ~AttachSink() = default;

  // Queues a message; messages are sent in the order of the calls. Drops the message if the stream
  // is over. Does not block and makes no callbacks, so the caller may hold any lock.
  virtual void Send(internal::v1::AttachRequest request) = 0;

  // Returns the coordinator's address. Requires that a message of the coordinator has come.
  virtual std::string peer() const = 0;
};

using AttachSinkPtr = std::shared_ptr<AttachSink>;

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SERVICE_ATTACH_SINK_H_
