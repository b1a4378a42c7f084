// Copies arrays to their auxiliary meshes, a few at a time, and collects the ends.
#include "server/repair/replicas.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>
#include <variant>

#include "absl/synchronization/notification.h"
#include "process/cpu_time.h"
#include "process/failpoint.h"
#include "process/log.h"
#include "process/random_bytes.h"
#include "rpc/codec/array_codec.h"
#include "rpc/transfer_token.h"
#include "server/repair/early_cancel.h"
#include "server/repair/tile_retry.h"
#include "server/steps/array_cache.h"
#include "server/steps/auxiliary_mesh.h"
#include "server/steps/committed_bytes.h"
#include "server/steps/fill_codec.h"
#include "status/byte_text.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/array_descriptor.h"

namespace shardmesh::server {
namespace {

// Arrays of one page of the registry.
constexpr int64_t kArraysOfPage = 1'000;
// Time between two searches: at least ten times the processor time that a search takes.
constexpr int kSearchShare = 10;

const Mesh& ShapeOf(const Definition& mesh) { return std::get<MeshDefinition>(mesh.value).mesh; }

// Whether the obstacle is expected to go away within seconds.
bool PassesSoon(const absl::Status& status) {
  const Reason reason = ReasonOf(status);
  return reason == Reason::kRecovering || reason == Reason::kVersionMismatch ||
         reason == Reason::kMeshInUse || reason == Reason::kArrayDegraded ||
         absl::IsAborted(status) || absl::IsNotFound(status);  // the membership learns of meshes
}

// Whether some worker has each tile of the array or of its companion, which may be null. At each
// rank, the companion has the same tile as the array; several ranks may have one tile.
bool EachTileIsHeld(const Array& array, const Array* companion, const Tiling& tiling) {
  const auto has = [](const Array* copy, DeviceId rank) {
    return copy != nullptr &&
           !std::binary_search(copy->missing_ranks.begin(), copy->missing_ranks.end(), rank);
  };
  const std::vector<OwnedTile> tiles =
      tiling.OwnersOf(Tile::Whole(array.definition.descriptor.shape));
  return std::all_of(tiles.begin(), tiles.end(), [&](const OwnedTile& tile) {
    return std::any_of(tile.devices.begin(), tile.devices.end(),
                       [&](DeviceId rank) { return has(&array, rank) || has(companion, rank); });
  });
}

}  // namespace

Replicas::Replicas(ReplicaParts parts, Options options)
    : parts_(std::move(parts)), options_(options), thread_(parts_.clock, [this] { Refill(); }) {}

Replicas::~Replicas() { Stop(); }

void Replicas::Look(bool is_chance) {
  absl::MutexLock lock(&mutex_);
  is_chance_ |= is_chance;
  thread_.SearchAt(parts_.clock->Now());
}

void Replicas::Stop() {
  if (!thread_.Stop()) return;
  std::vector<std::string> transfers;
  std::string operation_id;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, copy] : running_) transfers.push_back(id);
    operation_id = operation_id_;
  }
  const absl::Status stops = WithReason(
      absl::UnavailableError("the coordinator is stopping; the copies begin again at its start"),
      Reason::kNotServing);
  for (const std::string& id : transfers) parts_.sequencer->AbortTransfer(id, stops).IgnoreError();
  if (!operation_id.empty()) parts_.operations->End(operation_id, stops);
}

bool Replicas::IsBySpec(const Array& array, const Tiling& tiling) const {
  if (tiling.replica_count() < 2) return false;
  const std::shared_ptr<const MembershipView> view = parts_.membership->view();
  const MeshRanks* const ranks = view->FindMesh(array.definition.descriptor.mesh_id);
  return ranks != nullptr && std::ssize(ranks->identities) == tiling.mesh().size() &&
         IsReplicatedBySpec(tiling, HostsOf(*view, ranks->identities));
}

