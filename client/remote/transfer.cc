// Transfers tiles with one thread and one stream for each worker. The first failure ends all
// streams.
#include "client/remote/transfer.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "client/remote/handover_room.h"
#include "client/remote/silence_watch.h"
#include "client/remote/tile_handover.h"
#include "client/remote/worker_client.h"
#include "process/thread_pool.h"
#include "rpc/call.h"
#include "rpc/contract.h"
#include "sharding/tile.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

// Adds up the bytes of several threads and reports the sum at intervals. Thread-safe.
class ProgressMeter {
 public:
  ProgressMeter(const ProgressCallback& callback, int64_t total_bytes)
      : callback_(callback), total_bytes_(total_bytes) {}

  // `bytes` is negative if bytes must be transferred again. The sum that is reported to the
  // callback never shrinks.
  void Add(int64_t bytes) {
    const int64_t done = done_bytes_.fetch_add(bytes) + bytes;
    if (callback_ == nullptr) {
      return;
    }
    absl::MutexLock lock(&mutex_);
    const absl::Time now = absl::Now();
    if (done > reported_bytes_ && (done == total_bytes_ || now >= next_report_)) {
      reported_bytes_ = done;
      next_report_ = now + absl::Milliseconds(50);
      callback_(done, total_bytes_);
    }
  }

 private:
  const ProgressCallback& callback_;
  const int64_t total_bytes_;
  std::atomic<int64_t> done_bytes_ = 0;
  absl::Mutex mutex_;
  int64_t reported_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time next_report_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

// Keeps the first error of several threads. Thread-safe.
class FirstError {
 public:
  // Returns true if `status` is the first error.
  bool Set(absl::Status status) {
    absl::MutexLock lock(&mutex_);
    if (!status_.ok() || status.ok()) {
      return false;
    }
    status_ = std::move(status);
    return true;
  }
  absl::Status status() const {
    absl::MutexLock lock(&mutex_);
    return status_;
  }

