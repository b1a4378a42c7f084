// Arrays with two replicas: each tile is on a second worker, and comes back from there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "client/cli/local/child_process.h"
#include "client/mesh_client.h"
#include "client/types/reshard.h"
#include "sharding/mesh_definition.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tensor/safetensors.h"
#include "tests/testing/eventually.h"
#include "tests/testing/metric_values.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

using ::nlohmann::json;
using ::shardmesh::client::ArraySelector;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

class ReplicaTest : public ::testing::Test {
 protected:
  ~ReplicaTest() override { std::filesystem::remove_all(files_); }

  void StartCluster(TestCluster::Options options = {}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(cluster_, TestCluster::Start(options));
  }
  client::MeshClient& client() { return cluster_->client(); }
  client::ArrayClient& arrays() { return cluster_->client().arrays(); }

  // Makes a file of numbers, puts it by the client, and deletes it.
  CommandResult Put(const std::string& name, std::vector<std::string> flags = {},
                    const std::string& shape = "64,64") {
    const std::string npy = StrCat(files_, "/x.npy");
    EXPECT_THAT(cluster_->Run({"make-tensor", "--shape=" + shape, "--out", npy}), Succeeded());
    std::vector<std::string> command = {"put", npy, "--as=" + name, "--source=client"};
    command.insert(command.end(), flags.begin(), flags.end());
    CommandResult result = cluster_->Run(command);
    std::filesystem::remove(npy);
    return result;
  }
  std::string BytesOf(const std::string& name) {
    const auto gathered = arrays().Gather(ArraySelector::ByName(name));
    if (!gathered.ok()) return std::string(gathered.status().message());
    return {gathered->view().bytes().begin(), gathered->view().bytes().end()};
  }
  int64_t Complete(const std::string& name) {
    const auto array = arrays().DescribeArray(ArraySelector::ByName(name));
    return array.ok() && array->replicas.has_value() ? array->replicas->complete : -1;
  }
  bool Becomes(const std::string& name, int64_t complete) {
    return Eventually([&] { return Complete(name) == complete; });
  }
  // Returns the bytes of the workers' tiles, without those in quarantine. Workers also use 16 MiB
  // of memory that they share with each peer, which is not counted.
  int64_t UsedBytes() {
    constexpr int64_t kBytesOfPeer = int64_t{16} << 20;
    const auto status = client().cluster().GetStatus();
    int64_t used = 0;
    if (!status.ok()) return -1;
    for (const client::WorkerStatus& worker : status->workers) {
      used += worker.used_bytes % kBytesOfPeer - worker.quarantined_bytes;
    }
    return used;
  }
  std::string Meshes() { return cluster_->Run({"catalog", "ls", "mesh", "-oname"}).out; }

  const std::string files_ = std::filesystem::canonical(MakeTestFolder("replica")).string();
  std::unique_ptr<TestCluster> cluster_;
};

TEST_F(ReplicaTest, TilesOfALostWorkerComeBackWithoutTheFile) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  const CommandResult put = Put("w", {"--spec=fsdp,tp", "--replicas=2"});
  ASSERT_EQ(put.exit_code, 0) << put.err;
  EXPECT_THAT(put.out, HasSubstr("Second replicas: 1 array has a second copy"));
  EXPECT_THAT(put.out, HasSubstr("on one host"));
  EXPECT_EQ(Complete("w"), 2);
  // The worker of each rank, and that of its second replica, which is another one.
  const CommandResult described = cluster_->Run({"describe", "w"});
  EXPECT_THAT(described.out, HasSubstr("second replica"));
  const json fields = json::parse(cluster_->Run({"describe", "w", "-ojson"}).out);
  ASSERT_EQ(fields["tiles"].size(), 4u);
  for (const json& tile : fields["tiles"]) {
    EXPECT_THAT(described.out, HasSubstr(tile["worker"].get<std::string>()));
    EXPECT_EQ(tile["second_replica"]["present"], true) << tile;
    EXPECT_NE(tile["second_replica"]["worker"], tile["worker"]) << tile;
  }
  const std::string bytes = BytesOf("w");
  for (const char* worker : {"worker-0", "worker-3", "worker-1"}) {
    SCOPED_TRACE(worker);
    ASSERT_THAT(cluster_->Kill(worker), IsOk());
    ASSERT_TRUE(Becomes("w", 1)) << cluster_->Run({"ls"}).out;
    const CommandResult listed = cluster_->Run({"ls"});
    EXPECT_THAT(listed.out, HasSubstr("replicas 1 of 2"));
    EXPECT_THAT(listed.out, HasSubstr("1 degraded array has its missing tiles in second replicas"));
    EXPECT_THAT(listed.out, Not(HasSubstr("with second replicas")));
    const CommandResult computed = cluster_->Run({"matmul", "w", "w"});
    EXPECT_EQ(computed.exit_code, 1);
    EXPECT_THAT(computed.err, HasSubstr("the second replica has these tiles"));
    EXPECT_THAT(computed.err, HasSubstr("`shardmesh admin worker replace`"));
    ASSERT_THAT(cluster_->Restart(worker), IsOk());
    ASSERT_TRUE(Becomes("w", 2)) << cluster_->Run({"ls"}).out;
    EXPECT_EQ(BytesOf("w"), bytes);
  }
  EXPECT_THAT(cluster_->Run({"array", "describe", "w"}).out, HasSubstr("replicas    2 of 2"));
}