// Makes the queue anew from the registry.
void Replicas::Refill() {
  const double start = ThreadCpuSeconds();
  const std::shared_ptr<const MembershipView> view = parts_.membership->view();
  std::map<std::string, std::vector<std::string>> hosts;  // by mesh
  std::vector<Waiting> wanting;
  std::string after;
  for (bool is_last = false; !is_last;) {
    const std::vector<ArrayPtr> page = parts_.registry->ListUnreplicated(after, kArraysOfPage);
    is_last = std::ssize(page) < kArraysOfPage;
    for (const ArrayPtr& array : page) {
      const ArrayDescriptor& descriptor = array->definition.descriptor;
      after = descriptor.array_id;
      const absl::StatusOr<Tiling> tiling = descriptor.Tiling();
      if (!tiling.ok()) continue;
      const auto [place, is_new] = hosts.try_emplace(descriptor.mesh_id);
      if (const MeshRanks* const ranks = view->FindMesh(descriptor.mesh_id);
          is_new && ranks != nullptr) {
        place->second = HostsOf(*view, ranks->identities);
      }
      if (std::ssize(place->second) == tiling->mesh().size() &&
          IsReplicatedBySpec(*tiling, place->second)) {
        continue;
      }
      const int64_t one = descriptor.SizeBytes().value_or(0);
      int64_t all = 0;
      if (__builtin_mul_overflow(one, tiling->replica_count(), &all)) all = one;
      wanting.push_back({.array_id = after, .size_bytes = all});
    }
  }
  {
    absl::MutexLock lock(&mutex_);
    const absl::Duration took = absl::Seconds(ThreadCpuSeconds() - start);
    const absl::Time now = parts_.clock->Now();
    thread_.NoSearchBefore(now + std::max(options_.poll / 4, kSearchShare * took));
    std::set<std::string_view> there;
    for (const Waiting& each : wanting) there.insert(each.array_id);
    const bool is_chance = std::exchange(is_chance_, false);
    std::erase_if(trouble_, [&](const auto& each) {
      return (is_chance && !each.second.is_waiting) || !there.contains(each.first);
    });
    std::set<std::string_view> running;
    for (const auto& [id, copy] : running_) running.insert(copy.array_id);
    queue_.clear();
    queued_bytes_ = 0;
    absl::Time next = absl::InfiniteFuture();
    for (const Waiting& each : wanting) {
      if (running.contains(each.array_id)) continue;
      const auto trouble = trouble_.find(each.array_id);
      if (trouble != trouble_.end() && trouble->second.next_try > now) {
        next = std::min(next, trouble->second.next_try);
        continue;
      }
      queue_.push_back(each);
      queued_bytes_ = AddCapped(queued_bytes_, each.size_bytes);
    }
    thread_.SearchAt(next);
    UpdateTotal();
  }
  Pump();
  RemoveUnused();
}

void Replicas::Pump() {
  for (;;) {
    std::string array_id;
    {
      absl::MutexLock lock(&mutex_);
      if (!cancelled_.ok()) {
        // The copies of a cancelled operation wait for a chance.
        for (const Waiting& each : queue_) {
          trouble_[each.array_id] = {.status = cancelled_, .next_try = absl::InfiniteFuture()};
        }
        queue_.clear();
        queued_bytes_ = 0;
      }
      if (thread_.is_stopped() || queue_.empty() || running_.size() >= options_.arrays_at_once)
        break;
      queued_bytes_ -= queue_.front().size_bytes;
      array_id = std::move(queue_.front().array_id);
      queue_.pop_front();
    }
    Begin(array_id);
  }
  EndOperation();
}

