// Gets that their clients report: when they are operations, what they count, and how they end.
#include "server/calls/reported_get.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "rpc/codec/status.h"
#include "status/reason.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::HasSubstr;

class ReportedGetTest : public ::testing::Test {
 protected:
  ReportedGetTest()
      : sessions_(&clock_, [this](const EndedSession& ended) { ended_ = ended; }),
        operations_(&clock_, &sessions_),
        session_(*sessions_.Open(caller_, "", absl::Hours(1))) {}

  v1::ReportGetRequest First() const {
    v1::ReportGetRequest request;
    request.mutable_header()->set_session_id(session_.id);
    request.mutable_header()->set_description("w and 1 more");
    request.mutable_header()->set_total(2);
    request.mutable_header()->set_total_bytes(300);
    return request;
  }
  static v1::ReportGetRequest Progress(int64_t done, int64_t done_bytes) {
    v1::ReportGetRequest request;
    request.set_done(done);
    request.set_done_bytes(done_bytes);
    return request;
  }
  absl::Status Take(ReportedGet& get, const v1::ReportGetRequest& request) {
    return get.Take(request, caller_, [this](const absl::Status& reason) {
      cancellations_.push_back(reason);
      return absl::OkStatus();
    });
  }
  OperationProgress Of(const ReportedGet& get) {
    const auto progress = operations_.Progress(get.operation_id());
    EXPECT_THAT(progress, IsOk());
    return progress.value_or(OperationProgress());
  }
  // All operations that run or have ended.
  size_t Listed() const {
    return operations_.List(0, 100, [](const auto&) { return true; }).operations.size();
  }

  test::FakeClock clock_;
  EndedSession ended_;
  SessionTable sessions_;
  OperationTable operations_;
  const rpc::Caller caller_ = {.name = "host:here"};
  const Session session_;
  std::vector<absl::Status> cancellations_;
};

TEST_F(ReportedGetTest, IsAnOperationOfItsSessionFromTheFirstMessageToTheResult) {
  ReportedGet get(&operations_, &sessions_);
  EXPECT_FALSE(get.has_begun());
  ASSERT_THAT(Take(get, First()), IsOk());
  OperationProgress progress = Of(get);
  EXPECT_EQ(progress.kind, OperationKind::kGet);
  EXPECT_EQ(progress.description, "get of w and 1 more");
  EXPECT_EQ(progress.session_number, session_.number);
  EXPECT_EQ(progress.total, 2);
  EXPECT_EQ(progress.total_bytes, 300);
  EXPECT_EQ(progress.done_bytes, 0);
  EXPECT_EQ(sessions_.Get(session_.id)->transfers, 1);

  clock_.Advance(absl::Seconds(1));
  ASSERT_THAT(Take(get, Progress(0, 100)), IsOk());
  EXPECT_EQ(Of(get).done_bytes, 100);
  EXPECT_EQ(Of(get).bytes_per_second, 100);
  EXPECT_EQ(Of(get).TimeLeft(), absl::Seconds(2));

  // A read that starts again counts no byte twice.
  ASSERT_THAT(Take(get, Progress(0, 30)), IsOk());
  EXPECT_EQ(Of(get).done_bytes, 100);
  ASSERT_THAT(Take(get, Progress(1, 120)), IsOk());
  EXPECT_EQ(Of(get).done_bytes, 120);
  EXPECT_EQ(Of(get).done, 1);
  EXPECT_THAT(get.Conclude(), StatusIs(absl::StatusCode::kCancelled));

  v1::ReportGetRequest last = Progress(2, 300);
  last.mutable_result();
  ASSERT_THAT(Take(get, last), IsOk());
  progress = Of(get);
  EXPECT_TRUE(progress.ended);
  EXPECT_THAT(progress.status, IsOk());
  EXPECT_EQ(progress.done, 2);
  EXPECT_EQ(progress.done_bytes, 300);
  EXPECT_THAT(get.Conclude(), IsOk());
  EXPECT_EQ(sessions_.Get(session_.id)->transfers, 0);
  get.End(absl::CancelledError("the client left"));
  EXPECT_THAT(Of(get).status, IsOk()) << "it had ended before";
}

TEST_F(ReportedGetTest, AShortGetMayReportAllInOneMessage) {
  ReportedGet get(&operations_, &sessions_);
  v1::ReportGetRequest only = First();
  only.set_done(2);
  only.set_done_bytes(300);
  rpc::Encode(WithReason(absl::DataLossError(std::string(5'000, 'x')), Reason::kChecksumMismatch),
              only.mutable_result());
  ASSERT_THAT(Take(get, only), IsOk());
  EXPECT_THAT(get.Conclude(), IsOk());
  EXPECT_EQ(Of(get).done_bytes, 300);
  EXPECT_THAT(Of(get).status, StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch));
  EXPECT_LE(Of(get).status.message().size(), rpc::kMaxStatusMessageBytes);
}

TEST_F(ReportedGetTest, RefusesMessagesThatAreNoReport) {
  {
    ReportedGet get(&operations_, &sessions_);
    EXPECT_THAT(get.Conclude(), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
    const absl::Status refused = Take(get, Progress(0, 1));
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
    EXPECT_THAT(std::string(refused.message()), HasSubstr("first message"));
  }
  for (const bool is_total : {false, true}) {
    ReportedGet get(&operations_, &sessions_);
    v1::ReportGetRequest first = First();
    is_total ? first.mutable_header()->set_total_bytes(-1) : first.set_done_bytes(-1);
    EXPECT_THAT(Take(get, first), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  }
  {
    ReportedGet get(&operations_, &sessions_);
    v1::ReportGetRequest first = First();
    first.mutable_header()->set_session_id("none");
    EXPECT_THAT(Take(get, first), StatusIs(absl::StatusCode::kNotFound, Reason::kSessionGone));
  }
  EXPECT_EQ(Listed(), 0u);

  ReportedGet get(&operations_, &sessions_);
  ASSERT_THAT(Take(get, First()), IsOk());
  EXPECT_THAT(Take(get, First()), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_THAT(Take(get, Progress(-1, 0)),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  v1::ReportGetRequest last;
  last.mutable_result();
  ASSERT_THAT(Take(get, last), IsOk());
  EXPECT_THAT(Take(get, Progress(2, 300)),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_EQ(Listed(), 1u);
}

TEST_F(ReportedGetTest, ACancellationAsksTheCall) {
  ReportedGet get(&operations_, &sessions_);
  ASSERT_THAT(Take(get, First()), IsOk());
  EXPECT_THAT(operations_.Cancel(get.operation_id(), "another"),
              StatusIs(absl::StatusCode::kPermissionDenied, Reason::kNotOwner));
  EXPECT_TRUE(cancellations_.empty());
  EXPECT_THAT(operations_.Cancel(get.operation_id(), session_.id), IsOk());
  ASSERT_EQ(cancellations_.size(), 1u);
  get.End(cancellations_[0]);
  EXPECT_THAT(Of(get).status, StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
}

TEST_F(ReportedGetTest, BelongsToItsSession) {
  ReportedGet get(&operations_, &sessions_);
  ASSERT_THAT(Take(get, First()), IsOk());
  ASSERT_THAT(sessions_.Close(session_.id), IsOk());
  ASSERT_EQ(ended_.transfers.size(), 1u);
  EXPECT_EQ(ended_.transfers[0], get.operation_id()) << "so the coordinator cancels it";
}

}  // namespace
}  // namespace shardmesh::server
