// The answer to BeginPut: assignments and the tokens beside them.
#include "server/codec/put_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rpc/codec/source_codec.h"
#include "rpc/codec/status.h"
#include "rpc/transfer_token.h"
#include "status/reason.h"
#include "tests/testing/row_array.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::testing::IsEmpty;

const absl::Time kExpire = absl::FromUnixSeconds(1'800'000'000);
const std::string kKey(rpc::kTokenKeyBytes, 'k');

BegunPutPtr PutOfOne(const std::string& transfer_id) {
  auto put = std::make_shared<BegunPut>();
  put->transfer_id = transfer_id;
  put->session_id = "s";
  put->expire_time = kExpire;
  put->corrections.resize(1);
  put->items.emplace_back().definition.descriptor = test::RowArray("a");
  return put;
}

TEST(PutAnswerTest, ATokenCarriesTheBytesOfItsAssignmentsDescriptor) {
  const BegunPutPtr put = PutOfOne("t");
  PutAnswer answer(7, kKey, put);
  const v1::BeginPutResponse message = answer.Next();
  EXPECT_TRUE(answer.is_at_end());
  ASSERT_EQ(message.assignments_size(), 1);
  const v1::PutAssignment& assignment = message.assignments(0);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const rpc::VerifiedToken token,
      rpc::VerifyToken(assignment.token(), kKey, rpc::TransferDirection::kPut,
                       kExpire - absl::Seconds(1)));
  EXPECT_EQ(token.claims.array_descriptor, assignment.array_descriptor().SerializeAsString());
  EXPECT_EQ(token.array, put->items[0].definition.descriptor);
  EXPECT_EQ(token.claims.transfer_id, "t");
  EXPECT_EQ(token.claims.session_id, "s");
  EXPECT_EQ(token.claims.term, 7);
}

