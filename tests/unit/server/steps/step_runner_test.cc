// StepRunner: what a step finds, holds, gives away and leaves behind, however it ends.
#include "server/steps/step_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/status.h"
#include "rpc/metrics/metrics.h"
#include "sharding/digest.h"
#include "shardmesh/internal/v1/attach_service.pb.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "tests/testing/eventually.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/steps/step_cluster.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::HasSubstr;
using ::testing::Not;

// All operands of a program go through one op each, and each result is an output.
Program Each(uint32_t operands, CollectiveKind kind) {
  // Of the algorithms of an all-reduce this one makes its result in a donated operand's memory.
  const CollectiveAlgorithm algorithm = kind == CollectiveKind::kAllReduce
                                            ? CollectiveAlgorithm::kPairwise
                                            : CollectiveAlgorithm::kAuto;
  Program program{.operand_count = operands, .ops = {}, .outputs = {}};
  for (uint32_t i = 0; i < operands; ++i) {
    program.ops.push_back(
        CollectiveOp{.input = i, .kind = kind, .axes = {"x"}, .algorithm = algorithm});
    program.outputs.push_back(operands + i);
  }
  return program;
}

StepOperand Named(const std::string& name) { return {.value = ArrayReference{.name = name}}; }
StepOperand Donated(const std::string& array_id) {
  return {.value = ArrayReference{.array_id = array_id}, .donate = true};
}

// The end of a step.
struct Ended {
  absl::Notification done;
  StepAnswer answer = absl::UnknownError("it runs");
};

class StepRunnerTest : public StepCluster {
 protected:
  StepCall Call(std::vector<StepOperand> operands,
                CollectiveKind kind = CollectiveKind::kAllGather) const {
    const auto count = static_cast<uint32_t>(operands.size());
    return {.request_id = "r",
            .session_id = session_,
            .method = "Execute",
            .fingerprint = "f",
            .caller = caller_,
            .time_left = absl::Seconds(30),
            .work = Each(count, kind),
            .operands = {.operands = std::move(operands)}};
  }
  std::unique_ptr<Ended> Start(StepCall call) {
    auto ended = std::make_unique<Ended>();
    ticket_ = steps_.Run(std::move(call), [to = ended.get()](StepAnswer answer) {
      to->answer = std::move(answer);
      to->done.Notify();
    });
    // The thread that ends another step may still make the sequencer's calls, this step's too.
    EXPECT_TRUE(
        test::Eventually([&] { return transport_.started() >= sequencer_->last_sequence(); }));
    return ended;
  }
  static StepAnswer Wait(const Ended& ended) {
    EXPECT_TRUE(ended.done.WaitForNotificationWithTimeout(absl::Seconds(60)));
    return ended.answer;
  }
  // Of a step that ends before workers hear of it.
  absl::Status Refusal(StepCall call) {
    const std::unique_ptr<Ended> ended = Start(std::move(call));
    EXPECT_FALSE(ticket_.has_value());
    EXPECT_TRUE(ended->done.HasBeenNotified());
    EXPECT_EQ(transport_.started(), 0);
    return ended->answer.status();
  }

  StepAnswer Finish(const Ended& ended) {
    EXPECT_THAT(Report(0), IsOk());
    EXPECT_THAT(Report(1), IsOk());
    return Wait(ended);
  }
  absl::Status Fail(const Ended& ended) {
    EXPECT_THAT(Report(0, "", absl::InternalError("a rank failed")), IsOk());
    return Wait(ended).status();
  }
  double CountOf(const std::string& outcome) {
    return metrics_
        .AddCounter("shardmesh_steps_total", "Steps by how they ended.", {{"outcome", outcome}})
        .value();
  }
  // Nothing of a step is left: neither a staged array nor a pin of its own.
  void ExpectNothingLeft(const std::string& operand) {
    EXPECT_EQ(registry_->CountArrays().staging, 0);
    EXPECT_EQ(PinnedBySession(), 1);
    ASSERT_THAT(registry_->FindArray(operand), IsOk());
    UnpinForSession(*registry_, sessions_, session_, {operand});
    EXPECT_THAT(registry_->FindArray(operand), StatusIs(absl::StatusCode::kNotFound));
  }

  std::optional<Sequencer::StepTicket> ticket_;
};

