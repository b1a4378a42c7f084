// Tiles that clients hand over as memory to workers on their host, in clusters of real processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/arrays.h"
#include "client/mesh_client.h"
#include "client/types/array.h"
#include "sharding/axis_value.h"
#include "sharding/spec.h"
#include "status/str_cat.h"
#include "tensor/view.h"
#include "tests/testing/eventually.h"
#include "tests/testing/metric_values.h"
#include "tests/testing/read_file.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

using ::nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

// 8 MiB, of which each of four workers gets 2 MiB.
constexpr char kShape[] = "--shape=2048,1024";
constexpr int64_t kTensorBytes = int64_t{8} << 20;

class HandoverTest : public ::testing::Test {
 protected:
  void Start(const TestCluster::Options& options = {}) {
    auto cluster = TestCluster::Start(options);
    ASSERT_THAT(cluster, IsOk());
    cluster_ = *std::move(cluster);
    ASSERT_THAT(cluster_->Run({"make-tensor", kShape, "--out", Path("x.npy")}), Succeeded());
  }
  std::string Path(const std::string& name) const { return cluster_->folder() + "/" + name; }
  json Put(const std::string& name, const std::string& spec, std::vector<std::string> flags = {}) {
    std::vector<std::string> command = {"put",        Path("x.npy"),    "--as",
                                        name,         "--spec=" + spec, "--source=client",
                                        "--no-reuse", "--output=json"};
    command.insert(command.end(), flags.begin(), flags.end());
    const CommandResult result = cluster_->Run(command);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.exit_code == 0 ? json::parse(result.out) : json();
  }
  bool HasTheFilesBytes(const std::string& name) {
    const CommandResult got = cluster_->Run({"get", name, "--out", Path("got.npy")});
    EXPECT_EQ(got.exit_code, 0) << got.err;
    return got.exit_code == 0 && ReadFile(Path("got.npy")) == ReadFile(Path("x.npy"));
  }
  // Returns the bytes that all workers count as handed over.
  int64_t CountedBytes() const {
    double sum = 0;
    const std::vector<std::string> addresses = cluster_->metrics_addresses();
    for (size_t i = 1; i < addresses.size(); ++i) {
      const auto values = MetricValues(addresses[i]);
      EXPECT_THAT(values, IsOk());
      if (values.ok()) sum += values->at("shardmesh_worker_handed_over_bytes_total");
    }
    return static_cast<int64_t>(sum);
  }
  // The files that a process has open as memory that a client has made.
  size_t OpenMemory(const std::string& identity) const {
    const json status = json::parse(cluster_->Run({"status", "--output=json"}).out);
    for (const json& worker : status["workers"]) {
      if (worker["identity"] != identity) continue;
      size_t count = 0;
      const std::string folder = StrCat("/proc/", worker["pid"].get<int64_t>(), "/fd");
      for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        std::error_code error;
        const auto target = std::filesystem::read_symlink(entry.path(), error);
        count += target.string().find("shardmesh-handover") != std::string::npos ? 1 : 0;
      }
      return count;
    }
    ADD_FAILURE() << "no " << identity;
    return 0;
  }

  std::unique_ptr<TestCluster> cluster_;
};

TEST_F(HandoverTest, TilesOfEveryLayoutArriveAsTheyWereAndAreCounted) {
  ASSERT_NO_FATAL_FAILURE(Start());
  int64_t all_bytes = 0;
  for (const std::string spec : {"fsdp,tp", "(fsdp,tp),-", "-,(fsdp,tp)", "tp,-", "-,-"}) {
    const json put = Put("w", spec);
    EXPECT_EQ(put["handed_over_bytes"], put["sent_bytes"]) << spec << " " << put;
    EXPECT_FALSE(put.contains("handover_refused"));
    all_bytes += put["sent_bytes"].get<int64_t>();
    EXPECT_TRUE(HasTheFilesBytes("w")) << spec;
  }
  EXPECT_EQ(CountedBytes(), all_bytes);
  EXPECT_EQ(Put("w", "fsdp,tp", {"--handover=off"})["handed_over_bytes"], 0);
  EXPECT_EQ(Put("w", "fsdp,tp", {"--handover=on"})["handed_over_bytes"], kTensorBytes);
  const CommandResult said = cluster_->Run(
      {"put", Path("x.npy"), "--as=w", "--spec=fsdp,tp", "--source=client", "--no-reuse"});
  EXPECT_THAT(said.out, HasSubstr("read by this client, 8.00 MiB handed over as memory"));
  EXPECT_EQ(
      cluster_->Run({"put", Path("x.npy"), "--as=w", "--spec=fsdp,tp", "--handover=yes"}).exit_code,
      2);
  ASSERT_EQ(
      cluster_->Run({"make-checkpoint", "--out", Path("m.safetensors"), "--size=72MiB"}).exit_code,
      0);
  std::ofstream(Path("rules.yaml")) << "rules:\n- {pattern: '.*', spec: [fsdp, tp]}\n";
  const CommandResult loaded =
      cluster_->Run({"load", Path("m.safetensors"), "--rules", Path("rules.yaml"),
                     "--source=client", "--handover=on", "--output=json"});
  ASSERT_EQ(loaded.exit_code, 0) << loaded.err;
  EXPECT_GT(json::parse(loaded.out)["handed_over_bytes"], 0);
  // Memory without a name goes back to the host, once the cache is dropped too.
  ASSERT_THAT(cluster_->Run({"rm", "--tree="}), Succeeded());
  ASSERT_THAT(cluster_->Run({"admin", "cache", "drop"}), Succeeded());
  EXPECT_TRUE(Eventually([&] { return OpenMemory("worker-0") == 0; }));
}

