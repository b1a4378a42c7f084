// SIGTERM under load: what was taken in ends, or its client hears why not.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "rpc/call.h"
#include "rpc/codec/status.h"
#include "shardmesh/v1/compute_service.grpc.pb.h"
#include "shardmesh/v1/session_service.grpc.pb.h"
#include "status/detail.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/literal.h"
#include "tests/testing/eventually.h"
#include "tests/testing/http_get.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kSide = 256;
constexpr int kClients = 4;
// Less than a client's patience, so that what it waits for ends first.
constexpr absl::Duration kGrace = absl::Seconds(10);

// What one client was told.
struct Told {
  std::vector<std::string> done;  // the names of results that it was promised
  absl::Status last;              // the first error, which ended its work
};

// Clients that multiply as fast as they can, each by itself, until they are told of an error.
class Load {
 public:
  explicit Load(const TestCluster& cluster) : told_(kClients) {
    for (int client = 0; client < kClients; ++client) {
      threads_.emplace_back([this, client, address = cluster.address()] {
        told_[static_cast<size_t>(client)] = Multiply(client, address);
      });
    }
  }
  ~Load() {
    if (!threads_.empty()) End();
  }

  // Until every client has results.
  void AwaitResults() const {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (started_ < kClients && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_EQ(started_, kClients);
  }
  std::vector<Told> End() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    return told_;
  }

 private:
  Told Multiply(int number, const std::string& address) {
    Told told;
    client::MeshClientOptions options;
    options.timeout = kGrace + absl::Seconds(5);
    absl::StatusOr<std::unique_ptr<client::MeshClient>> client =
        client::MeshClient::Connect(address, options);
    if (!client.ok()) {
      told.last = client.status();
      ++started_;
      return told;
    }
    while (told.last.ok() && !stop_) {
      const std::string name = StrCat("result-", number, "-", told.done.size());
      const auto result =
          (*client)->compute().Matmul({.lhs = client::Operand(client::ArraySelector::ByName("w")),
                                       .rhs = client::Operand(client::ArraySelector::ByName("w")),
                                       .output = {.names = {name}}});
      if (!result.ok()) {
        told.last = result.status();
      } else {
        told.done.push_back(name);
      }
      if (told.done.size() == 3) ++started_;
    }
    return told;
  }

  std::atomic<bool> stop_ = false;
  std::atomic<int> started_ = 0;
  std::vector<Told> told_;  // by client
  std::vector<std::thread> threads_;
};

class DrainTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        cluster_,
        TestCluster::Start(
            {.durable = true,
             .coordinator_flags = {StrCat("--grace=", absl::FormatDuration(kGrace))},
             .worker_flags = {StrCat("--drain-timeout=", absl::FormatDuration(kGrace))}}));
    const std::vector<float> ones(static_cast<size_t>(kSide * kSide), 1.0f);
    ASSERT_THAT(PutFloats(client(), "w", {kSide, kSide}, ones,
                          PartitionSpec({SpecEntry::Axis("fsdp"), SpecEntry::Axis("tp")})),
                IsOk());
  }
  client::MeshClient& client() { return cluster_->client(); }

  // That what clients were promised is there, and is right.
  void ExpectAllThere(const std::vector<Told>& told) {
    int64_t results = 0;
    for (const Told& one : told) {
      results += static_cast<int64_t>(one.done.size());
      EXPECT_GE(one.done.size(), 3u);
      for (const std::string& name : one.done) {
        ASSERT_THAT(client().arrays().DescribeArray(client::ArraySelector::ByName(name)), IsOk());
      }
      SHARDMESH_ASSERT_OK_AND_ASSIGN(
          const client::GatheredTensor gathered,
          client().arrays().Gather(client::ArraySelector::ByName(one.done.back())));
      EXPECT_THAT(FloatsOf(gathered.view().bytes()), Each(static_cast<float>(kSide)));
    }
    RecordProperty("results", std::to_string(results));
  }

  std::unique_ptr<TestCluster> cluster_;
};

TEST_F(DrainTest, NoStepIsLostInSilenceWhenTheCoordinatorStops) {
  Load load(*cluster_);
  load.AwaitResults();
  const absl::Time asked = absl::Now();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string how, cluster_->Terminate("coordinator"));
  EXPECT_EQ(how, "exited with code 0");
  EXPECT_LT(absl::Now() - asked, kGrace) << "small steps need none of it";
  const std::vector<Told> told = load.End();
  for (const Told& one : told) {
    if (one.last.ok()) continue;
    EXPECT_TRUE(absl::IsUnavailable(one.last)) << one.last;
    EXPECT_THAT(std::string(one.last.message()),
                AnyOf(HasSubstr("the coordinator is stopping"), HasSubstr(cluster_->address())))
        << one.last;
  }
  ASSERT_THAT(cluster_->Restart("coordinator"), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  ExpectAllThere(told);
}

