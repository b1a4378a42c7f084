// Orders to the workers' quarantines, and what follows from the answers.
#include "server/service/quarantine_calls.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "process/clock.h"
#include "process/log.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/field_check.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "rpc/codec/worker_error_codec.h"
#include "server/service/array_view_codec.h"
#include "server/state/recovery.h"
#include "shardmesh/v1/attach_service.pb.h"
#include "shardmesh/v1/cluster_service.pb.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

constexpr int kDefaultPage = 100;
constexpr int kMaxPage = 1'000;
constexpr int kMaxIds = 1'000;
constexpr size_t kPageBytes = size_t{1} << 20;
constexpr size_t kMaxArrayIdBytes = 64;
constexpr size_t kMaxUnreachedReason = 1024;
// How long a worker may take to answer: it may have to read or remove files of many gigabytes, but
// a disk that hangs must not keep a caller without a deadline for ever.
constexpr absl::Duration kOrderTime = absl::Minutes(5);

using Action = v1::QuarantineOrder;

std::vector<std::string> AliveWorkers(const MembershipView& view) {
  std::vector<std::string> identities;
  for (const auto& [identity, worker] : view.workers) {
    if (view.IsAlive(identity)) identities.push_back(identity);
  }
  return identities;
}

// Attachments of the workers that were asked what they have, by identity.
using AskedWorkers = std::map<std::string, uint64_t>;

// The workers that are alive and were not asked since they attached; they count as asked from here
// on. Who attaches while others answer is among them, and so is who attaches anew: what it has may
// be other than before.
std::vector<std::string> TakeUnasked(const MembershipView& view, AskedWorkers* asked) {
  std::vector<std::string> unasked;
  for (std::string& identity : AliveWorkers(view)) {
    const uint64_t attachment = view.FindWorker(identity)->attachment;
    if (std::exchange((*asked)[identity], attachment) == attachment) continue;
    unasked.push_back(std::move(identity));
  }
  return unasked;
}

absl::Status CheckArrayId(const std::string& array_id, std::string_view field) {
  if (!array_id.empty() && array_id.size() <= kMaxArrayIdBytes) return absl::OkStatus();
  return rpc::BadField(
      field, StrCat("has ", array_id.size(), " bytes; an array's id has 1 to ", kMaxArrayIdBytes));
}

// What an error names at most of workers, and of parts of arrays.
constexpr size_t kMostNamed = 8;

std::string FirstOf(const std::vector<std::string>& names) {
  const auto end = names.begin() + static_cast<ptrdiff_t>(std::min(names.size(), kMostNamed));
  return StrCat(
      StrJoin(std::vector<std::string>(names.begin(), end), ", "),
      names.size() > kMostNamed ? StrCat(" and ", names.size() - kMostNamed, " more") : "");
}

// A worker that serves ranks and is not attached.
struct AwayWorker {
  std::vector<std::string> ranks = {};  // `rank 1 of mesh "m"`
  std::string why = {};
  bool comes_back = false;
};
using AwayWorkers = std::map<std::string, AwayWorker>;  // by identity

// Of these meshes. Of all meshes if there are none, or one whose ranks are not known: any worker
// may have tiles of its arrays. The view is the one by which the others were asked: so each worker
// was asked or is away, whoever comes or goes meanwhile.
AwayWorkers FindAway(const CoordinatorParts& context, const MembershipView& view,
                     const std::set<std::string>& mesh_ids) {
  const bool takes_all =
      mesh_ids.empty() || std::any_of(mesh_ids.begin(), mesh_ids.end(), [&](const auto& mesh_id) {
        const MeshRanks* const mesh = view.FindMesh(mesh_id);
        return mesh == nullptr || mesh->identities.empty();
      });
  AwayWorkers away;
  for (const auto& [mesh_id, mesh] : view.meshes) {
    if (!takes_all && mesh_ids.count(mesh_id) == 0) continue;
    for (const int64_t rank : view.MissingRanks(*mesh)) {
      const std::string& identity = mesh->identities[static_cast<size_t>(rank)];
      AwayWorker& worker = away[identity];
      worker.ranks.push_back(StrCat("rank ", rank, " of mesh \"", mesh_id, "\""));
      const WorkerStatus* const known = view.FindWorker(identity);
      worker.why =
          known == nullptr ? "not attached since the coordinator started" : known->lost_because;
      worker.comes_back = context.recovery->ComesBack(identity);
    }
  }
  return away;
}

// `worker-1 (rank 1 of mesh "m": not attached since the coordinator started), ...`
std::string Describe(const AwayWorkers& away) {
  std::vector<std::string> names;
  for (const auto& [identity, worker] : away) {
    names.push_back(StrCat(identity, " (", FirstOf(worker.ranks), ": ", worker.why, ")"));
  }
  return FirstOf(names);
}

bool AnyComesBack(const AwayWorkers& away) {
  return std::any_of(away.begin(), away.end(),
                     [](const auto& each) { return each.second.comes_back; });
}
bool AllComeBack(const AwayWorkers& away) {
  return std::all_of(away.begin(), away.end(),
                     [](const auto& each) { return each.second.comes_back; });
}

void Encode(const std::string& identity, const AwayWorker& worker, v1::UnreachedWorker* to) {
  to->set_identity(identity);
  std::string reason = StrCat(FirstOf(worker.ranks), worker.ranks.empty() ? "" : ": ", worker.why);
  if (size_t end = kMaxUnreachedReason; reason.size() > end) {
    while (end > 0 && (static_cast<uint8_t>(reason[end]) & 0xC0) == 0x80)
      --end;  // whole characters
    reason.resize(end);
  }
  to->set_reason(std::move(reason));
  to->set_expected_back(worker.comes_back);
}

