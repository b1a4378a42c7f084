// Makes each piece from the tensor's own bytes or from a copy, and computes the tile's checksum.
#include "rpc/stream/tile_sender.h"

#include <algorithm>
#include <string>
#include <utility>

#include "process/crc32c.h"
#include "rpc/stream/tile_piece.h"

namespace shardmesh::rpc {
namespace {

void ReleaseOwner(void* owner) { delete static_cast<std::shared_ptr<const void>*>(owner); }

absl::Span<const char> BytesOf(const grpc::Slice& slice) {
  return {reinterpret_cast<const char*>(slice.begin()), slice.size()};
}

}  // namespace

grpc::Slice LendSlice(absl::Span<const char> bytes, const std::shared_ptr<const void>& owner) {
  if (owner == nullptr) {
    return grpc::Slice(bytes.data(), bytes.size(), grpc::Slice::STATIC_SLICE);
  }
  // gRPC's parameter is a void*, but gRPC never writes to the bytes.
  return grpc::Slice(const_cast<char*>(bytes.data()), bytes.size(), &ReleaseOwner,
                     new std::shared_ptr<const void>(owner));
}

grpc::Slice OwnedPieces::Make(size_t size_bytes, absl::FunctionRef<void(char*)> fill) {
  auto bytes = std::make_shared<std::string>(size_bytes, '\0');
  fill(bytes->data());
  const absl::Span<const char> span(bytes->data(), bytes->size());
  return LendSlice(span, std::move(bytes));
}

std::optional<TileSender::Piece> TileSender::Next(PieceLender& lender) {
  if (is_closed_) {
    return std::nullopt;
  }
  const int64_t begin = offset_bytes_;
  const int64_t size = std::min(kMaxTilePieceBytes, size_bytes_ - begin);
  grpc::Slice data;
  if (size > 0 && !region_.has_value()) {
    data = lender.Make(static_cast<size_t>(size), [&](char* at) {
      status_ = fill_(begin, absl::MakeSpan(at, static_cast<size_t>(size)));
    });
    if (!status_.ok()) {
      is_closed_ = true;
      return std::nullopt;
    }
  } else if (size > 0 && region_->contiguous()) {
    data = lender.Borrow(whole_.subspan(static_cast<size_t>(region_->offset_bytes() + begin),
                                        static_cast<size_t>(size)));
  } else if (size > 0) {
    data = lender.Make(static_cast<size_t>(size), [&](char* at) {
      region_->ForEachRun(begin, begin + size, [&](int64_t run_offset, int64_t run_size) {
        at = std::copy_n(whole_.data() + run_offset, run_size, at);
      });
    });
  }
  TilePieceHeader header{.offset_bytes = begin, .crc32c = Crc32c(BytesOf(data))};
  tile_crc_ = ConcatCrc32c(tile_crc_, header.crc32c, size);
  offset_bytes_ += size;
  is_closed_ = offset_bytes_ == size_bytes_;
  if (is_closed_) {
    header.tile_crc32c = tile_crc_;
  }
  return Piece{WriteTilePiece(header, data), size};
}

}  // namespace shardmesh::rpc
