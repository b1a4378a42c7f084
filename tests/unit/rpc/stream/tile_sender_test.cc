// Tiles cut into pieces: order, checksums, and bytes that are lent or gathered.
#include "rpc/stream/tile_sender.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "process/crc32c.h"
#include "rpc/stream/tile_piece.h"
#include "tensor/dtype.h"
#include "tensor/view.h"

namespace shardmesh::rpc {
namespace {

using ::testing::ElementsAre;

std::string Bytes(size_t size) {
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 7 + i / 251);
  return bytes;
}

struct Sent {
  std::string bytes;
  std::vector<int64_t> sizes;
  std::optional<uint32_t> tile_crc32c;  // of the last piece
};

// Sends the tile, and reads its pieces as a receiver does.
Sent Send(const std::string& whole, const Shape& shape, const Tile& tile, PieceLender& lender) {
  const auto region = TileRegion::Create(Dtype::kU8, shape, tile);
  EXPECT_TRUE(region.ok());
  TileSender sender(whole, *region);
  Sent sent;
  while (auto piece = sender.Next(lender)) {
    EXPECT_FALSE(sent.tile_crc32c.has_value()) << "a piece after the one that closes the tile";
    sent.sizes.push_back(piece->size_bytes);
    const auto read = ReadTilePiece(&piece->message);
    EXPECT_TRUE(read.ok() && read->has_value());
    EXPECT_EQ((*read)->header.offset_bytes, static_cast<int64_t>(sent.bytes.size()));
    for (const auto part : (*read)->data) sent.bytes.append(part.data(), part.size());
    sent.tile_crc32c = (*read)->header.tile_crc32c;
  }
  EXPECT_EQ(sent.tile_crc32c, Crc32c(sent.bytes));
  return sent;
}

TEST(TileSenderTest, ATileInOneRunIsLentInPiecesOfAtMostTheLimit) {
  const int64_t size = 2 * kMaxTilePieceBytes + 5;
  const std::string whole = Bytes(static_cast<size_t>(size) + 10);
  OwnedPieces lender(nullptr);
  const Sent sent = Send(whole, {size + 10}, Tile{{{5, size + 5}}}, lender);
  EXPECT_EQ(sent.bytes, whole.substr(5, static_cast<size_t>(size)));
  EXPECT_THAT(sent.sizes, ElementsAre(kMaxTilePieceBytes, kMaxTilePieceBytes, 5));
}

TEST(TileSenderTest, ATileOfExactlyTheLimitIsOnePiece) {
  const std::string whole = Bytes(static_cast<size_t>(kMaxTilePieceBytes));
  OwnedPieces lender(nullptr);
  EXPECT_THAT(Send(whole, {kMaxTilePieceBytes}, Tile{{{0, kMaxTilePieceBytes}}}, lender).sizes,
              ElementsAre(kMaxTilePieceBytes));
}

TEST(TileSenderTest, ATileOfManyRunsIsGathered) {
  const std::string whole = Bytes(30);
  OwnedPieces lender(nullptr);
  const Sent sent = Send(whole, {5, 6}, Tile{{{1, 4}, {2, 4}}}, lender);
  EXPECT_EQ(sent.bytes, whole.substr(8, 2) + whole.substr(14, 2) + whole.substr(20, 2));
}

TEST(TileSenderTest, AnEmptyTileIsOneEmptyPiece) {
  OwnedPieces lender(nullptr);
  const Sent sent = Send(Bytes(6), {6}, Tile{{{3, 3}}}, lender);
  EXPECT_THAT(sent.sizes, ElementsAre(0));
}

TEST(TileSenderTest, ALentSliceKeepsItsOwner) {
  auto owner = std::make_shared<const std::string>("abcdefghijklmnopqrstuvwxyz0123456789");
  {
    const grpc::Slice slice = LendSlice(*owner, owner);
    EXPECT_EQ(owner.use_count(), 2);
    EXPECT_EQ(slice.size(), owner->size());
  }
  EXPECT_EQ(owner.use_count(), 1);
}

}  // namespace
}  // namespace shardmesh::rpc