// UNAVAILABLE (RECOVERING) while workers are expected back that may have what was asked for.
absl::Status NotQuarantined(const CoordinatorParts& context, const MembershipView& view,
                            std::string_view what) {
  const AwayWorkers away = FindAway(context, view, {});
  if (AnyComesBack(away)) {
    return Recovering(StrCat("no attached worker has ", what, " in its quarantine, and ",
                             Describe(away), " may come back with it; try again"));
  }
  return WithReason(
      absl::NotFoundError(StrCat("no attached worker has ", what, " in its quarantine",
                                 away.empty() ? "" : StrCat("; not attached are ", Describe(away)),
                                 "; `shardmesh admin quarantine list` shows what there is")),
      Reason::kNotFound);
}

std::string HeldFor(const CoordinatorParts& context, const UnnamedArray& array) {
  return array.until == absl::InfiniteFuture()
             ? "until the records of the state that cannot be read are set aside"
             : StrCat("for ", rpc::FormatRounded(array.until - context.clock->Now()));
}

// One order after the other, each answered within kOrderTime and before the next; ends with the
// first error, unless `failed` says to go on, or when it is stopped. An order that nobody waits for
// any more is forgotten.
class Orders : public std::enable_shared_from_this<Orders> {
 public:
  struct Order {
    std::string identity;
    v1::QuarantineOrder order;
  };
  // False: the rest is not asked. Of an answer with an error, what it has all the same comes first.
  using Answered = absl::AnyInvocable<bool(const std::string& identity, v1::QuarantineAnswer)>;
  // True: the rest is asked nevertheless.
  using Failed = absl::AnyInvocable<bool(const std::string& identity, const absl::Status&)>;

  // `stop` may be null: nothing but an error ends it.
  static void Run(rpc::Clock* clock, QuarantineAccess* hub, std::deque<Order> orders,
                  const QuarantineStopPtr& stop, Answered answered, QuarantineDone done,
                  Failed failed = nullptr) {
    auto run = std::make_shared<Orders>();
    run->clock_ = clock;
    run->hub_ = hub;
    {
      absl::MutexLock lock(&run->mutex_);
      run->orders_ = std::move(orders);
    }
    run->answered_ = std::move(answered);
    run->failed_ = std::move(failed);
    run->done_ = std::move(done);
    if (stop != nullptr) {
      stop->Set([weak = std::weak_ptr<Orders>(run)] {
        if (const auto self = weak.lock(); self != nullptr) self->Stop();
      });
    }
    run->Next();
  }

 private:
  void Next() {
    Order next;
    uint64_t number = 0;
    {
      absl::MutexLock lock(&mutex_);
      if (!is_stopped_ && !orders_.empty()) {
        next = std::move(orders_.front());
        orders_.pop_front();
        number = waits_for_ = ++last_;
        order_ = 0;
        timer_ = clock_->CallAt(
            clock_->Now() + kOrderTime, [run = weak_from_this(), number, identity = next.identity] {
              const auto self = run.lock();
              if (self == nullptr) return;
              self->Take(number, identity,
                         WithReason(absl::DeadlineExceededError(
                                        StrCat("worker \"", identity, "\" has not answered for ",
                                               rpc::FormatRounded(kOrderTime),
                                               " what is in its quarantine; does its disk hang?")),
                                    Reason::kDeadline));
            });
      }
    }
    if (number == 0) return std::move(done_)(Stopped());
    const int64_t order =
        hub_->OrderQuarantine(next.identity, std::move(next.order),
                              [self = shared_from_this(), number, identity = next.identity](
                                  absl::StatusOr<v1::QuarantineAnswer> answer) {
                                self->Take(number, identity, std::move(answer));
                              });
    {
      absl::MutexLock lock(&mutex_);
      if (waits_for_ == number) {
        order_ = order;
        return;
      }
    }
    hub_->ForgetQuarantineOrder(order);  // unless it was answered
  }

  // OK unless it was stopped.
  absl::Status Stopped() {
    absl::MutexLock lock(&mutex_);
    return is_stopped_ ? absl::CancelledError("the client has gone") : absl::OkStatus();
  }

  void Stop() {
    uint64_t number = 0;
    {
      absl::MutexLock lock(&mutex_);
      is_stopped_ = true;
      number = waits_for_;
    }
    // Between two orders whoever has the answer goes on, and finds that it was stopped.
    if (number != 0) Take(number, "", Stopped());
  }

  // The answer to the order of this number, or why it is not waited for any longer. One that comes
  // too late counts for nothing.
  void Take(uint64_t number, const std::string& identity,
            absl::StatusOr<v1::QuarantineAnswer> answer) {
    int64_t order = 0;
    {
      absl::MutexLock lock(&mutex_);
      if (waits_for_ != number) return;
      waits_for_ = 0;
      clock_->Cancel(timer_);
      order = std::exchange(order_, 0);
    }
    if (order != 0) hub_->ForgetQuarantineOrder(order);  // unless it was answered
    absl::Status status = answer.status();
    bool goes_on = true;
    if (answer.ok()) {
      if (answer->has_error()) {
        status = WithContext(rpc::Decode(answer->error()), StrCat("worker \"", identity, "\""));
      }
      goes_on = answered_(identity, *std::move(answer));
    }
    // An empty identity: it was stopped.
    if (!status.ok() && (identity.empty() || !failed_ || !failed_(identity, status))) {
      return std::move(done_)(status);
    }
    if (!goes_on) {
      absl::MutexLock lock(&mutex_);
      orders_.clear();
    }
    Next();
  }

  rpc::Clock* clock_ = nullptr;
  QuarantineAccess* hub_ = nullptr;
  // Touched by whoever has taken the answer that was waited for, one after the other.
  Answered answered_;
  Failed failed_;
  QuarantineDone done_;
  absl::Mutex mutex_;
  std::deque<Order> orders_ ABSL_GUARDED_BY(mutex_);
  bool is_stopped_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t waits_for_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: for no answer
  int64_t order_ ABSL_GUARDED_BY(mutex_) = 0;  // the hub's number of that one; 0: not known yet
  rpc::Clock::TimerId timer_ ABSL_GUARDED_BY(mutex_);
};

