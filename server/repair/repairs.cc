// Repairs: looks for lost tiles, gives each worker a few of them at a time, and collects the ends.
#include "server/repair/repairs.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "process/cpu_time.h"
#include "process/failpoint.h"
#include "process/log.h"
#include "process/random_bytes.h"
#include "server/repair/early_cancel.h"
#include "server/repair/tile_retry.h"
#include "server/steps/committed_bytes.h"
#include "sharding/tile.h"
#include "status/byte_text.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// Arrays of one page of the registry.
constexpr int64_t kPage = 1'000;
// Tiles that all workers read at once. The sequencer's places are for steps and puts too.
constexpr int64_t kMaxRunning = 256;
// Time between two searches for lost tiles: at least this, and at least ten times the processor
// time that the search takes.
constexpr absl::Duration kMinGap = absl::Seconds(1);
// A worker that still drops an earlier copy of a tile refuses the tile for a moment.
constexpr absl::Duration kDelay = absl::Seconds(1);
constexpr int kMaxDelays = 20;
// Waiting tiles of a worker that are examined for one whose delay is over.
constexpr size_t kMaxExamined = 16;
// Waiting tiles of an array whose sources Find looks for.
constexpr size_t kMaxSourcesSought = 4;

// The description of a worker's operation.
std::string DescriptionOf(std::string_view identity) {
  return StrCat("repair of the tiles that worker \"", identity, "\" lacks");
}

// Names those of the arrays that are still degraded, such as
// `1 array has no source and stays degraded: "w" (ID)`; empty if none is.
std::string NoteOnSourceless(const ArrayRegistry& registry,
                             const std::set<std::string, std::less<>>& array_ids) {
  constexpr size_t kMostNamed = 3;
  std::vector<std::string> degraded;
  for (const std::string& id : array_ids) {
    const absl::StatusOr<ArrayPtr> array = registry.FindArray(id);
    if (array.ok() && (*array)->state == ArrayState::kDegraded) degraded.push_back(id);
  }
  if (degraded.empty()) return "";
  return StrCat(degraded.size(),
                degraded.size() == 1 ? " array has no source and stays degraded: "
                                     : " arrays have no source and stay degraded: ",
                StrJoinFirst(kMostNamed, degraded, ", ", [&](std::string* out, const auto& id) {
                  const std::string label = registry.LabelOf(id);
                  constexpr std::string_view kNoun = "array ";
                  *out += label.starts_with(kNoun) ? label.substr(kNoun.size()) : label;
                }));
}

bool IsMissing(const Array& array, int64_t rank) {
  return std::binary_search(array.missing_ranks.begin(), array.missing_ranks.end(), rank);
}

absl::Status NothingLeft() {
  return WithReason(
      absl::FailedPreconditionError("no other live worker has the tile, and the array was not "
                                    "loaded from a file that workers read; bring a worker with "
                                    "the tile back, or load the array again"),
      Reason::kArrayDegraded);
}

}  // namespace

Repairs::Repairs(RepairParts parts, Options options)
    : parts_(std::move(parts)), options_(options), thread_(parts_.clock, [this] { Look(); }) {}

Repairs::~Repairs() { Stop(); }

void Repairs::WorkerJoined(std::string_view identity, uint64_t attachment) {
  absl::MutexLock lock(&mutex_);
  joined_.insert_or_assign(std::string(identity), attachment);
  arrived_.emplace(identity);
  ++asked_;
  thread_.SearchAt(parts_.clock->Now() + options_.gather);
}

void Repairs::LookAgain() {
  absl::MutexLock lock(&mutex_);
  ++asked_;
  thread_.SearchAt(parts_.clock->Now() + options_.gather);
}

void Repairs::TilesArriving(std::string_view transfer_id, int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  const auto running = by_transfer_.find(transfer_id);
  if (running == by_transfer_.end()) return;
  const LostTile& tile = tiles_.find(running->second)->second;
  // Under the lock, so that no part comes after the Add for the whole tile.
  parts_.operations->SetPart(workers_[tile.identity].operation_id, running->first,
                             std::clamp<int64_t>(bytes, 0, tile.size_bytes));
}

void Repairs::Stop() {
  if (!thread_.Stop()) return;
  std::vector<std::string> transfers;
  std::vector<std::string> operations;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [key, tile] : tiles_) {
      if (tile.state == LostTile::State::kRunning) transfers.push_back(tile.transfer_id);
    }
    for (const auto& [identity, worker] : workers_) {
      if (!worker.operation_id.empty()) operations.push_back(worker.operation_id);
    }
  }
  const absl::Status stops = WithReason(
      absl::UnavailableError("the coordinator is stopping; the repair begins again at its start"),
      Reason::kNotServing);
  for (const std::string& id : transfers) parts_.sequencer->AbortTransfer(id, stops).IgnoreError();
  for (const std::string& id : operations) parts_.operations->End(id, stops);
}

