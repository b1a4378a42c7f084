// Killed and stopped processes: the error names them, nothing half-made is visible, and afterwards
// all is well again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "process/clock.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/server_lifecycle.h"
#include "server/state/definitions.h"
#include "server/state/request_memory.h"
#include "server/store/sqlite_store.h"
#include "shardmesh/v1/catalog_service.pb.h"
#include "status/str_cat.h"
#include "tensor/literal.h"
#include "tensor/view.h"
#include "tests/testing/eventually.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// From the death of a worker to the error that names it.
constexpr absl::Duration kNamedWithin = absl::Seconds(2);

PartitionSpec Spec(std::vector<std::string> axes) {
  std::vector<SpecEntry> entries;
  for (std::string& axis : axes) {
    entries.push_back(SpecEntry::Axis(std::move(axis)));
  }
  return PartitionSpec(std::move(entries));
}

// A matrix of small whole numbers, cut over fsdp and tp.
class Weights {
 public:
  explicit Weights(int64_t side) : side_(side), values_(static_cast<size_t>(side * side)) {
    for (size_t i = 0; i < values_.size(); ++i) {
      values_[i] = static_cast<float>(i % 7);
    }
  }

  client::PutTensor Tensor(const std::string& name) const {
    return {.name = name,
            .view = *TensorView::Create(Dtype::kF32, {side_, side_}, bytes()),
            .spec = Spec({"fsdp", "tp"}),
            .cut_points = {}};
  }
  absl::Span<const char> bytes() const {
    return {reinterpret_cast<const char*>(values_.data()), values_.size() * sizeof(float)};
  }

 private:
  const int64_t side_;
  std::vector<float> values_;
};

Literal Ones(int64_t rows, int64_t columns) {
  const std::vector<float> ones(static_cast<size_t>(rows * columns), 1.0f);
  return {Dtype::kF32,
          {rows, columns},
          std::string(reinterpret_cast<const char*>(ones.data()), ones.size() * sizeof(float))};
}

client::MatmulCall Product(const std::string& name) {
  return {.lhs = client::Operand(Ones(8, 64)),
          .rhs = client::Operand(client::ArraySelector::ByName(name))};
}

// Writes a mesh down anew in the store of a coordinator that does not run: its revision. With other
// axes where they are given.
int64_t DefineMeshAgain(const std::string& folder, const std::string& mesh_id,
                        const std::string& axes = "") {
  RealClock clock;
  const auto store = server::OpenSqliteStore(
      {.folder = folder, .local = {.history = server::DefinitionHistory()}});
  EXPECT_THAT(store, IsOk());
  const auto requests = server::RequestMemory::Open(store->get(), &clock);
  EXPECT_THAT(requests, IsOk());
  const auto definition_store =
      server::DefinitionStore::Open(store->get(), &clock, requests->get());
  EXPECT_THAT(definition_store, IsOk());
  const auto mesh = (*definition_store)->state().FindMesh(mesh_id);
  EXPECT_THAT(mesh, IsOk());
  v1::EntryValue value;
  MeshDefinition definition = **mesh;
  if (!axes.empty()) definition.mesh = *Mesh::Parse(axes);
  rpc::Encode(definition, value.mutable_mesh());
  int64_t revision = 0;
  absl::Notification is_written;
  (*definition_store)
      ->Update({.request_id = "", .name = mesh_id}, value.SerializeAsString(),
               [&](absl::StatusOr<std::shared_ptr<const server::Definition>> written) {
                 EXPECT_THAT(written, IsOk());
                 if (written.ok()) revision = (*written)->revision;
                 is_written.Notify();
               });
  is_written.WaitForNotification();
  return revision;
}

class FaultTest : public ::testing::Test {
 protected:
  void StartCluster(const TestCluster::Options& options = {}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(cluster_, TestCluster::Start(options));
  }
  void Put(const Weights& weights, const std::string& name) {
    const client::PutTensor tensor = weights.Tensor(name);
    ASSERT_THAT(client().arrays().PutTensors({&tensor, 1}), IsOk());
  }
  std::vector<std::string> Names() {
    const absl::StatusOr<std::vector<client::Array>> arrays = client().arrays().ListArrays();
    std::vector<std::string> names;
    for (const client::Array& array : *arrays) {
      names.push_back(array.name);
    }
    return names;
  }
  client::MeshClient& client() { return cluster_->client(); }

