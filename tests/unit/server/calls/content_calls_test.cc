// FindContent, without gRPC: tensors with known origins, candidates, pages and limits.
#include "server/calls/content_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/steps/ready_cluster.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAreArray;

class ContentCallsTest : public ReadyCluster {
 protected:
  ~ContentCallsTest() override { sequencer_.reset(); }

  static v1::ContentTensor& AddTensor(int64_t size, v1::FindContentRequest* request) {
    v1::ContentTensor& tensor = *request->add_tensors();
    tensor.set_dtype(v1::DTYPE_F32);
    tensor.add_shape(size);
    return tensor;
  }
  v1::FindContentResponse Find(const v1::FindContentRequest& request) {
    v1::FindContentResponse response;
    EXPECT_THAT(FindContent(
                    *registry_, request, [] { return false; }, &response),
                IsOk());
    return response;
  }
  absl::Status Refused(const v1::FindContentRequest& request) {
    v1::FindContentResponse response;
    return FindContent(
        *registry_, request, [] { return false; }, &response);
  }
  static std::vector<std::string> IdsOf(const v1::FindContentResponse& response) {
    std::vector<std::string> ids;
    for (const v1::ContentCandidate& each : response.candidates()) {
      ids.push_back(each.array_descriptor().array_id());
    }
    return ids;
  }
};

TEST_F(ContentCallsTest, ListsAvailableArraysOfEachTypeAndShapeOnceWithTheChecksumsOfTheirTiles) {
  const std::string id = AddArray(Descriptor(), "w");
  ArrayDescriptor longer = Descriptor();
  longer.shape = {16};
  AddArray(longer, "longer");
  ArrayDescriptor partial = Descriptor();
  partial.spec = PartitionSpec({}, {"x"});
  AddArray(partial, "partial");
  ArrayDescriptor replicated = Descriptor();  // its replicas have the checksums 1 and 2
  replicated.spec = PartitionSpec();
  AddArray(replicated, "replicated");
  v1::FindContentRequest request;
  AddTensor(8, &request);
  AddTensor(8, &request);
  AddTensor(9, &request);
  const v1::FindContentResponse response = Find(request);
  EXPECT_THAT(response.found_by_origin(), IsEmpty());
  ASSERT_THAT(IdsOf(response), ElementsAre(id));
  EXPECT_THAT(response.candidates(0).tile_crc32c(), ElementsAre(1u, 2u));
  EXPECT_EQ(response.candidates(0).array_descriptor().mesh_id(), "m");
  EXPECT_TRUE(response.candidates(0).has_name());
  EXPECT_EQ(response.next_page_token(), "");
  registry_->TileDamaged(id, 1);
  EXPECT_THAT(IdsOf(Find(request)), IsEmpty()) << "it is degraded";
}

