// Tiles that were lost with a worker come back by themselves, from other workers and from files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "client/mesh_client.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tensor/safetensors.h"
#include "tests/testing/eventually.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"
#include "tests/testing/zip_text.h"

namespace shardmesh::test {
namespace {

using ::nlohmann::json;
using ::shardmesh::client::ArraySelector;
using ::testing::AllOf;
using ::testing::HasSubstr;

PartitionSpec Over(const std::vector<std::string>& axes) {
  std::vector<SpecEntry> entries;
  for (const std::string& axis : axes) entries.push_back(SpecEntry::Axis(axis));
  return PartitionSpec(std::move(entries));
}

class RepairTest : public ::testing::Test {
 protected:
  ~RepairTest() override { std::filesystem::remove_all(files_); }

  void StartCluster(TestCluster::Options options = {}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(cluster_, TestCluster::Start(options));
  }
  client::MeshClient& client() { return cluster_->client(); }
  static std::vector<float> Values(int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * 0.5f - 7;
    return values;
  }
  void Put(const std::string& name, const std::vector<std::string>& axes) {
    ASSERT_THAT(PutFloats(client(), name, {64, 64}, values_, Over(axes)), IsOk());
  }
  bool Has(const std::string& name) {
    const auto gathered = client().arrays().Gather(ArraySelector::ByName(name));
    return gathered.ok() && FloatsOf(gathered->view().bytes()) == values_;
  }
  int64_t Degraded() {
    const auto status = client().cluster().GetStatus();
    return status.ok() ? status->degraded_arrays : -1;
  }
  void KillAndRestart(const std::string& worker) {
    ASSERT_THAT(cluster_->Kill(worker), IsOk());
    ASSERT_TRUE(Eventually([&] { return Degraded() > 0; }));
    ASSERT_THAT(cluster_->Restart(worker), IsOk());
  }
  json Repairs() {
    const CommandResult result = cluster_->Run({"ops", "ls", "--kind=repair", "-ojson"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const json answer = json::parse(result.out, nullptr, /*allow_exceptions=*/false);
    return answer.is_object() ? answer.value("operations", json::array()) : json::array();
  }

  static bool HasError(const json& operation, const std::string& text) {
    return operation["error"].dump().find(text) != std::string::npos;
  }

  const std::vector<float> values_ = Values(64 * 64);
  const std::string files_ = std::filesystem::canonical(MakeTestFolder("repair")).string();
  std::unique_ptr<TestCluster> cluster_;
};

TEST_F(RepairTest, ReplicasRestoreTheTilesOfAWorkerThatComesBackEmpty) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ASSERT_NO_FATAL_FAILURE(Put("everywhere", {}));
  ASSERT_NO_FATAL_FAILURE(Put("rows", {"fsdp"}));
  ASSERT_NO_FATAL_FAILURE(Put("once", {"fsdp", "tp"}));
  ASSERT_NO_FATAL_FAILURE(KillAndRestart("worker-1"));
  ASSERT_TRUE(Eventually([&] { return Degraded() == 1; }));  // no other worker had this tile
  // The new tiles are whole: the other holder of the rows goes away.
  ASSERT_THAT(cluster_->Kill("worker-0"), IsOk());
  ASSERT_TRUE(Eventually([&] { return Degraded() == 3; }));
  EXPECT_TRUE(Has("rows"));
  ASSERT_THAT(cluster_->Restart("worker-0"), IsOk());
  ASSERT_TRUE(Eventually([&] { return Degraded() == 1; }));
  EXPECT_TRUE(Has("everywhere"));
  const absl::Status lost = client().arrays().Gather(ArraySelector::ByName("once")).status();
  EXPECT_THAT(lost, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kArrayDegraded));
  EXPECT_THAT(std::string(lost.message()), HasSubstr("no other live worker has the tile"));
  const CommandResult tree =
      cluster_->Run({"get", "--tree", "once", "--out", files_ + "/once.safetensors"});
  EXPECT_EQ(tree.exit_code, 1);
  EXPECT_THAT(tree.err, HasSubstr("tensor \"once\" lacks 2 of its 4 tiles")) << "by its name";

