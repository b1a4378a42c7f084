// BeginPut calls whose client does not go on, and those whose workers read files themselves.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "rpc/call.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "rpc/metrics/metrics.h"
#include "server/content/content_check.h"
#include "server/service/array_service.h"
#include "server/service/put_stream.h"
#include "server/state/operation_table.h"
#include "server/steps/file_check.h"
#include "shardmesh/v1/array_service.grpc.pb.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/eventually.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/content/keeping_digests.h"
#include "tests/unit/server/steps/keeping_fill.h"
#include "tests/unit/server/steps/ready_cluster.h"

namespace shardmesh::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class PutStreamTest : public ::testing::Test {
 protected:
  PutStreamTest() {
    CoordinatorParts context;
    context.clock = &clock_;
    context.max_put_streams_per_caller = 2;
    service_ = MakeArrayService(context, {.metrics = &metrics_}).service;
    grpc::ServerBuilder builder;
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    stub_ = v1::ArrayService::NewStub(server_->InProcessChannel({}));
  }
  ~PutStreamTest() override {
    server_->Shutdown(absl::ToChronoTime(absl::Now() + absl::Seconds(10)));
  }

  using Stream =
      std::unique_ptr<grpc::ClientReaderWriter<v1::BeginPutRequest, v1::BeginPutResponse>>;
  // Returns when the server waits for the first message.
  Stream Begin(grpc::ClientContext* context) {
    const int64_t before = clock_.pending();
    rpc::Apply(rpc::CallOptions::Within(absl::Seconds(30)), context);
    Stream stream = stub_->BeginPut(context);
    EXPECT_TRUE(test::Eventually([&] { return clock_.pending() > before; }));
    return stream;
  }

  test::FakeClock clock_;
  rpc::Metrics metrics_{"coordinator"};
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::ArrayService::Stub> stub_;
};