 private:
  mutable absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

// `unfinished`: names the devices whose tiles were still being sent.
absl::Status TimeIsOver(const std::set<std::string>& unfinished = {}) {
  constexpr size_t kNamed = 8;
  std::string text = "the transfer's time is over";
  if (!unfinished.empty()) {
    const std::vector<std::string> names(unfinished.begin(), unfinished.end());
    StrAppend(&text, ": not all tiles of ",
              StrJoin(absl::MakeConstSpan(names).subspan(0, kNamed), ", "));
    if (names.size() > kNamed) StrAppend(&text, " and ", names.size() - kNamed, " more");
    StrAppend(&text, " were sent; give it more time");
  }
  return WithReason(absl::DeadlineExceededError(std::move(text)), Reason::kDeadline);
}

// Whether a stream may have ended with `status` because the coordinator has ended the put. The
// coordinator ends a put at the put's deadline. A worker may report that end before the stream's
// own deadline.
bool IsOfEndedPut(const absl::Status& status) {
  return absl::IsCancelled(status) || ReasonOf(status) == Reason::kStaleTerm;
}

std::string NameOf(const TransferDevice& device) {
  return StrCat("rank ", device.rank, " (worker ", device.identity, ")");
}

// The tiles of one worker, in sending order.
struct Outbound {
  const TransferDevice* device;  // the worker, with the first of its ranks
  std::vector<OutgoingTile> tiles;
};

// How tiles of the tensor go to workers that take memory.
Handover HandoverOf(const UploadTensor& tensor, Handover asked) {
  return asked == Handover::kAuto && !tensor.is_named ? Handover::kOff : asked;
}

absl::StatusOr<std::vector<Outbound>> PlanUpload(absl::Span<const TransferDevice> devices,
                                                 absl::Span<const UploadTensor> tensors,
                                                 Handover handover, int64_t* total_bytes) {
  absl::btree_map<std::string_view, Outbound> by_worker;
  for (const UploadTensor& tensor : tensors) {
    const ArrayDescriptor& array = *tensor.array;
    SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, array.Tiling());
    if (tiling.mesh().size() != static_cast<int64_t>(devices.size())) {
      return absl::InternalError(StrCat("the coordinator names ", devices.size(), " devices for ",
                                        array.mesh_id, ", a mesh of ", tiling.mesh().size()));
    }
    for (const TransferDevice& device : devices) {
      if (device.rank < 0 || device.rank >= tiling.mesh().size()) {
        return absl::InternalError(StrCat("the coordinator names ", NameOf(device),
                                          " of a mesh of ", tiling.mesh().size()));
      }
      if (!tensor.ranks.empty() &&
          !std::binary_search(tensor.ranks.begin(), tensor.ranks.end(), device.rank)) {
        continue;
      }
      Outbound& outbound = by_worker[device.identity];
      if (outbound.tiles.empty()) {
        outbound.device = &device;
      }
      outbound.tiles.push_back({.token = tensor.token,
                                .array_id = array.array_id,
                                .rank = device.rank,
                                .tile = tiling.TileOf(device.rank),
                                .tensor = tensor.view,
                                .handover = HandoverOf(tensor, handover)});
      SHARDMESH_ASSIGN_OR_RETURN(const int64_t size,
                                 array.TileSizeBytes(outbound.tiles.back().tile));
      *total_bytes += size;
    }
  }
  std::vector<Outbound> plan;
  plan.reserve(by_worker.size());
  for (auto& [identity, outbound] : by_worker) {
    plan.push_back(std::move(outbound));
  }
  return plan;
}

// How long a worker may take to name its handover socket.
constexpr absl::Duration kIdentifyTime = absl::Seconds(5);

// Whether a tile for this worker is of a size that is handed over.
bool HasTileToHandOver(const Outbound& outbound) {
  return std::any_of(outbound.tiles.begin(), outbound.tiles.end(), [](const OutgoingTile& tile) {
    const auto bits = TileBits::Create(tile.tensor.dtype(), tile.tensor.shape(), tile.tile);
    return bits.ok() && IsToHandOver(tile, bits->size_bytes());
  });
}

// Why Handover::kAuto streams large tiles of tensors without a name; OK if there are none.
absl::Status UnnamedStreamed(absl::Span<const UploadTensor> tensors, Handover handover) {
  if (handover != Handover::kAuto) return absl::OkStatus();
  for (const UploadTensor& tensor : tensors) {
    const absl::StatusOr<Tiling> tiling = tensor.array->Tiling();
    if (tensor.is_named || !tiling.ok()) continue;
    for (DeviceId rank = 0; rank < tiling->mesh().size(); ++rank) {
      const auto size_bytes = tensor.array->TileSizeBytes(tiling->TileOf(rank));
      if (!size_bytes.ok() || !TileHandover::Fits(*size_bytes)) continue;
      return absl::FailedPreconditionError(
          "tiles of arrays without a name are not handed over as memory, because a step that is "
          "given such an array could not write its result into it; name the array, or set "
          "PutOptions::handover to kOn");
    }
  }
  return absl::OkStatus();
}

absl::Status HandoverRefused(std::string_view why) {
  return WithReason(
      absl::FailedPreconditionError(StrCat(
          "tiles cannot be handed over as memory: ", why,
          "; the client must run on the worker's host, in its network namespace, as its user")),
      Reason::kNotAvailable, {{fact::kField, "handover"}});
}

// FAILED_PRECONDITION (NOT_AVAILABLE): the worker takes no memory of this client. Other errors: of
// the call to the worker.
absl::StatusOr<std::unique_ptr<TileHandover>> ConnectHandover(WorkerClient* worker,
                                                              Cancellation* cancellation,
                                                              HandoverRoom* room,
                                                              const TransferOptions& options) {
  const absl::Time limit = absl::Now() + std::min(kIdentifyTime, options.deadline.left());
  SHARDMESH_ASSIGN_OR_RETURN(const WorkerIdentity identity,
                             worker->Identify({limit, options.traceparent}, cancellation));
  if (identity.handover_socket.empty()) {
    return HandoverRefused(
        "the worker takes none, because it shares no memory (--transport) or is of an older build");
  }
  absl::StatusOr<std::unique_ptr<TileHandover>> connected =
      TileHandover::Connect(identity.handover_socket, room);
  if (!connected.ok()) return HandoverRefused(ToStd(connected.status().message()));
  return connected;
}

// One copy of the array's tiles, as workers are asked for it.
struct TileCopy {
  std::string_view array_id;
  std::string_view token;
};

struct TileHolder {
  const TransferDevice* device = nullptr;
  const TileCopy* copy = nullptr;
};

// A tile to fetch, with its holders.
struct PendingTile {
  Tile tile;   // in coordinates of the array
  Tile place;  // the same tile in coordinates of the downloaded part
  int64_t size_bytes = 0;
  std::vector<TileHolder> holders;  // those of the second copy last
};

// The devices of a copy, by rank.
struct CopyDevices {
  CopyDevices(const TileCopy* tiles, absl::Span<const TransferDevice> devices) : copy(tiles) {
    for (const TransferDevice& device : devices) by_rank[device.rank] = &device;
  }