void Repairs::Look() {
  Joined joined;
  std::set<std::string, std::less<>> arrived;
  int64_t asked = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (thread_.is_stopped()) return;
    joined = joined_;
    arrived.swap(arrived_);
    asked = asked_;
  }
  const double start = ThreadCpuSeconds();
  Tiles found;
  const bool are_tiles_lost = parts_.registry->CountArrays().degraded > 0 ||
                              parts_.registry->CountCompanions().degraded > 0;
  if (are_tiles_lost) found = FindLost(joined);
  const absl::Duration took = absl::Seconds(ThreadCpuSeconds() - start);
  thread_.NoSearchBefore(parts_.clock->Now() + std::max(kMinGap, 10 * took));
  Merge(std::move(found), arrived);
  {
    absl::MutexLock lock(&mutex_);
    answered_ = asked;
  }
  Pump();
}

// Returns the lost tiles of workers that have joined, and still are attached and take work.
Repairs::Tiles Repairs::FindLost(const Joined& joined) const {
  const std::shared_ptr<const MembershipView> view = parts_.membership->view();
  const auto attachment_of = [&](const std::string& identity) -> uint64_t {
    const auto found = joined.find(identity);
    const WorkerStatus* const worker = view->FindWorker(identity);
    const bool takes_work = found != joined.end() && worker != nullptr &&
                            worker->attachment == found->second &&
                            worker->state == WorkerState::kAttached;
    return takes_work ? found->second : 0;
  };
  Tiles lost;
  std::string after;
  for (bool is_last = false; !is_last;) {
    const std::vector<ArrayPtr> page = parts_.registry->ListArrays(after, kPage);
    is_last = std::ssize(page) < kPage;
    for (const ArrayPtr& array : page) {
      const ArrayDescriptor& descriptor = array->definition.descriptor;
      after = descriptor.array_id;
      const MeshRanks* const ranks = view->FindMesh(descriptor.mesh_id);
      if (array->state != ArrayState::kDegraded || ranks == nullptr) continue;
      std::optional<Tiling> tiling;
      for (const int64_t rank : array->missing_ranks) {
        if (rank >= std::ssize(ranks->identities)) break;
        const std::string& identity = ranks->identities[static_cast<size_t>(rank)];
        const uint64_t attachment = attachment_of(identity);
        if (attachment == 0) continue;
        if (!tiling.has_value()) {
          absl::StatusOr<Tiling> made = descriptor.Tiling();
          if (!made.ok()) break;
          tiling = *std::move(made);
        }
        const absl::StatusOr<int64_t> size_bytes = descriptor.TileSizeBytes(tiling->TileOf(rank));
        if (!size_bytes.ok()) break;
        lost.emplace(
            TileKey(descriptor.array_id, rank),
            LostTile{.identity = identity, .attachment = attachment, .size_bytes = *size_bytes});
      }
    }
  }
  return lost;
}

void Repairs::Merge(Tiles found, const std::set<std::string, std::less<>>& arrived) {
  using State = LostTile::State;
  const absl::Time now = parts_.clock->Now();
  absl::MutexLock lock(&mutex_);
  std::erase_if(tiles_, [&](const auto& each) {
    const auto& [key, tile] = each;
    if (tile.state == State::kRunning) return false;
    const auto still = found.find(key);
    return still == found.end() || still->second.attachment != tile.attachment ||
           still->second.identity != tile.identity;
  });
  for (auto& [key, lost] : found) {
    const auto [place, is_new] = tiles_.try_emplace(key, std::move(lost));
    LostTile& tile = place->second;
    if (!is_new) {
      if (tile.state != State::kFailed) continue;
      // A worker that has come may be a source.
      const bool may_work_now = !arrived.empty() && !tile.is_cancelled;
      if (!may_work_now && tile.next_try > now) continue;
      if (may_work_now) tile.rounds = 0;
      tile.state = State::kWaiting;
      tile.failures.clear();
      tile.delays = 0;
    }
    workers_[tile.identity].queue.push_back(key);
  }
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [key, tile] : tiles_) {
    if (tile.state == State::kFailed) next = std::min(next, tile.next_try);
    if (tile.state == State::kWaiting && tile.not_before > now) {
      next = std::min(next, tile.not_before);
    }
  }
  thread_.SearchAt(next);
  for (const auto& [identity, worker] : workers_) UpdateTotal(worker);
}

void Repairs::Pump() {
  while (const std::optional<Chosen> chosen = Choose()) Begin(*chosen);
  EndOperations();
}