Orders::Order OrderOf(const std::string& identity, Action::Action action,
                      const std::vector<std::string>& array_ids) {
  Orders::Order order{.identity = identity, .order = {}};
  order.order.set_action(action);
  for (const std::string& id : array_ids) order.order.add_array_ids(id);
  order.order.set_max_arrays(kMaxPage);
  return order;
}

// The restore of one array.
struct Restore {
  const CoordinatorParts context;
  QuarantineAccess* const hub;
  const v1::RestoreQuarantinedRequest* const request;
  v1::RestoreQuarantinedResponse* const response;
  const QuarantineStopPtr stop;
  QuarantineDone done;

  AskedWorkers asked = {};
  // All that are alive in it were asked.
  std::shared_ptr<const MembershipView> view = nullptr;
  std::map<std::string, v1::QuarantinedArray> held = {};  // by identity
  // What comes back, by rank.
  std::map<int64_t, std::string> ranks = {};
  CommitRequest commit = {};
  std::optional<ArrayDescriptor> staged = {};
};
using RestorePtr = std::shared_ptr<Restore>;

// Whose tile of the array this worker has put aside: its rank's.
absl::StatusOr<int64_t> RankIn(const Restore& restore, const std::string& mesh_id,
                               const std::string& identity) {
  const MeshRanks* ranks = restore.view->FindMesh(mesh_id);
  const std::optional<int64_t> rank = ranks == nullptr ? std::nullopt : ranks->RankOf(identity);
  if (rank.has_value()) return *rank;
  return absl::FailedPreconditionError(StrCat(
      "worker \"", identity, "\" has the array ", restore.request->array_id(),
      ", but serves no rank of its mesh \"", mesh_id, "\"; give the mesh the workers that it had"));
}

absl::StatusOr<std::vector<std::pair<Tile, uint32_t>>> TilesOf(const v1::QuarantinedArray& held) {
  std::vector<std::pair<Tile, uint32_t>> tiles;
  for (const v1::QuarantinedTile& tile : held.tiles()) {
    SHARDMESH_ASSIGN_OR_RETURN(Tile decoded, rpc::Decode(tile.tile()));
    tiles.emplace_back(std::move(decoded), tile.crc32c());
  }
  return tiles;
}

// Of an array that the registry knows: the tiles that it misses.
absl::Status ChooseMissing(const ArrayPtr& array, Restore* restore) {
  const std::string& mesh_id = array->definition.descriptor.mesh_id;
  absl::Status why;
  for (const auto& [identity, held] : restore->held) {
    const absl::StatusOr<int64_t> rank = RankIn(*restore, mesh_id, identity);
    absl::Status fits = rank.status();
    if (rank.ok()) {
      SHARDMESH_ASSIGN_OR_RETURN(const auto tiles, TilesOf(held));
      for (const auto& [tile, crc32c] : tiles) {
        fits.Update(
            restore->context.registry->CheckTile(held.array().array_id(), *rank, tile, crc32c));
      }
    }
    if (fits.ok()) {
      restore->ranks.emplace(*rank, identity);
    } else {
      why.Update(fits);
    }
  }
  return restore->ranks.empty() ? why : absl::OkStatus();
}

absl::Status InProgress(const std::string& array_id) {
  return rpc::WithRetryDelay(
      WithReason(absl::AbortedError(
                     StrCat("array ", array_id, " is being restored by another call; try again")),
                 Reason::kAlreadyExists),
      absl::Milliseconds(200));
}

// The name that the array gets; one that could not be given is refused before any tile is moved.
absl::StatusOr<std::string> NewName(const Restore& restore) {
  const std::string& asked = restore.request->name();
  std::string name = asked.empty() ? StrCat("restored/", restore.request->array_id()) : asked;
  SHARDMESH_RETURN_IF_ERROR(restore.context.registry->CheckNewName(name));
  return name;
}

// Of an array that is in no place whole: OK, or which ranks lack its tile, and what helps.
absl::Status CheckAllThere(const Restore& restore, const ArrayDescriptor& array) {
  const MembershipView& view = *restore.view;
  const MeshRanks* const mesh = view.FindMesh(array.mesh_id);
  const std::optional<UnnamedArray> unnamed = restore.context.registry->FindUnnamed(array.array_id);
  std::vector<std::string> missing;
  std::vector<std::string> in_use;
  bool is_away = false;
  for (int64_t rank = 0; rank < array.mesh.size(); ++rank) {
    const bool is_given = mesh != nullptr && rank < std::ssize(mesh->identities);
    const std::string identity = is_given ? mesh->identities[static_cast<size_t>(rank)] : "";
    if (is_given && restore.held.count(identity) > 0) continue;
    if (unnamed.has_value() &&
        std::find(unnamed->missing_ranks.begin(), unnamed->missing_ranks.end(), rank) ==
            unnamed->missing_ranks.end()) {
      in_use.push_back(StrCat(rank));
      continue;
    }
    is_away = is_away || !is_given || !view.IsAlive(identity);
    missing.push_back(is_given ? view.DescribeRank(*mesh, rank) : StrCat("rank ", rank));
  }
  const std::string what = StrCat("array ", array.array_id, " on mesh \"", array.mesh_id, "\"");
  if (is_away) {
    const AwayWorkers away = FindAway(restore.context, view, {array.mesh_id});
    if (!away.empty() && AllComeBack(away)) {
      return Recovering(
          StrCat(what, " waits for the tiles of ", FirstOf(missing), ", expected back; try again"));
    }
    return WithReason(
        absl::FailedPreconditionError(StrCat(what, " lacks the tiles of ", FirstOf(missing),
                                             "; start those workers, and restore it again")),
        Reason::kMeshIncomplete);
  }
  if (!missing.empty()) {
    return WithReason(absl::FailedPreconditionError(StrCat(
                          what, " lacks the tiles of ", FirstOf(missing),
                          ", whose workers are attached without them; it cannot be whole again")),
                      Reason::kMeshIncomplete);
  }
  if (in_use.empty()) return absl::OkStatus();
  return WithReason(
      absl::FailedPreconditionError(StrCat(
          what, " is in quarantine in part: ranks ", FirstOf(in_use),
          " have their tiles in use without a name, held ", HeldFor(restore.context, *unnamed),
          "; after that all of it is in quarantine: restore it then")),
      Reason::kMeshIncomplete);
}

