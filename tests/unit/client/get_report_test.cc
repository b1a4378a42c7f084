// Gets that are reported: what the coordinator hears of them, and what a cancellation leaves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/mesh_client.h"
#include "process/failpoint.h"
#include "rpc/codec/status.h"
#include "status/reason.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/client/small_cluster.h"

namespace shardmesh::client {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using test::SmallCoordinator;
using test::SmallWorker;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

constexpr int64_t kArraySide = 16;
constexpr int64_t kArrayBytes = kArraySide * kArraySide;

// Gets of kArrayBytes and more are reported.
class GetReportTest : public ::testing::Test {
 protected:
  GetReportTest() {
    std::vector<SmallWorker*> workers;
    for (auto& worker : workers_) {
      worker = std::make_unique<SmallWorker>();
      workers.push_back(worker.get());
    }
    coordinator_ = std::make_unique<SmallCoordinator>(*Mesh::Parse("tp=2"), workers);
    client_ =
        *MeshClient::Connect(coordinator_->address(),
                             {.session_ttl = absl::Seconds(60),
                              .min_reported_get_bytes = kArrayBytes,
                              // A busy machine may take long until the coordinator has the result.
                              .report_end_time = absl::Seconds(60)});
    folder_ = ::testing::TempDir() + "/get_report_test_XXXXXX";
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    for (const char* const name : {"a", "b"}) {
      EXPECT_THAT(client_->arrays().PutTensors(
                      {{.name = name,
                        .view = *TensorView::Create(Dtype::kU8, {kArraySide, kArraySide}, bytes_),
                        .spec = PartitionSpec({SpecEntry::Axis("tp")})}}),
                  IsOk());
    }
  }
  ~GetReportTest() override { fs::remove_all(folder_); }

  // Takes long for each piece, so that the report has time to end.
  TensorSink SlowSink() {
    return {.begin = [](const Array&, const Tile&) { return absl::OkStatus(); },
            .append =
                [this](absl::Span<const char> piece) {
                  read_.append(piece.data(), piece.size());
                  absl::SleepFor(absl::Milliseconds(50));
                  return absl::OkStatus();
                }};
  }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  static std::vector<FileTensor> Both() {
    return {{.name = "a", .array = ArraySelector::ByName("a")},
            {.name = "b", .array = ArraySelector::ByName("b")}};
  }