std::optional<Repairs::Chosen> Repairs::Choose() {
  const absl::Time now = parts_.clock->Now();
  absl::MutexLock lock(&mutex_);
  int64_t running = 0;
  for (const auto& [identity, worker] : workers_) running += worker.running;
  if (thread_.is_stopped() || running >= kMaxRunning) return std::nullopt;
  for (auto& [identity, worker] : workers_) {
    if (worker.running >= options_.tiles_at_once || !worker.cancelled.ok()) continue;
    size_t examined = 0;
    while (!worker.queue.empty() && examined < std::min(kMaxExamined, worker.queue.size())) {
      const TileKey key = worker.queue.front();
      const auto found = tiles_.find(key);
      if (found == tiles_.end() || found->second.state != LostTile::State::kWaiting ||
          found->second.identity != identity) {
        worker.queue.pop_front();
        continue;
      }
      LostTile& tile = found->second;
      if (tile.not_before > now) {
        worker.queue.pop_front();
        worker.queue.push_back(key);
        ++examined;
        continue;
      }
      if (worker.running > 0 && worker.running_bytes + tile.size_bytes > options_.bytes_at_once) {
        break;
      }
      worker.queue.pop_front();
      Chosen chosen{.key = key,
                    .identity = identity,
                    .attachment = tile.attachment,
                    .size_bytes = tile.size_bytes,
                    .running_bytes = worker.running_bytes,
                    .failed = {}};
      for (const Failure& failure : tile.failures) chosen.failed.push_back(failure.source);
      tile.state = LostTile::State::kRunning;
      tile.transfer_id.clear();
      ++worker.running;
      worker.running_bytes += tile.size_bytes;
      return chosen;
    }
  }
  return std::nullopt;
}

RepairTwin Repairs::FindTwin(std::string_view array_id, const MembershipView& view,
                             std::vector<std::string>* workers) const {
  RepairTwin twin{.array = parts_.registry->FindTwin(array_id)};
  if (twin.array == nullptr) return twin;
  const std::string& mesh_id = twin.array->definition.descriptor.mesh_id;
  auto live = parts_.endpoints->Endpoints(mesh_id);
  const MeshRanks* const ranks = view.FindMesh(mesh_id);
  if (live.ok() && ranks != nullptr) {
    twin.live = *std::move(live);
    *workers = ranks->identities;
  }
  return twin;
}