// Of an array that the registry does not know: every rank's tile.
absl::Status ChooseAll(Restore* restore) {
  const Restore& from = *restore;
  const v1::QuarantinedArray& first = from.held.begin()->second;
  SHARDMESH_ASSIGN_OR_RETURN(ArrayDescriptor descriptor, rpc::Decode(first.array()));
  SHARDMESH_ASSIGN_OR_RETURN(std::string name, NewName(from));
  const std::shared_ptr<const Definitions> state = from.context.definition_store->shared_state();
  const auto definition = state->Find(DefinitionKind::kMesh, descriptor.mesh_id);
  if (!definition.ok()) return definition.status();
  const Mesh& mesh = std::get<rpc::MeshDefinition>((*definition)->value).mesh;
  if (!(mesh == descriptor.mesh)) {
    return absl::FailedPreconditionError(StrCat(
        "the array lies on the mesh \"", descriptor.mesh_id, "\" as ", descriptor.mesh.ToString(),
        ", which is ", mesh.ToString(), " now; define the mesh as it was"));
  }
  if (!descriptor.spec.unreduced().empty() && descriptor.mesh_revision != (*definition)->revision) {
    // The place of a part does not say whose it is.
    return absl::FailedPreconditionError(StrCat(
        "the array is a partial sum on revision ", descriptor.mesh_revision, " of the mesh \"",
        descriptor.mesh_id, "\", which is at revision ", (*definition)->revision,
        " now: which rank had which part is not certain any more; compute it again"));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, descriptor.Tiling());
  ArrayCommit commit{.array_id = descriptor.array_id,
                     .durability = Durability::kDisk,
                     .tile_crc32c = std::vector<uint32_t>(static_cast<size_t>(mesh.size()))};
  for (const auto& [identity, held] : from.held) {
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t rank, RankIn(from, descriptor.mesh_id, identity));
    SHARDMESH_ASSIGN_OR_RETURN(const auto tiles, TilesOf(held));
    SHARDMESH_ASSIGN_OR_RETURN(const ArrayDescriptor each, rpc::Decode(held.array()));
    const bool fits = each == descriptor && tiles.size() == 1 && rank < mesh.size() &&
                      tiling.TileOf(rank) == tiles.front().first;
    if (!fits) {
      return absl::FailedPreconditionError(
          StrCat("worker \"", identity, "\" has another part of the array than that of rank ", rank,
                 ", which it serves; give the mesh the workers that it had"));
    }
    commit.tile_crc32c[static_cast<size_t>(rank)] = tiles.front().second;
    if (held.durability() != v1::DURABILITY_DISK) commit.durability = Durability::kMemory;
    restore->ranks.emplace(rank, identity);
  }
  SHARDMESH_RETURN_IF_ERROR(CheckAllThere(from, descriptor));
  restore->commit.arrays.push_back(std::move(commit));
  restore->commit.moves.push_back(
      {.name = name, .array_id = descriptor.array_id, .expected_version = 0});
  restore->response->set_name(std::move(name));
  // Named arrays keep the revision that they were put at, unless the mesh was defined anew.
  descriptor.mesh_revision = (*definition)->revision;
  const absl::Status staged = from.context.registry->Stage({.descriptor = descriptor});
  if (absl::IsAlreadyExists(staged)) return InProgress(descriptor.array_id);
  SHARDMESH_RETURN_IF_ERROR(staged);
  restore->staged = std::move(descriptor);
  return absl::OkStatus();
}

// Of an array that is held without a name.
absl::Status ChooseName(const Array& array, Restore* restore) {
  SHARDMESH_ASSIGN_OR_RETURN(std::string name, NewName(*restore));
  const ArrayDescriptor& descriptor = array.definition.descriptor;
  if (const MeshRanks* const mesh = restore->view->FindMesh(descriptor.mesh_id); mesh != nullptr) {
    for (int64_t rank = 0; rank < std::ssize(mesh->identities); ++rank) {
      if (std::binary_search(array.missing_ranks.begin(), array.missing_ranks.end(), rank))
        continue;
      restore->response->add_identities(mesh->identities[static_cast<size_t>(rank)]);
    }
  }
  restore->commit.moves.push_back(
      {.name = name, .array_id = descriptor.array_id, .expected_version = 0});
  restore->response->set_name(std::move(name));
  return absl::OkStatus();
}

// What workers took back is put aside again, for the reason that it was aside before.
void TakeBack(const Restore& restore) {
  if (!restore.staged.has_value()) return;
  const absl::StatusOr<Tiling> tiling = restore.staged->Tiling();
  for (const auto& [rank, identity] : restore.ranks) {
    const v1::QuarantinedArray& held = restore.held.at(identity);
    InventoryVerdict verdict;
    verdict.quarantine.push_back(
        {restore.staged->array_id, tiling->TileOf(rank), held.reason(), held.array_lives()});
    restore.hub->SendVerdict(identity, verdict);
  }
  // Last, since it has waiting tiles put aside without knowing why they were.
  restore.context.registry->Discard({restore.staged->array_id});
}

