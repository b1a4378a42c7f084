// The verdict on what is known of the workers and on what failed.
#include "server/diagnosis/step_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class StepWatchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int64_t rank = 0; rank < 2; ++rank) Attach(rank, 1);
    ASSERT_THAT(members_.AddMesh("default", 2, {}), IsOk());
  }
  void Attach(int64_t rank, uint64_t incarnation, bool answers_clock = true) {
    const std::string identity = StrCat("worker-", rank);
    auto attachment = members_.Attach({.identity = identity,
                                       .incarnation = incarnation,
                                       .build_version = "1",
                                       .endpoints = {"127.0.0.1:1"},
                                       .host = "host",
                                       .answers_clock = answers_clock});
    ASSERT_THAT(attachment, IsOk());
    attachments_[rank] = *attachment;
    log_.Attached(identity, incarnation);
  }
  void Beat(int64_t rank, std::optional<StepProgress> progress) {
    EXPECT_THAT(members_.Heartbeat(attachments_[rank], 0), IsOk());
    FlightLog::Heartbeat heartbeat{.sent = clock_.Now()};
    if (progress.has_value()) heartbeat.progress.push_back(*std::move(progress));
    log_.Heard(StrCat("worker-", rank), 1, std::move(heartbeat), clock_.Now());
  }
  // Waits in instruction 3 for the other rank.
  StepProgress Waiting(int64_t rank) const {
    FlightRecord instruction{.step = 7,
                             .rank = rank,
                             .op = 3,
                             .what = "op 0 (linear): all-reduce over tp",
                             .started = begun_,
                             .peers = {{.rank = 1 - rank}},
                             .waits_for = 1 - rank};
    return {.step = 7, .started = begun_, .instruction = std::move(instruction)};
  }
  std::vector<Participant> Both() const {
    return {{.rank = 0, .identity = "worker-0"}, {.rank = 1, .identity = "worker-1"}};
  }
  WorkRef Work() const {
    return {.sequence = 7,
            .op = "linear",
            .mesh_id = "default",
            .started = begun_,
            .participants = Both()};
  }
  std::vector<Sequencer::LiveWork> Live() const {
    return {{.work = Work(), .state = "RUNNING", .waiting_for = Both()}};
  }

  test::FakeClock clock_;
  Membership members_{&clock_};
  FlightLog log_;
  StepWatch watch_{&clock_, &members_, &log_};
  std::map<int64_t, uint64_t> attachments_;
  absl::Time begun_ = clock_.Now();
};

