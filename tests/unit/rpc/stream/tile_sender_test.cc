// Tiles cut into pieces: order, checksums, and bytes that are lent or gathered.
#include "rpc/stream/tile_sender.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "process/crc32c.h"
#include "rpc/stream/tile_piece.h"
#include "tensor/dtype.h"
#include "tensor/view.h"

namespace shardmesh::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

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

// Records how it is asked.
class RecordingLender final : public PieceLender {
 public:
  grpc::Slice Borrow(absl::Span<const char> bytes) override {
    borrowed.push_back(bytes);
    return LendSlice(bytes, nullptr);
  }
  grpc::Slice Make(size_t size_bytes, absl::FunctionRef<void(char*)> fill) override {
    made.push_back(size_bytes);
    return owned_.Make(size_bytes, fill);
  }

  std::vector<absl::Span<const char>> borrowed;
  std::vector<size_t> made;

 private:
  OwnedPieces owned_{nullptr};
};

TEST(TileSenderTest, OneByteOverTheLimitIsAPieceOfItsOwn) {
  const std::string whole = Bytes(static_cast<size_t>(kMaxTilePieceBytes) + 1);
  OwnedPieces lender(nullptr);
  const Sent sent =
      Send(whole, {kMaxTilePieceBytes + 1}, Tile{{{0, kMaxTilePieceBytes + 1}}}, lender);
  EXPECT_THAT(sent.sizes, ElementsAre(kMaxTilePieceBytes, 1));
  EXPECT_TRUE(sent.bytes == whole);
}

TEST(TileSenderTest, BytesInOneRunAreLentWhereTheyLie) {
  const std::string whole = Bytes(static_cast<size_t>(kMaxTilePieceBytes) + 100);
  RecordingLender lender;
  Send(whole, {kMaxTilePieceBytes + 100}, Tile{{{7, kMaxTilePieceBytes + 17}}}, lender);
  EXPECT_THAT(lender.made, IsEmpty());
  ASSERT_EQ(lender.borrowed.size(), 2u);
  EXPECT_EQ(lender.borrowed[0].data(), whole.data() + 7);
  EXPECT_EQ(lender.borrowed[0].size(), static_cast<size_t>(kMaxTilePieceBytes));
  EXPECT_EQ(lender.borrowed[1].data(), whole.data() + 7 + kMaxTilePieceBytes);
  EXPECT_EQ(lender.borrowed[1].size(), 10u);
}

// The first piece ends in the middle of the second row.
TEST(TileSenderTest, ATileOfManyRunsIsCutWithinARun) {
  constexpr int64_t kRow = 700'000;
  const std::string whole = Bytes(static_cast<size_t>(3 * kRow));
  RecordingLender lender;
  const Sent sent = Send(whole, {3, kRow}, Tile{{{0, 3}, {1, kRow - 1}}}, lender);
  std::string expected;
  for (size_t row = 0; row < 3; ++row) {
    expected += whole.substr(row * static_cast<size_t>(kRow) + 1, static_cast<size_t>(kRow) - 2);
  }
  EXPECT_TRUE(sent.bytes == expected);
  const int64_t rest = 3 * (kRow - 2) - 2 * kMaxTilePieceBytes;
  ASSERT_GT(rest, 0);
  EXPECT_THAT(sent.sizes, ElementsAre(kMaxTilePieceBytes, kMaxTilePieceBytes, rest));
  EXPECT_THAT(lender.borrowed, IsEmpty());
  EXPECT_THAT(lender.made, ElementsAre(kMaxTilePieceBytes, kMaxTilePieceBytes, rest));
}

TEST(TileSenderTest, AnEmptyTileAsksForNoMemory) {
  RecordingLender lender;
  Send(Bytes(6), {2, 3}, Tile{{{1, 2}, {3, 3}}}, lender);
  EXPECT_THAT(lender.borrowed, IsEmpty());
  EXPECT_THAT(lender.made, IsEmpty());
}

TEST(TileSenderTest, AScalarIsOnePiece) {
  const std::string whole = "12345678";
  const auto region = TileRegion::Create(Dtype::kF64, {}, Tile{});
  ASSERT_TRUE(region.ok());
  TileSender sender(whole, *region);
  OwnedPieces lender(nullptr);
  auto piece = sender.Next(lender);
  ASSERT_TRUE(piece.has_value());
  EXPECT_EQ(piece->size_bytes, 8);
  const auto read = ReadTilePiece(&piece->message);
  ASSERT_TRUE(read.ok() && read->has_value());
  EXPECT_EQ((*read)->header.tile_crc32c, Crc32c(whole));
}

