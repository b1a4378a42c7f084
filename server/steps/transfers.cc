// Puts, from their beginning to their commit or abort.
#include "server/steps/transfers.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/str_split.h"
#include "process/failpoint.h"
#include "process/random_bytes.h"
#include "server/state/session_pins.h"
#include "sharding/digest.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// The beginning of the description of a put that is no load.
constexpr std::string_view kPutOf = "put of ";

// Maximum number of puts that List examines for one page, because it examines them under the lock.
constexpr int64_t kMostLooks = 2'000;

// Returns the bytes of all tiles of an array, including replicas.
absl::StatusOr<int64_t> TileBytes(const ArrayDefinition& array) {
  SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, array.descriptor.Tiling());
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t bytes, array.descriptor.SizeBytes());
  int64_t of_replicas = 0;
  if (__builtin_mul_overflow(bytes, tiling.replica_count(), &of_replicas)) {
    of_replicas = std::numeric_limits<int64_t>::max();
  }
  return of_replicas;
}

// Returns the bytes of the tiles that the client sends of a tensor that is copied.
absl::StatusOr<int64_t> SentBytes(const PutItem& item) {
  int64_t sum = 0;
  if (item.sent_ranks.empty()) return sum;
  const ArrayDescriptor& array = item.definition.descriptor;
  SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, array.Tiling());
  for (const int64_t rank : item.sent_ranks) {
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t bytes, array.TileSizeBytes(tiling.TileOf(rank)));
    sum += bytes;
  }
  return sum;
}

// Encodes what RequestMemory remembers of a commit: the durability, and one line for each array.
std::string EncodeAnswer(const TransferResult& result) {
  return StrCat(static_cast<int>(result.durability), "\n", StrJoin(result.array_ids, "\n"));
}

TransferResult DecodeAnswer(const RememberedAnswer& answer) {
  TransferResult result;
  result.array_ids = absl::StrSplit(answer.bytes, '\n');
  result.durability = result.array_ids.front() == "1" ? Durability::kDisk : Durability::kMemory;
  result.array_ids.erase(result.array_ids.begin());
  result.revision = answer.revision;
  return result;
}

}  // namespace

OperationProgress AsOperation(const TransferProgress& put) {
  return {.id = put.transfer_id,
          .number = put.number,
          .kind = put.is_load ? OperationKind::kLoad : OperationKind::kPut,
          .session_id = put.session_id,
          .session_number = put.session_number,
          .description = put.description,
          .ended = put.ended,
          .status = put.status,
          .done = put.staged_tiles,
          .total = put.total_tiles,
          .done_bytes = put.staged_bytes,
          .total_bytes = put.total_bytes,
          .started = put.started,
          .finished = put.finished,
          .bytes_per_second = put.bytes_per_second};
}

Transfers::Transfers(Clock* clock, ArrayRegistry* registry, SessionTable* sessions,
                     Sequencer* sequencer, OperationTable* operations)
    : clock_(clock),
      started_(clock->Now()),
      registry_(registry),
      sessions_(sessions),
      sequencer_(sequencer),
      operations_(operations),
      ask_alarm_(clock, [this] { AskLate(); }),
      give_up_alarm_(clock, [this] { AbortOverdue(); }) {}

absl::Status Transfers::CheckVersion(const PutItem& item) const {
  if (item.name.empty() || !item.expected_version.has_value()) {
    return absl::OkStatus();
  }
  const int64_t version = registry_->VersionOf(item.name);
  if (version == *item.expected_version) {
    return absl::OkStatus();
  }
  return WithReason(
      absl::AbortedError(StrCat("the name \"", item.name, "\" is at version ", version, ", not ",
                                *item.expected_version, "; describe it and decide again")),
      Reason::kVersionMismatch,
      {{fact::kKind, "name"},
       {fact::kName, item.name},
       {fact::kHave, version},
       {fact::kNeed, *item.expected_version}});
}

absl::Status Transfers::Check(const std::string& session_id,
                              absl::Span<const PutItem> items) const {
  int64_t more_names = 0;
  for (const PutItem& item : items) {
    SHARDMESH_RETURN_IF_ERROR(CheckVersion(item));
    if (!item.name.empty() && registry_->VersionOf(item.name) == 0) ++more_names;
  }
  SHARDMESH_RETURN_IF_ERROR(registry_->CheckRoomForNames(more_names));
  SHARDMESH_RETURN_IF_ERROR(sessions_->CheckWork(session_id));
  const auto first =
      std::find_if(items.begin(), items.end(), [](const PutItem& item) { return !item.is_kept(); });
  return first == items.end() ? absl::OkStatus()
                              : registry_->CheckStage(first->definition.descriptor);
}

