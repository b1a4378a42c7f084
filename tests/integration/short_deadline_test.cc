// Calls with short deadlines while a worker is stopped: they end in time, and name that worker
// only.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/mesh_client.h"
#include "program/program.h"
#include "sharding/spec.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/dtype.h"
#include "tensor/view.h"
#include "tests/testing/eventually.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

constexpr absl::Duration kDeadline = absl::Milliseconds(300);
// A call ends at most 200 ms after its deadline. A busy machine may need more, but less than the
// second for which a step could once be repeated after its deadline.
constexpr absl::Duration kEndsWithin = absl::Milliseconds(1100);

const PartitionSpec kOverBoth({SpecEntry::Axes({"fsdp", "tp"}), SpecEntry()});
const PartitionSpec kOverColumns({SpecEntry(), SpecEntry::Axes({"fsdp", "tp"})});

using Verb = std::function<absl::Status(const client::CallOptions&)>;

class ShortDeadlineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = MakeTestFolder("saves");
    TestCluster::Options options;
    options.durable = true;
    options.worker_flags = {"--write-root=" + root_};
    SHARDMESH_ASSERT_OK_AND_ASSIGN(cluster_, TestCluster::Start(options));
    ASSERT_THAT(Put("rows", {}), IsOk());
    verbs_ = {{"matmul",
               [this](const client::CallOptions& call) {
                 const auto rows = client::ArraySelector::ByName("rows");
                 return client().compute().Matmul({.lhs = rows, .rhs = rows}, call).status();
               }},
              {"collective",
               [this](const client::CallOptions& call) {
                 return client()
                     .compute()
                     .Collective({.input = client::ArraySelector::ByName("rows"),
                                  .kind = CollectiveKind::kAllReduce,
                                  .axes = {"fsdp", "tp"}},
                                 call)
                     .status();
               }},
              {"reshard",
               [this](const client::CallOptions& call) {
                 return client()
                     .arrays()
                     .Reshard(client::ArraySelector::ByName("rows"), {.spec = kOverColumns}, call)
                     .status();
               }},
              {"put", [this](const client::CallOptions& call) { return Put("other", call); }},
              {"large put", [this](const client::CallOptions& call) { return PutLarge(call); }},
              {"save",
               [this](const client::CallOptions& call) {
                 return client()
                     .arrays()
                     .SaveCheckpoint("", StrCat(root_, "/", ++saves_), {}, call)
                     .status();
               }},
              {"save --validate-only",
               [this](const client::CallOptions& call) {
                 return client()
                     .arrays()
                     .SaveCheckpoint("", root_ + "/none", {.validate_only = true}, call)
                     .status();
               }},
              {"quarantine list", [this](const client::CallOptions& call) {
                 return client().cluster().ListQuarantine("", call).status();
               }}};
  }
  client::MeshClient& client() { return cluster_->client(); }

  absl::Status Put(const std::string& name, const client::CallOptions& call) {
    const std::vector<float> elements(64, 1);
    const client::PutTensor tensor{
        .name = name,
        .view = *TensorView::Create(
            Dtype::kF32, {8, 8},
            absl::MakeConstSpan(reinterpret_cast<const char*>(elements.data()), 256)),
        .spec = kOverBoth};
    return client().arrays().PutTensors({&tensor, 1}, {}, call).status();
  }

  // Streams 32 MiB, whose tiles may still be under way to all workers at the deadline.
  absl::Status PutLarge(const client::CallOptions& call) {
    large_.resize(size_t{8} << 20, 1);
    const client::PutTensor tensor{
        .name = "large",
        .view =
            *TensorView::Create(Dtype::kF32, {8192, 1024},
                                absl::MakeConstSpan(reinterpret_cast<const char*>(large_.data()),
                                                    large_.size() * sizeof(float))),
        .spec = kOverBoth};
    return client()
        .arrays()
        .PutTensors({&tensor, 1}, {.handover = client::Handover::kOff}, call)
        .status();
  }

  // Calls the verb until it ends in time and names no worker but `stopped`. On a busy machine, a
  // call may end before the workers have answered.
  void ExpectInTime(const std::string& name, const Verb& verb, const std::string& stopped) {
    SCOPED_TRACE(name);
    absl::Duration shortest = absl::InfiniteDuration();
    absl::Status last;
    for (int attempt = 0; attempt < 5; ++attempt) {
      const absl::Time begun = absl::Now();
      last = verb({.timeout = kDeadline});
      shortest = std::min(shortest, absl::Now() - begun);
      ASSERT_FALSE(last.ok());
      if (shortest < kEndsWithin && FactOf(last, fact::kIdentity) == stopped) return;
    }
    EXPECT_LT(shortest, kEndsWithin) << last;
    EXPECT_EQ(FactOf(last, fact::kIdentity), stopped) << last;
  }

  std::string root_;
  int saves_ = 0;
  std::vector<float> large_;
  std::vector<std::pair<std::string, Verb>> verbs_;
  std::unique_ptr<TestCluster> cluster_;
};

TEST_F(ShortDeadlineTest, VerbsEndInTimeAndNameTheWorkerThatIsStopped) {
  for (const auto& [name, verb] : verbs_) {
    ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
    ASSERT_THAT(cluster_->Signal("worker-2", SIGSTOP), IsOk());
    ExpectInTime(name, verb, "worker-2");
    ASSERT_THAT(cluster_->Signal("worker-2", SIGCONT), IsOk());
  }
}

// Its tiles are on its disk, so that it is expected back.
TEST_F(ShortDeadlineTest, StepsEndInTimeWhileALostWorkerIsExpectedBack) {
  ASSERT_THAT(cluster_->Signal("worker-2", SIGSTOP), IsOk());
  ASSERT_TRUE(Eventually([&] {
    const auto status = client().cluster().GetStatus();
    return status.ok() && status->workers[2].state == client::WorkerState::kLost;
  }));
  for (const auto& [name, verb] : verbs_) {
    if (name != "matmul" && name != "collective") continue;
    ExpectInTime(name, verb, "worker-2");
    EXPECT_THAT(verb({.timeout = kDeadline}),
                StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
  }
  ASSERT_THAT(cluster_->Signal("worker-2", SIGCONT), IsOk());
}

}  // namespace
}  // namespace shardmesh::test
