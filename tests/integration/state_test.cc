// State: arrays that steps update in place, with real processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "client/inspect/verify_series.h"
#include "client/inspect/verify_step.h"
#include "client/types/zero_tensor.h"
#include "program/program.h"
#include "program/tensor_op.h"
#include "status/str_cat.h"
#include "tensor/literal.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

constexpr int64_t kCounters = 10;  // five for each rank

class StateTest : public ::testing::Test {
 protected:
  void StartCluster(bool durable = false) {
    TestCluster::Options options;
    options.mesh = "tp=2";
    options.durable = durable;
    SHARDMESH_ASSERT_OK_AND_ASSIGN(cluster_, TestCluster::Start(options));
    const std::vector<client::PutTensor> zeros = {
        {.name = "count",
         .view = std::shared_ptr<const TileProducer>(
             std::make_shared<const client::ZeroTensor>(Dtype::kF32, Shape{kCounters})),
         .spec = PartitionSpec({SpecEntry::Axis("tp")}),
         .cut_points = {},
         .is_zeros = true}};
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::PutResult put,
                                   cluster_->client().arrays().PutTensors(zeros, {}));
    EXPECT_EQ(put.sent_bytes, 0) << "the workers make the zeros";
  }

  // Adds 1 to each element of "count".
  static client::ExecuteCall Increment() {
    Program program{.operand_count = 2,
                    .ops = {TensorOp{MapOp{.function = MapFunction::kAdd, .inputs = {0, 1}}}},
                    .outputs = {},
                    .updates = {{.operand = 0, .value = 2}}};
    const float one = 1;
    return {.work = std::move(program),
            .operands = {
                client::ArraySelector::ByName("count"),
                Literal{.dtype = Dtype::kF32,
                        .shape = {1},
                        .bytes = std::string(reinterpret_cast<const char*>(&one), sizeof(one))}}};
  }
  absl::StatusOr<std::vector<float>> Count() {
    absl::StatusOr<client::GatheredTensor> gathered =
        cluster_->client().arrays().Gather(client::ArraySelector::ByName("count"));
    if (!gathered.ok()) return gathered.status();
    return FloatsOf(gathered->view().bytes());
  }
  // Runs so many increments over one stream; returns how many of them have succeeded.
  int64_t RunIncrements(int64_t count) {
    auto stream = cluster_->client().compute().OpenStream();
    EXPECT_THAT(stream, IsOk());
    if (!stream.ok()) return 0;
    std::thread sender([&] {
      client::ExecuteCall call = Increment();
      for (int64_t i = 0; i < count && (*stream)->Send(call).ok(); ++i) call.work = std::string();
      (*stream)->EndSends();
    });
    int64_t succeeded = 0;
    for (auto step = (*stream)->Next(); step.ok(); step = (*stream)->Next()) {
      succeeded += step->result.ok() ? 1 : 0;
    }
    sender.join();
    EXPECT_FALSE((*stream)->Next().ok()) << "the end may be read again";
    return succeeded;
  }

  std::unique_ptr<TestCluster> cluster_;
};

TEST_F(StateTest, AHundredStepsOfOneStreamUpdateACounter) {
  StartCluster();
  EXPECT_EQ(RunIncrements(100), 100);
  EXPECT_THAT(cluster_->client().compute().Execute(Increment()), IsOk());
  EXPECT_THAT(Count(), IsOkAndHolds(testing::Each(101.0F)));

  // Steps are verified with the state that those before them leave: four that are open together,
  // and one that is not.
  client::SeriesVerifier verifier(&cluster_->client());
  auto stream = cluster_->client().compute().OpenStream();
  ASSERT_THAT(stream, IsOk());
  const auto send = [&] {
    const client::ExecuteCall call = Increment();
    ASSERT_THAT(verifier.Begin(std::get<Program>(call.work), call.operands), IsOk());
    ASSERT_THAT((*stream)->Send(call), IsOk());
  };
  std::vector<client::VerifiedResult> verified;
  const auto next = [&] {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::StreamedStep step, (*stream)->Next());
    ASSERT_THAT(step.result, IsOk());
    SHARDMESH_ASSERT_OK_AND_ASSIGN(verified, verifier.End(*step.result));
  };
  for (int i = 0; i < 4; ++i) ASSERT_NO_FATAL_FAILURE(send());
  for (int i = 0; i < 3; ++i) {
    ASSERT_NO_FATAL_FAILURE(next());
    EXPECT_THAT(verified, testing::IsEmpty()) << "the steps after it update the state";
  }
  for (int i = 0; i < 2; ++i) {
    if (i == 1) {
      ASSERT_NO_FATAL_FAILURE(send());
    }
    ASSERT_NO_FATAL_FAILURE(next());
    ASSERT_EQ(verified.size(), 1U);
    EXPECT_EQ(verified[0].checked, kCounters);
    EXPECT_THAT(client::CheckVerified(verified), IsOk());
  }
  EXPECT_EQ(verifier.open_steps(), 0U);
  EXPECT_THAT(verifier.End({}), StatusIs(absl::StatusCode::kFailedPrecondition));
  // The verifier does not see this step, so that the state after the next one is not as expected.
  ASSERT_THAT(cluster_->client().compute().Execute(Increment()), IsOk());
  ASSERT_NO_FATAL_FAILURE(send());
  ASSERT_NO_FATAL_FAILURE(next());
  EXPECT_THAT(client::CheckVerified(verified), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_EQ(verified[0].outside, kCounters);
  EXPECT_EQ(verified[0].largest_error, 1);
  (*stream)->EndSends();
}

