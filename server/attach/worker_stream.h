// The interface of the stream to one worker, for code that sends messages to the worker.
#ifndef SHARDMESH_SERVER_ATTACH_WORKER_STREAM_H_
#define SHARDMESH_SERVER_ATTACH_WORKER_STREAM_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "server/attach/worker_message.h"
#include "server/state/membership.h"

namespace shardmesh::server {

// WorkerStreams may call these functions from the first time that the stream calls WorkerStreams
// until WorkerStreams::Leave returns, also after the stream was closed. None of them blocks or
// calls WorkerStreams, except TakeWholeInventory. Thread-safe.
class WorkerStream {
 public:
  virtual ~WorkerStream() = default;

  // Returns the worker's identity; empty before the worker's hello has arrived.
  virtual const std::string& identity() const = 0;
  // Returns the attachment's number from Membership::Attach; 0 before the worker is attached.
  virtual uint64_t attachment() const = 0;

  // Whether the worker's hello lists this feature (Hello.features).
  virtual bool HasFeature(std::string_view feature) const = 0;

  // Queues a message. A closed stream drops the message.
  virtual void Send(WorkerMessage message) = 0;
  // Queues a message in two parts. Many streams share the tail without a copy.
  virtual void SendParts(const WorkerMessage& head, const WorkerMessage& tail) {
    Send(Joined(head, tail));
  }
  // Writes the queued messages and ends the stream with this status. Only the first call counts.
  virtual void Close(absl::Status status) = 0;
  // Ends the stream with this status and drops its queued messages. Used when the worker may no
  // longer read.
  virtual void Cut(const absl::Status& status) = 0;

  // Processes the complete inventory that the stream has brought. InventoryQueue calls this once,
  // on its own thread. The call may block, and may call WorkerStreams.
  virtual void TakeWholeInventory() = 0;
  // Returns the id of a mesh that has ranks in `view`, but had no ranks when this worker's tiles
  // were judged. The tiles on that mesh got no verdict. Returns an empty id if there is no such
  // mesh. If there is one, forgets all meshes without a verdict, because the caller now ends the
  // stream.
  virtual std::string TakeDecidable(const MembershipView& view) = 0;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_ATTACH_WORKER_STREAM_H_