void Replicas::Begin(const std::string& array_id) {
  const absl::StatusOr<ArrayPtr> array = parts_.registry->FindArray(array_id);
  if (!array.ok() || parts_.registry->FindTwin(array_id) != nullptr) return;
  if ((*array)->definition.replicas < 2) return;  // since it was cached, and taken for another use
  absl::StatusOr<Planned> planned = Plan(*array);
  if (!planned.ok()) return Fail(array_id, planned.status());
  const std::string companion_id = planned->copy.companion_id;
  if (const absl::Status staged = parts_.registry->Stage(planned->companion); !staged.ok()) {
    return Fail(array_id, staged);
  }
  // A released companion must not be dropped by workers that have yet to hear of its commit.
  parts_.registry->Pin(companion_id).IgnoreError();
  EnsureOperation();
  const std::string transfer_id = RandomId();
  int64_t largest = 0;
  for (const auto& [identity, bytes] : planned->copy.by_worker) largest = std::max(largest, bytes);
  const absl::Duration timeout = CopyTimeout(largest);
  TransferRequest request{
      .transfer_id = transfer_id,
      .op = "replicate",
      .mesh_id = planned->copy.replica_mesh,
      .participants = {},
      .timeout = timeout,
      .commit = [this, array = *array, companion_id](
                    const WorkOutcome& outcome, absl::AnyInvocable<void(absl::Status) &&> decided) {
        Commit(array, companion_id, outcome, std::move(decided));
      }};
  {
    absl::MutexLock lock(&mutex_);
    request.operation_id = operation_id_;
  }
  request.sources = std::make_shared<const std::vector<std::string>>(planned->sources);
  for (size_t rank = 0; rank < planned->destinations.size(); ++rank) {
    request.participants.push_back({.rank = static_cast<int64_t>(rank),
                                    .identity = planned->destinations[rank],
                                    .expected_tiles = 1});
  }
  {
    absl::MutexLock lock(&mutex_);
    running_.emplace(transfer_id, planned->copy);
    UpdateTotal();
  }
  SHARDMESH_PASSES("replicas.begin_transfer");
  absl::Status begun = parts_.sequencer->BeginTransfer(
      std::move(request), [this, transfer_id, companion_id](const WorkOutcome& outcome) {
        if (!outcome.status.ok()) parts_.registry->Discard({companion_id});
        parts_.registry->Unpin(companion_id);
        thread_.Run([this, transfer_id, status = outcome.status] {
          Ended(transfer_id, status);
          Pump();
        });
      });
  if (!begun.ok()) {
    parts_.registry->Discard({companion_id});
    return Ended(transfer_id, begun);
  }
  parts_.sequencer->CommitTransfer(transfer_id).IgnoreError();  // it may have ended already
  begun = Send(*planned, transfer_id, timeout);
  {
    // A Cancel before the transfer began could not abort it. The operation, and with it
    // `cancelled_`, ends on this thread only.
    absl::MutexLock lock(&mutex_);
    begun.Update(cancelled_);
  }
  if (!begun.ok()) parts_.sequencer->AbortTransfer(transfer_id, begun).IgnoreError();
}

absl::StatusOr<Replicas::Planned> Replicas::Plan(const ArrayPtr& array) {
  const ArrayDescriptor& from = array->definition.descriptor;
  if (array->state == ArrayState::kDegraded) {
    constexpr size_t kMostNamed = 8;
    return WithReason(
        absl::FailedPreconditionError(StrCat("the array itself lacks tiles of ranks ",
                                             StrJoinFirst(kMostNamed, array->missing_ranks, ", "),
                                             "; it is copied once they are back")),
        Reason::kArrayDegraded, {{fact::kArray, from.array_id}});
  }
  if (!ResizedMeshOf(from.mesh_id).empty()) {
    return WithReason(absl::FailedPreconditionError("its mesh is being resized; it is copied once "
                                                    "it lies on the resized mesh"),
                      Reason::kMeshInUse, {{fact::kMesh, from.mesh_id}});
  }
  SHARDMESH_ASSIGN_OR_RETURN(
      const std::shared_ptr<const Definition> mesh,
      parts_.definitions->shared_state()->Find(DefinitionKind::kMesh, from.mesh_id));
  SHARDMESH_ASSIGN_OR_RETURN(const std::shared_ptr<const Definition> replica_mesh,
                             EnsureMesh(*mesh));
  SHARDMESH_RETURN_IF_ERROR(parts_.endpoints->CheckReady(replica_mesh->name));
  Planned planned{.array = array, .companion = array->definition};
  planned.sources = WorkersOf(*mesh);
  planned.destinations = WorkersOf(*replica_mesh);
  if (!AreDisplaced(planned.sources, planned.destinations)) {
    return absl::AbortedError("the workers of the mesh are being changed");
  }
  ArrayDefinition& companion = planned.companion;
  companion.descriptor.array_id = RandomId();
  companion.descriptor.mesh_id = replica_mesh->name;
  companion.descriptor.mesh_revision = replica_mesh->revision;
  companion.descriptor.mesh = ShapeOf(*replica_mesh);
  // Without an origin: puts must not find the companion, and repairs look at that of the array.
  companion.source = {};
  companion.sent_from = {};
  companion.replicas = 1;
  companion.replica_of = from.array_id;
  SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, companion.descriptor.Tiling());
  Copy& copy = planned.copy;
  copy = {.array_id = from.array_id,
          .companion_id = companion.descriptor.array_id,
          .replica_mesh = replica_mesh->name};
  for (size_t rank = 0; rank < planned.destinations.size(); ++rank) {
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t bytes, RankTileBytes(companion.descriptor, tiling,
                                                                  static_cast<int64_t>(rank)));
    copy.size_bytes = AddCapped(copy.size_bytes, bytes);
    copy.by_worker[planned.destinations[rank]] = bytes;
    SHARDMESH_RETURN_IF_ERROR(parts_.fill->CheckCanFill(planned.destinations[rank]));
  }
  SHARDMESH_RETURN_IF_ERROR(CheckMemory(copy));
  return planned;
}

