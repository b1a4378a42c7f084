// The stream to one worker, as its senders see it.
#ifndef SHARDMESH_SERVER_ATTACH_WORKER_STREAM_H_
#define SHARDMESH_SERVER_ATTACH_WORKER_STREAM_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "server/attach/worker_message.h"
#include "server/state/membership.h"

namespace shardmesh::server {

// The stream takes these calls from its first call of WorkerStreams until WorkerStreams::Leave
// returns, also after it was closed. None of them blocks or calls WorkerStreams. Thread-safe.
class WorkerStream {
 public:
  virtual ~WorkerStream() = default;

  // The worker's identity, once its hello has arrived.
  virtual const std::string& identity() const = 0;
  // The result of Membership::Attach; 0 before.
  virtual uint64_t attachment() const = 0;

  // Queues a message; a stream that is closed drops it.
  virtual void Send(WorkerMessage message) = 0;
  // Writes the queued messages and ends the stream with this status. Only the first call counts.
  virtual void Close(absl::Status status) = 0;
  // Ends the stream and drops queued messages: its worker may not read.
  virtual void Cut(const absl::Status& status) = 0;

  // Processes the complete inventory that the stream has brought. InventoryQueue makes this one
  // call on its own thread; the call may block, and may call WorkerStreams.
  virtual void TakeWholeInventory() = 0;
  // Returns a mesh that had no ranks when the worker's tiles on it came, and has ranks in `view`;
  // empty if none. After such a mesh the stream names no other: it is about to end.
  virtual std::string TakeDecidable(const MembershipView& view) = 0;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_ATTACH_WORKER_STREAM_H_
