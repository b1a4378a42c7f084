// The attached workers: their streams, and all messages that the coordinator sends over them.
#ifndef SHARDMESH_SERVER_ATTACH_WORKER_STREAMS_H_
#define SHARDMESH_SERVER_ATTACH_WORKER_STREAMS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "process/clock.h"
#include "server/attach/endpoint_check.h"
#include "server/attach/inventory_judge.h"
#include "server/attach/inventory_queue.h"
#include "server/attach/membership_pages.h"
#include "server/attach/quarantine_orders.h"
#include "server/attach/readiness.h"
#include "server/attach/worker_message.h"
#include "server/attach/worker_stream.h"
#include "server/state/array_registry.h"
#include "server/state/attach_failures.h"
#include "server/state/definitions.h"
#include "server/state/link_table.h"
#include "server/state/membership.h"
#include "server/state/recovery.h"
#include "server/steps/encoded_step.h"
#include "server/steps/flight_log.h"
#include "server/steps/mesh_endpoints.h"
#include "server/steps/sequencer.h"

namespace shardmesh::server {

struct WorkerStreamsOptions {
  std::string cluster_id;
  int64_t term = 0;
  std::string token_key;  // signs transfer tokens; workers get it
  std::string build_version;
  AskEndpoint ask_endpoint = nullptr;  // asks a worker's endpoints for its identity
  // Receive the reports of heartbeats on steps and links. Both outlive the streams.
  FlightLog* flight_log = nullptr;
  LinkTable* link_table = nullptr;
  Clock* clock = nullptr;
  const Recovery* recovery = nullptr;  // outlives the streams
  // Called without a lock after a worker's inventory was processed, on the thread for inventories:
  // the next inventory waits for the call. May be null.
  std::function<void(std::string_view identity)> joined = nullptr;
  // Called without a lock for each tile of a put that a rank has staged, before the sequencer gets
  // its report. May be null.
  std::function<void(std::string_view transfer_id, int64_t size_bytes)> tile_staged = nullptr;
  // Time for an endpoint to identify itself, while no endpoint has answered yet.
  absl::Duration verify_timeout = absl::Seconds(3);
  // Time for a stream to bring its hello, and then its complete inventory.
  absl::Duration hello_timeout = absl::Seconds(10);
  absl::Duration inventory_timeout = absl::Minutes(5);
  // Most tiles of an inventory; a stream that brings more is refused.
  int64_t max_inventory_tiles = 2'000'000;
  // See InventoryQueue::Limits.
  int64_t max_inventories = 256;
  int64_t max_inventory_bytes = int64_t{256} << 20;
};

// A stream goes
//   ExpectWithin (hello) -> ExpectNothing -> AwaitTurn -> ExpectWithin (inventory) ->
//   AwaitInventory -> Arrive -> Join, now a member -> Leave
// and from each of these to Leave. WorkerSession makes these calls. Only members get steps and
// memberships.
//
// As the StepTransport it sends the message of a step to all participants. The plan's bytes are
// included until each participant is known to have the plan.
//
// A new member gets the list of live workers as a snapshot, and then each change (MembershipPages).
// A thread sends them; changes that come at once are sent together.
//
// Thread-safe. Membership, registry, definition_store and clock outlive it; all streams have left
// before its destructor.
class WorkerStreams final : public StepTransport, public MeshEndpoints, public QuarantineAccess {
 public:
  WorkerStreams(Membership* membership, ArrayRegistry* registry,
                const DefinitionStore* definition_store, WorkerStreamsOptions options);
  ~WorkerStreams() override;

  // Whether the worker reaches all its peers, as of the newest epoch.
  bool IsReady(std::string_view identity) const { return readiness_.IsReady(identity); }
  // The failed attempts to attach since the worker was last a member; only workers that the
  // membership knows.
  AttachFailures::Failures FailedAttachesOf(std::string_view identity) const;

  // Orders the workers that serve this mesh to drop these arrays of it. If other workers served the
  // mesh until a moment ago, orders all workers.
  void Drop(const std::string& mesh_id, const std::vector<std::string>& array_ids);
  // Makes members get the list of live workers. For the membership's listener.
  void MembershipChanged();
  // The worker of this attachment is lost: cuts its stream.
  void WorkerLost(std::string_view identity, uint64_t attachment);
  // The worker now serves a rank that another worker served, or no longer serves one: it brings its
  // inventory again. No effect if it has brought none.
  void AttachAnew(std::string_view identity, const std::string& mesh_id);
  // The coordinator stops. Workers whose streams end from now on do not count as lost.
  void Stop() { stopping_ = true; }

  // MeshEndpoints.
  absl::Status CheckReady(std::string_view mesh_id) const override;
  absl::StatusOr<std::vector<RankEndpoint>> Endpoints(std::string_view mesh_id) const override;