absl::Status Replicas::CheckMemory(const Copy& copy) const {
  const std::shared_ptr<const MembershipView> view = parts_.membership->view();
  const int64_t puts_bytes = parts_.transfers->LivePuts().bytes_per_rank;
  const ArrayRegistry::BytesByMesh cached = parts_.registry->CachedBytes();
  ArrayCache::Limits cache_limits;
  absl::ReleasableMutexLock lock(&mutex_);
  for (const auto& [identity, need_bytes] : copy.by_worker) {
    const WorkerStatus* const worker = view->FindWorker(identity);
    if (worker == nullptr) continue;  // the sequencer finds out
    int64_t have_bytes = worker->info.capacity_bytes - worker->used_bytes() +
                         CachedBytesOn(*view, cached, identity) - puts_bytes;
    for (const auto& [id, other] : running_) {
      const auto there = other.by_worker.find(identity);
      if (there != other.by_worker.end()) have_bytes -= there->second;
    }
    if (need_bytes <= have_bytes) {
      cache_limits[identity] = have_bytes - need_bytes;
      continue;
    }
    have_bytes = std::max<int64_t>(0, have_bytes);
    const auto [have, need] = FormatBytesApart(have_bytes, need_bytes);
    return WithReason(
        absl::ResourceExhaustedError(
            StrCat("worker \"", identity, "\" has ", have,
                   " left beside its tiles and running puts, and the second replica needs ", need,
                   " there; release arrays, or start the worker with more --memory")),
        Reason::kMemoryLimit,
        {{fact::kHave, have_bytes}, {fact::kNeed, need_bytes}, {fact::kIdentity, identity}});
  }
  lock.Release();
  if (parts_.cache != nullptr) parts_.cache->Limit(cache_limits);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Definition>> Replicas::EnsureMesh(const Definition& mesh) {
  const std::vector<std::string>& workers = WorkersOf(mesh);
  const Mesh& shape = ShapeOf(mesh);
  if (shape.size() < 2) {
    return WithReason(
        absl::FailedPreconditionError(StrCat("the mesh \"", mesh.name,
                                             "\" has one worker, and a second replica needs "
                                             "another; resize the mesh (`shardmesh mesh resize`)")),
        Reason::kMeshIncomplete, {{fact::kMesh, mesh.name}});
  }
  SHARDMESH_RETURN_IF_ERROR(parts_.endpoints->CheckReady(mesh.name));
  const std::string name = ReplicaMeshName(mesh);
  const auto there = parts_.definitions->shared_state()->Find(DefinitionKind::kMesh, name);
  if (there.ok()) {
    if (ShapeOf(**there) == shape && AreDisplaced(workers, WorkersOf(**there))) return *there;
    // It is of the mesh as it was before a change. The arrays of that time are gone, or go.
    SHARDMESH_RETURN_IF_ERROR(DeleteMesh(name, /*is_in_the_way=*/true));
  }
  const std::shared_ptr<const MembershipView> view = parts_.membership->view();
  absl::StatusOr<std::shared_ptr<const Definition>> defined;
  absl::Notification done;
  parts_.definitions->Create(
      {.request_id = "", .name = name, .assign = ReplicaWorkers(workers, HostsOf(*view, workers))},
      parts_.encode({.mesh = shape, .workers = {}}),
      [&](const absl::StatusOr<std::shared_ptr<const Definition>>& definition) {
        defined = definition;
        done.Notify();
      });
  done.WaitForNotification();
  SHARDMESH_RETURN_IF_ERROR(defined.status());
  return parts_.definitions->shared_state()->Find(DefinitionKind::kMesh, name);
}

absl::Status Replicas::CheckDropped(const std::string& name, bool is_in_the_way) {
  // A tile that a worker still has when its mesh goes would go into quarantine.
  const std::vector<int64_t> ranks = parts_.registry->RanksYetToDrop(name);
  if (ranks.empty()) return absl::OkStatus();
  SHARDMESH_ASSIGN_OR_RETURN(const std::shared_ptr<const Definition> mesh,
                             parts_.definitions->shared_state()->Find(DefinitionKind::kMesh, name));
  const std::vector<std::string>& workers = WorkersOf(*mesh);
  const std::shared_ptr<const MembershipView> view = parts_.membership->view();
  const absl::Time now = parts_.clock->Now();
  const bool is_over = now >= deletable_.try_emplace(name, now + options_.patience).first->second;
  std::set<std::string> awaited;
  for (const int64_t rank : ranks) {
    if (rank >= std::ssize(workers)) continue;
    const std::string& identity = workers[static_cast<size_t>(rank)];
    // A lost worker may never attach again.
    const bool may_go = is_over && (is_in_the_way || !view->IsAlive(identity));
    if (!may_go) awaited.insert(identity);
  }
  if (awaited.empty()) return absl::OkStatus();
  constexpr size_t kMostNamed = 8;
  return WithReason(absl::AbortedError(StrCat("workers have yet to drop tiles of released arrays: ",
                                              StrJoinFirst(kMostNamed, awaited, ", "))),
                    Reason::kVersionMismatch, {{fact::kKind, "mesh"}, {fact::kName, name}});
}

absl::Status Replicas::DeleteMesh(const std::string& name, bool is_in_the_way) {
  SHARDMESH_RETURN_IF_ERROR(CheckDropped(name, is_in_the_way));
  SHARDMESH_RETURN_IF_ERROR(parts_.registry->BeginMeshChange(name));
  deletable_.erase(name);
  absl::Status deleted;
  absl::Notification done;
  parts_.definitions->Delete(
      {.request_id = "", .name = name}, DefinitionKind::kMesh,
      [&](const absl::StatusOr<std::shared_ptr<const Definition>>& definition) {
        parts_.registry->EndMeshChange(
            name, definition.ok() ? std::optional((*definition)->revision) : std::nullopt);
        deleted = definition.status();
        done.Notify();
      });
  done.WaitForNotification();
  return deleted;
}

// Deletes the auxiliary meshes without companions that no copy is about to use.
void Replicas::RemoveUnused() {
  const std::shared_ptr<const Definitions> state = parts_.definitions->shared_state();
  bool are_left = false;
  for (const auto& [name, definition] : state->all(DefinitionKind::kMesh)) {
    const std::string_view owner_name = ReplicatedMeshOf(name);
    if (owner_name.empty()) continue;
    bool is_wanted = false;
    if (const auto owner = state->Find(DefinitionKind::kMesh, std::string(owner_name));
        owner.ok() && ReplicaMeshName(**owner) == name) {
      absl::MutexLock lock(&mutex_);
      is_wanted = !running_.empty() || !queue_.empty() || !trouble_.empty();
    }
    const bool is_free = parts_.registry->CheckMeshChange(name).ok();
    if (!is_free) deletable_.erase(name);
    are_left |= is_wanted || !is_free || !DeleteMesh(name, /*is_in_the_way=*/false).ok();
  }
  if (are_left) thread_.SearchAt(parts_.clock->Now() + options_.tidy);
}

// Orders each worker of the auxiliary mesh to fetch its tile.
absl::Status Replicas::Send(const Planned& planned, const std::string& transfer_id,
                            absl::Duration timeout) const {
  const ArrayDescriptor& from = planned.array->definition.descriptor;
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<RankEndpoint> live,
                             parts_.endpoints->Endpoints(from.mesh_id));
  const std::string source = rpc::ArrayDescriptorBytes(from);
  const std::string target = rpc::ArrayDescriptorBytes(planned.companion.descriptor);
  const std::string token = rpc::SignToken({.direction = rpc::TransferDirection::kGet,
                                            .transfer_id = "",
                                            .session_id = "",
                                            .array_descriptor = source,
                                            .term = parts_.term,
                                            .expire_time = parts_.clock->Now() + timeout},
                                           parts_.token_key);
  const internal::v1::FillDevices devices =
      EncodeFillDevices(live, planned.sources, planned.destinations);
  SharedFill fill(transfer_id, parts_.term, &devices);
  fill.AddFromArray(target, source, token);
  for (size_t rank = 0; rank < planned.destinations.size(); ++rank) {
    SHARDMESH_RETURN_IF_ERROR(
        fill.SendTo(planned.destinations[rank], static_cast<int64_t>(rank), parts_.fill));
  }
  return absl::OkStatus();
}

