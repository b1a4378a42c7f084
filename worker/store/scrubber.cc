// Walks through the inventory, page by page.
#include "worker/store/scrubber.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "process/crc32c.h"
#include "process/failpoint.h"
#include "process/log.h"
#include "process/steady_deadline.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::worker {
namespace {

// Bytes between two waits.
constexpr int64_t kPieceBytes = int64_t{1} << 20;
constexpr int64_t kPageTiles = 256;

absl::Status Stopped() { return absl::CancelledError("the scrubber stops"); }

}  // namespace

Scrubber::Scrubber(Options options) : options_(std::move(options)) {}

Scrubber::~Scrubber() {
  {
    absl::MutexLock lock(&mutex_);
    is_stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void Scrubber::Start() {
  thread_ = std::thread([this] { Run(); });
}

Scrubber::Counters Scrubber::counters() const {
  return {.passes = passes_.load(),
          .bytes = bytes_.load(),
          .damaged_tiles = damaged_tiles_.load(),
          .damaged_files = damaged_files_.load(),
          .reread_tiles = reread_tiles_.load(),
          .rewritten_files = rewritten_files_.load()};
}

void Scrubber::Run() {
  for (SteadyDeadline next = SteadyDeadline::After(options_.interval); Wait(next.left());) {
    next = SteadyDeadline::After(options_.interval);
    RunPass();
  }
}

bool Scrubber::Wait(absl::Duration time) {
  const SteadyDeadline deadline = SteadyDeadline::After(time);
  absl::MutexLock lock(&mutex_);
  while (!is_stopping_ && !deadline.is_over()) {
    mutex_.AwaitWithTimeout(absl::Condition(&is_stopping_), deadline.left());
  }
  return !is_stopping_;
}

absl::Status Scrubber::Pace(int64_t bytes) {
  bytes_.fetch_add(bytes);
  const double seconds =
      static_cast<double>(bytes) / static_cast<double>(options_.bytes_per_second);
  return Wait(absl::Seconds(seconds)) ? absl::OkStatus() : Stopped();
}

void Scrubber::RunPass() {
  std::string next;
  do {
    std::vector<std::pair<std::string, Tile>> tiles;
    {
      ShardStore::InventoryPage page = options_.store->ListInventory(next, kPageTiles);
      next = std::move(page.next_array_id);
      for (const ShardStore::HeldTile& held : page.tiles) {
        if (held.state != TileState::kCommitted) continue;
        tiles.emplace_back(held.tile->description().array_id, held.tile->description().tile);
      }
    }
    for (const auto& [array_id, tile] : tiles) {
      Check(array_id, tile);
      if (!Wait(absl::ZeroDuration())) return;
    }
  } while (!next.empty());
  passes_.fetch_add(1);
}

void Scrubber::Check(const std::string& array_id, const Tile& tile) {
  absl::StatusOr<StoredTilePtr> stored = options_.store->FindHeld(array_id, tile);
  if (!stored.ok()) return;  // it was dropped since the page was listed
  // No checksum of state is kept that its bytes could be compared with.
  if ((*stored)->is_state()) return;
  const TileDescription description = (*stored)->description();
  const uint32_t crc32c = (*stored)->crc32c();
  const bool is_durable = (*stored)->durable();
  stored = absl::NotFoundError("");
  const Found memory = CheckMemory(array_id, tile);
  if (memory.is_gone) return;
  Found file;
  if (is_durable) file = CheckFile(description, crc32c);
  if (file.is_gone || (memory.status.ok() && file.status.ok())) return;
  if (!memory.status.ok()) {
    const std::string about_file =
        !is_durable        ? "; it has no file"
        : file.status.ok() ? "; its file could not be read back"
                           : StrCat("; its file is damaged too: ", ToStd(file.status.message()));
    return PutAside(description,
                    StrCat("damaged in memory: ", ToStd(memory.status.message()), about_file),
                    is_durable && file.status.ok());
  }
  stored = options_.store->FindHeld(array_id, tile);
  // A tile that was dropped has no file any more, and needs none. The same holds for one that a
  // step updates, or is about to: a file would bring back its old content at the next start.
  if (!stored.ok() || !(*stored)->durable()) return;
  const absl::Status written = options_.store->RewriteFile(*stored);
  if (absl::IsNotFound(written)) return;
  damaged_files_.fetch_add(1);
  const Reason reason = ReasonOf(written);
  if ((*stored)->is_unloaded() && absl::IsDataLoss(written) &&
      (reason == Reason::kBadFile || reason == Reason::kChecksumMismatch)) {
    stored = absl::NotFoundError("");
    return PutAside(description,
                    StrCat("its file is damaged, and its bytes are not in memory: ",
                           ToStd(file.status.message())),
                    /*has_sound_file=*/false);
  }
  if (written.ok()) rewritten_files_.fetch_add(1);
  LogWarning(written.ok() ? "a damaged tile file was written again from memory"
                          : "a tile file is damaged and could not be written again",
             {{"array", array_id},
              {"tile", tile.ToString()},
              {"error", file.status},
              {"write_error", written}});
}

Scrubber::Found Scrubber::CheckMemory(const std::string& array_id, const Tile& tile) {
  uint32_t crc32c = SHARDMESH_FAILS("scrub.memory") ? 1 : 0;
  std::vector<char> scratch;
  for (int64_t at = 0;; at += kPieceBytes) {
    int64_t piece_bytes = 0;
    {
      const absl::StatusOr<StoredTilePtr> stored = options_.store->FindHeld(array_id, tile);
      if (!stored.ok()) return {.is_gone = true, .status = {}};
      // A step has updated the tile since the first piece, so that the pieces are of two contents.
      if ((*stored)->is_state()) return {.is_gone = true, .status = {}};
      // Its bytes are those of its file, which CheckFile reads. If the disk did not deliver them, a
      // read of the mapping would end the process.
      if ((*stored)->is_unloaded()) return {};
      if (at >= (*stored)->size_bytes()) {
        const uint32_t need = (*stored)->crc32c();
        if (crc32c == need) return {};
        return {.is_gone = false,
                .status = absl::DataLossError(
                    absl::StrFormat("its bytes have CRC-32C %08x, and had %08x", crc32c, need))};
      }
      const absl::Span<const char> piece = (*stored)->Piece(at, kPieceBytes, &scratch);
      crc32c = ExtendCrc32c(crc32c, piece);
      piece_bytes = static_cast<int64_t>(piece.size());
    }
    if (!Pace(piece_bytes).ok()) return {.is_gone = true, .status = {}};
  }
}

Scrubber::Found Scrubber::CheckFile(const TileDescription& description, uint32_t crc32c) {
  absl::Status status = options_.store->CheckFile(description, crc32c, kPieceBytes,
                                                  [this](int64_t bytes) { return Pace(bytes); });
  const bool is_stopped = absl::IsCancelled(status);
  return {.is_gone = is_stopped, .status = std::move(status)};
}

void Scrubber::PutAside(const TileDescription& description, const std::string& reason,
                        bool has_sound_file) {
  const ShardStore::Unknown aside{.array_id = description.array_id,
                                  .tile = description.tile,
                                  .reason = reason,
                                  .array_lives = true,
                                  .is_damaged = true};
  if (options_.store->Quarantine({&aside, 1}, options_.clock->Now()) == 0) return;
  damaged_tiles_.fetch_add(1);
  if (has_sound_file) {
    const absl::Status restored = options_.store->RestoreQuarantined(description.array_id).status();
    if (restored.ok()) {
      reread_tiles_.fetch_add(1);
      if (options_.reread) options_.reread(description.array_id);
      return LogWarning("a tile was damaged in memory, and was read back from its file",
                        {{"array", description.array_id}, {"tile", description.tile.ToString()}});
    }
    LogWarning("a damaged tile could not be read back", {{"array", description.array_id},
                                                         {"tile", description.tile.ToString()},
                                                         {"error", restored}});
  }
  LogWarning(
      "a tile is damaged and went into quarantine",
      {{"array", description.array_id}, {"tile", description.tile.ToString()}, {"reason", reason}});
  if (options_.damaged) options_.damaged(description.array_id, reason);
}

}  // namespace shardmesh::worker