// The worker is not started again, so nothing can repair its tiles. With data on disk, reads would
// otherwise wait for the worker.
TEST_F(ReplicaTest, ReadsGoOnFromTheSecondCopyWhileAWorkerIsLost) {
  for (const bool is_durable : {false, true}) {
    SCOPED_TRACE(is_durable);
    ASSERT_NO_FATAL_FAILURE(
        StartCluster({.durable = is_durable, .coordinator_flags = {}, .worker_flags = {}}));
    ASSERT_EQ(Put("w", {"--spec=fsdp,tp", "--replicas=2"}).exit_code, 0);
    ASSERT_EQ(Put("once", {"--spec=fsdp,tp"}, "64,32").exit_code, 0);
    const std::string bytes = BytesOf("w");
    ASSERT_EQ(bytes.size(), 64u * 64 * 4);
    const client::CallOptions soon{.timeout = absl::Seconds(20)};
    const auto read = [&]() -> std::string {
      const auto gathered = arrays().Gather(ArraySelector::ByName("w"), nullptr, soon);
      if (!gathered.ok()) return std::string(gathered.status().message());
      EXPECT_EQ(gathered->array().descriptor.mesh_id, "default");
      return {gathered->view().bytes().begin(), gathered->view().bytes().end()};
    };

    ASSERT_THAT(cluster_->Kill("worker-0"), IsOk());
    EXPECT_EQ(read(), bytes) << "perhaps before the coordinator has noticed the loss";
    ASSERT_TRUE(Becomes("w", 1)) << cluster_->Run({"ls"}).out;
    EXPECT_EQ(read(), bytes);
    EXPECT_EQ(Complete("w"), 1) << "it is still degraded";
    // One slice lies within each tile, and the last one in all four.
    for (const char* slice : {"5:6,7:8", "5:6,40:41", "50:51,7:8", "50:51,40:41", "31:33,31:33"}) {
      const CommandResult got =
          cluster_->Run({"get", "w", "--out", files_ + "/part.npy", "--slice", slice});
      EXPECT_EQ(got.exit_code, 0) << slice << got.err;
    }
    const CommandResult whole = cluster_->Run({"get", "w", "--out", files_ + "/w.npy"});
    ASSERT_EQ(whole.exit_code, 0) << whole.err;
    std::ifstream file(files_ + "/w.npy", std::ios::binary);
    const std::string npy((std::istreambuf_iterator<char>(file)), {});
    EXPECT_TRUE(npy.size() > bytes.size() && npy.substr(npy.size() - bytes.size()) == bytes);
    const std::vector<client::FileTensor> tensors = {
        {.name = "w", .array = ArraySelector::ByName("w")}};
    EXPECT_THAT(arrays().GatherToSafetensors(tensors, files_ + "/w.safetensors", nullptr, soon),
                IsOk());
    const absl::Status once =
        arrays()
            .Gather(ArraySelector::ByName("once"), nullptr, {.timeout = absl::Seconds(2)})
            .status();
    EXPECT_FALSE(once.ok()) << "it has no second copy";

    // The worker that is left has at most two of the four tiles.
    ASSERT_THAT(cluster_->Kill("worker-1"), IsOk());
    ASSERT_THAT(cluster_->Kill("worker-2"), IsOk());
    EXPECT_FALSE(
        arrays().Gather(ArraySelector::ByName("w"), nullptr, {.timeout = absl::Seconds(2)}).ok());
    cluster_.reset();
  }
}

