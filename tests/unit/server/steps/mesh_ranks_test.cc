// Ranks that a coordinator writes down while a client changes the mesh: neither is undone.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "process/failpoint.h"
#include "shardmesh/v1/mesh_service.grpc.pb.h"
#include "tests/unit/server/hollow_fixture.h"

namespace shardmesh::test {
namespace {

using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

class MeshRanksTest : public HollowFixture {
 protected:
  // Gives "m" one axis of this name, and these workers.
  absl::Status ChangeMesh(const std::string& axis_name, int64_t size,
                          const std::vector<std::string>& workers = {}) {
    v1::UpdateEntryRequest request;
    request.set_request_id("to " + axis_name);
    request.set_name("m");
    v1::MeshDefinition* const mesh = request.mutable_value()->mutable_mesh();
    v1::MeshAxis* const axis = mesh->mutable_mesh()->add_axes();
    axis->set_name(axis_name);
    axis->set_size(size);
    mesh->mutable_workers()->Add(workers.begin(), workers.end());
    v1::UpdateEntryResponse response;
    return Call<v1::CatalogService>(&v1::CatalogService::Stub::UpdateEntry, request, &response);
  }
  v1::Entry FindMesh() {
    v1::GetEntryRequest request;
    request.set_kind(v1::ENTRY_KIND_MESH);
    request.set_name("m");
    v1::GetEntryResponse response;
    EXPECT_THAT(Call<v1::CatalogService>(&v1::CatalogService::Stub::GetEntry, request, &response),
                IsOk());
    return response.entry();
  }
  // The mesh ends with this axis and these workers, and is ready.
  void ExpectMesh(const std::string& axis_name, const std::vector<std::string>& workers) {
    EXPECT_TRUE(AwaitQuiet("m"));
    const v1::Entry entry = FindMesh();
    const v1::MeshDefinition& mesh = entry.value().mesh();
    ASSERT_EQ(mesh.mesh().axes_size(), 1);
    EXPECT_EQ(mesh.mesh().axes(0).name(), axis_name);
    EXPECT_THAT(entry.mesh_assignment().workers(), ElementsAreArray(workers));
  }
};

TEST_F(MeshRanksTest, AChangeThatComesBeforeTheRanksAreWrittenStays) {
  StartCoordinator("");
  StartWorkers(1);
  // The coordinator gives the ranks out, and waits a moment before it reads what it writes them to.
  ASSERT_THAT(ArmFailpoints("coordinator.write_ranks=delay"), IsOk());
  ASSERT_THAT(CreateMesh("m", 1), IsOk());
  EXPECT_TRUE(Eventually([] { return !IsArmed("coordinator.write_ranks"); }));
  EXPECT_THAT(ChangeMesh("y", 1), IsOk());
  ExpectMesh("y", {workers_->IdentityOf(0)});
}

TEST_F(MeshRanksTest, TheCurrentVersionHasItsWorkersByNumberToo) {
  StartCoordinator("");
  StartWorkers(1);
  ASSERT_THAT(CreateMesh("m", 1), IsOk());
  ASSERT_TRUE(Eventually([this] { return FindMesh().mesh_assignment().workers_size() == 1; }));
  ASSERT_THAT(ChangeMesh("y", 1), IsOk());
  const auto workers_of = [this](const std::string& reference) {
    v1::DescribeMeshRequest request;
    request.mutable_mesh()->set_name(reference);
    v1::DescribeMeshResponse response;
    EXPECT_THAT(Call<v1::MeshService>(&v1::MeshService::Stub::DescribeMesh, request, &response),
                IsOk());
    return std::vector<std::string>(response.workers().begin(), response.workers().end());
  };
  const std::vector<std::string> workers = {workers_->IdentityOf(0)};
  EXPECT_EQ(workers_of("m"), workers);
  EXPECT_EQ(workers_of("m@2"), workers);
  EXPECT_THAT(workers_of("m@1"), IsEmpty()) << "an older version";
}

TEST_F(MeshRanksTest, RanksThatAClientGivesMeanwhileStay) {
  StartCoordinator("");
  StartWorkers(2);
  ASSERT_THAT(ArmFailpoints("coordinator.write_ranks=delay"), IsOk());
  ASSERT_THAT(CreateMesh("m", 1), IsOk());
  EXPECT_TRUE(Eventually([] { return !IsArmed("coordinator.write_ranks"); }));
  EXPECT_THAT(ChangeMesh("x", 1, {workers_->IdentityOf(1)}), IsOk());
  ExpectMesh("x", {workers_->IdentityOf(1)});
}

TEST_F(MeshRanksTest, AChangeThatComesWhileTheRanksAreWrittenIsMadeOfThem) {
  StartCoordinator("");
  ASSERT_THAT(CreateMesh("m", 1), IsOk());
  EXPECT_THAT(FindMesh().mesh_assignment().workers(), IsEmpty());
  // The first commit is that of the ranks.
  ASSERT_THAT(ArmFailpoints("store.commit_group=delay"), IsOk());
  StartWorkers(1);
  EXPECT_TRUE(Eventually([] { return !IsArmed("store.commit_group"); }));
  EXPECT_THAT(ChangeMesh("y", 1), IsOk());
  ExpectMesh("y", {workers_->IdentityOf(0)});
}

TEST_F(MeshRanksTest, ManyChangesWhileWorkersComeAndGoEndInTheLastOneWithItsRanks) {
  StartCoordinator("");
  StartWorkers(2);
  ASSERT_THAT(CreateMesh("m", 1), IsOk());
  std::thread others([this] {
    for (int i = 0; i < 10; ++i) {
      workers_->Leave(1);
      workers_->AwaitMembers(1, kTimeout);
      workers_->Return(1);
      workers_->AwaitMembers(2, kTimeout);
    }
  });
  std::string last;
  for (int i = 0; i < 60; ++i) {
    last = StrCat("axis", i);
    EXPECT_THAT(ChangeMesh(last, 1 + i % 2), IsOk());
  }
  others.join();
  EXPECT_THAT(ChangeMesh("end", 2), IsOk());
  ExpectMesh("end", {workers_->IdentityOf(0), workers_->IdentityOf(1)});
}

}  // namespace
}  // namespace shardmesh::test