absl::Status Transfers::NoTransfer(std::string_view transfer_id) const {
  // A transfer is remembered for kRememberFor after its end. If this process is younger, the
  // transfer began before its start.
  const absl::Duration age = clock_->Now() - started_;
  const std::string why =
      age < kRememberFor
          ? StrCat(
                "the coordinator started ", FormatRounded(age),
                " ago, and puts that had not ended before are lost: run the command again, unless "
                "`shardmesh ls` shows its arrays")
          : "it may have ended long ago: `shardmesh ls` shows whether its arrays are there";
  return WithReason(
      absl::NotFoundError(StrCat("there is no transfer \"", transfer_id, "\"; ", why)),
      Reason::kNotFound, {{fact::kKind, "transfer"}, {fact::kName, transfer_id}});
}

bool Transfers::IsForgotten(const TransferProgress& progress) const {
  return progress.ended && progress.finished + kRememberFor < clock_->Now();
}

absl::StatusOr<std::string> Transfers::Begin(const std::string& session_id,
                                             const std::string& mesh_id,
                                             const std::vector<std::string>& identities,
                                             std::shared_ptr<const std::vector<PutItem>> items,
                                             std::string operation_id, IdentitiesPtr sources) {
  SHARDMESH_PASSES("transfer.begin");
  auto transfer = std::make_shared<Transfer>();
  transfer->operation_id = std::move(operation_id);
  TransferProgress& progress = transfer->progress;
  progress.transfer_id = RandomId();
  progress.session_id = session_id;
  progress.description = StrCat(kPutOf, items->size(), items->size() == 1 ? " tensor" : " tensors",
                                " on mesh \"", mesh_id, "\"");
  transfer->ranks = static_cast<int64_t>(identities.size());
  progress.total_tiles = static_cast<int64_t>(items->size() * identities.size());
  int64_t staged_arrays = 0;
  progress.started = clock_->Now();
  SHARDMESH_RETURN_IF_ERROR(Check(session_id, *items));
  for (const PutItem& item : *items) {
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t bytes, TileBytes(item.definition));
    if (__builtin_add_overflow(progress.total_bytes, bytes, &progress.total_bytes)) {
      progress.total_bytes = std::numeric_limits<int64_t>::max();
    }
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t sent_bytes, SentBytes(item));
    if (item.reused != nullptr) progress.reused_bytes += bytes - sent_bytes;
    progress.moved_bytes += item.moved_bytes;
    progress.is_filled |= item.is_copied() || item.is_filled();
    if (item.is_kept()) {
      progress.staged_tiles += transfer->ranks;
      progress.staged_bytes += bytes;
      transfer->kept_bytes += bytes;
    } else {
      ++staged_arrays;
    }
  }
  transfer->arrived_bytes = progress.staged_bytes;
  transfer->items = items;
  const std::string transfer_id = progress.transfer_id;
  SHARDMESH_ASSIGN_OR_RETURN(const Session session, sessions_->Get(session_id));
  progress.session_number = session.number;
  SHARDMESH_RETURN_IF_ERROR(sessions_->AddTransfer(session_id, transfer_id));

  absl::Status status;
  for (const PutItem& item : *items) {
    transfer->result.array_ids.push_back(item.definition.descriptor.array_id);
    if (item.is_kept()) continue;
    status = registry_->Stage(item.definition);
    // An array that another call releases right after its commit must not be dropped by workers
    // that have yet to hear of the commit. End removes this pin.
    if (status.ok()) status = registry_->Pin(item.definition.descriptor.array_id);
    if (status.ok() && item.name.empty()) {
      status =
          PinForSession(*registry_, *sessions_, session_id, item.definition.descriptor.array_id)
              .status();
    }
    if (!status.ok()) {
      break;
    }
  }
  if (status.ok()) {
    {
      absl::MutexLock lock(&mutex_);
      Forget();
      progress.number = operations_->NextNumber();
      transfers_.emplace(transfer_id, transfer);
      by_number_.emplace(progress.number, transfer);
    }
    TransferRequest request{.transfer_id = transfer_id,
                            .op = "put",
                            .mesh_id = mesh_id,
                            .participants = {},
                            .timeout = kTimeout,
                            .commit = {},
                            .operation_id = transfer->operation_id,
                            .sources = std::move(sources)};
    for (size_t rank = 0; rank < identities.size(); ++rank) {
      request.participants.push_back({.rank = static_cast<int64_t>(rank),
                                      .identity = identities[rank],
                                      .expected_tiles = staged_arrays});
    }
    request.commit = [this, transfer](const WorkOutcome& outcome,
                                      absl::AnyInvocable<void(absl::Status) &&> decided) {
      CommitToRegistry(transfer, outcome, std::move(decided));
    };
    status = sequencer_->BeginTransfer(
        std::move(request),
        [this, transfer](const WorkOutcome& outcome) { End(transfer, outcome.status); });
  }
  if (status.ok() && staged_arrays == 0) ReportNothingToDo(transfer_id, identities);
  if (!status.ok()) {
    End(transfer, status);
    return status;
  }
  // If the session ended before this transfer was added to it, only this function can abort the
  // transfer.
  if (const absl::Status lives = sessions_->Get(session_id).status(); !lives.ok()) {
    Abort(transfer_id, lives).IgnoreError();
    return lives;
  }
  return transfer_id;
}