TEST_F(DrainTest, ClientsThatWaitGoOnWhenTheCoordinatorIsBack) {
  Load load(*cluster_);
  load.AwaitResults();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string how, cluster_->Terminate("coordinator"));
  EXPECT_EQ(how, "exited with code 0");
  ASSERT_THAT(cluster_->Restart("coordinator"), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  EXPECT_THAT(
      client().compute().Matmul({.lhs = client::Operand(client::ArraySelector::ByName("w")),
                                 .rhs = client::Operand(client::ArraySelector::ByName("w"))}),
      IsOk());
  ExpectAllThere(load.End());
}

TEST_F(DrainTest, NoStepIsLostInSilenceWhenAWorkerStops) {
  Load load(*cluster_);
  load.AwaitResults();
  const absl::Time asked = absl::Now();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string how, cluster_->Terminate("worker-2"));
  EXPECT_EQ(how, "exited with code 0");
  EXPECT_LT(absl::Now() - asked, kGrace);
  const std::vector<Told> told = load.End();
  for (const Told& one : told) {
    if (one.last.ok()) continue;
    EXPECT_THAT(std::string(one.last.message()), HasSubstr("worker-2")) << one.last;
    // It left when its steps had ended: none was cut off.
    EXPECT_THAT(std::string(one.last.message()), Not(HasSubstr("during step"))) << one.last;
  }
  ASSERT_THAT(cluster_->Restart("worker-2"), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  // What a step made is in memory, and went with the worker that held it: that tile alone is
  // missing of what was promised. A replica serves readers of the result, and the
  // worker reads it again.
  for (const Told& one : told) {
    EXPECT_GE(one.done.size(), 3u);
    for (const std::string& name : one.done) {
      const client::ArraySelector result = client::ArraySelector::ByName(name);
      EXPECT_TRUE(Eventually([&] {
        const absl::StatusOr<client::Array> array = client().arrays().DescribeArray(result);
        return array.ok() && array->missing_ranks.empty();
      })) << name;
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::GatheredTensor gathered,
                                     client().arrays().Gather(result));
      EXPECT_THAT(FloatsOf(gathered.view().bytes()), Each(static_cast<float>(kSide)));
    }
  }
  // What was put is on disk.
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::GatheredTensor put,
                                 client().arrays().Gather(client::ArraySelector::ByName("w")));
  EXPECT_THAT(FloatsOf(put.view().bytes()), Each(1.0f));
}

// A step that goes on until its only worker does, which is stopped.
class LongStepDrainTest : public ::testing::Test {
 protected:
  void StartCluster(absl::Duration grace) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        cluster_,
        TestCluster::Start({.mesh = "fsdp=1",
                            .durable = true,
                            .coordinator_flags = {StrCat("--grace=", absl::FormatDuration(grace)),
                                                  "--lost-after=5m"},
                            .worker_flags = {}}));
    const std::vector<float> ones(static_cast<size_t>(kSide * kSide), 1.0f);
    ASSERT_THAT(PutFloats(cluster_->client(), "w", {kSide, kSide}, ones, PartitionSpec()), IsOk());
    ASSERT_THAT(cluster_->Signal("worker-0", SIGSTOP), IsOk());
  }
  void TearDown() override {
    if (cluster_ != nullptr) cluster_->Signal("worker-0", SIGCONT).IgnoreError();
  }

  // Begins the step; it runs when this returns.
  void Begin(std::function<absl::Status(const std::string& address)> step) {
    step_ = std::async(std::launch::async, std::move(step), cluster_->address());
    EXPECT_TRUE(Eventually([&] {
      const auto metrics = HttpGet(cluster_->metrics_addresses().front(), "/metrics");
      return metrics.ok() &&
             absl::StrContains(*metrics, "shardmesh_live_steps{state=\"running\"} 1");
    }));
  }

  std::unique_ptr<TestCluster> cluster_;
  std::future<absl::Status> step_;  // ends before the cluster does
};

absl::StatusOr<client::StepResult> Square(client::MeshClient& client, const std::string& name) {
  const client::Operand weight(client::ArraySelector::ByName("w"));
  return client.compute().Matmul({.lhs = weight, .rhs = weight, .output = {.names = {name}}});
}

