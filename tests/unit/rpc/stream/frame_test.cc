// Frames: what is written is read, and read as protobuf itself reads it; what is broken is refused.
#include "rpc/stream/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "google/protobuf/io/coded_stream.h"
#include "process/crc32c.h"
#include "shardmesh/internal/v1/exchange_service.pb.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::rpc {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;

std::string Join(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

std::string PayloadOf(const Frame& frame) {
  std::string bytes;
  for (const grpc::Slice& slice : frame.payload) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

// The bytes in slices of at most `piece` bytes, as a network may deliver them.
grpc::ByteBuffer Split(const std::string& bytes, size_t piece) {
  std::vector<grpc::Slice> slices;
  for (size_t i = 0; i < bytes.size(); i += piece) {
    slices.emplace_back(bytes.substr(i, piece));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

// `rest` behind its checksum.
std::string Seal(const std::string& rest) {
  std::string bytes(5, '\0');
  bytes[0] = '\x0d';
  google::protobuf::io::CodedOutputStream::WriteLittleEndian32ToArray(
      Crc32c(rest), reinterpret_cast<uint8_t*>(bytes.data() + 1));
  return bytes + rest;
}

FrameHeader DataHeader() {
  FrameHeader header;
  header.kind = FrameKind::kData;
  header.epoch = 7;
  header.term = 2;
  header.tag = {41, 3, 1};
  header.offset_bytes = 4;
  header.message_bytes = 4096;
  header.signature = "all-reduce of F32[1024]";
  return header;
}

std::vector<FrameHeader> AllHeaders() {
  FrameHeader hello;
  hello.kind = FrameKind::kHello;
  hello.hello = FrameHello{"worker-0", ~uint64_t{0}, "worker-1", 12, "c", 1 << 22, "boot"};
  hello.hello->accepts_plain_payloads = true;
  FrameHeader credit;
  credit.kind = FrameKind::kCredit;
  credit.tag = {1, 0, 0};
  credit.credit_bytes = int64_t{1} << 40;
  FrameHeader abort;
  abort.kind = FrameKind::kAbort;
  abort.abort =
      FrameAbort{WithReason(absl::UnavailableError("rank 1"), Reason::kWorkerLost), "worker-1"};
  FrameHeader ping;
  ping.kind = FrameKind::kPing;
  ping.ping = -5;
  return {hello, DataHeader(), credit, abort, ping};
}

std::string Write(const FrameHeader& header, std::string_view payload = {}) {
  const absl::Span<const char> piece(payload.data(), payload.size());
  const auto buffer = WriteFrame(header, {piece});
  EXPECT_TRUE(buffer.ok()) << buffer.status();
  return Join(*buffer);
}

TEST(FrameTest, EveryKindCrossesTheWire) {
  for (const FrameHeader& header : AllHeaders()) {
    for (const size_t piece : {1, 2, 7, 100'000}) {
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const Frame frame, ReadFrame(Split(Write(header), piece)));
      EXPECT_EQ(frame.header, header);
      EXPECT_TRUE(frame.payload.empty());
    }
  }
}

TEST(FrameTest, PayloadsOfManyPiecesCrossTheWireHoweverTheyAreDelivered) {
  const std::string a(1000, 'a');
  const std::string b(3, 'b');
  const std::vector<absl::Span<const char>> pieces = {a, {}, b};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto buffer, WriteFrame(DataHeader(), pieces));
  for (const size_t piece : {1, 13, 999, 5000}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const Frame frame, ReadFrame(Split(Join(buffer), piece)));
    EXPECT_EQ(PayloadOf(frame), a + b);
    EXPECT_EQ(frame.payload_bytes(), 1003);
  }
}

TEST(FrameTest, PayloadIsSentAndReceivedWithoutACopy) {
  const std::string payload(5000, 'p');
  FrameHeader header = DataHeader();
  header.message_bytes = 10'000;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto buffer,
                                 WriteFrame(header, {absl::Span<const char>(payload)}));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Frame frame, ReadFrame(buffer));
  ASSERT_EQ(frame.payload.size(), 1u);
  EXPECT_EQ(static_cast<const void*>(frame.payload[0].begin()), payload.data());
}

TEST(FrameTest, OwnerIsReleasedWhenTheLastBufferGoes) {
  auto memory = std::make_shared<std::string>(100, 'm');
  const std::vector<absl::Span<const char>> pieces = {{memory->data(), 50},
                                                      {memory->data() + 50, 50}};
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto buffer, WriteFrame(DataHeader(), pieces, memory));
    EXPECT_EQ(memory.use_count(), 3);
    Frame kept;
    { SHARDMESH_ASSERT_OK_AND_ASSIGN(kept, ReadFrame(buffer)); }
    EXPECT_EQ(PayloadOf(kept), *memory);
  }
  EXPECT_EQ(memory.use_count(), 1);
}