TEST_F(StepRunnerTest, TakesTheNewArrayOfANameThatIsReplacedBeforeItIsPinned) {
  const std::string old_id = AddArray(Descriptor(), "w");
  std::string new_id;
  endpoints_.on_check = [&] { new_id = AddArray(Descriptor(), "w"); };
  const std::unique_ptr<Ended> ended = Start(Call({Named("w")}));
  ASSERT_TRUE(ticket_.has_value()) << ended->answer.status();
  EXPECT_THAT(registry_->FindArray(old_id), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(Told().operands(0).array_id(), new_id);
  EXPECT_THAT(Finish(*ended), IsOk());
}

TEST_F(StepRunnerTest, CommitsTheResultUnderItsName) {
  AddArray(Descriptor(), "w");
  StepCall call = Call({Named("w")});
  call.outputs.names = {"y"};
  const std::unique_ptr<Ended> ended = Start(std::move(call));
  EXPECT_TRUE(ticket_.has_value());
  EXPECT_EQ(transport_.work().op, "collective of \"w\"");
  EXPECT_EQ(transport_.work().mesh_id, "m");
  clock_.Advance(absl::Seconds(2));
  const StepAnswer answer = Finish(*ended);
  ASSERT_THAT(answer, IsOk());
  EXPECT_EQ(answer->sequence(), 1);
  EXPECT_EQ(answer->timings().total().seconds(), 2);
  EXPECT_EQ(answer->timings().sent_bytes(), 20);
  // No worker has measured anything, so no times are predicted.
  const v1::StepPrediction& predicted = answer->timings().predicted();
  EXPECT_FALSE(predicted.has_kernel());
  EXPECT_FALSE(predicted.has_collective());
  EXPECT_FALSE(predicted.has_overhead());  // the first step of the mesh
  EXPECT_GT(predicted.sent_bytes(), 0);
  EXPECT_GT(predicted.peak_bytes(), 0);
  ASSERT_EQ(answer->outputs_size(), 1);
  EXPECT_EQ(answer->outputs(0).array().name(), "y");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const NameEntry name, registry_->FindName("y"));
  EXPECT_EQ(answer->outputs(0).array().array_descriptor().array_id(), name.array_id);
  EXPECT_EQ(answer->outputs(0).array().name_version(), name.version);
  EXPECT_EQ(CountOf("committed"), 1);
  EXPECT_EQ(PinnedBySession(), 1);  // the result
}

TEST_F(StepRunnerTest, AnOperandThatIsNotThereIsNamed) {
  AddArray(Descriptor(), "w");
  const absl::Status refused = Refusal(Call({Named("w"), Named("none")}));
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kNotFound));
  ASSERT_EQ(rpc::FieldViolationsOf(refused).size(), 1u);
  EXPECT_EQ(rpc::FieldViolationsOf(refused)[0].field, "operands[1]");
}

TEST_F(StepRunnerTest, OperandsOfTwoMeshesAreRefused) {
  AddArray(Descriptor("m"), "w");
  AddArray(Descriptor("n"), "v");
  EXPECT_THAT(Refusal(Call({Named("w"), Named("v")})),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kMeshMismatch));
  const absl::Status refused = Refusal(Call({Named("w"), Named("v")}));
  EXPECT_THAT(refused,
              test::CarriesFacts(Reason::kMeshMismatch,
                                 {{fact::kArray, FactOf(refused, fact::kArray).value_or("none")},
                                  {fact::kHave, "n"},
                                  {fact::kNeed, "m"}}));
}

TEST_F(StepRunnerTest, AnOperandOfAMeshThatWasChangedIsRefused) {
  ArrayDescriptor descriptor = Descriptor();
  descriptor.mesh = *Mesh::Parse("x=2,y=1");
  AddArray(descriptor, "w");
  EXPECT_THAT(Refusal(Call({Named("w")})),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kMeshMismatch));
}

TEST_F(StepRunnerTest, RefusesWithoutASessionAMeshOrTime) {
  AddArray(Descriptor(), "w");
  StepCall call = Call({Named("w")});
  call.session_id = "none";
  EXPECT_THAT(Refusal(call), StatusIs(absl::StatusCode::kNotFound, Reason::kSessionGone));
  call = Call({Named("w")});
  call.timeout = absl::ZeroDuration();
  const absl::Status late = Refusal(call);
  EXPECT_THAT(late, StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
  EXPECT_THAT(
      late, test::CarriesFacts(Reason::kDeadline, {{fact::kOp, "collective"}, {fact::kLimit, 0}}));
  endpoints_.ready = WithReason(absl::FailedPreconditionError("away"), Reason::kMeshIncomplete);
  EXPECT_THAT(Refusal(Call({Named("w")})),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kMeshIncomplete));
}

