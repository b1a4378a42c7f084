// GatherRows: collects the rows of each peer, and looks which rows are complete.
#include "worker/collective/row_gather.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "status/status_macros.h"
#include "status/str_cat.h"
#include "worker/collective/link.h"

namespace shardmesh::worker {
namespace {

using TakeRows =
    absl::FunctionRef<absl::Status(int64_t place, int64_t first_row, absl::Span<const char> rows)>;

// The message of one peer while it arrives. The arguments of the constructor outlive the object.
class ArrivingRows {
 public:
  ArrivingRows(const CollectiveCall& call, const RowGather& gather, const Tag& tag, int64_t place)
      : call_(call),
        gather_(gather),
        tag_(tag),
        place_(place),
        row_bytes_(gather.row_bytes[Index(place)]),
        message_bytes_(gather.rows[Index(place)] * row_bytes_),
        counter_(call, message_bytes_) {
    if (is_done()) ReportEnd();
  }

  bool is_done() const { return taken_bytes_ == message_bytes_; }

  // Receives until rows can be taken, and returns true. If `may_wait` is false, and what is missing
  // has not arrived, returns false. Requires that rows are left to take.
  absl::StatusOr<bool> Collect(bool may_wait) {
    while (!has_rows_in_place() && collected_bytes_ < WantedBytes()) {
      if (piece_.bytes.empty()) {
        SHARDMESH_ASSIGN_OR_RETURN(const bool has_come, ReceivePiece(may_wait));
        if (!has_come) return false;
        continue;
      }
      SHARDMESH_RETURN_IF_ERROR(CopyToRoom());
    }
    return true;
  }

  // Passes the rows on that Collect has found.
  absl::Status Take(TakeRows take) {
    absl::Span<const char> rows;
    if (collected_bytes_ > 0) {
      rows = room_.bytes.first(Index(std::exchange(collected_bytes_, 0)));
    } else {
      rows = piece_.bytes.first(piece_.bytes.size() / Index(row_bytes_) * Index(row_bytes_));
      piece_.bytes.remove_prefix(rows.size());
    }
    const int64_t first_row = taken_bytes_ / row_bytes_;
    taken_bytes_ += static_cast<int64_t>(rows.size());
    SHARDMESH_RETURN_IF_ERROR(take(place_, first_row, rows));
    if (piece_.bytes.empty()) piece_ = OwnedBytes();  // releases memory that a peer has lent
    if (is_done()) ReportEnd();
    return absl::OkStatus();
  }

 private:
  int64_t WantedBytes() const {
    return std::min(gather_.rows_at_once * row_bytes_, message_bytes_ - taken_bytes_);
  }
  bool has_rows_in_place() const {
    const bool is_aligned = reinterpret_cast<uintptr_t>(piece_.bytes.data()) %
                                static_cast<uintptr_t>(gather_.alignment_bytes) ==
                            0;
    return collected_bytes_ == 0 && is_aligned && SizeOf(piece_) >= WantedBytes();
  }

  absl::StatusOr<bool> ReceivePiece(bool may_wait) {
    const DeviceId peer = call_.group->device_at(place_);
    if (may_wait) {
      SHARDMESH_ASSIGN_OR_RETURN(piece_,
                                 call_.link->Receive(peer, tag_, message_bytes_, call_.deadline));
    } else {
      SHARDMESH_ASSIGN_OR_RETURN(std::optional<OwnedBytes> piece,
                                 call_.link->TryReceive(peer, tag_, message_bytes_));
      if (!piece.has_value()) return false;
      piece_ = *std::move(piece);
    }
    counter_.Add(SizeOf(piece_));
    return true;
  }

  absl::Status CopyToRoom() {
    const int64_t room_bytes = std::min(gather_.rows_at_once * row_bytes_, message_bytes_);
    if (room_.bytes.empty()) {
      SHARDMESH_ASSIGN_OR_RETURN(room_, Scratch(call_, room_bytes));
    }
    const int64_t size_bytes = std::min(WantedBytes() - collected_bytes_, SizeOf(piece_));
    CopyReceived(call_, piece_.bytes.first(Index(size_bytes)),
                 room_.bytes.data() + collected_bytes_);
    collected_bytes_ += size_bytes;
    piece_.bytes.remove_prefix(Index(size_bytes));
    if (piece_.bytes.empty()) piece_ = OwnedBytes();
    return absl::OkStatus();
  }

