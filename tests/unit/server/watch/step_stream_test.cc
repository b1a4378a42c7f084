// Streams of steps: their order, their bound, and what an error does to the steps after it.
#include "server/watch/step_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "shardmesh/v1/compute_service.grpc.pb.h"
#include "tests/unit/server/hollow_fixture.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::Eventually;
using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class StepStreamTest : public test::HollowFixture {
 protected:
  using Stream = grpc::ClientReaderWriter<v1::ExecuteStreamRequest, v1::ExecuteStreamResponse>;

  void SetUp() override {
    StartCoordinator("tp=1");
    StartWorkers(1);
    ASSERT_TRUE(AwaitQuiet("default"));
    session_ = OpenSession();
    stub_ = v1::ComputeService::NewStub(channel_);
    stream_ = stub_->ExecuteStream(&context_);
  }
  void TearDown() override {
    context_.TryCancel();
    stream_.reset();
  }

  // A request with the program, and one that runs the plan of the request before.
  v1::ExecuteStreamRequest First() {
    v1::ExecuteStreamRequest request;
    *request.mutable_step() = Product(session_, "default");
    request.mutable_step()->clear_request_id();
    return request;
  }
  v1::ExecuteStreamRequest Next() {
    v1::ExecuteStreamRequest request = First();
    request.mutable_step()->clear_work();
    request.mutable_step()->clear_session_id();
    request.mutable_step()->clear_mesh_id();
    return request;
  }
  v1::ExecuteStreamRequest Bad() {
    v1::ExecuteStreamRequest request = Next();
    request.mutable_step()->mutable_operands()->RemoveLast();
    return request;
  }
  // Sends all requests, and reads until the end of the stream. Returns the answers by number.
  std::map<int64_t, v1::ExecuteStreamResponse> Run(
      const std::vector<v1::ExecuteStreamRequest>& requests) {
    std::thread writer([&] {
      for (const v1::ExecuteStreamRequest& request : requests) EXPECT_TRUE(stream_->Write(request));
      stream_->WritesDone();
    });
    std::map<int64_t, v1::ExecuteStreamResponse> answers;
    v1::ExecuteStreamResponse answer;
    while (stream_->Read(&answer)) answers[answer.number()] = answer;
    writer.join();
    ended_ = rpc::FromGrpc(stream_->Finish());
    return answers;
  }
  static absl::Status ErrorOf(const v1::ExecuteStreamResponse& answer) {
    return answer.has_error() ? rpc::Decode(answer.error()) : absl::OkStatus();
  }

  std::string session_;
  std::unique_ptr<v1::ComputeService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<Stream> stream_;
  absl::Status ended_;
};

TEST_F(StepStreamTest, StepsRunThePlanOfTheStepBeforeUnlessTheyHaveAProgram) {
  const auto answers = Run({First(), Next(), Next(), First(), Next()});
  EXPECT_THAT(ended_, IsOk());
  ASSERT_THAT(answers, SizeIs(5));
  for (const auto& [number, answer] : answers) {
    EXPECT_THAT(ErrorOf(answer), IsOk());
    EXPECT_EQ(answer.response().plan_hash(), answers.at(1).response().plan_hash());
    EXPECT_EQ(answer.response().outputs_size(), 1);
  }
}

TEST_F(StepStreamTest, AStreamWithoutStepsEndsWell) {
  EXPECT_THAT(Run({}), testing::IsEmpty());
  EXPECT_THAT(ended_, IsOk());
}

