// Runs resizes: one thread for each, which starts reshards and changes the definitions of meshes.
#include "server/reshard/resize_runner.h"

#include <algorithm>
#include <optional>
#include <set>

#include "absl/cleanup/cleanup.h"
#include "absl/synchronization/notification.h"
#include "process/failpoint.h"
#include "process/log.h"
#include "process/thread_pool.h"
#include "rpc/codec/field_check.h"
#include "server/reshard/partial_sums.h"
#include "server/reshard/reshard_call.h"
#include "server/state/request_index.h"
#include "server/steps/mesh_endpoints.h"
#include "server/steps/run_room.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

constexpr RequestMessages kResizeMessages = {
    .reused = "request_id \"$0\" was used for another resize; draw a new one",
    .running = "the first request with request_id \"$0\" is still running; retry",
    .python_type = "ValueError"};
constexpr absl::Duration kPollInterval = absl::Milliseconds(20);
// The longest pause between two attempts to empty a mesh.
constexpr absl::Duration kMaxPause = absl::Seconds(1);
// A resize renews the lease of its session at least this often.
constexpr absl::Duration kRenewInterval = absl::Minutes(1);
// How long a resize waits until the workers have dropped the tiles of released arrays.
constexpr absl::Duration kDropTimeout = absl::Seconds(5);

bool SameAxes(const std::vector<MeshAxis>& one, const std::vector<MeshAxis>& other) {
  return std::equal(
      one.begin(), one.end(), other.begin(), other.end(),
      [](const MeshAxis& a, const MeshAxis& b) { return a.name == b.name && a.size == b.size; });
}

const Mesh& MeshOfDefinition(const Definition& definition) {
  return std::get<MeshDefinition>(definition.value).mesh;
}

}  // namespace

// One resize. Execute runs on a thread of its own; Cancel and Stop on any thread.
class ResizeRunner::Run {
 public:
  Run(const ResizeParts& parts, ResizeCall call, PlannedResize plan)
      : parts_(parts),
        call_(std::move(call)),
        plan_(std::move(plan)),
        is_committing_(plan_.has_shape) {}

  // Call it before Execute.
  void SetOperation(std::string operation_id) { operation_id_ = std::move(operation_id); }

  absl::Status Execute() {
    SHARDMESH_ASSIGN_OR_RETURN(
        const Session session,
        parts_.sessions->Open(call_.caller, StrCat("resize of mesh ", call_.mesh_id),
                              kMaxSessionTtl));
    session_id_ = session.id;
    const absl::Cleanup close = [this] { parts_.sessions->Close(session_id_).IgnoreError(); };
    const absl::Status status = Forward();
    if (status.ok() || is_changed_ || plan_.has_shape || IsStopped()) return status;
    return GoBack(status);
  }

  absl::Status Cancel(const absl::Status& reason) {
    ReshardRunner::RunPtr running;
    {
      absl::MutexLock lock(&mutex_);
      if (is_committing_) {
        return absl::FailedPreconditionError(ToAbsl(
            StrCat("the mesh \"", call_.mesh_id,
                   "\" has changed, and its arrays follow; watch the resize until it ends")));
      }
      if (!interrupted_.ok() || is_going_back_) return absl::OkStatus();
      interrupted_ = reason;
      running = reshard_;
    }
    if (running != nullptr) ReshardRunner::Cancel(running, reason);
    return absl::OkStatus();
  }

  void Stop(const absl::Status& reason) {
    ReshardRunner::RunPtr running;
    {
      absl::MutexLock lock(&mutex_);
      is_stopped_ = true;
      interrupted_ = reason;
      running = reshard_;
    }
    if (running != nullptr) ReshardRunner::Cancel(running, reason);
  }

  // Returns the workers of both shapes, and those that the next step of the resize waits for.
  OperationWorkers Workers() const {
    OperationWorkers workers{.taking_part = {plan_.workers.begin(), plan_.workers.end()}};
    if (plan_.definition != nullptr) {
      for (const std::string& each : WorkersOf(*plan_.definition)) workers.taking_part.insert(each);
    }
    absl::MutexLock lock(&mutex_);
    workers.waiting_for = awaited_;
    // A worker that is not ready may wait for another one, which it does not reach.
    if (awaits_readiness_) workers.sources = workers.taking_part;
    return workers;
  }

  // Whether the resize ends without the new shape: it was cancelled, or moves arrays back.
  bool is_giving_up() const {
    absl::MutexLock lock(&mutex_);
    return !interrupted_.ok() || is_going_back_;
  }

