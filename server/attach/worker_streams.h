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
#include "process/thread_pool.h"
#include "server/attach/digest_orders.h"
#include "server/attach/endpoint_check.h"
#include "server/attach/file_checks.h"
#include "server/attach/inventory_judge.h"
#include "server/attach/inventory_queue.h"
#include "server/attach/membership_pages.h"
#include "server/attach/quarantine_orders.h"
#include "server/attach/readiness.h"
#include "server/attach/save_access.h"
#include "server/attach/worker_message.h"
#include "server/attach/worker_stream.h"
#include "server/content/digest_transport.h"
#include "server/diagnosis/flight_log.h"
#include "server/state/array_registry.h"
#include "server/state/attach_failures.h"
#include "server/state/definitions.h"
#include "server/state/link_table.h"
#include "server/state/membership.h"
#include "server/state/recovery.h"
#include "server/steps/encoded_step.h"
#include "server/steps/fill_transport.h"
#include "server/steps/mesh_endpoints.h"
#include "server/steps/sequencer.h"

namespace shardmesh::server {

struct WorkerStreamsOptions {
  std::string cluster_id;
  int64_t term = 0;
  std::string token_key;  // signs transfer tokens; the coordinator sends it to workers
  std::string build_version;
  AskEndpoint ask_endpoint = nullptr;  // asks a worker's endpoints for its identity
  // `flight_log` records the steps that heartbeats report, and `link_table` the measured links.
  // Both objects outlive the WorkerStreams.
  FlightLog* flight_log = nullptr;
  LinkTable* link_table = nullptr;
  Clock* clock = nullptr;
  const Recovery* recovery = nullptr;  // outlives the WorkerStreams
  // Called without a lock on the thread of the InventoryQueue, after a worker's inventory was
  // processed. The queue processes the next inventory when this call has returned. May be null.
  std::function<void(std::string_view identity, uint64_t attachment)> joined = nullptr;
  // Called without a lock for each tile of a put that a rank has staged (received, but not
  // committed), before the sequencer gets the report. May be null.
  std::function<void(std::string_view transfer_id, std::string_view identity, int64_t size_bytes)>
      tile_staged = nullptr;
  // Called with the bytes that have arrived of the tiles that the worker has not staged yet.
  std::function<void(std::string_view transfer_id, std::string_view identity, int64_t bytes)>
      tiles_arriving = nullptr;
  // Called without a lock after a worker has reported a damaged tile, which now counts as missing.
  // May be null.
  std::function<void()> damaged = nullptr;
  // Called without a lock, on a thread of its own, if the worker needs this many bytes of memory
  // more, or of its disk if `on_disk`. Releases arrays that are only cached, and returns the bytes
  // that they take there. May be null.
  std::function<int64_t(std::string_view identity, int64_t need_bytes, bool on_disk)> free_memory =
      nullptr;
  // Time for each endpoint of a worker to identify itself. After the first correct answer, the
  // other endpoints have only EndpointCheck::kGrace more.
  absl::Duration verify_timeout = absl::Seconds(3);
  // Time for a new stream to send its hello, and time for the stream to send its complete inventory
  // after the coordinator's welcome.
  absl::Duration hello_timeout = absl::Seconds(10);
  absl::Duration inventory_timeout = absl::Minutes(5);
  // Maximum number of tiles of one inventory, including quarantined tiles. A stream with more tiles
  // is refused.
  int64_t max_inventory_tiles = 2'000'000;
  // The limits of the InventoryQueue: Limits::streams and Limits::bytes.
  int64_t max_inventories = 256;
  int64_t max_inventory_bytes = int64_t{256} << 20;
};

// Calls for one stream, in this order:
//   ExpectWithin (hello) -> ExpectNothing -> AwaitTurn -> ExpectWithin (inventory) ->
//   AwaitInventory -> Arrive -> Join, now a member -> Leave
// Leave may follow each of the other calls. WorkerSession makes these calls. Only members get steps
// and the list of live workers. A member is a worker whose inventory (list of tiles) was processed.
//
// As the StepTransport this class sends the message of a step to all participants. The message
// includes the bytes of the step's plan, unless every participant is known to have the plan.
//
// A new member gets the list of live workers as a snapshot, and then each change (MembershipPages).
// One thread sends the snapshots and the changes. Changes that come close together are sent as one.
//
// Thread-safe. Membership, registry, definition_store and clock outlive this object. All streams
// have left before this object is destroyed.
class WorkerStreams final : public StepTransport,
                            public MeshEndpoints,
                            public FillTransport,
                            public DigestTransport,
                            public QuarantineAccess,
                            public SaveAccess {
 public:
  WorkerStreams(Membership* membership, ArrayRegistry* registry,
                const DefinitionStore* definition_store, WorkerStreamsOptions options);
  ~WorkerStreams() override;

  // Whether the worker has reported, for the newest epoch, that it reaches all its peers.
  bool IsReady(std::string_view identity) const { return readiness_.IsReady(identity); }
  // The failed attempts to attach since the worker was last a member. Empty for workers that the
  // membership does not know.
  AttachFailures::Failures FailedAttachesOf(std::string_view identity) const;

  // Orders the workers that serve this mesh to drop these arrays of the mesh. If the mesh is
  // gone, or other workers served it until recently, orders all members to drop them.
  void Drop(const std::string& mesh_id, const std::vector<std::string>& array_ids);
  // Sends members the changed list of live workers, later and on another thread. The membership's
  // listener calls this.
  void MembershipChanged();
  // Cuts the streams of a lost worker that belong to `attachment`. No effect if the worker has
  // attached again since.
  void WorkerLost(std::string_view identity, uint64_t attachment);
  // Closes the worker's streams, so that the worker attaches again and sends its inventory again.
  // Called when a rank of the mesh moved to this worker or away from it. No effect if no
  // inventory of this worker has reached Arrive.
  void AttachAnew(std::string_view identity, const std::string& mesh_id);
  // Makes these workers send heartbeats at once, as far as they are members.
  void AskForHeartbeats(const std::set<std::string>& identities);
  // Called when the coordinator stops. Workers whose streams end from now on do not count as
  // lost.
  void Stop() { stopping_ = true; }

  // MeshEndpoints.
  absl::Status CheckReady(std::string_view mesh_id) const override;
  absl::StatusOr<std::vector<RankEndpoint>> Endpoints(std::string_view mesh_id) const override;

  // QuarantineAccess.
  int64_t OrderQuarantine(const std::string& identity, const internal::v1::QuarantineOrder& order,
                          QuarantineAnswered answered) override;
  void ForgetQuarantineOrder(int64_t number) override { orders_.Forget(number); }
  void SendVerdict(const std::string& identity, const InventoryVerdict& verdict) override;

  // FillTransport.
  absl::Status CheckCanFill(std::string_view identity) const override;
  absl::Status CheckCanConvert(std::string_view identity) const override;
  int64_t CheckFiles(const std::string& identity, std::string_view files,
                     FilesChecked checked) override;
  void ForgetFileCheck(int64_t number) override { file_checks_.Forget(number); }
  absl::Status SendFill(std::string_view identity, std::string_view message) override;
  absl::Status SendFillParts(std::string_view identity, std::string_view head,
                             const std::shared_ptr<const std::string>& tail) override;
  // DigestTransport.
  int64_t DigestTiles(const std::string& identity, const std::vector<WantedDigest>& tiles,
                      TilesDigested digested) override;
  void ForgetDigests(int64_t number) override { digest_orders_.Forget(number); }
  // SaveAccess.
  void OrderSave(const std::string& identity, const internal::v1::SaveOrder& order,
                 SaveProgressed progressed, SaveAnswered answered) override;

  // StepTransport.
  std::optional<Participant> Start(const WorkRef& work, const EncodedStepPtr& message) override;
  void Commit(const WorkRef& work) override;
  void Abort(const WorkRef& work, const absl::Status& reason) override;

  // The functions below are for WorkerSession.
  const WorkerStreamsOptions& options() const { return options_; }
  Membership& membership() { return *membership_; }
  ArrayRegistry& registry() { return *registry_; }
  const InventoryJudge& judge() const { return judge_; }
  InventoryQueue& inventories() { return inventories_; }
  QuarantineOrders& orders() { return orders_; }
  FileChecks& file_checks() { return file_checks_; }
  DigestOrders& digest_orders() { return digest_orders_; }
  SaveOrderTable& saves() { return saves_; }
  // Calls Options::free_memory, which lists the cache; by the identity of the worker.
  ThreadPool& memory_requests() { return memory_requests_; }
  bool is_stopping() const { return stopping_; }

  // Cuts the stream unless it reaches its next phase within `time`. `phase`: what the stream must
  // deliver, for the error.
  void ExpectWithin(WorkerStream* stream, absl::Duration time, std::string_view phase);
  // Removes the stream's deadline: the stream has reached the expected phase.
  void ExpectNothing(WorkerStream* stream);
  // Removes the stream's deadline and queues its complete inventory (InventoryQueue::TakeIn).
  void AwaitInventory(WorkerStream* stream);
  // Called just before the registry judges the worker's inventory. From now on the stream gets
  // orders to drop arrays.
  void Arrive(WorkerStream* stream);
  // Makes the worker a member over this stream, and cuts its earlier stream.
  void Join(WorkerStream* stream);
  // Removes the stream, which has ended. WorkerStreams no longer calls the stream after this
  // call.
  void Leave(WorkerStream* stream);
  // Records that a worker failed to attach, and why. The caller has checked that the worker may
  // use this identity. No effect for workers that the membership does not know.
  void AttachFailed(const std::string& identity, const absl::Status& status);

  // Closes the stream of a worker that has drained. No effect if the stream has left already;
  // `stream` may then point to a deleted object.
  void CloseDrained(std::string_view identity, const WorkerStream* stream);
  // Processes a member's report of the peers that it does not reach. Ignores reports over other
  // streams than the member's current one.
  void PeersReported(WorkerStream* stream, int64_t epoch,
                     const std::vector<std::string>& unreached);
  void TilesDropped(std::string_view identity, const std::vector<std::string>& array_ids);
  // Records that the worker's tile of the array is damaged.
  void TileDamaged(std::string_view identity, const std::string& array_id);
  // Sends the start message of the step again, now with the plan. No effect if the step has
  // ended.
  void SendPlan(WorkerStream* stream, int64_t sequence);

 private:
  struct Member {
    WorkerStream* stream = nullptr;
    bool told = false;  // a snapshot and every later change was sent to the worker
    // SHA-256 of the plans that the worker is believed to have. The worker asks for a plan that
    // it lacks.
    absl::flat_hash_set<std::string> plans = {};
  };
  // A live step, kept for workers that ask for its plan.
  struct Started {
    WorkNumber number;
    EncodedStepPtr step;
    WorkerMessage with_plan = nullptr;  // the start message; null: not encoded yet
  };
  // The next phase of a stream, and its deadline.
  struct Awaited {
    absl::Time deadline;
    absl::Duration time;
    std::string phase;
  };

  // Callbacks that wait for the answers of a stream that has ended.
  struct Unanswered {
    std::vector<QuarantineAnswered> quarantine;
    std::vector<FilesChecked> files;
    std::vector<TilesDigested> digests;
    std::vector<SaveAnswered> saves;
  };

  Unanswered TakeUnanswered(const WorkerStream* stream);
  // Calls back with the error NotAttached. The caller does not hold mutex_.
  static void Fail(Unanswered unanswered, std::string_view identity);
  WorkerStream* StreamOf(std::string_view identity) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the member's stream; null if the worker has attached over another stream since, as
  // `view` shows, and that stream is no member yet. `view` is newer than the begin of the work that
  // an order belongs to: a later attach ends that work (Sequencer::WorkerAttached).
  WorkerStream* CurrentStreamOf(const MembershipView& view, std::string_view identity) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Like CheckCanFill; sets `*stream` if the result is OK.
  absl::Status FindFiller(const MembershipView& view, std::string_view identity,
                          WorkerStream** stream) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
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
  MembershipPages pages_;  // used only by the thread of TellOfMembership

  // The next five objects synchronise themselves. They may be called under mutex_.
  Readiness readiness_;
  QuarantineOrders orders_;
  FileChecks file_checks_;
  DigestOrders digest_orders_;
  SaveOrderTable saves_;

  mutable absl::Mutex mutex_;
  std::map<std::string, Member, std::less<>> members_ ABSL_GUARDED_BY(mutex_);
  std::set<WorkerStream*> arriving_ ABSL_GUARDED_BY(mutex_);  // between Arrive and Join
  // Streams that are not members yet, with the phase that each must reach next.
  absl::flat_hash_map<WorkerStream*, Awaited> attaching_ ABSL_GUARDED_BY(mutex_);
  AttachFailures failed_attaches_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<int64_t, Started> started_ ABSL_GUARDED_BY(mutex_);  // by sequence number
  bool changed_ ABSL_GUARDED_BY(mutex_) = false;  // whether members may need a new list
  // The view that all members have received; null before the first one.
  std::shared_ptr<const MembershipView> told_view_ ABSL_GUARDED_BY(mutex_);
  // Meshes that other workers served until recently. By mesh id: when the members got the change
  // of workers.
  std::map<std::string, absl::Time, std::less<>> moved_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;

  InventoryQueue inventories_;  // synchronises itself; never called under mutex_
  // Steps of a worker ask one at a time, and five run at most.
  ThreadPool memory_requests_{1, {.waiting = 1'000, .waiting_of_key = 8}};
  std::thread teller_;
  Alarm overdue_;  // last: its destructor waits for CutOverdue
};

// The error while the coordinator stops: UNAVAILABLE (NOT_SERVING), with a retry delay. `hint`
// says what the caller can do.
absl::Status CoordinatorStops(std::string_view hint);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_ATTACH_WORKER_STREAMS_H_