// The worker is not started again, so nothing can repair its tiles. With data on disk, the calls
// would otherwise wait for the worker.
TEST_F(ReplicaTest, SavesAndReshardsTakeTheSecondCopyWhileAWorkerIsLost) {
  for (const bool is_durable : {false, true}) {
    SCOPED_TRACE(is_durable);
    ASSERT_NO_FATAL_FAILURE(StartCluster({.durable = is_durable,
                                          .coordinator_flags = {},
                                          .worker_flags = {"--write-root=" + files_}}));
    ASSERT_EQ(Put("w", {"--spec=fsdp,tp", "--replicas=2"}).exit_code, 0);
    const std::string bytes = BytesOf("w");
    ASSERT_EQ(bytes.size(), 64u * 64 * 4);
    const MeshDefinition others{.mesh = *Mesh::Parse("x=2"), .workers = {"worker-1", "worker-3"}};
    ASSERT_THAT(client().catalog().CreateEntry("others", others), IsOk());
    ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
    ASSERT_THAT(cluster_->Kill("worker-0"), IsOk());
    ASSERT_TRUE(Becomes("w", 1)) << cluster_->Run({"ls"}).out;

    const std::string folder = StrCat(files_, "/saved-", is_durable ? "disk" : "memory");
    const CommandResult saved = cluster_->Run({"save", "w", folder, "--single-file"});
    ASSERT_EQ(saved.exit_code, 0) << saved.err;
    {
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(folder));
      const Checkpoint::Entry* const entry = checkpoint.Find("w");
      ASSERT_NE(entry, nullptr);
      const absl::Span<const char> found = checkpoint.View(*entry).bytes();
      EXPECT_TRUE(std::string(found.begin(), found.end()) == bytes);
    }
    const CommandResult moved = cluster_->Run({"reshard", "w", "--mesh=others", "--to=x,-"});
    ASSERT_EQ(moved.exit_code, 0) << moved.err;
    EXPECT_TRUE(BytesOf("w") == bytes);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::Array array,
                                   arrays().DescribeArray(ArraySelector::ByName("w")));
    EXPECT_EQ(array.descriptor.mesh_id, "others");
    EXPECT_TRUE(array.missing_ranks.empty());
    EXPECT_TRUE(Becomes("w", 2)) << "the wish stays: " << cluster_->Run({"ls"}).out;
    cluster_.reset();
  }
}

TEST_F(ReplicaTest, AMeshIsResizedWithoutALostWorker) {
  ASSERT_NO_FATAL_FAILURE(
      StartCluster({.mesh = "dp=4", .coordinator_flags = {}, .worker_flags = {}}));
  ASSERT_EQ(Put("w", {"--spec=dp", "--replicas=2"}, "12,16").exit_code, 0);
  const std::string bytes = BytesOf("w");
  ASSERT_THAT(cluster_->Kill("worker-1"), IsOk());
  ASSERT_TRUE(Becomes("w", 1)) << cluster_->Run({"ls"}).out;
  const CommandResult resized = cluster_->Run({"mesh", "resize", "default", "dp=3"});
  ASSERT_EQ(resized.exit_code, 0) << resized.err;
  EXPECT_TRUE(BytesOf("w") == bytes);
  // The lost worker never says that it has dropped its tiles, so the old auxiliary mesh goes late.
  EXPECT_TRUE(Eventually([&] { return Complete("w") == 2; }, absl::Minutes(2)))
      << cluster_->Run({"ls"}).out;
}

