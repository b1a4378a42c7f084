// Specs from presets, by default and as the original has them; and questions that come again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/resolve/resolve_answers.h"
#include "server/state/definitions.h"
#include "shardmesh/v1/catalog_service.grpc.pb.h"
#include "status/reason.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/resolve_service_fixture.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::HasSubstr;

class PresetTest : public ResolveServiceTest {
 protected:
  // A preset that goes by dimension 1, of size 1 here, and the mode "train", which it has no use
  // for.
  PresetTest() {
    request_.set_preset("HiddenStateSharding");
    request_.mutable_mode()->set_name("__train__");
    request_.mutable_mesh()->set_name("default");
    for (const int64_t size : {8, 1, 8}) {
      request_.mutable_shape()->add_sizes(size);
    }
    auto* fields = request_.mutable_profile()->mutable_value();
    fields->mutable_decode_batch_axis()->set_name("ep");
  }

  v1::ResolveSpecRequest request_;
  v1::ResolveSpecResponse response_;
};

TEST_F(PresetTest, RefusesAModeBesideIt) {
  const absl::Status status = Ask(&v1::ResolveService::Stub::ResolveSpec, request_, &response_);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_THAT(status.message(), HasSubstr("dimension 1"));
  EXPECT_EQ(FieldOf(status), "mode");
}

TEST_F(PresetTest, IgnoresAModeBesideItAsTheOriginalDoes) {
  request_.set_compatibility(v1::COMPATIBILITY_EXACT);
  ASSERT_THAT(Ask(&v1::ResolveService::Stub::ResolveSpec, request_, &response_), IsOk());
  EXPECT_EQ(response_.requested().dimensions(0).name(), "ep");
}

TEST_F(PresetTest, QuestionsOfABatchShareMeshAndProfileUnlessTheyNameTheirOwn) {
  request_.clear_mode();
  v1::BatchResolveSpecsRequest batch;
  *batch.mutable_mesh() = request_.mesh();
  *batch.mutable_profile() = request_.profile();
  request_.clear_mesh();
  request_.clear_profile();
  for (int i = 0; i < 4; ++i) *batch.add_requests() = request_;
  batch.mutable_requests(1)
      ->mutable_profile()
      ->mutable_value()
      ->mutable_decode_batch_axis()
      ->set_name("dp");
  batch.mutable_requests(2)->mutable_mesh()->set_name("none");
  batch.mutable_requests(3)->set_compatibility(v1::COMPATIBILITY_EXACT);
  v1::BatchResolveSpecsResponse answers;
  ASSERT_THAT(Ask(&v1::ResolveService::Stub::BatchResolveSpecs, batch, &answers), IsOk());
  ASSERT_EQ(answers.results_size(), 4);
  for (const int i : {0, 1, 3}) {
    ASSERT_EQ(answers.results(i).response().requested().dimensions_size(), 3)
        << answers.results(i).ShortDebugString();
  }
  EXPECT_EQ(answers.results(0).response().requested().dimensions(0).name(), "ep");
  EXPECT_EQ(answers.results(1).response().requested().dimensions(0).name(), "dp");
  EXPECT_TRUE(answers.results(2).has_error()) << answers.results(2).ShortDebugString();
  EXPECT_EQ(answers.results(3).response().requested().dimensions(0).name(), "ep");
}

TEST(SharedSelectionsTest, DecodesMeshAndProfileOnce) {
  const Definitions state;
  v1::MeshSelector mesh;
  mesh.mutable_value()->add_axes()->set_name("x");
  mesh.mutable_value()->mutable_axes(0)->set_size(2);
  v1::ProfileSelector profile;
  profile.mutable_value()->mutable_decode_batch_axis()->set_name("x");
  SharedSelections shared(state, mesh, profile);
  ASSERT_THAT(shared.mesh(Compatibility::kDefault).status(), IsOk());
  EXPECT_EQ(&shared.mesh(Compatibility::kDefault), &shared.mesh(Compatibility::kDefault));
  EXPECT_NE(&shared.mesh(Compatibility::kDefault), &shared.mesh(Compatibility::kExact));
  ASSERT_THAT(shared.profile().status(), IsOk());
  EXPECT_EQ(&shared.profile(), &shared.profile());
  const v1::MeshSelector none;
  const v1::ProfileSelector defaults;
  SharedSelections empty(state, none, defaults);
  EXPECT_THAT(empty.mesh(Compatibility::kDefault).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kMissingArgument));
  EXPECT_THAT(empty.profile().status(), IsOk()) << "the profile of defaults";
}

TEST_F(PresetTest, RefusesAxesBesideIt) {
  request_.clear_mode();
  request_.add_axes()->set_name("__BATCH__");
  const absl::Status status = Ask(&v1::ResolveService::Stub::ResolveSpec, request_, &response_);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_EQ(FieldOf(status), "axes");
}