void EndRestore(const RestorePtr& restore, const absl::Status& status) {
  if (!status.ok()) {
    TakeBack(*restore);
    restore->response->Clear();
    return std::move(restore->done)(status);
  }
  rpc::LogInfo("an array was restored from quarantine",
               {{"array", restore->request->array_id()}, {"name", restore->response->name()}});
  for (const auto& [rank, identity] : restore->ranks) restore->response->add_identities(identity);
  std::move(restore->done)(absl::OkStatus());
}

void CommitRestore(const RestorePtr& restore) {
  if (restore->commit.moves.empty()) return EndRestore(restore, absl::OkStatus());
  restore->context.registry->Commit(std::move(restore->commit),
                                    [restore](const absl::StatusOr<CommitResult>& committed) {
                                      EndRestore(restore, committed.status());
                                    });
}

// No attached worker has tiles of the array aside.
absl::Status NothingToRestore(const Restore& restore, const absl::StatusOr<ArrayPtr>& known,
                              const std::optional<UnnamedArray>& unnamed) {
  const std::string what = StrCat("array ", restore.request->array_id());
  if (known.ok() && (*known)->missing_ranks.empty()) {
    return WithReason(
        absl::AlreadyExistsError(StrCat(what,
                                        " is in use, with all of its tiles; nothing of it is "
                                        "in quarantine")),
        Reason::kAlreadyExists);
  }
  if (!known.ok() && unnamed.has_value()) {
    const absl::Status complete = CheckAllThere(restore, unnamed->descriptor);
    if (!complete.ok()) return complete;
  }
  return NotQuarantined(restore.context, *restore.view, what);
}

// Workers did not find all tiles any more that they had a moment before.
absl::Status Forestalled(const Restore& restore) {
  const std::string& array_id = restore.request->array_id();
  const absl::StatusOr<ArrayPtr> now = restore.context.registry->FindArray(array_id);
  const bool is_back =
      now.ok() && !restore.staged.has_value() &&
      std::none_of(restore.ranks.begin(), restore.ranks.end(), [&](const auto& each) {
        const std::vector<int64_t>& missing = (*now)->missing_ranks;
        return std::binary_search(missing.begin(), missing.end(), each.first);
      });
  if (is_back) return InProgress(array_id);
  return absl::UnavailableError("a worker dropped its tile meanwhile; look what is left");
}

void BeginRestore(const RestorePtr& restore) {
  const std::string& array_id = restore->request->array_id();
  const ArrayRegistry& registry = *restore->context.registry;
  const absl::StatusOr<ArrayPtr> known = registry.FindArray(array_id);
  if (known.ok() && (*known)->state == ArrayState::kStaging) {
    return EndRestore(restore, InProgress(array_id));
  }
  const std::optional<UnnamedArray> unnamed = registry.FindUnnamed(array_id);
  const bool needs_name = known.ok() && unnamed.has_value();
  if (restore->held.empty() && !needs_name) {
    return EndRestore(restore, NothingToRestore(*restore, known, unnamed));
  }
  absl::Status chosen;
  if (needs_name) chosen = ChooseName(**known, restore.get());
  if (chosen.ok() && !restore->held.empty()) {
    chosen = known.ok() ? ChooseMissing(*known, restore.get()) : ChooseAll(restore.get());
    // It gets its name though none of the tiles that are aside fits.
    if (needs_name) chosen = absl::OkStatus();
  }
  if (!chosen.ok()) return EndRestore(restore, chosen);
  std::deque<Orders::Order> orders;
  for (const auto& [rank, identity] : restore->ranks) {
    orders.push_back(OrderOf(identity, Action::ACTION_RESTORE, {array_id}));
  }
  const auto restored = std::make_shared<size_t>(0);
  Orders::Run(
      restore->context.clock, restore->hub, std::move(orders), /*stop=*/nullptr,
      [restored](const std::string&, const v1::QuarantineAnswer& answer) {
        // The worker has told before that the tile is back in use: of an array that lives it counts
        // at once, whatever becomes of the others.
        if (answer.arrays_size() > 0) ++*restored;
        return true;
      },
      [restore, restored](const absl::Status& status) {
        if (!status.ok()) return EndRestore(restore, status);
        if (*restored < restore->ranks.size()) {
          return EndRestore(restore, Forestalled(*restore));
        }
        CommitRestore(restore);
      });
}

// Asks who has tiles of the array, until nobody is left to ask.
void ListForRestore(const RestorePtr& restore) {
  restore->view = restore->context.membership->view();
  std::deque<Orders::Order> orders;
  for (const std::string& identity : TakeUnasked(*restore->view, &restore->asked)) {
    restore->held.erase(identity);
    orders.push_back(OrderOf(identity, Action::ACTION_LIST, {restore->request->array_id()}));
  }
  if (orders.empty()) return BeginRestore(restore);
  Orders::Run(
      restore->context.clock, restore->hub, std::move(orders), restore->stop,
      [restore](const std::string& identity, v1::QuarantineAnswer answer) {
        if (answer.arrays_size() > 0) {
          restore->held[identity] = std::move(*answer.mutable_arrays(0));
        }
        return true;
      },
      [restore](const absl::Status& status) {
        if (!status.ok()) return EndRestore(restore, status);
        ListForRestore(restore);
      });
}

bool IsFull(const v1::ListQuarantineResponse& page, int page_size) {
  return page.arrays_size() + page.unnamed_arrays_size() >= page_size ||
         page.ByteSizeLong() > kPageBytes;
}