void Replicas::Commit(const ArrayPtr& array, const std::string& companion_id,
                      const WorkOutcome& outcome,
                      absl::AnyInvocable<void(absl::Status) &&> decided) const {
  ArrayCommit commit{.array_id = companion_id,
                     .durability = Durability::kDisk,
                     .tile_crc32c = array->tile_crc32c,
                     .epoch = outcome.epoch};
  for (const RankResult& rank : outcome.ranks) {
    if (rank.tiles.size() != 1 || rank.tiles.front().array_id != companion_id) {
      return std::move(decided)(absl::InternalError(
          StrCat("rank ", rank.participant.rank, " staged other tiles than that of the copy")));
    }
    const StagedTileReport& tile = rank.tiles.front();
    if (!tile.on_disk) commit.durability = Durability::kMemory;
    const uint32_t expected = array->tile_crc32c[static_cast<size_t>(rank.participant.rank)];
    if (tile.crc32c == expected) continue;
    const std::string have = StrCat(absl::Hex(tile.crc32c, absl::kZeroPad8));
    const std::string need = StrCat(absl::Hex(expected, absl::kZeroPad8));
    return std::move(decided)(WithReason(
        absl::DataLossError(StrCat("the copy of the tile of rank ", rank.participant.rank,
                                   " has the CRC-32C ", have, ", the tile itself ", need)),
        Reason::kChecksumMismatch,
        {{fact::kHave, have},
         {fact::kNeed, need},
         {fact::kArray, array->definition.descriptor.array_id}}));
  }
  SHARDMESH_PASSES("replicas.commit");
  CommitRequest request;
  request.arrays.push_back(std::move(commit));
  parts_.registry->Commit(
      std::move(request),
      [decided = std::move(decided)](const absl::StatusOr<CommitResult>& committed) mutable {
        std::move(decided)(committed.status());
      });
}

