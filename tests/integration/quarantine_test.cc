// Data folders in wrong hands, older state put back, and results without names: nothing that was
// acknowledged is deleted, whatever order things happen in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "sharding/str_cat.h"
#include "tests/testing/eventually.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class QuarantineTest : public ::testing::Test {
 protected:
  void StartCluster(std::vector<std::string> coordinator_flags = {}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        cluster_, TestCluster::Start({.mesh = "tp=2",
                                      .durable = true,
                                      .coordinator_flags = std::move(coordinator_flags),
                                      .worker_flags = {}}));
  }
  absl::StatusOr<std::string> Put(const std::string& name) {
    return PutFloats(client(), name, {4}, values_, PartitionSpec({SpecEntry::Axis("tp")}));
  }
  void ExpectValues(const client::ArraySelector& array) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::GatheredTensor gathered, client().Gather(array));
    EXPECT_EQ(FloatsOf(gathered.view().bytes()), values_);
  }
  std::string Folder(const std::string& process) const {
    return StrCat(cluster_->folder(), "/data/", process);
  }
  void Swap(const std::string& one, const std::string& other) {
    fs::rename(Folder(one), Folder("swap"));
    fs::rename(Folder(other), Folder(one));
    fs::rename(Folder("swap"), Folder(other));
  }
  client::MeshClient& client() { return cluster_->client(); }

  const std::vector<float> values_ = {1, 2, 3, 4};
  std::unique_ptr<TestCluster> cluster_;
};

TEST_F(QuarantineTest, AWorkerWithTheFolderOfAnotherEndsAndChangesNothing) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ASSERT_THAT(Put("w"), IsOk());
  ASSERT_THAT(cluster_->Kill("worker-0"), IsOk());
  {
    ServerProcess renamed("shardmesh-worker",
                          {"--coordinator=" + cluster_->address(), "--identity=host-renamed",
                           "--data-dir=" + Folder("worker-0")});
    EXPECT_EQ(renamed.AwaitEnd(), "exited with code 1");
    EXPECT_THAT(renamed.Log(),
                AllOf(HasSubstr("host-renamed"), HasSubstr("worker-0"), HasSubstr("--identity")));
  }
  // Volumes that were swapped.
  ASSERT_THAT(cluster_->Kill("worker-1"), IsOk());
  Swap("worker-0", "worker-1");
  for (const char* identity : {"worker-0", "worker-1"}) {
    ASSERT_THAT(cluster_->Restart(identity), IsOk());
    EXPECT_THAT(cluster_->AwaitEnd(identity), IsOkAndHolds("exited with code 1"));
  }
  Swap("worker-0", "worker-1");
  for (const char* identity : {"worker-0", "worker-1"}) {
    ASSERT_THAT(cluster_->Restart(identity), IsOk());
  }
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  ExpectValues(client::ArraySelector::ByName("w"));
  EXPECT_THAT(client().ListQuarantine(), IsOkAndHolds(IsEmpty()));
}

