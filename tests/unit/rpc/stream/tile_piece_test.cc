// Pieces of tiles against the generated code: round trips, bounds, and malformed messages.
#include "rpc/stream/tile_piece.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "process/crc32c.h"
#include "shardmesh/v1/tile_service.pb.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::rpc {
namespace {

using test::CarriesFacts;
using test::IsOk;
using test::kInvalid;
using test::StatusIs;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string DataOf(const TilePiece& piece) {
  std::string bytes;
  for (const absl::Span<const char> part : piece.data) {
    bytes.append(part.data(), part.size());
  }
  return bytes;
}

std::string Flat(const grpc::ByteBuffer& buffer) {
  grpc::Slice slice;
  EXPECT_TRUE(buffer.DumpToSingleSlice(&slice).ok());
  return std::string(reinterpret_cast<const char*>(slice.begin()), slice.size());
}

grpc::ByteBuffer InOddSlices(const std::string& bytes) {
  // In slices of odd sizes, as a network may deliver them.
  std::vector<grpc::Slice> slices;
  for (size_t i = 0; i < bytes.size(); i += 37) {
    slices.emplace_back(bytes.substr(i, 37));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

v1::GetTilesResponse ResponseOf(const std::string& data) {
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
    ASSERT_TRUE(request.ParseFromString(Flat(WriteTilePiece(header, grpc::Slice(data)))));
    EXPECT_EQ(request.piece().offset_bytes(), int64_t{1} << 40);
    EXPECT_EQ(request.piece().crc32c(), Crc32c(data));
    EXPECT_EQ(request.piece().tile_crc32c(), 9u);
    EXPECT_EQ(request.piece().data(), data);
  }
}

TEST(TilePieceTest, IsReadAsTheGeneratedCodeWritesIt) {
  const std::string data(1000, 'y');
  grpc::ByteBuffer buffer = InOddSlices(ResponseOf(data).SerializeAsString());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::optional<TilePiece> piece, ReadTilePiece(&buffer));
  ASSERT_TRUE(piece.has_value());
  EXPECT_EQ(piece->header.offset_bytes, 5);
  EXPECT_EQ(piece->header.tile_crc32c, std::nullopt);
  EXPECT_EQ(DataOf(*piece), data);
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
  grpc::ByteBuffer buffer = InOddSlices(message);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::optional<TilePiece> piece, ReadTilePiece(&buffer));
  ASSERT_TRUE(piece.has_value());
  EXPECT_EQ(DataOf(*piece), data);
}

TEST(TilePieceTest, LeavesOtherMessagesToTheGeneratedCode) {
  v1::GetTilesResponse opening;
  opening.mutable_opening()->set_array_id("a");
  grpc::ByteBuffer buffer = InOddSlices(opening.SerializeAsString());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::optional<TilePiece> piece, ReadTilePiece(&buffer));
  EXPECT_FALSE(piece.has_value());
}

TEST(TilePieceTest, RefusesBytesThatDifferFromTheirChecksum) {
  v1::GetTilesResponse response = ResponseOf("some bytes");
  response.mutable_piece()->mutable_data()->front() ^= 1;
  grpc::ByteBuffer buffer = InOddSlices(response.SerializeAsString());
  EXPECT_THAT(ReadTilePiece(&buffer),
              StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch));
}

TEST(TilePieceTest, RefusesMessagesThatAreCutOff) {
  const std::string whole = ResponseOf(std::string(200, 'z')).SerializeAsString();
  for (size_t size = 1; size < whole.size(); ++size) {
    grpc::ByteBuffer buffer = InOddSlices(whole.substr(0, size));
    EXPECT_FALSE(ReadTilePiece(&buffer).ok()) << size << " bytes of " << whole.size();
  }
}

TEST(TilePieceTest, RefusesDataWhoseLengthOnlyLooksShortInItsLow32Bits) {
  const std::string data = "ab";
  v1::TilePiece checksum;
  checksum.set_crc32c(Crc32c(data));
  const std::string claim = "\x7a\x82\x80\x80\x80\x80\x80\x80\x80\x80\x01";  // 2^63 + 2
  const std::string body = checksum.SerializeAsString() + claim + data;
  grpc::ByteBuffer buffer =
      InOddSlices(std::string("\x7a") + static_cast<char>(body.size()) + body);
  EXPECT_THAT(ReadTilePiece(&buffer),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
}

TEST(TilePieceTest, RefusesMoreBytesThanAPieceMayHave) {
  grpc::ByteBuffer buffer =
      InOddSlices(ResponseOf(std::string((size_t{1} << 20) + 1, 'z')).SerializeAsString());
  EXPECT_THAT(ReadTilePiece(&buffer),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded));
}

TEST(TilePieceTest, TellsHowManyBytesOfHowManyAreAllowed) {
  grpc::ByteBuffer buffer =
      InOddSlices(ResponseOf(std::string(static_cast<size_t>(kMaxTilePieceBytes) + 1, 'z'))
                      .SerializeAsString());
  EXPECT_THAT(ReadTilePiece(&buffer),
              CarriesFacts(Reason::kLimitExceeded, {{fact::kHave, kMaxTilePieceBytes + 1},
                                                    {fact::kLimit, kMaxTilePieceBytes}}));
}