// Arrays without a name behind the page's token, `/ARRAY`; whether they fill the page, which then
// has a token for the next one.
bool ListUnnamed(const CoordinatorParts& context, std::string_view token, int page_size,
                 v1::ListQuarantineResponse* page) {
  const std::string_view start_after = token.empty() ? token : token.substr(1);
  const absl::Time now = context.clock->Now();
  for (const UnnamedArray& array : context.registry->ListUnnamed(start_after, page_size)) {
    v1::UnnamedArray* const to = page->add_unnamed_arrays();
    rpc::Encode(array.descriptor, to->mutable_array());
    for (const int64_t rank : array.missing_ranks) {
      to->add_missing_ranks(static_cast<int32_t>(rank));
    }
    to->set_durability(Encode(array.durability));
    if (array.until != absl::InfiniteFuture()) {
      rpc::Encode(std::max(array.until - now, absl::ZeroDuration()), to->mutable_held_for());
    }
    if (!IsFull(*page, page_size)) continue;
    page->set_next_page_token(StrCat("/", array.descriptor.array_id));
    return true;
  }
  return false;
}

// A page of a list, which goes by the identities of workers, those that are away among the others:
// so a page tells who is away now, and has room for all of its workers.
struct QuarantinePage {
  v1::ListQuarantineResponse* const response;
  const int page_size;
  AwayWorkers away;  // that are still to be told

  // False: the page is full, and has a token for the next one.
  bool TellAway(const std::string* before = nullptr) {
    while (!away.empty() && (before == nullptr || away.begin()->first < *before)) {
      const auto first = away.extract(away.begin());
      Encode(first.key(), first.mapped(), response->add_unreached());
      if (!IsFull(*response, page_size)) continue;
      response->set_next_page_token(StrCat(first.key(), "/"));
      return false;
    }
    return true;
  }
  bool TellAwayBefore(const std::string& identity) { return TellAway(&identity); }
  bool Add(v1::QuarantineAnswer answer) {
    bool has_more = answer.has_more();
    for (v1::QuarantinedArray& array : *answer.mutable_arrays()) {
      if (IsFull(*response, page_size)) {
        has_more = true;
        break;
      }
      *response->add_arrays() = std::move(array);
    }
    if (answer.arrays().empty() || !(has_more || IsFull(*response, page_size))) return true;
    const v1::QuarantinedArray& last = response->arrays(response->arrays_size() - 1);
    response->set_next_page_token(StrCat(last.identity(), "/", last.array().array_id()));
    return false;
  }
};

// A part of an array that a worker has aside.
struct Part {
  std::string identity;
  std::string array_id;

  std::string ToString() const { return StrCat(array_id, " on ", identity); }
  friend auto operator<=>(const Part&, const Part&) = default;
};

// The drop of some arrays: first it is asked who has parts of them.
struct Drop {
  const CoordinatorParts context;
  QuarantineAccess* const hub;
  const v1::DropQuarantinedRequest* const request;
  v1::DropQuarantinedResponse* const response;
  const QuarantineStopPtr stop;
  QuarantineDone done;

  AskedWorkers asked = {};
  std::map<Part, std::string> listed = {};  // the mesh on which it lies; empty: not known
  // Those of which more is to be asked, and behind which array.
  std::map<std::string, std::string> unlisted = {};
  std::set<Part> dropped = {};
  std::map<std::string, absl::Status> failed = {};  // by worker
  std::set<std::string> answered = {};  // workers that said what they dropped, failed or not
  AwayWorkers unreached = {};           // with `even_partly`
};
using DropPtr = std::shared_ptr<Drop>;

// With `even_partly`: goes on without the worker.
bool GoOnWithout(const std::string& identity, const absl::Status& why, Drop* drop) {
  drop->failed[identity] = why;
  if (!drop->request->even_partly()) return false;
  AwayWorker& worker = drop->unreached[identity];
  worker.why = std::string(ToStd(why.message()));
  worker.comes_back = drop->context.recovery->ComesBack(identity);
  return true;
}

// What was dropped before the error, and what was not. Nothing repeats the call by itself: who
// asked is to hear it.
absl::Status DescribeDrop(const Drop& drop, const absl::Status& error) {
  std::vector<std::string> dropped;
  std::vector<std::string> perhaps;
  std::vector<std::string> left;
  for (const auto& [part, mesh_id] : drop.listed) {
    const bool is_dropped = drop.dropped.count(part) > 0;
    const bool is_open =
        drop.failed.count(part.identity) > 0 && drop.answered.count(part.identity) == 0;
    (is_dropped ? dropped : is_open ? perhaps : left).push_back(part.ToString());
  }
  std::string text(ToStd(error.message()));
  if (!dropped.empty()) {
    StrAppend(&text, "; dropped for good: ", FirstOf(dropped));
  } else {
    StrAppend(&text, "; nothing was dropped", perhaps.empty() ? "" : " for certain");
  }
  if (!perhaps.empty()) StrAppend(&text, "; perhaps dropped: ", FirstOf(perhaps));
  if (!left.empty()) StrAppend(&text, "; not dropped: ", FirstOf(left));
  Reason reason = ReasonOf(error);
  if (reason == Reason::kUnspecified && absl::IsUnavailable(error)) reason = Reason::kWorkerLost;
  const absl::Status described(error.code(), ToAbsl(text));
  return reason == Reason::kUnspecified ? described : WithReason(described, reason);
}

// The error of a drop that went on without the workers that failed, and dropped nothing.
absl::Status AllFailed(const Drop& drop) {
  const absl::Status& first = drop.failed.begin()->second;
  std::string text(ToStd(first.message()));
  std::vector<std::string> others;
  for (auto each = std::next(drop.failed.begin()); each != drop.failed.end(); ++each) {
    others.push_back(StrCat(each->first, " (", ToStd(each->second.message()), ")"));
  }
  if (!others.empty()) StrAppend(&text, "; failed too: ", FirstOf(others));
  const absl::Status all(first.code(), ToAbsl(text));
  const Reason reason = ReasonOf(first);
  return DescribeDrop(drop, reason == Reason::kUnspecified ? all : WithReason(all, reason));
}