TEST_F(PutStreamTest, EndsHalfAMinuteAfterTheLastMessage) {
  grpc::ClientContext context;
  const Stream stream = Begin(&context);
  clock_.Advance(absl::Seconds(29));
  grpc::ClientContext later_context;
  const Stream later = Begin(&later_context);
  clock_.Advance(absl::Seconds(1));
  const absl::Status ended = rpc::FromGrpc(stream->Finish());
  EXPECT_THAT(ended, test::StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
  EXPECT_THAT(std::string(ended.message()), AllOf(HasSubstr("30s"), HasSubstr("5m")));
  // The other one has more time.
  later->WritesDone();
  EXPECT_THAT(rpc::FromGrpc(later->Finish()),
              test::StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
}

// BeginPut over a coordinator's state without workers: KeepingFill stands for them.
class SourcedPutTest : public ReadyCluster {
 protected:
  // The service, with streams of the test's own parts.
  class Service final
      : public v1::ArrayService::WithRawCallbackMethod_BeginPut<v1::ArrayService::Service> {
   public:
    explicit Service(PutStreams* streams) : streams_(streams) {}
    grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* BeginPut(
        grpc::CallbackServerContext* context) override {
      return streams_->Open(context);
    }

   private:
    PutStreams* const streams_;
  };

  SourcedPutTest() {
    streams_ = std::make_unique<PutStreams>(
        PutStreamParts{.plan = {.clock = &clock_,
                                .definition_store = definition_store_.get(),
                                .membership = &members_,
                                .registry = registry_.get(),
                                .endpoints = &endpoints_,
                                .sessions = &sessions_,
                                .transfers = &transfers_,
                                .fill = &fill_,
                                .term = 7,
                                .token_key = std::string(32, 'k')},
                       .clock = &clock_,
                       .transfers = &transfers_,
                       .digests = &digests_,
                       .max_streams_per_caller = 32,
                       .token_key = std::string(32, 'k'),
                       .term = 7});
    service_ = std::make_unique<Service>(streams_.get());
    grpc::ServerBuilder builder;
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    stub_ = v1::ArrayService::NewStub(server_->InProcessChannel({}));
  }
  ~SourcedPutTest() override {
    server_->Shutdown(absl::ToChronoTime(absl::Now() + absl::Seconds(10)));
    streams_.reset();
    sequencer_.reset();
  }

  // A call of BeginPut for one tensor of 32 bytes that the workers read.
  struct Call {
    explicit Call(v1::ArrayService::Stub* stub) {
      rpc::Apply(rpc::CallOptions::Within(absl::Seconds(30)), &context);
      stream = stub->BeginPut(&context);
    }
    // Returns the call's status.
    absl::Status Finish() {
      v1::BeginPutResponse response;
      while (stream->Read(&response)) answers.push_back(response);
      return rpc::FromGrpc(stream->Finish());
    }

    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReaderWriter<v1::BeginPutRequest, v1::BeginPutResponse>> stream;
    std::vector<v1::BeginPutResponse> answers;
  };
  static void AddFile(v1::BeginPutHeader* header) {
    v1::SourceFile& file = *header->add_files();
    file.set_path("/srv/a");
    file.set_size_bytes(100);
    file.mutable_modify_time()->set_seconds(5);
    file.set_head_sha256(std::string(32, 'h'));
  }
  // Adds a tensor of which each worker of the mesh gets a half.
  static v1::PutTensor& AddTensor(v1::BeginPutRequest* request) {
    v1::PutTensor& tensor = *request->mutable_tensors()->add_tensors();
    tensor.set_name("one");
    tensor.set_dtype(v1::DTYPE_F32);
    tensor.add_shape(8);
    rpc::Encode(PartitionSpec({SpecEntry::Axis("x")}), tensor.mutable_spec());
    return tensor;
  }
  std::unique_ptr<Call> Begin(bool hold = false, bool validate_only = false) {
    auto call = std::make_unique<Call>(stub_.get());
    v1::BeginPutRequest request;
    v1::BeginPutHeader& header = *request.mutable_header();
    header.set_request_id("r");
    header.set_session_id(session_);
    header.mutable_mesh()->set_name("m");
    header.set_hold(hold);
    header.set_validate_only(validate_only);
    AddFile(&header);
    call->stream->Write(request);
    v1::PutTensor& tensor = AddTensor(&request);
    tensor.mutable_source()->set_offset_bytes(20);
    call->stream->Write(request);
    call->stream->WritesDone();
    return call;
  }
  // Begins a put whose tensor the client sends.
  std::unique_ptr<Call> BeginSent(const std::string& name) {
    auto call = std::make_unique<Call>(stub_.get());
    v1::BeginPutRequest request;
    request.mutable_header()->set_request_id(name);
    request.mutable_header()->set_session_id(session_);
    request.mutable_header()->mutable_mesh()->set_name("m");
    call->stream->Write(request);
    v1::PutTensor& tensor = *request.mutable_tensors()->add_tensors();
    tensor.set_name(name);
    tensor.set_dtype(v1::DTYPE_F32);
    tensor.add_shape(8);
    rpc::Encode(PartitionSpec({SpecEntry::Axis("x")}), tensor.mutable_spec());
    call->stream->Write(request);
    call->stream->WritesDone();
    return call;
  }
  // Begins a put whose tensor the client sends, unless it has the content of an array, with tiles
  // of the digests 'a' and 'b'.
  std::unique_ptr<Call> BeginClaimed(const std::string& array_id, bool by_workers = false) {
    auto call = std::make_unique<Call>(stub_.get());
    v1::BeginPutRequest request;
    v1::BeginPutHeader& header = *request.mutable_header();
    header.set_request_id(StrCat("r", ++requests_));
    header.set_session_id(session_);
    header.mutable_mesh()->set_name("m");
    header.set_reuse(true);
    AddFile(&header);
    call->stream->Write(request);
    v1::PutTensor& tensor = AddTensor(&request);
    if (by_workers) tensor.mutable_source()->set_offset_bytes(20);
    tensor.mutable_content()->set_array_id(array_id);
    tensor.mutable_content()->add_tile_sha256(std::string(32, 'a'));
    tensor.mutable_content()->add_tile_sha256(std::string(32, 'b'));
    call->stream->Write(request);
    call->stream->WritesDone();
    return call;
  }
  bool AreDigestsAsked(size_t questions = 2) {
    return test::Eventually([&] { return digests_.waiting().size() == questions; });
  }
  bool IsAsked(size_t workers = 2) {
    return test::Eventually([&] { return fill_.waiting() == workers; });
  }
  void AnswerAll() {
    EXPECT_TRUE(fill_.Answer("w0", {}));
    EXPECT_TRUE(fill_.Answer("w1", {}));
  }
  bool NothingIsLeft() {
    return test::Eventually([&] {
      return registry_->CountArrays().staging == 0 && sequencer_->CountTransfers().running == 0;
    });
  }
  static absl::Status NoRoot() {
    return WithReason(absl::FailedPreconditionError("/srv/a is below no read root"),
                      Reason::kNoReadRoot, {{fact::kFile, "/srv/a"}});
  }

  int requests_ = 0;
  KeepingDigests digests_;
  KeepingFill fill_;
  OperationTable operations_{&clock_, &sessions_};
  Transfers transfers_{&clock_, registry_.get(), &sessions_, sequencer_.get(), &operations_};
  std::unique_ptr<PutStreams> streams_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::ArrayService::Stub> stub_;
};

TEST_F(SourcedPutTest, BeginsWhenAllWorkersCanReadTheFilesAndOrdersTheFillOnce) {
  const auto call = Begin();
  ASSERT_TRUE(IsAsked());
  EXPECT_THAT(fill_.paths_asked(), testing::ElementsAre("/srv/a"));
  EXPECT_EQ(registry_->CountArrays().staging, 0);  // nothing has begun
  AnswerAll();
  ASSERT_THAT(call->Finish(), test::IsOk());
  ASSERT_EQ(call->answers.size(), 1u);
  EXPECT_EQ(call->answers[0].assignments(0).token(), "");
  const std::string transfer_id = call->answers[0].transfer_id();
  ASSERT_EQ(fill_.sent("w0").size(), 1u);
  EXPECT_EQ(fill_.sent("w0")[0].transfer_id(), transfer_id);
  EXPECT_EQ(fill_.sent("w0")[0].tiles(0).array_descriptor(),
            call->answers[0].assignments(0).array_descriptor().SerializeAsString());
  EXPECT_EQ(fill_.sent("w1")[0].rank(), 1);

  // A repeated request gets the same transfer, without a question and without an order.
  const auto again = Begin();
  ASSERT_THAT(again->Finish(), test::IsOk());
  EXPECT_EQ(again->answers[0].transfer_id(), transfer_id);
  EXPECT_EQ(fill_.waiting(), 0u);
  EXPECT_EQ(fill_.sent("w0").size(), 1u);
}

TEST_F(SourcedPutTest, PutsThatAreSlowToBeginKeepNoThreadOfGrpc) {
  constexpr int kPuts = 20;  // gRPC has at most 16 threads
  absl::Notification go;
  std::atomic<int> at_work = 0;
  endpoints_.on_endpoints = [&] {
    ++at_work;
    go.WaitForNotification();
  };
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < kPuts; ++i) calls.push_back(BeginSent(StrCat("put", i)));
  EXPECT_TRUE(test::Eventually([&] { return at_work >= 2; }));
  // With the puts fewer than the streams that a caller may have: the server may forget an ended one
  // after its client has the answer.
  for (int i = 0; i < 10; ++i) {
    Call other(stub_.get());
    other.stream->WritesDone();
    EXPECT_THAT(other.Finish(),
                test::StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  }
  go.Notify();
  for (const auto& call : calls) EXPECT_THAT(call->Finish(), test::IsOk());
}

TEST_F(SourcedPutTest, AnArrayOfWhichTheWorkersHaveTheClaimedDigestsIsReused) {
  const std::string array_id = AddArray(Descriptor(), "there");
  for (const bool is_true : {false, true}) {
    const auto call = BeginClaimed(array_id);
    ASSERT_TRUE(AreDigestsAsked());
    EXPECT_EQ(registry_->CountArrays().staging, 0) << "nothing has begun";
    EXPECT_TRUE(digests_.Answer("w0", {{std::string(32, 'a')}}));
    EXPECT_TRUE(digests_.Answer("w1", {{std::string(32, is_true ? 'b' : 'x')}}));
    ASSERT_THAT(call->Finish(), test::IsOk());
    ASSERT_EQ(call->answers.size(), 1u);
    const v1::PutAssignment& assignment = call->answers[0].assignments(0);
    EXPECT_EQ(assignment.reused().array_id(), is_true ? array_id : "");
    EXPECT_EQ(assignment.token().empty(), is_true);
    EXPECT_THAT(transfers_.Abort(call->answers[0].transfer_id(), absl::CancelledError("enough")),
                test::IsOk());
  }
}

TEST_F(SourcedPutTest, AClaimThatCannotBeComparedIsNoErrorOfThePut) {
  const std::string array_id = AddArray(Descriptor(), "there");
  const auto unknown = BeginClaimed("unknown");
  ASSERT_THAT(unknown->Finish(), test::IsOk());
  EXPECT_NE(unknown->answers[0].assignments(0).token(), "");
  const auto call = BeginClaimed(array_id);
  ASSERT_TRUE(AreDigestsAsked());
  clock_.Advance(ContentCheck::kIdleLimit);
  ASSERT_THAT(call->Finish(), test::IsOk());
  EXPECT_NE(call->answers[0].assignments(0).token(), "");
  EXPECT_TRUE(AreDigestsAsked(0));
  digests_.Refuse("w0", absl::UnavailableError("it is not attached"));
  const auto refused = BeginClaimed(array_id);
  ASSERT_TRUE(AreDigestsAsked(1));
  EXPECT_TRUE(digests_.Answer("w1", {{std::string(32, 'b')}}));
  EXPECT_THAT(refused->Finish(), test::IsOk());
}

TEST_F(SourcedPutTest, FilesAreCheckedOnlyIfTheContentIsNotThere) {
  const std::string array_id = AddArray(Descriptor(), "there");
  for (const bool is_true : {true, false}) {
    const auto call = BeginClaimed(array_id, /*by_workers=*/true);
    ASSERT_TRUE(AreDigestsAsked());
    EXPECT_TRUE(digests_.Answer("w0", {{std::string(32, is_true ? 'a' : 'x')}}));
    EXPECT_TRUE(digests_.Answer("w1", {{std::string(32, 'b')}}));
    if (!is_true) {
      ASSERT_TRUE(IsAsked());
      AnswerAll();
    }
    ASSERT_THAT(call->Finish(), test::IsOk());
    EXPECT_EQ(call->answers[0].assignments(0).has_reused(), is_true);
  }
}

TEST_F(SourcedPutTest, AClientThatLeavesDuringTheComparisonLeavesNothing) {
  const std::string array_id = AddArray(Descriptor(), "there");
  const auto call = BeginClaimed(array_id);
  ASSERT_TRUE(AreDigestsAsked());
  call->context.TryCancel();
  EXPECT_THAT(call->Finish(), test::StatusIs(absl::StatusCode::kCancelled));
  EXPECT_TRUE(AreDigestsAsked(0));  // its questions are forgotten
  EXPECT_TRUE(NothingIsLeft());
  EXPECT_TRUE(test::Eventually([&] { return registry_->HoldsOf(array_id).pins == 0; }));
}

TEST_F(SourcedPutTest, ARepeatedRequestDuringTheCheckIsToBeRetried) {
  const auto call = Begin();
  ASSERT_TRUE(IsAsked());
  const auto again = Begin();
  EXPECT_THAT(again->Finish(), test::StatusIs(absl::StatusCode::kAborted));
  EXPECT_EQ(fill_.waiting(), 2u);
  AnswerAll();
  EXPECT_THAT(call->Finish(), test::IsOk());
}

TEST_F(SourcedPutTest, IsRefusedBeforeAnythingMovesIfAWorkerCannotReadAFile) {
  const auto call = Begin();
  ASSERT_TRUE(IsAsked());
  fill_.Answer("w0", {});
  fill_.Answer("w1", {.status = NoRoot()});
  const absl::Status refused = call->Finish();
  EXPECT_THAT(refused, test::StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoReadRoot));
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("worker \"w1\" cannot read /srv/a"), HasSubstr("--source client")));
  EXPECT_EQ(FactOf(refused, fact::kIdentity), "w1");
  EXPECT_TRUE(fill_.sent("w0").empty());
  EXPECT_TRUE(NothingIsLeft());
  // The request is free again: a root was added meanwhile.
  const auto again = Begin();
  ASSERT_TRUE(IsAsked());
  AnswerAll();
  EXPECT_THAT(again->Finish(), test::IsOk());
}

