// Messages from bytes, and what is said of bytes that are none.
#include "rpc/stream/message_bytes.h"

#include <gmock/gmock.h>
#include <grpcpp/support/slice.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "rpc/codec/status.h"
#include "rpc/library_logs.h"
#include "shardmesh/v1/layout_service.pb.h"
#include "status/reason.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::rpc {
namespace {

using test::IsOk;
using test::StatusIs;
using ::testing::HasSubstr;

// In slices of at most `slice_bytes`, as a network may deliver them.
grpc::ByteBuffer BufferOf(std::string_view bytes, size_t slice_bytes) {
  std::vector<grpc::Slice> slices;
  for (; !bytes.empty(); bytes.remove_prefix(slices.back().size())) {
    const std::string_view piece = bytes.substr(0, slice_bytes);
    slices.emplace_back(piece.data(), piece.size());
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

v1::ResolveTreeRequest Tree() {
  v1::ResolveTreeRequest tree;
  tree.mutable_tensors()->set_names("wqwk");
  tree.mutable_tensors()->add_name_sizes(2);
  tree.mutable_tensors()->add_spec_table()->add_dimensions()->set_name("tp");
  tree.mutable_tensors()->add_spec_table()->add_dimensions()->set_name("fsdp");
  return tree;
}

// `from` serialised, with one text of it replaced by another of as many bytes.
std::string With(const google::protobuf::Message& from, std::string_view text,
                 std::string_view other) {
  std::string bytes = from.SerializeAsString();
  const size_t at = bytes.find(text);
  EXPECT_NE(at, std::string::npos);
  return bytes.replace(at, text.size(), other);
}

TEST(MessageBytesTest, ParsesWhatItSerialisesHoweverItIsCut) {
  const v1::ResolveTreeRequest tree = Tree();
  grpc::ByteBuffer whole = SerializeMessage(tree);
  v1::ResolveTreeRequest parsed;
  EXPECT_THAT(ParseMessage(&whole, &parsed), IsOk());
  EXPECT_EQ(parsed.SerializeAsString(), tree.SerializeAsString());
  for (const size_t slice_bytes : {1, 2, 3, 7, 1000}) {
    grpc::ByteBuffer bytes = BufferOf(tree.SerializeAsString(), slice_bytes);
    EXPECT_THAT(ParseMessage(&bytes, &parsed), IsOk());
    EXPECT_EQ(parsed.SerializeAsString(), tree.SerializeAsString());
  }
  grpc::ByteBuffer nothing = BufferOf("", 1);
  EXPECT_THAT(ParseMessage(&nothing, &parsed), IsOk());
  EXPECT_EQ(parsed.ByteSizeLong(), 0);
}

TEST(MessageBytesTest, NamesTheFieldAtFault) {
  const std::string tree = Tree().SerializeAsString();
  struct Case {
    std::string what;
    std::string bytes;
    std::string field;
    std::string message;
  };
  const Case kCases[] = {
      {"no tag", "\xff\xff\xff", "message", "is no valid shardmesh.v1.ResolveTreeRequest"},
      {"field zero", std::string(1, '\0'), "message", "its bytes do not parse"},
      {"names", With(Tree(), "wqwk", "wq\xc3k"), "tensors.names",
       "is not UTF-8 from its byte 2 on: \"\\xc3k\""},
      {"an axis", With(Tree(), "fsdp", "fs\xff\xff"), "tensors.spec_table[1].dimensions[0].name",
       "is not UTF-8 from its byte 2 on"},
      {"cut off", tree.substr(0, tree.size() - 1), "tensors", "longer than the message"},
      {"an inner length", With(Tree(), "\x04wqwk", "\x7fwqwk"), "tensors.names",
       "longer than the message"},
  };
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.what);
    v1::ResolveTreeRequest parsed;
    grpc::ByteBuffer bytes = BufferOf(c.bytes, 3);
    const absl::Status status = ParseMessage(&bytes, &parsed);
    ASSERT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
    ASSERT_EQ(FieldViolationsOf(status).size(), 1);
    EXPECT_EQ(FieldViolationsOf(status)[0].field, c.field);
  }
}

TEST(MessageBytesTest, AgreesWithProtobufOnMutatedBytes) {
  TakeLibraryLogs();  // protobuf has a line for each text that is not UTF-8
  std::mt19937 random(20260117);
  const std::string good = Tree().SerializeAsString();
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = good;
    for (int n = static_cast<int>(random() % 3); n >= 0; --n) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    bytes.resize(bytes.size() - random() % 3);
    v1::ResolveTreeRequest expected;
    const bool parses = expected.ParseFromString(bytes);
    v1::ResolveTreeRequest parsed;
    grpc::ByteBuffer buffer = BufferOf(bytes, 1 + random() % 9);
    const absl::Status status = ParseMessage(&buffer, &parsed);
    ASSERT_EQ(status.ok(), parses) << testing::PrintToString(bytes);
    if (!parses) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
      EXPECT_FALSE(FieldViolationsOf(status).empty());
    }
  }
}

}  // namespace
}  // namespace shardmesh::rpc
