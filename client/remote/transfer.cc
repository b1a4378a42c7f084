// Transfers tiles with one thread and one stream for each worker. The first failure ends all
// streams.
#include "client/remote/transfer.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "client/remote/worker_client.h"
#include "rpc/call.h"
#include "rpc/contract.h"
#include "sharding/tile.h"
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

absl::Status TimeIsOver() {
  return WithReason(absl::DeadlineExceededError("the transfer's time is over"), Reason::kDeadline);
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

// Runs `body(i)` for each of `count` workers, each on its own thread, and waits for all threads.
template <typename Body>
void RunOnThreads(size_t count, const Body& body) {
  std::vector<std::thread> threads;
  threads.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    threads.emplace_back([&body, i] { body(i); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

// The tiles of one worker, in sending order.
struct Outbound {
  const TransferDevice* device;  // the worker, with the first of its ranks
  std::vector<OutgoingTile> tiles;
};

absl::StatusOr<std::vector<Outbound>> PlanUpload(absl::Span<const TransferDevice> devices,
                                                 absl::Span<const UploadTensor> tensors,
                                                 int64_t* total_bytes) {
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
      Outbound& outbound = by_worker[device.identity];
      if (outbound.tiles.empty()) {
        outbound.device = &device;
      }
      outbound.tiles.push_back({.token = tensor.token,
                                .array_id = array.array_id,
                                .rank = device.rank,
                                .tile = tiling.TileOf(device.rank),
                                .tensor = tensor.view});
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

// A tile to fetch, with its holders.
struct PendingTile {
  Tile tile;   // in coordinates of the array
  Tile place;  // the same tile in coordinates of the downloaded part
  int64_t size_bytes = 0;
  std::vector<const TransferDevice*> holders;
};

// Returns the tile in coordinates relative to the start of `part`.
Tile WithOrigin(Tile tile, const Tile& part) {
  for (size_t dim = 0; dim < tile.ranges.size(); ++dim) {
    tile.ranges[dim].start -= part.ranges[dim].start;
    tile.ranges[dim].stop -= part.ranges[dim].start;
  }
  return tile;
}

// The tiles to request from one worker.
struct Inbound {
  const TransferDevice* device = nullptr;
  std::vector<const PendingTile*> tiles;
  int64_t size_bytes = 0;
  bool is_done = false;
};

// Assigns each tile to the holder with the least assigned bytes. ARRAY_DEGRADED if all holders of a
// tile are lost.
absl::StatusOr<std::vector<Inbound>> PlanDownload(const std::vector<PendingTile>& pending,
                                                  const absl::flat_hash_set<std::string>& lost,
                                                  const ArrayDescriptor& array) {
  absl::btree_map<std::string_view, Inbound> by_worker;
  for (const PendingTile& tile : pending) {
    const TransferDevice* best = nullptr;
    for (const TransferDevice* holder : tile.holders) {
      if (!lost.contains(holder->identity) &&
          (best == nullptr ||
           by_worker[holder->identity].size_bytes < by_worker[best->identity].size_bytes)) {
        best = holder;
      }
    }
    if (best == nullptr) {
      return WithReason(
          absl::FailedPreconditionError(StrCat("no live worker holds tile ", tile.tile.ToString(),
                                               " of array ", array.array_id)),
          Reason::kArrayDegraded, {{fact::kArray, array.array_id}});
    }
    Inbound& inbound = by_worker[best->identity];
    inbound.device = best;
    inbound.tiles.push_back(&tile);
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

// Fetches the tiles of one worker; writes each piece directly to its place in `into`. If the fetch
// fails, subtracts the received bytes from the progress, because another worker must send them
// again.
absl::Status Fetch(const Inbound& inbound, std::string_view token, const ArrayDescriptor& array,
                   const MutableTensorView& into, ProgressMeter& progress,
                   Cancellation* cancellation, const TransferOptions& options) {
  SHARDMESH_ASSIGN_OR_RETURN(
      const std::unique_ptr<WorkerClient> worker,
      WorkerClient::Connect(inbound.device->identity, inbound.device->addresses,
                            options.credentials, options.deadline.wall(), cancellation));
  int64_t received_bytes = 0;
  absl::Cleanup take_back = [&] { progress.Add(-received_bytes); };
  for (size_t begin = 0; begin < inbound.tiles.size(); begin += rpc::kMaxTilesPerGet) {
    const auto part = absl::MakeConstSpan(inbound.tiles).subspan(begin, rpc::kMaxTilesPerGet);
    std::vector<FetchedTile> tiles;
    tiles.reserve(part.size());
    for (const PendingTile* tile : part) {
      tiles.push_back({token, array.array_id, tile->tile, tile->size_bytes});
    }
    const TileSink sink = [&](size_t index, int64_t offset, absl::Span<const char> bytes) {
      received_bytes += static_cast<int64_t>(bytes.size());
      progress.Add(static_cast<int64_t>(bytes.size()));
      return PasteTileBytes(bytes, part[index]->place, offset, into);
    };
    SHARDMESH_RETURN_IF_ERROR(worker->GetTiles(tiles, sink, cancellation,
                                               {options.deadline.wall(), options.traceparent}));
  }
  std::move(take_back).Cancel();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int64_t> Upload(absl::Span<const TransferDevice> devices,
                               absl::Span<const UploadTensor> tensors, Cancellation* cancellation,
                               const TransferOptions& options) {
  int64_t total_bytes = 0;
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<Outbound> plan,
                             PlanUpload(devices, tensors, &total_bytes));
  ProgressMeter progress(options.progress, total_bytes);
  FirstError error;
  RunOnThreads(plan.size(), [&](size_t i) {
    const auto put = [&]() -> absl::Status {
      SHARDMESH_ASSIGN_OR_RETURN(
          const std::unique_ptr<WorkerClient> worker,
          WorkerClient::Connect(plan[i].device->identity, plan[i].device->addresses,
                                options.credentials, options.deadline.wall(), cancellation));
      return worker
          ->PutTiles(plan[i].tiles, [&progress](int64_t bytes) { progress.Add(bytes); },
                     cancellation, {options.deadline.wall(), options.traceparent})
          .status();
    };
    absl::Status status = put();
    if (IsOfEndedPut(status) && options.deadline.is_over()) status = TimeIsOver();
    if (error.Set(WithContext(status, NameOf(*plan[i].device)))) {
      cancellation->Cancel();
    }
  });
  SHARDMESH_RETURN_IF_ERROR(error.status());
  return total_bytes;
}

absl::Status Download(const ArrayDescriptor& array, const Tile& part, std::string_view token,
                      absl::Span<const TransferDevice> devices, const MutableTensorView& into,
                      Cancellation* cancellation, const TransferOptions& options) {
  SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, array.Tiling());
  if (!tiling.spec().unreduced().empty()) {
    const std::string name = options.array.empty() ? StrCat("@", array.array_id) : options.array;
    return WithReason(
        absl::FailedPreconditionError(
            StrCat(name, " holds partial sums along ", StrJoin(tiling.spec().unreduced(), ", "),
                   "; reduce it first: `shardmesh collective all-reduce ", name, " --axes ",
                   StrJoin(tiling.spec().unreduced(), ","), " --as NAME`")),
        Reason::kInvalidSpec,
        {{fact::kAxis, StrJoin(array.spec.unreduced(), ",")},
         {fact::kValue, array.spec.ToString()}});
  }
  absl::flat_hash_map<int64_t, const TransferDevice*> device_of_rank;
  for (const TransferDevice& device : devices) {
    device_of_rank[device.rank] = &device;
  }
  std::vector<PendingTile> pending;
  int64_t total_bytes = 0;
  for (const OwnedTile& owned : tiling.OwnersOf(part)) {
    PendingTile& tile = pending.emplace_back();
    tile.tile = owned.tile;
    tile.place = WithOrigin(owned.tile, part);
    SHARDMESH_ASSIGN_OR_RETURN(tile.size_bytes, array.TileSizeBytes(owned.tile));
    for (const DeviceId rank : owned.devices) {
      if (const auto found = device_of_rank.find(rank); found != device_of_rank.end()) {
        tile.holders.push_back(found->second);
      }
    }
    total_bytes += tile.size_bytes;
  }
  ProgressMeter progress(options.progress, total_bytes);

  // Each round requests the missing tiles from the remaining holders. The loop ends, because each
  // round that leaves tiles missing adds a lost worker.
  absl::flat_hash_set<std::string> lost;
  absl::Status last_loss;
  while (!pending.empty()) {
    if (cancellation != nullptr && cancellation->is_cancelled()) {
      return absl::CancelledError("the transfer was cancelled");
    }
    if (options.deadline.is_over()) {
      const absl::Status over = TimeIsOver();
      return last_loss.ok() ? over : WithContext(over, ToStd(last_loss.message()));
    }
    absl::StatusOr<std::vector<Inbound>> plan = PlanDownload(pending, lost, array);
    if (!plan.ok()) {
      return last_loss.ok() ? std::move(plan).status()
                            : WithContext(plan.status(), ToStd(last_loss.message()));
    }
    Cancellation streams;
    std::optional<Cancellation::Registration> registration;
    if (cancellation != nullptr) {
      registration.emplace(cancellation, [&streams] { streams.Cancel(); });
    }
    FirstError error;
    absl::Mutex mutex;
    RunOnThreads(plan->size(), [&](size_t i) {
      Inbound& inbound = (*plan)[i];
      absl::Status status = WithContext(
          Fetch(inbound, token, array, into, progress, &streams, options), NameOf(*inbound.device));
      if (status.ok()) {
        inbound.is_done = true;
      } else if (absl::IsUnavailable(status) || absl::IsNotFound(status)) {
        // The worker is lost, or has restarted without the tile. The next round tries another
        // holder.
        absl::MutexLock lock(&mutex);
        lost.insert(inbound.device->identity);
        last_loss = std::move(status);
      } else if (error.Set(std::move(status))) {
        streams.Cancel();
      }
    });
    SHARDMESH_RETURN_IF_ERROR(error.status());
    std::vector<PendingTile> missing;
    for (const Inbound& inbound : *plan) {
      for (const PendingTile* tile : inbound.tiles) {
        if (!inbound.is_done) {
          missing.push_back(*tile);
        }
      }
    }
    pending = std::move(missing);
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::client