  std::unique_ptr<TestCluster> cluster_;
};

TEST_F(FaultTest, AWorkerKilledDuringALoadIsNamedAndNothingIsVisible) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  const Weights weights(4096);  // 64 MiB: more than what connections hold
  const client::PutTensor tensor = weights.Tensor("big");
  // A stopped worker takes nothing in, so that the load is under way when the worker dies.
  ASSERT_THAT(cluster_->Signal("worker-2", SIGSTOP), IsOk());
  std::promise<void> begun;
  std::atomic<bool> has_begun = false;
  client::PutOptions options;
  options.progress = [&](int64_t done, int64_t) {
    if (done > 0 && !has_begun.exchange(true)) {
      begun.set_value();
    }
  };
  auto put = std::async(std::launch::async, [&] {
    return client().arrays().PutTensors({&tensor, 1}, options);
  });
  ASSERT_EQ(begun.get_future().wait_for(std::chrono::seconds(4)), std::future_status::ready);
  const absl::Time killed = absl::Now();
  ASSERT_THAT(cluster_->Kill("worker-2"), IsOk());
  const auto result = put.get();
  EXPECT_LT(absl::Now() - killed, kNamedWithin);
  EXPECT_THAT(result, StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("worker-2"));
  EXPECT_THAT(Names(), IsEmpty());
  EXPECT_THAT(client().layouts().CorrectSpec(
                  {.spec = Spec({"fsdp", "tp"}), .shape = {8, 8}, .mesh = "default"}),
              IsOk());

  ASSERT_THAT(cluster_->Restart("worker-2"), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  EXPECT_THAT(client().arrays().PutTensors({&tensor, 1}), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::GatheredTensor gathered,
                                 client().arrays().Gather(client::ArraySelector::ByName("big")));
  EXPECT_TRUE(gathered.view().bytes() == weights.bytes());
}

TEST_F(FaultTest, AWorkerKilledDuringAStepIsNamedAndTheOthersGoOn) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  const Weights weights(64);
  ASSERT_NO_FATAL_FAILURE(Put(weights, "w"));
  const client::PutTensor replicated = {
      .name = "everywhere",
      .view = *TensorView::Create(Dtype::kF32, {64, 64}, weights.bytes()),
      .spec = PartitionSpec(),
      .cut_points = {}};
  ASSERT_THAT(client().arrays().PutTensors({&replicated, 1}), IsOk());

  ASSERT_THAT(cluster_->Signal("worker-1", SIGSTOP), IsOk());
  auto step =
      std::async(std::launch::async, [&] { return client().compute().Matmul(Product("w")); });
  // It cannot end: a rank is stopped.
  ASSERT_EQ(step.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout);
  const absl::Time killed = absl::Now();
  ASSERT_THAT(cluster_->Kill("worker-1"), IsOk());
  const auto result = step.get();
  EXPECT_LT(absl::Now() - killed, kNamedWithin);
  EXPECT_FALSE(result.ok());
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("worker-1"));
  EXPECT_THAT(Names(), ::testing::ElementsAre("everywhere", "w"));

  // Reads from the other workers go on.
  EXPECT_THAT(client().arrays().Gather(client::ArraySelector::ByName("everywhere")), IsOk());
  const auto degraded = client().arrays().Gather(client::ArraySelector::ByName("w"));
  EXPECT_THAT(degraded, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kArrayDegraded));
  EXPECT_THAT(
      std::string(degraded.status().message()),
      AllOf(HasSubstr("tensor \"w\" lacks 1 of its "), HasSubstr("missing: rank 1 (worker-1: ")));

  ASSERT_THAT(cluster_->Restart("worker-1"), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ClusterStatus status,
                                 client().cluster().GetStatus());
  EXPECT_EQ(status.meshes.front().workers[1], "worker-1") << "it takes its rank back";
  ASSERT_NO_FATAL_FAILURE(Put(weights, "w"));
  EXPECT_THAT(client().compute().Matmul(Product("w")), IsOk());
}