TEST_F(StepStreamTest, TheFirstRequestNeedsAProgram) {
  const auto answers = Run({Next()});
  EXPECT_THAT(ended_, IsOk());
  EXPECT_THAT(ErrorOf(answers.at(1)),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
}

TEST_F(StepStreamTest, StepsAfterAFailedOneAreNotRun) {
  const auto answers = Run({First(), Bad(), Next(), Next()});
  EXPECT_THAT(ended_, IsOk());
  ASSERT_THAT(answers, SizeIs(4));
  EXPECT_THAT(ErrorOf(answers.at(1)), IsOk());
  EXPECT_THAT(ErrorOf(answers.at(2)), StatusIs(absl::StatusCode::kInvalidArgument));
  for (const int64_t later : {3, 4}) {
    EXPECT_THAT(ErrorOf(answers.at(later)), StatusIs(absl::StatusCode::kAborted));
    EXPECT_THAT(ErrorOf(answers.at(later)).ToString(), HasSubstr("step 2 of its stream"));
  }
}

TEST_F(StepStreamTest, StepsGoOnAfterAFailedOneIfTheFirstRequestSaysSo) {
  v1::ExecuteStreamRequest first = First();
  first.set_continue_after_errors(true);
  v1::ExecuteStreamRequest late = Next();
  late.set_continue_after_errors(true);
  const auto answers = Run({first, Bad(), Next(), late});
  EXPECT_THAT(ended_, IsOk());
  EXPECT_THAT(ErrorOf(answers.at(2)), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ErrorOf(answers.at(3)), IsOk());
  EXPECT_THAT(ErrorOf(answers.at(4)),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField))
      << "only the first request may say so";
}

TEST_F(StepStreamTest, NoMoreStepsAreReadThanMayBeUnanswered) {
  AnswerSteps(false);
  const auto is_step = [](const internal::v1::AttachResponse& message) {
    return message.has_run_step();
  };
  std::vector<v1::ExecuteStreamRequest> requests = {First()};
  requests.resize(static_cast<size_t>(StepStreams::kMaxInFlight) + 8, Next());
  std::map<int64_t, v1::ExecuteStreamResponse> answers;
  std::thread runner([&] { answers = Run(requests); });
  const auto in_flight = static_cast<size_t>(StepStreams::kMaxInFlight);
  EXPECT_TRUE(Eventually([&] { return Heard(0, is_step).size() == in_flight; }));
  // A call on the same connection is answered after what the coordinator has read before it.
  EXPECT_THAT(Status(), IsOk());
  EXPECT_THAT(Heard(0, is_step), SizeIs(in_flight));
  AnswerSteps(true);
  for (const internal::v1::AttachResponse& message : Heard(0, is_step)) {
    ReportDone(0, message.run_step(), 0);
  }
  runner.join();
  EXPECT_THAT(ended_, IsOk());
  EXPECT_THAT(answers, SizeIs(requests.size()));
}

TEST_F(StepStreamTest, ACallerHasSoManyStreamsOpen) {
  struct Other {
    grpc::ClientContext context;
    std::unique_ptr<Stream> stream;
  };
  std::vector<Other> others(static_cast<size_t>(StepStreams::kMaxPerCaller));
  v1::ExecuteStreamResponse answer;
  ASSERT_TRUE(stream_->Write(First()));
  ASSERT_TRUE(stream_->Read(&answer));
  for (size_t i = 0; i < others.size(); ++i) {
    others[i].stream = stub_->ExecuteStream(&others[i].context);
    others[i].stream->Write(First());
    EXPECT_EQ(others[i].stream->Read(&answer), i + 1 < others.size());
  }
  EXPECT_THAT(rpc::FromGrpc(others.back().stream->Finish()),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kOverloaded));
  for (size_t i = 0; i + 1 < others.size(); ++i) others[i].context.TryCancel();
}

TEST_F(StepStreamTest, ACancelledStreamCancelsItsSteps) {
  AnswerSteps(false);
  ASSERT_TRUE(stream_->Write(First()));
  const auto is_step = [](const internal::v1::AttachResponse& message) {
    return message.has_run_step();
  };
  const auto is_abort = [](const internal::v1::AttachResponse& message) {
    return message.has_end_step();
  };
  ASSERT_TRUE(Eventually([&] { return Heard(0, is_step).size() == 1; }));
  context_.TryCancel();
  EXPECT_TRUE(Eventually([&] { return Heard(0, is_abort).size() == 1; }));
}

TEST_F(StepStreamTest, AnOpenStreamDoesNotKeepTheCoordinatorFromStopping) {
  ASSERT_TRUE(stream_->Write(First()));
  v1::ExecuteStreamResponse answer;
  ASSERT_TRUE(stream_->Read(&answer));
  Stop();
  EXPECT_FALSE(stream_->Read(&answer));
  EXPECT_THAT(rpc::FromGrpc(stream_->Finish()), StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace shardmesh::server