TEST_F(StepWatchTest, ALateCallNamesTheSilentWorkersOfThoseItWaitsForOrElseAllOfThem) {
  const absl::Status unknown = watch_.ExplainLate("the save", {});
  EXPECT_THAT(unknown, test::StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("the save has not ended"));
  const OperationWorkers waiting{.waiting_for = {"a", "b", "c", "d", "e", "f"}};
  const absl::Status slow = watch_.ExplainLate("the save", waiting);
  EXPECT_THAT(std::string(slow.message()),
              AllOf(HasSubstr("worker \"a\" has not answered yet"), HasSubstr("; and 2 more")));
  EXPECT_EQ(FactOf(slow, fact::kIdentity), "a,b,c,d");
  clock_.Advance(absl::Seconds(3));
  Beat(0, std::nullopt);
  EXPECT_EQ(watch_.ExplainLate("the save", waiting), slow) << "it does not wait for worker-1";
  const OperationWorkers both{.waiting_for = {"worker-0", "worker-1"}};
  EXPECT_EQ(FactOf(watch_.ExplainLate("the save", both), fact::kIdentity), "worker-1");
  const absl::Status late =
      watch_.ExplainLate("the operation", {.taking_part = {"worker-0", "worker-1"}});
  EXPECT_THAT(late, test::StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
  EXPECT_THAT(std::string(late.message()),
              AllOf(HasSubstr("rank 1 (worker-1)"), HasSubstr("no heartbeat for 3s")));
  EXPECT_EQ(FactOf(late, fact::kIdentity), "worker-1");
}

TEST_F(StepWatchTest, ALateCallNamesNoSilentWorkerThatTakesNoPart) {
  clock_.Advance(absl::Seconds(3));
  Beat(0, std::nullopt);
  for (const OperationWorkers& workers :
       {OperationWorkers(), OperationWorkers{.taking_part = {"worker-0"}}}) {
    const absl::Status late = watch_.ExplainLate("the operation", workers);
    EXPECT_EQ(FactOf(late, fact::kIdentity), std::nullopt);
    EXPECT_THAT(std::string(late.message()), HasSubstr("give it more time"));
  }
}

// One heartbeat of worker-1 is late, which says little: worker-0 may be what the call waits for.
TEST_F(StepWatchTest, AnOverdueHeartbeatDoesNotHideTheOtherWorkersThatHaveNotAnswered) {
  Attach(2, 1);
  const OperationWorkers workers{.waiting_for = {"worker-0", "worker-1"}, .sources = {"worker-2"}};
  clock_.Advance(absl::Milliseconds(1200));
  Beat(0, std::nullopt);
  Beat(2, std::nullopt);
  clock_.Advance(absl::Milliseconds(60));
  const absl::Status late = watch_.ExplainLate("the resize", workers);
  EXPECT_EQ(FactOf(late, fact::kIdentity), "worker-1,worker-0") << "the source is in time";
  WorkRef put = Work();
  put.sequence = 0;
  put.transfer_id = "t";
  EXPECT_EQ(watch_.Explain(put, Both()).blamed.size(), 2u);
}

// No worker counts as silent yet.
TEST_F(StepWatchTest, ALateCallNamesTheWorkersItWaitsForHoweverShortItsTimeWas) {
  const OperationWorkers both{.waiting_for = {"worker-0", "worker-1"}};
  clock_.Advance(absl::Milliseconds(500));
  Beat(0, std::nullopt);
  clock_.Advance(absl::Milliseconds(200));
  const absl::Status early = watch_.ExplainLate("the resize", both);
  EXPECT_EQ(FactOf(early, fact::kIdentity), "worker-1,worker-0") << "the oldest heartbeat first";
  EXPECT_THAT(std::string(early.message()),
              HasSubstr("worker \"worker-1\" has not answered yet (its last heartbeat came "
                        "700ms ago); worker \"worker-0\""));

  // Its heartbeat is overdue.
  clock_.Advance(absl::Milliseconds(700));
  const absl::Status late = watch_.ExplainLate("the resize", both);
  EXPECT_EQ(FactOf(late, fact::kIdentity), "worker-1,worker-0");
  EXPECT_THAT(std::string(late.message()), HasSubstr("its last heartbeat came 1.4s ago"));

  // If all are overdue, the network or this host may be slow.
  clock_.Advance(absl::Milliseconds(600));
  EXPECT_EQ(FactOf(watch_.ExplainLate("the resize", both), fact::kIdentity), "worker-1,worker-0");
}

TEST_F(StepWatchTest, ExplainsALateTransferByTheWorkersThatAreLate) {
  WorkRef put = Work();
  put.sequence = 0;
  put.transfer_id = "t";
  StepExplanation explanation = watch_.Explain(put, Both());
  EXPECT_EQ(explanation.blamed.size(), 2u);
  clock_.Advance(absl::Seconds(3));
  Beat(0, std::nullopt);
  explanation = watch_.Explain(put, Both());
  ASSERT_EQ(explanation.blamed.size(), 1u);
  EXPECT_EQ(explanation.blamed[0].rank, 1);
  EXPECT_THAT(explanation.text, HasSubstr("rank 1 (worker-1) of mesh \"default\" has sent no "
                                          "heartbeat for 3s"));
  EXPECT_TRUE(watch_.Explain(put, {}).text.empty()) << "it waits for its client";

  // The worker that it waits for fetches tiles of the silent one.
  put.sources = std::make_shared<const std::vector<std::string>>(1, "worker-1");
  explanation = watch_.Explain(put, {Both()[0]});
  EXPECT_THAT(explanation.late, ::testing::ElementsAre("worker-1"));
  EXPECT_THAT(explanation.blamed, IsEmpty());
  EXPECT_THAT(explanation.text, HasSubstr("(worker-1)"));
}

TEST_F(StepWatchTest, ATransferThatWaitsForItsClientIsExplainedBySilentWorkersOnly) {
  WorkRef put = Work();
  put.sequence = 0;
  put.transfer_id = "t";
  put.commit_asked = false;
  clock_.Advance(absl::Milliseconds(1400));
  Beat(0, std::nullopt);
  StepExplanation explanation = watch_.Explain(put, Both());
  EXPECT_EQ(explanation.text, "") << "an overdue heartbeat is no silence";
  EXPECT_THAT(explanation.blamed, IsEmpty());
  EXPECT_THAT(explanation.late, IsEmpty());
  clock_.Advance(absl::Seconds(2));
  Beat(0, std::nullopt);
  explanation = watch_.Explain(put, Both());
  ASSERT_THAT(explanation.blamed, SizeIs(1));
  EXPECT_EQ(explanation.blamed[0].identity, "worker-1");
  EXPECT_THAT(explanation.late, ::testing::ElementsAre("worker-1"));
}

TEST_F(StepWatchTest, ALateCallNamesASourceThatIsSilentOrMayBe) {
  const OperationWorkers workers{.waiting_for = {"worker-0"}, .sources = {"worker-1"}};
  clock_.Advance(absl::Milliseconds(900));
  Beat(0, std::nullopt);
  clock_.Advance(absl::Milliseconds(100));
  const absl::Status early = watch_.ExplainLate("the resize", workers);
  EXPECT_EQ(FactOf(early, fact::kIdentity), "worker-0,worker-1");
  EXPECT_THAT(std::string(early.message()),
              HasSubstr("worker \"worker-0\" has not answered yet (its last heartbeat came 100ms "
                        "ago); worker \"worker-1\" takes part (its last heartbeat came 1s ago)"));
  clock_.Advance(absl::Milliseconds(500));
  EXPECT_EQ(FactOf(watch_.ExplainLate("the resize", workers), fact::kIdentity),
            "worker-1,worker-0");
  clock_.Advance(absl::Seconds(2));
  Beat(0, std::nullopt);
  EXPECT_EQ(FactOf(watch_.ExplainLate("the resize", workers), fact::kIdentity), "worker-1");
}

// No heartbeat is overdue: only the answers tell a stopped worker from one that waits for it.
TEST_F(StepWatchTest, ALateCallNamesTheWorkersThatDoNotAnswer) {
  Attach(2, 1);
  const OperationWorkers workers{.waiting_for = {"worker-0", "worker-2"}, .sources = {"worker-1"}};
  std::set<std::string> asked;
  const StepWatch watch(&clock_, &members_, &log_,
                        [&asked](const std::set<std::string>& suspects) { asked = suspects; });
  const auto message = [&] {
    return std::string(watch.ExplainLate("the reshard", workers).message());
  };
  const auto named = [&] {
    return FactOf(watch.ExplainLate("the reshard", workers), fact::kIdentity);
  };
  for (int64_t rank = 0; rank < 3; ++rank) Beat(rank, std::nullopt);
  clock_.Advance(absl::Milliseconds(500));
  watch.Ask(workers);
  EXPECT_THAT(asked, ::testing::ElementsAre("worker-0", "worker-1", "worker-2"));
  clock_.Advance(absl::Milliseconds(100));
  EXPECT_EQ(named(), "worker-0,worker-2,worker-1") << "none answers: this host may be slow";
  Beat(0, std::nullopt);
  Beat(2, std::nullopt);
  EXPECT_EQ(named(), "worker-1");
  EXPECT_THAT(message(), AllOf(HasSubstr("worker \"worker-1\" does not answer (its last heartbeat "
                                         "came 600ms ago)"),
                               ::testing::Not(HasSubstr("worker-0"))));
  // All answer: the source does what it is to do, as far as is known.
  Beat(1, std::nullopt);
  EXPECT_EQ(named(), "worker-0,worker-2");
  EXPECT_THAT(message(), HasSubstr("worker \"worker-0\" has not done its part yet"));
  // A transfer has its own deadline.
  clock_.Advance(absl::Milliseconds(300));
  watch.Ask(workers);
  clock_.Advance(absl::Milliseconds(100));
  Beat(0, std::nullopt);
  WorkRef reshard = Work();
  reshard.sequence = 0;
  reshard.transfer_id = "t";
  reshard.sources = std::make_shared<const std::vector<std::string>>(1, "worker-1");
  EXPECT_THAT(watch.Explain(reshard, {Both()[0]}).late, ::testing::ElementsAre("worker-1"));
  // An old question says nothing.
  clock_.Advance(absl::Seconds(3));
  for (int64_t rank = 0; rank < 3; ++rank) Beat(rank, std::nullopt);
  EXPECT_THAT(message(), HasSubstr("worker \"worker-1\" takes part"));
}

// With a short deadline, the operation waits for nobody yet when its workers are asked.
TEST_F(StepWatchTest, ALateCallNamesAWorkerThatWasAskedBeforeTheOperationWaitedForIt) {
  std::set<std::string> asked;
  const StepWatch watch(&clock_, &members_, &log_,
                        [&asked](const std::set<std::string>& suspects) { asked = suspects; });
  const OperationWorkers both{.taking_part = {"worker-0", "worker-1"}};
  clock_.Advance(absl::Milliseconds(500));
  watch.Ask(both);
  EXPECT_THAT(asked, ::testing::ElementsAre("worker-0", "worker-1"));
  clock_.Advance(absl::Milliseconds(100));
  EXPECT_EQ(FactOf(watch.ExplainLate("the resize", both), fact::kIdentity), std::nullopt)
      << "none answers: this host may be slow";
  Beat(0, std::nullopt);
  const auto named = [&](const OperationWorkers& workers) {
    return FactOf(watch.ExplainLate("the resize", workers), fact::kIdentity);
  };
  EXPECT_EQ(named({.waiting_for = {"worker-0"}, .sources = {"worker-1"}}), "worker-1");
  EXPECT_EQ(named({.waiting_for = {"worker-1"}}), "worker-1");
  EXPECT_EQ(named({.waiting_for = {"worker-0"}}), "worker-0") << "it waits for no other worker";
  EXPECT_THAT(std::string(watch.ExplainLate("the resize", {.waiting_for = {"worker-0"}}).message()),
              HasSubstr("has not done its part yet"));
  // The worker that answers shows that this host is not slow, although the operation no longer
  // waits for it.
  EXPECT_THAT(std::string(watch
                              .ExplainLate("the resize", {.waiting_for = {"worker-1"},
                                                          .taking_part = both.taking_part})
                              .message()),
              HasSubstr("worker \"worker-1\" does not answer (its last heartbeat came 600ms ago)"));
  // The operation waits for its client: one of the workers does not answer.
  EXPECT_EQ(named(both), "worker-1");
  WorkRef put = Work();
  put.sequence = 0;
  put.transfer_id = "t";
  put.commit_asked = false;
  const StepExplanation explanation = watch.Explain(put, Both());
  EXPECT_THAT(explanation.late, ::testing::ElementsAre("worker-1"));
  ASSERT_THAT(explanation.blamed, SizeIs(1));
  EXPECT_EQ(explanation.blamed[0].identity, "worker-1");
}

// Worker-0 reports first that the stopped worker is out of its reach.
TEST_F(StepWatchTest, AWorkerThatAnswersIsNotNamedForAPeerThatDoesNot) {
  const OperationWorkers both{.waiting_for = {"worker-0", "worker-1"}};
  const StepWatch watch(&clock_, &members_, &log_, [](const std::set<std::string>&) {});
  const auto named = [&] { return FactOf(watch.ExplainLate("the put", both), fact::kIdentity); };
  clock_.Advance(absl::Milliseconds(500));
  watch.Ask(both);
  clock_.Advance(absl::Milliseconds(50));
  EXPECT_THAT(members_.Heartbeat(attachments_[0], 0), IsOk());
  log_.PeersReported("worker-0", {"worker-1"});
  EXPECT_EQ(named(), "worker-0") << "either may be at fault, as far as is known";
  clock_.Advance(absl::Milliseconds(50));
  EXPECT_EQ(named(), "worker-1");
}

// The worker that has not answered had too little time for certainty.
TEST_F(StepWatchTest, AWorkerThatHasAnsweredIsNamedAfterOneThatMayBeSilent) {
  const OperationWorkers workers{.waiting_for = {"worker-0"}, .sources = {"worker-1"}};
  const StepWatch watch(&clock_, &members_, &log_, [](const std::set<std::string>&) {});
  clock_.Advance(absl::Milliseconds(300));
  watch.Ask(workers);
  clock_.Advance(absl::Milliseconds(20));
  Beat(0, std::nullopt);
  clock_.Advance(absl::Milliseconds(20));
  const absl::Status late = watch.ExplainLate("the resize", workers);
  EXPECT_EQ(FactOf(late, fact::kIdentity), "worker-1,worker-0");
  EXPECT_THAT(std::string(late.message()),
              AllOf(HasSubstr("(its last heartbeat came 340ms ago)"),
                    HasSubstr("has not done its part yet (its last heartbeat came 20ms ago)")));
}

TEST_F(StepWatchTest, ALateCallNamesASilentWorkerAndOneThatHasJustCeasedToAnswer) {
  Attach(2, 1);
  const OperationWorkers all{.waiting_for = {"worker-0", "worker-1", "worker-2"}};
  const StepWatch watch(&clock_, &members_, &log_, [](const std::set<std::string>&) {});
  clock_.Advance(absl::Seconds(3));
  Beat(0, std::nullopt);
  Beat(2, std::nullopt);
  clock_.Advance(absl::Milliseconds(1));
  watch.Ask(all);
  clock_.Advance(absl::Milliseconds(100));
  Beat(0, std::nullopt);
  EXPECT_EQ(FactOf(watch.ExplainLate("the put", all), fact::kIdentity), "worker-1,worker-2");
}

TEST_F(StepWatchTest, AQuestionOfAnotherCallMakesNoWorkerMute) {
  const OperationWorkers both{.waiting_for = {"worker-0", "worker-1"}};
  std::vector<std::set<std::string>> asked;
  const StepWatch watch(&clock_, &members_, &log_, [&asked](const std::set<std::string>& suspects) {
    asked.push_back(suspects);
  });
  const auto named = [&] { return FactOf(watch.ExplainLate("the put", both), fact::kIdentity); };
  clock_.Advance(absl::Milliseconds(500));
  watch.Ask(both);
  clock_.Advance(absl::Milliseconds(1));
  Beat(1, std::nullopt);
  clock_.Advance(absl::Milliseconds(1));
  Beat(0, std::nullopt);
  // Another call asks soon after: no worker gets a second question.
  clock_.Advance(absl::Milliseconds(288));
  watch.Ask(both);
  EXPECT_EQ(asked.size(), 1u);
  Beat(0, std::nullopt);
  clock_.Advance(absl::Milliseconds(10));
  EXPECT_EQ(named(), "worker-1,worker-0") << "both have answered";
  // A third call asks after the interval. Only one worker has answered it so far.
  watch.Ask(both);
  EXPECT_EQ(asked.size(), 2u);
  clock_.Advance(absl::Milliseconds(10));
  Beat(0, std::nullopt);
  EXPECT_EQ(named(), "worker-1,worker-0") << "worker-1 has answered the question before";
  clock_.Advance(absl::Milliseconds(90));
  EXPECT_EQ(named(), "worker-1") << "it had the time to answer";
}

TEST_F(StepWatchTest, AWorkerThatWasJustAskedForTheFirstTimeIsNotMute) {
  const OperationWorkers both{.waiting_for = {"worker-0", "worker-1"}};
  const StepWatch watch(&clock_, &members_, &log_, [](const std::set<std::string>&) {});
  clock_.Advance(absl::Milliseconds(500));
  watch.Ask({.waiting_for = {"worker-0"}});
  Beat(0, std::nullopt);
  clock_.Advance(absl::Milliseconds(290));
  watch.Ask(both);
  clock_.Advance(absl::Milliseconds(10));
  EXPECT_EQ(FactOf(watch.ExplainLate("the put", both), fact::kIdentity), "worker-1,worker-0");
}

// A worker of an older build does not answer questions, however healthy it is.
TEST_F(StepWatchTest, AWorkerOfAnOlderBuildIsNeitherAskedNorMute) {
  members_.Detach(attachments_[1], "it is started anew");
  Attach(1, 2, /*answers_clock=*/false);
  const OperationWorkers both{.waiting_for = {"worker-0", "worker-1"}};
  std::set<std::string> asked;
  const StepWatch watch(&clock_, &members_, &log_,
                        [&asked](const std::set<std::string>& suspects) { asked = suspects; });
  clock_.Advance(absl::Milliseconds(500));
  watch.Ask(both);
  EXPECT_THAT(asked, ::testing::ElementsAre("worker-0"));
  clock_.Advance(absl::Milliseconds(300));
  Beat(0, std::nullopt);
  const absl::Status late = watch.ExplainLate("the put", both);
  EXPECT_EQ(FactOf(late, fact::kIdentity), "worker-1,worker-0");
  EXPECT_THAT(std::string(late.message()), HasSubstr("worker \"worker-1\" has not answered yet"));
}

TEST_F(StepWatchTest, CallsAStepStuckOnlyWhenARankHasWaitedForASecond) {
  Beat(0, Waiting(0));
  EXPECT_THAT(watch_.Diagnose(0, Live()).findings, IsEmpty());
  EXPECT_THAT(watch_.Diagnose(0, Live()).sentence,
              AllOf(HasSubstr("nothing is stuck"), HasSubstr("1 step runs")));
  clock_.Advance(absl::Seconds(1));
  Beat(0, Waiting(0));
  Beat(1, std::nullopt);
  const StepWatch::Verdict verdict = watch_.Diagnose(0, Live());
  ASSERT_THAT(verdict.findings, SizeIs(1));
  EXPECT_EQ(verdict.sentence,
            "step 7 (linear) is stuck: rank 0 waits in \"op 0 (linear): all-reduce "
            "over tp\" for rank 1 (worker-1), which has not begun the step");
  EXPECT_THAT(watch_.Diagnose(7, Live()).findings, SizeIs(1));
  EXPECT_THAT(watch_.Diagnose(8, Live()).findings, IsEmpty());
}

TEST_F(StepWatchTest, TellsOfTilesInQuarantineWhileTheirWorkerIsThere) {
  ASSERT_TRUE(members_.Heartbeat(attachments_[1], 0, {.arrays = 2, .size_bytes = 8}).ok());
  const StepWatch::Verdict verdict = watch_.Diagnose(0, {});
  ASSERT_THAT(verdict.findings, SizeIs(1));
  EXPECT_EQ(verdict.findings[0].kind, FindingKind::kQuarantined);
  EXPECT_EQ(verdict.sentence,
            "parts of 2 arrays are in quarantine, on worker-1; `shardmesh admin quarantine list` "
            "says why");
  members_.Detach(attachments_[1], "its stream broke");
  for (const Finding& finding : watch_.Diagnose(0, {}).findings) {
    EXPECT_NE(finding.kind, FindingKind::kQuarantined);
  }
}

TEST_F(StepWatchTest, TellsOfRecordsThatWereLeftOut) {
  const UnreadableRecords unreadable = {.count = 5, .keys = {"a/1", "b/2", "c/3", "d/4"}};
  const StepWatch::Verdict verdict = watch_.Diagnose(0, {}, 0, unreadable);
  ASSERT_THAT(verdict.findings, SizeIs(1));
  EXPECT_EQ(verdict.findings[0].kind, FindingKind::kUnreadable);
  EXPECT_THAT(verdict.sentence,
              AllOf(HasSubstr("5 records of the coordinator's state cannot be read, such as "
                              "\"a/1\", \"b/2\", \"c/3\"; "),
                    HasSubstr("shardmesh admin check FOLDER")));
  EXPECT_THAT(watch_.Diagnose(7, {}, 0, unreadable).findings, IsEmpty()) << "it is about a step";
}

TEST_F(StepWatchTest, ExplainsAStepToTheSequencer) {
  EXPECT_EQ(watch_.Explain(Work(), Both()).text, "") << "no heartbeat has told of it";
  Beat(0, Waiting(0));
  const StepExplanation explanation = watch_.Explain(Work(), Both());
  EXPECT_THAT(explanation.text, HasSubstr("for rank 1 (worker-1), which has not begun the step"));
  EXPECT_EQ(explanation.waiting, "rank 0 waited in \"op 0 (linear): all-reduce over tp\"");
  ASSERT_THAT(explanation.blamed, SizeIs(1));
  EXPECT_EQ(explanation.blamed[0].identity, "worker-1");
}

// Before they were asked, both said that they wait for each other.
TEST_F(StepWatchTest, OfTwoLateRanksOnlyTheOneThatDoesNotAnswerIsToBlame) {
  const StepWatch watch(&clock_, &members_, &log_, [](const std::set<std::string>&) {});
  Beat(0, Waiting(0));
  Beat(1, Waiting(1));
  EXPECT_THAT(watch.Explain(Work(), Both()).blamed, SizeIs(2));
  clock_.Advance(absl::Milliseconds(100));
  watch.Ask({.waiting_for = {"worker-0", "worker-1"}});
  clock_.Advance(absl::Milliseconds(150));
  EXPECT_THAT(watch.Explain(Work(), Both()).blamed, SizeIs(2))
      << "none answers: this host may be slow";
  Beat(0, Waiting(0));
  const StepExplanation explanation = watch.Explain(Work(), Both());
  EXPECT_THAT(explanation.text,
              AllOf(HasSubstr("rank 0 waits in"),
                    HasSubstr("for rank 1 (worker-1), which does not answer (its last heartbeat "
                              "came 250ms ago)")));
  ASSERT_THAT(explanation.blamed, SizeIs(1));
  EXPECT_EQ(explanation.blamed[0].identity, "worker-1");
}

TEST_F(StepWatchTest, PassesOverWhatAnEarlierProcessOfAWorkerTold) {
  Beat(0, Waiting(0));
  Beat(1, Waiting(1));
  members_.Detach(attachments_[1], "its stream broke");
  const StepExplanation dead = watch_.Explain(Work(), Both());
  EXPECT_THAT(dead.text, HasSubstr("(its stream broke)"));
  Attach(1, 2);
  EXPECT_THAT(watch_.Explain(Work(), Both()).text, HasSubstr("has not begun the step"));
}

TEST_F(StepWatchTest, TellsOfFailedStepsForFiveMinutesAndOfOneThatIsAskedForLonger) {
  WorkRef failed = Work();
  failed.blamed = {Both()[1]};
  log_.StepFailed({.work = failed,
                   .failed = clock_.Now(),
                   .status = absl::UnavailableError("rank 1 (worker-1) was lost")});
  clock_.Advance(absl::Seconds(1));
  const StepWatch::Verdict verdict = watch_.Diagnose(0, {});
  ASSERT_THAT(verdict.findings, SizeIs(1));
  EXPECT_EQ(verdict.findings[0].kind, FindingKind::kFailed);
  EXPECT_EQ(verdict.findings[0].culprits[0].identity, "worker-1");
  EXPECT_EQ(verdict.sentence,
            "a step failed 1s ago because of rank 1 (worker-1): rank 1 (worker-1) was lost");
  for (int i = 0; i < 400; ++i) {
    clock_.Advance(absl::Seconds(1));
    Beat(0, std::nullopt);
    Beat(1, std::nullopt);
  }
  EXPECT_THAT(watch_.Diagnose(0, {}).findings, IsEmpty());
  EXPECT_THAT(watch_.Diagnose(7, {}).findings, SizeIs(1));
  EXPECT_THAT(watch_.Diagnose(8, {}).sentence, HasSubstr("step 8 does not run"));
}

TEST_F(StepWatchTest, BlamesBothOfTwoThatLostEachOtherUnlessOneIsGone) {
  WorkRef failed = Work();
  failed.blamed = {Both()[1]};
  failed.blamed_by = Both()[0];
  log_.StepFailed({.work = failed,
                   .failed = clock_.Now(),
                   .status = WithReason(absl::UnavailableError("rank 1 (worker-1) is gone"),
                                        Reason::kWorkerLost)});
  clock_.Advance(absl::Seconds(1));
  EXPECT_THAT(watch_.Diagnose(7, {}).sentence,
              HasSubstr("because of rank 1 (worker-1), rank 0 (worker-0): "));
  // One is silent and the other, which reported it, is heard of: before it counts as lost.
  clock_.Advance(absl::Seconds(1));
  Beat(0, std::nullopt);
  EXPECT_THAT(watch_.Diagnose(7, {}).sentence, HasSubstr("because of rank 1 (worker-1): "));
  members_.Detach(attachments_[1], "its stream broke");
  EXPECT_THAT(watch_.Diagnose(7, {}).sentence, HasSubstr("because of rank 1 (worker-1): "));
  Attach(1, 2);
  EXPECT_THAT(watch_.Diagnose(7, {}).sentence, HasSubstr("because of rank 1 (worker-1): "));
}

TEST_F(StepWatchTest, TellsOfALostWorkerOfAMesh) {
  members_.Detach(attachments_[1], "its stream broke");
  const StepWatch::Verdict verdict = watch_.Diagnose(0, {});
  ASSERT_THAT(verdict.findings, SizeIs(1));
  EXPECT_THAT(verdict.sentence, AllOf(HasSubstr("rank 1 (worker-1) of mesh \"default\" is lost"),
                                      HasSubstr("(its stream broke)")));
  EXPECT_THAT(watch_.Diagnose(7, {}).findings, IsEmpty()) << "asked about a step alone";
}

}  // namespace
}  // namespace shardmesh::server