void Transfers::SetCheckpoint(std::string_view transfer_id, std::string_view checkpoint) {
  if (checkpoint.empty()) return;
  absl::MutexLock lock(&mutex_);
  const TransferPtr transfer = Find(transfer_id);
  if (transfer == nullptr || transfer->progress.ended) return;
  TransferProgress& progress = transfer->progress;
  progress.is_load = true;
  progress.description =
      StrCat("load of ", checkpoint, ": ", progress.description.substr(kPutOf.size()));
}

void Transfers::ReportNothingToDo(std::string_view transfer_id,
                                  const std::vector<std::string>& identities) {
  for (size_t rank = 0; rank < identities.size(); ++rank) {
    // An error means that the transfer has ended, such as by the loss of a worker.
    sequencer_
        ->ReportTransfer(
            transfer_id, sequencer_->term(),
            {.identity = identities[rank], .rank = static_cast<int64_t>(rank), .done = true})
        .IgnoreError();
  }
}

absl::Status Transfers::CheckKept(const PutItem& item, const WorkOutcome& outcome) const {
  const std::string& array_id = item.definition.descriptor.array_id;
  SHARDMESH_ASSIGN_OR_RETURN(const ArrayPtr array, registry_->FindArray(array_id));
  if (array->missing_ranks.empty()) return absl::OkStatus();
  const int64_t rank = array->missing_ranks.front();
  const auto place = static_cast<size_t>(rank);
  const std::string identity =
      place < outcome.ranks.size() ? outcome.ranks[place].participant.identity : std::string();
  return WithReason(
      absl::UnavailableError(StrCat("array ", array_id, ", which has the elements of \"", item.name,
                                    "\" already, has lost the tile of rank ", rank,
                                    " since the put began; put again")),
      Reason::kWorkerLost,
      {{fact::kRank, rank}, {fact::kIdentity, identity}, {fact::kOp, std::string("put")}});
}