  const json repairs = Repairs();
  ASSERT_EQ(repairs.size(), 2u) << repairs;
  EXPECT_THAT(repairs[0]["description"].get<std::string>(), HasSubstr("worker-1"));
  EXPECT_EQ(repairs[0]["done"], 2);
  EXPECT_EQ(repairs[0]["done_bytes"], 64 * 64 * 4 + 64 * 64 * 2);
  EXPECT_EQ(repairs[0]["state"], "done");
  EXPECT_THAT(repairs[0]["description"].get<std::string>(),
              HasSubstr("; 1 array has no source and stays degraded: \"once\" ("));
}

TEST_F(RepairTest, AWorkerThatTakesALostRankGetsItsTiles) {
  ASSERT_NO_FATAL_FAILURE(
      StartCluster({.durable = true, .coordinator_flags = {}, .worker_flags = {}}));
  ASSERT_NO_FATAL_FAILURE(Put("rows", {"fsdp"}));
  ServerProcess spare("shardmesh-worker",
                      {"--coordinator=" + cluster_->address(), "--listen=127.0.0.1:0",
                       "--identity=spare", "--data-dir=" + files_ + "/spare"});
  ASSERT_TRUE(Eventually([&] {
    return cluster_->Run({"status"}).out.find("spare") != std::string::npos;
  })) << spare.Log();
  ASSERT_THAT(cluster_->Kill("worker-3"), IsOk());
  ASSERT_TRUE(Eventually([&] { return Degraded() == 1; }));
  const CommandResult replaced = cluster_->Run({"admin", "worker", "replace", "worker-3", "spare"});
  ASSERT_EQ(replaced.exit_code, 0) << replaced.err;
  ASSERT_TRUE(Eventually([&] { return Degraded() == 0; })) << spare.Log();
  ASSERT_THAT(cluster_->Kill("worker-2"), IsOk());
  ASSERT_TRUE(Eventually([&] { return Degraded() == 1; }));
  EXPECT_TRUE(Has("rows"));
  // The tile is on the disk of its new worker.
  bool has_tile = false;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(files_ + "/spare")) {
    has_tile |= entry.is_regular_file() && entry.file_size() >= 64 * 64 * 2;
  }
  EXPECT_TRUE(has_tile);
}

TEST_F(RepairTest, ACoordinatorThatRestartsFindsTheLostTilesAgain) {
  ASSERT_NO_FATAL_FAILURE(StartCluster({.durable = true,
                                        .coordinator_flags = {},
                                        .worker_flags = {"--failpoints=fill.open=delay:1"}}));
  ASSERT_NO_FATAL_FAILURE(Put("rows", {"fsdp"}));
  ASSERT_THAT(cluster_->Kill("worker-1"), IsOk());
  ASSERT_GT(std::filesystem::remove_all(cluster_->folder() + "/data/worker-1"), 0u);
  ASSERT_THAT(cluster_->Restart("worker-1"), IsOk());
  ASSERT_TRUE(Eventually([&] { return !Repairs().empty(); }));
  ASSERT_THAT(cluster_->Kill("coordinator"), IsOk());
  ASSERT_THAT(cluster_->Restart("coordinator"), IsOk());
  ASSERT_TRUE(Eventually([&] { return Degraded() == 0; }));
  EXPECT_TRUE(Has("rows"));
}

TEST_F(RepairTest, TheFileOfAnArrayRestoresATileThatNoOtherWorkerHas) {
  ASSERT_NO_FATAL_FAILURE(
      StartCluster({.coordinator_flags = {}, .worker_flags = {"--read-root=" + files_}}));
  const std::string npy = files_ + "/x.npy";
  ASSERT_THAT(cluster_->Run({"make-tensor", "--shape=64,64", "--out", npy}), Succeeded());
  CommandResult result =
      cluster_->Run({"put", npy, "--as=x", "--spec=fsdp,tp", "--source=workers"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::GatheredTensor before,
                                 client().arrays().Gather(ArraySelector::ByName("x")));
  ASSERT_NO_FATAL_FAILURE(KillAndRestart("worker-2"));
  ASSERT_TRUE(Eventually([&] { return Degraded() == 0; }));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::GatheredTensor after,
                                 client().arrays().Gather(ArraySelector::ByName("x")));
  EXPECT_TRUE(after.view().bytes() == before.view().bytes());

  // An array that the workers turned round while they read it is read in the same way.
  const std::string values(reinterpret_cast<const char*>(values_.data()), size_t{64} * 64 * 4);
  const std::string fortran = files_ + "/f.npy";
  std::ofstream(fortran, std::ios::binary)
      << NpyText("<f4", "(64, 64)", values, /*fortran_order=*/true);
  result = cluster_->Run({"put", fortran, "--as=turned", "--spec=fsdp,tp", "--source=workers"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::GatheredTensor turned,
                                 client().arrays().Gather(ArraySelector::ByName("turned")));
  ASSERT_NO_FATAL_FAILURE(KillAndRestart("worker-2"));
  ASSERT_TRUE(Eventually([&] { return Degraded() == 0; }));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::GatheredTensor restored,
                                 client().arrays().Gather(ArraySelector::ByName("turned")));
  EXPECT_TRUE(restored.view().bytes() == turned.view().bytes());
  ASSERT_THAT(client().arrays().DeleteName("turned"), IsOk());

  // A file that has changed restores nothing, and the array says so.
  std::ofstream(npy, std::ios::app | std::ios::binary) << "more";
  ASSERT_NO_FATAL_FAILURE(KillAndRestart("worker-2"));
  ASSERT_TRUE(Eventually([&] {
    return cluster_->Run({"ls"}).out.find("FILE_CHANGED") != std::string::npos;
  })) << cluster_->Run({"ls"}).out;
  absl::Status changed;
  EXPECT_TRUE(Eventually([&] {  // not while it is tried again
    changed = client().arrays().Gather(ArraySelector::ByName("x")).status();
    return changed.message().find("a repair failed: rank 2: the file " + npy) !=
           absl::string_view::npos;
  })) << changed;
  EXPECT_THAT(changed, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kArrayDegraded));
  EXPECT_THAT(std::string(changed.message()),
              AllOf(HasSubstr("FILE_CHANGED"), HasSubstr("it is tried again")));
  EXPECT_TRUE(Eventually([&] {
    return cluster_->Run({"status"}).out.find("1 lost tile could not be read again") !=
           std::string::npos;
  }));
  EXPECT_TRUE(Eventually([&] {
    for (const json& repair : Repairs()) {
      if (repair["state"] == "failed") return HasError(repair, "ARRAY_DEGRADED");
    }
    return false;
  })) << Repairs();
}