void Repairs::Begin(const Chosen& chosen) {
  const auto& [array_id, rank] = chosen.key;
  const absl::StatusOr<ArrayPtr> array = parts_.registry->FindArray(array_id);
  if (!array.ok() || !IsMissing(**array, rank)) return Forget(chosen.key);
  const std::string& mesh_id = (*array)->definition.descriptor.mesh_id;
  const std::shared_ptr<const MembershipView> view = parts_.membership->view();
  const MeshRanks* const ranks = view->FindMesh(mesh_id);
  const WorkerStatus* const worker = view->FindWorker(chosen.identity);
  if (ranks == nullptr || rank >= std::ssize(ranks->identities) ||
      ranks->identities[static_cast<size_t>(rank)] != chosen.identity || worker == nullptr ||
      worker->attachment != chosen.attachment || worker->state != WorkerState::kAttached) {
    return Forget(chosen.key);
  }
  if (const absl::Status can_fill = parts_.fill->CheckCanFill(chosen.identity); !can_fill.ok()) {
    if (ReasonOf(can_fill) != Reason::kNotAvailable) return Forget(chosen.key);
    return Fail(chosen.key, Failure{"", can_fill});
  }
  const auto live = parts_.endpoints->Endpoints(mesh_id);
  if (!live.ok()) return Forget(chosen.key);
  std::vector<std::string> twin_workers;
  const RepairTwin twin = FindTwin(array_id, *view, &twin_workers);
  const auto sources = RepairSourcesOf(**array, rank, *live, twin);
  if (!sources.ok()) return Fail(chosen.key, Failure{"", sources.status()});
  std::optional<Failure> cannot_convert;
  const auto source = std::find_if(sources->begin(), sources->end(), [&](const RepairSource& each) {
    if (std::find(chosen.failed.begin(), chosen.failed.end(), each.title) != chosen.failed.end()) {
      return false;
    }
    if (each.holder.has_value() || !each.file.conversion.has_value()) return true;
    absl::Status can_convert = parts_.fill->CheckCanConvert(chosen.identity);
    if (can_convert.ok()) return true;
    cannot_convert = Failure{each.title, std::move(can_convert)};
    return false;
  });
  if (source == sources->end()) {
    if (cannot_convert.has_value()) {
      if (ReasonOf(cannot_convert->status) != Reason::kNotAvailable) return Forget(chosen.key);
      return Fail(chosen.key, std::move(cannot_convert));
    }
    if (!chosen.failed.empty()) return Fail(chosen.key, std::nullopt);
    return Fail(chosen.key, Failure{"", NothingLeft()}, /*is_repairable=*/false);
  }
  if (const absl::Status fits = CheckMemory(chosen, *view, *worker); !fits.ok()) {
    return Fail(chosen.key, Failure{"", fits});
  }
  EnsureOperation(chosen.identity);
  const std::string transfer_id = RandomId();
  {
    absl::MutexLock lock(&mutex_);
    tiles_.find(chosen.key)->second.transfer_id = transfer_id;
    by_transfer_.emplace(transfer_id, chosen.key);
  }
  const absl::Duration timeout = CopyTimeout(chosen.size_bytes);
  // From the decision until the worker was told of it, the array is not released: the worker must
  // hear of the commit first.
  const auto is_pinned = std::make_shared<bool>(false);
  TransferRequest request{
      .transfer_id = transfer_id,
      .op = "repair",
      .mesh_id = mesh_id,
      .participants = {{.rank = rank, .identity = chosen.identity, .expected_tiles = 1}},
      .timeout = timeout,
      .commit = [this, array = *array, chosen, is_pinned](
                    const WorkOutcome& outcome, absl::AnyInvocable<void(absl::Status) &&> decided) {
        absl::Status taken = parts_.registry->Pin(chosen.key.first);
        *is_pinned = taken.ok();
        if (taken.ok()) taken = Take(*array, chosen, outcome);
        std::move(decided)(std::move(taken));
      }};
  {
    absl::MutexLock lock(&mutex_);
    request.operation_id = workers_[chosen.identity].operation_id;
  }
  if (source->holder.has_value()) {
    request.sources = std::make_shared<const std::vector<std::string>>(1, source->holder->identity);
  }
  SHARDMESH_PASSES("repairs.begin_transfer");
  const absl::Status begun = parts_.sequencer->BeginTransfer(
      std::move(request), [this, key = chosen.key, transfer_id, title = source->title,
                           is_pinned](const WorkOutcome& outcome) {
        if (*is_pinned) parts_.registry->Unpin(key.first);
        thread_.Run([this, key, transfer_id, title, status = outcome.status] {
          Ended(key, transfer_id, title, status);
        });
      });
  // No fault of the source, and Ended would begin the next tile from within this one.
  if (!begun.ok()) return Fail(chosen.key, Failure{.source = "", .status = begun});
  parts_.sequencer->CommitTransfer(transfer_id).IgnoreError();  // it may have ended already
  absl::Status stops = SendRepair({.transfer_id = transfer_id,
                                   .term = parts_.term,
                                   .token_key = parts_.token_key,
                                   .expire_time = parts_.clock->Now() + timeout,
                                   .array = array->get(),
                                   .rank = rank,
                                   .source = &*source,
                                   .workers = ranks->identities,
                                   .twin_workers = twin_workers},
                                  parts_.fill);
  {
    // A Cancel before the transfer began did not see it.
    absl::MutexLock lock(&mutex_);
    stops.Update(workers_[chosen.identity].cancelled);
  }
  if (!stops.ok()) parts_.sequencer->AbortTransfer(transfer_id, stops).IgnoreError();
}

absl::Status Repairs::CheckMemory(const Chosen& chosen, const MembershipView& view,
                                  const WorkerStatus& worker) const {
  // Bytes that are under way to the worker, and that its heartbeats may not count yet.
  const int64_t coming_bytes =
      AddCapped(chosen.running_bytes, parts_.transfers->LivePuts().bytes_per_rank);
  if (FitsEasily(worker, AddCapped(chosen.size_bytes, coming_bytes))) return absl::OkStatus();
  CommittedBytes committed(view, *parts_.registry);
  SHARDMESH_RETURN_IF_ERROR(committed.AddAll(*parts_.registry, [] { return false; }));
  const int64_t have_bytes =
      worker.info.capacity_bytes - committed.UsedOn(chosen.identity, worker) - coming_bytes;
  if (chosen.size_bytes <= have_bytes) {
    if (parts_.cache != nullptr) {
      parts_.cache->Limit({{chosen.identity, have_bytes - chosen.size_bytes}});
    }
    return absl::OkStatus();
  }
  const auto [have, need] = FormatBytesApart(std::max<int64_t>(0, have_bytes), chosen.size_bytes);
  return WithReason(absl::ResourceExhaustedError(
                        StrCat("worker \"", chosen.identity, "\" has ", have,
                               " left beside its tiles and running puts, and the tile needs ", need,
                               "; release arrays, or start the worker with more --memory")),
                    Reason::kMemoryLimit,
                    {{fact::kHave, std::max<int64_t>(0, have_bytes)},
                     {fact::kNeed, chosen.size_bytes},
                     {fact::kRank, chosen.key.second},
                     {fact::kIdentity, chosen.identity}});
}