void Transfers::CommitToRegistry(const TransferPtr& transfer, const WorkOutcome& outcome,
                                 absl::AnyInvocable<void(absl::Status) &&> decided) {
  SHARDMESH_PASSES("transfer.commit_to_registry");
  CommitRequest request;
  bool on_disk = true;
  std::shared_ptr<const std::vector<PutItem>> items;
  {
    absl::MutexLock lock(&mutex_);
    items = transfer->items;
  }
  for (const PutItem& item : *items) {
    if (item.reused != nullptr) {
      request.reused.push_back(item.reused->array().definition.descriptor.array_id);
    }
    if (item.is_kept()) {
      if (absl::Status there = CheckKept(item, outcome); !there.ok()) {
        return std::move(decided)(std::move(there));
      }
      on_disk &= item.reused->array().durability == Durability::kDisk;
    } else {
      request.arrays.push_back({.array_id = item.definition.descriptor.array_id,
                                .durability = Durability::kDisk,
                                .tile_crc32c = std::vector<uint32_t>(outcome.ranks.size()),
                                .epoch = outcome.epoch});
    }
    if (!item.name.empty()) {
      request.moves.push_back({.name = item.name,
                               .array_id = item.definition.descriptor.array_id,
                               .expected_version = item.expected_version});
    }
    if (item.other_moves) {
      const std::vector<NameMove> others = item.other_moves(item.definition.descriptor.array_id);
      request.moves.insert(request.moves.end(), others.begin(), others.end());
    }
    if (!item.superseded.empty()) request.superseded.push_back(item.superseded);
  }
  std::map<std::string_view, ArrayCommit*> by_id;
  for (ArrayCommit& commit : request.arrays) {
    by_id.emplace(commit.array_id, &commit);
  }
  for (const RankResult& rank : outcome.ranks) {
    for (const StagedTileReport& tile : rank.tiles) {
      const auto found = by_id.find(tile.array_id);
      if (found == by_id.end()) {
        return std::move(decided)(
            absl::InternalError(StrCat("rank ", rank.participant.rank, " staged a tile of array ",
                                       tile.array_id, ", which is not of this transfer")));
      }
      found->second->tile_crc32c[static_cast<size_t>(rank.participant.rank)] = tile.crc32c;
      if (!tile.on_disk) {
        found->second->durability = Durability::kMemory;
        on_disk = false;
      }
    }
  }
  {
    absl::MutexLock lock(&mutex_);
    request.request_id = std::exchange(transfer->request_key, {});
    transfer->commit_key = request.request_id;
    transfer->committing = true;
    transfer->result.durability = on_disk ? Durability::kDisk : Durability::kMemory;
  }
  request.answer = EncodeAnswer(transfer->result);
  registry_->Commit(std::move(request), [this, transfer, decided = std::move(decided)](
                                            absl::StatusOr<CommitResult> committed) mutable {
    if (committed.ok()) {
      absl::MutexLock lock(&mutex_);
      transfer->result.revision = committed->revision;
    }
    std::move(decided)(committed.status());
  });
}

void Transfers::End(const TransferPtr& transfer, const absl::Status& status) {
  SHARDMESH_PASSES("transfer.end");
  std::vector<CommitCallback> waiting;
  std::vector<absl::AnyInvocable<void() &&>> on_end;
  std::string request_key;
  TransferResult result;
  std::shared_ptr<const std::vector<PutItem>> items;  // freed after the lock is released
  {
    absl::MutexLock lock(&mutex_);
    transfer->progress.ended = true;
    transfer->progress.status = status;
    transfer->progress.finished = clock_->Now();
    waiting = std::move(transfer->waiting);
    on_end = std::move(transfer->on_end);
    request_key = std::exchange(transfer->request_key, {});
    result = std::exchange(transfer->result, {});
    items = std::move(transfer->items);
    for (const absl::Time time : transfer->give_up) {
      give_up_.erase({time, transfer->progress.transfer_id});
      to_ask_.erase({time, transfer->progress.transfer_id});
    }
    transfer->give_up.clear();
    if (status.ok() && transfer->operation_id.empty()) {
      totals_.put_bytes += transfer->progress.total_bytes;
      totals_.reused_bytes += transfer->progress.reused_bytes;
      totals_.moved_bytes += transfer->progress.moved_bytes;
    }
    ended_.push_back(transfer);
    Forget();
  }
  std::vector<std::string> staged;
  if (items != nullptr) {
    for (const PutItem& item : *items) {
      if (!item.is_kept()) staged.push_back(item.definition.descriptor.array_id);
    }
  }
  items.reset();
  if (!status.ok()) {
    UnpinForSession(*registry_, *sessions_, transfer->progress.session_id, staged);
    registry_->Discard(staged);
  } else {
    registry_->Unpin(staged);
  }
  if (!request_key.empty()) {
    registry_->requests().Abandon(request_key);
  }
  sessions_->RemoveTransfer(transfer->progress.session_id, transfer->progress.transfer_id);
  for (CommitCallback& callback : waiting) {
    std::move(callback)(status.ok() ? absl::StatusOr<TransferResult>(result) : status);
  }
  for (absl::AnyInvocable<void() &&>& ended : on_end) {
    std::move(ended)();
  }
}