// Peers read such tiles in place, and nobody writes its result into one.
TEST_F(HandoverTest, StepsUseSuchTilesAndLeaveThemAsTheyAre) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_EQ(Put("w", "fsdp,tp")["handed_over_bytes"], kTensorBytes);
  CommandResult result =
      cluster_->Run({"collective", "all-gather", "w", "--axes=tp", "--dimension=1", "--as=whole"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(HasTheFilesBytes("whole"));
  EXPECT_TRUE(HasTheFilesBytes("w"));
  result = cluster_->Run({"reshard", "w", "--to=-,(fsdp,tp)"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(HasTheFilesBytes("w"));
}

// A step may be given an array without a name, to write its result into it.
TEST_F(HandoverTest, TensorsWithoutANameAreStreamedUnlessMemoryIsAskedFor) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::string bytes(static_cast<size_t>(kTensorBytes), 'x');
  const client::PutTensor tensor{
      .name = "",
      .view = *TensorView::Create(Dtype::kF32, {2'048, 1'024}, bytes),
      .spec = *PartitionSpec::Create({AxisValue::Name("fsdp"), AxisValue::Name("tp")})};
  client::ArrayClient& arrays = cluster_->client().arrays();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::PutResult put, arrays.PutTensors({tensor}));
  EXPECT_EQ(put.sent_bytes, kTensorBytes);
  EXPECT_EQ(put.handed_over_bytes, 0);
  EXPECT_THAT(put.handover_refused.ToString(), HasSubstr("without a name"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::PutResult asked,
                                 arrays.PutTensors({tensor}, {.handover = client::Handover::kOn}));
  EXPECT_EQ(asked.handed_over_bytes, kTensorBytes);
  EXPECT_THAT(asked.handover_refused, IsOk());
}

TEST_F(HandoverTest, WorkersThatShareNoMemoryGetStreams) {
  TestCluster::Options options;
  options.worker_flags = {"--transport=stream"};
  ASSERT_NO_FATAL_FAILURE(Start(options));
  const json put = Put("w", "fsdp,tp");
  EXPECT_EQ(put["handed_over_bytes"], 0);
  EXPECT_THAT(put["handover_refused"].get<std::string>(), HasSubstr("--transport"));
  EXPECT_TRUE(HasTheFilesBytes("w"));
  const CommandResult refused = cluster_->Run({"put", Path("x.npy"), "--as=v", "--spec=fsdp,tp",
                                               "--source=client", "--no-reuse", "--handover=on"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("NOT_AVAILABLE"), HasSubstr("cannot be handed over")));
  const CommandResult said = cluster_->Run({"put", Path("x.npy"), "--as=v", "--spec=fsdp,tp",
                                            "--source=client", "--no-reuse", "--handover=auto"});
  EXPECT_THAT(said.out, HasSubstr("Tiles were streamed: "));
}

TEST_F(HandoverTest, GoesWithTls) {
  TestCluster::Options options;
  options.tls_folder = MakeTestFolder("handover-tls");
  ASSERT_NO_FATAL_FAILURE(Start(options));
  EXPECT_EQ(Put("w", "fsdp,tp", {"--handover=on"})["handed_over_bytes"], kTensorBytes);
  EXPECT_TRUE(HasTheFilesBytes("w"));
}

TEST_F(HandoverTest, TilesOnDiskOutliveARestartOfTheirWorkers) {
  TestCluster::Options options;
  options.durable = true;
  ASSERT_NO_FATAL_FAILURE(Start(options));
  ASSERT_EQ(Put("w", "fsdp,tp")["handed_over_bytes"], kTensorBytes);
  for (const char* worker : {"worker-0", "worker-3"}) {
    ASSERT_THAT(cluster_->Kill(worker), IsOk());
    ASSERT_THAT(cluster_->Restart(worker), IsOk());
  }
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  EXPECT_TRUE(HasTheFilesBytes("w"));
  // A worker that was started again listens at another socket.
  EXPECT_EQ(Put("v", "fsdp,tp", {"--handover=on"})["handed_over_bytes"], kTensorBytes);
}

// A worker ends when all bytes of its tile are there.
TEST_F(HandoverTest, NothingIsLeftOfAPutWhoseWorkerDies) {
  TestCluster::Options options;
  options.worker_flags = {"--failpoints=put.finish=crash"};
  ASSERT_NO_FATAL_FAILURE(Start(options));
  const CommandResult put = cluster_->Run({"put", Path("x.npy"), "--as=w", "--spec=fsdp,tp",
                                           "--source=client", "--handover=on", "--no-reuse"});
  EXPECT_EQ(put.exit_code, 1) << put.out;
  EXPECT_THAT(cluster_->Run({"ls", "--output=json"}).out, HasSubstr("[]"));
}

}  // namespace
}  // namespace shardmesh::test
