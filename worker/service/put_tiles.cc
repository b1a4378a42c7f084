// PutTiles: receives tiles as raw bytes, or takes them as sealed memory. Only the messages that
// open a tile are parsed as protos.
#include "worker/service/put_tiles.h"

#include <fcntl.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "rpc/stream/finish_once.h"
#include "rpc/stream/message_bytes.h"
#include "rpc/stream/tile_piece.h"
#include "shardmesh/v1/tile_service.pb.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/buffer.h"
#include "worker/service/idle_limit.h"

namespace shardmesh::worker {
namespace {

absl::Status BadStream(std::string_view message) {
  return InvalidArgument(Reason::kBadTile, message);
}

// PutTiles as synchronous pseudocode:
//
// clang-format off
//   while (message = read()) {
//     if (message is a header) tile = gate.Open(header)
//     if (the header names sealed memory) tile.FinishSealed()
//     else tile.Append(piece); after the tile's last piece: tile.Finish()
//   }
//   finish(number of tiles)
// clang-format on
//
// If the gate does not know the mesh of a tile, the reactor waits for the membership update of this
// mesh, up to a limit, and calls gate.Open again. The work queue opens a large tile, because the
// host takes time to provide its memory, and a tile that came as sealed memory, because all its
// bytes are read to check them.
//
// The work queue finishes a durable tile while the reactor reads the next tile.
class PutTilesReactor final : public grpc::ServerReadReactor<grpc::ByteBuffer> {
 public:
  PutTilesReactor(const TileServiceOptions& options, grpc::ByteBuffer* response)
      : options_(options),
        response_(response),
        idle_(options.clock, options.idle_limit, [this] { GiveUp(); }) {
    StartRead(&read_);
  }

  void OnReadDone(bool ok) override {
    idle_.NoteProgress();
    if (!ok) {
      // Drop the tile before the client gets the error, because the client may send the tile again
      // at once.
      const bool within_tile = std::exchange(tile_, nullptr) != nullptr;
      return end_.End(within_tile ? BadStream("the stream ended within a tile; send all of it")
                                  : absl::OkStatus());
    }
    if (absl::Status taken = Take(); !taken.ok()) {
      tile_.reset();
      end_.End(std::move(taken));
    }
  }

  void OnCancel() override { end_.End(absl::CancelledError("the client left")); }
  void OnDone() override { delete this; }

 private:
  // Handles the message in read_. Starts the next read, unless a task on a thread pool will start
  // it.
  absl::Status Take() {
    SHARDMESH_ASSIGN_OR_RETURN(const std::optional<rpc::TilePiece> piece,
                               rpc::ReadTilePiece(&read_));
    if (piece.has_value()) return TakePiece(*piece);
    if (tile_ != nullptr) {
      return BadStream("a tile is opened before the last piece of the one before");
    }
    v1::PutTilesRequest opening;
    SHARDMESH_RETURN_IF_ERROR(rpc::ParseMessage(&read_, &opening));
    if (!opening.has_header()) {
      return BadStream("a message is neither a tile's header nor a piece");
    }
    if (opening.header().has_sealed_memory()) {
      SHARDMESH_RETURN_IF_ERROR(TakeSealed(opening.header().sealed_memory()));
    }
    if (sealed_.valid() || opening.header().size_bytes() >= kLargeTileBytes) {
      return OpenLarge(std::move(*opening.mutable_header()));
    }
    std::optional<UnknownMesh> unknown;
    absl::Status opened = Open(opening.header(), &unknown);
    if (unknown.has_value()) {
      return OpenAfterNews(std::move(*opening.mutable_header()), *std::move(unknown));
    }
    // The room that was found for the put may be about to become free.
    if (ReasonOf(opened) == Reason::kMemoryLimit && options_.free_memory) {
      return OpenLarge(std::move(*opening.mutable_header()));
    }
    SHARDMESH_RETURN_IF_ERROR(opened);
    StartRead(&read_);
    return absl::OkStatus();
  }

  // Takes the memory that the client has handed over for the tile that the header opens.
  absl::Status TakeSealed(const v1::SealedMemory& named) {
    if (options_.inbox != nullptr) sealed_ = options_.inbox->Take(named.id());
    if (sealed_.valid()) return absl::OkStatus();
    return BadStream(
        options_.inbox == nullptr
            ? "a header names sealed memory, but this worker takes none; send the tile in pieces"
            : "a header names sealed memory that nobody has handed over, or that another header "
              "has named; hand it over first, and name it once");
  }