void Repairs::EnsureOperation(const std::string& identity) {
  {
    absl::MutexLock lock(&mutex_);
    if (!workers_[identity].operation_id.empty()) return;
  }
  const auto early = std::make_shared<EarlyCancel>();
  const auto cancel = [this, identity, early](const absl::Status& reason) {
    if (const std::string id = early->IdOrNote(reason); !id.empty()) Cancel(identity, id, reason);
    return absl::OkStatus();
  };
  const absl::StatusOr<std::string> begun =
      parts_.operations->Begin(OperationKind::kRepair, DescriptionOf(identity),
                               /*session_id=*/"", /*session_number=*/0, cancel);
  if (!begun.ok()) {  // only an owner's errors are possible
    LogWarning("a repair is no operation", {{"identity", identity}, {"error", begun.status()}});
    return;
  }
  {
    absl::MutexLock lock(&mutex_);
    Worker& worker = workers_[identity];
    worker.operation_id = *begun;
    worker.done = worker.done_bytes = worker.failed = 0;
    worker.first_failure = absl::OkStatus();
    UpdateTotal(worker);
  }
  LogInfo("repair begins", {{"identity", identity}, {"operation", *begun}});
  if (const absl::Status cancelled = early->Begun(*begun); !cancelled.ok()) {
    Cancel(identity, *begun, cancelled);
  }
}

void Repairs::UpdateTotal(const Worker& worker) {
  if (worker.operation_id.empty()) return;
  int64_t bytes = worker.done_bytes + worker.running_bytes;
  int64_t tiles = worker.done + worker.failed + worker.running;
  for (const TileKey& key : worker.queue) {
    const auto found = tiles_.find(key);
    if (found == tiles_.end() || found->second.state != LostTile::State::kWaiting) continue;
    bytes += found->second.size_bytes;
    ++tiles;
  }
  parts_.operations->SetTotal(worker.operation_id, tiles, bytes);
}

// Compares a tile that a worker has staged with the lost one. If they are equal, the rank has its
// tile again. Runs on the thread of the report.
absl::Status Repairs::Take(const Array& array, const Chosen& chosen,
                           const WorkOutcome& outcome) const {
  const auto& [array_id, rank] = chosen.key;
  if (outcome.ranks.size() != 1 || outcome.ranks.front().tiles.size() != 1 ||
      outcome.ranks.front().tiles.front().array_id != array_id) {
    return absl::InternalError("the worker reports another tile");
  }
  const StagedTileReport& tile = outcome.ranks.front().tiles.front();
  const ArrayDescriptor& descriptor = array.definition.descriptor;
  const uint32_t expected = array.tile_crc32c[static_cast<size_t>(rank)];
  if (tile.crc32c != expected) {
    const std::string have = StrCat(absl::Hex(tile.crc32c, absl::kZeroPad8));
    const std::string need = StrCat(absl::Hex(expected, absl::kZeroPad8));
    return WithReason(absl::DataLossError(StrCat("the bytes there have the CRC-32C ", have,
                                                 ", the lost tile had ", need)),
                      Reason::kChecksumMismatch,
                      {{fact::kHave, have}, {fact::kNeed, need}, {fact::kArray, array_id}});
  }
  const std::shared_ptr<const MembershipView> view = parts_.membership->view();
  const MeshRanks* const ranks = view->FindMesh(descriptor.mesh_id);
  const absl::StatusOr<Tiling> tiling = descriptor.Tiling();
  if (ranks == nullptr || ranks->RankOf(chosen.identity) != rank || !tiling.ok()) {
    return absl::AbortedError("the rank has moved to another worker");
  }
  Inventory restored{.identity = chosen.identity,
                     .attachment = chosen.attachment,
                     .meshes = {},
                     .tiles = {{.array_id = array_id,
                                .tile = tiling->TileOf(rank),
                                .crc32c = tile.crc32c,
                                .committed = false,
                                .on_disk = tile.on_disk}}};
  restored.meshes.emplace(
      descriptor.mesh_id,
      InventoryMesh{.mesh = &descriptor.mesh, .rank = rank, .identities = ranks->identities});
  SHARDMESH_PASSES("repairs.commit");
  const InventoryVerdict verdict = parts_.registry->TakeRestored(restored);
  const absl::StatusOr<ArrayPtr> current = parts_.registry->FindArray(array_id);
  if (!verdict.drop.empty() || !verdict.quarantine.empty() || !current.ok()) {
    return absl::AbortedError("the array was released meanwhile");
  }
  // The order may have come to the next process of the worker, whose inventory was without the
  // tile. The registry does not count what an earlier attachment brings.
  if (IsMissing(**current, rank)) {
    return absl::AbortedError("the worker has attached again since, or is lost");
  }
  return absl::OkStatus();
}

