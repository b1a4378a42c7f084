// Changes of the catalog that are checked and not made.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "rpc/codec/status.h"
#include "tests/unit/server/hollow_fixture.h"

namespace shardmesh::test {
namespace {

class CatalogValidationTest : public HollowFixture {
 protected:
  template <typename Request>
  static Request NewRequest(const std::string& name, bool validate_only) {
    Request request;
    request.set_request_id("the same for all");
    request.set_name(name);
    request.set_validate_only(validate_only);
    return request;
  }
  template <typename Request>
  static Request WithMesh(Request request, int64_t size) {
    v1::MeshAxis* const axis = request.mutable_value()->mutable_mesh()->mutable_mesh()->add_axes();
    axis->set_name("x");
    axis->set_size(size);
    return request;
  }
  absl::StatusOr<v1::Entry> Create(const std::string& name, int64_t size, bool validate_only) {
    v1::CreateEntryResponse response;
    const absl::Status status = Call<v1::CatalogService>(
        &v1::CatalogService::Stub::CreateEntry,
        WithMesh(NewRequest<v1::CreateEntryRequest>(name, validate_only), size), &response);
    if (!status.ok()) return status;
    return response.entry();
  }
  absl::StatusOr<v1::Entry> Update(const std::string& name, int64_t size, bool validate_only,
                                   int64_t version = 0) {
    auto request = WithMesh(NewRequest<v1::UpdateEntryRequest>(name, validate_only), size);
    if (version != 0) request.mutable_precondition()->set_version(version);
    v1::UpdateEntryResponse response;
    const absl::Status status =
        Call<v1::CatalogService>(&v1::CatalogService::Stub::UpdateEntry, request, &response);
    if (!status.ok()) return status;
    return response.entry();
  }
  absl::StatusOr<int64_t> Delete(const std::string& name, bool validate_only, int64_t version = 0) {
    auto request = NewRequest<v1::DeleteEntryRequest>(name, validate_only);
    request.set_kind(v1::ENTRY_KIND_MESH);
    if (version != 0) request.mutable_precondition()->set_version(version);
    v1::DeleteEntryResponse response;
    const absl::Status status =
        Call<v1::CatalogService>(&v1::CatalogService::Stub::DeleteEntry, request, &response);
    if (!status.ok()) return status;
    return response.revision();
  }
  absl::StatusOr<v1::Entry> Get(const std::string& name) {
    v1::GetEntryRequest request;
    request.set_kind(v1::ENTRY_KIND_MESH);
    request.set_name(name);
    v1::GetEntryResponse response;
    const absl::Status status =
        Call<v1::CatalogService>(&v1::CatalogService::Stub::GetEntry, request, &response);
    if (!status.ok()) return status;
    return response.entry();
  }
};

TEST_F(CatalogValidationTest, AnswersAsTheChangeWouldAndChangesNothing) {
  StartCoordinator("");
  const auto would_create = Create("m", 2, true);
  ASSERT_THAT(would_create, IsOk());
  EXPECT_EQ(would_create->version(), 1);
  EXPECT_EQ(would_create->revision(), 0);
  EXPECT_EQ(would_create->uid(), "");
  EXPECT_EQ(would_create->value().mesh().mesh().axes(0).size(), 2);
  EXPECT_THAT(Get("m"), StatusIs(absl::StatusCode::kNotFound));

  // The request id was not remembered: the same one, with another request, makes the change.
  const auto created = Create("m", 4, false);
  ASSERT_THAT(created, IsOk());
  EXPECT_EQ(created->version(), 1);

  const auto would_update = Update("m", 8, true);
  ASSERT_THAT(would_update, IsOk());
  EXPECT_EQ(would_update->version(), 2);
  EXPECT_EQ(would_update->revision(), 0);
  EXPECT_EQ(would_update->uid(), created->uid());
  EXPECT_THAT(Delete("m", true, 1), IsOkAndHolds(0));
  const auto kept = Get("m");
  ASSERT_THAT(kept, IsOk());
  EXPECT_EQ(kept->SerializeAsString(), created->SerializeAsString());
  EXPECT_THAT(Update("m", 2, false), IsOk());
  EXPECT_THAT(Delete("m", false), IsOk());
}

TEST_F(CatalogValidationTest, RefusesAsTheChangeWould) {
  StartCoordinator("");
  ASSERT_THAT(Create("m", 2, false), IsOk());
  EXPECT_THAT(Create("m", 2, true).status(),
              StatusIs(absl::StatusCode::kAlreadyExists, Reason::kAlreadyExists));
  EXPECT_THAT(Create("n", 0, true).status(), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Create("a/b", 2, true).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  for (const bool validate_only : {true, false}) {
    EXPECT_THAT(Create("m.replicas-0123456789ab", 2, validate_only).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  }
  EXPECT_THAT(Update("n", 2, true).status(), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(Delete("n", true).status(), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(Update("m", 2, true, 7).status(),
              StatusIs(absl::StatusCode::kAborted, Reason::kVersionMismatch));
  EXPECT_THAT(Delete("m", true, 7).status(),
              StatusIs(absl::StatusCode::kAborted, Reason::kVersionMismatch));
  v1::CreateEntryRequest without_id = WithMesh(NewRequest<v1::CreateEntryRequest>("n", true), 2);
  without_id.clear_request_id();
  v1::CreateEntryResponse response;
  EXPECT_THAT(
      Call<v1::CatalogService>(&v1::CatalogService::Stub::CreateEntry, without_id, &response),
      StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(CatalogValidationTest, RefusesAChangeOfAMeshThatHasArrays) {
  StartCoordinator("x=1");
  StartWorkers(1);
  ASSERT_TRUE(AwaitQuiet("default"));
  // A check leaves the mesh open to arrays.
  ASSERT_THAT(Update("default", 1, true), IsOk());
  const std::string session = OpenSession();
  ASSERT_NE(MakeArray(session, "default"), "");
  const auto is_in_use = StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kMeshInUse);
  EXPECT_THAT(Update("default", 1, true).status(), is_in_use);
  EXPECT_THAT(Delete("default", true).status(), is_in_use);
}

}  // namespace
}  // namespace shardmesh::test