  absl::Status Open(const v1::TileHeader& header, std::optional<UnknownMesh>* unknown) {
    auto tile = rpc::Decode(header.tile());
    SHARDMESH_RETURN_IF_ERROR(rpc::WithField(tile.status(), "header.tile"));
    SHARDMESH_ASSIGN_OR_RETURN(tile_,
                               options_.gate->Open({.token = header.token(),
                                                    .array_id = header.array_id(),
                                                    .tile = *std::move(tile),
                                                    .size_bytes = header.size_bytes(),
                                                    .rank = header.rank(),
                                                    .sealed = sealed_.valid() ? &sealed_ : nullptr},
                                                   unknown));
    received_bytes_ = 0;
    return absl::OkStatus();
  }

  // Goes on after a tile was opened on a thread pool. Finishes a tile whose bytes are in sealed
  // memory, and starts the next read.
  absl::Status GoOn(const v1::TileHeader& header, absl::Status opened) {
    if (opened.ok() && header.has_sealed_memory()) {
      std::unique_ptr<IncomingTile> tile = std::move(tile_);
      const absl::Status finished = tile->FinishSealed(header.sealed_memory().crc32c());
      if (finished.ok()) options_.inbox->CountStaged(tile->size_bytes());
      opened = Finished(std::move(tile), finished);
    }
    if (opened.ok()) {
      idle_.NoteProgress();
      StartRead(&read_);
    }
    return opened;
  }

  // Opens a tile on the work queue: a large one, because the host may take a while to provide its
  // memory, or one for which memory has to become free first. No read is pending until the tile is
  // open.
  absl::Status OpenLarge(v1::TileHeader header) {
    SHARDMESH_RETURN_IF_ERROR(end_.BeginWork());
    options_.work->Push([this, header = std::move(header)]() mutable {
      if (end_.has_ended()) {
        return end_.EndWork(absl::OkStatus());
      }
      std::optional<UnknownMesh> unknown;
      absl::Status opened = OpenWithRoom(header, &unknown);
      if (unknown.has_value()) {
        return end_.EndWork(OpenAfterNews(std::move(header), *std::move(unknown)));
      }
      end_.EndWork(GoOn(header, std::move(opened)));
    });
    return absl::OkStatus();
  }

  // Opens a tile on a thread of the work queue, and once more if memory may have become free.
  absl::Status OpenWithRoom(const v1::TileHeader& header, std::optional<UnknownMesh>* unknown) {
    // A refused tile takes its sealed memory along.
    FileDescriptor spare(sealed_.valid() ? fcntl(sealed_.get(), F_DUPFD_CLOEXEC, 0) : -1);
    absl::Status opened = Open(header, unknown);
    if (ReasonOf(opened) != Reason::kMemoryLimit || !options_.free_memory ||
        spare.valid() != header.has_sealed_memory() ||
        !options_.free_memory(opened, header.size_bytes())) {
      return opened;
    }
    sealed_ = std::move(spare);
    return Open(header, nullptr);
  }

  // Waits for the membership update that defines the tile's mesh, then opens the tile on the work
  // queue: other puts wait for the thread that waits for updates. No read is pending until the tile
  // is open.
  absl::Status OpenAfterNews(v1::TileHeader header, UnknownMesh unknown) {
    SHARDMESH_RETURN_IF_ERROR(end_.BeginWork());
    const absl::Time deadline = absl::Now() + options_.membership_wait_limit;
    options_.membership_waits->Push(
        [this, deadline, header = std::move(header), unknown = std::move(unknown)]() mutable {
          if (!end_.has_ended()) {
            options_.gate->AwaitMesh(unknown, deadline);
          }
          options_.work->Push([this, header = std::move(header)] {
            if (end_.has_ended()) {
              return end_.EndWork(absl::OkStatus());
            }
            absl::Status opened = OpenWithRoom(header, nullptr);
            end_.EndWork(GoOn(header, std::move(opened)));
          });
        });
    return absl::OkStatus();
  }

  // Handles a piece, which is part of read_. Starts the next read, unless a task on the work queue
  // will start it.
  absl::Status TakePiece(const rpc::TilePiece& piece) {
    if (tile_ == nullptr) {
      return BadStream("a piece comes before the header of its tile, or after its last piece");
    }
    absl::Status appended = Append(piece);
    if (IsHostShortage(appended) && options_.free_memory) {
      return AppendWithRoom(piece, std::move(appended));
    }
    SHARDMESH_RETURN_IF_ERROR(appended);
    SHARDMESH_RETURN_IF_ERROR(EndPiece(piece));
    StartRead(&read_);
    return absl::OkStatus();
  }

