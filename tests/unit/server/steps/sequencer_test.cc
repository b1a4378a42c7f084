// Order of admission, and exactly one end for each step and transfer.
#include "server/steps/sequencer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "process/cpu_time.h"
#include "rpc/codec/status.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// Writes down what the workers would hear.
class RecordingTransport final : public StepTransport {
 public:
  std::optional<Participant> Start(const WorkRef& work, const EncodedStepPtr& message) override {
    Add(StrCat("start ", work.op));
    return std::exchange(missed, std::nullopt);
  }
  void Commit(const WorkRef& work) override { Add(StrCat("commit ", work.op)); }
  void Abort(const WorkRef& work, const absl::Status&) override {
    Add(StrCat("abort ", work.op));
    absl::MutexLock lock(&mutex_);
    blamed_.clear();
    for (const Participant& participant : work.blamed) blamed_.push_back(participant.identity);
  }

  std::vector<std::string> heard() {
    absl::MutexLock lock(&mutex_);
    return heard_;
  }
  // Of the last piece of work that was aborted.
  std::vector<std::string> blamed() {
    absl::MutexLock lock(&mutex_);
    return blamed_;
  }

  std::optional<Participant> missed;  // by the next start

 private:
  void Add(std::string what) {
    absl::MutexLock lock(&mutex_);
    heard_.push_back(std::move(what));
  }
  absl::Mutex mutex_;
  std::vector<std::string> heard_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> blamed_ ABSL_GUARDED_BY(mutex_);
};

class SequencerTest : public ::testing::Test {
 protected:
  SequencerTest() {
    sequencer_.WorkerAttached("a", 1);
    sequencer_.WorkerAttached("b", 2);
  }

  StepRequest Step(const std::string& op, std::vector<std::string> reads,
                   std::vector<std::string> writes) {
    StepRequest request;
    request.op = op;
    request.mesh_id = "m";
    request.participants = {{.rank = 0, .identity = "a"}, {.rank = 1, .identity = "b"}};
    request.reads = std::move(reads);
    request.writes = std::move(writes);
    request.timeout = absl::Seconds(30);
    return request;
  }
  absl::StatusOr<Sequencer::StepTicket> Submit(StepRequest request) {
    return sequencer_.Submit(std::move(request),
                             [this](const WorkOutcome& outcome) { outcomes_.push_back(outcome); });
  }
  absl::Status Report(int64_t sequence, const std::string& identity, int64_t rank,
                      absl::Status status = absl::OkStatus()) {
    return sequencer_.ReportStep(
        sequence, 2, 7,
        {.identity = identity, .rank = rank, .status = std::move(status), .done = true});
  }
  void BothDone(int64_t sequence) {
    EXPECT_THAT(Report(sequence, "a", 0), IsOk());
    EXPECT_THAT(Report(sequence, "b", 1), IsOk());
  }

  test::FakeClock clock_;
  RecordingTransport transport_;
  std::vector<WorkOutcome> outcomes_;
  Sequencer sequencer_{&clock_, &transport_, {.term = 7, .last_sequence = 100}};
};