TEST_F(FaultTest, AStoppedWorkerIsNamedAfterTheHeartbeatLimit) {
  ASSERT_NO_FATAL_FAILURE(
      StartCluster({.coordinator_flags = {"--heartbeat-interval=200ms", "--lost-after=1s"},
                    .worker_flags = {}}));
  const Weights weights(64);
  ASSERT_NO_FATAL_FAILURE(Put(weights, "w"));
  const absl::Time stopped = absl::Now();
  ASSERT_THAT(cluster_->Signal("worker-3", SIGSTOP), IsOk());
  const auto result = client().compute().Matmul(Product("w"));
  EXPECT_LT(absl::Now() - stopped, absl::Seconds(1) + kNamedWithin);
  EXPECT_FALSE(result.ok());
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("worker-3"));
  ASSERT_THAT(cluster_->Signal("worker-3", SIGCONT), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  EXPECT_THAT(client().compute().Matmul(Product("w")), IsOk()) << "it kept its tiles";
}

TEST_F(FaultTest, StateSurvivesTheDeathOfTheCoordinator) {
  ASSERT_NO_FATAL_FAILURE(
      StartCluster({.durable = true, .coordinator_flags = {}, .worker_flags = {}}));
  const Weights weights(64);
  ASSERT_NO_FATAL_FAILURE(Put(weights, "w"));
  ASSERT_THAT(cluster_->Kill("coordinator"), IsOk());
  ASSERT_THAT(cluster_->Restart("coordinator"), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::GatheredTensor gathered,
                                 client().arrays().Gather(client::ArraySelector::ByName("w")));
  EXPECT_TRUE(gathered.view().bytes() == weights.bytes());
  EXPECT_THAT(client().compute().Matmul(Product("w")), IsOk());
}

// Nobody knows whether the commit is on disk, so nobody may act on either: workers that dropped
// what they staged, or what it replaces, would lose an array that the journal turns out to hold.
TEST_F(FaultTest, ACoordinatorWhoseDiskFailsEndsAndLosesNothing) {
  const std::string fails = MakeTestFolder("fail_sync") + "/now";
  ASSERT_EQ(setenv("LD_PRELOAD", SHARDMESH_FAIL_SYNC_LIBRARY, 1), 0);
  ASSERT_EQ(setenv("SHARDMESH_FAIL_SYNC", fails.c_str(), 1), 0);
  StartCluster({.mesh = "fsdp=2", .durable = true, .coordinator_flags = {}, .worker_flags = {}});
  unsetenv("LD_PRELOAD");
  unsetenv("SHARDMESH_FAIL_SYNC");
  ASSERT_NE(cluster_, nullptr);
  const Weights old_weights(64);
  const Weights new_weights(96);
  ASSERT_NO_FATAL_FAILURE(Put(old_weights, "w"));

  std::ofstream(fails) << "from now on";
  const client::PutTensor tensor = new_weights.Tensor("w");
  auto put = std::async(std::launch::async, [&] {
    return client().arrays().PutTensors({&tensor, 1}).status();
  });
  EXPECT_THAT(cluster_->AwaitEnd("coordinator"), IsOkAndHolds("exited with code 1"));
  std::filesystem::remove(fails);
  ASSERT_THAT(cluster_->Restart("coordinator"), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  put.get().IgnoreError();  // it may have been repeated, with success

  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const client::Array array,
      client().arrays().DescribeArray(client::ArraySelector::ByName("w")));
  EXPECT_EQ(array.state, client::ArrayState::kAvailable);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::GatheredTensor gathered,
                                 client().arrays().Gather(client::ArraySelector::ByName("w")));
  EXPECT_TRUE(gathered.view().bytes() == new_weights.bytes() ||
              gathered.view().bytes() == old_weights.bytes());
}

TEST_F(FaultTest, TilesOnDiskSurviveTheDeathOfAWorker) {
  ASSERT_NO_FATAL_FAILURE(
      StartCluster({.durable = true, .coordinator_flags = {}, .worker_flags = {}}));
  const Weights weights(64);
  ASSERT_NO_FATAL_FAILURE(Put(weights, "w"));
  ASSERT_THAT(cluster_->Kill("worker-0"), IsOk());
  ASSERT_THAT(cluster_->Restart("worker-0"), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::GatheredTensor gathered,
                                 client().arrays().Gather(client::ArraySelector::ByName("w")));
  EXPECT_TRUE(gathered.view().bytes() == weights.bytes());
}