// The worker does not count as lost in this time: the clients find out that it hangs.
TEST_F(ReplicaTest, ReadsGoOnFromTheSecondCopyWhileAWorkerIsStopped) {
  ASSERT_NO_FATAL_FAILURE(
      StartCluster({.coordinator_flags = {"--lost-after=10m"}, .worker_flags = {}}));
  ASSERT_EQ(Put("w", {"--spec=fsdp,tp", "--replicas=2"}).exit_code, 0);
  const std::string bytes = BytesOf("w");  // the client keeps its connections to the workers
  ASSERT_EQ(bytes.size(), 64u * 64 * 4);
  ASSERT_THAT(cluster_->Signal("worker-1", SIGSTOP), IsOk());
  // Typically little more than a second. The break of the kept connection and of a new one would
  // take 25 s.
  const client::CallOptions soon{.timeout = absl::Seconds(15)};
  for (const char* when : {"its heartbeats are not late", "they may be late"}) {
    const auto gathered = arrays().Gather(ArraySelector::ByName("w"), nullptr, soon);
    ASSERT_THAT(gathered, IsOk()) << when;
    EXPECT_TRUE(std::string(gathered->view().bytes().begin(), gathered->view().bytes().end()) ==
                bytes)
        << when;
  }
  EXPECT_EQ(Complete("w"), 2) << "no worker is lost";

  // From now on the coordinator lets clients ask the worker last. A command connects anew.
  ASSERT_TRUE(Eventually([&] {
    const auto status = client().cluster().GetStatus();
    return status.ok() && std::any_of(status->workers.begin(), status->workers.end(),
                                      [](const client::WorkerStatus& worker) {
                                        return worker.identity == "worker-1" &&
                                               worker.heartbeat_age > absl::Seconds(3);
                                      });
  }));
  const CommandResult got =
      cluster_->Run({"get", "w", "--out", files_ + "/w.npy", "--slice", "5:6,40:41"});
  EXPECT_EQ(got.exit_code, 0) << got.err;
  ASSERT_THAT(cluster_->Signal("worker-1", SIGCONT), IsOk());
  EXPECT_TRUE(Eventually([&] { return BytesOf("w") == bytes; }));
}

TEST_F(ReplicaTest, TheDeadlineOfACopyNamesTheWorkerThatIsStopped) {
  const std::string shape_bytes(64 * 64 * 4, 'x');
  const std::vector<client::PutTensor> tensors = {
      {.name = "w",
       .view = *TensorView::Create(Dtype::kF32, {64, 64}, shape_bytes),
       .spec = PartitionSpec({SpecEntry::Axis("fsdp"), SpecEntry::Axis("tp")})}};
  client::PutOptions options;
  options.replicas = 2;
  const std::vector<std::string> names = {"w"};
  std::string told;
  // The coordinator delays the first copy for half a second, and each worker does so again. On a
  // busy machine, the worker may be stopped after that.
  for (int attempt = 0; attempt < 10 && told.find("worker-1") == std::string::npos; ++attempt) {
    cluster_.reset();
    ASSERT_NO_FATAL_FAILURE(StartCluster(
        {.coordinator_flags = {"--lost-after=10m", "--failpoints=replicas.begin_transfer=delay"},
         .worker_flags = {"--failpoints=fill.open=delay"}}));
    ASSERT_THAT(arrays().PutTensors(tensors, options), IsOk());
    ASSERT_THAT(cluster_->Signal("worker-1", SIGSTOP), IsOk());
    const absl::Status late =
        arrays().AwaitReplicas(names, nullptr, {.timeout = absl::Seconds(4)}).status();
    told = std::string(late.message());
    ASSERT_THAT(cluster_->Signal("worker-1", SIGCONT), IsOk());
    EXPECT_TRUE(Becomes("w", 2)) << cluster_->Run({"ls"}).out;
  }
  EXPECT_THAT(told, HasSubstr("worker-1"));
}

