// TileFiller: one task for each tile from a file, and one for each order with tiles from arrays.
#include "worker/fill/fill_threads.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "process/failpoint.h"
#include "process/log.h"
#include "process/steady_deadline.h"
#include "process/thread_pool.h"
#include "rpc/codec/array_codec.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/buffer.h"
#include "tensor/dtype.h"
#include "tensor/view.h"
#include "worker/fill/array_parts.h"
#include "worker/fill/checked_file.h"
#include "worker/fill/converted_tile.h"
#include "worker/fill/file_tile.h"
#include "worker/fill/peer_reader.h"
#include "worker/fill/saved_sums.h"

namespace shardmesh::worker {
namespace {

// Regions and bytes of the tiles that are read from other workers together: enough to fill the
// streams, and few enough that tiles are reported while others are read.
constexpr size_t kMaxBatchRegions = 4096;
constexpr int64_t kMaxBatchBytes = int64_t{256} << 20;
// The most bytes that have come from other workers and are not in their tiles, of all threads. An
// order may have a lower limit.
constexpr int64_t kMaxInFlightBytes = int64_t{64} << 20;
static_assert(6 * PeerReader::kStreamBytes <= kMaxInFlightBytes);  // one stream for each thread
// How often a tile that waits for its mesh asks whether its transfer has ended.
constexpr absl::Duration kMeshPollInterval = absl::Milliseconds(200);
// How long a tile waits at most for readers of the memory into which it is to come.
constexpr absl::Duration kReadersWaitLimit = absl::Seconds(10);

// A transfer whose tiles are being filled.
struct FillTransfer {
  FillTransfer(std::string transfer_id, int64_t coordinator_term, TileFiller::Failed on_failure,
               const ReadRoots* roots)
      : id(std::move(transfer_id)),
        term(coordinator_term),
        failed(std::move(on_failure)),
        files(roots),
        saved(roots) {}

  absl::Status KeepGoing() const {
    return is_over.load(std::memory_order_relaxed) ? absl::CancelledError("the transfer has ended")
                                                   : absl::OkStatus();
  }

  const std::string id;
  const int64_t term;
  const TileFiller::Failed failed;
  CheckedFiles files;
  SavedSums saved;
  std::atomic<bool> is_over{false};  // it has ended, or one of its tiles has failed
};

// Returns how many streams each of the threads may have open at a time, so that what has come over
// all of them has at most `bytes`; at least one.
size_t StreamsWithin(int64_t bytes, int threads) {
  return static_cast<size_t>(
      std::max<int64_t>(1, bytes / PeerReader::kStreamBytes / std::max(1, threads)));
}

// Memory and connections that one task uses at a time.
struct FillTools {
  explicit FillTools(const FillOptions& options)
      : peers({.identity = options.identity,
               .max_streams = StreamsWithin(kMaxInFlightBytes, options.threads),
               .credentials = options.credentials,
               .idle_limit = options.idle_limit}) {}

  FileTileReader files;
  PeerReader peers;
};

// A tile that could not be filled, and why.
struct FaultyTile {
  std::string array_id;
  DeviceId rank = 0;
  absl::Status status;
};

// The region, relative to the start of `tile`.
Tile Within(const Tile& tile, Tile region) {
  for (size_t i = 0; i < region.ranges.size(); ++i) {
    region.ranges[i].start -= tile.ranges[i].start;
    region.ranges[i].stop -= tile.ranges[i].start;
  }
  return region;
}

class FillThreads final : public TileFiller {
 public:
  explicit FillThreads(FillOptions options)
      : options_(std::move(options)),
        pool_(std::make_unique<ThreadPool>(options_.threads)),
        checks_(std::make_unique<ThreadPool>(1)) {}
  ~FillThreads() override { Stop(); }