TEST_F(ContentCallsTest, ATensorWhoseOriginIsKnownNeedsNoCandidate) {
  auto file = std::make_shared<SourceFile>(SourceFile{.path = "/model",
                                                      .size_bytes = 1'024,
                                                      .modify_time = absl::FromUnixSeconds(5),
                                                      .head_sha256 = std::string(32, 'h'),
                                                      .head_bytes = 8,
                                                      .change_time = absl::FromUnixSeconds(6),
                                                      .inode = 17});
  const ArrayDescriptor array = Descriptor();
  ASSERT_THAT(registry_->Stage({.descriptor = array, .sent_from = {file, 64, "1 BF16"}}), IsOk());
  CommitRequest commit;
  commit.arrays.push_back({.array_id = array.array_id, .tile_crc32c = {1, 2}});
  commit.moves.push_back({.name = "w", .array_id = array.array_id, .expected_version = {}});
  absl::Notification done;
  registry_->Commit(std::move(commit), [&done](const auto&) { done.Notify(); });
  done.WaitForNotification();

  v1::FindContentRequest request;
  v1::SourceFile& wire = *request.add_files();
  wire.set_path("/model");
  wire.set_size_bytes(1'024);
  wire.mutable_modify_time()->set_seconds(5);
  wire.set_head_sha256(std::string(32, 'h'));
  wire.set_head_bytes(8);
  wire.mutable_change_time()->set_seconds(6);
  wire.set_inode(17);
  AddTensor(9, &request);
  v1::ContentTensor& known = AddTensor(8, &request);
  known.mutable_origin()->set_offset_bytes(64);
  known.mutable_origin()->set_conversion("1 BF16");
  v1::FindContentResponse response = Find(request);
  EXPECT_THAT(response.found_by_origin(), ElementsAre(1u));
  EXPECT_THAT(IdsOf(response), IsEmpty());
  known.mutable_origin()->set_offset_bytes(65);
  response = Find(request);
  EXPECT_THAT(response.found_by_origin(), IsEmpty());
  EXPECT_THAT(IdsOf(response), ElementsAre(array.array_id));
  EXPECT_EQ(registry_->cache_totals().misses, 0);
}

TEST_F(ContentCallsTest, ManyCandidatesComeInPages) {
  std::vector<std::string> ids;
  ArrayDescriptor wide = Descriptor();
  std::string axes = "x=2";
  for (char axis = 'a'; axis < 'p'; ++axis) StrAppend(&axes, ",", std::string(250, axis), "=1");
  wide.mesh = *Mesh::Parse(axes);  // whose description has about 4 KiB
  for (int i = 0; i < 300; ++i) {
    wide.array_id = StrCat("a", i);
    wide.shape = {i < 290 ? 8 : 16};
    ids.push_back(AddArray(wide, StrCat("w", i)));
  }
  v1::FindContentRequest request;
  AddTensor(8, &request);
  AddTensor(16, &request);
  AddTensor(8, &request);
  std::vector<std::string> found;
  int pages = 0;
  do {
    const v1::FindContentResponse response = Find(request);
    EXPECT_LE(response.ByteSizeLong(), size_t{1'100} << 10);
    const std::vector<std::string> page = IdsOf(response);
    found.insert(found.end(), page.begin(), page.end());
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty() && ++pages < 100);
  EXPECT_GE(pages, 1) << "after the first";
  EXPECT_THAT(found, UnorderedElementsAreArray(ids));
}

TEST_F(ContentCallsTest, RefusesMalformedAndTooLargeRequests) {
  v1::FindContentRequest request;
  AddTensor(-1, &request);
  absl::Status refused = Refused(request);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(rpc::FieldViolationsOf(refused).front().field, "tensors[0].shape");
  request.clear_tensors();
  AddTensor(8, &request).mutable_origin()->set_file(0);
  refused = Refused(request);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_EQ(rpc::FieldViolationsOf(refused).front().field, "tensors[0].origin.file");
  request.clear_tensors();
  for (const std::string token : {"x", "1", "-1 a"}) {
    request.set_page_token(token);
    refused = Refused(request);
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField)) << token;
    EXPECT_EQ(rpc::FieldViolationsOf(refused).front().field, "page_token");
  }
  request.clear_page_token();
  for (int i = 0; i < kMaxContentTensors; ++i) AddTensor(8, &request);
  EXPECT_THAT(Refused(request), IsOk());
  AddTensor(8, &request);
  refused = Refused(request);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded));
  EXPECT_EQ(rpc::FieldViolationsOf(refused).front().field, "tensors");
  request.clear_tensors();
  for (int i = 0; i <= kMaxContentFiles; ++i) request.add_files();
  refused = Refused(request);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded));
  EXPECT_EQ(rpc::FieldViolationsOf(refused).front().field, "files");
}

TEST_F(ContentCallsTest, ACancelledCallEnds) {
  v1::FindContentRequest request;
  AddTensor(8, &request);
  v1::FindContentResponse response;
  EXPECT_THAT(FindContent(
                  *registry_, request, [] { return true; }, &response),
              StatusIs(absl::StatusCode::kCancelled));
}

}  // namespace
}  // namespace shardmesh::server
