// Rounds of pieces, and the window of copies that wait for their receivers.
#include "worker/collective/region_move.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/view.h"
#include "worker/collective/collectives.h"

namespace shardmesh::worker {
namespace {

// The number of rounds that a rank may send ahead of those that it receives. Peers then have pieces
// to read while this rank copies, and the rings of shared memory do not fill up.
constexpr int64_t kRoundsAhead = 4;

// The time between two looks at the memory of messages that peers read in shared memory.
constexpr absl::Duration kPoll = absl::Microseconds(200);
// How long a rank without memory for a copy waits for peers to read earlier copies.
constexpr absl::Duration kMemoryPatience = absl::Seconds(1);

// Counts the copies that wait for their receivers. The copies share it, and may outlive the move.
// Thread-safe.
class CopyWindow {
 public:
  explicit CopyWindow(int64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // Adds a copy for `peer` if there is room.
  bool TryAdd(DeviceId peer, int64_t size_bytes) {
    absl::MutexLock lock(&mutex_);
    if (held_bytes_ > 0 && held_bytes_ + size_bytes > limit_bytes_) return false;
    held_bytes_ += size_bytes;
    by_peer_[peer] += size_bytes;
    return true;
  }
  void Remove(DeviceId peer, int64_t size_bytes) {
    absl::MutexLock lock(&mutex_);
    held_bytes_ -= size_bytes;
    if ((by_peer_[peer] -= size_bytes) == 0) by_peer_.erase(peer);
    changed_.SignalAll();
  }
  // Returns a peer that has not read all copies for it; nullopt if there is none.
  std::optional<DeviceId> Behind() {
    absl::MutexLock lock(&mutex_);
    return by_peer_.empty() ? std::nullopt : std::optional(by_peer_.begin()->first);
  }
  bool HoldsMoreThan(int64_t size_bytes) {
    absl::MutexLock lock(&mutex_);
    return held_bytes_ > size_bytes;
  }
  // Waits until a copy is removed, at most for `timeout`.
  void Wait(absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    if (held_bytes_ > 0) changed_.WaitWithTimeout(&mutex_, timeout);
  }

 private:
  const int64_t limit_bytes_;
  absl::Mutex mutex_;
  absl::CondVar changed_;
  int64_t held_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<DeviceId, int64_t> by_peer_ ABSL_GUARDED_BY(mutex_);
};

// The memory of one copy. Leaves the window with its last owner.
struct HeldCopy {
  HeldCopy(std::shared_ptr<CopyWindow> the_window, DeviceId the_peer, OwnedMutableBytes the_memory)
      : window(std::move(the_window)), peer(the_peer), memory(std::move(the_memory)) {}
  ~HeldCopy() { window->Remove(peer, static_cast<int64_t>(memory.bytes.size())); }
  HeldCopy(const HeldCopy&) = delete;
  HeldCopy& operator=(const HeldCopy&) = delete;

  const std::shared_ptr<CopyWindow> window;
  const DeviceId peer;
  const OwnedMutableBytes memory;
};

// A region between this rank and one peer.
struct Region {
  DeviceId peer = 0;
  Tile part = {};  // the region, relative to this rank's tile
  int64_t size_bytes = 0;
  std::optional<absl::Span<const char>> run = {};  // set if it is sent, and is one run of the tile
};

Tile Within(const Tile& region, const Tile& tile) {
  Tile part = region;
  for (size_t dim = 0; dim < part.ranges.size(); ++dim) {
    part.ranges[dim].start -= tile.ranges[dim].start;
    part.ranges[dim].stop -= tile.ranges[dim].start;
  }
  return part;
}

class Mover {
 public:
  Mover(const CollectiveCall& call, const RegionMove& move)
      : call_(call),
        move_(move),
        rank_(call.link->rank()),
        from_tile_(move.plan->from().TileOf(rank_)),
        to_tile_(move.plan->to().TileOf(rank_)),
        window_(std::make_shared<CopyWindow>(move.window_bytes)) {}

  absl::Status Run() {
    SHARDMESH_ASSIGN_OR_RETURN(
        from_, TensorView::Create(move_.dtype, from_tile_.shape(), move_.from.bytes));
    SHARDMESH_ASSIGN_OR_RETURN(to_,
                               MutableTensorView::Create(move_.dtype, to_tile_.shape(), move_.to));
    SHARDMESH_RETURN_IF_ERROR(FindRegions());
    const int64_t rounds = std::max(RoundsOf(sends_), RoundsOf(receives_));
    SHARDMESH_RETURN_IF_ERROR(SendThrough(0, rounds));
    if (const auto kept = Intersect(from_tile_, to_tile_); kept.has_value()) {
      SHARDMESH_RETURN_IF_ERROR(CopyTile(*from_, from_tile_, *to_, to_tile_, *kept));
    }
    for (int64_t round = 0; round < rounds; ++round) {
      SHARDMESH_RETURN_IF_ERROR(SendThrough(round, rounds));
      for (const Region& region : receives_) {
        SHARDMESH_RETURN_IF_ERROR(ReceivePiece(region, round));
      }
    }
    return absl::OkStatus();
  }