  void Fill(FillOrder order, Failed failed) override {
    absl::MutexLock lock(&mutex_);
    if (pool_ == nullptr) return;
    std::shared_ptr<FillTransfer>& transfer = transfers_[order.transfer_id];
    if (transfer == nullptr) {
      transfer = std::make_shared<FillTransfer>(order.transfer_id, order.term, std::move(failed),
                                                options_.roots);
    }
    const auto shared = std::make_shared<const FillOrder>(std::move(order));
    bool has_arrays = false;
    for (const FillTile& tile : shared->tiles) {
      if (std::holds_alternative<FillFromArray>(tile.source)) {
        has_arrays = true;
        continue;
      }
      const bool is_zeros = std::holds_alternative<FillZeros>(tile.source);
      pool_->Run(transfer->id, [this, transfer, shared, &tile, is_zeros] {
        Settle(*transfer,
               is_zeros ? FillWithZeros(*transfer, tile) : FillFromFile(*transfer, *shared, tile));
      });
    }
    if (has_arrays) {
      pool_->Run(transfer->id, [this, transfer, shared] {
        Settle(*transfer, FillFromArrays(*transfer, *shared));
      });
    }
  }

  void Check(std::vector<SourceFile> files, Checked checked) override {
    absl::MutexLock lock(&mutex_);
    if (checks_ == nullptr) return;
    checks_->Push([this, files = std::move(files), checked = std::move(checked),
                   deadline = SteadyDeadline::After(options_.check_limit),
                   suspensions = suspensions_.load()] {
      const auto is_wanted = [&] { return suspensions_.load() == suspensions; };
      const auto keep_going = [&]() -> absl::Status {
        if (!is_wanted()) return absl::CancelledError("the coordinator no longer asks");
        return deadline.is_over() ? ChecksTooLong() : absl::OkStatus();
      };
      for (size_t i = 0; i < files.size(); ++i) {
        absl::Status usable = keep_going();
        if (usable.ok()) usable = CheckOne(files[i], keep_going);
        if (!is_wanted()) return;
        if (!usable.ok()) return checked(Blame(usable), i);
      }
      if (is_wanted()) checked(absl::OkStatus(), 0);
    });
  }

  void EndTransfer(const std::string& transfer_id) override {
    absl::MutexLock lock(&mutex_);
    const auto found = transfers_.find(transfer_id);
    if (found == transfers_.end()) return;
    found->second->is_over.store(true);
    transfers_.erase(found);
  }

  void Suspend() override {
    absl::MutexLock lock(&mutex_);
    suspensions_.fetch_add(1);
    EndAll();
  }

  void Stop() override {
    std::unique_ptr<ThreadPool> pool;
    std::unique_ptr<ThreadPool> checks;
    {
      absl::MutexLock lock(&mutex_);
      suspensions_.fetch_add(1);
      EndAll();
      pool = std::move(pool_);
      checks = std::move(checks_);
    }
    // Both pools run their waiting tasks, which end at once, and join their threads.
  }

  Counters counters() const override {
    return {.file_bytes = file_bytes_.load(),
            .kept_bytes = kept_bytes_.load(),
            .received_bytes = received_bytes_.load()};
  }

 private:
  // A tile that is open in the store, and is filled from an array.
  struct OpenTile {
    ArrayDescriptor array;
    DeviceId rank = 0;
    std::unique_ptr<IncomingTile> tile;
    // The whole tile, for bytes that come in any order. Nullopt if they come in order:
    // IncomingTile::Write then takes them.
    std::optional<MutableTensorView> view;
    // The region of the batch that is all of the tile; nullopt: the tile has several parts.
    std::optional<size_t> whole;
  };
  // Tiles that are read from other workers together.
  struct Batch {
    std::vector<OpenTile> tiles;
    std::vector<WantedRegion> regions;
    std::vector<size_t> tile_of;  // for each region, the index of its tile
    int64_t bytes = 0;
  };

  void EndAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const auto& [id, transfer] : transfers_) transfer->is_over.store(true);
    transfers_.clear();
  }

  absl::Status ChecksTooLong() const {
    return WithReason(
        absl::DeadlineExceededError(StrCat("the files were not checked within ",
                                           absl::FormatDuration(options_.check_limit),
                                           "; their disk is slow, or they are very many")),
        Reason::kDeadline, {{fact::kLimit, absl::ToDoubleSeconds(options_.check_limit)}});
  }

  absl::Status CheckOne(const SourceFile& file, const KeepGoing& keep_going) const {
    SHARDMESH_FAILPOINT("fill.check");
    return OpenChecked(*options_.roots, file, keep_going).status();
  }