TEST_F(ReplicaTest, AWorkerThatTakesTheRanksOfALostOneGetsTheTilesOfBothCopies) {
  ASSERT_NO_FATAL_FAILURE(
      StartCluster({.durable = true, .coordinator_flags = {}, .worker_flags = {}}));
  ASSERT_EQ(Put("w", {"--spec=fsdp,tp", "--replicas=2"}).exit_code, 0);
  const std::string bytes = BytesOf("w");
  ServerProcess spare("shardmesh-worker",
                      {"--coordinator=" + cluster_->address(), "--listen=127.0.0.1:0",
                       "--identity=spare", "--data-dir=" + files_ + "/spare"});
  ASSERT_TRUE(Eventually([&] {
    return cluster_->Run({"status"}).out.find("spare") != std::string::npos;
  })) << spare.Log();
  ASSERT_THAT(cluster_->Kill("worker-2"), IsOk());
  ASSERT_TRUE(Becomes("w", 1));
  const CommandResult replaced = cluster_->Run({"admin", "worker", "replace", "worker-2", "spare"});
  ASSERT_EQ(replaced.exit_code, 0) << replaced.err;
  ASSERT_TRUE(Becomes("w", 2)) << cluster_->Run({"ls"}).out << spare.Log();
  EXPECT_EQ(BytesOf("w"), bytes);
  // The copies on the new worker are of use in turn.
  ASSERT_THAT(cluster_->Kill("worker-0"), IsOk());
  ASSERT_GT(std::filesystem::remove_all(cluster_->folder() + "/data/worker-0"), 0u);
  ASSERT_TRUE(Becomes("w", 1));
  ASSERT_THAT(cluster_->Restart("worker-0"), IsOk());
  ASSERT_TRUE(Becomes("w", 2)) << cluster_->Run({"ls"}).out;
  EXPECT_EQ(BytesOf("w"), bytes);
}

// No command names a replacement. The workers keep their tiles in memory, so a lost one is not
// expected back.
TEST_F(ReplicaTest, ASpareWorkerTakesTheRanksOfAWorkerThatStaysLost) {
  ASSERT_NO_FATAL_FAILURE(
      StartCluster({.coordinator_flags = {"--replace-lost-after=1s"}, .worker_flags = {}}));
  ASSERT_EQ(Put("w", {"--spec=fsdp,tp", "--replicas=2"}).exit_code, 0);
  const std::string bytes = BytesOf("w");
  ServerProcess spare("shardmesh-worker", {"--coordinator=" + cluster_->address(),
                                           "--listen=127.0.0.1:0", "--identity=spare"});
  ASSERT_TRUE(Eventually([&] {
    return cluster_->Run({"status"}).out.find("spare") != std::string::npos;
  })) << spare.Log();
  // Whether the array has a tile on the new worker, and none on the old one.
  const auto has_moved = [&](const std::string& from, const std::string& to) {
    const json fields = json::parse(cluster_->Run({"describe", "w", "-ojson"}).out, nullptr, false);
    if (!fields.is_object() || !fields.contains("tiles")) return false;
    bool is_there = false;
    for (const json& tile : fields["tiles"]) {
      if (tile["worker"] == from) return false;
      is_there = is_there || tile["worker"] == to;
    }
    return is_there;
  };
  ASSERT_THAT(cluster_->Kill("worker-2"), IsOk());
  ASSERT_TRUE(Eventually([&] { return has_moved("worker-2", "spare"); }))
      << cluster_->Run({"status"}).out;
  ASSERT_TRUE(Becomes("w", 2)) << cluster_->Run({"ls"}).out << spare.Log();
  EXPECT_EQ(BytesOf("w"), bytes);
  CommandResult computed;
  EXPECT_TRUE(Eventually([&] {
    computed = cluster_->Run({"matmul", "w", "w"});
    return computed.exit_code == 0;
  })) << computed.err;
  // No other worker is left for the ranks of the next one, until the first one is back.
  ASSERT_THAT(cluster_->Kill("worker-1"), IsOk());
  ASSERT_TRUE(Eventually([&] {
    return cluster_->Run({"status"}).out.find("there is no spare worker for its ranks") !=
           std::string::npos;
  })) << cluster_->Run({"status"}).out;
  ASSERT_THAT(cluster_->Restart("worker-2"), IsOk());
  ASSERT_TRUE(Eventually([&] { return has_moved("worker-1", "worker-2"); }))
      << cluster_->Run({"status"}).out;
  ASSERT_TRUE(Becomes("w", 2)) << cluster_->Run({"ls"}).out;
  EXPECT_EQ(BytesOf("w"), bytes);
  const auto metrics = MetricValues(cluster_->metrics_addresses().front());
  ASSERT_THAT(metrics, IsOk());
  EXPECT_THAT(*metrics, Contains(Pair("shardmesh_replaced_workers_total", 2)));
  EXPECT_THAT(*metrics, Contains(Pair("shardmesh_lost_workers_without_spare", 0)));
}