TEST_F(QuarantineTest, AnOlderStoreThatIsPutBackDeletesNothing) {
  ASSERT_NO_FATAL_FAILURE(StartCluster({"--unnamed-grace=500ms"}));
  ASSERT_THAT(Put("older"), IsOk());
  EXPECT_THAT(cluster_->Terminate("coordinator"), IsOkAndHolds("exited with code 0"));
  fs::copy(Folder("coordinator"), Folder("copy"), fs::copy_options::recursive);
  ASSERT_THAT(cluster_->Restart("coordinator"), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string newer, Put("newer"));

  EXPECT_THAT(cluster_->Terminate("coordinator"), IsOkAndHolds("exited with code 0"));
  fs::remove_all(Folder("coordinator"));
  fs::rename(Folder("copy"), Folder("coordinator"));
  ASSERT_THAT(cluster_->Restart("coordinator"), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  ExpectValues(client::ArraySelector::ByName("older"));
  EXPECT_THAT(client().DescribeArray(client::ArraySelector::ByName("newer")),
              StatusIs(absl::StatusCode::kNotFound));
  ASSERT_TRUE(Eventually([&] {
    const auto aside = client().ListQuarantine();
    return aside.ok() && aside->size() == 2;
  }));
  const CommandResult list = cluster_->Run({"admin", "quarantine", "list"});
  EXPECT_THAT(list.out, AllOf(HasSubstr(newer), HasSubstr("worker-0"), HasSubstr("worker-1"),
                              HasSubstr("without a name")));
  EXPECT_TRUE(Eventually([&] {
    return cluster_->Run({"status"}).out.find("Quarantine: tiles of 2 arrays") != std::string::npos;
  }));
  // It is there after restarts of all.
  for (const char* identity : {"worker-0", "worker-1", "coordinator"}) {
    ASSERT_THAT(cluster_->Kill(identity), IsOk());
    ASSERT_THAT(cluster_->Restart(identity), IsOk());
  }
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  EXPECT_THAT(client().ListQuarantine(), IsOkAndHolds(SizeIs(2)));
  EXPECT_THAT(client().ListQuarantine("worker-1"), IsOkAndHolds(SizeIs(1)));

  EXPECT_THAT(client().RestoreQuarantined(newer, "older"),
              StatusIs(absl::StatusCode::kAborted, Reason::kVersionMismatch));
  EXPECT_THAT(client().ListQuarantine(), IsOkAndHolds(SizeIs(2))) << "nothing was moved";
  const std::string aside_folder = Folder("worker-1") + "/quarantine/";
  fs::rename(aside_folder + newer, aside_folder + "away");
  EXPECT_THAT(client().RestoreQuarantined(newer, "newer"),
              StatusIs(absl::StatusCode::kDataLoss, Reason::kBadFile));
  fs::rename(aside_folder + "away", aside_folder + newer);
  EXPECT_TRUE(Eventually([&] {
    const auto aside = client().ListQuarantine();
    return aside.ok() && aside->size() == 2 &&
           absl::StrContains(aside->front().reason, "without a name");
  })) << "what could not be restored is aside again, and it is known why it was";
  const CommandResult restored =
      cluster_->Run({"admin", "quarantine", "restore", newer, "--as", "newer"});
  EXPECT_EQ(restored.exit_code, 0) << restored.err;
  ExpectValues(client::ArraySelector::ByName("newer"));
  EXPECT_THAT(client().ListQuarantine(), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(client().DropQuarantined({newer}),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
}

// The older store was put back by mistake; then the right one is.
TEST_F(QuarantineTest, WhatAWorkerHasAsideFollowsWhatBecomesOfItsArray) {
  ASSERT_NO_FATAL_FAILURE(StartCluster({"--unnamed-grace=500ms"}));
  EXPECT_THAT(cluster_->Terminate("coordinator"), IsOkAndHolds("exited with code 0"));
  fs::copy(Folder("coordinator"), Folder("older"), fs::copy_options::recursive);
  ASSERT_THAT(cluster_->Restart("coordinator"), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string kept, Put("kept"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string released, Put("released"));

  const auto swap_stores = [&] {
    EXPECT_THAT(cluster_->Terminate("coordinator"), IsOkAndHolds("exited with code 0"));
    Swap("coordinator", "older");
    ASSERT_THAT(cluster_->Restart("coordinator"), IsOk());
    ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  };
  const auto await_aside = [&](size_t lives, size_t unknown) {
    EXPECT_TRUE(Eventually([&] {
      const auto aside = client().ListQuarantine();
      if (!aside.ok() || aside->size() != lives + unknown) return false;
      return static_cast<size_t>(std::count_if(aside->begin(), aside->end(), [](const auto& array) {
               return array.array_lives;
             })) == lives;
    })) << lives
        << " live, " << unknown << " unknown";
  };
  ASSERT_NO_FATAL_FAILURE(swap_stores());
  await_aside(0, 4);
  ASSERT_NO_FATAL_FAILURE(swap_stores());
  await_aside(4, 0);
  // One is released while a worker is away.
  ASSERT_THAT(cluster_->Kill("worker-1"), IsOk());
  ASSERT_THAT(client().DeleteName("released"), IsOk());
  ASSERT_THAT(cluster_->Restart("worker-1"), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  await_aside(2, 0);
  EXPECT_THAT(client().RestoreQuarantined(kept, ""), IsOk());
  ExpectValues(client::ArraySelector::ByName("kept"));
  EXPECT_THAT(client().ListQuarantine(), IsOkAndHolds(IsEmpty()));
}

TEST_F(QuarantineTest, AResultWithoutANameOutlivesTheCoordinator) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ASSERT_THAT(Put("w"), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::StepResult result,
                                 client().Collective({.input = client::ArraySelector::ByName("w"),
                                                      .kind = CollectiveKind::kBarrier,
                                                      .axes = {"tp"}}));
  const std::string id = result.outputs[0].array.descriptor.array_id;
  ASSERT_THAT(cluster_->Kill("coordinator"), IsOk());
  ASSERT_THAT(cluster_->Restart("coordinator"), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  ExpectValues(client::ArraySelector::ById(id));
  EXPECT_THAT(client().MoveName("kept", id), IsOk());
  ExpectValues(client::ArraySelector::ByName("kept"));
}

}  // namespace
}  // namespace shardmesh::test
