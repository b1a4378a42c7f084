// Orders to the workers' quarantines, and what follows from the answers.
#include "server/quarantine_calls.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "rpc/array_codec.h"
#include "rpc/clock.h"
#include "rpc/field_check.h"
#include "rpc/log.h"
#include "rpc/spec_codec.h"
#include "rpc/status.h"
#include "rpc/worker_error_codec.h"
#include "sharding/reason.h"
#include "sharding/status_macros.h"
#include "sharding/str_cat.h"
#include "shardmesh/v1/attach_service.pb.h"
#include "shardmesh/v1/cluster_service.pb.h"

namespace shardmesh::server {
namespace {

constexpr int kDefaultPage = 100;
constexpr int kMaxPage = 1'000;
constexpr int kMaxIds = 1'000;
constexpr size_t kPageBytes = size_t{1} << 20;
constexpr size_t kMaxArrayIdBytes = 64;
// How long a worker may take to answer: it may have to read or remove files of many gigabytes, but
// a disk that hangs must not keep a caller without a deadline for ever.
constexpr absl::Duration kOrderTime = absl::Minutes(5);

using Action = v1::QuarantineOrder;

std::vector<std::string> AliveWorkers(const ArrayContext& context) {
  const std::shared_ptr<const MembershipView> view = context.membership->view();
  std::vector<std::string> identities;
  for (const auto& [identity, worker] : view->workers) {
    if (view->IsAlive(identity)) identities.push_back(identity);
  }
  return identities;
}

absl::Status CheckArrayId(const std::string& array_id, std::string_view field) {
  if (!array_id.empty() && array_id.size() <= kMaxArrayIdBytes) return absl::OkStatus();
  return rpc::BadField(
      field, StrCat("has ", array_id.size(), " bytes; an array's id has 1 to ", kMaxArrayIdBytes));
}

absl::Status NotQuarantined() {
  return WithReason(absl::NotFoundError("no attached worker has the array in its quarantine; "
                                        "`shardmesh admin quarantine list` shows what there is"),
                    Reason::kNotFound);
}

// One order after the other, each answered within kOrderTime and before the next; ends with the
// first error, or when it is stopped. An order that nobody waits for any more is forgotten.
class Orders : public std::enable_shared_from_this<Orders> {
 public:
  struct Order {
    std::string identity;
    v1::QuarantineOrder order;
  };
  // False: the rest is not asked.
  using Answered = absl::AnyInvocable<bool(const std::string& identity, v1::QuarantineAnswer)>;