TEST_F(SequencerTest, CommitsWhenEveryRankIsDone) {
  ASSERT_THAT(Submit(Step("linear", {"x"}, {"y"})), IsOk());
  EXPECT_THAT(Report(101, "a", 0), IsOk());
  EXPECT_TRUE(outcomes_.empty());
  EXPECT_THAT(Report(101, "b", 1), IsOk());
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_THAT(outcomes_[0].status, IsOk());
  EXPECT_EQ(outcomes_[0].sequence, 101);
  EXPECT_THAT(transport_.heard(), ElementsAre("start linear", "commit linear"));
  EXPECT_THAT(Report(101, "a", 0), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
}

TEST_F(SequencerTest, PassesOnWhatParticipantsOfARunningStepHaveReceived) {
  std::vector<std::string> heard;
  StepRequest step = Step("reshard", {"x"}, {"y"});
  step.received = [&](std::string_view identity, int64_t bytes) {
    heard.push_back(StrCat(identity, " ", bytes));
  };
  ASSERT_THAT(Submit(std::move(step)), IsOk());
  ASSERT_THAT(Submit(Step("behind it", {"y"}, {})), IsOk());
  sequencer_.StepReceived(101, "a", 5);
  sequencer_.StepReceived(101, "b", 6);
  sequencer_.StepReceived(101, "c", 7);  // it takes no part
  sequencer_.StepReceived(102, "a", 8);  // it waits
  sequencer_.StepReceived(9, "a", 8);
  BothDone(101);
  sequencer_.StepReceived(101, "a", 9);
  sequencer_.StepReceived(102, "a", 9);  // nobody listens
  EXPECT_THAT(heard, ElementsAre("a 5", "b 6"));
}

TEST_F(SequencerTest, StepsWithCommonOperandsWaitAndOthersOverlap) {
  ASSERT_THAT(Submit(Step("one", {"x"}, {"y"})), IsOk());
  ASSERT_THAT(Submit(Step("reads y", {"y"}, {"z"})), IsOk());
  ASSERT_THAT(Submit(Step("reads x", {"x"}, {"w"})), IsOk());
  ASSERT_THAT(Submit(Step("donates z", {}, {"z"})), IsOk());
  EXPECT_THAT(transport_.heard(), ElementsAre("start one", "start reads x"));
  BothDone(101);
  EXPECT_THAT(transport_.heard(),
              ElementsAre("start one", "start reads x", "commit one", "start reads y"));
  BothDone(103);
  EXPECT_EQ(transport_.heard().back(), "start donates z");
  EXPECT_EQ(sequencer_.last_sequence(), 104);
}

TEST_F(SequencerTest, AnOutcomeSaysWhenTheWaitForEarlierStepsEnded) {
  const absl::Time begin = clock_.Now();
  ASSERT_THAT(Submit(Step("one", {}, {"kv"})), IsOk());
  ASSERT_THAT(Submit(Step("two", {}, {"kv"})), IsOk());
  clock_.Advance(absl::Seconds(3));
  BothDone(101);
  clock_.Advance(absl::Seconds(1));
  BothDone(102);
  ASSERT_THAT(outcomes_, SizeIs(2));
  EXPECT_EQ(outcomes_[0].started, begin);
  EXPECT_EQ(outcomes_[1].started, begin + absl::Seconds(3));
}

TEST_F(SequencerTest, UpdatesOfAnArrayWaitForItsReadersAndTheReverse) {
  ASSERT_THAT(Submit(Step("reads", {"kv"}, {})), IsOk());
  ASSERT_THAT(Submit(Step("also reads", {"kv"}, {})), IsOk());
  ASSERT_THAT(Submit(Step("updates", {"x"}, {"kv"})), IsOk());
  ASSERT_THAT(Submit(Step("updates again", {}, {"kv"})), IsOk());
  ASSERT_THAT(Submit(Step("reads after", {"kv"}, {})), IsOk());
  ASSERT_THAT(Submit(Step("reads x", {"x"}, {})), IsOk());
  EXPECT_THAT(transport_.heard(), ElementsAre("start reads", "start also reads", "start reads x"));
  BothDone(102);
  EXPECT_THAT(transport_.heard(), SizeIs(4)) << "one reader is left";
  BothDone(101);
  EXPECT_EQ(transport_.heard().back(), "start updates");
  BothDone(104);
  EXPECT_EQ(transport_.heard().back(), "start updates again");
  BothDone(105);
  EXPECT_EQ(transport_.heard().back(), "start reads after");
}

TEST_F(SequencerTest, AFailedStepEndsTheLaterStepsOfItsChain) {
  const auto chain = std::make_shared<StepChain>();
  const auto other_chain = std::make_shared<StepChain>();
  const auto chained = [&](const std::string& op, std::vector<std::string> writes,
                           const std::shared_ptr<StepChain>& of) {
    StepRequest step = Step(op, {}, std::move(writes));
    step.chain = of;
    return step;
  };
  ASSERT_THAT(Submit(chained("first", {"kv"}, chain)), IsOk());
  ASSERT_THAT(Submit(chained("second", {"kv"}, chain)), IsOk());
  ASSERT_THAT(Submit(chained("third", {"kv"}, chain)), IsOk());
  ASSERT_THAT(Submit(chained("beside", {"other"}, chain)), IsOk());
  ASSERT_THAT(Submit(chained("fourth", {"kv"}, chain)), IsOk());
  ASSERT_THAT(Submit(chained("of another chain", {"kv"}, other_chain)), IsOk());
  BothDone(101);
  // The second step has the next number after the one beside it.
  EXPECT_THAT(Report(103, "a", 0, absl::InternalError("broken")), IsOk());
  ASSERT_THAT(outcomes_, SizeIs(5));
  EXPECT_THAT(outcomes_[0].status, IsOk());
  int64_t given_up = 0;
  for (size_t i = 1; i < outcomes_.size(); ++i) {
    if (!absl::IsAborted(outcomes_[i].status)) continue;
    ++given_up;
    EXPECT_THAT(ToStd(outcomes_[i].status.message()),
                AllOf(HasSubstr("step 103 (second)"), HasSubstr("broken")));
    EXPECT_EQ(ReasonOf(outcomes_[i].status), Reason::kCancelled);
  }
  EXPECT_EQ(given_up, 3) << "third, fourth and the one that ran beside";
  EXPECT_THAT(transport_.heard(), Not(testing::Contains("start third")));
  EXPECT_THAT(transport_.heard(), testing::Contains("abort beside"));
  EXPECT_EQ(transport_.heard().back(), "start of another chain");

  // The caller may submit it before it hears of the failure.
  const absl::Status late = Submit(chained("late", {"kv"}, chain)).status();
  EXPECT_THAT(late, StatusIs(absl::StatusCode::kAborted, Reason::kCancelled));
  EXPECT_THAT(ToStd(late.message()), AllOf(HasSubstr("step 103 (second)"), HasSubstr("broken")));
  EXPECT_THAT(Submit(chained("late", {"kv"}, other_chain)), IsOk());
}

TEST_F(SequencerTest, ALostWorkerEndsEachStepOfAChainOnce) {
  const auto chain = std::make_shared<StepChain>();
  for (const char* op : {"first", "second", "third"}) {
    StepRequest step = Step(op, {}, {"kv"});
    step.chain = chain;
    ASSERT_THAT(Submit(std::move(step)), IsOk());
  }
  sequencer_.WorkerLost("a", 3, "gone");
  ASSERT_THAT(outcomes_, SizeIs(3));
  EXPECT_THAT(sequencer_.Live(), IsEmpty());
}

TEST_F(SequencerTest, RefusesMoreWorkThanMayBeLiveUntilSomeHasEnded) {
  Sequencer sequencer(&clock_, &transport_, {.term = 7, .max_live = 2});
  sequencer.WorkerAttached("a", 1);
  sequencer.WorkerAttached("b", 2);
  const auto ignore = [](const WorkOutcome&) {};
  const auto first = sequencer.Submit(Step("one", {}, {"x"}), ignore);
  ASSERT_THAT(first, IsOk());
  TransferRequest transfer;
  transfer.transfer_id = "t";
  transfer.op = "put";
  transfer.participants = {{.rank = 0, .identity = "a"}};
  transfer.timeout = absl::Seconds(30);
  ASSERT_THAT(sequencer.BeginTransfer(std::move(transfer), ignore), IsOk());
  const absl::Status third = sequencer.Submit(Step("waits", {"x"}, {}), ignore).status();
  EXPECT_THAT(third, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kOverloaded));
  EXPECT_THAT(third,
              test::CarriesFacts(Reason::kOverloaded, {{fact::kHave, 2}, {fact::kLimit, 2}}));
  EXPECT_THAT(std::string(third.message()),
              AllOf(HasSubstr("2 steps and transfers are live"), HasSubstr("limit is 2")));
  EXPECT_TRUE(RetryDelayOf(third).has_value());
  sequencer.Cancel(*first);
  EXPECT_THAT(sequencer.Submit(Step("three", {"x"}, {}), ignore), IsOk());
}