// Without the cache of released arrays, which would keep the first copy.
TEST_F(ReplicaTest, TheReleaseOfAnArrayFreesBothCopiesAndTheMeshOfTheCopies) {
  ASSERT_NO_FATAL_FAILURE(
      StartCluster({.coordinator_flags = {}, .worker_flags = {"--cache-bytes=1"}}));
  const int64_t before = UsedBytes();
  ASSERT_EQ(Put("w", {"--spec=fsdp,tp", "--replicas=2"}).exit_code, 0);
  EXPECT_THAT(Meshes(), HasSubstr("default.replicas-"));
  ASSERT_TRUE(Eventually([&] { return UsedBytes() == before + 2 * 64 * 64 * 4; })) << UsedBytes();
  const CommandResult listed = cluster_->Run({"ls", "--unnamed"});
  EXPECT_THAT(listed.out, HasSubstr("1 array, 16.0 KiB, 32.0 KiB with second replicas"));
  ASSERT_THAT(cluster_->Run({"rm", "w"}), Succeeded());
  EXPECT_TRUE(Eventually([&] { return UsedBytes() == before; })) << UsedBytes();
  EXPECT_TRUE(Eventually([&] { return Meshes().find("replicas") == std::string::npos; }));
}

TEST_F(ReplicaTest, APutUnderTheNameKeepsTheWishAndReplacesTheCopy) {
  ASSERT_NO_FATAL_FAILURE(
      StartCluster({.coordinator_flags = {}, .worker_flags = {"--cache-bytes=1"}}));
  ASSERT_EQ(Put("w", {"--spec=fsdp,tp", "--replicas=2"}).exit_code, 0);
  ASSERT_EQ(Put("w", {"--spec=tp,fsdp"}, "32,32").exit_code, 0);
  ASSERT_TRUE(Becomes("w", 2));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::Array array,
                                 arrays().DescribeArray(ArraySelector::ByName("w")));
  ASSERT_THAT(arrays().MoveName("v", array.descriptor.array_id), IsOk());
  ASSERT_THAT(arrays().DeleteName("w"), IsOk());
  EXPECT_EQ(Complete("v"), 2);
  EXPECT_TRUE(Eventually([&] { return UsedBytes() == 2 * 32 * 32 * 4; })) << UsedBytes();
  // The elements are there, and they are not taken with both copies.
  ASSERT_EQ(Put("v", {"--spec=tp,fsdp", "--replicas=1"}, "32,32").exit_code, 0);
  EXPECT_EQ(Complete("v"), -1);
  EXPECT_TRUE(Eventually([&] { return UsedBytes() == 32 * 32 * 4; })) << UsedBytes();
}

TEST_F(ReplicaTest, ReshardsAndResizesKeepTheWish) {
  ASSERT_NO_FATAL_FAILURE(
      StartCluster({.mesh = "dp=4", .coordinator_flags = {}, .worker_flags = {}}));
  // Tiles of all shapes take multiples of 64 bytes, as memory is given out.
  ASSERT_EQ(Put("w", {"--spec=dp", "--replicas=2"}, "12,16").exit_code, 0);
  const std::string bytes = BytesOf("w");
  const CommandResult moved = cluster_->Run({"reshard", "w", "--to=-,dp", "--release-source"});
  ASSERT_EQ(moved.exit_code, 0) << moved.err;
  ASSERT_TRUE(Becomes("w", 2)) << cluster_->Run({"ls"}).out;
  ASSERT_THAT(cluster_->Run({"reshard", "w", "--to=dp", "--release-source"}), Succeeded());
  for (const char* shape : {"dp=3", "dp=4", "dp=2"}) {
    SCOPED_TRACE(shape);
    const CommandResult resized = cluster_->Run({"mesh", "resize", "default", shape});
    ASSERT_EQ(resized.exit_code, 0) << resized.err;
    ASSERT_TRUE(Becomes("w", 2)) << cluster_->Run({"ls"}).out;
    EXPECT_TRUE(Eventually([&] { return UsedBytes() == 2 * 12 * 16 * 4; })) << UsedBytes();
    EXPECT_EQ(BytesOf("w"), bytes);
  }
  // One worker keeps the array and the wish.
  ASSERT_THAT(cluster_->Run({"mesh", "resize", "default", "dp=1"}), Succeeded());
  EXPECT_TRUE(Eventually([&] {
    return cluster_->Run({"describe", "w"}).out.find("has one worker") != std::string::npos;
  })) << cluster_->Run({"describe", "w"}).out;
  ASSERT_THAT(cluster_->Run({"mesh", "resize", "default", "dp=4"}), Succeeded());
  EXPECT_TRUE(Becomes("w", 2)) << cluster_->Run({"ls"}).out;
  EXPECT_EQ(BytesOf("w"), bytes);
}