  // `stop` may be null: nothing but an error ends it.
  static void Run(rpc::Clock* clock, AttachHub* hub, std::deque<Order> orders,
                  const QuarantineStopPtr& stop, Answered answered, QuarantineDone done) {
    auto run = std::make_shared<Orders>();
    run->clock_ = clock;
    run->hub_ = hub;
    {
      absl::MutexLock lock(&run->mutex_);
      run->orders_ = std::move(orders);
    }
    run->answered_ = std::move(answered);
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
        timer_ = clock_->CallAt(clock_->Now() + kOrderTime, [run = weak_from_this(), number,
                                                             identity = next.identity] {
          const auto self = run.lock();
          if (self == nullptr) return;
          self->Take(
              number, identity,
              absl::DeadlineExceededError(StrCat(
                  "worker \"", identity, "\" has not answered for ", rpc::FormatRounded(kOrderTime),
                  " what is in its quarantine; does its disk hang?")));
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
    if (status.ok() && answer->has_error()) {
      status = WithContext(rpc::Decode(answer->error()), StrCat("worker \"", identity, "\""));
    }
    if (!status.ok()) return std::move(done_)(status);
    if (!answered_(identity, *std::move(answer))) {
      absl::MutexLock lock(&mutex_);
      orders_.clear();
    }
    Next();
  }

  rpc::Clock* clock_ = nullptr;
  AttachHub* hub_ = nullptr;
  // Touched by whoever has taken the answer that was waited for, one after the other.
  Answered answered_;
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
  const ArrayContext context;
  AttachHub* const hub;
  const v1::RestoreQuarantinedRequest* const request;
  v1::RestoreQuarantinedResponse* const response;
  QuarantineDone done;

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
  const std::shared_ptr<const MembershipView> view = restore.context.membership->view();
  const MeshRanks* ranks = view->FindMesh(mesh_id);
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

// Of an array that the catalogue knows: the tiles that it misses.
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
            restore->context.catalogue->CheckTile(held.array().array_id(), *rank, tile, crc32c));
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

// Of an array that the catalogue does not know: every rank's tile.
absl::Status ChooseAll(Restore* restore) {
  const Restore& from = *restore;
  const v1::QuarantinedArray& first = from.held.begin()->second;
  SHARDMESH_ASSIGN_OR_RETURN(ArrayDescriptor descriptor, rpc::Decode(first.array()));
  std::string name = from.request->name().empty() ? StrCat("restored/", descriptor.array_id)
                                                  : from.request->name();
  // Before any tile is moved.
  SHARDMESH_RETURN_IF_ERROR(from.context.catalogue->CheckNewName(name));
  const std::shared_ptr<const ClusterState> state = from.context.publisher->shared_state();
  const auto definition = state->Find(DefinitionKind::kMesh, descriptor.mesh_id);
  if (!definition.ok()) return definition.status();
  const Mesh& mesh = std::get<rpc::MeshDefinition>((*definition)->value).mesh;
  if (!(mesh == descriptor.mesh)) {
    return absl::FailedPreconditionError(StrCat(
        "the array lies on the mesh \"", descriptor.mesh_id, "\" as ", descriptor.mesh.ToString(),
        ", which is ", mesh.ToString(), " now; define the mesh as it was, or drop the array"));
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
  std::vector<int64_t> missing;
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    if (restore->ranks.count(rank) == 0) missing.push_back(rank);
  }
  if (!missing.empty()) {
    return WithReason(
        absl::FailedPreconditionError(StrCat(
            "ranks ", StrJoin(missing, ", "), " of mesh \"", descriptor.mesh_id,
            "\" have no tile of the array in quarantine; start their workers, or drop the array")),
        Reason::kMeshIncomplete);
  }
  restore->commit.arrays.push_back(std::move(commit));
  restore->commit.moves.push_back(
      {.name = name, .array_id = descriptor.array_id, .expected_version = 0});
  restore->response->set_name(std::move(name));
  // Named arrays keep the revision that they were put at, unless the mesh was defined anew.
  descriptor.mesh_revision = (*definition)->revision;
  SHARDMESH_RETURN_IF_ERROR(from.context.catalogue->Stage({.descriptor = descriptor}));
  restore->staged = std::move(descriptor);
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
  restore.context.catalogue->Discard({restore.staged->array_id});
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
  if (!restore->staged.has_value()) return EndRestore(restore, absl::OkStatus());
  restore->context.catalogue->Commit(std::move(restore->commit),
                                     [restore](const absl::StatusOr<CommitResult>& committed) {
                                       EndRestore(restore, committed.status());
                                     });
}

void BeginRestore(const RestorePtr& restore) {
  const std::string& array_id = restore->request->array_id();
  if (restore->held.empty()) {
    return EndRestore(restore, WithContext(NotQuarantined(), StrCat("array ", array_id)));
  }
  const absl::StatusOr<ArrayPtr> known = restore->context.catalogue->FindArray(array_id);
  const absl::Status chosen =
      known.ok() ? ChooseMissing(*known, restore.get()) : ChooseAll(restore.get());
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
          return EndRestore(restore, absl::UnavailableError(
                                         "a worker dropped its tile meanwhile; look what is left"));
        }
        CommitRestore(restore);
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

void ListQuarantine(const ArrayContext& context, AttachHub* hub,
                    const v1::ListQuarantineRequest* request, v1::ListQuarantineResponse* response,
                    const QuarantineStopPtr& stop, QuarantineDone done) {
  if (request->page_size() < 0 || request->page_size() > kMaxPage) {
    return std::move(done)(rpc::BadField(
        "page_size", StrCat("is ", request->page_size(), "; it must be from 0 to ", kMaxPage)));
  }
  const int page_size = request->page_size() == 0 ? kDefaultPage : request->page_size();
  // The last worker on the page before, and its last array.
  const size_t slash = request->page_token().rfind('/');
  if (!request->page_token().empty() && slash == std::string::npos) {
    return std::move(done)(rpc::BadField("page_token", "is none that this call has given"));
  }
  const std::string last_identity =
      slash == std::string::npos ? "" : request->page_token().substr(0, slash);
  std::vector<std::string> identities = AliveWorkers(context);
  if (!request->identity().empty()) {
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
    if (identity < last_identity) continue;
    Orders::Order& order = orders.emplace_back(OrderOf(identity, Action::ACTION_LIST, {}));
    order.order.set_max_arrays(page_size);
    if (identity == last_identity) {
      order.order.set_start_after(request->page_token().substr(slash + 1));
    }
  }
  Orders::Run(
      context.clock, hub, std::move(orders), stop,
      [response, page_size](const std::string& identity, v1::QuarantineAnswer answer) {
        for (v1::QuarantinedArray& array : *answer.mutable_arrays()) {
          if (response->arrays_size() >= page_size || response->ByteSizeLong() > kPageBytes) {
            answer.set_has_more(true);
            break;
          }
          *response->add_arrays() = std::move(array);
        }
        const bool is_full =
            response->arrays_size() >= page_size || response->ByteSizeLong() > kPageBytes;
        if (response->arrays_size() == 0 || !(is_full || answer.has_more())) return true;
        const v1::QuarantinedArray& last = response->arrays(response->arrays_size() - 1);
        response->set_next_page_token(StrCat(last.identity(), "/", last.array().array_id()));
        return false;
      },
      std::move(done));
}

void RestoreQuarantined(const ArrayContext& context, AttachHub* hub,
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
                                                         .done = std::move(done)});
  std::deque<Orders::Order> orders;
  for (const std::string& identity : AliveWorkers(context)) {
    orders.push_back(OrderOf(identity, Action::ACTION_LIST, {request->array_id()}));
  }
  Orders::Run(
      context.clock, hub, std::move(orders), stop,
      [restore](const std::string& identity, v1::QuarantineAnswer answer) {
        if (answer.arrays_size() > 0) {
          restore->held[identity] = std::move(*answer.mutable_arrays(0));
        }
        return true;
      },
      [restore](const absl::Status& status) {
        if (!status.ok()) return EndRestore(restore, status);
        BeginRestore(restore);
      });
}

void DropQuarantined(const ArrayContext& context, AttachHub* hub,
                     const v1::DropQuarantinedRequest* request,
                     v1::DropQuarantinedResponse* response, const QuarantineStopPtr& stop,
                     QuarantineDone done) {
  if (request->array_ids_size() < 1 || request->array_ids_size() > kMaxIds) {
    return std::move(done)(rpc::BadField(
        "array_ids", StrCat("has ", request->array_ids_size(), " ids; name 1 to ", kMaxIds)));
  }
  const std::vector<std::string> ids(request->array_ids().begin(), request->array_ids().end());
  for (const std::string& id : ids) {
    if (const absl::Status valid = CheckArrayId(id, "array_ids"); !valid.ok()) {
      return std::move(done)(valid);
    }
  }
  std::deque<Orders::Order> orders;
  for (const std::string& identity : AliveWorkers(context)) {
    orders.push_back(OrderOf(identity, Action::ACTION_DROP, ids));
  }
  Orders::Run(
      context.clock, hub, std::move(orders), stop,
      [response](const std::string&, v1::QuarantineAnswer answer) {
        for (v1::QuarantinedArray& array : *answer.mutable_arrays()) {
          *response->add_arrays() = std::move(array);
        }
        return true;
      },
      [response, done = std::move(done)](const absl::Status& status) mutable {
        if (status.ok()) {
          rpc::LogInfo("arrays were dropped from quarantine, as a client asked",
                       {{"arrays", response->arrays_size()}});
        }
        std::move(done)(status.ok() && response->arrays_size() == 0 ? NotQuarantined() : status);
      });
}

}  // namespace shardmesh::server