void Transfers::OnEnd(std::string_view transfer_id, absl::AnyInvocable<void() &&> ended) {
  {
    absl::MutexLock lock(&mutex_);
    if (const TransferPtr transfer = Find(transfer_id);
        transfer != nullptr && !transfer->progress.ended) {
      transfer->on_end.push_back(std::move(ended));
      return;
    }
  }
  std::move(ended)();
}

Transfers::Live Transfers::LivePuts() const {
  Live live;
  absl::MutexLock lock(&mutex_);
  for (const auto& [transfer_id, transfer] : transfers_) {
    if (!transfer->progress.ended) {
      ++live.puts;
      live.bytes_per_rank += (transfer->progress.total_bytes - transfer->kept_bytes) /
                             std::max<int64_t>(transfer->ranks, 1);
    }
  }
  return live;
}

Transfers::Totals Transfers::totals() const {
  absl::MutexLock lock(&mutex_);
  return totals_;
}

void Transfers::Commit(std::string_view transfer_id, std::string request_key, absl::Time give_up,
                       CommitCallback callback) {
  SHARDMESH_PASSES("transfer.commit");
  auto remembered =
      registry_->requests().Begin(request_key, Sha256(StrCat("commit ", transfer_id)));
  // ABORTED means that the first request with this key has no answer yet. In that case this request
  // waits for the same transfer.
  const bool is_repeated = absl::IsAborted(remembered.status());
  if (!remembered.ok() && !is_repeated) {
    return std::move(callback)(remembered.status());
  }
  if (remembered.ok() && remembered->has_value()) {
    return std::move(callback)(Answer(transfer_id, **remembered));
  }
  absl::StatusOr<TransferResult> ended = NoTransfer(transfer_id);
  bool is_live = false;
  std::optional<std::string> commit_key;  // key of the request that committed the transfer
  {
    absl::MutexLock lock(&mutex_);
    if (const TransferPtr transfer = Find(transfer_id); transfer != nullptr) {
      if (!transfer->progress.ended && !transfer->abandoned.ok()) {
        ended = transfer->abandoned;
      } else if (!transfer->progress.ended) {
        is_live = true;
        transfer->is_commit_asked_for = true;
        transfer->waiting.push_back(std::move(callback));
        if (!is_repeated && transfer->request_key.empty() && !transfer->committing) {
          transfer->request_key = std::exchange(request_key, {});
        }
        if (give_up < absl::InfiniteFuture() &&
            give_up_.emplace(give_up, transfer->progress.transfer_id).second) {
          transfer->give_up.push_back(give_up);
          if (ask_ != nullptr) to_ask_.emplace(give_up, transfer->progress.transfer_id);
        }
      } else if (transfer->progress.status.ok()) {
        commit_key = transfer->commit_key;
      } else {
        ended = transfer->progress.status;
      }
    }
  }
  if (!is_repeated && !request_key.empty()) {
    // This request does not commit the transfer: another request commits it, or the transfer has
    // ended. The outcome is not remembered under this key.
    registry_->requests().Abandon(request_key);
  }
  if (!is_live) {
    if (commit_key.has_value()) {
      const std::optional<RememberedAnswer> first = registry_->requests().Find(*commit_key);
      ended = first.has_value()
                  ? Answer(transfer_id, *first)
                  : WithReason(absl::FailedPreconditionError(
                                   StrCat("transfer ", transfer_id,
                                          " is committed, but the list of its arrays is no longer "
                                          "kept; describe its names")),
                               Reason::kRequestIdReused, {{fact::kValue, transfer_id}});
    }
    return std::move(callback)(std::move(ended));
  }
  give_up_alarm_.SetNoLaterThan(give_up);
  if (ask_ != nullptr) ask_alarm_.SetNoLaterThan(give_up - ask_before_);
  // An error means that the transfer has ended since the lock was released. In that case End has
  // run the callback.
  sequencer_->CommitTransfer(transfer_id).IgnoreError();
}

absl::StatusOr<TransferResult> Transfers::Answer(std::string_view transfer_id,
                                                 const RememberedAnswer& remembered) const {
  TransferResult result = DecodeAnswer(remembered);
  size_t gone = 0;
  for (const std::string& array_id : result.array_ids) {
    gone += registry_->FindArray(array_id).ok() ? 0 : 1;
  }
  if (gone == 0) {
    return result;
  }
  return WithReason(
      absl::NotFoundError(StrCat("transfer ", transfer_id, " was committed, and ", gone, " of its ",
                                 result.array_ids.size(),
                                 " arrays are gone since: they were released, or had no name when "
                                 "the coordinator restarted; put them again")),
      Reason::kNotFound, {{fact::kKind, "array"}});
}