TEST(TileSenderTest, NothingComesAfterTheLastPiece) {
  const std::string whole = Bytes(4);
  const auto region = TileRegion::Create(Dtype::kU8, {4}, Tile{{{0, 4}}});
  ASSERT_TRUE(region.ok());
  TileSender sender(whole, *region);
  RecordingLender lender;
  EXPECT_TRUE(sender.Next(lender).has_value());
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(sender.Next(lender).has_value());
  EXPECT_EQ(lender.borrowed.size(), 1u);
}

TEST(TileSenderTest, AnUnsentPieceKeepsTheOwnerOfATileThatIsGivenUp) {
  const auto owner =
      std::make_shared<const std::string>(Bytes(static_cast<size_t>(2 * kMaxTilePieceBytes)));
  const auto region =
      TileRegion::Create(Dtype::kU8, {2 * kMaxTilePieceBytes}, Tile{{{0, 2 * kMaxTilePieceBytes}}});
  ASSERT_TRUE(region.ok());
  std::optional<TileSender::Piece> piece;
  {
    TileSender sender(*owner, *region);
    OwnedPieces lender(owner);
    piece = sender.Next(lender);
  }
  EXPECT_EQ(owner.use_count(), 2) << "the piece's";
  piece.reset();
  EXPECT_EQ(owner.use_count(), 1);
}

TEST(TileSenderTest, AMadeSliceOutlivesItsLender) {
  grpc::Slice slice;
  {
    OwnedPieces lender(nullptr);
    slice = lender.Make(1000, [](char* at) { std::fill_n(at, 1000, 'm'); });
  }
  EXPECT_EQ(std::string(slice.begin(), slice.end()), std::string(1000, 'm'));
}

TEST(TileSenderTest, ASliceWithoutAnOwnerIsTheBytesThemselves) {
  const std::string bytes = Bytes(100);
  const grpc::Slice slice = LendSlice(bytes, nullptr);
  EXPECT_EQ(reinterpret_cast<const char*>(slice.begin()), bytes.data());
  EXPECT_EQ(slice.size(), bytes.size());
}

TEST(TileSenderTest, BytesThatAreMadeComeInPiecesOfAtMostTheLimit) {
  const int64_t size = 2 * kMaxTilePieceBytes + 4;
  const std::string whole = Bytes(static_cast<size_t>(size));
  std::vector<int64_t> asked;
  TileSender sender(size, [&](int64_t offset, absl::Span<char> out) {
    asked.push_back(offset);
    EXPECT_LE(static_cast<int64_t>(out.size()), kMaxTilePieceBytes);
    whole.copy(out.data(), out.size(), static_cast<size_t>(offset));
    return absl::OkStatus();
  });
  OwnedPieces lender(nullptr);
  std::string sent;
  while (auto piece = sender.Next(lender)) {
    const auto read = ReadTilePiece(&piece->message);
    ASSERT_TRUE(read.ok() && read->has_value());
    for (const auto part : (*read)->data) sent.append(part.data(), part.size());
  }
  EXPECT_TRUE(sender.status().ok());
  EXPECT_TRUE(sent == whole);
  EXPECT_THAT(asked, ElementsAre(0, kMaxTilePieceBytes, 2 * kMaxTilePieceBytes));

  TileSender empty(0, [](int64_t, absl::Span<char>) { return absl::InternalError("asked"); });
  EXPECT_TRUE(empty.Next(lender).has_value());
  EXPECT_FALSE(empty.Next(lender).has_value());
  EXPECT_TRUE(empty.status().ok());
}

TEST(TileSenderTest, AnErrorOfWhatMakesTheBytesEndsTheTile) {
  TileSender sender(2 * kMaxTilePieceBytes, [&](int64_t offset, absl::Span<char> out) {
    std::fill(out.begin(), out.end(), 'x');
    return offset == 0 ? absl::OkStatus() : absl::DataLossError("the source is gone");
  });
  OwnedPieces lender(nullptr);
  EXPECT_TRUE(sender.Next(lender).has_value());
  EXPECT_FALSE(sender.Next(lender).has_value());
  EXPECT_EQ(sender.status().message(), "the source is gone");
  EXPECT_FALSE(sender.Next(lender).has_value());
}

}  // namespace
}  // namespace shardmesh::rpc
