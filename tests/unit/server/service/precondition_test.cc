// Each kind of precondition on each call that takes one.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "gmock/gmock.h"
#include "rpc/codec/status.h"
#include "server/state/array_view_codec.h"
#include "tests/unit/server/hollow_fixture.h"

namespace shardmesh::test {
namespace {

constexpr auto kBadField = absl::StatusCode::kInvalidArgument;

v1::Precondition None() {
  v1::Precondition none;
  none.set_must_not_exist(true);
  return none;
}
v1::Precondition At(int64_t version) {
  v1::Precondition at;
  at.set_version(version);
  return at;
}

auto IsMismatch() { return StatusIs(absl::StatusCode::kAborted, Reason::kVersionMismatch); }

class PreconditionTest : public HollowFixture {
 protected:
  template <typename Request>
  Request NewRequest(const std::string& name) {
    Request request;
    request.set_request_id(StrCat("request-", ++count_));
    request.set_name(name);
    return request;
  }
  absl::Status UpdateMesh(const v1::Precondition& precondition) {
    auto request = NewRequest<v1::UpdateEntryRequest>("m");
    v1::MeshAxis* const axis = request.mutable_value()->mutable_mesh()->mutable_mesh()->add_axes();
    axis->set_name("x");
    axis->set_size(1);
    *request.mutable_precondition() = precondition;
    v1::UpdateEntryResponse response;
    return Call<v1::CatalogService>(&v1::CatalogService::Stub::UpdateEntry, request, &response);
  }
  absl::Status DeleteMesh(const v1::Precondition& precondition) {
    auto request = NewRequest<v1::DeleteEntryRequest>("m");
    request.set_kind(v1::ENTRY_KIND_MESH);
    *request.mutable_precondition() = precondition;
    v1::DeleteEntryResponse response;
    return Call<v1::CatalogService>(&v1::CatalogService::Stub::DeleteEntry, request, &response);
  }
  // The name's version then.
  absl::StatusOr<int64_t> Move(const std::string& array_id, const v1::Precondition& precondition) {
    auto request = NewRequest<v1::MoveNameRequest>("w");
    request.set_array_id(array_id);
    *request.mutable_precondition() = precondition;
    v1::MoveNameResponse response;
    const absl::Status status =
        Call<v1::ArrayService>(&v1::ArrayService::Stub::MoveName, request, &response);
    if (!status.ok()) return status;
    return response.version();
  }
  absl::Status DeleteName(const v1::Precondition& precondition) {
    auto request = NewRequest<v1::DeleteNameRequest>("w");
    *request.mutable_precondition() = precondition;
    v1::DeleteNameResponse response;
    return Call<v1::ArrayService>(&v1::ArrayService::Stub::DeleteName, request, &response);
  }

 private:
  int count_ = 0;
};

TEST_F(PreconditionTest, UpdatesAndDeletionsOfEntriesTakeAVersion) {
  StartCoordinator("");
  ASSERT_THAT(CreateMesh("m", 1), IsOk());
  EXPECT_THAT(UpdateMesh(None()), StatusIs(kBadField, Reason::kBadField));
  EXPECT_THAT(UpdateMesh(At(0)), StatusIs(kBadField, Reason::kBadField));
  EXPECT_THAT(UpdateMesh(At(2)), IsMismatch());
  EXPECT_THAT(UpdateMesh(At(1)), IsOk());
  EXPECT_THAT(UpdateMesh({}), IsOk());
  EXPECT_THAT(DeleteMesh(None()), StatusIs(kBadField, Reason::kBadField));
  EXPECT_THAT(DeleteMesh(At(-1)), StatusIs(kBadField, Reason::kBadField));
  EXPECT_THAT(DeleteMesh(At(1)), IsMismatch());
  EXPECT_THAT(DeleteMesh(At(3)), IsOk());
  ASSERT_THAT(CreateMesh("m", 1), IsOk());
  EXPECT_THAT(UpdateMesh(At(3)), IsMismatch()) << "that was another mesh";
  EXPECT_THAT(DeleteMesh(At(3)), IsMismatch());
  EXPECT_THAT(DeleteMesh({}), IsOk());
}

TEST_F(PreconditionTest, NamesTakeAVersionOrNone) {
  StartCoordinator("x=1");
  StartWorkers(1);
  ASSERT_TRUE(AwaitQuiet("default"));
  const std::string session = OpenSession();
  const std::string array = MakeArray(session, "default");
  EXPECT_THAT(Move(array, At(0)).status(), StatusIs(kBadField, Reason::kBadField));
  EXPECT_THAT(Move(array, At(1)).status(), IsMismatch()) << "there is no such name";
  const auto first = Move(array, None());
  ASSERT_THAT(first, IsOk());
  EXPECT_THAT(Move(array, None()).status(), IsMismatch());
  const auto second = Move(array, At(*first));
  ASSERT_THAT(second, IsOk());
  EXPECT_THAT(Move(array, At(*first)).status(), IsMismatch());
  EXPECT_THAT(DeleteName(None()), StatusIs(kBadField, Reason::kBadField));
  EXPECT_THAT(DeleteName(At(*first)), IsMismatch());
  EXPECT_THAT(DeleteName(At(*second)), IsOk());
  const auto third = Move(array, None());
  ASSERT_THAT(third, IsOk());
  EXPECT_GT(*third, *second) << "no version comes again";
  EXPECT_THAT(DeleteName({}), IsOk());
}

TEST_F(PreconditionTest, ResultsOfStepsTakeAVersionOrNone) {
  StartCoordinator("x=1");
  StartWorkers(1);
  ASSERT_TRUE(AwaitQuiet("default"));
  const std::string session = OpenSession();
  const auto run = [&](const v1::Precondition& precondition) {
    v1::ExecuteRequest request = Product(session, "default");
    request.mutable_output()->add_names("y");
    *request.mutable_output()->add_preconditions() = precondition;
    return Execute(request);
  };
  EXPECT_THAT(run(At(0)).status(), StatusIs(kBadField, Reason::kBadField));
  EXPECT_THAT(run(At(1)).status(), IsMismatch());
  const auto made = run(None());
  ASSERT_THAT(made, IsOk());
  EXPECT_THAT(run(None()).status(), IsMismatch());
  EXPECT_THAT(run(At(made->outputs(0).array().name_version())), IsOk());
  EXPECT_THAT(run({}), IsOk());
}

// Tensors of a put use the same.
TEST(PreconditionCodecTest, KnowsWhichStatesThereAre) {
  EXPECT_THAT(server::Decode(v1::Precondition(), false), IsOkAndHolds(std::nullopt));
  EXPECT_THAT(server::Decode(None(), false), IsOkAndHolds(std::optional<int64_t>(0)));
  EXPECT_THAT(server::Decode(At(7), true), IsOkAndHolds(std::optional<int64_t>(7)));
  v1::Precondition odd;
  odd.set_must_not_exist(false);
  EXPECT_THAT(server::Decode(odd, false), StatusIs(kBadField, Reason::kBadField));
  const auto violations = rpc::FieldViolationsOf(server::Decode(None(), true).status());
  ASSERT_EQ(violations.size(), 1u);
  EXPECT_EQ(violations.front().field, "precondition.must_not_exist");
  EXPECT_THAT(server::Decode(At(0), true).status(), StatusIs(kBadField, Reason::kBadField));
}

}  // namespace
}  // namespace shardmesh::test
