// Pieces of tiles as the client writes and reads them, against the generated code.
#include "rpc/stream/tile_piece.h"

#include <gtest/gtest.h>

#include <string>

#include "process/crc32c.h"
#include "shardmesh/v1/tile_service.pb.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::rpc {
namespace {

using test::IsOk;
using test::StatusIs;

std::string Join(const TilePiece& piece) {
  std::string bytes;
  for (const absl::Span<const char> part : piece.data) {
    bytes.append(part.data(), part.size());
  }
  return bytes;
}

std::string Flatten(const grpc::ByteBuffer& buffer) {
  grpc::Slice slice;
  EXPECT_TRUE(buffer.DumpToSingleSlice(&slice).ok());
  return std::string(reinterpret_cast<const char*>(slice.begin()), slice.size());
}

grpc::ByteBuffer BufferOf(const std::string& bytes) {
  // In slices of odd sizes, as a network may deliver them.
  std::vector<grpc::Slice> slices;
  for (size_t i = 0; i < bytes.size(); i += 37) {
    slices.emplace_back(bytes.substr(i, 37));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

v1::GetTilesResponse PieceOf(const std::string& data) {
  v1::GetTilesResponse response;
  response.mutable_piece()->set_offset_bytes(5);
  response.mutable_piece()->set_crc32c(Crc32c(data));
  response.mutable_piece()->set_data(data);
  return response;
}

TEST(TilePieceTest, IsWrittenAsTheGeneratedCodeReadsIt) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{300}, size_t{1} << 20}) {
    const std::string data(size, 'x');
    const TilePieceHeader header{
        .offset_bytes = int64_t{1} << 40, .crc32c = Crc32c(data), .tile_crc32c = 9};
    v1::PutTilesRequest request;
    ASSERT_TRUE(request.ParseFromString(Flatten(WriteTilePiece(header, grpc::Slice(data)))));
    EXPECT_EQ(request.piece().offset_bytes(), int64_t{1} << 40);
    EXPECT_EQ(request.piece().crc32c(), Crc32c(data));
    EXPECT_EQ(request.piece().tile_crc32c(), 9u);
    EXPECT_EQ(request.piece().data(), data);
  }
}

TEST(TilePieceTest, IsReadAsTheGeneratedCodeWritesIt) {
  const std::string data(1000, 'y');
  grpc::ByteBuffer buffer = BufferOf(PieceOf(data).SerializeAsString());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::optional<TilePiece> piece, ReadTilePiece(&buffer));
  ASSERT_TRUE(piece.has_value());
  EXPECT_EQ(piece->header.offset_bytes, 5);
  EXPECT_EQ(piece->header.tile_crc32c, std::nullopt);
  EXPECT_EQ(Join(*piece), data);
}

TEST(TilePieceTest, ReadsFieldsInAnyOrderAndSkipsUnknownOnes) {
  const std::string data = "abc";
  v1::TilePiece first;
  first.set_data(data);
  v1::TilePiece second;
  second.set_crc32c(Crc32c(data));
  const std::string body =
      first.SerializeAsString() + std::string("\xa2\x06\x02hi") + second.SerializeAsString();
  std::string message("\x7a");
  message += static_cast<char>(body.size());
  message += body;
  grpc::ByteBuffer buffer = BufferOf(message);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::optional<TilePiece> piece, ReadTilePiece(&buffer));
  ASSERT_TRUE(piece.has_value());
  EXPECT_EQ(Join(*piece), data);
}

TEST(TilePieceTest, LeavesOtherMessagesToTheGeneratedCode) {
  v1::GetTilesResponse opening;
  opening.mutable_opening()->set_array_id("a");
  grpc::ByteBuffer buffer = BufferOf(opening.SerializeAsString());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::optional<TilePiece> piece, ReadTilePiece(&buffer));
  EXPECT_FALSE(piece.has_value());
}

TEST(TilePieceTest, RefusesBytesThatDifferFromTheirChecksum) {
  v1::GetTilesResponse response = PieceOf("some bytes");
  response.mutable_piece()->mutable_data()->front() ^= 1;
  grpc::ByteBuffer buffer = BufferOf(response.SerializeAsString());
  EXPECT_THAT(ReadTilePiece(&buffer),
              StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch));
}

TEST(TilePieceTest, RefusesMessagesThatAreCutOff) {
  const std::string whole = PieceOf(std::string(200, 'z')).SerializeAsString();
  for (size_t size = 1; size < whole.size(); ++size) {
    grpc::ByteBuffer buffer = BufferOf(whole.substr(0, size));
    EXPECT_FALSE(ReadTilePiece(&buffer).ok()) << size << " bytes of " << whole.size();
  }
}

TEST(TilePieceTest, RefusesDataWhoseLengthOnlyLooksShortInItsLow32Bits) {
  const std::string data = "ab";
  v1::TilePiece checksum;
  checksum.set_crc32c(Crc32c(data));
  const std::string claim = "\x7a\x82\x80\x80\x80\x80\x80\x80\x80\x80\x01";  // 2^63 + 2
  const std::string body = checksum.SerializeAsString() + claim + data;
  grpc::ByteBuffer buffer = BufferOf(std::string("\x7a") + static_cast<char>(body.size()) + body);
  EXPECT_THAT(ReadTilePiece(&buffer),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
}

TEST(TilePieceTest, RefusesMoreBytesThanAPieceMayHave) {
  grpc::ByteBuffer buffer =
      BufferOf(PieceOf(std::string((size_t{1} << 20) + 1, 'z')).SerializeAsString());
  EXPECT_THAT(ReadTilePiece(&buffer),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded));
}

}  // namespace
}  // namespace shardmesh::rpc