  void Over() { is_over_.store(true, std::memory_order_release); }
  bool is_over() const { return is_over_.load(std::memory_order_acquire); }

 private:
  absl::Status Forward() {
    if (!plan_.has_shape) {
      SHARDMESH_RETURN_IF_ERROR(Define());
      SHARDMESH_PASSES("resize.mesh_defined");
      SHARDMESH_RETURN_IF_ERROR(AwaitReady(plan_.auxiliary_id));
      SHARDMESH_RETURN_IF_ERROR(Empty(call_.mesh_id, [this]() -> absl::Status {
        return Move(CallFor(call_.mesh_id, plan_.auxiliary_id),
                    [this](const ArrayDefinition& array) { return Leave(array); });
      }));
      SHARDMESH_PASSES("resize.change_mesh");
      SHARDMESH_RETURN_IF_ERROR(ChangeMesh());
      SHARDMESH_PASSES("resize.mesh_changed");
    }
    SHARDMESH_RETURN_IF_ERROR(AwaitReady(call_.mesh_id));
    return Return([this](const ArrayDefinition& array) -> absl::StatusOr<PlacedLayout> {
      return array.descriptor.mesh == plan_.layouts.mesh ? LayoutOf(array)
                                                         : LayoutOn(plan_.layouts, array);
    });
  }

  // Moves the arrays that have left the mesh back to it, as they were.
  absl::Status GoBack(const absl::Status& why) {
    {
      absl::MutexLock lock(&mutex_);
      if (is_stopped_) return why;
      is_going_back_ = true;
      interrupted_ = absl::OkStatus();
    }
    // Nothing has left the mesh if the auxiliary one could not be defined.
    if (absl::IsNotFound(FindAuxiliary().status())) return why;
    LogInfo("going back to the old shape of a mesh", {{"mesh", call_.mesh_id}, {"error", why}});
    const ResizeLayouts old{.mesh = MeshOfDefinition(*plan_.definition), .is_old_shape = true};
    absl::Status returned = AwaitReady(call_.mesh_id);
    if (returned.ok()) {
      returned = Return([this, &old](const ArrayDefinition& array) {
        const auto left = left_.find(array.descriptor.array_id);
        return left == left_.end() ? LayoutOn(old, array) : left->second;
      });
    }
    if (returned.ok()) return why;
    const std::string midway =
        StrCat("some arrays still lie on the mesh \"", plan_.auxiliary_id, "\" (",
               returned.message(), "); resize the mesh to ", plan_.layouts.mesh.ToString(),
               " to go on, or to ", old.mesh.ToString(), " to go back");
    if (!absl::IsCancelled(why)) return WithContext(why, midway);
    // A cancelled resize is one that has gone back.
    return WithReason(absl::FailedPreconditionError(StrCat(midway, ": ", why.message())),
                      Reason::kMeshInUse, {{fact::kMesh, plan_.auxiliary_id}});
  }

  // Returns the layout on the new shape, and remembers the old one.
  absl::StatusOr<PlacedLayout> Leave(const ArrayDefinition& array) {
    left_.insert_or_assign(array.descriptor.array_id, LayoutOf(array));
    return LayoutOn(plan_.layouts, array);
  }

  // Moves all arrays from the auxiliary mesh to the mesh, and deletes the auxiliary mesh.
  template <typename Layouts>
  absl::Status Return(const Layouts& layouts) {
    SHARDMESH_RETURN_IF_ERROR(Empty(plan_.auxiliary_id, [&]() -> absl::Status {
      return Move(CallFor(plan_.auxiliary_id, call_.mesh_id), layouts);
    }));
    SHARDMESH_PASSES("resize.arrays_returned");
    return Change(plan_.auxiliary_id, [this](DefinitionStore::Callback done) {
      parts_.definitions->Delete({.request_id = "", .name = plan_.auxiliary_id},
                                 DefinitionKind::kMesh, std::move(done));
    });
  }

  // Defines the auxiliary mesh, unless an earlier resize did. Its workers are assigned, and not
  // named by the definition, so that an administrator can replace a lost one.
  absl::Status Define() {
    if (plan_.has_auxiliary) return absl::OkStatus();
    const std::string value = parts_.encode({.mesh = plan_.layouts.mesh, .workers = {}});
    absl::Status defined;
    absl::Notification done;
    parts_.definitions->Create(
        {.request_id = "", .name = plan_.auxiliary_id, .assign = plan_.workers}, value,
        [&](const absl::StatusOr<std::shared_ptr<const Definition>>& definition) {
          defined = definition.status();
          done.Notify();
        });
    done.WaitForNotification();
    return defined;
  }