  // Adds this worker's identity to an error about its files or its memory. In errors of other
  // reasons the identity is that of another worker.
  absl::Status Blame(absl::Status status) const {
    switch (ReasonOf(status)) {
      case Reason::kBadFile:
      case Reason::kChecksumMismatch:
      case Reason::kFileChanged:
      case Reason::kNoReadRoot:
      case Reason::kMemoryLimit:
        return WithFacts(std::move(status), {{fact::kIdentity, options_.identity}});
      default:
        return status;
    }
  }

  // Ends the transfer and reports the fault, if there is one and nothing has ended the transfer.
  void Settle(FillTransfer& transfer, std::optional<FaultyTile> fault) {
    if (!fault.has_value() || transfer.is_over.exchange(true)) return;
    // The order came after the end of its transfer, and nothing ends the transfer again.
    if (ReasonOf(fault->status) == Reason::kStaleTerm) EndTransfer(transfer.id);
    fault->status = Blame(std::move(fault->status));
    LogWarning("cannot fill a tile", {{"transfer", transfer.id},
                                      {"array", fault->array_id},
                                      {"rank", fault->rank},
                                      {"error", fault->status}});
    transfer.failed({.transfer_id = transfer.id,
                     .term = transfer.term,
                     .array_id = std::move(fault->array_id),
                     .rank = fault->rank,
                     .status = std::move(fault->status)});
  }

  std::unique_ptr<FillTools> TakeTools() {
    absl::MutexLock lock(&tools_mutex_);
    if (tools_.empty()) return std::make_unique<FillTools>(options_);
    std::unique_ptr<FillTools> tools = std::move(tools_.back());
    tools_.pop_back();
    return tools;
  }
  void ReturnTools(std::unique_ptr<FillTools> tools) {
    absl::MutexLock lock(&tools_mutex_);
    tools_.push_back(std::move(tools));
  }