  const std::string bytes_ = std::string(kArrayBytes, 'x');
  std::string folder_;
  std::string read_;
  std::unique_ptr<SmallWorker> workers_[2];
  std::unique_ptr<SmallCoordinator> coordinator_;
  std::unique_ptr<MeshClient> client_;
};

TEST_F(GetReportTest, LargeGetsOfEachKindAreOneReportEach) {
  const ArraySelector a = ArraySelector::ByName("a");
  ASSERT_THAT(client_->arrays().Gather(a), IsOk());
  std::string memory(kArrayBytes, '\0');
  ASSERT_THAT(client_->arrays().GatherInto(
                  a, *MutableTensorView::Create(Dtype::kU8, {kArraySide, kArraySide},
                                                absl::MakeSpan(memory))),
              IsOk());
  ASSERT_THAT(client_->arrays().GatherToNpy(a, Path("a.npy")), IsOk());
  ASSERT_THAT(client_->arrays().GatherToSafetensors(Both(), Path("both.safetensors")), IsOk());
  ASSERT_THAT(client_->arrays().GatherToFolder(Both(), Path("both"), kArrayBytes), IsOk());
  const auto reports = coordinator_->get_reports();
  ASSERT_EQ(reports.size(), 5u);
  for (size_t i = 0; i < reports.size(); ++i) {
    SCOPED_TRACE(i);
    const int64_t arrays = i < 3 ? 1 : 2;
    ASSERT_FALSE(reports[i].empty());
    const v1::ReportGetHeader& header = reports[i].front().header();
    EXPECT_EQ(header.description(), arrays == 1 ? "a" : "a and 1 more");
    EXPECT_FALSE(header.session_id().empty());
    EXPECT_EQ(header.total(), arrays);
    EXPECT_EQ(header.total_bytes(), arrays * kArrayBytes);
    const v1::ReportGetRequest& last = reports[i].back();
    EXPECT_EQ(last.done(), arrays);
    EXPECT_EQ(last.done_bytes(), arrays * kArrayBytes);
    EXPECT_TRUE(last.has_result());
    EXPECT_THAT(rpc::Decode(last.result()), IsOk());
  }
}

TEST_F(GetReportTest, SmallGetsAreNotReported) {
  const ArraySlice slice = {{0, kArraySide}, {0, kArraySide - 1}};
  ASSERT_THAT(client_->arrays().Gather(ArraySelector::ByName("a"), slice), IsOk());
  EXPECT_THAT(coordinator_->get_reports(), IsEmpty());
  const ArraySlice whole = {{0, kArraySide}, {0, kArraySide}};
  ASSERT_THAT(client_->arrays().Gather(ArraySelector::ByName("a"), whole), IsOk());
  ASSERT_EQ(coordinator_->get_reports().size(), 1u);
  EXPECT_THAT(coordinator_->get_reports()[0].front().header().description(), HasSubstr("a ["));
}

TEST_F(GetReportTest, ProgressIsReportedWhileTheGetRuns) {
  ASSERT_THAT(client_->arrays().GatherTo(ArraySelector::ByName("a"), SlowSink(),
                                         {.piece_bytes = kArraySide}),
              IsOk());
  EXPECT_EQ(read_, bytes_);
  const auto reports = coordinator_->get_reports();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_TRUE(std::any_of(reports[0].begin(), reports[0].end(), [](const auto& message) {
    return !message.has_header() && message.done_bytes() > 0 && message.done_bytes() < kArrayBytes;
  })) << reports[0].size();
}

absl::Status CancelledByAdministrator() {
  return WithReason(absl::CancelledError("an administrator (host:here) cancelled it"),
                    Reason::kCancelled);
}

// Expects the error of a get whose report ended with CancelledByAdministrator.
void ExpectCancelled(const absl::Status& status) {
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the get was cancelled: an administrator (host:here) cancelled it"));
}

TEST_F(GetReportTest, ACancellationByOthersEndsTheGetAndLeavesNoFile) {
  coordinator_->EndNextReports({CancelledByAdministrator()});
  ExpectCancelled(client_->arrays()
                      .GatherTo(ArraySelector::ByName("a"), SlowSink(), {.piece_bytes = 1})
                      .status());
  EXPECT_LT(read_.size(), static_cast<size_t>(kArrayBytes));
  EXPECT_THAT(coordinator_->pinned_arrays(), IsEmpty());

  // The callback holds the gets to files until they are cancelled.
  const ProgressCallback slow = [](int64_t, int64_t) { absl::SleepFor(absl::Milliseconds(700)); };
  coordinator_->EndNextReports({CancelledByAdministrator()});
  ExpectCancelled(client_->arrays()
                      .GatherToNpy(ArraySelector::ByName("a"), Path("a.npy"),
                                   {.progress = slow, .piece_bytes = 1})
                      .status());
  coordinator_->EndNextReports({CancelledByAdministrator()});
  ExpectCancelled(
      client_->arrays().GatherToSafetensors(Both(), Path("both.safetensors"), slow).status());
  coordinator_->EndNextReports({CancelledByAdministrator()});
  ExpectCancelled(
      client_->arrays().GatherToFolder(Both(), Path("both"), kArrayBytes, slow).status());
  EXPECT_TRUE(fs::is_empty(folder_));
  EXPECT_THAT(coordinator_->pinned_arrays(), IsEmpty());
}

TEST_F(GetReportTest, ACancellationIsHeardWhileTheReaderOfTheOutputTakesNothing) {
  coordinator_->EndNextReports({CancelledByAdministrator()});
  absl::Notification cancelled;
  bool was_heard = false;
  TensorSink sink = SlowSink();
  sink.cancelled = [&] { cancelled.Notify(); };
  sink.append = [&](absl::Span<const char>) {  // no call of the client runs meanwhile
    was_heard = cancelled.WaitForNotificationWithTimeout(absl::Seconds(20));
    return absl::OkStatus();
  };
  EXPECT_THAT(client_->arrays()
                  .GatherTo(ArraySelector::ByName("a"), sink, {.piece_bytes = kArrayBytes})
                  .status(),
              StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
  EXPECT_TRUE(was_heard || cancelled.HasBeenNotified());
}

TEST_F(GetReportTest, ACancellationWhileTheLastBytesAreHandedOverEndsTheGet) {
  const ArraySelector a = ArraySelector::ByName("a");
  coordinator_->EndNextReports(std::vector<absl::Status>(5, CancelledByAdministrator()),
                               /*at_result=*/true);
  ExpectCancelled(client_->arrays().GatherTo(a, SlowSink()).status());
  ExpectCancelled(client_->arrays().Gather(a).status());
  // Nothing has its name yet when a get to a file is cancelled.
  ExpectCancelled(client_->arrays().GatherToNpy(a, Path("a.npy")).status());
  ExpectCancelled(client_->arrays().GatherToSafetensors(Both(), Path("both.safetensors")).status());
  ExpectCancelled(client_->arrays().GatherToFolder(Both(), Path("both"), kArrayBytes).status());
  EXPECT_TRUE(fs::is_empty(folder_));
  EXPECT_THAT(coordinator_->pinned_arrays(), IsEmpty());

  // The error of a get that failed by itself stays.
  TensorSink full = SlowSink();
  full.append = [](absl::Span<const char>) {
    return absl::ResourceExhaustedError("the disk is full");
  };
  coordinator_->EndNextReports({CancelledByAdministrator()}, /*at_result=*/true);
  EXPECT_THAT(client_->arrays().GatherTo(a, full).status(),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(GetReportTest, AGetWhoseCoordinatorIsLostAtItsEndSucceeds) {
  coordinator_->EndNextReports(
      {WithReason(absl::UnavailableError("it is stopping"), Reason::kNotServing)},
      /*at_result=*/true);
  EXPECT_THAT(client_->arrays().GatherTo(ArraySelector::ByName("a"), SlowSink()), IsOk());
  EXPECT_EQ(read_, bytes_);
}

TEST_F(GetReportTest, AReportThatBreaksBeginsAgainAndTheGetGoesOn) {
  // The coordinator stopped; then the session had ended.
  coordinator_->EndNextReports(
      {WithReason(absl::UnavailableError("it is stopping"), Reason::kNotServing),
       absl::CancelledError("its session 01234567 expired")});
  ASSERT_THAT(
      client_->arrays().GatherTo(ArraySelector::ByName("a"), SlowSink(), {.piece_bytes = 2}),
      IsOk());
  EXPECT_EQ(read_, bytes_);
  const auto reports = coordinator_->get_reports();
  ASSERT_EQ(reports.size(), 3u);
  EXPECT_TRUE(reports[2].front().has_header());
  EXPECT_TRUE(reports[2].back().has_result());
}

TEST_F(GetReportTest, AnOlderCoordinatorThatKnowsNoReportsIsAskedOnce) {
  coordinator_->EndNextReports({absl::UnimplementedError("no such call")});
  ASSERT_THAT(
      client_->arrays().GatherTo(ArraySelector::ByName("a"), SlowSink(), {.piece_bytes = 8}),
      IsOk());
  EXPECT_EQ(coordinator_->get_reports().size(), 1u);
}

TEST_F(GetReportTest, AGetGoesOnUnreportedWhereTheHostAllowsNoMoreThreads) {
  ASSERT_THAT(ArmFailpoints("thread.start=emfile"), IsOk());
  ASSERT_THAT(client_->arrays().Gather(ArraySelector::ByName("a")), IsOk());
  EXPECT_FALSE(IsArmed("thread.start"));
  EXPECT_THAT(coordinator_->get_reports(), IsEmpty());
}

TEST_F(GetReportTest, TheResultOfAFailedGetIsReported) {
  TensorSink sink = SlowSink();
  sink.append = [](absl::Span<const char>) {
    return absl::ResourceExhaustedError("the disk is full");
  };
  EXPECT_THAT(client_->arrays().GatherTo(ArraySelector::ByName("a"), sink),
              StatusIs(absl::StatusCode::kResourceExhausted));
  auto reports = coordinator_->get_reports();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_THAT(rpc::Decode(reports[0].back().result()),
              StatusIs(absl::StatusCode::kResourceExhausted));

  // The caller's own cancellation.
  Cancellation cancellation;
  sink.append = [&](absl::Span<const char>) {
    cancellation.Cancel();
    return absl::OkStatus();
  };
  EXPECT_THAT(client_->arrays().GatherTo(ArraySelector::ByName("a"), sink, {.piece_bytes = 8},
                                         {.cancellation = &cancellation}),
              StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
  reports = coordinator_->get_reports();
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_THAT(rpc::Decode(reports[1].back().result()), StatusIs(absl::StatusCode::kCancelled));
  // Also while the sink takes the last piece.
  Cancellation late;
  sink.append = [&](absl::Span<const char>) {
    late.Cancel();
    return absl::OkStatus();
  };
  EXPECT_THAT(client_->arrays().GatherTo(ArraySelector::ByName("a"), sink,
                                         {.piece_bytes = kArrayBytes}, {.cancellation = &late}),
              StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
}

}  // namespace
}  // namespace shardmesh::client
