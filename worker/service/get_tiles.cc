// GetTiles: sends tiles as raw bytes, directly from the memory that holds them, or made piece by
// piece from the form in which the store holds them.
#include "worker/service/get_tiles.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "rpc/contract.h"
#include "rpc/stream/finish_once.h"
#include "rpc/stream/message_bytes.h"
#include "rpc/stream/tile_sender.h"
#include "shardmesh/v1/tile_service.pb.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/view.h"
#include "worker/service/idle_limit.h"

namespace shardmesh::worker {
namespace {

// The messages that carry one tile, or a part of a tile, in order.
class TileMessages {
 public:
  static absl::StatusOr<TileMessages> Create(RequestedTile requested) {
    const TileDescription& description = requested.stored->description();
    // The requested range, relative to the start of the tile that the worker holds.
    Tile within = requested.range;
    for (size_t i = 0; i < within.ranges.size(); ++i) {
      within.ranges[i].start -= description.tile.ranges[i].start;
      within.ranges[i].stop -= description.tile.ranges[i].start;
    }
    SHARDMESH_ASSIGN_OR_RETURN(
        const TileBits bits, TileBits::Create(description.dtype, description.tile.shape(), within));
    return TileMessages(std::move(requested), std::move(within), bits);
  }

  // Returns the next message; nullopt after the last.
  std::optional<grpc::ByteBuffer> Next() {
    if (!opened_) {
      opened_ = true;
      v1::GetTilesResponse response;
      v1::TileOpening* opening = response.mutable_opening();
      opening->set_array_id(requested_.stored->description().array_id);
      rpc::Encode(requested_.range, opening->mutable_tile());
      opening->set_size_bytes(size_bytes_);
      return rpc::SerializeMessage(response);
    }
    rpc::OwnedPieces lender(requested_.stored);
    std::optional<rpc::TileSender::Piece> piece = sender_.Next(lender);
    return piece.has_value() ? std::optional(std::move(piece->message)) : std::nullopt;
  }

 private:
  TileMessages(RequestedTile requested, Tile within, const TileBits& bits)
      : requested_(std::move(requested)),
        size_bytes_(bits.size_bytes()),
        sender_(SenderOf(requested_.stored, std::move(within), bits)) {}

  // Pieces of ranges that begin or end within a byte are made bit by bit. A tile in another form
  // has no such ranges, because its elements are of whole bytes.
  static rpc::TileSender SenderOf(const StoredTilePtr& stored, Tile within, const TileBits& bits) {
    const std::optional<TileRegion> region = bits.InBytes();
    if (stored->form() != nullptr) return FormSender(stored->form(), *region);
    if (region.has_value()) return rpc::TileSender(stored->bytes(), *region);
    return rpc::TileSender(bits.size_bytes(), [stored, within = std::move(within)](
                                                  int64_t offset_bytes, absl::Span<char> out) {
      return CopyTileBytes(stored->view(), within, offset_bytes, out);
    });
  }

  static rpc::TileSender FormSender(const std::shared_ptr<const TileForm>& form,
                                    const TileRegion& region) {
    return rpc::TileSender(
        region.size_bytes(), [form, region](int64_t offset_bytes, absl::Span<char> out) {
          const int64_t end_bytes = offset_bytes + static_cast<int64_t>(out.size());
          region.ForEachRun(offset_bytes, end_bytes, [&](int64_t from_bytes, int64_t size_bytes) {
            form->Read(from_bytes, out.subspan(0, static_cast<size_t>(size_bytes)));
            out.remove_prefix(static_cast<size_t>(size_bytes));
          });
          return absl::OkStatus();
        });
  }

  RequestedTile requested_;
  int64_t size_bytes_;
  rpc::TileSender sender_;
  bool opened_ = false;
};

// GetTiles as synchronous pseudocode:
//
// clang-format off
//   for (tile : found(request)) write(opening), write(pieces)
// clang-format on
//
// The reactor finds all tiles before it sends the first byte. The client therefore gets an error
// before any data.
class GetTilesReactor final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  GetTilesReactor(const TileServiceOptions& options, grpc::CallbackServerContext* context,
                  grpc::ByteBuffer request)
      : idle_(options.clock, options.idle_limit, [context] { context->TryCancel(); }) {
    if (absl::Status status = Find(options, &request); !status.ok()) {
      end_.End(std::move(status));
      return;
    }
    WriteNext();
  }

  void OnWriteDone(bool ok) override {
    if (!ok) {
      return end_.End(absl::CancelledError("the client left, or stopped reading"));
    }
    idle_.NoteProgress();
    WriteNext();
  }
  void OnDone() override { delete this; }

 private:
  absl::Status Find(const TileServiceOptions& options, grpc::ByteBuffer* bytes) {
    v1::GetTilesRequest request;
    SHARDMESH_RETURN_IF_ERROR(rpc::ParseMessage(bytes, &request));
    if (request.tiles_size() > rpc::kMaxTilesPerGet) {
      return WithReason(
          rpc::BadField("tiles", StrCat("has ", request.tiles_size(), " entries; at most ",
                                        rpc::kMaxTilesPerGet, " are served in one call")),
          Reason::kLimitExceeded,
          {{fact::kHave, request.tiles_size()}, {fact::kLimit, rpc::kMaxTilesPerGet}});
    }
    for (int i = 0; i < request.tiles_size(); ++i) {
      SHARDMESH_RETURN_IF_ERROR(FindOne(options, request.tiles(i), static_cast<size_t>(i)));
    }
    return absl::OkStatus();
  }

  absl::Status FindOne(const TileServiceOptions& options, const v1::TileSelector& selector,
                       size_t index) {
    std::optional<Tile> range;
    if (selector.has_tile()) {
      auto tile = rpc::Decode(selector.tile());
      SHARDMESH_RETURN_IF_ERROR(
          rpc::WithField(rpc::WithField(tile.status(), "tile"), "tiles", index));
      range = *std::move(tile);
    }
    SHARDMESH_ASSIGN_OR_RETURN(std::vector<RequestedTile> found,
                               options.gate->Find(selector.token(), selector.array_id(), range));
    for (RequestedTile& each : found) {
      SHARDMESH_ASSIGN_OR_RETURN(TileMessages messages, TileMessages::Create(std::move(each)));
      tiles_.push_back(std::move(messages));
    }
    return absl::OkStatus();
  }

  void WriteNext() {
    while (next_ < tiles_.size()) {
      if (std::optional<grpc::ByteBuffer> message = tiles_[next_].Next(); message.has_value()) {
        written_ = *std::move(message);
        return StartWrite(&written_);
      }
      ++next_;
    }
    end_.End(absl::OkStatus());
  }

  std::vector<TileMessages> tiles_;
  size_t next_ = 0;
  grpc::ByteBuffer written_;
  rpc::FinishOnce end_{[this](const absl::Status& status) { Finish(rpc::ToGrpc(status)); }};
  IdleLimit idle_;
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* MakeGetTiles(const TileServiceOptions& options,
                                                         grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer& request) {
  return new GetTilesReactor(options, context, request);
}

}  // namespace shardmesh::worker