  // Opens the tile, and waits for its mesh if need be. Returns null if the tile is here already, or
  // on its way, and has been or will be reported. ALREADY_EXISTS: its array is committed.
  absl::StatusOr<std::unique_ptr<IncomingTile>> Open(const FillTransfer& transfer,
                                                     const FillTile& tile,
                                                     const ArrayDescriptor& array) const {
    SHARDMESH_FAILPOINT("fill.open");
    const TileOrder order{.transfer_id = transfer.id,
                          .term = transfer.term,
                          .array_descriptor = tile.array_descriptor,
                          .rank = tile.rank};
    const absl::Time deadline = absl::Now() + options_.membership_wait_limit;
    for (bool is_first = true;; is_first = false) {
      SHARDMESH_RETURN_IF_ERROR(transfer.KeepGoing());
      std::optional<UnknownMesh> unknown;
      absl::StatusOr<std::unique_ptr<IncomingTile>> opened =
          options_.gate->OpenOrdered(order, array, &unknown);
      if (absl::IsAlreadyExists(opened.status())) {
        // No task of this transfer reports a tile of a committed array, so that the coordinator
        // would wait for it until the transfer's deadline.
        if (FactOf(opened.status(), fact::kKind) == "array") return opened;
        return nullptr;
      }
      if (is_first && ReasonOf(opened.status()) == Reason::kMemoryLimit) {
        SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, array.Tiling());
        SHARDMESH_ASSIGN_OR_RETURN(const int64_t size_bytes,
                                   array.TileSizeBytes(tiling.TileOf(tile.rank)));
        if (WasRoomMade(opened.status(), size_bytes)) continue;
      }
      if (!unknown.has_value() || absl::Now() >= deadline) return opened;
      options_.gate->AwaitMesh(*unknown, std::min(deadline, absl::Now() + kMeshPollInterval));
    }
  }

  // Returns whether `status` says that memory is short, and some may have become free since.
  bool WasRoomMade(const absl::Status& status, int64_t size_bytes) const {
    return ReasonOf(status) == Reason::kMemoryLimit && options_.free_memory &&
           options_.free_memory(status, size_bytes);
  }
  // IncomingTile::Write and IncomingTile::MutableBytes. The host gives the memory of a large tile
  // only now, so that cached arrays may have to make room for it.
  absl::Status WriteTo(IncomingTile& tile, int64_t offset_bytes,
                       absl::Span<const char> bytes) const {
    absl::Status written = tile.Write(offset_bytes, bytes);
    const int64_t need_bytes = BytesToFreeFor(std::ssize(bytes), tile.size_bytes() - offset_bytes);
    if (WasRoomMade(written, need_bytes)) {
      written = tile.Write(offset_bytes, bytes);
    }
    return written;
  }
  absl::StatusOr<absl::Span<char>> BytesOf(IncomingTile& tile) const {
    absl::StatusOr<absl::Span<char>> bytes = tile.MutableBytes();
    if (WasRoomMade(bytes.status(), tile.size_bytes())) bytes = tile.MutableBytes();
    return bytes;
  }

  std::optional<FaultyTile> FillWithZeros(FillTransfer& transfer, const FillTile& tile) {
    if (!transfer.KeepGoing().ok()) return std::nullopt;
    const auto array = rpc::ParseArrayDescriptorBytes(tile.array_descriptor);
    if (!array.ok()) return FaultyTile{"", tile.rank, array.status()};
    absl::Status status = WriteZeros(transfer, tile, *array);
    if (status.ok()) return std::nullopt;
    return FaultyTile{array->array_id, tile.rank, std::move(status)};
  }

  absl::Status WriteZeros(FillTransfer& transfer, const FillTile& tile,
                          const ArrayDescriptor& array) {
    SHARDMESH_ASSIGN_OR_RETURN(const std::unique_ptr<IncomingTile> incoming,
                               Open(transfer, tile, array));
    if (incoming == nullptr) return absl::OkStatus();
    SHARDMESH_ASSIGN_OR_RETURN(const absl::Span<char> out, BytesOf(*incoming));
    std::fill(out.begin(), out.end(), '\0');
    incoming->Advance(incoming->size_bytes());
    SHARDMESH_FAILPOINT("fill.finish_zeros");
    SHARDMESH_RETURN_IF_ERROR(transfer.KeepGoing());
    return incoming->FinishInPlace(std::nullopt);
  }

  std::optional<FaultyTile> FillFromFile(FillTransfer& transfer, const FillOrder& order,
                                         const FillTile& tile) {
    if (!transfer.KeepGoing().ok()) return std::nullopt;
    const auto array = rpc::ParseArrayDescriptorBytes(tile.array_descriptor);
    if (!array.ok()) return FaultyTile{"", tile.rank, array.status()};
    std::unique_ptr<FillTools> tools = TakeTools();
    absl::Status status = ReadFromFile(transfer, order, tile, *array, tools->files);
    ReturnTools(std::move(tools));
    if (status.ok()) return std::nullopt;
    return FaultyTile{array->array_id, tile.rank, std::move(status)};
  }

  absl::Status ReadFromFile(FillTransfer& transfer, const FillOrder& order, const FillTile& tile,
                            const ArrayDescriptor& array, FileTileReader& reader) {
    const auto keep_going = [&transfer] { return transfer.KeepGoing(); };
    const FileRange& range = std::get<FileRange>(tile.source);
    const SourceFile& source = order.files[static_cast<size_t>(range.file)];
    // Before memory is taken: a file that is not as described costs nothing.
    const absl::Status prepared = transfer.saved.Prepare(source.path, keep_going);
    SHARDMESH_ASSIGN_OR_RETURN(const std::shared_ptr<const RootedFile> file,
                               transfer.files.Get(source, keep_going));
    SHARDMESH_RETURN_IF_ERROR(prepared);
    SHARDMESH_ASSIGN_OR_RETURN(const std::unique_ptr<IncomingTile> incoming,
                               Open(transfer, tile, array));
    if (incoming == nullptr) return absl::OkStatus();
    const auto progress = [&](int64_t bytes) { incoming->Advance(bytes); };
    if (range.conversion.has_value()) {
      const ConvertedTile converted{.dtype = array.dtype,
                                    .shape = array.shape,
                                    .tile = incoming->description().tile,
                                    .conversion = *range.conversion,
                                    .offset_bytes = range.offset_bytes};
      SHARDMESH_ASSIGN_OR_RETURN(const absl::Span<char> out, BytesOf(*incoming));
      SHARDMESH_ASSIGN_OR_RETURN(
          const uint32_t crc32c,
          ReadConverted(*file, source.path, converted, reader, out, keep_going, progress));
      SHARDMESH_FAILPOINT("fill.finish");
      SHARDMESH_RETURN_IF_ERROR(transfer.KeepGoing());
      SHARDMESH_ASSIGN_OR_RETURN(const SourceRegion made_from, SourceOf(converted));
      SHARDMESH_RETURN_IF_ERROR(
          transfer.saved.CheckSource(*file, source.path, made_from, reader, keep_going));
      file_bytes_.fetch_add(incoming->size_bytes());
      return incoming->FinishInPlace(crc32c);
    }
    SHARDMESH_ASSIGN_OR_RETURN(
        const TileRegion region,
        TileRegion::Create(array.dtype, array.shape, incoming->description().tile));
    const auto read_bytes = [&]() -> absl::StatusOr<uint32_t> {
      if (incoming->is_unfilled()) {
        return reader.ReadPieces(
            *file, source.path, range.offset_bytes, region,
            [&](int64_t begin, absl::Span<const char> bytes) -> absl::Status {
              SHARDMESH_RETURN_IF_ERROR(WriteTo(*incoming, begin, bytes));
              incoming->Advance(static_cast<int64_t>(bytes.size()));
              return absl::OkStatus();
            },
            keep_going);
      }
      SHARDMESH_ASSIGN_OR_RETURN(const absl::Span<char> out, BytesOf(*incoming));
      return reader.Read(*file, source.path, range.offset_bytes, region, out, keep_going, progress);
    };
    SHARDMESH_ASSIGN_OR_RETURN(const uint32_t crc32c, read_bytes());
    SHARDMESH_FAILPOINT("fill.finish");
    SHARDMESH_RETURN_IF_ERROR(transfer.KeepGoing());
    const ReadTile read{.description = incoming->description(),
                        .offset_bytes = range.offset_bytes,
                        .bytes = incoming->bytes(),
                        .crc32c = crc32c};
    SHARDMESH_RETURN_IF_ERROR(transfer.saved.Check(*file, source.path, read, reader, keep_going));
    file_bytes_.fetch_add(incoming->size_bytes());
    return incoming->FinishInPlace(crc32c);
  }

  std::optional<FaultyTile> FillFromArrays(FillTransfer& transfer, const FillOrder& order) {
    ArrayPartPlanner planner(&*order.devices);
    std::unique_ptr<FillTools> tools = TakeTools();
    tools->peers.BeginTransfer(
        StreamsWithin(order.move_memory_bytes > 0 ? order.move_memory_bytes : kMaxInFlightBytes,
                      options_.threads));
    Batch batch;
    std::optional<FaultyTile> fault;
    bool is_first = true;
    bool is_over = false;
    for (const FillTile& tile : order.tiles) {
      if (!std::holds_alternative<FillFromArray>(tile.source)) continue;
      is_over = !transfer.KeepGoing().ok();
      if (is_over) break;
      const auto array = rpc::ParseArrayDescriptorBytes(tile.array_descriptor);
      if (!array.ok()) {
        fault = FaultyTile{"", tile.rank, array.status()};
        break;
      }
      absl::Status begun = is_first ? Unload(transfer, order, *array) : absl::OkStatus();
      is_first = false;
      if (begun.ok()) begun = Begin(transfer, tile, *array, planner, &batch);
      if (!begun.ok()) {
        fault = FaultyTile{array->array_id, tile.rank, std::move(begun)};
        break;
      }
      if (batch.bytes >= kMaxBatchBytes || batch.regions.size() >= kMaxBatchRegions) {
        fault = Complete(transfer, tools->peers, &batch);
        if (fault.has_value()) break;
      }
    }
    if (!fault.has_value()) fault = Complete(transfer, tools->peers, &batch);
    ReturnTools(std::move(tools));
    if (fault.has_value() || is_over) {
      batch = {};  // its memory must be free before the arrays that were unloaded for it come back
      EndUnload(order);
    }
    return fault;
  }

  // Takes the arrays out of memory that `array` is to replace.
  absl::Status Unload(const FillTransfer& transfer, const FillOrder& order,
                      const ArrayDescriptor& array) {
    if (order.unloaded_array_ids.empty()) return absl::OkStatus();
    SHARDMESH_ASSIGN_OR_RETURN(
        const int64_t freed_bytes,
        options_.store->Unload(order.unloaded_array_ids, array.array_id, kReadersWaitLimit,
                               [&transfer] { return transfer.KeepGoing(); }));
    if (freed_bytes == 0) return absl::OkStatus();
    // A second id is that of the array's companion.
    LogInfo("an array left memory for the array that is to replace it; readers read its files",
            {{"array", order.unloaded_array_ids.front()},
             {"successor", array.array_id},
             {"bytes", freed_bytes}});
    return absl::OkStatus();
  }

  // Undoes Unload after a failure.
  void EndUnload(const FillOrder& order) {
    if (order.unloaded_array_ids.empty()) return;
    const auto array = rpc::ParseArrayDescriptorBytes(order.tiles.front().array_descriptor);
    if (array.ok()) options_.store->EndUnload(array->array_id);
  }

  // Opens a tile, copies what this worker has of it, and adds the rest to the batch.
  absl::Status Begin(FillTransfer& transfer, const FillTile& tile, const ArrayDescriptor& array,
                     ArrayPartPlanner& planner, Batch* batch) {
    const FillFromArray& source = std::get<FillFromArray>(tile.source);
    SHARDMESH_ASSIGN_OR_RETURN(const ArrayDescriptor from,
                               rpc::ParseArrayDescriptorBytes(source.array_descriptor));
    SHARDMESH_ASSIGN_OR_RETURN(std::unique_ptr<IncomingTile> incoming, Open(transfer, tile, array));
    if (incoming == nullptr) return absl::OkStatus();
    SHARDMESH_ASSIGN_OR_RETURN(ArrayParts parts, planner.Plan(from, array, tile.rank));
    const Tile& own = incoming->description().tile;
    std::optional<MutableTensorView> view;
    if (parts.kept.has_value()) {
      SHARDMESH_ASSIGN_OR_RETURN(view, ViewOf(array, *incoming));
      const OwnRegion kept{
          .array_id = from.array_id, .tile = *parts.own_tile, .region = *parts.kept};
      SHARDMESH_ASSIGN_OR_RETURN(const bool has_own, CopyOwn(from, kept, own, *view));
      if (has_own) {
        SHARDMESH_ASSIGN_OR_RETURN(const int64_t kept_bytes, from.TileSizeBytes(*parts.kept));
        incoming->Advance(kept_bytes);
      } else {
        // The tile went missing here, but other workers may have it.
        SHARDMESH_ASSIGN_OR_RETURN(ReadPart part, planner.Elsewhere(from, *parts.kept, tile.rank));
        parts.read.push_back(std::move(part));
      }
    }
    size_t wanted = 0;  // regions that this worker reads from others
    for (ReadPart& part : parts.read) {
      SHARDMESH_ASSIGN_OR_RETURN(const int64_t size_bytes, from.TileSizeBytes(part.region));
      const bool is_second = part.second_tile.has_value();
      if (is_second) {
        const OwnRegion kept{
            .array_id = source.second_array_id, .tile = *part.second_tile, .region = part.region};
        if (!view.has_value()) {
          SHARDMESH_ASSIGN_OR_RETURN(view, ViewOf(array, *incoming));
        }
        SHARDMESH_ASSIGN_OR_RETURN(const bool has_own, CopyOwn(from, kept, own, *view));
        if (has_own) {
          incoming->Advance(size_bytes);
          continue;
        }
      }
      ++wanted;
      batch->regions.push_back({.array_id = is_second ? source.second_array_id : from.array_id,
                                .token = is_second ? source.second_token : source.token,
                                .region = std::move(part.region),
                                .size_bytes = size_bytes,
                                .holders = std::move(part.holders)});
      batch->tile_of.push_back(batch->tiles.size());
      batch->bytes += size_bytes;
    }
    // The checksum of received bytes is that of the tile, unless the last byte has spare bits.
    std::optional<size_t> whole;
    if (wanted == 1 && batch->regions.back().region == own &&
        BitsPerElement(array.dtype) % 8 == 0) {
      whole = batch->regions.size() - 1;
    }
    if (!view.has_value() && !whole.has_value()) {
      SHARDMESH_ASSIGN_OR_RETURN(view, ViewOf(array, *incoming));
    }
    batch->tiles.push_back({.array = array,
                            .rank = tile.rank,
                            .tile = std::move(incoming),
                            .view = view,
                            .whole = whole});
    return absl::OkStatus();
  }

  absl::StatusOr<MutableTensorView> ViewOf(const ArrayDescriptor& array, IncomingTile& tile) const {
    SHARDMESH_ASSIGN_OR_RETURN(const absl::Span<char> bytes, BytesOf(tile));
    return MutableTensorView::Create(array.dtype, tile.description().tile.shape(), bytes);
  }

  // A region of a tile that this worker may have.
  struct OwnRegion {
    const std::string& array_id;
    const Tile& tile;
    const Tile& region;
  };

  // Copies the region out of this worker's tile. Returns false if this worker lacks the tile.
  absl::StatusOr<bool> CopyOwn(const ArrayDescriptor& from, const OwnRegion& own,
                               const Tile& to_tile, const MutableTensorView& to) {
    SHARDMESH_FAILPOINT("fill.copy");
    const absl::StatusOr<StoredTilePtr> stored = options_.store->FindStaged(own.array_id, own.tile);
    if (absl::IsNotFound(stored.status())) return false;
    SHARDMESH_RETURN_IF_ERROR(stored.status());
    SHARDMESH_RETURN_IF_ERROR(CopyTile((*stored)->view(), own.tile, to, to_tile, own.region));
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t size_bytes, from.TileSizeBytes(own.region));
    kept_bytes_.fetch_add(size_bytes);
    return true;
  }

  // Reads the regions of the batch, makes its tiles staged, and empties it. Regions of one tile may
  // share bytes. They may come in any order, because each one changes its own bits only
  // (PasteTileBytes).
  std::optional<FaultyTile> Complete(FillTransfer& transfer, PeerReader& peers, Batch* batch) {
    const KeepGoing keep_going = [&transfer] { return transfer.KeepGoing(); };
    const PeerReader::Sink sink = [&](size_t index, int64_t offset,
                                      absl::Span<const char> bytes) -> absl::Status {
      SHARDMESH_FAILPOINT("fill.receive");
      const OpenTile& tile = batch->tiles[batch->tile_of[index]];
      tile.tile->Advance(static_cast<int64_t>(bytes.size()));
      if (!tile.view.has_value()) return WriteTo(*tile.tile, offset, bytes);
      return PasteTileBytes(bytes,
                            Within(tile.tile->description().tile, batch->regions[index].region),
                            offset, *tile.view);
    };
    const auto faulty = [](const OpenTile& tile, absl::Status status) {
      return FaultyTile{tile.array.array_id, tile.rank, std::move(status)};
    };
    PeerReader::Outcome outcome;
    if (!batch->regions.empty()) {
      outcome = peers.Read(batch->regions, sink, keep_going);
      received_bytes_.fetch_add(outcome.received_bytes);
      if (!outcome.status.ok()) {
        return faulty(batch->tiles[batch->tile_of[outcome.failed]], std::move(outcome.status));
      }
    }
    for (OpenTile& tile : batch->tiles) {
      absl::Status finished = transfer.KeepGoing();
      if (finished.ok()) {
        finished =
            Finish(*tile.tile, tile.whole.has_value() ? std::optional(outcome.crc32c[*tile.whole])
                                                      : std::nullopt);
      }
      if (!finished.ok()) return faulty(tile, std::move(finished));
      tile.tile.reset();
    }
    *batch = {};
    return std::nullopt;
  }

  static absl::Status Finish(IncomingTile& tile, std::optional<uint32_t> crc32c) {
    SHARDMESH_FAILPOINT("fill.finish");
    return tile.FinishInPlace(crc32c);
  }

  const FillOptions options_;
  // Calls of Suspend and Stop. A question that began before the last one ends without an answer.
  std::atomic<int64_t> suspensions_{0};
  std::atomic<int64_t> file_bytes_{0};
  std::atomic<int64_t> kept_bytes_{0};
  std::atomic<int64_t> received_bytes_{0};

  absl::Mutex tools_mutex_;
  std::vector<std::unique_ptr<FillTools>> tools_ ABSL_GUARDED_BY(tools_mutex_);  // in no task

  absl::Mutex mutex_;
  // Transfers that have not ended, also those of which a tile has failed.
  std::map<std::string, std::shared_ptr<FillTransfer>> transfers_ ABSL_GUARDED_BY(mutex_);
  // Null once the filler has stopped. Last members, because their threads use the others.
  std::unique_ptr<ThreadPool> pool_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<ThreadPool> checks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<TileFiller> MakeTileFiller(FillOptions options) {
  return std::make_unique<FillThreads>(std::move(options));
}

}  // namespace shardmesh::worker
