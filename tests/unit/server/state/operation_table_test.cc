// Long operations: progress, rate, owner, cancellation, and how long their end is remembered.
#include "server/state/operation_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kMib = int64_t{1} << 20;

class OperationTableTest : public ::testing::Test {
 protected:
  OperationTableTest()
      : sessions_(&clock_,
                  [this](const EndedSession& ended) {
                    for (const std::string& id : ended.transfers) {
                      ended_by_session_.push_back(
                          table_->CancelFor(id, absl::CancelledError("its session ended")));
                    }
                  }),
        table_(std::make_unique<OperationTable>(&clock_, &sessions_)),
        session_(*sessions_.Open({.name = "host:10.0.0.1"}, "", absl::Hours(1))) {}

  // Begins an operation that ends as soon as it is cancelled.
  std::string Begin(const std::string& description = "a save") {
    auto id = std::make_shared<std::string>();
    const absl::StatusOr<std::string> begun =
        table_->Begin(OperationKind::kSave, description, session_.id, session_.number,
                      [this, id](const absl::Status& reason) {
                        table_->End(*id, reason);
                        return absl::OkStatus();
                      });
    EXPECT_THAT(begun, IsOk());
    *id = begun.value_or("");
    return *id;
  }
  OperationProgress Progress(const std::string& id) const {
    const absl::StatusOr<OperationProgress> progress = table_->Progress(id);
    EXPECT_THAT(progress, IsOk());
    return progress.value_or(OperationProgress{});
  }
  std::vector<int64_t> Numbers(const OperationTable::Listed& listed) const {
    std::vector<int64_t> numbers;
    for (const OperationProgress& each : listed.operations) numbers.push_back(each.number);
    return numbers;
  }
  static bool All(const OperationProgress&) { return true; }

  test::FakeClock clock_;
  std::vector<absl::Status> ended_by_session_;
  SessionTable sessions_;
  std::unique_ptr<OperationTable> table_;
  const Session session_;
};

TEST_F(OperationTableTest, ShowsProgressFromBeginToEnd) {
  const std::string id = Begin("save of 3 arrays");
  EXPECT_EQ(Progress(id).description, "save of 3 arrays");
  EXPECT_EQ(Progress(id).number, 1);
  EXPECT_EQ(Progress(id).session_number, session_.number);
  EXPECT_FALSE(Progress(id).ended);
  table_->SetTotal(id, 3, 3 * kMib);
  table_->Add(id, 1, kMib);
  EXPECT_EQ(Progress(id).done, 1);
  EXPECT_EQ(Progress(id).total, 3);
  EXPECT_EQ(Progress(id).done_bytes, kMib);
  EXPECT_EQ(Progress(id).total_bytes, 3 * kMib);
  table_->SetDescription(id, "save of 3 arrays; 2 are to come\xff");
  EXPECT_EQ(Progress(id).description, "save of 3 arrays; 2 are to come\\xff");
  clock_.Advance(absl::Seconds(7));
  table_->End(id, absl::OkStatus());
  EXPECT_TRUE(Progress(id).ended);
  EXPECT_THAT(Progress(id).status, IsOk());
  EXPECT_EQ(Progress(id).finished - Progress(id).started, absl::Seconds(7));
  // Late work of an ended operation changes nothing.
  table_->Add(id, 1, kMib);
  table_->SetTotal(id, 9, 9);
  table_->SetDescription(id, "late");
  table_->End(id, absl::InternalError("late"));
  EXPECT_EQ(Progress(id).done, 1);
  EXPECT_EQ(Progress(id).total, 3);
  EXPECT_EQ(Progress(id).description, "save of 3 arrays; 2 are to come\\xff");
  EXPECT_THAT(Progress(id).status, IsOk());
}

TEST_F(OperationTableTest, ProgressMovesWithinAPieceOfWork) {
  const std::string id = Begin();
  table_->SetTotal(id, 2, 8 * kMib);
  table_->SetPart(id, "a", kMib);
  table_->SetPart(id, "b", 2 * kMib);
  EXPECT_EQ(Progress(id).done, 0);
  EXPECT_EQ(Progress(id).done_bytes, 3 * kMib);
  table_->SetPart(id, "a", 3 * kMib);
  table_->SetPart(id, "a", kMib);  // what was shown does not fall
  EXPECT_EQ(Progress(id).done_bytes, 5 * kMib);
  table_->Add(id, 1, 4 * kMib, "a");
  EXPECT_EQ(Progress(id).done, 1);
  EXPECT_EQ(Progress(id).done_bytes, 6 * kMib);
  // A part never shows more than all of the work.
  table_->SetPart(id, "b", 100 * kMib);
  EXPECT_EQ(Progress(id).done_bytes, 8 * kMib);
  // The part failed.
  table_->Add(id, 0, 0, "b");
  EXPECT_EQ(Progress(id).done_bytes, 4 * kMib);
  table_->SetPart(id, "c", kMib);
  table_->End(id, absl::CancelledError("stop"));
  EXPECT_EQ(Progress(id).done_bytes, 4 * kMib);
}