void Replicas::Ended(const std::string& transfer_id, const absl::Status& status) {
  Copy copy;
  std::string operation_id;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = running_.find(transfer_id);
    if (found == running_.end()) return;
    copy = std::move(found->second);
    running_.erase(found);
    operation_id = operation_id_;
    if (status.ok()) {
      ++done_;
      done_bytes_ = AddCapped(done_bytes_, copy.size_bytes);
      ++copied_arrays_;
      copied_bytes_ = AddCapped(copied_bytes_, copy.size_bytes);
      trouble_.erase(copy.array_id);
    }
  }
  if (status.ok()) return parts_.operations->Add(operation_id, 1, copy.size_bytes, transfer_id);
  parts_.operations->Add(operation_id, 0, 0, transfer_id);
  Fail(copy.array_id, status);
}

void Replicas::Fail(const std::string& array_id, const absl::Status& status) {
  const absl::StatusOr<ArrayPtr> array = parts_.registry->FindArray(array_id);
  const bool is_gone = !array.ok() || (*array)->definition.replicas < 2;
  const std::string label = parts_.registry->LabelOf(array_id);
  const absl::Time now = parts_.clock->Now();
  absl::MutexLock lock(&mutex_);
  if (is_gone) {  // released meanwhile, or it wants no copy any more
    trouble_.erase(array_id);
    return UpdateTotal();
  }
  Trouble& trouble = trouble_[array_id];
  if (PassesSoon(status) && cancelled_.ok()) {
    if (!std::exchange(trouble.is_waiting, true)) trouble.give_up = now + options_.patience;
  }
  if (trouble.is_waiting && (!PassesSoon(status) || now >= trouble.give_up)) {
    trouble.is_waiting = false;
  }
  trouble.status = status;
  if (trouble.is_waiting) {
    trouble.next_try = now + options_.poll;
    return thread_.SearchAt(trouble.next_try);
  }
  ++trouble.rounds;
  trouble.next_try =
      cancelled_.ok() ? now + RetryWait(trouble.rounds, options_.first_retry, options_.last_retry)
                      : absl::InfiniteFuture();
  thread_.SearchAt(trouble.next_try);
  if (operation_id_.empty()) return;
  ++failed_;
  if (first_failure_.ok()) first_failure_ = WithContext(status, label);
  UpdateTotal();
}