// As after a repair, which writes a lost mesh down again: arrays that lie on it are as they were.
TEST_F(FaultTest, ArraysAreOfUseOnTheSameMeshOfALaterRevision) {
  ASSERT_NO_FATAL_FAILURE(
      StartCluster({.durable = true, .coordinator_flags = {}, .worker_flags = {}}));
  const Weights weights(64);
  ASSERT_NO_FATAL_FAILURE(Put(weights, "w"));
  const client::CollectiveCall gather = {
      .input = client::Operand(client::ArraySelector::ByName("w")),
      .kind = CollectiveKind::kAllGather,
      .axes = {"tp"},
      .dimension = 1};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const client::Array array,
      client().arrays().DescribeArray(client::ArraySelector::ByName("w")));
  ASSERT_THAT(cluster_->Kill("coordinator"), IsOk());
  const int64_t revision = DefineMeshAgain(cluster_->folder() + "/data/coordinator", "default");
  EXPECT_GT(revision, array.descriptor.mesh_revision);
  ASSERT_THAT(cluster_->Restart("coordinator"), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());

  EXPECT_THAT(client().compute().Collective(gather), IsOk());
  ASSERT_NO_FATAL_FAILURE(Put(weights, "new"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const client::Array later,
      client().arrays().DescribeArray(client::ArraySelector::ByName("new")));
  EXPECT_EQ(later.descriptor.mesh_revision, revision);
  EXPECT_THAT(
      client().compute().Matmul({.lhs = client::Operand(client::ArraySelector::ByName("new")),
                                 .rhs = client::Operand(client::ArraySelector::ByName("w"))}),
      IsOk());
}

// Nobody can change a mesh below its arrays while the coordinator runs.
TEST_F(FaultTest, AnArrayOfOtherAxesThanItsMeshHasNowIsRefused) {
  ASSERT_NO_FATAL_FAILURE(
      StartCluster({.durable = true, .coordinator_flags = {}, .worker_flags = {}}));
  const MeshDefinition square = {.mesh = *Mesh::Parse("x=2,y=2"),
                                 .workers = {"worker-0", "worker-1", "worker-2", "worker-3"}};
  ASSERT_THAT(client().catalog().CreateEntry("square", square), IsOk());
  const std::vector<float> ones(16, 1.0f);
  const PartitionSpec spec({SpecEntry::Axis("x"), SpecEntry::Axis("y")});
  ASSERT_THAT(PutFloats(client(), "w", {4, 4}, ones, spec, "square"), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const client::Array array,
      client().arrays().DescribeArray(client::ArraySelector::ByName("w")));
  ASSERT_THAT(cluster_->Kill("coordinator"), IsOk());
  const int64_t revision =
      DefineMeshAgain(cluster_->folder() + "/data/coordinator", "square", "y=2,x=2");
  ASSERT_THAT(cluster_->Restart("coordinator"), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());

  ASSERT_THAT(PutFloats(client(), "new", {4, 4}, ones, spec, "square"), IsOk());
  const auto multiply = [&] {
    return client()
        .compute()
        .Matmul({.lhs = client::Operand(client::ArraySelector::ByName("new")),
                 .rhs = client::Operand(client::ArraySelector::ByName("w"))})
        .status();
  };
  const absl::Status refused = multiply();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kMeshMismatch));
  EXPECT_THAT(
      std::string(refused.message()),
      AllOf(HasSubstr(array.descriptor.array_id),
            HasSubstr(StrCat("\"square\" as x=2,y=2 of revision ", array.descriptor.mesh_revision,
                             ", which is y=2,x=2 of revision ", revision, " now; load it again"))));
  ASSERT_THAT(PutFloats(client(), "w", {4, 4}, ones, spec, "square"), IsOk());
  EXPECT_THAT(multiply(), IsOk());
}