TEST_F(ReplicaTest, ACoordinatorThatDiesDuringTheCopyMakesItAfterItsRestart) {
  ASSERT_NO_FATAL_FAILURE(StartCluster({.durable = true,
                                        .coordinator_flags = {},
                                        .worker_flags = {"--failpoints=fill.open=delay:2"}}));
  std::vector<float> values(64 * 64);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  client::PutOptions options;
  options.replicas = 2;
  const std::string shape_bytes(reinterpret_cast<const char*>(values.data()), values.size() * 4);
  const Shape shape = {64, 64};
  const std::vector<client::PutTensor> tensors = {
      {.name = "w",
       .view = *TensorView::Create(Dtype::kF32, shape, shape_bytes),
       .spec = PartitionSpec({SpecEntry::Axis("fsdp"), SpecEntry::Axis("tp")})}};
  ASSERT_THAT(arrays().PutTensors(tensors, options), IsOk());
  ASSERT_THAT(cluster_->Kill("coordinator"), IsOk());
  ASSERT_THAT(cluster_->Restart("coordinator"), IsOk());
  ASSERT_TRUE(Becomes("w", 2)) << cluster_->Run({"ls"}).out;
  EXPECT_EQ(BytesOf("w"), shape_bytes);
  EXPECT_TRUE(Eventually([&] { return UsedBytes() == 2 * 64 * 64 * 4; })) << UsedBytes();
  // Both copies survive another restart, and so does their bond.
  ASSERT_THAT(cluster_->Kill("coordinator"), IsOk());
  ASSERT_THAT(cluster_->Restart("coordinator"), IsOk());
  ASSERT_TRUE(Becomes("w", 2));
  ASSERT_THAT(cluster_->Run({"rm", "w"}), Succeeded());
  EXPECT_TRUE(Eventually([&] { return UsedBytes() == 0; })) << UsedBytes();
}

TEST_F(ReplicaTest, ASignalDuringTheWaitSaysThatTheCopiesGoOn) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(
      {.mesh = "dp=2", .coordinator_flags = {}, .worker_flags = {"--failpoints=fill.open=delay"}}));
  const std::string npy = StrCat(files_, "/x.npy");
  ASSERT_THAT(cluster_->Run({"make-tensor", "--shape=2048,2048", "--out", npy}), Succeeded());
  std::string log;
  // The first copy is delayed for half a second. On a busy machine, the signal may come after that,
  // or before the command has the answer of its put.
  const std::string told = "interrupted: the arrays are there, and the workers go on";
  for (int attempt = 0; attempt < 10 && log.find(told) == std::string::npos; ++attempt) {
    const std::string name = StrCat("w", attempt);
    client::ProcessOptions options;
    options.command = {SHARDMESH_BINARY_DIR "/shardmesh",
                       "put",
                       npy,
                       "--as=" + name,
                       "--spec=dp",
                       "--source=client",
                       "--no-reuse",
                       "--replicas=2",
                       "--address=" + cluster_->address()};
    options.log_path = StrCat(files_, "/", name, ".log");
    SHARDMESH_ASSERT_OK_AND_ASSIGN(client::ChildProcess put, client::ChildProcess::Start(options));
    ASSERT_TRUE(Eventually([&] { return Complete(name) > 0; }))
        << client::ReadLog(options.log_path);
    client::SendSignal(put.id(), SIGINT).IgnoreError();
    ASSERT_TRUE(client::WaitUntilGone(put.id(), absl::Now() + absl::Seconds(30)));
    log = client::ReadLog(options.log_path);
    EXPECT_TRUE(Becomes(name, 2)) << cluster_->Run({"ls"}).out;
  }
  EXPECT_THAT(log, HasSubstr(told));
}