TEST_F(StateTest, ACommandPutsZerosThatWorkersMake) {
  StartCluster();
  const CommandResult put = cluster_->Run(
      {"put", "--zeros", "3,5", "--dtype", "I32", "--as", "a", "--as", "b", "--spec", "-,-"});
  EXPECT_EQ(put.exit_code, 0) << put.err;
  EXPECT_THAT(put.out, testing::AllOf(testing::HasSubstr("Put b: I32 3x5, spec "),
                                      testing::HasSubstr(", made by the workers; ")));
  for (const char* name : {"a", "b"}) {
    const auto gathered = cluster_->client().arrays().Gather(client::ArraySelector::ByName(name));
    ASSERT_THAT(gathered, IsOk());
    EXPECT_EQ(gathered->view().bytes().size(), 60U);
    EXPECT_THAT(gathered->view().bytes(), testing::Each('\0'));
  }
  const std::pair<std::vector<std::string>, std::string> wrong[] = {
      {{"put", "--as", "a", "--spec", "-"}, "give a file, or --zeros and a shape"},
      {{"put", "x.npy", "--zeros", "4", "--as", "a", "--spec", "-"}, "--zeros takes no file"},
      {{"put", "x.npy", "--dtype", "F32", "--as", "a", "--spec", "-"}, "--dtype is about --zeros"},
      {{"put", "--zeros", "4", "--tensor", "t", "--as", "a", "--spec", "-"}, "--tensor"},
      {{"put", "--zeros", "4x", "--as", "a", "--spec", "-"}, "--zeros"},
  };
  for (const auto& [arguments, error] : wrong) {
    const CommandResult refused = cluster_->Run(arguments);
    EXPECT_EQ(refused.exit_code, 2) << refused.err;
    EXPECT_THAT(refused.err, testing::HasSubstr(error));
  }
}

TEST_F(StateTest, ListsShowThatStepsUpdateAnArray) {
  StartCluster();
  EXPECT_THAT(cluster_->Run({"ls"}).out, testing::Not(testing::HasSubstr("steps update it")));
  ASSERT_EQ(RunIncrements(1), 1);
  EXPECT_THAT(cluster_->Run({"ls"}).out, testing::HasSubstr("available, steps update it"));
  EXPECT_THAT(cluster_->Run({"describe", "count"}).out, testing::HasSubstr("; steps update it"));
  EXPECT_THAT(cluster_->Run({"ls", "--output", "json"}).out,
              testing::HasSubstr("\"is_state\": true"));
}

TEST_F(StateTest, TilesOnDiskBecomeStateInMemory) {
  StartCluster(/*durable=*/true);
  EXPECT_EQ(RunIncrements(3), 3);
  EXPECT_THAT(Count(), IsOkAndHolds(testing::Each(3.0F)));
}

TEST_F(StateTest, AGetBesideUpdatesSeesNoPartOfOne) {
  StartCluster();
  std::atomic<bool> is_done = false;
  std::thread reader([&] {
    while (!is_done) {
      const absl::StatusOr<std::vector<float>> seen = Count();
      if (!seen.ok()) continue;  // every attempt may meet an update
      for (size_t i = 0; i < seen->size(); ++i) {
        // The tiles of two ranks may be of different steps; each one is whole.
        ASSERT_EQ((*seen)[i], (*seen)[i / 5 * 5]);
      }
    }
  });
  EXPECT_EQ(RunIncrements(200), 200);
  is_done = true;
  reader.join();
  EXPECT_THAT(Count(), IsOkAndHolds(testing::Each(200.0F)));
}

TEST_F(StateTest, TheOtherRanksKeepWhatTheyHadBeforeAStepThatFails) {
  StartCluster();
  ASSERT_EQ(RunIncrements(1), 1);
  int64_t succeeded = 0;
  std::thread runner([&] { succeeded = RunIncrements(100'000); });
  ASSERT_THAT(cluster_->Kill("worker-1"), IsOk());
  runner.join();
  // The tile of rank 0 alone: that of rank 1 is lost for good.
  const auto first = cluster_->client().arrays().Gather(client::ArraySelector::ByName("count"),
                                                        client::ArraySlice{{0, 5}});
  ASSERT_THAT(first, IsOk());
  EXPECT_THAT(FloatsOf(first->view().bytes()), testing::Each(static_cast<float>(succeeded + 1)));
}

}  // namespace
}  // namespace shardmesh::test