  absl::Status AwaitReady(const std::string& mesh_id) {
    const absl::Time give_up = absl::Now() + kReadyTimeout;
    const absl::Cleanup forget = [this] { SetAwaited({}); };
    for (;;) {
      const absl::Status ready = parts_.plan.put.endpoints->CheckReady(mesh_id);
      SetAwaited(WorkersNamedBy(ready), /*are_unready=*/true);
      if (ready.ok() || absl::Now() >= give_up) return ready;
      SHARDMESH_RETURN_IF_ERROR(Wait());
    }
  }

  // Keeps the workers that the resize waits for. `are_unready`: an error of CheckReady names them.
  void SetAwaited(std::set<std::string> workers, bool are_unready = false) {
    absl::MutexLock lock(&mutex_);
    awaits_readiness_ = are_unready && !workers.empty();
    awaited_ = std::move(workers);
  }

  // Adds up partial sums and moves arrays away with `move` until the mesh has none. At the end, the
  // mesh is being changed for the registry: no array can be put on it.
  template <typename MoveAll>
  absl::Status Empty(const std::string& mesh_id, const MoveAll& move) {
    absl::Time give_up = absl::Now() + kHoldersTimeout;
    absl::Duration pause = kPollInterval;
    for (;;) {
      const int64_t before = moved_;
      absl::Status status = AddUp(mesh_id);
      if (status.ok()) status = move();
      if (moved_ > before) {
        give_up = absl::Now() + kHoldersTimeout;
        pause = kPollInterval;
      }
      if (status.ok()) {
        AwaitDrops(mesh_id);
        status = parts_.registry->BeginMeshChange(mesh_id);
        if (status.ok()) {
          AwaitDrops(mesh_id);  // of cached arrays, which the change evicts
          return status;
        }
      }
      if (!MayPass(status) || absl::Now() >= give_up) return status;
      SHARDMESH_RETURN_IF_ERROR(Wait(pause));
      pause = std::min(2 * pause, kMaxPause);  // each attempt plans all arrays
    }
  }

  // Whether another call or a step may be the reason of the failure: it moved a name meanwhile, it
  // holds arrays, or too many calls of the caller wait. What the coordinator knows of the memory of
  // workers may be old by a heartbeat: the plan of the resize has found that they have enough.
  static bool MayPass(const absl::Status& status) {
    const Reason reason = ReasonOf(status);
    return absl::IsAborted(status) || absl::IsNotFound(status) || reason == Reason::kMeshInUse ||
           reason == Reason::kRecovering || reason == Reason::kOverloaded ||
           reason == Reason::kMemoryLimit;
  }

  // Waits until the attached workers of the mesh have dropped its released tiles. A tile that a
  // worker still has when its mesh changes would go into quarantine. Does not wait for lost
  // workers, which drop nothing before they attach again.
  void AwaitDrops(const std::string& mesh_id) {
    const absl::Time give_up = absl::Now() + kDropTimeout;
    const absl::Cleanup forget = [this] { SetAwaited({}); };
    for (;;) {
      std::set<std::string> awaited = WorkersYetToDrop(mesh_id);
      const bool is_done = awaited.empty();
      SetAwaited(std::move(awaited));
      if (is_done || absl::Now() >= give_up || !Wait().ok()) return;
    }
  }

  std::set<std::string> WorkersYetToDrop(const std::string& mesh_id) const {
    const std::vector<int64_t> ranks = parts_.registry->RanksYetToDrop(mesh_id);
    if (ranks.empty()) return {};
    const std::shared_ptr<const MembershipView> view = parts_.plan.put.membership->view();
    const MeshRanks* const mesh = view->FindMesh(mesh_id);
    std::set<std::string> workers;
    for (const int64_t rank : ranks) {
      const auto place = static_cast<size_t>(rank);
      if (mesh == nullptr || place >= mesh->identities.size()) continue;
      if (view->IsAlive(mesh->identities[place])) workers.insert(mesh->identities[place]);
    }
    return workers;
  }