Repairs::LostTile* Repairs::EndTurn(const TileKey& key) {
  const auto found = tiles_.find(key);
  if (found == tiles_.end()) return nullptr;
  LostTile& tile = found->second;
  if (tile.state == LostTile::State::kRunning) {
    Worker& worker = workers_[tile.identity];
    --worker.running;
    worker.running_bytes -= tile.size_bytes;
    tile.state = LostTile::State::kWaiting;
    by_transfer_.erase(tile.transfer_id);
    tile.transfer_id.clear();
  }
  return &tile;
}

void Repairs::Forget(const TileKey& key) {
  absl::MutexLock lock(&mutex_);
  if (EndTurn(key) != nullptr) tiles_.erase(key);
}

void Repairs::Ended(const TileKey& key, const std::string& transfer_id, const std::string& source,
                    const absl::Status& status) {
  const absl::StatusOr<ArrayPtr> array = parts_.registry->FindArray(key.first);
  const std::shared_ptr<const MembershipView> view = parts_.membership->view();
  const absl::Time now = parts_.clock->Now();
  enum class Next { kDone, kForget, kTryNext, kFail, kNothing } next = Next::kTryNext;
  std::string operation_id;
  int64_t size_bytes = 0;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = tiles_.find(key);
    if (found == tiles_.end() || found->second.transfer_id != transfer_id) return;
    LostTile& tile = *EndTurn(key);
    Worker& worker = workers_[tile.identity];
    operation_id = worker.operation_id;
    size_bytes = tile.size_bytes;
    const WorkerStatus* const now_there = view->FindWorker(tile.identity);
    if (status.ok()) {
      next = Next::kDone;
      ++worker.done;
      worker.done_bytes += size_bytes;
      worker.without_source.erase(key.first);
      ++repaired_tiles_;
      repaired_bytes_ += size_bytes;
      tiles_.erase(found);
    } else if (!array.ok() || now_there == nullptr || now_there->attachment != tile.attachment ||
               now_there->state == WorkerState::kLost) {
      next = Next::kNothing;  // released meanwhile, or to be looked for when the worker is back
      if (array.ok()) {
        ++worker.failed;
        worker.first_failure.Update(status);
      }
      tiles_.erase(found);
      // The search that followed its return found the tile in work. Until the next one, the repair
      // is due (FindDue).
      ++asked_;
      thread_.SearchAt(now + options_.gather);
    } else if (!worker.cancelled.ok()) {
      next = Next::kNothing;  // EndOperations sees to the tile
      worker.queue.push_front(key);
    } else if (ReasonOf(status) == Reason::kMemoryLimit) {
      next = Next::kFail;  // no other source helps
    } else if (absl::IsAborted(status) && tile.delays < kMaxDelays) {
      next = Next::kNothing;
      ++tile.delays;
      tile.not_before = now + kDelay;
      worker.queue.push_front(key);
      thread_.SearchAt(tile.not_before);
    } else {
      tile.failures.push_back({source, status});
      tile.delays = 0;
      worker.queue.push_front(key);
      LogDebug("a lost tile could not be read again",
               {{"array", key.first}, {"rank", key.second}, {"source", source}, {"error", status}});
    }
  }
  const bool is_done = next == Next::kDone;
  parts_.operations->Add(operation_id, is_done ? 1 : 0, is_done ? size_bytes : 0, transfer_id);
  if (next == Next::kFail) Fail(key, Failure{source, status});
  Pump();
}

void Repairs::Fail(const TileKey& key, std::optional<Failure> obstacle, bool is_repairable) {
  const std::string label = parts_.registry->LabelOf(key.first);
  absl::MutexLock lock(&mutex_);
  LostTile* const tile = EndTurn(key);
  if (tile == nullptr) return;
  if (obstacle.has_value()) tile->failures.push_back(*std::move(obstacle));
  tile->state = LostTile::State::kFailed;
  ++tile->rounds;
  // A source that failed for another reason may have the tile later.
  const bool is_old_build = std::all_of(
      tile->failures.begin(), tile->failures.end(),
      [](const Failure& failure) { return ReasonOf(failure.status) == Reason::kNotAvailable; });
  tile->next_try = is_old_build
                       ? absl::InfiniteFuture()
                       : parts_.clock->Now() +
                             RetryWait(tile->rounds, options_.first_retry, options_.last_retry);
  thread_.SearchAt(tile->next_try);
  Worker& worker = workers_[tile->identity];
  if (!is_repairable) worker.without_source.insert(key.first);
  if (worker.operation_id.empty()) return;
  if (!is_repairable) return UpdateTotal(worker);
  ++worker.failed;
  if (worker.first_failure.ok()) {
    worker.first_failure = WithReason(
        absl::FailedPreconditionError(StrCat("the tile of rank ", key.second, " of ", label, ": ",
                                             StrJoin(tile->failures, "; ",
                                                     [](std::string* out, const Failure& failure) {
                                                       if (!failure.source.empty())
                                                         *out += failure.source + ": ";
                                                       *out += FailureInWords(failure.status);
                                                     }))),
        Reason::kArrayDegraded, {{fact::kArray, key.first}, {fact::kRank, key.second}});
  }
}

