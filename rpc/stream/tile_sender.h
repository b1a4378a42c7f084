// The messages that carry the bytes of one tile, for PutTiles and GetTiles.
#ifndef SHARDMESH_RPC_STREAM_TILE_SENDER_H_
#define SHARDMESH_RPC_STREAM_TILE_SENDER_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tensor/view.h"

namespace shardmesh::rpc {

// Returns a slice over `bytes`, without a copy. `owner` keeps the bytes alive until gRPC has sent
// the slice. A null `owner` means that the bytes are never freed.
grpc::Slice LendSlice(absl::Span<const char> bytes, const std::shared_ptr<const void>& owner);

// Provides the memory of pieces while gRPC sends them.
class PieceLender {
 public:
  virtual ~PieceLender() = default;
  // Returns a slice over bytes of the tensor itself.
  virtual grpc::Slice Borrow(absl::Span<const char> bytes) = 0;
  // Returns a slice over `size_bytes`, at most kMaxTilePieceBytes, which `fill` has written.
  virtual grpc::Slice Make(size_t size_bytes, absl::FunctionRef<void(char*)> fill) = 0;
};

// Lends the tensor's bytes, which `owner` keeps alive, and allocates memory for each piece that
// `fill` writes.
class OwnedPieces final : public PieceLender {
 public:
  explicit OwnedPieces(std::shared_ptr<const void> owner) : owner_(std::move(owner)) {}
  grpc::Slice Borrow(absl::Span<const char> bytes) override { return LendSlice(bytes, owner_); }
  grpc::Slice Make(size_t size_bytes, absl::FunctionRef<void(char*)> fill) override;

 private:
  const std::shared_ptr<const void> owner_;
};

// Cuts a tile into pieces of at most kMaxTilePieceBytes, in order, each with its checksum. The last
// piece also has the checksum of the whole tile. An empty tile is one empty piece. A piece that is
// contiguous in the tensor is sent without a copy. The parts of any other piece are copied into one
// block. The bytes of a tile that is in no memory are made for each piece. Not thread-safe.
class TileSender {
 public:
  // `whole`: the bytes of the tensor in which `region` lies. They must outlive the sender.
  TileSender(absl::Span<const char> whole, const TileRegion& region)
      : whole_(whole), region_(region), size_bytes_(region.size_bytes()) {}

  // Fills `out` with the tile's bytes from `offset_bytes` on.
  using Fill = std::function<absl::Status(int64_t offset_bytes, absl::Span<char> out)>;
  // A tile of `size_bytes` that `fill` makes.
  TileSender(int64_t size_bytes, Fill fill) : size_bytes_(size_bytes), fill_(std::move(fill)) {}

  struct Piece {
    grpc::ByteBuffer message;
    int64_t size_bytes = 0;  // number of the tile's bytes in `message`
  };
  // Returns the next piece; nullopt after the last one, and after an error of Fill.
  std::optional<Piece> Next(PieceLender& lender);
  // Returns the error of Fill that ended the tile early, else OK.
  const absl::Status& status() const { return status_; }

 private:
  const absl::Span<const char> whole_;
  const std::optional<TileRegion> region_;  // nullopt: fill_ makes the bytes
  const int64_t size_bytes_;
  const Fill fill_;
  absl::Status status_;
  int64_t offset_bytes_ = 0;
  uint32_t tile_crc_ = 0;
  bool is_closed_ = false;
};

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_STREAM_TILE_SENDER_H_