  const TileCopy* copy;
  absl::flat_hash_map<int64_t, const TransferDevice*> by_rank = {};
};

// Returns the tile in coordinates relative to the start of `part`.
Tile WithOrigin(Tile tile, const Tile& part) {
  for (size_t dim = 0; dim < tile.ranges.size(); ++dim) {
    tile.ranges[dim].start -= part.ranges[dim].start;
    tile.ranges[dim].stop -= part.ranges[dim].start;
  }
  return tile;
}

// A tile to request from a worker, and the copy of which the worker has it.
struct RequestedTile {
  const PendingTile* tile = nullptr;
  const TileCopy* copy = nullptr;
  bool is_done = false;  // all its bytes are in place, and match its checksum
};

// The tiles to request from one worker.
struct Inbound {
  const TransferDevice* device = nullptr;
  std::vector<RequestedTile> tiles;
  int64_t size_bytes = 0;

  // Whether other workers that are not lost hold all the tiles.
  bool HasOtherHolders(const absl::flat_hash_set<std::string>& lost) const {
    return std::all_of(tiles.begin(), tiles.end(), [&](const RequestedTile& each) {
      return std::any_of(each.tile->holders.begin(), each.tile->holders.end(),
                         [&](const TileHolder& holder) {
                           const std::string& identity = holder.device->identity;
                           return identity != device->identity && !lost.contains(identity);
                         });
    });
  }
};

// Names the worker by its rank in the mesh of the array. A second copy lies on a mesh of its own,
// which users do not know. `devices`: those of the array itself.
std::string NameOf(const Inbound& inbound, absl::Span<const TransferDevice> devices) {
  const TransferDevice* found = nullptr;
  for (const TransferDevice& each : devices) {
    if (&each == inbound.device) return NameOf(each);
    if (found == nullptr && each.identity == inbound.device->identity) found = &each;
  }
  return found != nullptr ? NameOf(*found)
                          : StrCat("worker ", inbound.device->identity,
                                   ", which has tiles of the second replica");
}

// Returns how long a worker that was silent so often may send nothing. `first`: the time of a
// worker that was not silent before.
absl::Duration PatienceWith(absl::Duration first, int silences) {
  constexpr int kMostDoublings = 20;
  return first * (int64_t{1} << std::min(2 * silences, kMostDoublings));
}

// The workers that a download avoids, by identity.
struct AvoidedWorkers {
  absl::flat_hash_set<std::string> lost_here = {};
  absl::flat_hash_map<std::string, int> silent_here = {};
  absl::flat_hash_set<std::string>* lost = &lost_here;      // that are not asked
  absl::flat_hash_map<std::string, int>* silent = nullptr;  // see TransferOptions::silent_workers