TEST_F(PresetTest, YieldsToAxesAndModeAsInTheOriginal) {
  request_.set_compatibility(v1::COMPATIBILITY_EXACT);
  request_.add_axes()->set_name("__EMBED__");
  ASSERT_THAT(Ask(&v1::ResolveService::Stub::ResolveSpec, request_, &response_), IsOk());
  ASSERT_EQ(response_.requested().dimensions_size(), 1);
  EXPECT_EQ(response_.requested().dimensions(0).name(), "tp");
}

// Without a mode the original has no answer.
TEST_F(PresetTest, TrainsWhereAxesComeWithoutAMode) {
  v1::ResolveSpecRequest request;
  request.add_axes()->set_name("__EMBED__");
  EXPECT_THAT(Ask(&v1::ResolveService::Stub::ResolveSpec, request, &response_), IsOk());
  request.set_compatibility(v1::COMPATIBILITY_EXACT);
  EXPECT_THAT(Ask(&v1::ResolveService::Stub::ResolveSpec, request, &response_),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kMissingArgument));
}

class RepeatedQuestionTest : public ResolveServiceTest {
 protected:
  RepeatedQuestionTest() {
    request_.add_axes()->set_name("__EMBED__");
    request_.mutable_shape()->add_sizes(3);
    request_.mutable_profile()->set_name("mine");
    request_.mutable_mesh()->set_name("default");
  }

  v1::ResolveSpecRequest request_;
  v1::ResolveSpecResponse response_;
};

TEST_F(RepeatedQuestionTest, GetsTheAnswerOfTheDefinitionsAsTheyAre) {
  EXPECT_THAT(Ask(&v1::ResolveService::Stub::ResolveSpec, request_, &response_),
              StatusIs(absl::StatusCode::kNotFound));
  const auto catalog = v1::CatalogService::NewStub(channel());
  v1::CreateEntryRequest create;
  create.set_request_id("create");
  create.set_name("mine");
  create.mutable_value()->mutable_profile()->mutable_hidden_state_axis()->set_name("fsdp");
  v1::CreateEntryResponse created;
  grpc::ClientContext creating;
  ASSERT_TRUE(catalog->CreateEntry(&creating, create, &created).ok());
  for (int i = 0; i < 3; ++i) {
    ASSERT_THAT(Ask(&v1::ResolveService::Stub::ResolveSpec, request_, &response_), IsOk());
    EXPECT_EQ(response_.requested().dimensions(0).name(), "fsdp");
    ASSERT_EQ(response_.corrections_size(), 1);
  }
  v1::UpdateEntryRequest update;
  update.set_request_id("update");
  update.set_name("mine");
  update.mutable_precondition()->set_version(1);
  update.mutable_value()->mutable_profile()->mutable_hidden_state_axis()->set_name("tp");
  v1::UpdateEntryResponse updated;
  grpc::ClientContext updating;
  const grpc::Status status = catalog->UpdateEntry(&updating, update, &updated);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_THAT(Ask(&v1::ResolveService::Stub::ResolveSpec, request_, &response_), IsOk());
  EXPECT_EQ(response_.requested().dimensions(0).name(), "tp");

  // A version means the same, however often it is asked for and whatever became of the name.
  const auto axis_of = [&](const std::string& reference) {
    request_.mutable_profile()->set_name(reference);
    const absl::Status asked = Ask(&v1::ResolveService::Stub::ResolveSpec, request_, &response_);
    return asked.ok() ? response_.requested().dimensions(0).name() : std::string(asked.message());
  };
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(axis_of("mine@1"), "fsdp");
    EXPECT_EQ(axis_of("mine@2"), "tp");
    EXPECT_THAT(axis_of("mine@3"), HasSubstr("kept are versions 1 to 2"));
  }
  request_.mutable_profile()->set_name("mine@two");
  const absl::Status malformed = Ask(&v1::ResolveService::Stub::ResolveSpec, request_, &response_);
  EXPECT_THAT(malformed, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_EQ(FieldOf(malformed), "profile.name");

  v1::DeleteEntryRequest remove;
  remove.set_request_id("delete");
  remove.set_kind(v1::ENTRY_KIND_PROFILE);
  remove.set_name("mine");
  v1::DeleteEntryResponse removed;
  grpc::ClientContext removing;
  ASSERT_TRUE(catalog->DeleteEntry(&removing, remove, &removed).ok());
  EXPECT_THAT(axis_of("mine@1"), HasSubstr("there is no profile named \"mine\""));
  create.set_request_id("create again");
  create.mutable_value()->mutable_profile()->mutable_hidden_state_axis()->set_name("dp");
  grpc::ClientContext creating_again;
  ASSERT_TRUE(catalog->CreateEntry(&creating_again, create, &created).ok());
  EXPECT_THAT(axis_of("mine@1"), HasSubstr("version 3 is the only one kept"))
      << "the version of another entry was remembered";
  EXPECT_EQ(axis_of("mine@3"), "dp");
}

}  // namespace
}  // namespace shardmesh::server