  // Changes the definition of the mesh, which Empty has emptied.
  absl::Status ChangeMesh() {
    absl::Status interrupted;
    {
      absl::MutexLock lock(&mutex_);
      interrupted = interrupted_;
      is_committing_ = interrupted.ok();
    }
    if (!interrupted.ok()) {
      parts_.registry->EndMeshChange(call_.mesh_id, std::nullopt);
      return interrupted;
    }
    const absl::StatusOr<std::vector<std::string>> workers = AuxiliaryWorkers();
    if (!workers.ok()) {
      parts_.registry->EndMeshChange(call_.mesh_id, std::nullopt);
      absl::MutexLock lock(&mutex_);
      is_committing_ = false;
      return workers.status();
    }
    const std::string value = parts_.encode({.mesh = plan_.layouts.mesh, .workers = {}});
    const absl::Status changed = Change(call_.mesh_id, [&](DefinitionStore::Callback done) {
      parts_.definitions->Update({.request_id = "",
                                  .name = call_.mesh_id,
                                  .expected_version = plan_.definition->version,
                                  .assign = *workers},
                                 value, std::move(done));
    });
    is_changed_ = changed.ok();
    if (is_changed_) return changed;
    absl::MutexLock lock(&mutex_);
    is_committing_ = false;
    return changed;
  }

  // Returns the present workers of the auxiliary mesh, by rank. They may be others than in the
  // plan: an administrator may have replaced a lost worker since.
  absl::StatusOr<std::vector<std::string>> AuxiliaryWorkers() const {
    SHARDMESH_ASSIGN_OR_RETURN(const std::shared_ptr<const Definition> auxiliary, FindAuxiliary());
    return WorkersOf(*auxiliary);
  }

  absl::StatusOr<std::shared_ptr<const Definition>> FindAuxiliary() const {
    return parts_.definitions->shared_state()->Find(DefinitionKind::kMesh, plan_.auxiliary_id);
  }

  // Makes the change of a mesh that Empty has emptied.
  template <typename Make>
  absl::Status Change(const std::string& mesh_id, const Make& make) {
    absl::Status changed;
    absl::Notification done;
    make([&](const absl::StatusOr<std::shared_ptr<const Definition>>& definition) {
      parts_.registry->EndMeshChange(
          mesh_id, definition.ok() ? std::optional((*definition)->revision) : std::nullopt);
      changed = definition.status();
      done.Notify();
    });
    done.WaitForNotification();
    return changed;
  }

  // Gives the names of the mesh's arrays with partial sums to their sums, which are equal and lie
  // on the mesh too. Unlike sums that a move makes for itself, they have names: if the coordinator
  // ends before they have moved, a repetition of the resize moves them. Their requested spec tells
  // it which axes the new shape needs.
  absl::Status AddUp(const std::string& mesh_id) {
    ReshardCall call = CallFor(mesh_id, mesh_id);
    call.only_partial_sums = true;
    return Move(std::move(call), [](const ArrayDefinition& array) -> absl::StatusOr<PlacedLayout> {
      SHARDMESH_ASSIGN_OR_RETURN(const ArrayDescriptor sums, SumsOf(array.descriptor));
      return PlacedLayout{.spec = sums.spec,
                          .requested_spec = RequestedOfSums(array, sums.spec),
                          .cut_points = sums.cut_points};
    });
  }

  // Returns a call that moves all named arrays of one mesh to another. It has no request id, since
  // nobody repeats it: answers that are remembered take the place of others.
  ReshardCall CallFor(const std::string& from, const std::string& to) const {
    ReshardCall call{.session_id = session_id_,
                     .caller = call_.caller,
                     .mesh_id = to,
                     .release_source = true,
                     .from_mesh = from,
                     .layout_of = nullptr,
                     .operation_id = operation_id_};
    call.rule_source = [](const Definitions&, const std::function<bool()>&)
        -> absl::StatusOr<std::optional<RuleSetDefinition>> { return std::nullopt; };
    call.profile_source = [](const Definitions&) -> absl::StatusOr<PartitionAxis> {
      return PartitionAxis();
    };
    return call;
  }