 private:
  int64_t PiecesOf(const Region& region) const {
    return (region.size_bytes + move_.piece_bytes - 1) / move_.piece_bytes;
  }
  int64_t RoundsOf(const std::vector<Region>& regions) const {
    int64_t rounds = 0;
    for (const Region& region : regions) rounds = std::max(rounds, PiecesOf(region));
    return rounds;
  }
  int64_t PieceBytes(const Region& region, int64_t round) const {
    return std::clamp(region.size_bytes - round * move_.piece_bytes, int64_t{0}, move_.piece_bytes);
  }

  // Every rank begins with the peer after it, and waits first for the peer before it. Not all ranks
  // then send to the same rank first.
  absl::Status FindRegions() {
    const int64_t ranks = call_.group->size();
    SHARDMESH_ASSIGN_OR_RETURN(const std::vector<ReshardLink> links, move_.plan->LinksOutOf(rank_));
    for (const ReshardLink& link : links) {
      Region& region = sends_.emplace_back();
      region.peer = link.destination;
      region.part = Within(link.tile, from_tile_);
      SHARDMESH_ASSIGN_OR_RETURN(region.size_bytes, PackedSizeBytes(move_.dtype, link.elements));
      SHARDMESH_ASSIGN_OR_RETURN(region.run, ContiguousTileBytes(*from_, region.part));
    }
    std::sort(sends_.begin(), sends_.end(), [&](const Region& a, const Region& b) {
      return (a.peer - rank_ + ranks) % ranks < (b.peer - rank_ + ranks) % ranks;
    });
    SHARDMESH_ASSIGN_OR_RETURN(const std::vector<FetchRegion> fetched,
                               move_.plan->RegionsOf(rank_));
    for (const FetchRegion& fetch : fetched) {
      Region& region = receives_.emplace_back();
      region.peer = fetch.source;
      region.part = Within(fetch.tile, to_tile_);
      SHARDMESH_ASSIGN_OR_RETURN(region.size_bytes, PackedSizeBytes(move_.dtype, fetch.elements));
    }
    std::sort(receives_.begin(), receives_.end(), [&](const Region& a, const Region& b) {
      return (rank_ - a.peer + ranks) % ranks < (rank_ - b.peer + ranks) % ranks;
    });
    return absl::OkStatus();
  }

  // Sends all pieces of the rounds up to `round`, and waits for room in the window if it must. Also
  // sends pieces of kRoundsAhead further rounds, as long as there is room.
  absl::Status SendThrough(int64_t round, int64_t rounds) {
    const int64_t end = std::min(round + kRoundsAhead + 1, rounds);
    while (send_round_ < end) {
      while (next_send_ < sends_.size()) {
        const Region& region = sends_[next_send_];
        const int64_t size_bytes = PieceBytes(region, send_round_);
        if (size_bytes > 0) {
          SHARDMESH_ASSIGN_OR_RETURN(const bool is_sent,
                                     SendPiece(region, size_bytes, send_round_ <= round));
          if (!is_sent) return absl::OkStatus();
        }
        ++next_send_;
      }
      next_send_ = 0;
      ++send_round_;
    }
    return absl::OkStatus();
  }

  // Returns false if there is no room for a copy and `may_wait` is false.
  absl::StatusOr<bool> SendPiece(const Region& region, int64_t size_bytes, bool may_wait) {
    const int64_t offset_bytes = send_round_ * move_.piece_bytes;
    if (region.run.has_value()) {
      SHARDMESH_RETURN_IF_ERROR(
          SendTo(call_, region.peer, send_round_,
                 {region.run->subspan(Index(offset_bytes), Index(size_bytes)), move_.from.owner}));
      return true;
    }
    if (!window_->TryAdd(region.peer, size_bytes)) {
      if (!may_wait) {
        call_.link->Reclaim();
        if (!window_->TryAdd(region.peer, size_bytes)) return false;
      } else {
        SHARDMESH_RETURN_IF_ERROR(AwaitRoom(region.peer, size_bytes));
      }
    }
    auto memory = CopyMemory(size_bytes, may_wait);
    if (!memory.ok()) {
      window_->Remove(region.peer, size_bytes);
      if (!may_wait && absl::IsResourceExhausted(memory.status())) return false;
      return std::move(memory).status();
    }
    const auto copy = std::make_shared<HeldCopy>(window_, region.peer, *std::move(memory));
    SHARDMESH_RETURN_IF_ERROR(CopyTileBytes(*from_, region.part, offset_bytes, copy->memory.bytes));
    if (call_.copied != nullptr) call_.copied->to_send += size_bytes;
    SHARDMESH_RETURN_IF_ERROR(SendTo(call_, region.peer, send_round_, {copy->memory.bytes, copy}));
    return true;
  }

