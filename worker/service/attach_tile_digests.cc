// Reads tiles piece by piece, and answers with their digests.
#include "worker/service/attach_tile_digests.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "rpc/codec/spec_codec.h"
#include "sharding/digest.h"

namespace shardmesh::worker {
namespace {

// An order that was given up ends after so many bytes.
constexpr int64_t kPieceBytes = int64_t{4} << 20;

}  // namespace

void TileDigests::Take(internal::v1::DigestTiles order, AttachSinkPtr stream) {
  pool_.Push(
      [this, order = std::move(order), stream = std::move(stream), forgotten = forgotten_.load()] {
        internal::v1::AttachRequest request;
        internal::v1::TilesDigested& answer = *request.mutable_tiles_digested();
        answer.set_order_id(order.order_id());
        for (const internal::v1::WantedDigest& wanted : order.tiles()) {
          // A tile that cannot be decoded is none that this worker holds.
          const absl::StatusOr<Tile> tile = rpc::Decode(wanted.tile());
          std::optional<std::string> sha256 =
              tile.ok() ? DigestOf(wanted.array_id(), *tile, forgotten) : std::string();
          if (!sha256.has_value()) return;
          answer.add_tile_sha256(*std::move(sha256));
        }
        stream->Send(std::move(request));
      });
}

std::optional<std::string> TileDigests::DigestOf(const std::string& array_id, const Tile& tile,
                                                 int64_t forgotten) const {
  if (forgotten_.load() != forgotten) return std::nullopt;
  const absl::StatusOr<StoredTilePtr> stored = store_->FindHeld(array_id, tile);
  if (!stored.ok()) return std::string();
  Sha256Stream digest;
  std::vector<char> scratch;
  for (int64_t at = 0; at < (*stored)->size_bytes(); at += kPieceBytes) {
    if (forgotten_.load() != forgotten) return std::nullopt;
    const absl::Span<const char> piece = (*stored)->Piece(at, kPieceBytes, &scratch);
    digest.Add(std::string_view(piece.data(), piece.size()));
  }
  return digest.Finish();
}

}  // namespace shardmesh::worker
