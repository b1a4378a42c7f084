// ReportGet over real gRPC: cancellations, clients that leave or say nothing, and the server's end.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>

#include "rpc/call.h"
#include "rpc/codec/status.h"
#include "server/service/operation_service.h"
#include "server/state/operation_table.h"
#include "shardmesh/v1/operation_service.grpc.pb.h"
#include "status/reason.h"
#include "tests/testing/eventually.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::HasSubstr;

class GetReportStreamTest : public ::testing::Test {
 protected:
  GetReportStreamTest() : session_(*sessions_.Open({.name = "here"}, "", absl::Hours(1))) {
    CoordinatorParts parts;
    parts.clock = &clock_;
    parts.sessions = &sessions_;
    parts.operations = &operations_;
    service_ = MakeOperationService(parts, nullptr);
    grpc::ServerBuilder builder;
    builder.RegisterService(service_.service.get());
    server_ = builder.BuildAndStart();
    stub_ = v1::OperationService::NewStub(server_->InProcessChannel({}));
  }
  ~GetReportStreamTest() override {
    service_.end_streams();
    server_->Shutdown(absl::ToChronoTime(absl::Now() + absl::Seconds(10)));
  }

  struct Call {
    explicit Call(v1::OperationService::Stub* stub) {
      rpc::Apply(rpc::CallOptions::Within(absl::Seconds(60)), &context);
      stream = stub->ReportGet(&context, &response);
    }
    absl::Status Finish() { return rpc::FromGrpc(stream->Finish()); }

    grpc::ClientContext context;
    v1::ReportGetResponse response;
    std::unique_ptr<grpc::ClientWriter<v1::ReportGetRequest>> stream;
  };

  // Begins a get, and returns its operation's id.
  std::string Begin(Call& call) {
    v1::ReportGetRequest request;
    request.mutable_header()->set_session_id(session_.id);
    request.mutable_header()->set_description("w");
    request.mutable_header()->set_total(1);
    request.mutable_header()->set_total_bytes(8);
    EXPECT_TRUE(call.stream->Write(request));
    std::string id;
    EXPECT_TRUE(test::Eventually([&] {
      const auto listed =
          operations_.List(0, 100, [](const OperationProgress& each) { return !each.ended; });
      if (listed.operations.empty()) return false;
      id = listed.operations.front().id;
      return true;
    }));
    return id;
  }
  // Waits for the operation's end, and returns its status.
  absl::Status End(const std::string& id) {
    EXPECT_TRUE(test::Eventually([&] { return operations_.Progress(id)->ended; }));
    return operations_.Progress(id)->status;
  }

  test::FakeClock clock_;
  SessionTable sessions_{&clock_, [](const EndedSession&) {}};
  OperationTable operations_{&clock_, &sessions_};
  const Session session_;
  StreamingService service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::OperationService::Stub> stub_;
};

TEST_F(GetReportStreamTest, AnswersWithTheOperationThatHasEnded) {
  Call call(stub_.get());
  const std::string id = Begin(call);
  v1::ReportGetRequest last;
  last.set_done(1);
  last.set_done_bytes(8);
  last.mutable_result();
  ASSERT_TRUE(call.stream->Write(last));
  call.stream->WritesDone();
  EXPECT_THAT(call.Finish(), IsOk());
  EXPECT_EQ(call.response.operation_id(), id);
  EXPECT_THAT(End(id), IsOk());
  EXPECT_EQ(operations_.Progress(id)->done_bytes, 8);
}

TEST_F(GetReportStreamTest, ACancellationEndsTheCallWithItsReason) {
  Call call(stub_.get());
  const std::string id = Begin(call);
  ASSERT_THAT(operations_.CancelFor(
                  id, WithReason(absl::CancelledError("ada cancelled it"), Reason::kCancelled)),
              IsOk());
  const absl::Status ended = call.Finish();
  EXPECT_THAT(ended, StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
  EXPECT_THAT(std::string(ended.message()), HasSubstr("ada cancelled it"));
  EXPECT_THAT(End(id), StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
  EXPECT_TRUE(test::Eventually([&] { return sessions_.Get(session_.id)->transfers == 0; }));
  // A second cancellation finds it ended.
  EXPECT_THAT(operations_.CancelFor(id, absl::CancelledError("again")), IsOk());
}

TEST_F(GetReportStreamTest, AClientThatLeavesHasNoOperationLeft) {
  std::string id;
  {
    Call call(stub_.get());
    id = Begin(call);
    call.context.TryCancel();
    EXPECT_THAT(call.Finish(), StatusIs(absl::StatusCode::kCancelled));
  }
  EXPECT_THAT(End(id), StatusIs(absl::StatusCode::kCancelled));

  // One that ends its side without a result is no successful get either.
  Call call(stub_.get());
  id = Begin(call);
  call.stream->WritesDone();
  EXPECT_THAT(call.Finish(), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(End(id), StatusIs(absl::StatusCode::kCancelled));
}

TEST_F(GetReportStreamTest, AClientThatSaysNothingLosesItsCall) {
  const int64_t before = clock_.pending();
  Call silent(stub_.get());
  ASSERT_TRUE(test::Eventually([&] { return clock_.pending() > before; }));
  Call call(stub_.get());
  const std::string id = Begin(call);
  clock_.Advance(absl::Seconds(31));
  EXPECT_THAT(silent.Finish(), StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
  EXPECT_FALSE(operations_.Progress(id)->ended)
      << "a get may report nothing for as long as it likes";
}

TEST_F(GetReportStreamTest, EndsWithTheServer) {
  Call call(stub_.get());
  const std::string id = Begin(call);
  service_.end_streams();
  EXPECT_THAT(call.Finish(), StatusIs(absl::StatusCode::kUnavailable, Reason::kNotServing));
  EXPECT_FALSE(End(id).ok());
  Call late(stub_.get());
  EXPECT_THAT(late.Finish(), StatusIs(absl::StatusCode::kUnavailable, Reason::kNotServing));
}

}  // namespace
}  // namespace shardmesh::server