TEST_F(StepRunnerTest, ADonatedOperandIsGoneAfterTheStep) {
  const std::string operand = AddArray(Descriptor(), "");
  const std::unique_ptr<Ended> ended = Start(Call({Donated(operand)}));
  EXPECT_TRUE(Told().operands(0).donate());
  EXPECT_THAT(registry_->Pin(operand), StatusIs(absl::StatusCode::kNotFound));
  ASSERT_THAT(Finish(*ended), IsOk());
  EXPECT_THAT(registry_->FindArray(operand), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(PinnedBySession(), 1);  // the result
}

TEST_F(StepRunnerTest, AnArrayThatANameKeepsIsLent) {
  const std::string operand = AddArray(Descriptor(), "w");
  const std::unique_ptr<Ended> ended = Start(Call({Donated(operand)}));
  EXPECT_FALSE(Told().operands(0).donate());
  ASSERT_THAT(Finish(*ended), IsOk());
  EXPECT_THAT(registry_->FindArray(operand), IsOk());
}

TEST_F(StepRunnerTest, AnArrayThatAnotherSessionPinsIsLent) {
  const std::string operand = AddArray(Descriptor(), "");
  ASSERT_THAT(PinForSession(*registry_, sessions_, OpenSession(), operand), IsOk());
  const std::unique_ptr<Ended> ended = Start(Call({Donated(operand)}));
  EXPECT_FALSE(Told().operands(0).donate());
  ASSERT_THAT(Finish(*ended), IsOk());
  EXPECT_THAT(registry_->FindArray(operand), IsOk());
}

TEST_F(StepRunnerTest, ASessionMayNotDonateWhatItDoesNotPin) {
  const std::string operand = AddArray(Descriptor(), "");
  StepCall call = Call({Donated(operand)});
  call.session_id = OpenSession();
  EXPECT_THAT(Refusal(call), StatusIs(absl::StatusCode::kPermissionDenied, Reason::kNotOwner));
}

TEST_F(StepRunnerTest, AFailedStepGivesADonatedOperandBack) {
  const std::string operand = AddArray(Descriptor(), "");
  const std::unique_ptr<Ended> ended = Start(Call({Donated(operand)}));
  const absl::Status failed = Fail(*ended);
  EXPECT_THAT(failed, StatusIs(absl::StatusCode::kInternal));
  EXPECT_THAT(std::string(failed.message()), Not(HasSubstr("gone with the step")));
  EXPECT_THAT(registry_->Pin(operand), IsOk());
  registry_->Unpin(operand);
  ExpectNothingLeft(operand);
  EXPECT_EQ(CountOf("failed"), 1);
}

TEST_F(StepRunnerTest, AFailedStepLosesAnOperandInWhoseMemoryAResultWasToBeMade) {
  const std::string operand = AddArray(Descriptor(), "");
  const std::unique_ptr<Ended> ended = Start(Call({Donated(operand)}, CollectiveKind::kAllReduce));
  const absl::Status failed = Fail(*ended);
  EXPECT_THAT(std::string(failed.message()), HasSubstr("gone with the step"));
  EXPECT_THAT(std::string(failed.message()), HasSubstr(operand));
  EXPECT_THAT(registry_->FindArray(operand), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(registry_->CountArrays().total(), 0);
  EXPECT_EQ(PinnedBySession(), 0);
}

TEST_F(StepRunnerTest, AStepThatFailsOnAWorkerLeavesNothing) {
  const std::string operand = AddArray(Descriptor(), "");
  StepOperand lent = Donated(operand);
  lent.donate = false;
  const std::unique_ptr<Ended> ended = Start(Call({lent}));
  EXPECT_EQ(registry_->CountArrays().staging, 1);
  EXPECT_EQ(PinnedBySession(), 2);
  EXPECT_THAT(Fail(*ended), StatusIs(absl::StatusCode::kInternal));
  ExpectNothingLeft(operand);
}

TEST_F(StepRunnerTest, AStepThatFitsNoMessageLeavesNothing) {
  const std::string operand = AddArray(Descriptor(), "");
  // Staged before its size is known: five literals of a mebibyte.
  std::vector<StepOperand> operands(
      5, {.value = Literal{
              .dtype = Dtype::kF32, .shape = {1 << 18}, .bytes = std::string(1 << 20, '\0')}});
  operands.push_back(Donated(operand));
  EXPECT_THAT(Refusal(Call(operands, CollectiveKind::kAllReduce)),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded));
  EXPECT_EQ(CountOf("failed"), 1);
  ExpectNothingLeft(operand);
}

TEST_F(StepRunnerTest, AStepThatDoesNotFitIntoAWorkersMemoryIsRefusedAndLeavesNothing) {
  ArrayDescriptor large = Descriptor();
  large.shape = {int64_t{1} << 18};  // a mebibyte: all that a worker has, with half on each
  const std::string operand = AddArray(large, "");
  Beat(1 << 19);
  const absl::Status refused = Refusal(Call({Donated(operand)}));  // each gathers all of it
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_THAT(refused, test::CarriesFacts(Reason::kMemoryLimit, {{fact::kHave, 1 << 19},
                                                                 {fact::kNeed, 1 << 20},
                                                                 {fact::kRank, "0,1"},
                                                                 {fact::kIdentity, "w0,w1"}}));
  ExpectNothingLeft(operand);
}

TEST_F(StepRunnerTest, AStepThatTheSequencerRefusesLeavesNothing) {
  const std::string operand = AddArray(Descriptor(), "");
  sequencer_->WorkerLost("w1", 3, "it was killed");
  EXPECT_THAT(Refusal(Call({Donated(operand)})),
              StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
  ExpectNothingLeft(operand);
}

TEST_F(StepRunnerTest, AStepThatMayRunAgainAsItIsRecovers) {
  for (const char* identity : {"w0", "w1"}) {
    ASSERT_THAT(members_.Attach({.identity = identity,
                                 .incarnation = 1,
                                 .build_version = "1",
                                 .endpoints = {"127.0.0.1:1"},
                                 .host = "host",
                                 .capacity_bytes = 1 << 20,
                                 .durable = true}),
                IsOk());
  }
  sequencer_->WorkerLost("w1", 3, "it was killed");
  const Literal literal{.dtype = Dtype::kF32, .shape = {4}, .bytes = "0123456789abcdef"};
  StepCall call = Call({{.value = literal}}, CollectiveKind::kReduceScatter);
  call.operands.mesh_id = "m";
  const absl::Status refused = Refusal(std::move(call));
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kUnavailable, Reason::kRecovering));
  EXPECT_THAT(refused,
              test::CarriesFacts(Reason::kRecovering, {{fact::kRank, 1},
                                                       {fact::kIdentity, "w1"},
                                                       {fact::kOp, "collective of a literal"}}));
  EXPECT_TRUE(RetryDelayOf(refused).has_value());
  // A donated operand may be gone, so it is not the same step any more.
  EXPECT_THAT(Refusal(Call({Donated(AddArray(Descriptor(), ""))})),
              StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
}

TEST_F(StepRunnerTest, ACommitThatIsRefusedLeavesNothing) {
  AddArray(Descriptor(), "w");
  StepCall call = Call({Named("w")});
  call.outputs.names = {"w"};
  call.outputs.expected_versions = {0};  // there must be no such name
  const std::unique_ptr<Ended> ended = Start(std::move(call));
  EXPECT_THAT(Finish(*ended), StatusIs(absl::StatusCode::kAborted, Reason::kVersionMismatch));
  EXPECT_EQ(registry_->CountArrays().total(), 1);
  EXPECT_EQ(PinnedBySession(), 0);
}

TEST_F(StepRunnerTest, ACancelledStepLeavesNothing) {
  const std::string operand = AddArray(Descriptor(), "");
  const std::unique_ptr<Ended> ended = Start(Call({Donated(operand)}));
  ASSERT_TRUE(ticket_.has_value());
  steps_.Cancel(*ticket_);
  EXPECT_THAT(Wait(*ended), StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
  EXPECT_EQ(CountOf("cancelled"), 1);
  ExpectNothingLeft(operand);
}

TEST_F(StepRunnerTest, AStepThatIsCancelledBeforeItHasATicketEnds) {
  AddArray(Descriptor(), "w");
  PendingStep pending;
  EXPECT_FALSE(pending.is_cancelled());
  pending.Cancel(&steps_);
  EXPECT_TRUE(pending.is_cancelled());
  const std::unique_ptr<Ended> ended = Start(Call({Named("w")}));
  ASSERT_TRUE(ticket_.has_value());
  EXPECT_FALSE(ended->done.HasBeenNotified());
  pending.Submitted(&steps_, ticket_);
  EXPECT_THAT(Wait(*ended), StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
}

TEST_F(StepRunnerTest, AStepEndsWhenItsTimeIsOver) {
  const std::string operand = AddArray(Descriptor(), "");
  StepCall call = Call({Donated(operand)});
  call.timeout = absl::Seconds(5);
  const std::unique_ptr<Ended> ended = Start(std::move(call));
  clock_.Advance(absl::Seconds(4));
  EXPECT_FALSE(ended->done.HasBeenNotified());
  clock_.Advance(absl::Seconds(1));
  EXPECT_THAT(Wait(*ended), StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
  ExpectNothingLeft(operand);
}

TEST_F(StepRunnerTest, ARepeatedRequestGetsTheFirstOnesAnswer) {
  AddArray(Descriptor(), "w");
  const std::unique_ptr<Ended> first = Start(Call({Named("w")}));
  const std::unique_ptr<Ended> early = Start(Call({Named("w")}));
  EXPECT_THAT(Wait(*early), StatusIs(absl::StatusCode::kAborted));
  const StepAnswer answer = Finish(*first);
  ASSERT_THAT(answer, IsOk());
  const std::unique_ptr<Ended> again = Start(Call({Named("w")}));
  EXPECT_FALSE(ticket_.has_value());
  const StepAnswer repeated = Wait(*again);
  ASSERT_THAT(repeated, IsOk());
  EXPECT_EQ(repeated->SerializeAsString(), answer->SerializeAsString());
  EXPECT_EQ(transport_.started(), 1);

  StepCall other = Call({Named("w")});
  other.fingerprint = "g";
  EXPECT_THAT(Wait(*Start(other)),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kRequestIdReused));
  // Ids are told apart by method.
  other.method = "Linear";
  const std::unique_ptr<Ended> second = Start(other);
  EXPECT_THAT(Finish(*second), IsOk());
}

TEST_F(StepRunnerTest, StepsOfOnePlanShareItsBytes) {
  AddArray(Descriptor(), "w");
  const std::unique_ptr<Ended> first = Start(Call({Named("w")}));
  const EncodedStepPtr one = transport_.message();
  EXPECT_THAT(Finish(*first), IsOk());
  StepCall again = Call({Named("w")});
  again.request_id = "again";
  const std::unique_ptr<Ended> second = Start(std::move(again));
  const EncodedStepPtr other = transport_.message();
  EXPECT_THAT(Finish(*second), IsOk());
  EXPECT_EQ(Told().plan(), "") << "the transport adds it";
  EXPECT_NE(one, other);
  EXPECT_EQ(one->plan, other->plan);
  EXPECT_EQ(Sha256(*one->plan), one->plan_hash);
}

TEST_F(StepRunnerTest, ARequestThatFailedMayBeMadeAgain) {
  AddArray(Descriptor(), "w");
  const std::unique_ptr<Ended> first = Start(Call({Named("w")}));
  EXPECT_THAT(Fail(*first), StatusIs(absl::StatusCode::kInternal));
  const std::unique_ptr<Ended> second = Start(Call({Named("w")}));
  EXPECT_THAT(Finish(*second), IsOk());
}

TEST_F(StepRunnerTest, LiteralsGoToTheWorkersAndComeBackWhole) {
  Literal literal{.dtype = Dtype::kF32, .shape = {4}, .bytes = "0123456789abcdef"};
  StepCall call = Call({{.value = literal}}, CollectiveKind::kReduceScatter);
  call.operands.mesh_id = "m";
  call.outputs.return_literals = true;
  const std::unique_ptr<Ended> ended = Start(std::move(call));
  EXPECT_EQ(transport_.work().op, "collective of a literal");
  EXPECT_EQ(Told().operands(0).literal().data(), literal.bytes);
  EXPECT_TRUE(Told().return_literals());
  EXPECT_THAT(Report(0, "AAAABBBB"), IsOk());
  EXPECT_THAT(Report(1, "CCCCDDDD"), IsOk());
  const StepAnswer answer = Wait(*ended);
  ASSERT_THAT(answer, IsOk());
  EXPECT_EQ(answer->outputs(0).literal().data(), "AAAABBBBCCCCDDDD");
}

TEST_F(StepRunnerTest, ATimelineIsRecordedOnlyIfItIsAskedFor) {
  Literal literal{.dtype = Dtype::kF32, .shape = {4}, .bytes = "0123456789abcdef"};
  for (const bool return_trace : {false, true}) {
    StepCall call = Call({{.value = literal}}, CollectiveKind::kReduceScatter);
    call.request_id = StrCat("traced ", return_trace);
    call.operands.mesh_id = "m";
    call.outputs.return_trace = return_trace;
    const std::unique_ptr<Ended> ended = Start(std::move(call));
    EXPECT_EQ(Told().max_trace_spans(), return_trace ? kMaxRankSpans : 0);
    const StepAnswer answer = Finish(*ended);
    ASSERT_THAT(answer, IsOk());
    EXPECT_EQ(answer->timings().has_trace(), return_trace);
    if (!return_trace) continue;
    const v1::StepTrace& trace = answer->timings().trace();
    EXPECT_GE(trace.labels_size(), 1) << "of the plan's instructions";
    ASSERT_EQ(trace.ranks_size(), 2);
    EXPECT_EQ(trace.ranks(1).rank(), 1);
    EXPECT_EQ(trace.ranks(1).spans_size(), 1);
  }
}

// Arrays of callers would keep the coordinator from deleting these meshes.
TEST_F(StepRunnerTest, RefusesAnAuxiliaryMeshForItsResults) {
  for (const std::string name : {"m.replicas-0123456789ab", "m.resize-0123456789ab"}) {
    DefineMesh(definition_store_.get(), name, mesh_);
    ASSERT_THAT(members_.AddMesh(name, 2, {"w1", "w0"}), IsOk());
    StepCall call =
        Call({{.value = Literal{.dtype = Dtype::kF32, .shape = {4}, .bytes = "0123456789abcdef"}}},
             CollectiveKind::kReduceScatter);
    call.operands.mesh_id = name;
    const absl::Status refused = Refusal(std::move(call));
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
    EXPECT_THAT(refused.ToString(), HasSubstr("mesh_id"));
    EXPECT_THAT(refused.ToString(), HasSubstr("\"m\"")) << "which mesh to name instead";
  }
}

TEST_F(StepRunnerTest, ResultsThatCannotBeReturnedAreRefused) {
  AddArray(Descriptor(), "w");
  StepCall call = Call({Named("w")});
  call.outputs.names = {"y", "z"};
  EXPECT_THAT(Refusal(call), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  call.outputs.names = {std::string("a\nb")};
  EXPECT_THAT(Refusal(call), StatusIs(absl::StatusCode::kInvalidArgument));
  // A reduction to one place leaves a partial sum.
  call = Call({Named("w")}, CollectiveKind::kReduce);
  call.outputs.return_literals = true;
  EXPECT_THAT(Refusal(call), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
}

TEST_F(StepRunnerTest, TheFirstCandidateIsThePlanThatRuns) {
  ArrayDescriptor square = Descriptor();
  square.shape = {512, 512};
  square.spec = PartitionSpec();
  AddArray(square, "w");
  const Program program = {
      .operand_count = 2,
      .ops = {MatmulOp{.lhs = 0, .rhs = 1}, ReshardOp{.input = 2, .spec = PartitionSpec()}},
      .outputs = {3}};
  const auto compile = [&](double flops_per_second) {
    for (const char* identity : {"w0", "w1"}) {
      EXPECT_THAT(members_.Attach({.identity = identity,
                                   .incarnation = 1,
                                   .build_version = "1",
                                   .endpoints = {"127.0.0.1:1"},
                                   .host = "host",
                                   .capacity_bytes = 1 << 20,
                                   .kernels = {.f32_flops_per_second = flops_per_second}}),
                  IsOk());
    }
    auto compiled = steps_.Compile(caller_, program, {.operands = {Named("w"), Named("w")}},
                                   /*candidates=*/64);
    EXPECT_THAT(compiled, IsOk());
    return *compiled;
  };
  // A rate at which a product of parts is the fastest, and one at which a whole product is.
  constexpr double kSlow = 3.5e11;
  const StepRunner::CompiledPlan slow = compile(kSlow);
  EXPECT_EQ(slow.prepared->kernels.flops_per_second, kSlow);
  EXPECT_EQ(slow.candidates.front().plan, slow.prepared->plan);
  EXPECT_GT(slow.prepared->plan.cost.sent_bytes, 0);
  const StepRunner::CompiledPlan fast = compile(1.4 * kSlow);
  EXPECT_EQ(fast.prepared, slow.prepared) << "a plan is kept while its rates are alike";
  EXPECT_EQ(fast.candidates.front().plan, fast.prepared->plan);
  EXPECT_EQ(fast.candidates.front().seconds, slow.candidates.front().seconds);
  Planner fresh;
  EXPECT_EQ((*fresh.Prepare("ada", program,
                            {fast.prepared->plan.values[0], fast.prepared->plan.values[1]},
                            {.mesh_id = "m",
                             .mesh_revision = 1,
                             .mesh = mesh_,
                             .kernels = {.flops_per_second = 1.4 * kSlow}}))
                ->plan.cost.sent_bytes,
            0);
}

TEST_F(StepRunnerTest, LongProgramsOnLargeMeshesArePlannedInTheBackground) {
  DefineMesh(definition_store_.get(), "large", *Mesh::Parse("x=64,y=64"));
  const auto program_of = [](size_t ops) {
    Program program = Each(1, CollectiveKind::kAllReduce);
    program.ops.resize(ops, program.ops.front());
    return program;
  };
  const StepOperands literal = {.operands = {{.value = Literal{}}}, .mesh_id = "large"};
  EXPECT_FALSE(steps_.PlansLong(program_of(2), literal));
  EXPECT_TRUE(steps_.PlansLong(program_of(3), literal));
  Program join = program_of(1);
  join.ops = {TensorOp(ConcatenateOp{.inputs = {0, 0, 0, 0}})};
  EXPECT_FALSE(steps_.PlansLong(join, literal));
  join.ops = {TensorOp(ConcatenateOp{.inputs = std::vector<ValueIndex>(8, 0)})};
  EXPECT_TRUE(steps_.PlansLong(join, literal)) << "its inputs count, too";
  StepCall call = Call({Named("w")});
  call.work = program_of(3);
  AddArray(Descriptor(), "w");
  EXPECT_FALSE(steps_.PlansLong(call));
  call.operands.mesh_id = "large";
  EXPECT_FALSE(steps_.PlansLong(call)) << "its array lies on another mesh";
  call.work = PlanHash{"hash"};
  EXPECT_FALSE(steps_.PlansLong(call)) << "it is planned already";
  EXPECT_FALSE(steps_.PlansLong(program_of(3), {.operands = {Named("missing")}}));
}

TEST_F(StepRunnerTest, BatchesAreNotCompiledForAWorkerThatDoesNotMultiplyThem) {
  ArrayDescriptor batch = Descriptor();
  batch.shape = {2, 4, 4};
  AddArray(batch, "batch");
  const Program program = {
      .operand_count = 2, .ops = {MatmulOp{.lhs = 0, .rhs = 1}}, .outputs = {2}};
  const auto compile = [&] {
    return steps_
        .Compile(caller_, program, {.operands = {Named("batch"), Named("batch")}},
                 /*candidates=*/0)
        .status();
  };
  EXPECT_THAT(compile(), StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNotAvailable));
  endpoints_.ready = absl::FailedPreconditionError("the mesh lacks a worker");
  EXPECT_THAT(compile(), IsOk()) << "the missing worker may be the older one";
}

TEST_F(StepRunnerTest, ACompiledPlanRunsByItsHash) {
  AddArray(Descriptor(), "w");
  ArrayDescriptor whole = Descriptor();
  whole.spec = PartitionSpec();
  AddArray(whole, "v");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const StepRunner::CompiledPlan plan,
      steps_.Compile(caller_, Each(1, CollectiveKind::kAllGather), {.operands = {Named("w")}},
                     /*candidates=*/0));
  StepCall call = Call({Named("v")});
  call.work = PlanHash{plan.prepared->hash};
  EXPECT_THAT(Refusal(call), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  call.operands = {.operands = {Named("w")}};
  const std::unique_ptr<Ended> ended = Start(call);
  EXPECT_EQ(transport_.work().op, "program of \"w\"");
  const StepAnswer answer = Finish(*ended);
  ASSERT_THAT(answer, IsOk());
  EXPECT_EQ(answer->plan_hash(), plan.prepared->hash);
}

}  // namespace
}  // namespace shardmesh::server