TEST_F(SourcedPutTest, AWorkerThatIsLostDuringTheCheckIsNamed) {
  const auto call = Begin();
  ASSERT_TRUE(IsAsked());
  fill_.Answer("w0", {.status = WithReason(absl::UnavailableError("it is not attached"),
                                           Reason::kWorkerLost, {{fact::kIdentity, "w0"}})});
  fill_.Answer("w1", {});
  const absl::Status refused = call->Finish();
  EXPECT_THAT(refused, test::StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("w0"));
  EXPECT_TRUE(NothingIsLeft());
}

TEST_F(SourcedPutTest, WorkersThatDoNotAnswerEndTheCallInTime) {
  const auto call = Begin();
  ASSERT_TRUE(IsAsked());
  fill_.Answer("w1", {});
  clock_.Advance(FileCheck::kTimeout);
  const absl::Status refused = call->Finish();
  EXPECT_THAT(refused, test::StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
  EXPECT_EQ(FactOf(refused, fact::kIdentity), "w0");
  EXPECT_EQ(fill_.waiting(), 0u);
}

TEST_F(SourcedPutTest, AClientThatLeavesDuringTheCheckLeavesNothing) {
  const auto call = Begin();
  ASSERT_TRUE(IsAsked());
  call->context.TryCancel();
  EXPECT_THAT(call->Finish(), test::StatusIs(absl::StatusCode::kCancelled));
  EXPECT_TRUE(IsAsked(0));  // its questions are forgotten
  EXPECT_TRUE(NothingIsLeft());
  const auto again = Begin();  // the request is free again
  ASSERT_TRUE(IsAsked());
  AnswerAll();
  EXPECT_THAT(again->Finish(), test::IsOk());
}

TEST_F(SourcedPutTest, ValidatingAsksTheWorkersAndBeginsNothing) {
  const auto call = Begin(/*hold=*/false, /*validate_only=*/true);
  ASSERT_TRUE(IsAsked());
  fill_.Answer("w0", {.status = NoRoot()});
  fill_.Answer("w1", {.status = NoRoot()});
  EXPECT_THAT(call->Finish(),
              test::StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoReadRoot));
  const auto good = Begin(/*hold=*/false, /*validate_only=*/true);
  ASSERT_TRUE(IsAsked());
  AnswerAll();
  EXPECT_THAT(good->Finish(), test::IsOk());
  EXPECT_EQ(good->answers[0].transfer_id(), "");
  EXPECT_TRUE(fill_.sent("w0").empty());
  EXPECT_EQ(registry_->CountArrays().staging, 0);
}