void Replicas::EnsureOperation() {
  {
    absl::MutexLock lock(&mutex_);
    if (!operation_id_.empty()) return;
  }
  const auto early = std::make_shared<EarlyCancel>();
  const auto cancel = [this, early](const absl::Status& reason) {
    if (const std::string id = early->IdOrNote(reason); !id.empty()) Cancel(id, reason);
    return absl::OkStatus();
  };
  const absl::StatusOr<std::string> begun =
      parts_.operations->Begin(OperationKind::kReplicate, "second replicas of arrays",
                               /*session_id=*/"", /*session_number=*/0, cancel);
  if (!begun.ok()) {  // only an owner's errors are possible
    LogWarning("copies are no operation", {{"error", begun.status()}});
    return;
  }
  {
    absl::MutexLock lock(&mutex_);
    operation_id_ = *begun;
    done_ = done_bytes_ = failed_ = 0;
    first_failure_ = absl::OkStatus();
    UpdateTotal();
  }
  // See Replicas: no call of the table outlives this object.
  parts_.operations->SetWorkers(*begun, [this, id = *begun] { return AwaitedBy(id); });
  const absl::Status cancelled = early->Begun(*begun);
  LogInfo("copies of arrays begin", {{"operation", *begun}});
  if (!cancelled.ok()) Cancel(*begun, cancelled);
}

void Replicas::UpdateTotal() {
  if (operation_id_.empty()) return;
  int64_t bytes = done_bytes_;
  for (const auto& [id, copy] : running_) bytes = AddCapped(bytes, copy.size_bytes);
  int64_t waiting = 0;
  for (const auto& [id, trouble] : trouble_) waiting += trouble.is_waiting ? 1 : 0;
  bytes = AddCapped(bytes, queued_bytes_);
  parts_.operations->SetTotal(
      operation_id_, done_ + failed_ + std::ssize(running_) + std::ssize(queue_) + waiting, bytes);
}

void Replicas::EndOperation() {
  std::string operation_id;
  absl::Status status;
  int64_t done = 0;
  {
    absl::MutexLock lock(&mutex_);
    const bool is_waiting =
        cancelled_.ok() && std::any_of(trouble_.begin(), trouble_.end(),
                                       [](const auto& each) { return each.second.is_waiting; });
    if (operation_id_.empty() || !running_.empty() || !queue_.empty() || is_waiting) return;
    operation_id = std::exchange(operation_id_, {});
    status = std::exchange(cancelled_, absl::OkStatus());
    done = done_;
    if (status.ok() && failed_ > 0) {
      status = WithContext(first_failure_,
                           StrCat(failed_, " of ", failed_ + done_, " arrays could not be copied"));
    }
  }
  if (status.ok()) {
    LogInfo("copies of arrays ended", {{"operation", operation_id}, {"arrays", done}});
  } else {
    LogWarning("copies of arrays ended with an error",
               {{"operation", operation_id}, {"arrays", done}, {"error", status}});
  }
  parts_.operations->End(operation_id, status);
}