  // Returns memory for a copy. If there is none, and `may_wait` is true, waits for the memory of
  // copies that the peers read, but not for long: they may wait for this very piece.
  absl::StatusOr<OwnedMutableBytes> CopyMemory(int64_t size_bytes, bool may_wait) {
    const absl::Time until = std::min(absl::Now() + kMemoryPatience, call_.deadline);
    while (true) {
      auto memory = Scratch(call_, size_bytes);
      if (memory.ok() || !may_wait || !absl::IsResourceExhausted(memory.status()) ||
          absl::Now() >= until || !window_->HoldsMoreThan(size_bytes)) {
        return memory;
      }
      call_.link->Reclaim();
      if (call_.check) SHARDMESH_RETURN_IF_ERROR(call_.check());
      window_->Wait(kPoll);
    }
  }

  // Waits until the window has room for a copy, and adds the copy.
  absl::Status AwaitRoom(DeviceId peer, int64_t size_bytes) {
    while (true) {
      call_.link->Reclaim();
      if (window_->TryAdd(peer, size_bytes)) return absl::OkStatus();
      const std::optional<DeviceId> behind = window_->Behind();
      if (behind.has_value() && call_.waits_for) call_.waits_for(*behind);
      if (call_.check) SHARDMESH_RETURN_IF_ERROR(call_.check());
      if (absl::Now() >= call_.deadline) {
        return WithReason(absl::DeadlineExceededError(StrCat(
                              "rank ", rank_, " waited for rank ", behind.value_or(peer),
                              " to read what it was sent, step ", call_.step, ", op ", call_.op)),
                          Reason::kDeadline);
      }
      window_->Wait(kPoll);
    }
  }

  absl::Status ReceivePiece(const Region& region, int64_t round) {
    const int64_t size_bytes = PieceBytes(region, round);
    if (size_bytes == 0) return absl::OkStatus();
    const int64_t begin_bytes = round * move_.piece_bytes;
    CollectiveCall call = call_;
    call.piece_received = nullptr;  // counted below, whatever its size
    // The region is complete with its last piece only.
    if (begin_bytes + size_bytes < region.size_bytes) call.received = nullptr;
    absl::Status pasted;
    SHARDMESH_RETURN_IF_ERROR(ReceivePieces(
        call, region.peer, round, size_bytes,
        [&](int64_t offset_bytes, absl::Span<const char> bytes) {
          pasted.Update(PasteTileBytes(bytes, region.part, begin_bytes + offset_bytes, *to_));
          if (call_.copied != nullptr) call_.copied->received += std::ssize(bytes);
        }));
    if (call_.piece_received) call_.piece_received(size_bytes);
    return pasted;
  }

  const CollectiveCall& call_;
  const RegionMove& move_;
  const DeviceId rank_;
  const Tile from_tile_;
  const Tile to_tile_;
  const std::shared_ptr<CopyWindow> window_;
  std::optional<TensorView> from_;
  std::optional<MutableTensorView> to_;
  std::vector<Region> sends_;
  std::vector<Region> receives_;
  // The next piece to send: of round send_round_, of region next_send_.
  int64_t send_round_ = 0;
  size_t next_send_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<DeviceId>> MoveSources(const ReshardPlan& plan, DeviceId rank) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<FetchRegion> regions, plan.RegionsOf(rank));
  const int64_t ranks = plan.from().mesh().size();
  std::vector<DeviceId> sources;
  for (const FetchRegion& region : regions) sources.push_back(region.source);
  std::sort(sources.begin(), sources.end(), [&](DeviceId a, DeviceId b) {
    return (rank - a + ranks) % ranks < (rank - b + ranks) % ranks;
  });
  return sources;
}

std::string MoveSignature(const ReshardPlan& plan, std::string_view value) {
  std::string text = StrCat("move of ", value);
  for (const Tiling* tiling : {&plan.from(), &plan.to()}) {
    StrAppend(&text, tiling == &plan.from() ? " from " : " to ", tiling->spec().ToString());
    if (tiling->has_equal_tiles()) continue;
    StrAppend(&text, " cut at");
    for (int64_t dim = 0; dim < tiling->rank(); ++dim) {
      StrAppend(&text, dim == 0 ? " " : "; ");
      for (int64_t part = 1; part < tiling->PartCount(dim); ++part) {
        StrAppend(&text, part == 1 ? "" : ",", tiling->PartRange(dim, part).start);
      }
    }
  }
  return CutSignature(std::move(text));
}

absl::Status RunRegionMove(const CollectiveCall& call, const RegionMove& move) {
  return Mover(call, move).Run();
}

}  // namespace shardmesh::worker