TEST_F(FaultTest, AWorkerWithTheDataOfAnotherClusterEndsAndChangesNothing) {
  const TestCluster::Options options = {
      .mesh = "fsdp=1", .durable = true, .coordinator_flags = {}, .worker_flags = {}};
  ASSERT_NO_FATAL_FAILURE(StartCluster(options));
  const Weights weights(64);
  ASSERT_NO_FATAL_FAILURE(Put(weights, "w"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ClusterStatus own, client().cluster().GetStatus());
  for (const char* identity : {"worker-0", "coordinator"}) {
    EXPECT_THAT(cluster_->Terminate(identity), IsOkAndHolds("exited with code 0"));
  }

  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto other, TestCluster::Start(options));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ClusterStatus status,
                                 other->client().cluster().GetStatus());
  ASSERT_NE(own.cluster_id, status.cluster_id);
  ASSERT_THAT(other->Terminate("worker-0"), IsOk());
  ServerProcess worker("shardmesh-worker",
                       {"--coordinator=" + other->address(), "--identity=worker-0",
                        "--data-dir=" + cluster_->folder() + "/data/worker-0"});
  EXPECT_EQ(worker.AwaitEnd(), "exited with code 1");
  EXPECT_THAT(worker.Log(), AllOf(HasSubstr("holds data of cluster " + own.cluster_id),
                                  HasSubstr("this is cluster " + status.cluster_id),
                                  HasSubstr("empty data folder")));

  // Both are as they were.
  ASSERT_THAT(other->Restart("worker-0"), IsOk());
  EXPECT_THAT(other->WaitUntilHealthy(), IsOk());
  for (const char* identity : {"coordinator", "worker-0"}) {
    ASSERT_THAT(cluster_->Restart(identity), IsOk());
  }
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::GatheredTensor gathered,
                                 client().arrays().Gather(client::ArraySelector::ByName("w")));
  EXPECT_TRUE(gathered.view().bytes() == weights.bytes());
}

TEST_F(FaultTest, AWorkerThatCannotServeItsPeersDoesNotStart) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(
      {.mesh = "fsdp=1", .durable = false, .coordinator_flags = {}, .worker_flags = {}}));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ClusterStatus status,
                                 client().cluster().GetStatus());
  const client::WorkerStatus& taken = status.workers.front();
  ASSERT_TRUE(taken.exchange_port.has_value());
  ServerProcess second("shardmesh-worker", {"--coordinator=" + cluster_->address(),
                                            StrCat("--exchange-port=", *taken.exchange_port)});
  EXPECT_EQ(second.AwaitEnd(), "exited with code 1");
  EXPECT_THAT(second.Log(),
              HasSubstr(StrCat("cannot listen on 127.0.0.1:", *taken.exchange_port, "; the port")));
  ServerProcess nowhere("shardmesh-worker", {"--coordinator=" + cluster_->address(),
                                             "--listen=unix:" + cluster_->folder() + "/socket"});
  EXPECT_EQ(nowhere.AwaitEnd(), "exited with code 2");
  EXPECT_THAT(nowhere.Log(), AllOf(HasSubstr("--listen: \"unix:"), HasSubstr("write HOST:PORT")));
  ServerProcess wrong("shardmesh-worker", {"--exchange-port=65536"});
  EXPECT_EQ(wrong.AwaitEnd(), "exited with code 2");
  ServerProcess elsewhere("shardmesh-worker", {"--coordinator=" + cluster_->address(),
                                               "--advertise=unix:" + cluster_->folder() + "/s"});
  EXPECT_EQ(elsewhere.AwaitEnd(), "exited with code 2");
  EXPECT_THAT(elsewhere.Log(), HasSubstr("--advertise: \"unix:"));
}

TEST_F(FaultTest, AWorkerServesItsPeersAtThePortThatItIsTold) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(
      {.mesh = "fsdp=1", .durable = false, .coordinator_flags = {}, .worker_flags = {}}));
  // A free port may be taken by somebody else before it is used.
  bool told = false;
  for (int attempt = 0; attempt < 5 && !told; ++attempt) {
    int port = 0;
    {
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto server, rpc::ServerLifecycle::Start({}, {}));
      port = server->port();
    }
    ServerProcess chosen("shardmesh-worker",
                         {"--coordinator=" + cluster_->address(), "--identity=chosen",
                          StrCat("--exchange-port=", port)});
    const auto is_there = [&] {
      const auto now = client().cluster().GetStatus();
      return now.ok() &&
             std::any_of(now->workers.begin(), now->workers.end(), [&](const auto& each) {
               return each.identity == "chosen" && each.exchange_port == port;
             });
    };
    EXPECT_TRUE(Eventually(
        [&] { return is_there() || absl::StrContains(chosen.Log(), "cannot listen on"); }));
    told = is_there();
  }
  EXPECT_TRUE(told);
}

}  // namespace
}  // namespace shardmesh::test