  absl::Status Append(const rpc::TilePiece& piece) {
    return tile_->Append(piece.header.offset_bytes, piece.data, piece.header.crc32c);
  }

  // Appends a piece on the work queue, once more if memory may have become free. The host gives a
  // large tile its memory only as the pieces come. No read is pending until the piece is there.
  absl::Status AppendWithRoom(const rpc::TilePiece& piece, absl::Status refused) {
    SHARDMESH_RETURN_IF_ERROR(end_.BeginWork());
    options_.work->Push([this, piece, refused = std::move(refused)] {
      if (end_.has_ended()) {
        return end_.EndWork(absl::OkStatus());
      }
      absl::Status appended = refused;
      const int64_t missing_bytes = tile_->size_bytes() - received_bytes_;
      if (options_.free_memory(refused, BytesToFreeFor(piece.size_bytes(), missing_bytes))) {
        appended = Append(piece);
      }
      if (appended.ok()) appended = EndPiece(piece);
      if (appended.ok()) {
        idle_.NoteProgress();
        StartRead(&read_);
      } else {
        tile_.reset();  // before the client gets the error
      }
      end_.EndWork(std::move(appended));
    });
    return absl::OkStatus();
  }

  // Ends the tile if the piece, which was appended, is its last one.
  absl::Status EndPiece(const rpc::TilePiece& piece) {
    received_bytes_ += piece.size_bytes();
    if (received_bytes_ < tile_->size_bytes()) {
      return piece.size_bytes() > 0 ? absl::OkStatus() : BadStream("a piece has no bytes");
    }
    if (!piece.header.tile_crc32c.has_value()) {
      return BadStream("the last piece of a tile lacks the tile's checksum");
    }
    const uint32_t tile_crc32c = *piece.header.tile_crc32c;
    if (!options_.store->has_data_dir()) {
      const absl::Status finished = tile_->Finish(tile_crc32c);
      return Finished(std::move(tile_), finished);
    }
    SHARDMESH_RETURN_IF_ERROR(end_.BeginWork());
    options_.work->Push([this, tile_crc32c, tile = std::move(tile_)]() mutable {
      const absl::Status finished = tile->Finish(tile_crc32c);
      end_.EndWork(Finished(std::move(tile), finished));
    });
    return absl::OkStatus();
  }

  absl::Status Finished(std::unique_ptr<IncomingTile> tile, const absl::Status& status) {
    if (status.ok()) {
      absl::MutexLock lock(&mutex_);
      ++staged_tiles_;
      staged_bytes_ += tile->size_bytes();
    }
    return status;
  }

  // Called when no message has come for the idle limit. Ends the stream, unless this worker is at
  // work on a tile and the client waits for this work. The incoming tile is dropped when the
  // pending read has ended.
  void GiveUp() {
    if (end_.is_at_work()) return idle_.StartAnew();
    end_.End(WithReason(absl::DeadlineExceededError(StrCat("no message came on this stream for ",
                                                           absl::FormatDuration(idle_.limit()))),
                        Reason::kDeadline, {{fact::kLimit, absl::ToDoubleSeconds(idle_.limit())}}));
  }
  void FinishWith(const absl::Status& status) {
    if (status.ok()) {
      absl::MutexLock lock(&mutex_);
      v1::PutTilesResponse response;
      response.set_tiles(staged_tiles_);
      response.set_size_bytes(staged_bytes_);
      response.set_durability(options_.store->has_data_dir() ? v1::DURABILITY_DISK
                                                             : v1::DURABILITY_MEMORY);
      *response_ = rpc::SerializeMessage(response);
    }
    Finish(rpc::ToGrpc(status));
  }

  const TileServiceOptions& options_;
  grpc::ByteBuffer* const response_;

  // Used by one reaction at a time. Between two reactions, a task on a thread pool may use these
  // members. That task starts the next read at its end.
  grpc::ByteBuffer read_;
  std::unique_ptr<IncomingTile> tile_;  // the tile that is being received; null between tiles
  FileDescriptor sealed_;  // the memory of the tile that is being opened; invalid: it has none yet
  int64_t received_bytes_ = 0;  // bytes of tile_ received so far

  rpc::FinishOnce end_{[this](const absl::Status& status) { FinishWith(status); }};
  absl::Mutex mutex_;
  int64_t staged_tiles_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t staged_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  IdleLimit idle_;  // last member, because it calls GiveUp
};

}  // namespace

grpc::ServerReadReactor<grpc::ByteBuffer>* MakePutTiles(const TileServiceOptions& options,
                                                        grpc::ByteBuffer* response) {
  return new PutTilesReactor(options, response);
}

}  // namespace shardmesh::worker
