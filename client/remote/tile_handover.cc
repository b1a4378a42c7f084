// Copies each tile once, with write(2), which needs no mapping of the memory.
#include "client/remote/tile_handover.h"

#include <poll.h>

#include <algorithm>
#include <cstddef>

#include "absl/cleanup/cleanup.h"
#include "process/crc32c.h"
#include "process/random_bytes.h"
#include "process/sealed/local_socket.h"
#include "process/sealed/sealed_memory.h"
#include "process/steady_deadline.h"
#include "rpc/stream/handover.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

// Bytes that are copied at a time: they are checksummed while they are in the processor's caches.
constexpr int64_t kPieceBytes = int64_t{1} << 20;
// How often a wait for the worker's reply looks whether the put has ended.
constexpr absl::Duration kLook = absl::Milliseconds(20);

absl::Status PutIsOver() { return absl::CancelledError("the put has ended"); }

}  // namespace

absl::StatusOr<std::unique_ptr<TileHandover>> TileHandover::Connect(const std::string& socket,
                                                                    HandoverRoom* room) {
  SHARDMESH_ASSIGN_OR_RETURN(FileDescriptor connected, ConnectLocally(socket));
  return std::unique_ptr<TileHandover>(new TileHandover(std::move(connected), room));
}

bool TileHandover::Fits(int64_t size_bytes) {
  return size_bytes >= rpc::kMinHandoverBytes && size_bytes <= rpc::kMaxHandoverBytes;
}

absl::StatusOr<FileDescriptor> TileHandover::Fill(const TensorElements& tensor, const Tile& tile,
                                                  const TileBits& bits, const Limits& limits,
                                                  int64_t* done_bytes, uint32_t* crc32c,
                                                  absl::Status* producer) {
  const int64_t size_bytes = bits.size_bytes();
  SHARDMESH_ASSIGN_OR_RETURN(SealedMemoryWriter memory, SealedMemoryWriter::Create(size_bytes));
  const TensorView* const view = tensor.view();
  std::optional<absl::Span<const char>> run;  // set if the tile is one run of the tensor's memory
  if (view != nullptr) {
    SHARDMESH_ASSIGN_OR_RETURN(run, ContiguousTileBytes(*view, tile));
  }
  std::string copied;  // of a piece that is not contiguous in the tensor
  const auto deadline = SteadyDeadline::After(limits.copy_time);
  while (*done_bytes < size_bytes) {
    if (limits.is_over()) return PutIsOver();
    if (deadline.is_over()) {
      return absl::DeadlineExceededError(
          StrCat("the tensor is read too slowly: ", *done_bytes, " of the ", size_bytes,
                 " bytes of a tile came within ", absl::FormatDuration(limits.copy_time)));
    }
    const int64_t begin = *done_bytes;
    const int64_t piece_bytes = std::min(kPieceBytes, size_bytes - begin);
    absl::Span<const char> piece;
    if (run.has_value()) {
      piece = run->subspan(static_cast<size_t>(begin), static_cast<size_t>(piece_bytes));
    } else {
      copied.resize(static_cast<size_t>(piece_bytes));
      if (view == nullptr) {
        *producer = tensor.producer()->Fill(tile, begin, absl::MakeSpan(copied));
        SHARDMESH_RETURN_IF_ERROR(*producer);
      } else {
        SHARDMESH_RETURN_IF_ERROR(CopyTileBytes(*view, tile, begin, absl::MakeSpan(copied)));
      }
      piece = copied;
    }
    *crc32c = ExtendCrc32c(*crc32c, piece);
    SHARDMESH_RETURN_IF_ERROR(memory.Append(piece));
    *done_bytes += piece_bytes;
    limits.on_bytes(piece_bytes);
  }
  return std::move(memory).Seal();
}

absl::Status TileHandover::Send(const std::string& id, const FileDescriptor& memory,
                                const Limits& limits) {
  SHARDMESH_RETURN_IF_ERROR(SendDescriptors(socket_.get(), id, {memory.get()}));
  const auto deadline = SteadyDeadline::After(limits.reply_time);
  pollfd reply = {socket_.get(), POLLIN, 0};
  while (poll(&reply, 1, static_cast<int>(kLook / absl::Milliseconds(1))) <= 0) {
    if (limits.is_over()) return PutIsOver();
    if (deadline.is_over()) {
      return absl::UnavailableError(StrCat("the worker does not take memory: no answer within ",
                                           absl::FormatDuration(limits.reply_time)));
    }
  }
  SHARDMESH_ASSIGN_OR_RETURN(const ReceivedDescriptors answer, ReceiveDescriptors(socket_.get()));
  if (answer.text == rpc::kHandoverFull) {
    return absl::ResourceExhaustedError("the worker keeps as much memory of clients as it may");
  }
  if (answer.text != rpc::kHandoverKept) {
    return absl::InternalError("the worker's answer to memory is none of its service");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<TileHandover::Handed>> TileHandover::HandOver(
    const TensorElements& tensor, const Tile& tile, const TileBits& bits, const Limits& limits) {
  if (!socket_.valid()) return std::nullopt;
  if (room_ != nullptr) {
    refusal_ = room_->Take(bits.size_bytes());
    if (!refusal_.ok()) return std::nullopt;
  }
  // The kernel frees memory that no worker keeps.
  absl::Cleanup give_back = [&] {
    if (room_ != nullptr) room_->GiveBack(bits.size_bytes());
  };
  Handed handed{.id = RandomBytes(rpc::kHandoverIdBytes)};
  int64_t done_bytes = 0;
  absl::Status producer;
  absl::StatusOr<FileDescriptor> memory =
      Fill(tensor, tile, bits, limits, &done_bytes, &handed.crc32c, &producer);
  SHARDMESH_RETURN_IF_ERROR(producer);
  refusal_ = memory.ok() ? Send(handed.id, *memory, limits) : memory.status();
  if (refusal_.ok()) {
    std::move(give_back).Cancel();
    return handed;
  }
  // Only a worker that is full for now is asked again. The end of the connection makes the worker
  // close memory that no header has named.
  if (!memory.ok() || !absl::IsResourceExhausted(refusal_)) socket_.Close();
  if (absl::IsCancelled(refusal_)) return refusal_;
  limits.on_bytes(-done_bytes);
  return std::nullopt;
}

}  // namespace shardmesh::client