OperationWorkers Replicas::AwaitedBy(const std::string& operation_id) const {
  OperationWorkers workers;
  absl::MutexLock lock(&mutex_);
  if (operation_id_ != operation_id) return workers;
  for (const auto& [id, trouble] : trouble_) {
    if (trouble.is_waiting) workers.waiting_for.merge(WorkersNamedBy(trouble.status));
  }
  return workers;
}

void Replicas::Cancel(const std::string& operation_id, const absl::Status& reason) {
  std::vector<std::string> transfers;
  {
    absl::MutexLock lock(&mutex_);
    if (operation_id_ != operation_id) return;
    cancelled_ = reason;
    for (auto& [id, trouble] : trouble_) {
      if (!std::exchange(trouble.is_waiting, false)) continue;
      trouble.status = reason;
      trouble.next_try = absl::InfiniteFuture();
    }
    for (const auto& [id, copy] : running_) transfers.push_back(id);
  }
  for (const std::string& id : transfers) parts_.sequencer->AbortTransfer(id, reason).IgnoreError();
  thread_.Run([this] { Pump(); });
}

void Replicas::TileArriving(std::string_view transfer_id, std::string_view identity,
                            int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  const auto copy = running_.find(transfer_id);
  if (copy == running_.end()) return;
  int64_t& arrived = copy->second.arrived[std::string(identity)];
  arrived = std::max(arrived, bytes);
  int64_t sum = 0;
  for (const auto& [worker, each] : copy->second.arrived) sum = AddCapped(sum, each);
  // Under the lock, so that no part comes after the Add for the whole array.
  parts_.operations->SetPart(operation_id_, std::string(transfer_id), sum);
}

std::optional<ArrayReplicas> Replicas::Describe(const Array& array) const {
  if (array.definition.replicas < 2) return std::nullopt;
  const ArrayDescriptor& descriptor = array.definition.descriptor;
  ArrayReplicas replicas{.wanted = array.definition.replicas};
  const std::shared_ptr<const MembershipView> view = parts_.membership->view();
  const MeshRanks* const ranks = view->FindMesh(descriptor.mesh_id);
  const std::vector<std::string> hosts =
      ranks == nullptr ? std::vector<std::string>() : HostsOf(*view, ranks->identities);
  const ArrayPtr companion = parts_.registry->FindTwin(descriptor.array_id);
  const absl::StatusOr<Tiling> tiling = descriptor.Tiling();
  replicas.by_spec = companion == nullptr && tiling.ok() && IsBySpec(array, *tiling);
  const bool lacks_tiles =
      !array.missing_ranks.empty() || (companion != nullptr && !companion->missing_ranks.empty());
  if (!lacks_tiles) {
    replicas.complete = companion != nullptr || replicas.by_spec ? 2 : 1;
  } else {
    replicas.complete = tiling.ok() && EachTileIsHeld(array, companion.get(), *tiling) ? 1 : 0;
  }
  if (companion != nullptr) {
    const MeshRanks* const copies = view->FindMesh(companion->definition.descriptor.mesh_id);
    if (copies == nullptr) return replicas;
    const std::vector<std::string> others = HostsOf(*view, copies->identities);
    for (size_t rank = 0; rank < std::min(hosts.size(), others.size()); ++rank) {
      replicas.shares_host |= hosts[rank] == others[rank];
    }
    return replicas;
  }
  if (replicas.by_spec) {
    replicas.shares_host = std::all_of(
        hosts.begin(), hosts.end(), [&](const std::string& host) { return host == hosts.front(); });
    return replicas;
  }
  absl::MutexLock lock(&mutex_);
  const auto trouble = trouble_.find(descriptor.array_id);
  if (trouble != trouble_.end() && !trouble->second.is_waiting) {
    replicas.failure = FailureInWords(trouble->second.status);
  } else {
    replicas.operation_id = operation_id_;
  }
  return replicas;
}

ReplicaTotals Replicas::totals() const {
  absl::MutexLock lock(&mutex_);
  ReplicaTotals totals{.waiting = std::ssize(running_) + std::ssize(queue_),
                       .copied_arrays = copied_arrays_,
                       .copied_bytes = copied_bytes_};
  for (const auto& [id, trouble] : trouble_)
    ++(trouble.is_waiting ? totals.waiting : totals.failed);
  return totals;
}

}  // namespace shardmesh::server