TEST_F(LongStepDrainTest, EndsWithinTheGraceWhileNothingNewIsTakenIn) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(absl::Minutes(2)));
  Begin([](const std::string& address) -> absl::Status {
    client::MeshClientOptions options;
    options.timeout = absl::Minutes(2);
    SHARDMESH_ASSIGN_OR_RETURN(const auto client, client::MeshClient::Connect(address, options));
    return Square(*client, "square").status();
  });
  ASSERT_THAT(cluster_->Signal("coordinator", SIGTERM), IsOk());
  CommandResult ready;
  EXPECT_TRUE(Eventually([&] {
    ready = cluster_->Run({"health", "ready", "--deadline=30s"});
    return ready.exit_code != 0;
  }));
  EXPECT_EQ(ready.exit_code, 1) << ready.err;
  EXPECT_THAT(ready.err, HasSubstr("is not ready"));
  const CommandResult live = cluster_->Run({"health", "live", "--deadline=30s"});
  EXPECT_EQ(live.exit_code, 0) << live.err;
  const absl::Time refused_from = absl::Now();
  const absl::Status refused = Square(cluster_->client(), "refused").status();
  EXPECT_LT(absl::Now() - refused_from, client::MeshClientOptions().timeout * 2 / 3)
      << "the client asks a few times, not until its deadline";
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kUnavailable, Reason::kNotServing));
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("the coordinator is stopping and takes in nothing new"));
  EXPECT_TRUE(RetryDelayOf(refused).has_value());
  EXPECT_EQ(step_.wait_for(std::chrono::seconds(0)), std::future_status::timeout)
      << "all this was while it ran";

  ASSERT_THAT(cluster_->Signal("worker-0", SIGCONT), IsOk());
  EXPECT_THAT(step_.get(), IsOk());
  EXPECT_THAT(cluster_->AwaitEnd("coordinator"), IsOkAndHolds("exited with code 0"));
  // The worker kept the result, and the coordinator its name.
  ASSERT_THAT(cluster_->Restart("coordinator"), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const client::GatheredTensor square,
      cluster_->client().arrays().Gather(client::ArraySelector::ByName("square")));
  EXPECT_THAT(FloatsOf(square.view().bytes()), Each(static_cast<float>(kSide)));
  EXPECT_THAT(cluster_->client().arrays().DescribeArray(client::ArraySelector::ByName("refused")),
              StatusIs(absl::StatusCode::kNotFound));
}

// What the coordinator answers to one question: MeshClient would ask again, of nobody.
absl::Status SquareOnce(const std::string& address) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto channel, rpc::CreateChannel(address));
  v1::OpenSessionRequest open;
  open.set_request_id("session");
  v1::OpenSessionResponse session;
  grpc::ClientContext opening;
  rpc::Apply(rpc::CallOptions::Within(absl::Minutes(1)), &opening);
  SHARDMESH_RETURN_IF_ERROR(
      rpc::FromGrpc(v1::SessionService::NewStub(channel)->OpenSession(&opening, open, &session)));
  v1::MatmulRequest request;
  request.set_request_id("square");
  request.set_session_id(session.session_id());
  request.mutable_lhs()->mutable_array()->set_name("w");
  request.mutable_rhs()->mutable_array()->set_name("w");
  v1::MatmulResponse response;
  grpc::ClientContext context;
  rpc::Apply(rpc::CallOptions::Within(absl::Minutes(2)), &context);
  return rpc::FromGrpc(v1::ComputeService::NewStub(channel)->Matmul(&context, request, &response));
}

TEST_F(LongStepDrainTest, EndsWithTheGraceAndItsClientHearsSo) {
  constexpr absl::Duration kShortGrace = absl::Seconds(4);
  ASSERT_NO_FATAL_FAILURE(StartCluster(kShortGrace));
  Begin(SquareOnce);
  const absl::Time asked = absl::Now();
  EXPECT_THAT(cluster_->Terminate("coordinator"), IsOkAndHolds("exited with code 0"));
  const absl::Duration taken = absl::Now() - asked;
  EXPECT_GT(taken, kShortGrace / 2);
  EXPECT_LT(taken, kShortGrace + absl::Seconds(20));
  const absl::Status told = step_.get();
  EXPECT_THAT(told, StatusIs(absl::StatusCode::kUnavailable, Reason::kNotServing));
  EXPECT_THAT(std::string(told.message()), HasSubstr("its grace has ended"));
  EXPECT_TRUE(RetryDelayOf(told).has_value());
}

}  // namespace
}  // namespace shardmesh::test