TEST(FrameTest, WhatIsWrittenIsAProtobufMessage) {
  for (const FrameHeader& header : AllHeaders()) {
    const std::string payload = header.kind == FrameKind::kData ? "payload" : "";
    const std::string bytes = Write(header, payload);
    internal::v1::ExchangeResponse message;
    ASSERT_TRUE(message.ParseFromString(bytes));
    EXPECT_EQ(message.crc32c(), Crc32c(absl::Span<const char>(bytes).subspan(5)));
    EXPECT_EQ(message.payload(), payload);
    EXPECT_EQ(message.epoch(), header.epoch);
    EXPECT_EQ(message.tag().sequence(), header.tag.sequence);
    EXPECT_EQ(message.ping(), header.ping);
  }
}

TEST(FrameTest, EveryFlippedBitOfASmallFrameIsDetected) {
  for (const FrameHeader& header : AllHeaders()) {
    const std::string bytes = Write(header, header.kind == FrameKind::kData ? "payload" : "");
    ASSERT_THAT(ReadFrame(Split(bytes, 9)), IsOk());
    for (size_t i = 0; i < bytes.size(); ++i) {
      for (int flip = 1; flip < 256; ++flip) {
        std::string broken = bytes;
        broken[i] = static_cast<char>(broken[i] ^ flip);
        ASSERT_THAT(ReadFrame(Split(broken, 9)),
                    StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch))
            << "byte " << i << " flipped by " << flip;
      }
    }
  }
}

TEST(FrameTest, AChecksumWithoutThePayloadCoversAllElse) {
  const std::string payload = "payload";
  const absl::Span<const char> piece(payload);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const auto buffer, WriteFrame(DataHeader(), {piece}, nullptr, PayloadChecksum::kNone));
  const std::string bytes = Join(buffer);
  internal::v1::ExchangeRequest message;
  ASSERT_TRUE(message.ParseFromString(bytes));
  EXPECT_EQ(message.crc32c(), 0u);
  EXPECT_NE(message.header_crc32c(), 0u);
  // A stream that needs checksums of payloads does not take the frame.
  EXPECT_THAT(ReadFrame(Split(bytes, 9)),
              StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch));
  const size_t payload_begin = bytes.find(payload);
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (const size_t slice : {size_t{1}, size_t{4}, bytes.size()}) {
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const Frame frame,
                                     ReadFrame(Split(bytes, slice), PayloadChecksum::kNone));
      EXPECT_EQ(frame.header, DataHeader());
      EXPECT_EQ(PayloadOf(frame), payload);
      std::string broken = bytes;
      broken[i] = static_cast<char>(broken[i] ^ 0x15);
      EXPECT_EQ(ReadFrame(Split(broken, slice), PayloadChecksum::kNone).ok(), i >= payload_begin)
          << "byte " << i;
    }
  }
}

TEST(FrameTest, DataWithoutAPayloadCrossTheWireUnderAChecksumOfTheHeader) {
  FrameHeader empty_message = DataHeader();
  empty_message.offset_bytes = 0;
  empty_message.message_bytes = 0;
  for (const FrameHeader& header : {empty_message, DataHeader()}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto buffer,
                                   WriteFrame(header, {}, nullptr, PayloadChecksum::kNone));
    const std::string bytes = Join(buffer);
    for (const size_t slice : {size_t{1}, size_t{4}, bytes.size()}) {
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const Frame frame,
                                     ReadFrame(Split(bytes, slice), PayloadChecksum::kNone));
      EXPECT_EQ(frame.header, header);
      EXPECT_TRUE(frame.payload.empty());
    }
    for (size_t i = 0; i < bytes.size(); ++i) {
      for (int flip = 1; flip < 256; ++flip) {
        std::string broken = bytes;
        broken[i] = static_cast<char>(broken[i] ^ flip);
        EXPECT_FALSE(ReadFrame(Split(broken, 9), PayloadChecksum::kNone).ok())
            << "byte " << i << " flipped by " << flip;
      }
    }
  }
}

TEST(FrameTest, OnlyPayloadsGoWithoutAChecksum) {
  for (const FrameHeader& header : AllHeaders()) {
    if (header.kind == FrameKind::kData) continue;
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto buffer,
                                   WriteFrame(header, {}, nullptr, PayloadChecksum::kNone));
    EXPECT_EQ(Join(buffer), Write(header, ""));
  }
}

TEST(FrameTest, EveryCutFrameIsDetected) {
  const std::string bytes = Write(DataHeader(), "payload");
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(ReadFrame(Split(bytes.substr(0, size), 9)).ok()) << size;
  }
}

TEST(FrameTest, FieldsInAnyOrderAndUnknownOnesAreUnderstood) {
  internal::v1::ExchangeRequest header;
  header.set_kind(internal::v1::FRAME_KIND_DATA);
  header.set_message_bytes(100);
  internal::v1::ExchangeRequest payload;
  payload.set_payload("0123");
  internal::v1::ExchangeRequest first_payload;
  first_payload.set_payload("dropped");
  const std::string unknown = "\xa2\x06\x03xyz";  // field 100, three bytes
  const std::string bytes =
      Seal(first_payload.SerializeAsString() + unknown + payload.SerializeAsString() +
           header.SerializeAsString() + unknown);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Frame frame, ReadFrame(Split(bytes, 3)));
  EXPECT_EQ(PayloadOf(frame), "0123");
  EXPECT_EQ(frame.header.message_bytes, 100);
}

