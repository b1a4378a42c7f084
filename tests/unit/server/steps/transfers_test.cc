// Puts from their begin to their end: who may end them, and what is kept of them afterwards.
#include "server/steps/transfers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "process/failpoint.h"
#include "process/random_bytes.h"
#include "server/state/array_registry.h"
#include "server/state/operation_table.h"
#include "server/state/session.h"
#include "server/steps/sequencer.h"
#include "server/store/local_store.h"
#include "status/fact_keys.h"
#include "status/str_cat.h"
#include "tests/testing/eventually.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;

class DeafTransport final : public StepTransport {
 public:
  std::optional<Participant> Start(const WorkRef&, const EncodedStepPtr&) override { return {}; }
  void Commit(const WorkRef&) override {
    if (on_commit) on_commit();
  }
  void Abort(const WorkRef&, const absl::Status&) override {
    if (on_abort) on_abort();
  }

  std::function<void()> on_commit;
  std::function<void()> on_abort;
};

class TransfersTest : public ::testing::Test {
 protected:
  TransfersTest() { Reopen(); }
  ~TransfersTest() override { sequencer_.reset(); }

  // As after a restart of the coordinator over the same store.
  void Reopen() {
    sequencer_.reset();
    transfers_.reset();
    operations_.reset();
    sessions_.reset();
    registry_.reset();
    auto opened = ArrayRegistry::Open(store_.get(), &clock_, [](const auto&, const auto&) {});
    ASSERT_THAT(opened, IsOk());
    registry_ = *std::move(opened);
    sessions_ = std::make_unique<SessionTable>(&clock_, [](const EndedSession&) {});
    sequencer_ = std::make_unique<Sequencer>(&clock_, &transport_,
                                             Sequencer::Options{.term = registry_->term()});
    sequencer_->WorkerAttached("w0", 1);
    operations_ = std::make_unique<OperationTable>(&clock_, sessions_.get());
    transfers_ = std::make_unique<Transfers>(&clock_, registry_.get(), sessions_.get(),
                                             sequencer_.get(), operations_.get());
    session_ = sessions_->Open({.name = "host:10.0.0.1"}, "", absl::Hours(1))->id;
  }

  // Begins a put of one array; with a name, or pinned by the session.
  std::string Begin(const std::string& name, const std::string& operation_id = "") {
    auto items = std::make_shared<std::vector<PutItem>>(1);
    PutItem& item = items->front();
    item.name = name;
    array_id_ = RandomId();
    item.definition.descriptor = {.array_id = array_id_,
                                  .dtype = Dtype::kF32,
                                  .shape = {8, 4},
                                  .spec = PartitionSpec({SpecEntry::Axis("x")}),
                                  .mesh_id = "m",
                                  .mesh_revision = 3,
                                  .mesh = *Mesh::Parse("x=1"),
                                  .cut_points = {}};
    items_ = items;
    const absl::StatusOr<std::string> begun =
        transfers_->Begin(session_, "m", {"w0"}, std::move(items), operation_id);
    EXPECT_THAT(begun, IsOk());
    return begun.value_or("");
  }

  void Stage(const std::string& transfer_id) {
    EXPECT_THAT(sequencer_->ReportTransfer(
                    transfer_id, registry_->term(),
                    {.identity = "w0", .rank = 0, .tiles = {{.array_id = array_id_, .crc32c = 7}}}),
                IsOk());
  }

  struct Commit {
    absl::Notification done;
    absl::StatusOr<TransferResult> result;
  };
  std::unique_ptr<Commit> BeginCommit(const std::string& transfer_id, const std::string& request) {
    auto commit = std::make_unique<Commit>();
    transfers_->Commit(transfer_id, RequestKey(session_, "CommitTransfer", request),
                       clock_.Now() + absl::Minutes(1),
                       [commit = commit.get()](absl::StatusOr<TransferResult> result) {
                         commit->result = std::move(result);
                         commit->done.Notify();
                       });
    return commit;
  }
  absl::StatusOr<TransferResult> CommitNow(const std::string& transfer_id,
                                           const std::string& request) {
    const std::unique_ptr<Commit> commit = BeginCommit(transfer_id, request);
    EXPECT_TRUE(commit->done.WaitForNotificationWithTimeout(absl::Seconds(10)));
    return commit->result;
  }

