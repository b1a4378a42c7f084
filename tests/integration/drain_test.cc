// SIGTERM under load: what was taken in ends, or its client hears why not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "sharding/str_cat.h"
#include "tensor/literal.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
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
          (*client)->Matmul({.lhs = client::Operand(client::ArraySelector::ByName("w")),
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
        ASSERT_THAT(client().DescribeArray(client::ArraySelector::ByName(name)), IsOk());
      }
      SHARDMESH_ASSERT_OK_AND_ASSIGN(
          const client::GatheredTensor gathered,
          client().Gather(client::ArraySelector::ByName(one.done.back())));
      EXPECT_THAT(FloatsOf(gathered.view().bytes()), ::testing::Each(static_cast<float>(kSide)));
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
  EXPECT_THAT(client().Matmul({.lhs = client::Operand(client::ArraySelector::ByName("w")),
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
  for (const Told& one : told) EXPECT_GE(one.done.size(), 3u);
  EXPECT_THAT(client().Gather(client::ArraySelector::ByName("w")), IsOk());
}

}  // namespace
}  // namespace shardmesh::test