  int SilencesOf(const std::string& identity) const {
    const auto found = silent->find(identity);
    return found == silent->end() ? 0 : found->second;
  }
};

// Assigns each tile to the holder with the least assigned bytes, of those that were silent least
// often. Holders of the second copy get only tiles whose other holders are all lost, or were silent
// more often. ARRAY_DEGRADED if all holders of a tile are lost.
absl::StatusOr<std::vector<Inbound>> PlanDownload(const std::vector<PendingTile>& pending,
                                                  const AvoidedWorkers& avoided,
                                                  const ArrayDescriptor& array) {
  absl::btree_map<std::string_view, Inbound> by_worker;
  for (const PendingTile& tile : pending) {
    const TileHolder* best = nullptr;
    std::tuple<int, bool, int64_t> best_cost;
    for (const TileHolder& holder : tile.holders) {
      const std::string& identity = holder.device->identity;
      if (avoided.lost->contains(identity)) continue;
      const std::tuple<int, bool, int64_t> cost(avoided.SilencesOf(identity),
                                                holder.copy != tile.holders.front().copy,
                                                by_worker[identity].size_bytes);
      if (best != nullptr && cost >= best_cost) continue;
      best = &holder;
      best_cost = cost;
    }
    if (best == nullptr) {
      return WithReason(
          absl::FailedPreconditionError(StrCat("no live worker holds tile ", tile.tile.ToString(),
                                               " of array ", array.array_id)),
          Reason::kArrayDegraded, {{fact::kArray, array.array_id}});
    }
    Inbound& inbound = by_worker[best->device->identity];
    inbound.device = best->device;
    inbound.tiles.push_back({.tile = &tile, .copy = best->copy});
    inbound.size_bytes += tile.size_bytes;
  }
  std::vector<Inbound> plan;
  for (auto& [identity, inbound] : by_worker) {
    if (!inbound.tiles.empty()) {
      plan.push_back(std::move(inbound));
    }
  }
  return plan;
}

// Fetches the tiles of one worker that are not done over `worker`; writes each piece directly to
// its place in `into`. The threads of other workers write their tiles there at the same time, also
// tiles that share bytes with these (PasteTileBytes). If the fetch fails, subtracts the received
// bytes of the last tile from the progress, unless that tile is done, because they must be sent
// again.
absl::Status FetchOver(WorkerClient* worker, Inbound& inbound, const MutableTensorView& into,
                       ProgressMeter& progress, SilenceWatch::Stream* watched,
                       const TransferOptions& options) {
  std::vector<RequestedTile*> wanted;
  for (RequestedTile& each : inbound.tiles) {
    if (!each.is_done) wanted.push_back(&each);
  }
  int64_t open_bytes = 0;  // received of a tile that is not done
  absl::Cleanup take_back = [&] {
    watched->BeginTaking();
    progress.Add(-open_bytes);
    watched->EndTaking();
  };
  for (size_t begin = 0; begin < wanted.size(); begin += rpc::kMaxTilesPerGet) {
    const auto part = absl::MakeConstSpan(wanted).subspan(begin, rpc::kMaxTilesPerGet);
    std::vector<FetchedTile> tiles;
    tiles.reserve(part.size());
    for (const RequestedTile* each : part) {
      tiles.push_back(
          {each->copy->token, each->copy->array_id, each->tile->tile, each->tile->size_bytes});
    }
    const TileSink sink = [&](size_t index, int64_t offset,
                              absl::Span<const char> bytes) -> absl::Status {
      watched->BeginTaking();
      const absl::Cleanup end_taking = [watched] { watched->EndTaking(); };
      const auto size_bytes = static_cast<int64_t>(bytes.size());
      RequestedTile& requested = *part[index];
      open_bytes += size_bytes;
      progress.Add(size_bytes);
      SHARDMESH_RETURN_IF_ERROR(PasteTileBytes(bytes, requested.tile->place, offset, into));
      // The last bytes come only if they match the checksum of the tile.
      if (offset + size_bytes == requested.tile->size_bytes) {
        requested.is_done = true;
        open_bytes = 0;
      }
      return absl::OkStatus();
    };
    SHARDMESH_RETURN_IF_ERROR(worker->GetTiles(tiles, sink, watched->cancellation(),
                                               {options.deadline.wall(), options.traceparent}));
    // Tiles without bytes do not reach the sink.
    for (RequestedTile* each : part) each->is_done = true;
  }
  std::move(take_back).Cancel();
  return absl::OkStatus();
}

// Fetches the tiles of one worker, over a kept connection if there is one.
absl::Status Fetch(Inbound& inbound, const MutableTensorView& into, ProgressMeter& progress,
                   SilenceWatch::Stream* watched, const TransferOptions& options) {
  const TransferDevice& device = *inbound.device;
  const auto fetch_over = [&](std::unique_ptr<WorkerClient> worker) {
    const absl::Status fetched = FetchOver(worker.get(), inbound, into, progress, watched, options);
    if (fetched.ok() && options.connections != nullptr) {
      options.connections->Keep(device.identity, device.incarnation, std::move(worker));
    }
    return fetched;
  };
  if (options.connections != nullptr) {
    if (auto kept = options.connections->Take(device.identity, device.incarnation);
        kept != nullptr) {
      const absl::Status fetched = fetch_over(std::move(kept));
      if (!absl::IsUnavailable(fetched)) return fetched;
      // The connection may have broken while it was idle: only a new one says that the worker is
      // lost.
    }
  }
  SHARDMESH_ASSIGN_OR_RETURN(
      std::unique_ptr<WorkerClient> worker,
      WorkerClient::Connect(device.identity, device.addresses, options.credentials,
                            options.deadline.wall(), watched->cancellation(),
                            [watched] { watched->Received(); }));
  return fetch_over(std::move(worker));
}

// gRPC may end a call or an attempt to connect this much before its deadline.
constexpr absl::Duration kEarliestEnd = absl::Milliseconds(20);

// Whether a failure now may be due to the deadline, so that it says nothing about a worker.
bool IsOver(const SteadyDeadline& deadline) { return deadline.left() <= kEarliestEnd; }

// Whether a stream that ended with `status` at the deadline may have ended because of it. An error
// that a worker reports has a reason. `is_connected`: the worker was reached. Its gRPC may end the
// call before this client's does, which looks like a broken connection.
bool IsOfDeadline(const absl::Status& status, bool is_connected) {
  if (IsOfEndedPut(status)) return true;
  return ReasonOf(status) == Reason::kUnspecified &&
         (absl::IsDeadlineExceeded(status) || (absl::IsUnavailable(status) && is_connected));
}

}  // namespace