  test::FakeClock clock_;
  const std::unique_ptr<Store> store_ = CreateMemoryStore();
  DeafTransport transport_;
  std::unique_ptr<ArrayRegistry> registry_;
  std::unique_ptr<SessionTable> sessions_;
  std::unique_ptr<OperationTable> operations_;
  std::unique_ptr<Transfers> transfers_;
  std::unique_ptr<Sequencer> sequencer_;
  std::string session_;
  std::string array_id_;
  std::weak_ptr<const std::vector<PutItem>> items_;  // of the last put
};

TEST_F(TransfersTest, APutThatEndedLongAgoIsNotListed) {
  const std::string transfer = Begin("w");
  const auto listed = [this] {
    return transfers_->List(0, 10, [](const TransferProgress&) { return true; }).puts.size();
  };
  clock_.Advance(Transfers::kRememberFor * 2);
  EXPECT_EQ(listed(), 1u) << "it runs";
  ASSERT_THAT(transfers_->Abort(transfer, absl::CancelledError("enough")), IsOk());
  clock_.Advance(Transfers::kRememberFor);
  EXPECT_EQ(listed(), 1u);
  EXPECT_THAT(transfers_->Progress(transfer), IsOk());
  // No other put ends meanwhile, and none begins.
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(listed(), 0u);
  EXPECT_THAT(transfers_->Progress(transfer),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
}

TEST_F(TransfersTest, TheErrorOfAnUnknownTransferTellsARestartFromALongTime) {
  clock_.Advance(absl::Seconds(42));
  EXPECT_THAT(std::string(transfers_->Progress("of-before").status().message()),
              ::testing::HasSubstr("the coordinator started 42s ago"));
  EXPECT_THAT(std::string(CommitNow("of-before", "r").status().message()),
              ::testing::HasSubstr("run the command again"));
  clock_.Advance(Transfers::kRememberFor);
  EXPECT_THAT(std::string(transfers_->Progress("of-before").status().message()),
              ::testing::HasSubstr("it may have ended long ago"));
}

// A worker that is told to drop an array before it is told of its commit gives up its stream.
TEST_F(TransfersTest, AnArrayIsPinnedUntilItsWorkersWereToldOfTheCommit) {
  const std::string transfer = Begin("w");
  Stage(transfer);
  ArrayRegistry::Holds told;
  transport_.on_commit = [&] { told = registry_->HoldsOf(array_id_); };
  ASSERT_THAT(CommitNow(transfer, "r"), IsOk());
  EXPECT_EQ(told.names, 1);
  EXPECT_EQ(told.pins, 1);
  EXPECT_EQ(registry_->HoldsOf(array_id_).names, 1);
  EXPECT_EQ(registry_->HoldsOf(array_id_).pins, 0);
}

TEST_F(TransfersTest, ShowsWhatHasArrivedOfATile) {
  const std::string id = Begin("w");
  transfers_->TilesArriving(id, "w0", 100);
  EXPECT_EQ(transfers_->Progress(id)->staged_bytes, 100);
  transfers_->TilesArriving(id, "w0", 90);  // what was shown does not fall
  EXPECT_EQ(transfers_->Progress(id)->staged_bytes, 100);
  EXPECT_EQ(transfers_->Progress(id)->staged_tiles, 0);
  transfers_->TilesArriving(id, "w0", int64_t{1} << 40);
  EXPECT_EQ(transfers_->Progress(id)->staged_bytes, 128);
  transfers_->TileStaged(id, "w0", 128);
  EXPECT_EQ(transfers_->Progress(id)->staged_bytes, 128);
  EXPECT_EQ(transfers_->Progress(id)->staged_tiles, 1);
  transfers_->TilesArriving("nosuchtransfer", "w0", 5);
}

TEST_F(TransfersTest, APartOfAnOperationShowsThereAndNotAsAPut) {
  const Session session = *sessions_->Get(session_);
  const std::string operation =
      *operations_->Begin(OperationKind::kReshard, "a reshard", session_, session.number, nullptr);
  operations_->SetTotal(operation, 1, 128);
  const std::string id = Begin("w", operation);
  transfers_->TilesArriving(id, "w0", 100);
  EXPECT_EQ(operations_->Progress(operation)->done_bytes, 100);
  transfers_->TileStaged(id, "w0", 128);
  EXPECT_EQ(operations_->Progress(operation)->done_bytes, 128);
  EXPECT_THAT(transfers_->List(0, 10, [](const TransferProgress&) { return true; }).puts,
              ::testing::IsEmpty());
  EXPECT_THAT(transfers_->Progress(id), IsOk());
}

TEST_F(TransfersTest, OnlyTheSessionThatBeganATransferOwnsIt) {
  const std::string transfer = Begin("w");
  EXPECT_THAT(transfers_->CheckOwner(transfer, session_), IsOk());
  EXPECT_THAT(transfers_->CheckOwner(transfer, "another"),
              StatusIs(absl::StatusCode::kPermissionDenied, Reason::kNotOwner));
  EXPECT_THAT(
      transfers_->CheckOwner(transfer, "another"),
      test::CarriesFacts(Reason::kNotOwner, {{fact::kKind, "transfer"}, {fact::kName, transfer}}));
  EXPECT_THAT(transfers_->CheckOwner(transfer, ""),
              StatusIs(absl::StatusCode::kPermissionDenied, Reason::kNotOwner));
  EXPECT_THAT(transfers_->CheckOwner("none", "another"), IsOk());
  ASSERT_THAT(transfers_->Abort(transfer, absl::CancelledError("enough")), IsOk());
  EXPECT_THAT(transfers_->CheckOwner(transfer, "another"),
              StatusIs(absl::StatusCode::kPermissionDenied, Reason::kNotOwner));
}

TEST_F(TransfersTest, ListsPutsInPagesByNumberAndState) {
  const auto all = [](const TransferProgress&) { return true; };
  EXPECT_THAT(transfers_->List(0, 10, all).puts, ::testing::IsEmpty());
  const std::string first = Begin("a");
  const std::string second = Begin("b");
  ASSERT_THAT(transfers_->Abort(first, absl::CancelledError("enough")), IsOk());

  Transfers::Listed listed = transfers_->List(0, 10, all);
  ASSERT_EQ(listed.puts.size(), 2u);
  EXPECT_EQ(listed.next_after, 0);
  EXPECT_EQ(listed.puts[0].transfer_id, first);
  EXPECT_EQ(listed.puts[0].number, 1);
  EXPECT_EQ(listed.puts[0].session_number, sessions_->Get(session_)->number);
  EXPECT_TRUE(listed.puts[0].ended);
  EXPECT_EQ(listed.puts[1].transfer_id, second);
  EXPECT_EQ(listed.puts[1].number, 2);
  EXPECT_FALSE(listed.puts[1].ended);

  listed = transfers_->List(0, 1, all);
  ASSERT_EQ(listed.puts.size(), 1u);
  EXPECT_EQ(listed.next_after, 1);
  listed = transfers_->List(listed.next_after, 1, all);
  ASSERT_EQ(listed.puts.size(), 1u);
  EXPECT_EQ(listed.puts[0].transfer_id, second);
  EXPECT_EQ(listed.next_after, 0);
  listed = transfers_->List(0, 10, [](const TransferProgress& put) { return !put.ended; });
  ASSERT_EQ(listed.puts.size(), 1u);
  EXPECT_EQ(listed.puts[0].transfer_id, second);

  clock_.Advance(Transfers::kRememberFor + absl::Seconds(1));
  const std::string third = Begin("c");
  listed = transfers_->List(0, 10, all);
  ASSERT_EQ(listed.puts.size(), 2u) << "the first is forgotten";
  EXPECT_EQ(listed.puts[0].transfer_id, second);
  EXPECT_EQ(listed.puts[1].transfer_id, third);
}

TEST_F(TransfersTest, APageOfAListLooksAtABoundedNumberOfPuts) {
  constexpr int kPuts = 2'100;
  std::string last;
  for (int i = 0; i < kPuts; ++i) {
    last = Begin(StrCat("n", i));
    if (i + 1 < kPuts) {
      ASSERT_THAT(transfers_->Abort(last, absl::CancelledError("enough")), IsOk());
    }
  }
  const auto running = [](const TransferProgress& put) { return !put.ended; };
  Transfers::Listed listed = transfers_->List(0, 10, running);
  EXPECT_THAT(listed.puts, ::testing::IsEmpty());
  EXPECT_EQ(listed.next_after, 2'000);
  listed = transfers_->List(listed.next_after, 10, running);
  ASSERT_EQ(listed.puts.size(), 1u);
  EXPECT_EQ(listed.puts[0].transfer_id, last);
  EXPECT_EQ(listed.next_after, 0);
}

TEST_F(TransfersTest, SumsOfDeclaredSizesStayAtTheMost) {
  // Each of half an exbibyte, which is near the most that one array can have.
  auto items = std::make_shared<std::vector<PutItem>>(17);
  for (PutItem& item : *items) {
    item.definition.descriptor = {.array_id = RandomId(),
                                  .dtype = Dtype::kF32,
                                  .shape = {int64_t{1} << 57},
                                  .spec = PartitionSpec(),
                                  .mesh_id = "m",
                                  .mesh_revision = 3,
                                  .mesh = *Mesh::Parse("x=1"),
                                  .cut_points = {}};
  }
  ASSERT_THAT(transfers_->Begin(session_, "m", {"w0"}, std::move(items)), IsOk());
  EXPECT_EQ(transfers_->LivePuts().bytes_per_rank, std::numeric_limits<int64_t>::max());
}

TEST_F(TransfersTest, WhatHasEndedGivesItsMemoryBackAtOnce) {
  const std::string aborted = Begin("w");
  EXPECT_FALSE(items_.expired());
  ASSERT_THAT(transfers_->Abort(aborted, absl::CancelledError("enough")), IsOk());
  EXPECT_TRUE(items_.expired());
  EXPECT_TRUE(transfers_->Progress(aborted)->ended);

  const std::string committed = Begin("w");
  Stage(committed);
  ASSERT_THAT(CommitNow(committed, "r"), IsOk());
  EXPECT_TRUE(items_.expired());
  clock_.Advance(Transfers::kRememberFor + absl::Seconds(1));
  ASSERT_THAT(transfers_->Abort(Begin("v"), absl::CancelledError("enough")), IsOk());
  EXPECT_THAT(transfers_->Progress(aborted).status(), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(TransfersTest, NothingIsKeptOfTheDeadlinesOfATransferThatHasEnded) {
  const std::string transfer = Begin("w");
  Stage(transfer);
  ASSERT_THAT(CommitNow(transfer, "r"), IsOk());
  // A deadline that is still kept would abort the transfer again.
  ASSERT_THAT(ArmFailpoints("transfer.abort=delay"), IsOk());
  clock_.Advance(absl::Minutes(2));
  EXPECT_TRUE(IsArmed("transfer.abort"));
  EXPECT_THAT(transfers_->Abort(transfer, absl::CancelledError("enough")), IsOk());
  EXPECT_FALSE(IsArmed("transfer.abort"));
}

TEST_F(TransfersTest, AWorkerThatComesBackBeforeThePutBeginsMakesItsArrayComplete) {
  std::string transfer;
  int64_t epoch = 1;
  // On a busy machine, this thread may be too late: the loss then ends the put.
  for (int attempt = 0; attempt < 20 && sequencer_->CountTransfers().running == 0; ++attempt) {
    ASSERT_THAT(ArmFailpoints("sequencer.begin_transfer=delay"), IsOk());
    std::thread put([&] { transfer = Begin("w"); });
    EXPECT_TRUE(test::Eventually([&] { return registry_->CountArrays().staging == 1; }));
    sequencer_->WorkerLost("w0", ++epoch, "its stream broke");
    registry_->TilesLost("m", 0, 1, epoch);
    sequencer_->WorkerAttached("w0", ++epoch);
    put.join();
  }
  Stage(transfer);
  ASSERT_THAT(CommitNow(transfer, "r"), IsOk());
  EXPECT_EQ((*registry_->FindArray(array_id_))->state, ArrayState::kAvailable);
}

TEST_F(TransfersTest, AWorkerThatIsLostWhileThePutCommitsLeavesADegradedArray) {
  const std::string transfer = Begin("w");
  ASSERT_THAT(ArmFailpoints("transfer.commit_to_registry=delay"), IsOk());
  const std::unique_ptr<Commit> commit = BeginCommit(transfer, "r");
  std::thread stage([&] { Stage(transfer); });
  EXPECT_TRUE(test::Eventually([&] { return sequencer_->CountTransfers().committing == 1; }));
  sequencer_->WorkerLost("w0", 2, "its stream broke");
  registry_->TilesLost("m", 0, 1, 2);
  stage.join();
  ASSERT_TRUE(commit->done.WaitForNotificationWithTimeout(absl::Seconds(10)));
  ASSERT_THAT(commit->result, IsOk());
  EXPECT_EQ((*registry_->FindArray(array_id_))->state, ArrayState::kDegraded);
}

TEST_F(TransfersTest, AsksTheWorkersBeforeItGivesUp) {
  std::vector<OperationWorkers> asked;
  transfers_->SetAsk(absl::Milliseconds(300),
                     [&asked](const OperationWorkers& workers) { asked.push_back(workers); });
  const std::string transfer = Begin("w");
  absl::Notification ended;
  transfers_->Commit(transfer, "", clock_.Now() + absl::Seconds(1),
                     [&ended](const absl::StatusOr<TransferResult>& result) {
                       EXPECT_THAT(result, StatusIs(absl::StatusCode::kDeadlineExceeded));
                       ended.Notify();
                     });
  clock_.Advance(absl::Milliseconds(699));
  EXPECT_THAT(asked, ::testing::IsEmpty());
  clock_.Advance(absl::Milliseconds(1));
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_FALSE(asked[0].waiting_for.empty());
  clock_.Advance(absl::Milliseconds(300));
  EXPECT_TRUE(ended.WaitForNotificationWithTimeout(absl::Seconds(10)));
  EXPECT_EQ(asked.size(), 1u);
}

TEST_F(TransfersTest, AsksOncePerCommitAndTogetherForThoseThatEndTogether) {
  std::vector<OperationWorkers> asked;
  transfers_->SetAsk(absl::Milliseconds(300),
                     [&asked](const OperationWorkers& workers) { asked.push_back(workers); });
  const absl::Time begin = clock_.Now();
  std::vector<std::string> transfers;
  for (const int64_t deadline_ms : {1000, 1010, 1290}) {
    transfers.push_back(Begin(StrCat("w", deadline_ms)));
    transfers_->Commit(transfers.back(), "", begin + absl::Milliseconds(deadline_ms),
                       [](const absl::StatusOr<TransferResult>&) {});
  }
  clock_.Advance(absl::Milliseconds(700));
  EXPECT_EQ(asked.size(), 1u);
  clock_.Advance(absl::Milliseconds(149));
  EXPECT_EQ(asked.size(), 1u) << "the second commit waits for the next question";
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_EQ(asked.size(), 2u);
  clock_.Advance(absl::Milliseconds(140));
  EXPECT_EQ(asked.size(), 2u) << "it asks again for no commit";
  clock_.Advance(absl::Milliseconds(10));
  EXPECT_EQ(asked.size(), 3u);
  clock_.Advance(absl::Milliseconds(300));
  EXPECT_EQ(asked.size(), 3u);
  for (const OperationWorkers& workers : asked) {
    EXPECT_FALSE(workers.waiting_for.empty());
  }
}

TEST_F(TransfersTest, AnEndlessCommitIsNotOverdue) {
  const std::string transfer = Begin("w");
  absl::Notification ended;
  transfers_->Commit(transfer, "", absl::InfiniteFuture(),
                     [&ended](const absl::StatusOr<TransferResult>& result) {
                       EXPECT_THAT(result, IsOk());
                       ended.Notify();
                     });
  clock_.Advance(Transfers::kTimeout / 2);
  EXPECT_FALSE(ended.HasBeenNotified());
  Stage(transfer);
  EXPECT_TRUE(ended.WaitForNotificationWithTimeout(absl::Seconds(10)));
}

TEST_F(TransfersTest, TheErrorOfADeadlineSuitsPutsAndReshards) {
  const std::string transfer = Begin("w");
  const auto commit = BeginCommit(transfer, "r");
  clock_.Advance(absl::Minutes(2));
  ASSERT_TRUE(commit->done.WaitForNotificationWithTimeout(absl::Seconds(10)));
  EXPECT_THAT(commit->result, StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
  EXPECT_THAT(std::string(commit->result.status().message()),
              testing::HasSubstr("repeat the put or the reshard"));
}

TEST_F(TransfersTest, ARepeatedCommitWaitsWithTheFirstOrGetsItsAnswer) {
  const std::string transfer = Begin("w");
  const auto first = BeginCommit(transfer, "r");
  const auto second = BeginCommit(transfer, "r");
  Stage(transfer);
  ASSERT_TRUE(first->done.WaitForNotificationWithTimeout(absl::Seconds(10)));
  ASSERT_TRUE(second->done.WaitForNotificationWithTimeout(absl::Seconds(10)));
  ASSERT_THAT(first->result, IsOk());
  ASSERT_THAT(second->result, IsOk());
  EXPECT_EQ(second->result->array_ids, first->result->array_ids);
  for (const std::string request : {"r", "another"}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const TransferResult again, CommitNow(transfer, request));
    EXPECT_EQ(again.array_ids, first->result->array_ids);
    EXPECT_EQ(again.revision, first->result->revision);
  }
}

TEST_F(TransfersTest, KnowsWhetherATransfersCommitWasAskedFor) {
  const std::string transfer = Begin("w");
  EXPECT_FALSE(transfers_->IsCommitAskedFor(transfer));
  const auto commit = BeginCommit(transfer, "r");
  EXPECT_TRUE(transfers_->IsCommitAskedFor(transfer));
  Stage(transfer);
  ASSERT_TRUE(commit->done.WaitForNotificationWithTimeout(absl::Seconds(10)));
  EXPECT_TRUE(transfers_->IsCommitAskedFor(transfer));
  EXPECT_FALSE(transfers_->IsCommitAskedFor("none"));
}

TEST_F(TransfersTest, EitherACommitOrItsClientsEndIsFirst) {
  const absl::Status gone = WithReason(absl::CancelledError("it is gone"), Reason::kCancelled);
  const std::string asked = Begin("w");
  const auto commit = BeginCommit(asked, "r");
  transfers_->Abandon(asked, gone);
  EXPECT_FALSE(commit->done.HasBeenNotified());
  Stage(asked);
  ASSERT_TRUE(commit->done.WaitForNotificationWithTimeout(absl::Seconds(10)));
  EXPECT_THAT(commit->result, IsOk());

  // The client goes away first. The commit is requested while the abort is under way, and fails.
  const std::string abandoned = Begin("v");
  std::unique_ptr<Commit> late;
  absl::Notification was_asked;
  transport_.on_abort = [&] {
    EXPECT_FALSE(transfers_->Progress(abandoned)->ended);
    late = BeginCommit(abandoned, "s");
    was_asked.Notify();
  };
  transfers_->Abandon(abandoned, gone);
  // A thread that ends the commit before may tell the workers of this one.
  ASSERT_TRUE(was_asked.WaitForNotificationWithTimeout(absl::Seconds(10)));
  ASSERT_TRUE(late->done.WaitForNotificationWithTimeout(absl::Seconds(10)));
  EXPECT_THAT(late->result, StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
  EXPECT_FALSE(transfers_->IsCommitAskedFor(abandoned));
  EXPECT_TRUE(test::Eventually([&] { return transfers_->Progress(abandoned)->ended; }));
  // A repeated request is refused in the same way.
  EXPECT_THAT(CommitNow(abandoned, "s"),
              StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
}

TEST_F(TransfersTest, AfterARestartARepeatedCommitIsAnsweredWhileItsArraysAreThere) {
  const std::string named = Begin("w");
  Stage(named);
  ASSERT_THAT(CommitNow(named, "named"), IsOk());
  const std::string first_session = session_;
  Reopen();
  session_ = first_session;  // as the client that repeats its request has it
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const TransferResult again, CommitNow(named, "named"));
  EXPECT_THAT(again.array_ids, ::testing::ElementsAre(array_id_));

  absl::Notification deleted;
  CommitRequest remove;
  remove.moves.push_back({.name = "w", .array_id = "", .expected_version = std::nullopt});
  registry_->Commit(std::move(remove), [&](auto) { deleted.Notify(); });
  deleted.WaitForNotification();
  const absl::Status gone = CommitNow(named, "named").status();
  EXPECT_THAT(gone, StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_THAT(gone.message(), ::testing::HasSubstr("1 of its 1 arrays are gone"));
}

}  // namespace
}  // namespace shardmesh::server