TEST_F(ReplicaTest, UnevenTilesHaveReplicas) {
  ASSERT_NO_FATAL_FAILURE(
      StartCluster({.mesh = "dp=3", .coordinator_flags = {}, .worker_flags = {}}));
  const CommandResult put = Put("w", {"--spec=dp", "--cuts=0:1,6", "--replicas=2"}, "7,5");
  ASSERT_EQ(put.exit_code, 0) << put.err;
  const std::string bytes = BytesOf("w");
  for (const char* worker : {"worker-0", "worker-1", "worker-2"}) {
    ASSERT_THAT(cluster_->Kill(worker), IsOk());
    ASSERT_TRUE(Becomes("w", 1));
    ASSERT_THAT(cluster_->Restart(worker), IsOk());
    ASSERT_TRUE(Becomes("w", 2)) << cluster_->Run({"ls"}).out;
    EXPECT_EQ(BytesOf("w"), bytes);
  }
}

TEST_F(ReplicaTest, AnArrayThatItsSpecReplicatesGetsNoCopy) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  const CommandResult put = Put("w", {"--spec=fsdp", "--replicas=2"});
  ASSERT_EQ(put.exit_code, 0) << put.err;
  EXPECT_THAT(put.out, HasSubstr("the spec alone puts each tile on two workers"));
  EXPECT_EQ(Complete("w"), 2);
  EXPECT_THAT(Meshes(), Not(HasSubstr("replicas")));
  EXPECT_THAT(cluster_->Run({"describe", "w"}).out, HasSubstr("by the spec alone"));
}

TEST_F(ReplicaTest, WhatCannotBeKeptTwiceIsRefusedBeforeAnythingMoves) {
  ASSERT_NO_FATAL_FAILURE(
      StartCluster({.mesh = "dp=2", .coordinator_flags = {}, .worker_flags = {"--memory=1MiB"}}));
  // Each worker has room for one copy of its part, and not for two.
  const CommandResult large = Put("w", {"--spec=dp", "--replicas=2"}, "384,1024");
  EXPECT_NE(large.exit_code, 0);
  EXPECT_THAT(large.err, HasSubstr("of it for second replicas"));
  EXPECT_THAT(large.err, HasSubstr("the put needs 1.50 MiB there, 768 KiB of it"));
  EXPECT_EQ(Put("w", {"--spec=dp", "--replicas=1"}, "384,1024").exit_code, 0);

  const CommandResult three_times =
      cluster_->Run({"put", "-", "--as=x", "--spec=dp", "--replicas=3"});
  EXPECT_EQ(three_times.exit_code, 2);
  EXPECT_THAT(three_times.err, HasSubstr("\"3\" is no number from 1 to 2"));
  client::PutOptions three;
  three.replicas = 3;
  const Shape shape = {2};
  const std::string bytes(8, '\0');
  std::vector<client::PutTensor> tensors = {{.name = "x",
                                             .view = *TensorView::Create(Dtype::kF32, shape, bytes),
                                             .spec = PartitionSpec({SpecEntry::Axis("dp")})}};
  const absl::Status many = arrays().PutTensors(tensors, three).status();
  EXPECT_THAT(many, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_THAT(std::string(many.message()), HasSubstr("is 3; each tile can be kept on 1 or 2"));
  three.replicas = 2;
  tensors[0].name.clear();
  const absl::Status nameless = arrays().PutTensors(tensors, three).status();
  EXPECT_THAT(std::string(nameless.message()), HasSubstr("only arrays with names"));
}

TEST_F(ReplicaTest, AMeshOfOneWorkerRefusesReplicas) {
  ASSERT_NO_FATAL_FAILURE(
      StartCluster({.mesh = "dp=1", .coordinator_flags = {}, .worker_flags = {}}));
  const CommandResult put = Put("w", {"--spec=dp", "--replicas=2"});
  EXPECT_NE(put.exit_code, 0);
  EXPECT_THAT(put.err, HasSubstr("has one worker"));
}

}  // namespace
}  // namespace shardmesh::test