TEST(PutHeaderTest, TakesTheNameOfACheckpointUpToItsLimit) {
  v1::BeginPutHeader header;
  header.set_request_id(std::string(32, 'a'));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PutHeader plain, Decode(header));
  EXPECT_THAT(plain.checkpoint, IsEmpty());
  header.set_checkpoint(std::string(1'024, 'c'));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PutHeader load, Decode(header));
  EXPECT_EQ(load.checkpoint, header.checkpoint());
  header.set_checkpoint(std::string(1'025, 'c'));
  const absl::Status refused = Decode(header).status();
  EXPECT_THAT(refused, test::StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  ASSERT_EQ(rpc::FieldViolationsOf(refused).size(), 1u);
  EXPECT_EQ(rpc::FieldViolationsOf(refused).front().field, "header.checkpoint");
}

TEST(PutAnswerTest, APutThatIsOnlyValidatedGetsNoToken) {
  PutAnswer answer(7, kKey, PutOfOne(""));
  const v1::BeginPutResponse message = answer.Next();
  ASSERT_EQ(message.assignments_size(), 1);
  EXPECT_EQ(message.assignments(0).array_descriptor().array_id(), "a");
  EXPECT_THAT(message.assignments(0).token(), IsEmpty());
}

TEST(PutAnswerTest, ATensorThatTheWorkersReadGetsNoToken) {
  auto put = std::make_shared<BegunPut>(*PutOfOne("t"));
  put->items[0].definition.source.file = std::make_shared<const SourceFile>();
  const v1::BeginPutResponse message = PutAnswer(7, kKey, put).Next();
  ASSERT_EQ(message.assignments_size(), 1);
  EXPECT_EQ(message.transfer_id(), "t");
  EXPECT_THAT(message.assignments(0).token(), IsEmpty());
}

v1::BeginPutHeader HeaderWithFile() {
  v1::BeginPutHeader header;
  header.set_request_id("r");
  v1::SourceFile& file = *header.add_files();
  file.set_path("/srv/model.safetensors");
  file.set_size_bytes(1'000);
  file.mutable_modify_time()->set_seconds(1'700'000'000);
  file.mutable_modify_time()->set_nanos(123'456'789);
  file.set_head_sha256(std::string(32, 'h'));
  file.set_head_bytes(80);
  return header;
}

TEST(PutHeaderTest, TakesTheFilesOfThePut) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PutHeader header, Decode(HeaderWithFile()));
  ASSERT_EQ(header.files.size(), 1u);
  const SourceFile expected = {
      .path = "/srv/model.safetensors",
      .size_bytes = 1'000,
      .modify_time = absl::FromUnixSeconds(1'700'000'000) + absl::Nanoseconds(123'456'789),
      .head_sha256 = std::string(32, 'h'),
      .head_bytes = 80};
  EXPECT_EQ(*header.files[0], expected);
  v1::SourceFile encoded;
  rpc::Encode(*header.files[0], &encoded);
  EXPECT_EQ(encoded.SerializeAsString(), HeaderWithFile().files(0).SerializeAsString());
}

TEST(PutHeaderTest, RefusesMalformedFilesAndNamesTheField) {
  using Change = std::function<void(v1::SourceFile*)>;
  struct Case {
    std::string field;
    Reason reason;
    Change change;
  };
  const std::vector<Case> cases = {
      {"path", Reason::kBadField, [](v1::SourceFile* f) { f->clear_path(); }},
      {"path", Reason::kBadField, [](v1::SourceFile* f) { f->set_path("model.safetensors"); }},
      {"path", Reason::kBadField, [](v1::SourceFile* f) { f->set_path("../etc/passwd"); }},
      {"path", Reason::kBadField, [](v1::SourceFile* f) { f->set_path(std::string("/a\0b", 4)); }},
      {"path", Reason::kLimitExceeded,
       [](v1::SourceFile* f) { f->set_path("/" + std::string(4'096, 'x')); }},
      {"size_bytes", Reason::kBadField, [](v1::SourceFile* f) { f->set_size_bytes(-1); }},
      {"modify_time", Reason::kBadField, [](v1::SourceFile* f) { f->clear_modify_time(); }},
      {"modify_time.nanos", Reason::kBadField,
       [](v1::SourceFile* f) { f->mutable_modify_time()->set_nanos(-1); }},
      {"head_sha256", Reason::kBadField, [](v1::SourceFile* f) { f->clear_head_sha256(); }},
      {"head_sha256", Reason::kBadField,
       [](v1::SourceFile* f) { f->set_head_sha256(std::string(33, 'h')); }},
      {"head_bytes", Reason::kBadField, [](v1::SourceFile* f) { f->set_head_bytes(-1); }},
      {"head_bytes", Reason::kBadField, [](v1::SourceFile* f) { f->set_head_bytes(1'001); }},
      {"head_bytes", Reason::kLimitExceeded,
       [](v1::SourceFile* f) {
         f->set_size_bytes(int64_t{1} << 40);
         f->set_head_bytes(104'857'601);
       }},
  };
  for (const Case& each : cases) {
    v1::BeginPutHeader header = HeaderWithFile();
    *header.add_files() = header.files(0);
    each.change(header.mutable_files(1));
    const absl::Status refused = Decode(header).status();
    EXPECT_THAT(refused, test::StatusIs(absl::StatusCode::kInvalidArgument, each.reason));
    const auto violations = rpc::FieldViolationsOf(refused);
    ASSERT_EQ(violations.size(), 1u) << refused;
    EXPECT_EQ(violations[0].field, "header.files[1]." + each.field) << refused;
  }
  // The bounds themselves are allowed.
  v1::BeginPutHeader header = HeaderWithFile();
  header.mutable_files(0)->set_path("/" + std::string(4'095, 'x'));
  header.mutable_files(0)->set_size_bytes(int64_t{1} << 40);
  header.mutable_files(0)->set_head_bytes(104'857'600);
  EXPECT_THAT(Decode(header), test::IsOk());
}

TEST(PutHeaderTest, RefusesMoreThanTenThousandFiles) {
  v1::BeginPutHeader header = HeaderWithFile();
  while (header.files_size() < 10'000) *header.add_files() = header.files(0);
  EXPECT_THAT(Decode(header), test::IsOk());
  *header.add_files() = header.files(0);
  const absl::Status refused = Decode(header).status();
  EXPECT_THAT(refused, test::StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded));
  EXPECT_EQ(rpc::FieldViolationsOf(refused).front().field, "header.files");
}

TEST(PutTensorTest, TakesTheSourceAndRefusesANegativeOffset) {
  v1::PutTensor tensor;
  tensor.set_dtype(v1::DTYPE_F32);
  EXPECT_FALSE(Decode(tensor)->source.has_value());
  tensor.mutable_source()->set_file(0xffffffff);
  tensor.mutable_source()->set_offset_bytes(8);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PutTensor decoded, Decode(tensor));
  EXPECT_EQ(decoded.source, (FileRange{.file = 0xffffffff, .offset_bytes = 8}));
  tensor.mutable_source()->set_offset_bytes(-1);
  const absl::Status refused = Decode(tensor).status();
  EXPECT_THAT(refused, test::StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_EQ(rpc::FieldViolationsOf(refused).front().field, "source.offset_bytes");
}

TEST(PutTensorTest, TakesASourceWithItsConversionAndRefusesMalformedOnes) {
  v1::PutTensor tensor;
  tensor.set_dtype(v1::DTYPE_F32);
  v1::ConvertedRange& source = *tensor.mutable_converted_source();
  source.mutable_range()->set_file(2);
  source.mutable_range()->set_offset_bytes(8);
  source.mutable_conversion()->set_dtype(v1::DTYPE_BF16);
  source.mutable_conversion()->add_permutation(1);
  source.mutable_conversion()->add_permutation(0);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PutTensor decoded, Decode(tensor));
  const FileRange expected{
      .file = 2,
      .offset_bytes = 8,
      .conversion = SourceConversion{.dtype = Dtype::kBF16, .permutation = {1, 0}}};
  EXPECT_EQ(decoded.source, expected);
  v1::ConvertedRange encoded;
  rpc::Encode(expected, &encoded);
  EXPECT_EQ(encoded.SerializeAsString(), source.SerializeAsString());
  const auto field_of = [](const v1::PutTensor& refused) {
    const absl::Status status = Decode(refused).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return rpc::FieldViolationsOf(status).front().field;
  };
  v1::PutTensor both = tensor;
  both.mutable_source()->set_file(2);
  EXPECT_EQ(field_of(both), "converted_source");
  v1::PutTensor negative = tensor;
  negative.mutable_converted_source()->mutable_range()->set_offset_bytes(-1);
  EXPECT_EQ(field_of(negative), "converted_source.range.offset_bytes");
  v1::PutTensor untyped = tensor;
  untyped.mutable_converted_source()->clear_conversion();
  EXPECT_EQ(field_of(untyped), "converted_source.conversion.dtype");
  for (int i = 0; i < 15; ++i) source.mutable_conversion()->add_permutation(0);
  EXPECT_EQ(field_of(tensor), "converted_source.conversion.permutation");
}

TEST(PutTensorTest, TakesTheOriginAndRefusesOneOutOfItsBounds) {
  v1::PutTensor tensor;
  tensor.set_dtype(v1::DTYPE_F32);
  EXPECT_FALSE(Decode(tensor)->origin.has_value());
  v1::TensorOrigin& origin = *tensor.mutable_origin();
  origin.set_file(3);
  origin.set_offset_bytes(8);
  origin.set_conversion(std::string(1'024, 'c'));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PutTensor decoded, Decode(tensor));
  EXPECT_EQ(decoded.origin, (FileRange{.file = 3, .offset_bytes = 8}));
  EXPECT_EQ(decoded.conversion, origin.conversion());
  EXPECT_FALSE(decoded.source.has_value());
  origin.set_offset_bytes(-1);
  absl::Status refused = Decode(tensor).status();
  EXPECT_THAT(refused, test::StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_EQ(rpc::FieldViolationsOf(refused).front().field, "origin.offset_bytes");
  origin.set_offset_bytes(8);
  origin.set_conversion(std::string(1'025, 'c'));
  refused = Decode(tensor).status();
  EXPECT_THAT(refused, test::StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded));
  EXPECT_EQ(rpc::FieldViolationsOf(refused).front().field, "origin.conversion");
}

TEST(PutTensorTest, TakesAClaimAboutItsContentAndRefusesAMalformedOne) {
  v1::PutTensor tensor;
  tensor.set_dtype(v1::DTYPE_F32);
  EXPECT_FALSE(Decode(tensor)->content.has_value());
  v1::TensorContent& content = *tensor.mutable_content();
  content.set_array_id("a1");
  content.add_tile_sha256(std::string(32, 'x'));
  content.add_tile_sha256(std::string(32, 'y'));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PutTensor decoded, Decode(tensor));
  EXPECT_EQ(decoded.content->array_id, "a1");
  EXPECT_EQ(decoded.content->tile_sha256,
            (std::vector<std::string>{std::string(32, 'x'), std::string(32, 'y')}));
  EXPECT_THAT(decoded.content->equal_tiles, IsEmpty());
  content.set_tile_sha256(1, std::string(31, 'y'));
  absl::Status refused = Decode(tensor).status();
  EXPECT_THAT(refused, test::StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_EQ(rpc::FieldViolationsOf(refused).front().field, "content.tile_sha256[1]");
  content.set_array_id("");
  refused = Decode(tensor).status();
  EXPECT_EQ(rpc::FieldViolationsOf(refused).front().field, "content.array_id");
}

TEST(PutTensorTest, TakesAClaimAboutSomeTilesAndRefusesAMalformedOne) {
  v1::PutTensor tensor;
  tensor.set_dtype(v1::DTYPE_F32);
  v1::TensorContent& content = *tensor.mutable_content();
  content.set_array_id("a1");
  content.add_tile_sha256(std::string(32, 'x'));
  content.add_tile_sha256(std::string(32, 'y'));
  const auto decode = [&](std::vector<int32_t> tiles) {
    content.clear_equal_tiles();
    content.mutable_equal_tiles()->Add(tiles.begin(), tiles.end());
    return Decode(tensor);
  };
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PutTensor decoded, decode({0, 3}));
  EXPECT_EQ(decoded.content->equal_tiles, (std::vector<int64_t>{0, 3}));
  const std::pair<std::vector<int32_t>, std::string> refused[] = {
      {{0}, "content.equal_tiles"},
      {{0, 1, 2}, "content.equal_tiles"},
      {{-1, 2}, "content.equal_tiles[0]"},
      {{2, 2}, "content.equal_tiles[1]"},
      {{std::numeric_limits<int32_t>::max(), 0}, "content.equal_tiles[1]"}};
  for (const auto& [tiles, field] : refused) {
    const absl::Status status = decode(tiles).status();
    EXPECT_THAT(status, test::StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
    EXPECT_EQ(rpc::FieldViolationsOf(status).front().field, field);
  }
}

TEST(PutHeaderTest, TakesTheChangeTimeOfAFileIfItIsThere) {
  v1::BeginPutHeader header = HeaderWithFile();
  EXPECT_EQ(Decode(header)->files[0]->change_time, absl::InfinitePast());
  EXPECT_FALSE(Decode(header)->reuse);
  header.mutable_files(0)->mutable_change_time()->set_seconds(17);
  header.mutable_files(0)->set_inode(18);
  header.set_reuse(true);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PutHeader decoded, Decode(header));
  EXPECT_TRUE(decoded.reuse);
  EXPECT_EQ(decoded.files[0]->change_time, absl::FromUnixSeconds(17));
  EXPECT_EQ(decoded.files[0]->inode, 18u);
  v1::SourceFile again;
  rpc::Encode(*decoded.files[0], &again);
  EXPECT_EQ(again.SerializeAsString(), header.files(0).SerializeAsString());
  header.mutable_files(0)->mutable_change_time()->set_nanos(-1);
  EXPECT_EQ(rpc::FieldViolationsOf(Decode(header).status()).front().field,
            "header.files[0].change_time.nanos");
}

}  // namespace
}  // namespace shardmesh::server