TEST_F(SequencerTest, ManyWaitingStepsAreAdmittedInOrderAndInTime) {
  // Each waits for the one before it, and all readers of "x" for the first.
  constexpr int kSteps = 4'000;
  ASSERT_THAT(Submit(Step("first", {}, {"x"})), IsOk());
  for (int i = 0; i < kSteps; ++i) {
    ASSERT_THAT(Submit(Step("reader", {"x", "shared"}, {StrCat("y", i)})), IsOk());
  }
  ASSERT_THAT(Submit(Step("last", {}, {"x"})), IsOk());
  EXPECT_THAT(transport_.heard(), ElementsAre("start first"));
  const double started = ThreadCpuSeconds();
  BothDone(101);
  EXPECT_EQ(sequencer_.last_sequence(), 101 + kSteps) << "all readers run at once";
  for (int i = 0; i < kSteps; ++i) BothDone(102 + i);
  EXPECT_EQ(transport_.heard().back(), "start last");
  // With a walk over all that is live at each report this took a hundred times as long.
  EXPECT_LT(ThreadCpuSeconds() - started, 3);
}

TEST_F(SequencerTest, StagedTilesOfALargePutAreTakenInInTime) {
  constexpr int kTensors = 40'000;
  ASSERT_THAT(sequencer_.BeginTransfer(
                  {.transfer_id = "t",
                   .op = "put",
                   .mesh_id = "m",
                   .participants = {{.rank = 0, .identity = "a", .expected_tiles = kTensors}},
                   .timeout = absl::Seconds(30),
                   .commit = nullptr},
                  [this](const WorkOutcome& outcome) { outcomes_.push_back(outcome); }),
              IsOk());
  ASSERT_THAT(sequencer_.CommitTransfer("t"), IsOk());
  const double started = ThreadCpuSeconds();
  for (int i = 0; i < kTensors; ++i) {
    RankReport report{.identity = "a", .rank = 0};
    report.tiles.push_back({.array_id = StrCat("array-", i), .size_bytes = 1});
    ASSERT_THAT(sequencer_.ReportTransfer("t", 7, std::move(report)), IsOk());
  }
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_THAT(outcomes_[0].status, IsOk());
  EXPECT_EQ(outcomes_[0].ranks[0].tiles.size(), static_cast<size_t>(kTensors));
  // Without an index each report searches all tiles: 800 million comparisons of ids.
  EXPECT_LT(ThreadCpuSeconds() - started, 2);
}

TEST_F(SequencerTest, AStepBehindACancelledOneIsAdmitted) {
  ASSERT_THAT(Submit(Step("reads x", {"x"}, {"y"})), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Sequencer::StepTicket writer,
                                 Submit(Step("writes x", {}, {"x"})));
  ASSERT_THAT(Submit(Step("also reads x", {"x"}, {"z"})), IsOk());
  EXPECT_THAT(transport_.heard(), ElementsAre("start reads x")) << "a writer holds up readers";
  sequencer_.Cancel(writer);
  EXPECT_EQ(transport_.heard().back(), "start also reads x");
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_THAT(outcomes_[0].status,
              test::CarriesFacts(Reason::kCancelled, {{fact::kOp, "writes x"}}));
}

TEST_F(SequencerTest, CountsWhatIsLiveByState) {
  ASSERT_THAT(Submit(Step("runs", {"x"}, {"y"})), IsOk());
  ASSERT_THAT(Submit(Step("waits", {"y"}, {"z"})), IsOk());
  absl::AnyInvocable<void(absl::Status) &&> decide;
  StepRequest commits = Step("commits", {}, {"v"});
  commits.commit = [&](const WorkOutcome&, absl::AnyInvocable<void(absl::Status) &&> decided) {
    decide = std::move(decided);
  };
  ASSERT_THAT(Submit(std::move(commits)), IsOk());
  BothDone(102);
  ASSERT_THAT(sequencer_.BeginTransfer({.transfer_id = "t",
                                        .op = "put",
                                        .mesh_id = "m",
                                        .participants = {{.rank = 0, .identity = "a"}},
                                        .timeout = absl::Seconds(30),
                                        .commit = nullptr},
                                       [](const WorkOutcome&) {}),
              IsOk());
  const auto expect = [](const Sequencer::LiveCounts& counts, int64_t waiting, int64_t running,
                         int64_t committing) {
    EXPECT_EQ(counts.waiting, waiting);
    EXPECT_EQ(counts.running, running);
    EXPECT_EQ(counts.committing, committing);
  };
  expect(sequencer_.CountSteps(), 1, 1, 1);
  expect(sequencer_.CountTransfers(), 0, 1, 0);
  std::move(decide)(absl::OkStatus());
  BothDone(101);
  BothDone(103);
  EXPECT_THAT(sequencer_.AbortTransfer("t", absl::CancelledError("enough")), IsOk());
  expect(sequencer_.CountSteps(), 0, 0, 0);
  expect(sequencer_.CountTransfers(), 0, 0, 0);
}

TEST_F(SequencerTest, AnAbortedTransferIsNamedByFacts) {
  const auto abort = [this](absl::Status reason, bool commit_asked = true) {
    absl::Status ended;
    EXPECT_THAT(
        sequencer_.BeginTransfer({.transfer_id = "t",
                                  .op = "put",
                                  .mesh_id = "m",
                                  .participants = {{.rank = 0, .identity = "a"}},
                                  .timeout = absl::Seconds(30),
                                  .commit = nullptr},
                                 [&](const WorkOutcome& outcome) { ended = outcome.status; }),
        IsOk());
    if (commit_asked) {
      EXPECT_THAT(sequencer_.CommitTransfer("t"), IsOk());
    }
    EXPECT_THAT(sequencer_.AbortTransfer("t", std::move(reason)), IsOk());
    return ended;
  };
  EXPECT_THAT(abort(WithReason(absl::CancelledError("enough"), Reason::kCancelled)),
              test::CarriesFacts(Reason::kCancelled, {{fact::kOp, "put"}}));
  const absl::Status late =
      abort(WithReason(absl::DeadlineExceededError("late"), Reason::kDeadline));
  EXPECT_THAT(late,
              test::CarriesFacts(Reason::kDeadline,
                                 {{fact::kOp, "put"}, {fact::kRank, 0}, {fact::kIdentity, "a"}}));
  EXPECT_EQ(std::string(late.message()), "waited for rank 0 (a): late");
  const absl::Status unasked =
      abort(WithReason(absl::DeadlineExceededError("late"), Reason::kDeadline), false);
  EXPECT_EQ(std::string(unasked.message()), "late");
  EXPECT_EQ(FactOf(unasked, fact::kIdentity), std::nullopt);
}