  void ReportEnd() const {
    if (call_.received) call_.received(call_.group->device_at(place_));
  }

  const CollectiveCall& call_;
  const RowGather& gather_;
  const Tag tag_;
  const int64_t place_;
  const int64_t row_bytes_;
  const int64_t message_bytes_;
  ArrivalCounter counter_;
  int64_t taken_bytes_ = 0;
  OwnedBytes piece_;             // what has arrived and was neither taken nor collected
  OwnedMutableBytes room_;       // for rows that arrive in several pieces
  int64_t collected_bytes_ = 0;  // in room_
};

absl::Status CheckRows(const CollectiveCall& call, const RowGather& gather) {
  const auto own_place = Index(call.group->place());
  const bool fits = std::ssize(gather.rows) == call.group->size() &&
                    gather.row_bytes.size() == gather.rows.size() &&
                    SizeOf(gather.mine) == gather.rows[own_place] * gather.row_bytes[own_place];
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat("a gather of rows over ", call.group->size(), " ranks was given ", gather.rows.size(),
             " numbers of rows, ", gather.row_bytes.size(), " sizes of rows, and ",
             SizeOf(gather.mine), " bytes: they do not fit"));
}

// This rank's rows.
class OwnRows {
 public:
  OwnRows(const CollectiveCall& call, const RowGather& gather)
      : place_(call.group->place()),
        rows_(gather.rows[Index(place_)]),
        row_bytes_(gather.row_bytes[Index(place_)]),
        gather_(gather) {}

  // Takes some rows. Returns false if none are left.
  absl::StatusOr<bool> TakeSome(TakeRows take) {
    if (gather_.work_on_mine) return gather_.work_on_mine();
    if (next_ == rows_) return false;
    const int64_t rows = std::min(gather_.rows_at_once, rows_ - next_);
    const int64_t first = std::exchange(next_, next_ + rows);
    SHARDMESH_RETURN_IF_ERROR(
        take(place_, first,
             gather_.mine.bytes.subspan(Index(first * row_bytes_), Index(rows * row_bytes_))));
    return true;
  }

 private:
  const int64_t place_;
  const int64_t rows_;
  const int64_t row_bytes_;
  const RowGather& gather_;
  int64_t next_ = 0;
};

}  // namespace

absl::Status GatherRows(const CollectiveCall& call, const RowGather& gather, TakeRows take) {
  SHARDMESH_RETURN_IF_ERROR(CheckRows(call, gather));
  const DeviceGroup& group = *call.group;
  SHARDMESH_ASSIGN_OR_RETURN(const Tag tag, Tag::Create(call.step, call.op, call.round));
  std::vector<ArrivingRows> peers;  // in the order of places after this rank's
  peers.reserve(Index(group.size()));
  for (int64_t distance = 1; distance < group.size(); ++distance) {
    const int64_t place = (group.place() + distance) % group.size();
    SHARDMESH_RETURN_IF_ERROR(SendTo(call, place, 0, gather.mine));
    peers.emplace_back(call, gather, tag, place);
  }
  OwnRows own(call, gather);
  while (true) {
    bool has_come = false;
    for (ArrivingRows& peer : peers) {
      if (peer.is_done()) continue;
      SHARDMESH_ASSIGN_OR_RETURN(const bool has_rows, peer.Collect(/*may_wait=*/false));
      if (!has_rows) continue;
      SHARDMESH_RETURN_IF_ERROR(peer.Take(take));
      has_come = true;
    }
    if (has_come) continue;
    SHARDMESH_ASSIGN_OR_RETURN(const bool has_worked, own.TakeSome(take));
    if (has_worked) continue;
    const auto next = std::find_if(peers.begin(), peers.end(),
                                   [](const ArrivingRows& peer) { return !peer.is_done(); });
    if (next == peers.end()) return absl::OkStatus();
    SHARDMESH_RETURN_IF_ERROR(next->Collect(/*may_wait=*/true).status());
    SHARDMESH_RETURN_IF_ERROR(next->Take(take));
  }
}

}  // namespace shardmesh::worker
