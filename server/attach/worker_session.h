// One worker's attachment, which is its stream to the coordinator: the legal sequence of its
// messages, and the reply to each message.
#ifndef SHARDMESH_SERVER_ATTACH_WORKER_SESSION_H_
#define SHARDMESH_SERVER_ATTACH_WORKER_SESSION_H_

#include <atomic>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/attach/worker_hello.h"
#include "server/attach/worker_message.h"
#include "server/attach/worker_stream.h"
#include "server/attach/worker_streams.h"
#include "server/state/array_registry.h"
#include "server/state/membership.h"
#include "server/steps/sequencer.h"

namespace shardmesh::internal::v1 {
class AttachRequest;
class FillFailed;
class Heartbeat;
class Hello;
class InventoryPage;
class Leaving;
class MemoryRequest;
class StepReport;
class TileDamaged;
class TileStaged;
}  // namespace shardmesh::internal::v1

namespace shardmesh::server {

// The transport of a session. Thread-safe.
class AttachWire {
 public:
  virtual ~AttachWire() = default;

  // Returns OK if the caller of the stream is authorised to be this worker; otherwise the status
  // that ends the stream.
  virtual absl::Status CheckCaller(const std::string& identity) const = 0;
  // Reads one message and passes it to WorkerSession::Take. Never called while a read is in
  // progress.
  virtual void Read() = 0;
  // Queues a message. RESOURCE_EXHAUSTED: the queued messages have reached the limit of bytes.
  // Other errors: the stream has ended.
  virtual absl::Status Write(WorkerMessage message) = 0;
  virtual absl::Status WriteParts(const WorkerMessage& head, const WorkerMessage& tail) {
    return Write(Joined(head, tail));
  }
  // Writes the queued messages, then ends the stream. Called once; may delete the session.
  virtual void Finish(absl::Status status) = 0;
  // Breaks the stream: queued messages are dropped.
  virtual void Break() = 0;
};

// A session, as synchronous code:
//   hello = read(); endpoints = verify(hello)
//   attachment = membership.Attach(hello, endpoints); write(welcome)
//   inventory = read() ...
//   on the thread for inventories: verdict = judge(inventory); write(verdict); write(membership)
//   while (report = read()) pass it on
//   membership.Detach(attachment)
// Reads continue one at a time while the inventory waits to be processed, so the session still
// receives heartbeats. When the stream of an attached worker ends, for any reason, the worker
// counts as lost. The exception is a coordinator that is stopping.
//
// Thread-safe, except Take: the wire makes one call of Take at a time. After Begin the wire calls
// Take for each message, and Close when the stream breaks. After Finish, once no other call is in
// progress, the wire calls End.
class WorkerSession final : public WorkerStream {
 public:
  // All arguments outlive the session.
  WorkerSession(WorkerStreams* streams, Sequencer* sequencer, AttachWire* wire);
  WorkerSession(const WorkerSession&) = delete;
  WorkerSession& operator=(const WorkerSession&) = delete;

  // Starts the session: sets the deadline of the hello. Afterwards the wire reads the first
  // message.
  void Begin();
  // Handles a message. Makes the wire read the next message, if one may follow now.
  void Take(const internal::v1::AttachRequest& request);
  // Ends the session. The wire calls no function of the session after End.
  void End();
  bool is_closed() const;

  // WorkerStream.
  const std::string& identity() const override { return hello_.identity; }
  uint64_t attachment() const override;
  bool HasFeature(std::string_view feature) const override;
  void Send(WorkerMessage message) override;
  void SendParts(const WorkerMessage& head, const WorkerMessage& tail) override;
  void Close(absl::Status status) override;
  void Cut(const absl::Status& status) override;
  void TakeWholeInventory() override;
  std::string TakeDecidable(const MembershipView& view) override;

 private:
  // Cuts the stream if its queue is full.
  void CutIfFull(const absl::Status& written);
  // Legal transitions: each state to the next. Take makes the first and the third, Welcome the
  // second, and TakeWholeInventory the last two.
  enum class Phase { kHello, kVerifying, kInventory, kTaking, kJudged, kMember };

  absl::Status Dispatch(const internal::v1::AttachRequest& request);
  absl::Status TakeHello(const internal::v1::Hello& message);
  void Verified(std::vector<std::string> endpoints, std::string failures);
  void Admit(std::vector<std::string> endpoints, const std::string& failures);
  void Welcome();
  absl::Status TakeInventory(uint64_t attachment, const internal::v1::InventoryPage& page);
  absl::Status TakeRestored(uint64_t attachment, const internal::v1::InventoryPage& page);
  absl::StatusOr<std::vector<InventoryTile>> TilesOf(const internal::v1::InventoryPage& page) const;
  absl::Status TakeHeartbeat(uint64_t attachment, const internal::v1::Heartbeat& heartbeat);
  void TakeTileStaged(const internal::v1::TileStaged& staged);
  void TakeTileDamaged(const internal::v1::TileDamaged& damaged);
  void TakeFillFailed(const internal::v1::FillFailed& failed);
  absl::Status TakeMemoryRequest(const internal::v1::MemoryRequest& asked);
  void TakeStepReport(const internal::v1::StepReport& report);
  absl::Status TakeLeaving(const internal::v1::Leaving& leaving);

  // Keeps the session alive until Release, while code outside Take uses it. CANCELLED: the session
  // is closed.
  absl::Status Hold(std::string_view what);
  void Release();
  // Records a sign of life of the worker, with the figures of the last heartbeat.
  absl::Status Beat(uint64_t attachment);
  void SendVerdict(const InventoryVerdict& verdict, bool last);
  void LeftUndecided(std::set<std::string> mesh_ids);

  WorkerStreams* const streams_;
  Sequencer* const sequencer_;
  AttachWire* const wire_;

  std::atomic<Phase> phase_ = Phase::kHello;
  // Used only by Take, one call at a time. The exceptions are `inventory_` and `quarantined_` while
  // phase_ is kTaking: in that phase, only TakeWholeInventory uses these two members.
  WorkerHello hello_;
  std::vector<InventoryTile> inventory_;
  std::vector<std::string> quarantined_;
  absl::Time clock_told_;  // when the coordinator last sent its clock to the worker

  mutable absl::Mutex mutex_;
  uint64_t attachment_ ABSL_GUARDED_BY(mutex_) = 0;
  // Bytes that the worker uses, according to its last heartbeat.
  int64_t used_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  QuarantineCount quarantine_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  // Meshes whose ranks have no workers yet. The worker's tiles on these meshes got no verdict.
  std::set<std::string> undecided_ ABSL_GUARDED_BY(mutex_);
  int holds_ ABSL_GUARDED_BY(mutex_) = 0;              // calls of Hold without their Release
  absl::Status close_status_ ABSL_GUARDED_BY(mutex_);  // status of a Close while holds_ > 0
  std::string end_reason_ ABSL_GUARDED_BY(mutex_) = "its stream broke";
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_ATTACH_WORKER_SESSION_H_
