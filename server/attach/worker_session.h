// One worker's attachment: the order of its messages, and the answer to each.
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
class Heartbeat;
class Hello;
class InventoryPage;
class Leaving;
class StepReport;
class TileStaged;
}  // namespace shardmesh::internal::v1

namespace shardmesh::server {

// The transport of a session. Thread-safe.
class AttachWire {
 public:
  virtual ~AttachWire() = default;

  // OK if the other end may speak as this worker; otherwise the status that ends the stream.
  virtual absl::Status CheckCaller(const std::string& identity) const = 0;
  // Reads one message, for WorkerSession::Take. Never called while a read is in progress.
  virtual void Read() = 0;
  // Queues a message. RESOURCE_EXHAUSTED: too many bytes wait. Other errors: the stream has ended.
  virtual absl::Status Write(WorkerMessage message) = 0;
  // Writes the queued messages, then ends the stream. Called once; may delete the session.
  virtual void Finish(absl::Status status) = 0;
  // Breaks the stream: queued messages are dropped.
  virtual void Break() = 0;
};

// A session, written straight:
//   hello = read(); endpoints = verify(hello)
//   attachment = membership.Attach(hello, endpoints); write(welcome)
//   inventory = read() ...
//   on the thread for inventories: verdict = judge(inventory); write(verdict); write(membership)
//   while (report = read()) pass it on
//   membership.Detach(attachment)
// Reads continue one at a time, also while the inventory waits to be processed: the session still
// receives heartbeats. When the stream ends, for any reason, the worker is lost.
//
// Thread-safe, except Take: one call at a time. After Begin the wire calls Take for each message,
// and Close when the stream breaks. After Finish, once no other call is in progress, it calls End.
class WorkerSession final : public WorkerStream {
 public:
  // All outlive the session.
  WorkerSession(WorkerStreams* streams, Sequencer* sequencer, AttachWire* wire);
  WorkerSession(const WorkerSession&) = delete;
  WorkerSession& operator=(const WorkerSession&) = delete;

  // Expects the hello. The wire then reads.
  void Begin();
  // Handles a message. If more may follow at once, makes the wire read the next one.
  void Take(const internal::v1::AttachRequest& request);
  // The last call.
  void End();
  bool is_closed() const;

  // WorkerStream.
  const std::string& identity() const override { return hello_.identity; }
  uint64_t attachment() const override;
  void Send(WorkerMessage message) override;
  void Close(absl::Status status) override;
  void Cut(const absl::Status& status) override;
  void TakeWholeInventory() override;
  std::string TakeDecidable(const MembershipView& view) override;

 private:
  // Legal transitions: each state to the next. Reads make them, except the last two, which
  // TakeWholeInventory makes.
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
  void TakeStepReport(const internal::v1::StepReport& report);
  absl::Status TakeLeaving(const internal::v1::Leaving& leaving);

  // Keeps the session alive while code outside Take uses it; CANCELLED: it is closed.
  absl::Status Hold(std::string_view what);
  void Release();
  // Counts as a sign of life, with the figures of the last heartbeat.
  absl::Status Beat(uint64_t attachment);
  void SendVerdict(const InventoryVerdict& verdict, bool last);
  void LeftUndecided(std::set<std::string> mesh_ids);

  WorkerStreams* const streams_;
  Sequencer* const sequencer_;
  AttachWire* const wire_;

  std::atomic<Phase> phase_ = Phase::kHello;
  // Touched by one Take at a time.
  WorkerHello hello_;
  std::vector<InventoryTile> inventory_;  // while kTaking, TakeWholeInventory's
  std::vector<std::string> quarantined_;  // likewise
  absl::Time clock_told_;                 // when the worker was last told the time

  mutable absl::Mutex mutex_;
  uint64_t attachment_ ABSL_GUARDED_BY(mutex_) = 0;
  // Bytes used, according to the last heartbeat.
  int64_t used_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  QuarantineCount quarantine_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  // Meshes without ranks: the worker's tiles on them were not judged.
  std::set<std::string> undecided_ ABSL_GUARDED_BY(mutex_);
  int holds_ ABSL_GUARDED_BY(mutex_) = 0;              // calls of Hold without their Release
  absl::Status close_status_ ABSL_GUARDED_BY(mutex_);  // of a Close during a hold
  std::string end_reason_ ABSL_GUARDED_BY(mutex_) = "its stream broke";
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_ATTACH_WORKER_SESSION_H_