absl::Status Transfers::CheckOwner(std::string_view transfer_id,
                                   std::string_view session_id) const {
  absl::MutexLock lock(&mutex_);
  const TransferPtr transfer = Find(transfer_id);
  if (transfer == nullptr || transfer->progress.session_id == session_id) {
    return absl::OkStatus();
  }
  return WithReason(absl::PermissionDeniedError(
                        StrCat("transfer ", transfer_id, " was not begun by session \"", session_id,
                               "\"; only the session that began it commits, aborts or cancels it")),
                    Reason::kNotOwner, {{fact::kKind, "transfer"}, {fact::kName, transfer_id}});
}

absl::Status Transfers::Abort(std::string_view transfer_id, absl::Status reason) {
  SHARDMESH_PASSES("transfer.abort");
  const absl::Status aborted = sequencer_->AbortTransfer(transfer_id, std::move(reason));
  return absl::IsNotFound(aborted) ? absl::OkStatus() : aborted;
}

bool Transfers::IsCommitAskedFor(std::string_view transfer_id) const {
  absl::MutexLock lock(&mutex_);
  const TransferPtr transfer = Find(transfer_id);
  return transfer != nullptr && transfer->is_commit_asked_for;
}

void Transfers::Abandon(std::string_view transfer_id, absl::Status reason) {
  {
    absl::MutexLock lock(&mutex_);
    const TransferPtr transfer = Find(transfer_id);
    if (transfer == nullptr || transfer->progress.ended || transfer->is_commit_asked_for) return;
    transfer->abandoned = reason;
  }
  // Cannot fail: without a call of Commit the transfer is not committing.
  Abort(transfer_id, std::move(reason)).IgnoreError();
}

void Transfers::AbortOverdue() {
  std::vector<std::string> overdue;
  absl::Time next = absl::InfiniteFuture();
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = clock_->Now();
    while (!give_up_.empty() && give_up_.begin()->first <= now) {
      overdue.push_back(std::move(give_up_.extract(give_up_.begin()).value().second));
    }
    if (!give_up_.empty()) {
      next = give_up_.begin()->first;
    }
  }
  for (const std::string& transfer_id : overdue) {
    // Abort has no effect on a transfer that is already committing.
    Abort(transfer_id, WithReason(absl::DeadlineExceededError(StrCat(
                                      "tiles of transfer ", transfer_id,
                                      " were still missing at the deadline of its commit; repeat "
                                      "the put or the reshard")),
                                  Reason::kDeadline))
        .IgnoreError();
  }
  give_up_alarm_.SetNoLaterThan(next);
}

void Transfers::SetAsk(absl::Duration before, std::function<void(const OperationWorkers&)> ask) {
  ask_before_ = before;
  ask_ = std::move(ask);
}

void Transfers::AskLate() {
  std::set<std::string, std::less<>> operation_ids;
  absl::Time next = absl::InfiniteFuture();
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = clock_->Now();
    // Many commits may end one shortly after the other: those that come due meanwhile wait for the
    // next question.
    const absl::Time allowed = last_asked_ + ask_before_ / 2;
    while (now >= allowed && !to_ask_.empty() && to_ask_.begin()->first - ask_before_ <= now) {
      const std::string transfer_id = to_ask_.extract(to_ask_.begin()).value().second;
      const TransferPtr transfer = Find(transfer_id);
      if (transfer == nullptr || transfer->progress.ended) continue;
      operation_ids.insert(transfer->operation_id.empty() ? transfer_id : transfer->operation_id);
    }
    if (!operation_ids.empty()) last_asked_ = now;
    if (!to_ask_.empty()) {
      next = std::max(to_ask_.begin()->first - ask_before_, last_asked_ + ask_before_ / 2);
    }
  }
  if (!operation_ids.empty()) ask_(sequencer_->WorkersOfAll(operation_ids));
  ask_alarm_.SetNoLaterThan(next);
}