// Nothing was dropped yet; all workers that are alive in the view were asked.
absl::Status CheckDrop(const MembershipView& view, Drop* drop) {
  const CoordinatorParts& context = drop->context;
  std::set<std::string> absent(drop->request->array_ids().begin(),
                               drop->request->array_ids().end());
  std::set<std::string> mesh_ids;
  for (const auto& [part, mesh_id] : drop->listed) {
    absent.erase(part.array_id);
    mesh_ids.insert(mesh_id);
  }
  if (!absent.empty() || mesh_ids.count("") > 0) mesh_ids.clear();
  const AwayWorkers away = FindAway(context, view, mesh_ids);
  if (drop->request->even_partly()) {
    for (const auto& [identity, worker] : away) drop->unreached[identity] = worker;
    if (!drop->listed.empty()) return absl::OkStatus();
    if (!drop->failed.empty() && !AnyComesBack(away)) return AllFailed(*drop);
  }
  for (const std::string& id : drop->request->array_ids()) {
    const std::optional<UnnamedArray> unnamed = context.registry->FindUnnamed(id);
    if (!unnamed.has_value() || drop->request->even_partly()) continue;
    return absl::FailedPreconditionError(
        StrCat("array ", id, " is in use without a name, held ", HeldFor(context, *unnamed),
               "; nothing was dropped; drop it when it is in quarantine"));
  }
  if (drop->listed.empty()) {
    return NotQuarantined(context, view,
                          drop->request->array_ids_size() == 1
                              ? StrCat("array ", drop->request->array_ids(0))
                              : std::string("any of these arrays"));
  }
  if (away.empty()) return absl::OkStatus();
  if (AllComeBack(away)) {
    return Recovering(StrCat("parts of the arrays may be with ", Describe(away),
                             ", expected back; nothing was dropped; try again"));
  }
  return rpc::WithRetryDelay(
      WithReason(absl::FailedPreconditionError(
                     StrCat("parts of the arrays may be with ", Describe(away),
                            "; nothing was dropped; start those workers, or drop what the others "
                            "have (--even-partly)")),
                 Reason::kMeshIncomplete),
      absl::Seconds(1));
}

void EndDrop(const DropPtr& drop, const absl::Status& status) {
  if (!drop->dropped.empty()) {
    rpc::LogInfo("arrays were dropped from quarantine, as a client asked",
                 {{"parts", drop->dropped.size()}, {"of", drop->listed.size()}});
  }
  if (!status.ok()) {
    drop->response->Clear();
    return std::move(drop->done)(status);
  }
  for (const auto& [identity, worker] : drop->unreached) {
    Encode(identity, worker, drop->response->add_unreached());
  }
  std::move(drop->done)(absl::OkStatus());
}

void DropListed(const DropPtr& drop) {
  std::map<std::string, std::vector<std::string>> ids;  // by worker
  for (const auto& [part, mesh_id] : drop->listed) ids[part.identity].push_back(part.array_id);
  std::deque<Orders::Order> orders;
  for (const auto& [identity, its_ids] : ids) {
    orders.push_back(OrderOf(identity, Action::ACTION_DROP, its_ids));
  }
  Orders::Run(
      drop->context.clock, drop->hub, std::move(orders), drop->stop,
      [drop](const std::string& identity, v1::QuarantineAnswer answer) {
        drop->answered.insert(identity);
        // Of one that was away and is back since then nothing is left.
        if (!answer.has_error() && drop->failed.count(identity) == 0) {
          drop->unreached.erase(identity);
        }
        for (v1::QuarantinedArray& array : *answer.mutable_arrays()) {
          drop->dropped.insert({identity, array.array().array_id()});
          *drop->response->add_arrays() = std::move(array);
        }
        return true;
      },
      [drop](const absl::Status& status) {
        if (absl::IsCancelled(status)) return EndDrop(drop, status);
        if (!status.ok()) return EndDrop(drop, DescribeDrop(*drop, status));
        EndDrop(drop, drop->dropped.empty() && !drop->failed.empty() ? AllFailed(*drop) : status);
      },
      [drop](const std::string& identity, const absl::Status& why) {
        return GoOnWithout(identity, why, drop.get());
      });
}

void ListForDrop(const DropPtr& drop);

// Asks the workers that have attached since the others were asked; drops when there are none.
void ListUnasked(const DropPtr& drop) {
  const std::shared_ptr<const MembershipView> view = drop->context.membership->view();
  for (const std::string& identity : TakeUnasked(*view, &drop->asked)) {
    std::erase_if(drop->listed, [&](const auto& each) { return each.first.identity == identity; });
    drop->failed.erase(identity);
    drop->unreached.erase(identity);
    drop->unlisted[identity] = "";
  }
  if (!drop->unlisted.empty()) return ListForDrop(drop);
  if (const absl::Status checked = CheckDrop(*view, drop.get()); !checked.ok()) {
    return EndDrop(drop, checked);
  }
  DropListed(drop);
}

// Asks for the next piece of each worker's list, until all are complete.
void ListForDrop(const DropPtr& drop) {
  const std::vector<std::string> ids(drop->request->array_ids().begin(),
                                     drop->request->array_ids().end());
  std::deque<Orders::Order> orders;
  for (const auto& [identity, start_after] : std::exchange(drop->unlisted, {})) {
    Orders::Order& order = orders.emplace_back(OrderOf(identity, Action::ACTION_LIST, ids));
    order.order.set_start_after(start_after);
  }
  Orders::Run(
      drop->context.clock, drop->hub, std::move(orders), drop->stop,
      [drop](const std::string& identity, const v1::QuarantineAnswer& answer) {
        for (const v1::QuarantinedArray& array : answer.arrays()) {
          drop->listed[{identity, array.array().array_id()}] = array.array().mesh_id();
        }
        if (answer.has_more() && answer.arrays_size() > 0) {
          drop->unlisted[identity] = answer.arrays(answer.arrays_size() - 1).array().array_id();
        }
        return true;
      },
      [drop](const absl::Status& status) {
        if (!status.ok()) return EndDrop(drop, status);
        if (!drop->unlisted.empty()) return ListForDrop(drop);
        ListUnasked(drop);
      },
      [drop](const std::string& identity, const absl::Status& why) {
        return GoOnWithout(identity, why, drop.get());
      });
}

}  // namespace