void Repairs::Cancel(const std::string& identity, const std::string& operation_id,
                     const absl::Status& reason) {
  std::vector<std::string> transfers;
  {
    absl::MutexLock lock(&mutex_);
    const auto worker = workers_.find(identity);
    if (worker == workers_.end() || worker->second.operation_id != operation_id) return;
    worker->second.cancelled = reason;
    for (const auto& [key, tile] : tiles_) {
      if (tile.identity == identity && !tile.transfer_id.empty()) {
        transfers.push_back(tile.transfer_id);
      }
    }
  }
  for (const std::string& id : transfers) parts_.sequencer->AbortTransfer(id, reason).IgnoreError();
  thread_.Run([this] { Pump(); });
}

// Ends the operations that have nothing left to try.
void Repairs::EndOperations() {
  struct Over {
    std::string identity;
    std::string operation_id;
    int64_t done = 0;
    absl::Status status;
    std::set<std::string, std::less<>> without_source;
  };
  std::vector<Over> over;
  {
    absl::MutexLock lock(&mutex_);
    for (auto each = workers_.begin(); each != workers_.end();) {
      auto& [identity, worker] = *each;
      if (worker.running > 0 || (worker.cancelled.ok() && !worker.queue.empty())) {
        ++each;
        continue;
      }
      absl::Status status = worker.cancelled;
      for (const TileKey& key : worker.queue) {
        const auto found = tiles_.find(key);
        if (found == tiles_.end() || found->second.state != LostTile::State::kWaiting) continue;
        LostTile& tile = found->second;
        tile.state = LostTile::State::kFailed;
        tile.is_cancelled = true;
        tile.next_try = absl::InfiniteFuture();
        tile.failures = {
            {"", absl::CancelledError(StrCat("it was cancelled, and begins again when worker \"",
                                             identity, "\" attaches again"))}};
      }
      if (status.ok() && worker.failed > 0) {
        status = WithContext(worker.first_failure,
                             StrCat(worker.failed, " of ", worker.failed + worker.done,
                                    " lost tiles could not be read again"));
      }
      if (!worker.operation_id.empty()) {
        over.push_back({identity, worker.operation_id, worker.done, std::move(status),
                        std::move(worker.without_source)});
      }
      each = workers_.erase(each);
    }
  }
  for (const Over& each : over) {
    if (const std::string left = NoteOnSourceless(*parts_.registry, each.without_source);
        !left.empty()) {
      parts_.operations->SetDescription(each.operation_id,
                                        StrCat(DescriptionOf(each.identity), "; ", left));
    }
    if (each.status.ok()) {
      LogInfo(
          "repair ended",
          {{"identity", each.identity}, {"operation", each.operation_id}, {"tiles", each.done}});
    } else {
      LogWarning("repair ended with an error", {{"identity", each.identity},
                                                {"operation", each.operation_id},
                                                {"tiles", each.done},
                                                {"error", each.status}});
    }
    parts_.operations->End(each.operation_id, each.status);
  }
}

std::optional<ArrayRepair> Repairs::FindDue(std::string_view array_id) const {
  const absl::StatusOr<ArrayPtr> array = parts_.registry->FindArray(array_id);
  if (!array.ok() || (*array)->state != ArrayState::kDegraded) return std::nullopt;
  const ArrayDescriptor& descriptor = (*array)->definition.descriptor;
  const std::shared_ptr<const MembershipView> view = parts_.membership->view();
  const MeshRanks* const ranks = view->FindMesh(descriptor.mesh_id);
  if (ranks == nullptr) return std::nullopt;
  std::vector<int64_t> due;
  {
    absl::MutexLock lock(&mutex_);
    if (thread_.is_stopped()) return std::nullopt;
    for (const int64_t rank : (*array)->missing_ranks) {
      if (rank >= std::ssize(ranks->identities)) break;
      const std::string& identity = ranks->identities[static_cast<size_t>(rank)];
      const WorkerStatus* const worker = view->FindWorker(identity);
      if (worker == nullptr || worker->state != WorkerState::kAttached) continue;
      const auto joined = joined_.find(identity);
      const bool is_judged = joined != joined_.end() && joined->second == worker->attachment;
      if (!is_judged || answered_ < asked_) due.push_back(rank);
    }
  }
  if (due.empty()) return std::nullopt;
  const auto live = parts_.endpoints->Endpoints(descriptor.mesh_id);
  const absl::StatusOr<Tiling> tiling = descriptor.Tiling();
  if (!live.ok() || !tiling.ok()) return std::nullopt;
  std::vector<std::string> twin_workers;
  const RepairTwin twin = FindTwin(array_id, *view, &twin_workers);
  ArrayRepair repair{.is_due = true};
  for (const int64_t rank : due) {
    const auto sources = RepairSourcesOf(**array, rank, *live, twin);
    if (!sources.ok() || sources->empty()) continue;
    ++repair.tiles;
    repair.ranks.push_back(rank);
    repair.size_bytes += descriptor.TileSizeBytes(tiling->TileOf(rank)).value_or(0);
  }
  return repair.tiles == 0 ? std::nullopt : std::optional(std::move(repair));
}