TEST(FrameTest, ReadsWhatProtobufReadsAndNothingElse) {
  // Random rearrangements of real fields with damage, resealed so that only the form is judged.
  std::mt19937 random(1);
  const std::string base = Write(DataHeader(), "payload").substr(5);
  int read = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string rest = base;
    for (int edits = static_cast<int>(random() % 3); edits >= 0; --edits) {
      rest[random() % rest.size()] = static_cast<char>(random());
    }
    const std::string bytes = Seal(rest);
    internal::v1::ExchangeRequest expected;
    const bool parses = expected.ParseFromString(bytes);
    const auto frame = ReadFrame(Split(bytes, 1 + random() % 40));
    if (!frame.ok()) {
      EXPECT_EQ(frame.status().code(), absl::StatusCode::kInvalidArgument);
      continue;
    }
    ++read;
    ASSERT_TRUE(parses);
    EXPECT_EQ(frame->header.epoch, expected.epoch());
    EXPECT_EQ(frame->header.term, expected.term());
    EXPECT_EQ(frame->header.tag.op, expected.tag().op());
    EXPECT_EQ(frame->header.offset_bytes, expected.offset_bytes());
    EXPECT_EQ(PayloadOf(*frame), expected.payload());
  }
  EXPECT_GT(read, 1000);
}

TEST(FrameTest, RefusesWhatNoSenderMaySend) {
  const auto refused = [](const internal::v1::ExchangeRequest& message) {
    return ReadFrame(Split(Seal(message.SerializeAsString()), 100)).status();
  };
  // `field`: the one that the error names.
  const auto expect_bad = [](const absl::Status& status, std::string_view field) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField)) << field;
    EXPECT_EQ(FactOf(status, fact::kField).value_or(""), field) << status;
  };
  internal::v1::ExchangeRequest message;
  expect_bad(refused(message), "kind");  // no kind
  message.set_kind(static_cast<internal::v1::FrameKind>(77));
  expect_bad(refused(message), "kind");
  message.set_kind(internal::v1::FRAME_KIND_HELLO);
  expect_bad(refused(message), "hello");
  message.set_kind(internal::v1::FRAME_KIND_ABORT);
  expect_bad(refused(message), "abort");
  message.set_kind(internal::v1::FRAME_KIND_DATA);
  message.set_payload("xy");
  message.set_message_bytes(1);
  expect_bad(refused(message), "offset_bytes");
  message.set_message_bytes(100);
  message.set_offset_bytes(-1);
  expect_bad(refused(message), "");
  message.set_offset_bytes(0);
  message.set_signature(std::string(static_cast<size_t>(kMaxSignatureBytes) + 1, 'x'));
  expect_bad(refused(message), "signature");
  message.clear_signature();
  message.set_kind(internal::v1::FRAME_KIND_PING);
  expect_bad(refused(message), "payload");  // a payload in a ping
  message.clear_payload();
  message.set_crc32c(1);
  expect_bad(refused(message), "crc32c");  // a second checksum
}

TEST(FrameTest, RefusesAPayloadWhoseLengthOnlyLooksShortInItsLow32Bits) {
  internal::v1::ExchangeRequest message;
  message.set_kind(internal::v1::FRAME_KIND_DATA);
  message.set_message_bytes(9);
  const std::string claim = "\x7a\x82\x80\x80\x80\x80\x80\x80\x80\x80\x01";  // 2^63 + 2
  EXPECT_THAT(ReadFrame(Split(Seal(message.SerializeAsString() + claim + "ab"), 100)).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
}

TEST(FrameTest, TheLargestPayloadPassesAndOneMoreByteDoesNot) {
  const std::string payload(static_cast<size_t>(kMaxFramePayloadBytes) + 1, 'x');
  FrameHeader header = DataHeader();
  header.message_bytes = 4 * kMaxFramePayloadBytes;
  const absl::Span<const char> all(payload);
  const auto limit = StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded);
  EXPECT_THAT(WriteFrame(header, {all}).status(), limit);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto buffer,
                                 WriteFrame(header, {all.subspan(0, all.size() - 1)}));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Frame frame, ReadFrame(buffer));
  EXPECT_EQ(frame.payload_bytes(), kMaxFramePayloadBytes);
  internal::v1::ExchangeRequest message;
  message.set_kind(internal::v1::FRAME_KIND_DATA);
  message.set_message_bytes(header.message_bytes);
  message.set_payload(payload);
  EXPECT_THAT(ReadFrame(Split(Seal(message.SerializeAsString()), 70'000)).status(), limit);
  message.set_payload(std::string(static_cast<size_t>(kMaxFrameBytes), 'x'));
  EXPECT_THAT(ReadFrame(Split(Seal(message.SerializeAsString()), 70'000)).status(), limit);
}

}  // namespace
}  // namespace shardmesh::rpc