TEST_F(RepairTest, ACheckpointThatWasSavedRestoresATileThatNoOtherWorkerHas) {
  ASSERT_NO_FATAL_FAILURE(
      StartCluster({.coordinator_flags = {},
                    .worker_flags = {"--read-root=" + files_, "--write-root=" + files_}}));
  ASSERT_NO_FATAL_FAILURE(Put("once", {"fsdp", "tp"}));
  const CommandResult saved = cluster_->Run({"save", "", files_ + "/saved"});
  ASSERT_EQ(saved.exit_code, 0) << saved.err;
  ASSERT_NO_FATAL_FAILURE(KillAndRestart("worker-3"));
  ASSERT_TRUE(Eventually([&] { return Degraded() == 0; })) << cluster_->Run({"ls"}).out;
  EXPECT_TRUE(Has("once"));
}

TEST_F(RepairTest, ACheckpointIsKnownAfterARestartOfTheCoordinator) {
  ASSERT_NO_FATAL_FAILURE(
      StartCluster({.durable = true,
                    .coordinator_flags = {},
                    .worker_flags = {"--read-root=" + files_, "--write-root=" + files_}}));
  ASSERT_NO_FATAL_FAILURE(Put("once", {"fsdp", "tp"}));
  const CommandResult saved = cluster_->Run({"save", "", files_ + "/saved"});
  ASSERT_EQ(saved.exit_code, 0) << saved.err;
  // Commits are durable in their order, so that of the checkpoint is when this one is.
  ASSERT_NO_FATAL_FAILURE(Put("later", {"fsdp"}));
  ASSERT_THAT(cluster_->Kill("coordinator"), IsOk());
  ASSERT_THAT(cluster_->Kill("worker-3"), IsOk());
  ASSERT_GT(std::filesystem::remove_all(cluster_->folder() + "/data/worker-3"), 0u);
  ASSERT_THAT(cluster_->Restart("coordinator"), IsOk());
  ASSERT_THAT(cluster_->Restart("worker-3"), IsOk());
  ASSERT_TRUE(Eventually([&] { return Degraded() == 0; })) << cluster_->Run({"ls"}).out;
  EXPECT_TRUE(Has("once"));
}

TEST_F(RepairTest, AWorkerWithoutTheRootOfTheFileIsNamed) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(
      {.mesh = "fsdp=2", .coordinator_flags = {}, .worker_flags = {"--read-root=" + files_}}));
  const std::string npy = files_ + "/x.npy";
  ASSERT_THAT(cluster_->Run({"make-tensor", "--shape=64,64", "--out", npy}), Succeeded());
  const CommandResult put =
      cluster_->Run({"put", npy, "--as=x", "--spec=fsdp", "--source=workers"});
  ASSERT_EQ(put.exit_code, 0) << put.err;
  ServerProcess spare("shardmesh-worker", {"--coordinator=" + cluster_->address(),
                                           "--listen=127.0.0.1:0", "--identity=spare"});
  ASSERT_TRUE(Eventually([&] {
    return cluster_->Run({"status"}).out.find("spare") != std::string::npos;
  })) << spare.Log();
  ASSERT_THAT(cluster_->Kill("worker-1"), IsOk());
  ASSERT_TRUE(Eventually([&] { return Degraded() == 1; }));
  ASSERT_THAT(cluster_->Run({"admin", "worker", "replace", "worker-1", "spare"}), Succeeded());
  ASSERT_TRUE(Eventually([&] {
    const json arrays = json::parse(cluster_->Run({"ls", "-ojson"}).out, nullptr, false);
    return arrays.dump().find("NO_READ_ROOT") != std::string::npos;
  })) << cluster_->Run({"ls"}).out;
  EXPECT_TRUE(Eventually([&] {
    const std::string listed = cluster_->Run({"ls"}).out;
    return listed.find("repair failed") != std::string::npos &&
           listed.find("spare") != std::string::npos;
  }));
}

}  // namespace
}  // namespace shardmesh::test