  // Runs the call with these layouts, and waits for its end.
  absl::Status Move(ReshardCall call,
                    std::function<absl::StatusOr<PlacedLayout>(const ArrayDefinition&)> layout_of) {
    SHARDMESH_RETURN_IF_ERROR(parts_.sessions->Renew(session_id_).status());
    {
      absl::MutexLock lock(&mutex_);
      SHARDMESH_RETURN_IF_ERROR(interrupted_);
    }
    auto end = std::make_shared<End>();
    call.layout_of = std::move(layout_of);
    ReshardEvents events;
    events.moved = [this, end](const ReshardedArray& array, int64_t) {
      if (array.is_skipped) return;  // it has no partial sums but along axes of size 1
      ++end->moved;
      KeepLayout(array);
    };
    events.ended = [end](const absl::StatusOr<Revision>& revision) {
      end->status = revision.status();
      end->done.Notify();
    };
    ReshardRunner::RunPtr run = parts_.reshards->Start(std::move(call), std::move(events));
    absl::Status interrupted;
    {
      absl::MutexLock lock(&mutex_);
      reshard_ = run;
      interrupted = interrupted_;
    }
    if (!interrupted.ok() && run != nullptr) ReshardRunner::Cancel(run, interrupted);
    while (!end->done.WaitForNotificationWithTimeout(kRenewInterval)) {
      parts_.sessions->Renew(session_id_).IgnoreError();
    }
    {
      absl::MutexLock lock(&mutex_);
      reshard_ = nullptr;
      interrupted = interrupted_;
    }
    moved_ += end->moved;
    return interrupted.ok() ? end->status : interrupted;
  }

  // Keeps the old layout under the id of the new array, for GoBack.
  void KeepLayout(const ReshardedArray& array) {
    const auto left = left_.find(array.source_array_id);
    if (left == left_.end()) return;
    left_.insert_or_assign(array.descriptor.array_id, left->second);
    left_.erase(array.source_array_id);
  }

  // Waits a moment. Returns the reason if the resize is to end.
  absl::Status Wait(absl::Duration time = kPollInterval) {
    absl::MutexLock lock(&mutex_);
    const auto is_interrupted = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return !interrupted_.ok();
    };
    mutex_.AwaitWithTimeout(absl::Condition(&is_interrupted), time);
    return interrupted_;
  }

  bool IsStopped() const {
    absl::MutexLock lock(&mutex_);
    return is_stopped_;
  }

  // The end of a reshard.
  struct End {
    int64_t moved = 0;
    absl::Status status;
    absl::Notification done;
  };

  const ResizeParts& parts_;
  const ResizeCall call_;
  const PlannedResize plan_;
  std::string operation_id_;
  std::atomic<bool> is_over_ = false;

  // Only Execute uses these members, and the reshards that it waits for.
  std::string session_id_;
  bool is_changed_ = false;
  int64_t moved_ = 0;                         // arrays, counted each time
  std::map<std::string, PlacedLayout> left_;  // old layouts, by the ids of old and new arrays

  mutable absl::Mutex mutex_;
  absl::Status interrupted_ ABSL_GUARDED_BY(mutex_);  // why the resize is to end
  bool is_stopped_ ABSL_GUARDED_BY(mutex_) = false;   // the coordinator stops
  bool is_going_back_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_committing_ ABSL_GUARDED_BY(mutex_);  // the mesh is being changed, or has the shape
  ReshardRunner::RunPtr reshard_ ABSL_GUARDED_BY(mutex_);
  // The workers that AwaitReady or AwaitDrops waits for.
  std::set<std::string> awaited_ ABSL_GUARDED_BY(mutex_);
  bool awaits_readiness_ ABSL_GUARDED_BY(mutex_) = false;  // whether these are those of AwaitReady
};

ResizeRunner::~ResizeRunner() {
  Stop(absl::CancelledError("the coordinator is stopping"));
  Join();
}

void ResizeRunner::Join() {
  std::map<std::string, std::unique_ptr<Running>> running;
  {
    absl::MutexLock lock(&mutex_);
    running.swap(running_);
  }
  for (const auto& [id, each] : running) each->thread.join();
}

void ResizeRunner::Stop(const absl::Status& reason) {
  std::vector<std::shared_ptr<Run>> runs;
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = reason;
    for (const auto& [id, each] : running_) runs.push_back(each->run);
  }
  for (const std::shared_ptr<Run>& run : runs) run->Stop(reason);
}