void Transfers::TileStaged(std::string_view transfer_id, std::string_view identity,
                           int64_t size_bytes) {
  SHARDMESH_PASSES("transfer.tile_staged");
  std::string operation_id;
  int64_t arrived_bytes = 0;
  {
    absl::MutexLock lock(&mutex_);
    const TransferPtr transfer = Find(transfer_id);
    if (transfer == nullptr || transfer->progress.ended) return;
    ++transfer->progress.staged_tiles;
    transfer->progress.staged_bytes += size_bytes;
    if (const auto found = transfer->arriving.find(identity); found != transfer->arriving.end()) {
      found->second = std::max<int64_t>(found->second - size_bytes, 0);
    }
    arrived_bytes = Arrived(transfer.get());
    operation_id = transfer->operation_id;
  }
  if (operation_id.empty()) return;
  operations_->SetPart(operation_id, std::string(transfer_id), arrived_bytes);
}

void Transfers::TilesArriving(std::string_view transfer_id, std::string_view identity,
                              int64_t bytes) {
  std::string operation_id;
  int64_t arrived_bytes = 0;
  {
    absl::MutexLock lock(&mutex_);
    const TransferPtr transfer = Find(transfer_id);
    if (transfer == nullptr || transfer->progress.ended) return;
    transfer->arriving.insert_or_assign(std::string(identity), std::max<int64_t>(bytes, 0));
    arrived_bytes = Arrived(transfer.get());
    operation_id = transfer->operation_id;
  }
  if (operation_id.empty()) return;
  operations_->SetPart(operation_id, std::string(transfer_id), arrived_bytes);
}

int64_t Transfers::Arrived(Transfer* transfer) {
  const TransferProgress& progress = transfer->progress;
  int64_t bytes = progress.staged_bytes;
  for (const auto& [identity, each] : transfer->arriving) {
    // A worker that reports nonsense must not show more than all of the work.
    bytes += std::min(each, progress.total_bytes - std::min(bytes, progress.total_bytes));
  }
  // A report may count a tile that has been staged since. What was shown never falls.
  if (bytes > transfer->arrived_bytes) {
    transfer->rate.Add(clock_->Now(), bytes - transfer->arrived_bytes);
    transfer->arrived_bytes = bytes;
  }
  return transfer->arrived_bytes;
}

OperationWorkers Transfers::WorkersOf(std::string_view operation_id) const {
  return sequencer_->WorkersOf(operation_id);
}

absl::StatusOr<TransferProgress> Transfers::Progress(std::string_view transfer_id) const {
  absl::MutexLock lock(&mutex_);
  const TransferPtr transfer = Find(transfer_id);
  if (transfer == nullptr || IsForgotten(transfer->progress)) return NoTransfer(transfer_id);
  return ProgressOf(*transfer);
}

Transfers::Listed Transfers::List(
    int64_t after, int64_t limit,
    const std::function<bool(const TransferProgress&)>& is_wanted) const {
  Listed listed;
  absl::MutexLock lock(&mutex_);
  int64_t looks = kMostLooks;
  for (auto each = by_number_.upper_bound(after); each != by_number_.end(); ++each) {
    if (std::ssize(listed.puts) >= limit || looks-- == 0) {
      listed.next_after = std::prev(each)->first;
      break;
    }
    const TransferProgress& progress = each->second->progress;
    // A forgotten put can still be in the map: only the next put's end removes it.
    if (each->second->operation_id.empty() && !IsForgotten(progress) && is_wanted(progress)) {
      listed.puts.push_back(ProgressOf(*each->second));
    }
  }
  return listed;
}

TransferProgress Transfers::ProgressOf(const Transfer& transfer) const {
  TransferProgress progress = transfer.progress;
  if (!progress.ended) progress.staged_bytes = transfer.arrived_bytes;
  OperationProgress operation = AsOperation(progress);
  SetRate(transfer.rate, clock_->Now(), operation);
  progress.bytes_per_second = operation.bytes_per_second;
  return progress;
}

Transfers::TransferPtr Transfers::Find(std::string_view transfer_id) const {
  const auto found = transfers_.find(transfer_id);
  return found == transfers_.end() ? nullptr : found->second;
}

void Transfers::Forget() {
  const absl::Time oldest = clock_->Now() - kRememberFor;
  while (!ended_.empty() &&
         (ended_.size() > kMaxEnded || ended_.front()->progress.finished < oldest)) {
    by_number_.erase(ended_.front()->progress.number);
    transfers_.erase(ended_.front()->progress.transfer_id);
    ended_.pop_front();
  }
}

}  // namespace shardmesh::server