void QuarantineStop::Cancel() {
  absl::AnyInvocable<void() &&> on_cancel;
  {
    absl::MutexLock lock(&mutex_);
    is_cancelled_ = true;
    on_cancel = std::exchange(on_cancel_, nullptr);
  }
  if (on_cancel) std::move(on_cancel)();
}

void QuarantineStop::Set(absl::AnyInvocable<void() &&> on_cancel) {
  {
    absl::MutexLock lock(&mutex_);
    if (!is_cancelled_) {
      on_cancel_ = std::move(on_cancel);
      return;
    }
  }
  std::move(on_cancel)();
}

void ListQuarantine(const CoordinatorParts& context, QuarantineAccess* hub,
                    const v1::ListQuarantineRequest* request, v1::ListQuarantineResponse* response,
                    const QuarantineStopPtr& stop, QuarantineDone done) {
  if (request->page_size() < 0 || request->page_size() > kMaxPage) {
    return std::move(done)(rpc::BadField(
        "page_size", StrCat("is ", request->page_size(), "; it must be from 0 to ", kMaxPage)));
  }
  const int page_size = request->page_size() == 0 ? kDefaultPage : request->page_size();
  // The last worker on the page before, and its last array.
  const std::string& token = request->page_token();
  const size_t slash = token.rfind('/');
  if (!token.empty() && slash == std::string::npos) {
    return std::move(done)(rpc::BadField("page_token", "is none that this call has given"));
  }
  const std::string last_identity = token.empty() ? "" : token.substr(0, slash);
  const std::string last_array = token.empty() ? "" : token.substr(slash + 1);
  const std::shared_ptr<const MembershipView> view = context.membership->view();
  std::vector<std::string> identities = AliveWorkers(*view);
  AwayWorkers away;
  if (request->identity().empty()) {
    // Arrays without a name come first. The page before had some, or this one is the first.
    if (last_identity.empty() && ListUnnamed(context, token, page_size, response)) {
      return std::move(done)(absl::OkStatus());
    }
    away = FindAway(context, *view, {});
    // One of which the page before listed some arrays, and that is lost since, is told here.
    away.erase(away.begin(), last_array.empty() ? away.upper_bound(last_identity)
                                                : away.lower_bound(last_identity));
  } else {
    if (std::find(identities.begin(), identities.end(), request->identity()) == identities.end()) {
      return std::move(done)(
          WithReason(absl::NotFoundError(StrCat("no worker \"", request->identity(),
                                                "\" is attached; `shardmesh status` lists them")),
                     Reason::kNotFound));
    }
    identities = {request->identity()};
  }
  std::deque<Orders::Order> orders;
  for (const std::string& identity : identities) {
    if (identity < last_identity) continue;  // it is empty behind arrays without a name
    Orders::Order& order = orders.emplace_back(OrderOf(identity, Action::ACTION_LIST, {}));
    order.order.set_max_arrays(page_size);
    if (identity == last_identity) order.order.set_start_after(last_array);
  }
  const auto page =
      std::make_shared<QuarantinePage>(QuarantinePage{response, page_size, std::move(away)});
  Orders::Run(
      context.clock, hub, std::move(orders), stop,
      [page](const std::string& identity, v1::QuarantineAnswer answer) {
        return page->TellAwayBefore(identity) && page->Add(std::move(answer));
      },
      [page, done = std::move(done)](const absl::Status& status) mutable {
        if (status.ok() && page->response->next_page_token().empty()) page->TellAway();
        std::move(done)(status);
      });
}

void RestoreQuarantined(const CoordinatorParts& context, QuarantineAccess* hub,
                        const v1::RestoreQuarantinedRequest* request,
                        v1::RestoreQuarantinedResponse* response, const QuarantineStopPtr& stop,
                        QuarantineDone done) {
  if (const absl::Status valid = CheckArrayId(request->array_id(), "array_id"); !valid.ok()) {
    return std::move(done)(valid);
  }
  const auto restore = std::make_shared<Restore>(Restore{.context = context,
                                                         .hub = hub,
                                                         .request = request,
                                                         .response = response,
                                                         .stop = stop,
                                                         .done = std::move(done)});
  ListForRestore(restore);
}

void DropQuarantined(const CoordinatorParts& context, QuarantineAccess* hub,
                     const v1::DropQuarantinedRequest* request,
                     v1::DropQuarantinedResponse* response, const QuarantineStopPtr& stop,
                     QuarantineDone done) {
  if (request->array_ids_size() < 1 || request->array_ids_size() > kMaxIds) {
    return std::move(done)(rpc::BadField(
        "array_ids", StrCat("has ", request->array_ids_size(), " ids; name 1 to ", kMaxIds)));
  }
  for (const std::string& id : request->array_ids()) {
    if (const absl::Status valid = CheckArrayId(id, "array_ids"); !valid.ok()) {
      return std::move(done)(valid);
    }
  }
  const auto drop = std::make_shared<Drop>(Drop{.context = context,
                                                .hub = hub,
                                                .request = request,
                                                .response = response,
                                                .stop = stop,
                                                .done = std::move(done)});
  ListUnasked(drop);
}

}  // namespace shardmesh::server