TEST(TilePieceTest, IsReadAsItWasWritten) {
  for (const size_t size : {size_t{0}, size_t{1}, static_cast<size_t>(kMaxTilePieceBytes)}) {
    for (const int64_t offset : {int64_t{0}, int64_t{1}, std::numeric_limits<int64_t>::max()}) {
      for (const std::optional<uint32_t> tile_crc32c :
           {std::optional<uint32_t>(), std::optional<uint32_t>(0),
            std::optional<uint32_t>(0xffffffff)}) {
        const std::string data(size, 'x');
        grpc::ByteBuffer buffer = WriteTilePiece(
            {.offset_bytes = offset, .crc32c = Crc32c(data), .tile_crc32c = tile_crc32c},
            grpc::Slice(data));
        SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::optional<TilePiece> piece,
                                       ReadTilePiece(&buffer));
        ASSERT_TRUE(piece.has_value());
        EXPECT_EQ(piece->header.offset_bytes, offset);
        EXPECT_EQ(piece->header.crc32c, Crc32c(data));
        EXPECT_EQ(piece->header.tile_crc32c, tile_crc32c) << "0 is a checksum";
        EXPECT_EQ(piece->size_bytes(), static_cast<int64_t>(size));
        EXPECT_EQ(DataOf(*piece), data);
      }
    }
  }
}

TEST(TilePieceTest, IsWrittenAndReadWithoutACopyOfItsBytes) {
  const std::string data(1000, 'x');
  const grpc::Slice slice(data.data(), data.size(), grpc::Slice::STATIC_SLICE);
  grpc::ByteBuffer buffer = WriteTilePiece({.crc32c = Crc32c(data)}, slice);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::optional<TilePiece> piece, ReadTilePiece(&buffer));
  ASSERT_TRUE(piece.has_value());
  ASSERT_EQ(piece->data.size(), 1u);
  EXPECT_EQ(piece->data[0].data(), data.data());
}

TEST(TilePieceTest, AnEmptyMessageCarriesNoPiece) {
  grpc::ByteBuffer buffer = InOddSlices("");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::optional<TilePiece> piece, ReadTilePiece(&buffer));
  EXPECT_FALSE(piece.has_value());
}

TEST(TilePieceTest, TheLastOfRepeatedFieldsCounts) {
  v1::TilePiece first;
  first.set_offset_bytes(1);
  first.set_data("discarded");
  v1::TilePiece second;
  second.set_offset_bytes(2);
  second.set_crc32c(Crc32c(std::string_view("ab")));
  second.set_data("ab");
  const std::string body = first.SerializeAsString() + second.SerializeAsString();
  grpc::ByteBuffer buffer =
      InOddSlices(std::string("\x7a") + static_cast<char>(body.size()) + body);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::optional<TilePiece> piece, ReadTilePiece(&buffer));
  ASSERT_TRUE(piece.has_value());
  EXPECT_EQ(piece->header.offset_bytes, 2);
  EXPECT_EQ(DataOf(*piece), "ab");
}

TEST(TilePieceTest, AMismatchTellsBothChecksums) {
  v1::GetTilesResponse response = ResponseOf("");
  response.mutable_piece()->set_crc32c(0xab);
  grpc::ByteBuffer buffer = InOddSlices(response.SerializeAsString());
  const auto piece = ReadTilePiece(&buffer);
  EXPECT_THAT(piece, CarriesFacts(Reason::kChecksumMismatch,
                                  {{fact::kHave, "00000000"}, {fact::kNeed, "000000ab"}}));
  EXPECT_THAT(std::string(piece.status().message()), HasSubstr("offset 5"));
}

// The bodies of pieces, behind their tag and length. No fact: the message cannot be read at all.
TEST(TilePieceTest, NamesTheFieldOfAMalformedPiece) {
  v1::TilePiece negative;
  negative.set_offset_bytes(-1);
  const struct {
    const char* name;
    std::string body;
    const char* field;
  } cases[] = {
      {"a negative offset", negative.SerializeAsString(), "piece.offset_bytes"},
      {"an offset without a number", "\x08", "piece.offset_bytes"},
      {"an offset of eleven bytes", "\x08" + std::string(10, '\xff') + "\x01",
       "piece.offset_bytes"},
      {"half a checksum", "\x15\x01\x02", "piece.crc32c"},
      {"half a checksum of the tile", "\x1d\x01\x02\x03", "piece.tile_crc32c"},
      {"data without a length", "\x7a", "piece.data"},
      {"data longer than its piece", "\x7a\x05xy", "piece.data"},
      {"a tag of zero", std::string(1, '\0'), ""},
      {"the end of a group that did not begin", "\x0c", ""},
      {"an unknown field that is cut off", "\xa2\x06\x05hi", ""},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.name);
    // Another field follows the piece, whose bytes are not the piece's.
    const std::string message = std::string("\x7a") + static_cast<char>(each.body.size()) +
                                each.body + "\xa2\x06\x08" + "followup";
    grpc::ByteBuffer buffer = InOddSlices(message);
    const auto piece = ReadTilePiece(&buffer);
    EXPECT_THAT(piece, StatusIs(kInvalid, Reason::kBadField));
    EXPECT_THAT(piece, CarriesFacts(Reason::kBadField, {{fact::kField, each.field}}));
    EXPECT_THAT(std::string(piece.status().message()),
                StartsWith("malformed message of a tile stream: "));
  }
}

TEST(TilePieceTest, RefusesBytesBesideThePieceThatAreNoFields) {
  const std::string piece = ResponseOf("some bytes").SerializeAsString();
  for (const std::string& message :
       {piece + std::string(1, '\0'), std::string(1, '\0') + piece, piece + "\x0c", piece + "\x7a",
        piece + "\x7a\x05", std::string("\xff"), std::string("\x7a")}) {
    grpc::ByteBuffer buffer = InOddSlices(message);
    EXPECT_THAT(ReadTilePiece(&buffer), CarriesFacts(Reason::kBadField, {}));
  }
}

}  // namespace
}  // namespace shardmesh::rpc