  // QuarantineAccess.
  int64_t OrderQuarantine(const std::string& identity, const internal::v1::QuarantineOrder& order,
                          QuarantineAnswered answered) override;
  void ForgetQuarantineOrder(int64_t number) override { orders_.Forget(number); }
  void SendVerdict(const std::string& identity, const InventoryVerdict& verdict) override;

  // StepTransport.
  void Start(const WorkRef& work, const EncodedStepPtr& message) override;
  void Commit(const WorkRef& work) override;
  void Abort(const WorkRef& work, const absl::Status& reason) override;

  // For the sessions.
  const WorkerStreamsOptions& options() const { return options_; }
  Membership& membership() { return *membership_; }
  ArrayRegistry& registry() { return *registry_; }
  const InventoryJudge& judge() const { return judge_; }
  InventoryQueue& inventories() { return inventories_; }
  QuarantineOrders& orders() { return orders_; }
  bool is_stopping() const { return stopping_; }

  // Cuts the stream unless it reaches its next phase within `time`.
  void ExpectWithin(WorkerStream* stream, absl::Duration time, std::string_view phase);
  // The stream has reached the expected phase.
  void ExpectNothing(WorkerStream* stream);
  // The stream has brought its complete inventory: InventoryQueue::TakeIn, without a deadline.
  void AwaitInventory(WorkerStream* stream);
  // The verdict on the worker's inventory is next: the stream gets orders to drop from now on.
  void Arrive(WorkerStream* stream);
  // The worker is a member from now on, over this stream. Its earlier stream is cut.
  void Join(WorkerStream* stream);
  // The stream has ended; it is not called any more.
  void Leave(WorkerStream* stream);
  // Records that a worker failed to attach. The caller has checked its identity and its right to
  // use it. No effect for workers that the membership does not know.
  void AttachFailed(const std::string& identity, const absl::Status& status);

  // The worker has drained: closes the stream, unless it has left already. `stream` may be deleted
  // by then.
  void CloseDrained(std::string_view identity, const WorkerStream* stream);
  // Processes a report of a member over its current stream. Ignores other reports.
  void PeersReported(WorkerStream* stream, int64_t epoch,
                     const std::vector<std::string>& unreached);
  void TilesDropped(std::string_view identity, const std::vector<std::string>& array_ids);
  // Sends the step again, with its plan. No effect if the step has ended.
  void SendPlan(WorkerStream* stream, int64_t sequence);

 private:
  struct Member {
    WorkerStream* stream = nullptr;
    bool told = false;  // it has a snapshot, and each change since
    // Hashes of plans that it has. It asks for a plan that it was wrongly believed to have.
    absl::flat_hash_set<std::string> plans = {};
  };
  // A live step, for a worker that asks for the plan.
  struct Started {
    WorkNumber number;
    EncodedStepPtr step;
    WorkerMessage with_plan = nullptr;  // null: was not sent yet
  };
  // The next phase of a stream, and its deadline.
  struct Awaited {
    absl::Time deadline;
    absl::Duration time;
    std::string phase;
  };

  WorkerStream* StreamOf(std::string_view identity) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End(const WorkRef& work, const absl::Status& status);
  void TellOfMembership();
  void EndUndecided(const MembershipView& view);
  bool TellSome(const MembershipView& view, bool has_change, std::optional<std::string>* last);
  void CutOverdue();

  Membership* const membership_;
  ArrayRegistry* const registry_;
  const DefinitionStore* const definition_store_;
  const WorkerStreamsOptions options_;
  const InventoryJudge judge_;
  std::atomic<bool> stopping_ = false;
  MembershipPages pages_;  // of the teller's thread

  // Synchronise themselves; may be called under mutex_.
  Readiness readiness_;
  QuarantineOrders orders_;

  mutable absl::Mutex mutex_;
  std::map<std::string, Member, std::less<>> members_ ABSL_GUARDED_BY(mutex_);
  std::set<WorkerStream*> arriving_ ABSL_GUARDED_BY(mutex_);  // between Arrive and Join
  // Streams that are no members yet, and their next phases.
  absl::flat_hash_map<WorkerStream*, Awaited> attaching_ ABSL_GUARDED_BY(mutex_);
  AttachFailures failed_attaches_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<int64_t, Started> started_ ABSL_GUARDED_BY(mutex_);  // by sequence number
  bool changed_ ABSL_GUARDED_BY(mutex_) = false;  // a member may need an update
  // All members have received it; null before the first.
  std::shared_ptr<const MembershipView> told_view_ ABSL_GUARDED_BY(mutex_);
  // Meshes that other workers served until recently, and when their members got the change.
  std::map<std::string, absl::Time, std::less<>> moved_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;

  InventoryQueue inventories_;  // synchronises itself; not to be called under mutex_
  std::thread teller_;
  Alarm overdue_;  // last: its destructor waits for CutOverdue
};

// UNAVAILABLE (NOT_SERVING), with a retry delay: the coordinator stops; `hint` is the remedy.
absl::Status CoordinatorStops(std::string_view hint);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_ATTACH_WORKER_STREAMS_H_