TEST_F(SourcedPutTest, AHoldingClientThatLeavesDuringTheFillAbortsThePut) {
  const auto call = Begin(/*hold=*/true);
  ASSERT_TRUE(IsAsked());
  AnswerAll();
  v1::BeginPutResponse response;
  ASSERT_TRUE(call->stream->Read(&response));
  EXPECT_EQ(registry_->CountArrays().staging, 1);
  call->context.TryCancel();
  call->Finish().IgnoreError();
  EXPECT_TRUE(NothingIsLeft());
}

TEST_F(SourcedPutTest, AFailureToFillOneRankEndsThePutThatWaitsForItsCommit) {
  const auto call = Begin();
  ASSERT_TRUE(IsAsked());
  AnswerAll();
  ASSERT_THAT(call->Finish(), test::IsOk());
  const v1::BeginPutResponse& answer = call->answers[0];
  absl::Notification done;
  absl::Status ended;
  transfers_.Commit(answer.transfer_id(), "", clock_.Now() + absl::Minutes(1),
                    [&](const absl::StatusOr<TransferResult>& result) {
                      ended = result.status();
                      done.Notify();
                    });
  EXPECT_FALSE(done.HasBeenNotified());  // nothing is filled yet
  const std::string array_id = answer.assignments(0).array_descriptor().array_id();
  EXPECT_THAT(sequencer_->ReportTransfer(
                  answer.transfer_id(), 7,
                  {.identity = "w0", .rank = 0, .tiles = {{.array_id = array_id, .crc32c = 7}}}),
              test::IsOk());
  EXPECT_THAT(sequencer_->ReportTransfer(
                  answer.transfer_id(), 7,
                  {.identity = "w1",
                   .rank = 1,
                   .status = WithReason(absl::FailedPreconditionError("/srv/a has changed"),
                                        Reason::kFileChanged, {{fact::kFile, "/srv/a"}})}),
              test::IsOk());
  done.WaitForNotification();
  EXPECT_THAT(ended, test::StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kFileChanged));
  EXPECT_THAT(std::string(ended.message()),
              AllOf(HasSubstr("rank 1"), HasSubstr("w1"), HasSubstr("/srv/a has changed")));
  EXPECT_TRUE(NothingIsLeft());
}

TEST_F(SourcedPutTest, AWorkerThatIsLostDuringTheFillEndsThePut) {
  const auto call = Begin();
  ASSERT_TRUE(IsAsked());
  AnswerAll();
  ASSERT_THAT(call->Finish(), test::IsOk());
  sequencer_->WorkerLost("w1", 3, "its stream broke");
  EXPECT_TRUE(NothingIsLeft());
}

}  // namespace
}  // namespace shardmesh::server
