// The write side of one attach stream.
#ifndef SHARDMESH_WORKER_SERVICE_ATTACH_SINK_H_
#define SHARDMESH_WORKER_SERVICE_ATTACH_SINK_H_

#include <memory>
#include <string>

#include "shardmesh/internal/v1/attach_service.pb.h"

namespace shardmesh::worker {

// Takes the worker's messages to the coordinator. Thread-safe.
class AttachSink {
 public:
  virtual ~AttachSink() = default;

  // Queues a message, in the order of the calls. Drops it once the stream is over. Does not block
  // and calls nothing of the caller back: callable with any lock held.
  virtual void Send(internal::v1::AttachRequest request) = 0;

  // Returns the coordinator's address. Requires that a message of the coordinator came.
  virtual std::string peer() const = 0;
};

using AttachSinkPtr = std::shared_ptr<AttachSink>;

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SERVICE_ATTACH_SINK_H_