std::vector<int64_t> Repairs::WithSource(std::string_view array_id,
                                         absl::Span<const int64_t> waiting) const {
  const absl::StatusOr<ArrayPtr> array = parts_.registry->FindArray(array_id);
  if (!array.ok()) return {};
  const auto live = parts_.endpoints->Endpoints((*array)->definition.descriptor.mesh_id);
  if (!live.ok()) return {};
  std::vector<std::string> twin_workers;
  const RepairTwin twin = FindTwin(array_id, *parts_.membership->view(), &twin_workers);
  std::vector<int64_t> ranks;
  for (size_t i = 0; i < waiting.size(); ++i) {
    if (i < kMaxSourcesSought) {
      const auto sources = RepairSourcesOf(**array, waiting[i], *live, twin);
      if (!sources.ok() || sources->empty()) continue;
    }
    ranks.push_back(waiting[i]);
  }
  return ranks;
}

std::optional<ArrayRepair> Repairs::Find(std::string_view array_id) const {
  ArrayRepair repair;
  std::vector<int64_t> waiting;  // ranks
  bool is_known = false;
  {
    absl::MutexLock lock(&mutex_);
    for (auto each = tiles_.lower_bound({std::string(array_id), 0});
         each != tiles_.end() && each->first.first == array_id; ++each) {
      const LostTile& tile = each->second;
      is_known = true;
      if (tile.state != LostTile::State::kFailed) {
        ++repair.tiles;
        const bool is_running = tile.state == LostTile::State::kRunning;
        (is_running ? repair.ranks : waiting).push_back(each->first.second);
        repair.size_bytes += tile.size_bytes;
        const auto worker = workers_.find(tile.identity);
        if (worker != workers_.end() && repair.operation_id.empty()) {
          repair.operation_id = worker->second.operation_id;
        }
        continue;
      }
      repair.next_try = std::min(repair.next_try, tile.next_try);
      if (!repair.failure.empty() || tile.failures.empty()) continue;
      repair.failure =
          StrCat("rank ", each->first.second, ": ",
                 StrJoin(tile.failures, "; ", [](std::string* out, const Failure& failure) {
                   if (!failure.source.empty()) *out += failure.source + ": ";
                   *out += FailureInWords(failure.status);
                 }));
    }
  }
  if (!is_known) return FindDue(array_id);
  if (!waiting.empty()) {
    const std::vector<int64_t> ranks = WithSource(array_id, waiting);
    repair.ranks.insert(repair.ranks.end(), ranks.begin(), ranks.end());
    std::sort(repair.ranks.begin(), repair.ranks.end());
  }
  if (!repair.operation_id.empty()) {
    const absl::StatusOr<OperationProgress> progress =
        parts_.operations->Progress(repair.operation_id);
    if (progress.ok()) repair.time_left = progress->TimeLeft();
  }
  return repair;
}

RepairTotals Repairs::totals() const {
  absl::MutexLock lock(&mutex_);
  RepairTotals totals;
  totals.repaired_tiles = repaired_tiles_;
  totals.repaired_bytes = repaired_bytes_;
  bool is_known = true;  // how long each operation takes
  for (const auto& [identity, worker] : workers_) {
    if (worker.operation_id.empty()) continue;
    ++totals.operations;
    const auto progress = parts_.operations->Progress(worker.operation_id);
    if (!progress.ok()) continue;
    totals.done_bytes += progress->done_bytes;
    totals.total_bytes += progress->total_bytes;
    totals.bytes_per_second += progress->bytes_per_second;
    const std::optional<absl::Duration> left = progress->TimeLeft();
    is_known = is_known && left.has_value();
    if (is_known) totals.time_left = std::max(totals.time_left.value_or(*left), *left);
  }
  if (!is_known) totals.time_left.reset();
  for (const auto& [key, tile] : tiles_) {
    if (tile.state == LostTile::State::kFailed) {
      ++totals.failed_tiles;
    } else {
      ++totals.tiles;
    }
  }
  return totals;
}

}  // namespace shardmesh::server