TEST_F(SequencerTest, AnErrorOfOneRankAbortsTheStepOnceAndIsNamed) {
  ASSERT_THAT(Submit(Step("matmul", {"x"}, {"y"})), IsOk());
  EXPECT_THAT(Report(101, "b", 1,
                     WithReason(absl::ResourceExhaustedError("no memory"), Reason::kMemoryLimit)),
              IsOk());
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_THAT(outcomes_[0].status,
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_THAT(outcomes_[0].status.ToString(),
              AllOf(HasSubstr("rank 1 (b)"), HasSubstr("step 101 (matmul)")));
  EXPECT_EQ(Report(101, "a", 0).code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(transport_.heard(), ElementsAre("start matmul", "abort matmul"));
}

TEST_F(SequencerTest, ALostWorkerFailsTheStepsThatInvolveIt) {
  ASSERT_THAT(Submit(Step("linear", {"x"}, {"y"})), IsOk());
  ASSERT_THAT(Submit(Step("behind", {"y"}, {})), IsOk());
  StepRequest alone = Step("alone", {"x"}, {});
  alone.participants = {{.rank = 0, .identity = "a"}};
  ASSERT_THAT(Submit(std::move(alone)), IsOk());
  sequencer_.WorkerLost("b", 3, "its stream broke");
  ASSERT_EQ(outcomes_.size(), 2u);
  EXPECT_THAT(outcomes_[0].status, StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
  EXPECT_THAT(
      outcomes_[0].status,
      test::CarriesFacts(
          Reason::kWorkerLost,
          {{fact::kRank, 1}, {fact::kIdentity, "b"}, {fact::kStep, 101}, {fact::kOp, "linear"}}));
  EXPECT_THAT(outcomes_[0].status.ToString(),
              AllOf(HasSubstr("rank 1 (b)"), HasSubstr("its stream broke"),
                    HasSubstr("step 101 (linear)")));
  EXPECT_THAT(transport_.heard(), ElementsAre("start linear", "start alone", "abort linear"));
  EXPECT_THAT(Submit(Step("next", {}, {})),
              StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
  EXPECT_THAT(Report(102, "a", 0), IsOk());
  EXPECT_EQ(transport_.heard().back(), "commit alone");
}

// With what the test says is known of steps.
class ExplainedSequencerTest : public SequencerTest {
 protected:
  ExplainedSequencerTest() {
    explained_.WorkerAttached("a", 1);
    explained_.WorkerAttached("b", 2);
    EXPECT_THAT(
        explained_.Submit(Step("linear", {"x"}, {"y"}),
                          [this](const WorkOutcome& outcome) { outcomes_.push_back(outcome); }),
        IsOk());
  }
  absl::Status Report(RankReport report) {
    report.done = true;
    return explained_.ReportStep(101, 2, 7, std::move(report));
  }

  StepExplanation explanation_;
  Sequencer explained_{
      &clock_,
      &transport_,
      {.term = 7,
       .last_sequence = 100,
       .explain = [this](const WorkRef& work, const std::vector<Participant>& waiting_for) {
         EXPECT_EQ(work.sequence, 101);
         EXPECT_EQ(waiting_for.size(), 2u);
         return explanation_;
       }}};
};

TEST_F(ExplainedSequencerTest, ADeadlineSaysWhoIsToBlame) {
  explanation_ = {.text = "rank 0 waits for rank 1 (b), which has not begun the step",
                  .waiting = "rank 0 waited",
                  .blamed = {{.rank = 1, .identity = "b"}}};
  clock_.Advance(absl::Seconds(30));
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_EQ(outcomes_[0].status.message(),
            "step 101 (linear) did not end within 30s: rank 0 waits for rank 1 (b), which has not "
            "begun the step");
  EXPECT_THAT(transport_.blamed(), ElementsAre("b"));
}

TEST_F(ExplainedSequencerTest, ALossSaysWhoWaitedWhere) {
  explanation_.waiting = "rank 0 waited in \"op 0 (linear): all-reduce over tp\"";
  explained_.WorkerLost("b", 3, "its stream broke");
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_EQ(outcomes_[0].status.message(),
            "rank 1 (b) was lost (its stream broke) during step 101 (linear), while rank 0 waited "
            "in \"op 0 (linear): all-reduce over tp\"; retry when it is back");
  EXPECT_THAT(transport_.blamed(), ElementsAre("b"));
}

TEST_F(ExplainedSequencerTest, AReportBlamesWhomItNamesAndElseItsOwnRank) {
  EXPECT_THAT(Report({.identity = "a",
                      .rank = 0,
                      .status = absl::UnavailableError("rank 1 (b) is gone"),
                      .blamed_identity = "b"}),
              IsOk());
  EXPECT_THAT(transport_.blamed(), ElementsAre("b"));
}

TEST_F(ExplainedSequencerTest, AReportWithoutANameBlamesItsOwnRank) {
  EXPECT_THAT(
      Report({.identity = "a", .rank = 0, .status = absl::ResourceExhaustedError("no memory")}),
      IsOk());
  EXPECT_THAT(transport_.blamed(), ElementsAre("a"));
}

TEST_F(ExplainedSequencerTest, AMismatchBlamesNobody) {
  EXPECT_THAT(Report({.identity = "a",
                      .rank = 0,
                      .status = WithReason(absl::FailedPreconditionError("not the same collective"),
                                           Reason::kCollectiveMismatch)}),
              IsOk());
  EXPECT_THAT(transport_.blamed(), ElementsAre());
}

TEST_F(SequencerTest, KnowsTheWorkersOfAnOperation) {
  EXPECT_THAT(sequencer_.WorkersOf("").taking_part, IsEmpty());
  StepRequest step = Step("reshard", {"x"}, {"y"});
  step.operation_id = "op";
  ASSERT_THAT(Submit(std::move(step)), IsOk());
  EXPECT_THAT(sequencer_.WorkersOf("op").waiting_for, ElementsAre("a", "b"));
  EXPECT_THAT(Report(101, "a", 0), IsOk());
  EXPECT_THAT(sequencer_.WorkersOf("op").waiting_for, ElementsAre("b"));
  EXPECT_THAT(sequencer_.WorkersOf("op").taking_part, ElementsAre("a", "b"));
  EXPECT_THAT(sequencer_.WorkersOf("other").taking_part, IsEmpty());
  StepRequest behind = Step("reads y", {"y"}, {"z"});
  behind.operation_id = "behind";
  ASSERT_THAT(Submit(std::move(behind)), IsOk());
  EXPECT_THAT(sequencer_.WorkersOf("behind").waiting_for, IsEmpty()) << "no worker was asked yet";
  EXPECT_THAT(sequencer_.WorkersOf("behind").taking_part, ElementsAre("a", "b"));
  EXPECT_THAT(sequencer_.WorkersOfAll({"behind", "op", "other"}).waiting_for, ElementsAre("b"));
  EXPECT_THAT(sequencer_.WorkersOfAll({}).taking_part, IsEmpty());

  TransferRequest put;
  put.transfer_id = "t";
  put.op = "put";
  put.participants = {{.rank = 0, .identity = "a", .expected_tiles = 1}};
  put.timeout = absl::Seconds(30);
  ASSERT_THAT(sequencer_.BeginTransfer(std::move(put), [](const WorkOutcome&) {}), IsOk());
  EXPECT_THAT(sequencer_.WorkersOf("t").waiting_for, IsEmpty()) << "it waits for its client";
  EXPECT_THAT(sequencer_.WorkersOf("t").taking_part, ElementsAre("a"));
  ASSERT_THAT(sequencer_.CommitTransfer("t"), IsOk());
  EXPECT_THAT(sequencer_.WorkersOf("t").waiting_for, ElementsAre("a"));

  TransferRequest copy;
  copy.transfer_id = "u";
  copy.op = "put";
  copy.participants = {{.rank = 0, .identity = "a", .expected_tiles = 1}};
  copy.timeout = absl::Seconds(30);
  copy.operation_id = "op";
  copy.sources = std::make_shared<const std::vector<std::string>>(1, "c");
  ASSERT_THAT(sequencer_.BeginTransfer(std::move(copy), [](const WorkOutcome&) {}), IsOk());
  EXPECT_THAT(sequencer_.WorkersOf("op").sources, IsEmpty());
  EXPECT_THAT(sequencer_.WorkersOf("op").taking_part, ElementsAre("a", "b", "c"));
  ASSERT_THAT(sequencer_.CommitTransfer("u"), IsOk());
  EXPECT_THAT(sequencer_.WorkersOf("op").waiting_for, ElementsAre("a", "b"));
  EXPECT_THAT(sequencer_.WorkersOf("op").sources, ElementsAre("c"));
  EXPECT_THAT(sequencer_.WorkersOf("op").taking_part, ElementsAre("a", "b", "c"));
}

TEST(ExplainedTransferTest, ADeadlineNamesOnlyTheRanksThatTheExplanationBlames) {
  test::FakeClock clock;
  RecordingTransport transport;
  Sequencer::Options options{.term = 7};
  options.explain = [](const WorkRef& work, const std::vector<Participant>& waiting_for) {
    EXPECT_EQ(waiting_for.size(), 2u);
    return StepExplanation{
        .text = "b has sent no heartbeat for 3s", .blamed = {waiting_for[1]}, .late = {"b", "c"}};
  };
  Sequencer sequencer(&clock, &transport, options);
  sequencer.WorkerAttached("a", 1);
  sequencer.WorkerAttached("b", 2);
  std::vector<absl::Status> ended;
  for (const char* id : {"aborted", "overdue"}) {
    TransferRequest put;
    put.transfer_id = id;
    put.op = "put";
    put.participants = {{.rank = 0, .identity = "a", .expected_tiles = 1},
                        {.rank = 1, .identity = "b", .expected_tiles = 1}};
    put.timeout = absl::Seconds(30);
    ASSERT_THAT(sequencer.BeginTransfer(
                    std::move(put),
                    [&ended](const WorkOutcome& outcome) { ended.push_back(outcome.status); }),
                IsOk());
    ASSERT_THAT(sequencer.CommitTransfer(id), IsOk());
  }
  EXPECT_THAT(
      sequencer.AbortTransfer(
          "aborted", WithReason(absl::DeadlineExceededError("it is late"), Reason::kDeadline)),
      IsOk());
  clock.Advance(absl::Seconds(30));
  ASSERT_EQ(ended.size(), 2u);
  for (const absl::Status& status : ended) {
    EXPECT_EQ(FactOf(status, fact::kRank), "1") << status;
    EXPECT_EQ(FactOf(status, fact::kIdentity), "b,c") << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("waited for rank 1 (b); b has sent no heartbeat for 3s"),
                      Not(HasSubstr("rank 0 (a)"))));
  }
}

TEST(ExplainedTransferTest, ADeadlineOfATransferWhoseClientIsLateNamesSilentWorkersOnly) {
  test::FakeClock clock;
  RecordingTransport transport;
  bool is_silent = false;
  Sequencer::Options options{.term = 7};
  options.explain = [&](const WorkRef& work, const std::vector<Participant>& waiting_for) {
    EXPECT_FALSE(work.commit_asked);
    if (!is_silent) return StepExplanation();
    return StepExplanation{
        .text = "b is silent", .waiting = {}, .blamed = {waiting_for[1]}, .late = {"b"}};
  };
  Sequencer sequencer(&clock, &transport, options);
  sequencer.WorkerAttached("a", 1);
  sequencer.WorkerAttached("b", 2);
  const auto put = [&] {
    absl::Status ended;
    TransferRequest request;
    request.transfer_id = "t";
    request.op = "put";
    request.participants = {{.rank = 0, .identity = "a", .expected_tiles = 1},
                            {.rank = 1, .identity = "b", .expected_tiles = 1}};
    request.timeout = absl::Seconds(30);
    EXPECT_THAT(
        sequencer.BeginTransfer(std::move(request),
                                [&](const WorkOutcome& outcome) { ended = outcome.status; }),
        IsOk());
    clock.Advance(absl::Seconds(30));
    return ended;
  };
  const absl::Status late = put();
  EXPECT_THAT(late, StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
  EXPECT_THAT(std::string(late.message()), HasSubstr("waited for the client"));
  EXPECT_EQ(FactOf(late, fact::kIdentity), std::nullopt);
  EXPECT_EQ(FactOf(late, fact::kRank), std::nullopt);
  is_silent = true;
  const absl::Status silent = put();
  EXPECT_THAT(std::string(silent.message()), HasSubstr("waited for rank 1 (b); b is silent"));
  EXPECT_EQ(FactOf(silent, fact::kIdentity), "b");
}

TEST_F(SequencerTest, AStepThatAWorkerMissesEndsAtOnce) {
  transport_.missed = Participant{.rank = 1, .identity = "b"};
  ASSERT_THAT(Submit(Step("linear", {"x"}, {"y"})), IsOk());
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_THAT(outcomes_[0].status, StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
  EXPECT_THAT(std::string(outcomes_[0].status.message()),
              HasSubstr("rank 1 (b) is attaching again during step 101 (linear)"));
  EXPECT_THAT(transport_.heard(), ElementsAre("start linear", "abort linear"));
  EXPECT_THAT(transport_.blamed(), ElementsAre("b"));
  ASSERT_THAT(Submit(Step("next", {"y"}, {"z"})), IsOk());
  EXPECT_EQ(transport_.heard().back(), "start next") << "the failed step holds up no other";
}

TEST_F(SequencerTest, AnOutcomeHasTheEpochAtWhichItsWorkBegan) {
  ASSERT_THAT(Submit(Step("linear", {"x"}, {"y"})), IsOk());
  sequencer_.WorkerAttached("c", 9);  // takes no part
  BothDone(101);
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_EQ(outcomes_[0].epoch, 2);
}

TEST_F(SequencerTest, ADeadlineNamesWhoWasWaitedFor) {
  ASSERT_THAT(Submit(Step("linear", {"x"}, {"y"})), IsOk());
  EXPECT_THAT(Report(101, "a", 0), IsOk());
  clock_.Advance(absl::Seconds(30));
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_THAT(outcomes_[0].status,
              StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
  EXPECT_THAT(outcomes_[0].status, test::CarriesFacts(Reason::kDeadline, {{fact::kRank, 1},
                                                                          {fact::kIdentity, "b"},
                                                                          {fact::kStep, 101},
                                                                          {fact::kOp, "linear"},
                                                                          {fact::kLimit, 30}}));
  EXPECT_THAT(outcomes_[0].status.ToString(), HasSubstr("waited for rank 1 (b)"));
}

TEST_F(SequencerTest, AStepThatWaitsForAnotherEndsAtItsDeadlineAndNamesTheOther) {
  ASSERT_THAT(Submit(Step("first", {"x"}, {"y"})), IsOk());
  EXPECT_THAT(Report(101, "a", 0), IsOk());
  for (const auto& [op, reads, writes] :
       {std::tuple("second", "y", "z"), std::tuple("third", "z", "")}) {
    StepRequest step = Step(op, {reads}, {writes});
    step.timeout = absl::Seconds(1);
    step.total_timeout = absl::Seconds(1);
    ASSERT_THAT(Submit(std::move(step)), IsOk());
  }
  clock_.Advance(absl::Milliseconds(999));
  EXPECT_THAT(outcomes_, IsEmpty());
  clock_.Advance(absl::Milliseconds(1));
  ASSERT_EQ(outcomes_.size(), 2u);
  EXPECT_EQ(outcomes_[0].status.message(),
            "a waiting step (second) did not begin within 1s: it waits for step 101 (first), which "
            "waits for rank 1 (b)");
  EXPECT_EQ(outcomes_[1].status.message(),
            "a waiting step (third) did not begin within 1s: it waits for step 101 (first), which "
            "waits for rank 1 (b)");
  for (const WorkOutcome& outcome : outcomes_) {
    EXPECT_THAT(outcome.status, StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
    EXPECT_EQ(FactOf(outcome.status, fact::kIdentity), "b");
    EXPECT_EQ(FactOf(outcome.status, fact::kRank), "1");
    EXPECT_EQ(FactOf(outcome.status, fact::kLimit), "1");
  }
  EXPECT_THAT(transport_.heard(), ElementsAre("start first"));
  EXPECT_THAT(Report(101, "b", 1), IsOk());
  EXPECT_EQ(transport_.heard().back(), "commit first");
}

TEST_F(SequencerTest, AStepThatWaitedHasTheRestOfItsTime) {
  ASSERT_THAT(Submit(Step("first", {"x"}, {"y"})), IsOk());
  StepRequest second = Step("second", {"y"}, {"z"});
  second.timeout = absl::Seconds(2);
  second.total_timeout = absl::Seconds(2);
  ASSERT_THAT(Submit(std::move(second)), IsOk());
  StepRequest third = Step("third", {"y"}, {});  // its time counts from its admission only
  third.timeout = absl::Seconds(2);
  ASSERT_THAT(Submit(std::move(third)), IsOk());
  clock_.Advance(absl::Milliseconds(1500));
  BothDone(101);
  EXPECT_EQ(outcomes_.size(), 1u);
  clock_.Advance(absl::Milliseconds(500));
  ASSERT_EQ(outcomes_.size(), 2u);
  EXPECT_THAT(std::string(outcomes_[1].status.message()),
              HasSubstr("step 102 (second) did not end within 2s"));
  clock_.Advance(absl::Milliseconds(1500));
  ASSERT_EQ(outcomes_.size(), 3u);
  EXPECT_THAT(std::string(outcomes_[2].status.message()),
              HasSubstr("step 103 (third) did not end within 2s"));
}

// A step's time after its admission may be shorter than its whole time: the error names the one
// that is over.
TEST_F(SequencerTest, AnOverdueStepNamesTheLimitThatEndedIt) {
  ASSERT_THAT(Submit(Step("first", {"x"}, {"y"})), IsOk());
  StepRequest waits = Step("waits", {"y"}, {"z"});
  waits.timeout = absl::Seconds(1);
  waits.total_timeout = absl::Seconds(3);
  ASSERT_THAT(Submit(std::move(waits)), IsOk());
  StepRequest runs = Step("runs", {"x"}, {"v"});
  runs.timeout = absl::Seconds(1);
  runs.total_timeout = absl::Seconds(3);
  ASSERT_THAT(Submit(std::move(runs)), IsOk());
  clock_.Advance(absl::Seconds(1));
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_THAT(std::string(outcomes_[0].status.message()),
              HasSubstr("(runs) did not end within 1s"));
  EXPECT_EQ(FactOf(outcomes_[0].status, fact::kLimit), "1");
  clock_.Advance(absl::Milliseconds(1999));
  EXPECT_EQ(outcomes_.size(), 1u);
  clock_.Advance(absl::Milliseconds(1));
  ASSERT_EQ(outcomes_.size(), 2u);
  EXPECT_THAT(std::string(outcomes_[1].status.message()),
              HasSubstr("(waits) did not begin within 3s: it waits for step 101 (first)"));
  EXPECT_EQ(FactOf(outcomes_[1].status, fact::kLimit), "3");

  // Admitted after 500 ms, a step of 1.3 s in all has 800 ms left, which is less than its 1 s.
  StepRequest late = Step("late", {"y"}, {"w"});
  late.timeout = absl::Seconds(1);
  late.total_timeout = absl::Milliseconds(1300);
  ASSERT_THAT(Submit(std::move(late)), IsOk());
  clock_.Advance(absl::Milliseconds(500));
  BothDone(101);
  clock_.Advance(absl::Milliseconds(800));
  EXPECT_THAT(std::string(outcomes_.back().status.message()),
              HasSubstr("(late) did not end within 1.3s"));
  EXPECT_EQ(FactOf(outcomes_.back().status, fact::kLimit), "1.3");
}

TEST_F(SequencerTest, AsksTheWorkersThatAStepWaitsForBeforeItsDeadline) {
  std::vector<std::set<std::string>> asked;
  Sequencer asking(
      &clock_, &transport_,
      {.term = 7,
       .last_sequence = 100,
       .ask = [&asked](const std::set<std::string>& identities) { asked.push_back(identities); },
       .ask_before = absl::Milliseconds(300)});
  asking.WorkerAttached("a", 1);
  asking.WorkerAttached("b", 2);
  const auto submit = [&](const std::string& op, const std::string& writes, absl::Duration time) {
    StepRequest step = Step(op, {}, {writes});
    step.timeout = time;
    step.total_timeout = time;
    EXPECT_THAT(asking.Submit(std::move(step), [](const WorkOutcome&) {}), IsOk());
  };
  submit("long", "x", absl::Seconds(10));
  EXPECT_THAT(asking.ReportStep(101, 2, 7, {.identity = "a", .rank = 0, .done = true}), IsOk());
  clock_.Advance(absl::Milliseconds(9699));
  EXPECT_THAT(asked, IsEmpty());
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_THAT(asked, ElementsAre(ElementsAre("b")));
  clock_.Advance(absl::Milliseconds(300));
  EXPECT_EQ(asked.size(), 1u) << "each step asks once";
  asked.clear();
  submit("short", "x", absl::Milliseconds(200));
  submit("behind", "x", absl::Milliseconds(150));
  clock_.Advance(absl::Milliseconds(75));
  EXPECT_THAT(asked, ElementsAre(ElementsAre("a", "b"))) << "those of the step that it waits for";
  clock_.Advance(absl::Milliseconds(25));
  EXPECT_EQ(asked.size(), 2u);
}

TEST_F(SequencerTest, RefusesReportsOfOtherEpochsTermsAndWorkers) {
  ASSERT_THAT(Submit(Step("linear", {"x"}, {"y"})), IsOk());
  const RankReport report{.identity = "a", .rank = 0, .done = true};
  EXPECT_THAT(sequencer_.ReportStep(101, 1, 7, report),
              StatusIs(absl::StatusCode::kAborted, Reason::kStaleEpoch));
  EXPECT_THAT(sequencer_.ReportStep(101, 1, 7, report),
              test::CarriesFacts(Reason::kStaleEpoch, {{fact::kHave, 1}, {fact::kNeed, 2}}));
  EXPECT_THAT(sequencer_.ReportStep(101, 2, 6, report),
              StatusIs(absl::StatusCode::kAborted, Reason::kStaleTerm));
  EXPECT_EQ(Report(101, "a", 1).code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(SequencerTest, TheHookDecidesBeforeTheWorkersHear) {
  absl::AnyInvocable<void(absl::Status) &&> decided;
  StepRequest request = Step("linear", {"x"}, {"y"});
  request.commit = [&](const WorkOutcome&, auto decide) { decided = std::move(decide); };
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto ticket, Submit(std::move(request)));
  BothDone(101);
  sequencer_.Cancel(ticket);
  sequencer_.WorkerLost("a", 3, "late");
  EXPECT_TRUE(outcomes_.empty());
  std::move(decided)(absl::OkStatus());
  EXPECT_THAT(transport_.heard(), ElementsAre("start linear", "commit linear"));
}

TEST_F(SequencerTest, AHookThatRefusesAborts) {
  StepRequest request = Step("linear", {"x"}, {"y"});
  request.commit = [](const WorkOutcome&, auto decide) {
    std::move(decide)(absl::ResourceExhaustedError("disk full"));
  };
  ASSERT_THAT(Submit(std::move(request)), IsOk());
  BothDone(101);
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_EQ(outcomes_[0].status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(transport_.heard(), ElementsAre("start linear", "abort linear"));
}

TEST_F(SequencerTest, ATransferCommitsWhenAllIsStagedAndTheClientAsksForIt) {
  TransferRequest request{.transfer_id = "t",
                          .op = "put",
                          .mesh_id = "m",
                          .participants = {{.rank = 0, .identity = "a", .expected_tiles = 2},
                                           {.rank = 1, .identity = "b", .expected_tiles = 1}},
                          .timeout = absl::Minutes(1),
                          .commit = nullptr};
  ASSERT_THAT(
      sequencer_.BeginTransfer(
          std::move(request), [this](const WorkOutcome& outcome) { outcomes_.push_back(outcome); }),
      IsOk());
  const auto staged = [&](const std::string& identity, int64_t rank, const std::string& array) {
    return sequencer_.ReportTransfer(
        "t", 7, {.identity = identity, .rank = rank, .tiles = {{.array_id = array}}});
  };
  EXPECT_THAT(staged("a", 0, "x"), IsOk());
  EXPECT_THAT(staged("a", 0, "x"), IsOk());
  EXPECT_THAT(staged("b", 1, "x"), IsOk());
  EXPECT_THAT(sequencer_.CommitTransfer("t"), IsOk());
  EXPECT_TRUE(outcomes_.empty());
  EXPECT_THAT(staged("a", 0, "y"), IsOk());
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_THAT(outcomes_[0].status, IsOk());
  EXPECT_EQ(outcomes_[0].sequence, 101);
  EXPECT_EQ(outcomes_[0].ranks[0].tiles.size(), 2u);
  EXPECT_THAT(transport_.heard(), ElementsAre("commit put"));
  EXPECT_THAT(sequencer_.CommitTransfer("t"),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
}

TEST_F(SequencerTest, AWorkerThatLeavesFinishesWhatItHasAndGetsNothingNew) {
  ASSERT_THAT(Submit(Step("running", {"x"}, {"y"})), IsOk());
  ASSERT_THAT(Submit(Step("waiting", {"y"}, {})), IsOk());
  int told = 0;
  sequencer_.WorkerLeaves("b", [&] { ++told; });
  EXPECT_THAT(Submit(Step("late", {}, {})),
              AllOf(StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost)));
  StepRequest alone = Step("alone", {}, {});
  alone.participants = {{.rank = 0, .identity = "a"}};
  EXPECT_THAT(Submit(std::move(alone)), IsOk()) << "which does not need it";
  BothDone(101);
  EXPECT_EQ(told, 0) << "a step that was taken in before waits for it";
  BothDone(103);
  EXPECT_EQ(told, 1);
  EXPECT_THAT(transport_.heard().back(), "commit waiting") << "of which it heard before";
  sequencer_.WorkerLost("b", 3, "it left");
  sequencer_.WorkerAttached("b", 4);
  EXPECT_THAT(Submit(Step("next", {}, {})), IsOk());
  sequencer_.WorkerLeaves("c", [&] { ++told; });
  EXPECT_EQ(told, 2) << "nothing can need it";
}

TEST_F(SequencerTest, DrainingLetsWhatIsLiveEndAndTakesInNothingNew) {
  ASSERT_THAT(Submit(Step("running", {"x"}, {"y"})), IsOk());
  ASSERT_THAT(Submit(Step("waiting", {"y"}, {})), IsOk());
  std::thread workers([this] {
    const auto request = [] {
      TransferRequest made;
      made.transfer_id = "t";
      made.op = "put";
      made.participants = {{.rank = 0, .identity = "a"}};
      made.timeout = absl::Seconds(1);
      return made;
    };
    // Draining has begun once something new is refused.
    while (sequencer_.BeginTransfer(request(), [](const WorkOutcome&) {}).ok()) {
      ASSERT_THAT(sequencer_.AbortTransfer("t", absl::AbortedError("")), IsOk());
    }
    BothDone(101);
    BothDone(102);
  });
  EXPECT_EQ(sequencer_.Drain(absl::InfiniteFuture()), 0);
  workers.join();
  ASSERT_EQ(outcomes_.size(), 2u);
  EXPECT_THAT(outcomes_[0].status, IsOk());
  EXPECT_THAT(outcomes_[1].status, IsOk());
  EXPECT_THAT(Submit(Step("late", {}, {})),
              StatusIs(absl::StatusCode::kUnavailable, Reason::kNotServing));
}

TEST_F(SequencerTest, WhatHasNotEndedWithTheGraceIsAbortedByName) {
  ASSERT_THAT(Submit(Step("linear", {"x"}, {"y"})), IsOk());
  ASSERT_THAT(Submit(Step("behind", {"y"}, {})), IsOk());
  EXPECT_EQ(sequencer_.Drain(absl::InfinitePast()), 2);
  ASSERT_EQ(outcomes_.size(), 2u);
  EXPECT_THAT(outcomes_[0].status, StatusIs(absl::StatusCode::kUnavailable, Reason::kNotServing));
  EXPECT_THAT(outcomes_[0].status.ToString(),
              AllOf(HasSubstr("step 101 (linear)"), HasSubstr("its grace has ended")));
  EXPECT_THAT(outcomes_[1].status.ToString(), HasSubstr("behind"));
  EXPECT_THAT(transport_.heard(), ElementsAre("start linear", "abort linear"));
}

TEST_F(SequencerTest, EveryStepEndsOnceUnderManyThreads) {
  constexpr int kThreads = 4;
  constexpr int kSteps = 100;
  absl::Mutex mutex;
  int committed = 0;
  int aborted = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kSteps; ++i) {
        const auto ticket =
            sequencer_.Submit(Step("linear", {StrCat("x", i % 3)}, {StrCat("y", (i + t) % 3)}),
                              [&](const WorkOutcome& outcome) {
                                absl::MutexLock lock(&mutex);
                                ++(outcome.status.ok() ? committed : aborted);
                              });
        ASSERT_THAT(ticket, IsOk());
        if (i % 5 == 0) sequencer_.Cancel(*ticket);
        for (const Sequencer::LiveWork& live : sequencer_.Live()) {
          if (live.work.sequence == 0) continue;
          Report(live.work.sequence, "a", 0).IgnoreError();
          Report(live.work.sequence, "b", 1).IgnoreError();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  while (!sequencer_.Live().empty()) BothDone(sequencer_.Live().front().work.sequence);
  absl::MutexLock lock(&mutex);
  EXPECT_EQ(committed + aborted, kThreads * kSteps);
}

}  // namespace
}  // namespace shardmesh::server