absl::StatusOr<int64_t> Upload(absl::Span<const TransferDevice> devices,
                               absl::Span<const UploadTensor> tensors, Cancellation* cancellation,
                               const TransferOptions& options) {
  int64_t total_bytes = 0;
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<Outbound> plan,
                             PlanUpload(devices, tensors, options.handover, &total_bytes));
  ProgressMeter progress(options.progress, total_bytes);
  FirstError error;
  FirstError unreached;
  absl::Mutex mutex;
  bool is_time_over = false;         // whether that is the first error
  std::set<std::string> unfinished;  // devices whose streams ended because the time was over
  HandoverRoom room(options.handover == Handover::kAuto ? MemoryLeftInGroup() : std::nullopt);
  HandoverOutcome outcome{.refusal = UnnamedStreamed(tensors, options.handover)};
  RunOnThreads(plan.size(), /*max_threads=*/plan.size(), [&](size_t i) {
    bool is_connected = false;
    const auto put = [&]() -> absl::Status {
      SHARDMESH_ASSIGN_OR_RETURN(
          const std::unique_ptr<WorkerClient> worker,
          WorkerClient::Connect(plan[i].device->identity, plan[i].device->addresses,
                                options.credentials, options.deadline.wall(), cancellation));
      is_connected = true;
      std::unique_ptr<TileHandover> handover;
      if (options.handover != Handover::kOff && HasTileToHandOver(plan[i])) {
        absl::StatusOr<std::unique_ptr<TileHandover>> connected =
            ConnectHandover(worker.get(), cancellation, &room, options);
        if (connected.ok()) {
          handover = *std::move(connected);
        } else if (options.handover == Handover::kOn) {
          return connected.status();
        } else {
          absl::MutexLock lock(&mutex);
          outcome.refusal = connected.status();
        }
      }
      const absl::StatusOr<PutTilesAnswer> answer = worker->PutTiles(
          plan[i].tiles, [&progress](int64_t bytes) { progress.Add(bytes); }, cancellation,
          {options.deadline.wall(), options.traceparent}, handover.get());
      SHARDMESH_RETURN_IF_ERROR(answer.status());
      absl::MutexLock lock(&mutex);
      outcome.bytes += answer->handed_over_bytes;
      if (handover != nullptr && !handover->refusal().ok()) outcome.refusal = handover->refusal();
      return absl::OkStatus();
    };
    absl::Status status = put();
    const bool is_late = IsOver(options.deadline) && IsOfDeadline(status, is_connected);
    if (is_late) {
      status = TimeIsOver();
      absl::MutexLock lock(&mutex);
      unfinished.insert(NameOf(*plan[i].device));
    }
    absl::Status named = WithContext(status, NameOf(*plan[i].device));
    if (absl::IsUnavailable(named)) {
      if (!FactOf(named, fact::kIdentity).has_value()) {
        named = WithFacts(std::move(named), {{fact::kIdentity, plan[i].device->identity}});
      }
      unreached.Set(named);
    }
    if (error.Set(named)) {
      {
        absl::MutexLock lock(&mutex);
        is_time_over = is_late;
      }
      cancellation->Cancel();
    }
  });
  if (is_time_over) {
    // The first stream to end is not one of a worker at fault: all end at the deadline.
    SHARDMESH_RETURN_IF_ERROR(unreached.status());
    return TimeIsOver(unfinished);
  }
  SHARDMESH_RETURN_IF_ERROR(error.status());
  // Told even if the last tile found room.
  if (const absl::Status refusal = room.refusal(); !refusal.ok()) outcome.refusal = refusal;
  if (options.handover_outcome != nullptr) *options.handover_outcome = std::move(outcome);
  return total_bytes;
}