TEST_F(OperationTableTest, RefusesToShowAnUnknownOperation) {
  EXPECT_THAT(table_->Progress("nothing"),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_THAT(table_->Cancel("nothing", session_.id),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  table_->Add("nothing", 1, 1);
  table_->SetTotal("nothing", 1, 1);
  table_->End("nothing", absl::OkStatus());
}

TEST_F(OperationTableTest, ATotalIsNeverBelowWhatIsDone) {
  const std::string id = Begin();
  table_->SetTotal(id, 2, 10);
  table_->Add(id, 3, 20);
  EXPECT_EQ(Progress(id).total, 3);
  EXPECT_EQ(Progress(id).total_bytes, 20);
  table_->SetTotal(id, 1, 1);
  EXPECT_EQ(Progress(id).total, 3);
  EXPECT_EQ(Progress(id).total_bytes, 20);
  table_->Add(id, 0, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(Progress(id).done_bytes, std::numeric_limits<int64_t>::max());
}

TEST_F(OperationTableTest, TheRateIsOfTheLastSeconds) {
  const std::string id = Begin();
  EXPECT_EQ(Progress(id).TimeLeft(), std::nullopt);
  table_->SetTotal(id, 0, 1000 * kMib);
  EXPECT_EQ(Progress(id).TimeLeft(), std::nullopt);  // nothing was completed yet
  for (int second = 0; second < 30; ++second) {
    table_->Add(id, 1, 10 * kMib);
    clock_.Advance(absl::Seconds(1));
  }
  EXPECT_NEAR(static_cast<double>(Progress(id).bytes_per_second), 10.0 * kMib, 1.1 * kMib);
  ASSERT_TRUE(Progress(id).TimeLeft().has_value());
  EXPECT_NEAR(absl::ToDoubleSeconds(*Progress(id).TimeLeft()), 70, 10);
  // A faster pace shows after the window, without the slow seconds before it.
  for (int second = 0; second < 6; ++second) {
    table_->Add(id, 1, 50 * kMib);
    clock_.Advance(absl::Seconds(1));
  }
  EXPECT_NEAR(static_cast<double>(Progress(id).bytes_per_second), 50.0 * kMib, 5.5 * kMib);
  // A stalled operation has no rate, and nobody knows when it ends.
  clock_.Advance(absl::Seconds(6));
  EXPECT_EQ(Progress(id).bytes_per_second, 0);
  EXPECT_EQ(Progress(id).TimeLeft(), std::nullopt);
  // After the end, the rate is that of the whole time.
  clock_.Advance(absl::Seconds(58));
  table_->End(id, absl::OkStatus());
  EXPECT_EQ(Progress(id).bytes_per_second, 600 * kMib / 100);
  EXPECT_EQ(Progress(id).TimeLeft(), std::nullopt);
}

TEST_F(OperationTableTest, AYoungOperationsRateCountsFromItsBeginning) {
  clock_.Advance(absl::Seconds(100));
  const std::string id = Begin();
  clock_.Advance(absl::Seconds(2));
  table_->Add(id, 1, 10 * kMib);
  EXPECT_NEAR(static_cast<double>(Progress(id).bytes_per_second), 5.0 * kMib, 0.7 * kMib);
}

TEST_F(OperationTableTest, OnlyTheOwnerCancels) {
  const std::string id = Begin();
  const Session other = *sessions_.Open({.name = "host:10.0.0.2"}, "", absl::Hours(1));
  const absl::Status refused = table_->Cancel(id, other.id);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kPermissionDenied, Reason::kNotOwner));
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr(StrCat("session number ", session_.number, " began it")));
  EXPECT_FALSE(Progress(id).ended);
  EXPECT_THAT(table_->Cancel(id, session_.id), IsOk());
  EXPECT_THAT(Progress(id).status, StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
  EXPECT_THAT(table_->Cancel(id, session_.id), IsOk());  // it has ended: nothing changes
}

TEST_F(OperationTableTest, AnOperationOfTheCoordinatorHasNoOwner) {
  const absl::StatusOr<std::string> id =
      table_->Begin(OperationKind::kRepair, "repair", "", 5,
                    [](const absl::Status&) { return absl::OkStatus(); });
  ASSERT_THAT(id, IsOk());
  EXPECT_EQ(Progress(*id).session_number, 0);
  EXPECT_THAT(table_->Cancel(*id, session_.id),
              StatusIs(absl::StatusCode::kPermissionDenied, Reason::kNotOwner));
  EXPECT_THAT(table_->CancelFor(*id, absl::CancelledError("by an administrator")), IsOk());
}

TEST_F(OperationTableTest, AnOperationMayRefuseToBeCancelled) {
  const absl::StatusOr<std::string> fixed =
      table_->Begin(OperationKind::kResize, "resize", session_.id, session_.number, nullptr);
  ASSERT_THAT(fixed, IsOk());
  EXPECT_THAT(table_->Cancel(*fixed, session_.id), StatusIs(absl::StatusCode::kFailedPrecondition));
  const absl::StatusOr<std::string> committing = table_->Begin(
      OperationKind::kReshard, "reshard", session_.id, session_.number,
      [](const absl::Status&) { return absl::FailedPreconditionError("it is being committed"); });
  ASSERT_THAT(committing, IsOk());
  EXPECT_THAT(table_->Cancel(*committing, session_.id),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_FALSE(Progress(*committing).ended);
}

TEST_F(OperationTableTest, TheEndOfASessionCancelsItsOperations) {
  const std::string running = Begin();
  const std::string done = Begin();
  table_->End(done, absl::OkStatus());
  EXPECT_EQ(sessions_.Get(session_.id)->transfers, 1);
  ASSERT_THAT(sessions_.Close(session_.id), IsOk());
  EXPECT_THAT(ended_by_session_, ElementsAre(IsOk()));
  EXPECT_THAT(Progress(running).status, StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(Progress(done).status, IsOk());
  EXPECT_THAT(table_->Begin(OperationKind::kSave, "", session_.id, session_.number, nullptr),
              StatusIs(absl::StatusCode::kNotFound, Reason::kSessionGone));
  EXPECT_EQ(table_->CountRunning(), 0);
}

TEST_F(OperationTableTest, ADetachedOperationOutlivesItsSession) {
  const auto begin = [&] {
    auto id = std::make_shared<std::string>();
    *id = *table_->Begin(
        OperationKind::kSave, "save", session_.id, session_.number,
        [this, id](const absl::Status& reason) {
          table_->End(*id, reason);
          return absl::OkStatus();
        },
        /*is_detached=*/true);
    return *id;
  };
  const std::string cancelled = begin();
  const std::string running = begin();
  EXPECT_EQ(sessions_.Get(session_.id)->transfers, 0);
  EXPECT_THAT(table_->Cancel(cancelled, session_.id), IsOk());
  EXPECT_TRUE(Progress(cancelled).ended);
  ASSERT_THAT(sessions_.Close(session_.id), IsOk());
  EXPECT_THAT(ended_by_session_, IsEmpty());
  EXPECT_FALSE(Progress(running).ended);
  EXPECT_EQ(Progress(running).session_number, session_.number);
  const Session other = *sessions_.Open({.name = "host:10.0.0.2"}, "", absl::Hours(1));
  EXPECT_THAT(table_->Cancel(running, other.id),
              StatusIs(absl::StatusCode::kPermissionDenied, Reason::kNotOwner));
  EXPECT_THAT(table_->CancelFor(running, absl::CancelledError("by an administrator")), IsOk());
  EXPECT_TRUE(Progress(running).ended);
}

TEST_F(OperationTableTest, CallsBackOnceWhenAnOperationEnds) {
  const std::string id = Begin();
  int calls = 0;
  table_->OnEnd(id, [&] { ++calls; });
  EXPECT_EQ(calls, 0);
  table_->End(id, absl::OkStatus());
  EXPECT_EQ(calls, 1);
  table_->OnEnd(id, [&] { ++calls; });  // it has ended already
  table_->OnEnd("nothing", [&] { ++calls; });
  EXPECT_EQ(calls, 3);
}

TEST_F(OperationTableTest, ACallbackThatIsDroppedIsDestroyedAndNotCalled) {
  const std::string id = Begin();
  const auto calls = std::make_shared<int>(0);
  const int64_t dropped = table_->OnEnd(id, [calls] { ++*calls; });
  table_->OnEnd(id, [calls] { *calls += 10; });
  EXPECT_EQ(calls.use_count(), 3);
  table_->DropOnEnd(id, dropped);
  table_->DropOnEnd(id, dropped);
  table_->DropOnEnd("nothing", 1);
  EXPECT_EQ(calls.use_count(), 2);
  table_->End(id, absl::OkStatus());
  EXPECT_EQ(*calls, 10);
}

TEST_F(OperationTableTest, KnowsTheWorkersOfARunningOperation) {
  const std::string id = Begin();
  EXPECT_THAT(table_->WorkersOf(id).taking_part, IsEmpty());
  table_->SetWorkers(id, [] {
    return OperationWorkers{.waiting_for = {"b"}, .taking_part = {"b", "a"}};
  });
  EXPECT_THAT(table_->WorkersOf(id).waiting_for, ElementsAre("b"));
  EXPECT_THAT(table_->WorkersOf(id).taking_part, ElementsAre("a", "b"));
  table_->End(id, absl::OkStatus());
  EXPECT_THAT(table_->WorkersOf(id).taking_part, IsEmpty());
  EXPECT_THAT(table_->WorkersOf("other").taking_part, IsEmpty());
}

TEST_F(OperationTableTest, ReadsTheWorkersThatAnErrorNames) {
  EXPECT_THAT(WorkersNamedBy(absl::OkStatus()), IsEmpty());
  EXPECT_THAT(WorkersNamedBy(absl::UnavailableError("w")), IsEmpty());
  EXPECT_THAT(WorkersNamedBy(WithReason(absl::UnavailableError("w"), Reason::kWorkerLost,
                                        {{fact::kIdentity, "w-1,w-0"}})),
              ElementsAre("w-0", "w-1"));
}

TEST_F(OperationTableTest, ListsInPagesInTheOrderOfTheNumbers) {
  std::vector<std::string> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(Begin());
  EXPECT_EQ(table_->NextNumber(), 6);  // such as that of a put
  ids.push_back(Begin());
  table_->End(ids[1], absl::OkStatus());
  OperationTable::Listed page = table_->List(0, 2, All);
  EXPECT_THAT(Numbers(page), ElementsAre(1, 2));
  EXPECT_EQ(page.next_after, 2);
  page = table_->List(2, 4, All);
  EXPECT_THAT(Numbers(page), ElementsAre(3, 4, 5, 7));
  EXPECT_EQ(page.next_after, 0);
  page = table_->List(0, 100, [](const OperationProgress& each) { return each.ended; });
  EXPECT_THAT(Numbers(page), ElementsAre(2));
  EXPECT_EQ(table_->CountRunning(), 5);
}

TEST_F(OperationTableTest, ForgetsAnEndedOperationAfterTenMinutes) {
  const std::string id = Begin();
  table_->End(id, absl::OkStatus());
  clock_.Advance(OperationTable::kRememberFor);
  EXPECT_THAT(table_->Progress(id), IsOk());
  clock_.Advance(absl::Seconds(1));
  EXPECT_THAT(table_->Progress(id), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(Numbers(table_->List(0, 100, All)), ElementsAre());
  EXPECT_EQ(table_->CountRunning(), 0);
}

TEST_F(OperationTableTest, RemembersABoundedNumberOfEndedOperations) {
  std::string first;
  for (size_t i = 0; i < OperationTable::kMaxEnded + 2; ++i) {
    const std::string id = Begin();
    if (first.empty()) first = id;
    table_->End(id, absl::OkStatus());
  }
  Begin();
  EXPECT_THAT(table_->Progress(first), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(table_->CountRunning(), 1);
}

TEST_F(OperationTableTest, ADescriptionIsShortAndValidUtf8) {
  EXPECT_EQ(Progress(Begin("save to /tmp/\xff")).description, "save to /tmp/\\xff");
  const std::string lambda = "\xce\xbb";
  std::string text = "a";
  while (text.size() < OperationTable::kMaxDescription + 100) text += lambda;
  const std::string cut = Progress(Begin(text)).description;
  EXPECT_EQ(cut.size(), OperationTable::kMaxDescription - 1);
  EXPECT_EQ(cut.substr(cut.size() - 2), lambda);
}

}  // namespace
}  // namespace shardmesh::server