absl::StatusOr<std::optional<BegunResize>> ResizeRunner::FindKnown(const ResizeCall& call,
                                                                   const std::string& key) {
  absl::MutexLock lock(&mutex_);
  SHARDMESH_RETURN_IF_ERROR(stopped_);
  if (const auto known = requests_.find(key); known != requests_.end() && !key.empty()) {
    if (known->second.fingerprint != call.fingerprint) {
      return RequestIdReused(kResizeMessages, key);
    }
    if (parts_.operations->Progress(known->second.begun.operation_id).ok()) {
      return known->second.begun;
    }
  }
  for (const auto& [id, each] : running_) {
    if (each->mesh_id != call.mesh_id || each->run->is_over()) continue;
    // The end of a resize that gives up is no answer to a call that nobody has cancelled.
    const bool gives_up = each->run->is_giving_up();
    if (!gives_up && SameAxes(each->axes, call.axes)) return each->begun;
    return WithRetryDelay(
        WithReason(absl::AbortedError(
                       StrCat("the mesh \"", call.mesh_id, "\" is being resized by operation ", id,
                              gives_up ? ", which goes back to the old shape" : "",
                              "; wait until it has ended (`shardmesh ops watch ", id, "`)")),
                   Reason::kMeshInUse, {{fact::kMesh, call.mesh_id}}),
        absl::Seconds(1));
  }
  return std::nullopt;
}

absl::Status ResizeRunner::MakeRoom() {
  return MakeRoomForRun(
      &mutex_, &running_, [](const Running& running) { return running.run->is_over(); },
      kMaxRunning, "resizes");
}

absl::StatusOr<BegunResize> ResizeRunner::Begin(const ResizeCall& call,
                                                const std::function<bool()>& is_cancelled) {
  if (call.validate_only) {
    SHARDMESH_ASSIGN_OR_RETURN(PlannedResize plan, PlanResize(parts_.plan, call, is_cancelled));
    return BegunResize{.plan = std::move(plan)};
  }
  absl::MutexLock begin_lock(&begin_mutex_);
  const std::string key = RequestKey(call.session_id, "ResizeMesh", call.request_id);
  SHARDMESH_ASSIGN_OR_RETURN(const std::optional<BegunResize> known, FindKnown(call, key));
  if (known.has_value()) return *known;
  SHARDMESH_RETURN_IF_ERROR(MakeRoom());
  SHARDMESH_ASSIGN_OR_RETURN(PlannedResize plan, PlanResize(parts_.plan, call, is_cancelled));
  BegunResize begun{.plan = std::move(plan)};
  if (begun.plan.has_nothing_to_do()) return begun;
  SHARDMESH_RETURN_IF_ERROR(CheckResize(begun.plan));
  if (ArrayCache* const cache = parts_.plan.put.cache; cache != nullptr) {
    // Bytes that puts are still sending are not in use yet.
    const int64_t coming_bytes = parts_.plan.put.transfers->LivePuts().bytes_per_rank;
    ArrayCache::Limits limits;
    for (const ResizeRank& rank : begun.plan.ranks) {
      limits[rank.identity] = rank.have_bytes - rank.need_bytes - coming_bytes;
    }
    cache->Limit(limits);
  }
  SHARDMESH_ASSIGN_OR_RETURN(const Session session, parts_.sessions->Get(call.session_id));
  auto running = std::make_unique<Running>();
  running->mesh_id = call.mesh_id;
  running->axes = call.axes;
  running->run = std::make_shared<Run>(parts_, call, begun.plan);
  SHARDMESH_ASSIGN_OR_RETURN(
      const std::string id,
      parts_.operations->Begin(
          OperationKind::kResize,
          StrCat("resize of mesh \"", call.mesh_id, "\" to ", begun.plan.layouts.mesh.ToString()),
          call.session_id, session.number,
          [run = running->run](const absl::Status& reason) { return run->Cancel(reason); }));
  parts_.operations->SetWorkers(id, [run = running->run] { return run->Workers(); });
  begun.operation_id = id;
  running->begun = begun;
  running->run->SetOperation(id);
  parts_.operations->SetTotal(id, begun.plan.move_count, begun.plan.total_bytes);
  absl::StatusOr<std::thread> thread = StartThread([this, id, run = running->run] {
    const absl::Status status = run->Execute();
    if (!status.ok()) LogWarning("a resize did not end well", {{"error", status}});
    run->Over();
    parts_.operations->End(id, status);
  });
  if (!thread.ok()) {
    parts_.operations->End(id, thread.status());
    return std::move(thread).status();
  }
  running->thread = *std::move(thread);
  absl::MutexLock lock(&mutex_);
  if (!stopped_.ok()) running->run->Stop(stopped_);
  running_.emplace(id, std::move(running));
  if (!call.request_id.empty() &&
      requests_.insert_or_assign(key, Remembered{call.fingerprint, begun}).second) {
    request_order_.push_back(key);
    if (request_order_.size() > kMaxRemembered) {
      requests_.erase(request_order_.front());
      request_order_.pop_front();
    }
  }
  return begun;
}

}  // namespace shardmesh::server