absl::Status CheckReduced(const ArrayDescriptor& array, const std::string& text) {
  const absl::Span<const std::string> axes = array.spec.unreduced();
  if (axes.empty()) return absl::OkStatus();
  const std::string name = text.empty() ? StrCat("@", array.array_id) : text;
  return WithReason(
      absl::FailedPreconditionError(StrCat(name, " holds partial sums along ", StrJoin(axes, ", "),
                                           "; reduce it first: `shardmesh collective all-reduce ",
                                           name, " --axes ", StrJoin(axes, ","), " --as NAME`")),
      Reason::kInvalidSpec,
      {{fact::kAxis, StrJoin(axes, ",")}, {fact::kValue, array.spec.ToString()}});
}

absl::Status Download(const ArrayDescriptor& array, const Tile& part, std::string_view token,
                      absl::Span<const TransferDevice> devices, const MutableTensorView& into,
                      Cancellation* cancellation, const TransferOptions& options) {
  SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, array.Tiling());
  if (!options.partial_sum.has_value()) {
    SHARDMESH_RETURN_IF_ERROR(CheckReduced(array, options.array));
  }
  const TileCopy own{.array_id = array.array_id, .token = token};
  std::vector<CopyDevices> copies;
  copies.emplace_back(&own, devices);
  TileCopy second;
  if (options.second_copy != nullptr) {
    second = {.array_id = options.second_copy->array_id, .token = options.second_copy->token};
    copies.emplace_back(&second, options.second_copy->devices);
  }
  std::vector<PendingTile> pending;
  int64_t total_bytes = 0;
  for (const OwnedTile& owned : tiling.OwnersOf(part)) {
    PendingTile& tile = pending.emplace_back();
    tile.tile = owned.tile;
    tile.place = WithOrigin(owned.tile, part);
    SHARDMESH_ASSIGN_OR_RETURN(tile.size_bytes, array.TileSizeBytes(owned.tile));
    for (const CopyDevices& each : copies) {
      for (const DeviceId rank : owned.devices) {
        if (options.partial_sum.has_value() && PartialSumOf(array, rank) != *options.partial_sum) {
          continue;
        }
        if (const auto found = each.by_rank.find(rank); found != each.by_rank.end()) {
          tile.holders.push_back({.device = found->second, .copy = each.copy});
        }
      }
    }
    total_bytes += tile.size_bytes;
  }
  ProgressMeter progress(options.progress, total_bytes);

  // Each round requests the missing tiles from the remaining holders. The loop ends, because each
  // round that leaves tiles missing adds a lost worker, or makes the download wait longer for a
  // silent one, or takes the rest of the time.
  AvoidedWorkers avoided;
  if (options.lost_workers != nullptr) avoided.lost = options.lost_workers;
  avoided.silent =
      options.silent_workers == nullptr ? &avoided.silent_here : options.silent_workers;
  absl::Status last_loss;
  SilenceWatch own_watch;
  SilenceWatch* const watch = options.silence_watch == nullptr ? &own_watch : options.silence_watch;
  while (!pending.empty()) {
    if (cancellation != nullptr && cancellation->is_cancelled()) {
      return absl::CancelledError("the transfer was cancelled");
    }
    if (IsOver(options.deadline)) {
      const absl::Status over = TimeIsOver();
      return last_loss.ok() ? over : WithContext(over, ToStd(last_loss.message()));
    }
    absl::StatusOr<std::vector<Inbound>> plan = PlanDownload(pending, avoided, array);
    if (!plan.ok()) {
      return last_loss.ok() ? std::move(plan).status()
                            : WithContext(plan.status(), ToStd(last_loss.message()));
    }
    std::vector<std::unique_ptr<SilenceWatch::Stream>> streams;
    std::vector<absl::Duration> patience;
    for (const Inbound& inbound : *plan) {
      patience.push_back(
          inbound.HasOtherHolders(*avoided.lost)
              ? PatienceWith(options.patience, avoided.SilencesOf(inbound.device->identity))
              : absl::InfiniteDuration());
      streams.push_back(std::make_unique<SilenceWatch::Stream>(watch, patience.back()));
    }
    const auto cancel_all = [&streams] {
      for (const auto& stream : streams) stream->cancellation()->Cancel();
    };
    std::optional<Cancellation::Registration> registration;
    if (cancellation != nullptr) {
      registration.emplace(cancellation, cancel_all);
    }
    FirstError error;
    absl::Mutex mutex;
    RunOnThreads(plan->size(), /*max_threads=*/plan->size(), [&](size_t i) {
      Inbound& inbound = (*plan)[i];
      streams[i]->Begin();
      absl::Status status = WithContext(Fetch(inbound, into, progress, streams[i].get(), options),
                                        NameOf(inbound, devices));
      streams[i]->End();
      if (status.ok()) return;
      if (absl::IsCancelled(status) && streams[i]->is_left()) {
        absl::MutexLock lock(&mutex);
        ++(*avoided.silent)[inbound.device->identity];
        last_loss = absl::UnavailableError(StrCat(NameOf(inbound, devices), " sent nothing for ",
                                                  absl::FormatDuration(patience[i])));
      } else if (absl::IsUnavailable(status) || absl::IsNotFound(status)) {
        // The worker is lost, or has restarted without the tile. The next round tries another
        // holder.
        absl::MutexLock lock(&mutex);
        if (!IsOver(options.deadline)) avoided.lost->insert(inbound.device->identity);
        last_loss = std::move(status);
      } else if (error.Set(std::move(status))) {
        cancel_all();
      }
    });
    SHARDMESH_RETURN_IF_ERROR(error.status());
    std::vector<PendingTile> missing;
    for (const Inbound& inbound : *plan) {
      for (const RequestedTile& each : inbound.tiles) {
        if (!each.is_done) missing.push_back(*each.tile);
      }
    }
    pending = std::move(missing);
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::client
