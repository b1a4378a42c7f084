// Codec of steps: the programs of short calls, the fields of a call, the paths of bad fields, and
// the summary of a plan.
#include "server/codec/compute_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/plan_codec.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "tests/testing/sharding_printers.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::CarriesFacts;
using ::shardmesh::test::IsOk;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::kInvalid;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

v1::Operand ArrayOperand(const std::string& name) {
  v1::Operand operand;
  operand.mutable_array()->set_name(name);
  return operand;
}

v1::Operand LiteralOperand(const Literal& literal) {
  v1::Operand operand;
  rpc::Encode(literal, operand.mutable_literal());
  return operand;
}

// With all fields that short calls have beside their op.
template <typename Request>
Request ShortCall() {
  Request request;
  request.set_request_id("r1");
  request.set_session_id("s1");
  request.mutable_output()->add_names("y");
  request.mutable_output()->set_return_literals(true);
  rpc::Encode(absl::Seconds(9), request.mutable_timeout());
  return request;
}

// An Execute of the same fields, with a program of one op over all operands.
void ExpectIsStepOf(const v1::ExecuteRequest& step, const std::vector<std::string>& operands) {
  EXPECT_EQ(step.request_id(), "r1");
  EXPECT_EQ(step.session_id(), "s1");
  EXPECT_THAT(step.output().names(), ElementsAre("y"));
  EXPECT_TRUE(step.output().return_literals());
  EXPECT_THAT(rpc::Decode(step.timeout()), IsOkAndHolds(absl::Seconds(9)));
  EXPECT_EQ(step.mesh_id(), "");
  std::vector<std::string> names;
  for (const v1::Operand& operand : step.operands()) names.push_back(operand.array().name());
  EXPECT_EQ(names, operands);
  EXPECT_EQ(step.program().operand_count(), operands.size());
  EXPECT_EQ(step.program().ops_size(), 1);
  EXPECT_THAT(step.program().outputs(), ElementsAre(operands.size()));
  EXPECT_THAT(Decode(step), IsOk());
}

TEST(AsExecuteTest, ALinearLayerIsAProgramOfOneOp) {
  auto request = ShortCall<v1::LinearRequest>();
  *request.mutable_input() = ArrayOperand("x");
  request.mutable_input()->set_donate(true);
  *request.mutable_weight() = ArrayOperand("w");
  const v1::ExecuteRequest plain = AsExecute(request);
  ExpectIsStepOf(plain, {"x", "w"});
  EXPECT_TRUE(plain.operands(0).donate());
  EXPECT_FALSE(plain.operands(1).donate());
  EXPECT_FALSE(plain.program().ops(0).linear().has_bias());
  EXPECT_FALSE(plain.program().ops(0).linear().has_scale());

  *request.mutable_bias() = ArrayOperand("b");
  request.set_weight_layout(v1::WEIGHT_LAYOUT_IN_OUT);
  request.set_activation(v1::ACTIVATION_SILU);
  request.set_scale(0);  // set, and not the default
  const v1::ExecuteRequest full = AsExecute(request);
  ExpectIsStepOf(full, {"x", "w", "b"});
  const auto program = rpc::Decode(full.program());
  ASSERT_THAT(program, IsOk());
  EXPECT_EQ(std::get<LinearOp>(program->ops[0]),
            (LinearOp{0, 1, 2, WeightLayout::kInOut, Activation::kSilu, 0.0f}));

  *request.mutable_scales() = ArrayOperand("s");
  const v1::ExecuteRequest scaled = AsExecute(request);
  ExpectIsStepOf(scaled, {"x", "w", "b", "s"});
  EXPECT_EQ(scaled.program().ops(0).linear().scales(), 3u);
  request.clear_bias();
  ExpectIsStepOf(AsExecute(request), {"x", "w", "s"});
  EXPECT_EQ(AsExecute(request).program().ops(0).linear().scales(), 2u);
}

TEST(AsExecuteTest, AProductIsAProgramOfOneOp) {
  for (const auto& [transpose_lhs, transpose_rhs] :
       {std::pair(false, true), std::pair(true, false)}) {
    auto request = ShortCall<v1::MatmulRequest>();
    *request.mutable_lhs() = ArrayOperand("a");
    *request.mutable_rhs() = ArrayOperand("b");
    request.set_transpose_lhs(transpose_lhs);
    request.set_transpose_rhs(transpose_rhs);
    const v1::ExecuteRequest step = AsExecute(request);
    ExpectIsStepOf(step, {"a", "b"});
    const auto program = rpc::Decode(step.program());
    ASSERT_THAT(program, IsOk());
    EXPECT_EQ(std::get<MatmulOp>(program->ops[0]), (MatmulOp{0, 1, transpose_lhs, transpose_rhs}));
  }
}

// A field that is set to 0 is not one that is unset: kinds that have no such field refuse it.
TEST(AsExecuteTest, ACollectiveIsAProgramOfOneOpWithTheFieldsThatAreSet) {
  auto request = ShortCall<v1::CollectiveRequest>();
  *request.mutable_input() = ArrayOperand("x");
  request.set_kind(v1::COLLECTIVE_KIND_BARRIER);
  request.add_axes("tp");
  const v1::ExecuteRequest plain = AsExecute(request);
  ExpectIsStepOf(plain, {"x"});
  const v1::CollectiveOp& unset = plain.program().ops(0).collective();
  EXPECT_FALSE(unset.has_dimension() || unset.has_root() || unset.has_split_dimension());

  request.set_kind(v1::COLLECTIVE_KIND_ALL_TO_ALL);
  request.add_axes("dp");
  request.set_dimension(0);
  request.set_split_dimension(1);
  request.set_reduction(v1::REDUCTION_MAX);
  request.set_algorithm(v1::COLLECTIVE_ALGORITHM_PAIRWISE);
  request.set_order(v1::COLLECTIVE_ORDER_FASTEST);
  request.add_counts(3);
  request.add_counts(5);
  const v1::ExecuteRequest exchange = AsExecute(request);
  ExpectIsStepOf(exchange, {"x"});
  const auto program = rpc::Decode(exchange.program());
  ASSERT_THAT(program, IsOk());
  EXPECT_EQ(std::get<CollectiveOp>(program->ops[0]),
            (CollectiveOp{.input = 0,
                          .kind = CollectiveKind::kAllToAll,
                          .axes = {"tp", "dp"},
                          .dimension = 0,
                          .reduction = Reduction::kMax,
                          .split_dimension = 1,
                          .counts = {3, 5},
                          .algorithm = CollectiveAlgorithm::kPairwise,
                          .order = CollectiveOrder::kFastest}));

  request.set_root(0);
  v1::PermutePair* const pair = request.add_permutation();
  pair->set_source(1);
  const v1::ExecuteRequest odd = AsExecute(request);
  EXPECT_TRUE(odd.program().ops(0).collective().has_root());
  EXPECT_EQ(odd.program().ops(0).collective().permutation(0).source(), 1);
  EXPECT_THAT(Decode(odd),
              CarriesFacts(Reason::kBadField, {{fact::kField, "program.ops[0].collective.root"}}));
}

TEST(AsExecuteTest, ACallWithoutATimeoutIsAStepWithoutOne) {
  v1::MatmulRequest request;
  *request.mutable_lhs() = ArrayOperand("a");
  *request.mutable_rhs() = ArrayOperand("b");
  const v1::ExecuteRequest step = AsExecute(request);
  EXPECT_FALSE(step.has_timeout());
  const auto call = Decode(step);
  ASSERT_THAT(call, IsOk());
  EXPECT_EQ(call->timeout, std::nullopt);
}

TEST(AsExecuteTest, AnOperandThatIsMissingIsRefusedByItsPlace) {
  v1::MatmulRequest request;
  *request.mutable_lhs() = ArrayOperand("a");
  EXPECT_THAT(Decode(AsExecute(request)),
              CarriesFacts(Reason::kBadField, {{fact::kField, "operands[1].operand"}}));
  EXPECT_THAT(Decode(AsExecute(v1::LinearRequest())),
              CarriesFacts(Reason::kBadField, {{fact::kField, "operands[0].operand"}}));
}

// The product of an array and a literal, with all fields.
v1::ExecuteRequest GoodExecute() {
  v1::ExecuteRequest request;
  request.set_request_id("r1");
  request.set_session_id("s1");
  request.set_mesh_id("m");
  rpc::Encode(Program{.operand_count = 2, .ops = {MatmulOp{0, 1}}, .outputs = {2}},
              request.mutable_program());
  *request.add_operands() = ArrayOperand("x");
  request.mutable_operands(0)->mutable_array()->set_version(3);
  *request.add_operands() = LiteralOperand({Dtype::kU8, {2, 2}, "abcd"});
  request.mutable_operands(1)->set_donate(true);
  v1::OutputOptions* const output = request.mutable_output();
  output->add_names("y");
  output->add_names("");
  output->add_preconditions()->set_version(4);
  output->add_preconditions()->set_must_not_exist(true);
  output->add_preconditions();
  output->set_return_literals(true);
  output->add_layouts();
  rpc::Encode(PartitionSpec({SpecEntry::Axis("tp")}), output->add_layouts()->mutable_output_spec());
  rpc::Encode(PartitionSpec(), output->add_layouts()->mutable_output_spec());
  rpc::Encode(absl::Milliseconds(1500), request.mutable_timeout());
  return request;
}

TEST(DecodeExecuteTest, TakesEveryField) {
  const auto call = Decode(GoodExecute());
  ASSERT_THAT(call, IsOk());
  EXPECT_EQ(call->request_id, "r1");
  EXPECT_EQ(call->session_id, "s1");
  EXPECT_EQ(call->timeout, absl::Milliseconds(1500));
  EXPECT_EQ(std::get<Program>(call->work),
            (Program{.operand_count = 2, .ops = {MatmulOp{0, 1}}, .outputs = {2}}));
  EXPECT_EQ(call->operands.mesh_id, "m");
  ASSERT_EQ(call->operands.operands.size(), 2u);
  const auto& array = std::get<ArrayReference>(call->operands.operands[0].value);
  EXPECT_EQ(array.name, "x");
  EXPECT_EQ(array.version, 3);
  EXPECT_EQ(array.array_id, "");
  EXPECT_FALSE(call->operands.operands[0].donate);
  EXPECT_EQ(std::get<Literal>(call->operands.operands[1].value),
            (Literal{Dtype::kU8, {2, 2}, "abcd"}));
  EXPECT_TRUE(call->operands.operands[1].donate);
  EXPECT_THAT(call->outputs.names, ElementsAre("y", ""));
  EXPECT_TRUE(call->outputs.return_literals);
  EXPECT_THAT(call->outputs.expected_versions,
              ElementsAre(std::optional<int64_t>(4), std::optional<int64_t>(0), std::nullopt));
  ASSERT_EQ(call->outputs.specs.size(), 3u);
  EXPECT_EQ(call->outputs.specs[0], std::nullopt);
  EXPECT_EQ(call->outputs.specs[1], PartitionSpec({SpecEntry::Axis("tp")}));
  EXPECT_EQ(call->outputs.specs[2], PartitionSpec()) << "P() is a layout";
}

TEST(DecodeExecuteTest, LeavesOutWhatIsUnset) {
  v1::ExecuteRequest request;
  request.set_plan_hash("hash");
  const auto call = Decode(request);
  ASSERT_THAT(call, IsOk());
  EXPECT_EQ(std::get<PlanHash>(call->work).bytes, "hash");
  EXPECT_EQ(call->timeout, std::nullopt);
  EXPECT_THAT(call->operands.operands, IsEmpty());
  EXPECT_EQ(call->operands.mesh_id, "");
  EXPECT_THAT(call->outputs.names, IsEmpty());
  EXPECT_THAT(call->outputs.expected_versions, IsEmpty());
  EXPECT_THAT(call->outputs.specs, IsEmpty());
  EXPECT_FALSE(call->outputs.return_literals);
}

TEST(DecodeExecuteTest, AnotherRequestHasAnotherFingerprint) {
  const std::string fingerprint = Decode(GoodExecute())->fingerprint;
  EXPECT_EQ(fingerprint.size(), 32u);
  EXPECT_EQ(Decode(GoodExecute())->fingerprint, fingerprint);
  v1::ExecuteRequest other = GoodExecute();
  other.mutable_operands(0)->set_donate(true);
  EXPECT_NE(Decode(other)->fingerprint, fingerprint);
  other = GoodExecute();
  other.mutable_output()->set_names(1, "z");
  EXPECT_NE(Decode(other)->fingerprint, fingerprint);
}

struct BadExecute {
  std::string field;  // its path
  Reason reason;
  std::function<void(v1::ExecuteRequest*)> change;
};

TEST(DecodeExecuteTest, NamesTheFieldAtFault) {
  const BadExecute cases[] = {
      {"work", Reason::kBadField, [](auto* request) { request->clear_work(); }},
      {"operands[1].operand", Reason::kBadField,
       [](auto* request) { request->mutable_operands(1)->clear_operand(); }},
      {"operands[0].array", Reason::kBadField,
       [](auto* request) { request->mutable_operands(0)->mutable_array()->clear_array(); }},
      {"operands[0].array", Reason::kBadField,
       [](auto* request) { request->mutable_operands(0)->mutable_array()->set_name(""); }},
      {"operands[0].array.version", Reason::kBadField,
       [](auto* request) { request->mutable_operands(0)->mutable_array()->set_version(0); }},
      {"operands[1].literal.dtype", Reason::kUnknownDtype,
       [](auto* request) { request->mutable_operands(1)->mutable_literal()->clear_dtype(); }},
      {"operands[1].literal.dtype", Reason::kUnknownDtype,
       [](auto* request) {
         request->mutable_operands(1)->mutable_literal()->set_dtype(static_cast<v1::Dtype>(63));
       }},
      {"operands[1].literal.data", Reason::kBadField,
       [](auto* request) { request->mutable_operands(1)->mutable_literal()->clear_data(); }},
      {"operands[1].literal.data", Reason::kLimitExceeded,
       [](auto* request) {
         rpc::Encode(Literal{Dtype::kU8,
                             {kMaxLiteralBytes + 1},
                             std::string(static_cast<size_t>(kMaxLiteralBytes) + 1, 'x')},
                     request->mutable_operands(1)->mutable_literal());
       }},
      {"output.preconditions[0].version", Reason::kBadField,
       [](auto* request) { request->mutable_output()->mutable_preconditions(0)->set_version(0); }},
      {"output.preconditions[1].must_not_exist", Reason::kBadField,
       [](auto* request) {
         request->mutable_output()->mutable_preconditions(1)->set_must_not_exist(false);
       }},
      {"timeout.nanos", Reason::kBadField,
       [](auto* request) { request->mutable_timeout()->set_nanos(-1); }},
      {"timeout.seconds", Reason::kBadField,
       [](auto* request) { request->mutable_timeout()->set_seconds(315'576'000'001); }},
      {"output.layouts[1].output_spec.dimensions", Reason::kLimitExceeded,
       [](auto* request) {
         v1::PartitionSpec* const spec =
             request->mutable_output()->mutable_layouts(1)->mutable_output_spec();
         while (spec->dimensions_size() < 17) spec->add_dimensions();
       }},
      {"program.outputs[0]", Reason::kBadField,
       [](auto* request) { request->mutable_program()->set_outputs(0, 3); }},
      {"program.ops[0].op", Reason::kBadField,
       [](auto* request) { request->mutable_program()->mutable_ops(0)->clear_op(); }},
  };
  for (const BadExecute& each : cases) {
    SCOPED_TRACE(each.field);
    v1::ExecuteRequest request = GoodExecute();
    each.change(&request);
    const absl::Status status = Decode(request).status();
    EXPECT_THAT(status, StatusIs(kInvalid, each.reason));
    const auto violations = rpc::FieldViolationsOf(status);
    ASSERT_EQ(violations.size(), 1u);
    EXPECT_EQ(violations[0].field, each.field);
  }
}

TEST(DecodeExecuteTest, ALiteralOfTheLargestSizeIsTaken) {
  v1::ExecuteRequest request = GoodExecute();
  const Literal largest{
      Dtype::kU8, {kMaxLiteralBytes}, std::string(static_cast<size_t>(kMaxLiteralBytes), 'x')};
  *request.mutable_operands(1) = LiteralOperand(largest);
  const auto call = Decode(request);
  ASSERT_THAT(call, IsOk());
  EXPECT_TRUE(std::get<Literal>(call->operands.operands[1].value) == largest);
}

TEST(DecodeOperandsTest, OperandsOfACompileAreThoseOfAnExecute) {
  const v1::ExecuteRequest execute = GoodExecute();
  v1::CompileRequest request;
  *request.mutable_operands() = execute.operands();
  request.set_mesh_id("m");
  const auto operands = DecodeOperands(request);
  ASSERT_THAT(operands, IsOk());
  EXPECT_EQ(operands->mesh_id, "m");
  ASSERT_EQ(operands->operands.size(), 2u);
  EXPECT_EQ(std::get<ArrayReference>(operands->operands[0].value).name, "x");
  EXPECT_TRUE(operands->operands[1].donate);
  request.add_operands();
  EXPECT_THAT(DecodeOperands(request),
              CarriesFacts(Reason::kBadField, {{fact::kField, "operands[2].operand"}}));
}

TEST(EncodePlanTest, TellsTheInstructionsInOrderAndTheExchangeOfCollectives) {
  PreparedPlan prepared;
  prepared.hash = std::string("\0\xff", 2);
  prepared.plan.cost = {.flops = 1, .sent_bytes = 2, .memory_bytes = 3};
  prepared.plan.values.assign(3, ValueDescriptor{.shape = {2, 2}, .spec = {}});
  prepared.plan.instructions.push_back(
      {.output = 1, .kind = LocalMatmul{}, .label = "op 0 (matmul): product"});
  prepared.plan.instructions.push_back(
      {.output = 2,
       .kind = GroupCollective{.kind = CollectiveKind::kAllReduce,
                               .axes = {"tp", "dp"},
                               .algorithm = CollectiveAlgorithm::kHalving},
       .label = "op 0 (matmul): all-reduce over tp, dp"});
  v1::CompileResponse response;
  Encode(prepared, &response);
  EXPECT_EQ(response.plan_hash(), prepared.hash);
  EXPECT_EQ(response.cost().flops(), 1);
  EXPECT_EQ(response.cost().sent_bytes(), 2);
  EXPECT_EQ(response.cost().memory_bytes(), 3);
  ASSERT_EQ(response.instructions_size(), 2);
  EXPECT_EQ(response.instructions(0).label(), "op 0 (matmul): product");
  EXPECT_EQ(response.instructions(0).collective(), v1::COLLECTIVE_KIND_UNSPECIFIED);
  EXPECT_EQ(response.instructions(0).algorithm(), v1::COLLECTIVE_ALGORITHM_UNSPECIFIED);
  EXPECT_THAT(response.instructions(0).axes(), IsEmpty());
  EXPECT_EQ(response.instructions(1).label(), "op 0 (matmul): all-reduce over tp, dp");
  EXPECT_EQ(response.instructions(1).collective(), v1::COLLECTIVE_KIND_ALL_REDUCE);
  EXPECT_EQ(response.instructions(1).algorithm(), v1::COLLECTIVE_ALGORITHM_HALVING);
  EXPECT_THAT(response.instructions(1).axes(), ElementsAre("tp", "dp"));
}

TEST(DecodeCandidatesTest, TakesANumberUpToTheLimit) {
  v1::CompileRequest request;
  EXPECT_THAT(DecodeCandidates(request), IsOkAndHolds(0u));
  request.set_candidates(kMostPlanCandidates);
  EXPECT_THAT(DecodeCandidates(request), IsOkAndHolds(static_cast<size_t>(kMostPlanCandidates)));
  request.set_candidates(kMostPlanCandidates + 1);
  EXPECT_EQ(ReasonOf(DecodeCandidates(request).status()), Reason::kLimitExceeded);
  request.set_candidates(-1);
  EXPECT_THAT(DecodeCandidates(request),
              CarriesFacts(Reason::kBadField, {{fact::kField, "candidates"}}));
}

TEST(EncodePlanTest, ACandidateHasItsTimeInKernelsAndInExchanges) {
  const PlanTarget target = {.mesh_id = "m", .mesh_revision = 1, .mesh = *Mesh::Parse("tp=2")};
  const auto along = [](std::vector<AxisName> rows, std::vector<AxisName> columns) {
    return ValueDescriptor{.shape = {64, 64},
                           .spec = PartitionSpec({SpecEntry::Axes(std::move(rows)),
                                                  SpecEntry::Axes(std::move(columns))})};
  };
  const auto candidates = PlanCandidates(
      Program{.operand_count = 2, .ops = {MatmulOp{.lhs = 0, .rhs = 1}}, .outputs = {2}},
      {along({}, {"tp"}), along({"tp"}, {})}, target, 1);
  ASSERT_THAT(candidates, IsOk());
  v1::PlanCandidate encoded;
  Encode(candidates->front(), target.kernels, &encoded);
  EXPECT_EQ(encoded.roles(), "tp: K");
  ASSERT_EQ(encoded.instructions_size(), 2);
  EXPECT_EQ(encoded.instructions(1).collective(), v1::COLLECTIVE_KIND_ALL_REDUCE);
  EXPECT_GT(encoded.kernel_time().nanos(), 0);
  EXPECT_GT(encoded.exchange_time().nanos(), 0);
  EXPECT_NEAR(encoded.time().nanos(),
              encoded.kernel_time().nanos() + encoded.exchange_time().nanos(), 2);
  EXPECT_EQ(encoded.cost().flops(), candidates->front().plan.cost.flops);
  EXPECT_EQ(encoded.peak_bytes(), 2 * 64 * 64 * 4) << "the partial sums and their sum";
}

TEST(EncodePlanTest, TellsTheAxesAlongWhichRegionsMove) {
  PreparedPlan prepared;
  prepared.plan.mesh = *Mesh::Parse("dp=2,tp=2");
  const auto along = [](std::vector<AxisName> rows, std::vector<AxisName> columns) {
    return ValueDescriptor{.shape = {4, 4},
                           .spec = PartitionSpec({SpecEntry::Axes(std::move(rows)),
                                                  SpecEntry::Axes(std::move(columns))})};
  };
  prepared.plan.values = {along({"tp"}, {}), along({}, {"tp"})};
  prepared.plan.operand_count = 1;
  prepared.plan.instructions.push_back(
      {.output = 1, .kind = MoveRegions{.input = 0}, .label = "op 0 (reshard): move"});
  v1::CompileResponse response;
  Encode(prepared, &response);
  ASSERT_EQ(response.instructions_size(), 1);
  EXPECT_EQ(response.instructions(0).collective(), v1::COLLECTIVE_KIND_UNSPECIFIED);
  EXPECT_THAT(response.instructions(0).axes(), ElementsAre("tp"));
}

TEST(EncodePlanTest, NamesTheCollectiveOfAFusedInstruction) {
  PreparedPlan prepared;
  prepared.plan.mesh = *Mesh::Parse("tp=2");
  prepared.plan.values.resize(3);
  prepared.plan.operand_count = 2;
  prepared.plan.instructions.push_back(
      {.output = 2,
       .kind = GatherMatmul{.gather = {.kind = CollectiveKind::kAllGather,
                                       .axes = {"tp"},
                                       .algorithm = CollectiveAlgorithm::kPairwise}},
       .label = "op 0 (linear): all-gather of dimension 0 over tp, multiplied as it arrives"});
  v1::CompileResponse response;
  Encode(prepared, &response);
  ASSERT_EQ(response.instructions_size(), 1);
  EXPECT_EQ(response.instructions(0).collective(), v1::COLLECTIVE_KIND_ALL_GATHER);
  EXPECT_EQ(response.instructions(0).algorithm(), v1::COLLECTIVE_ALGORITHM_PAIRWISE);
  EXPECT_THAT(response.instructions(0).axes(), ElementsAre("tp"));
}

TEST(EncodePlanTest, TellsTimesOnlyOfMeasuredLinks) {
  const PlanForecast forecast{
      .traffic = {{.axes = {"tp"}, .collectives = 2, .sent_bytes = 100, .seconds = 0.25},
                  {.axes = {"dp", "tp"}, .collectives = 1, .sent_bytes = 7, .seconds = 0}},
      .peak_bytes = 11,
      .exchange_seconds = 0.25};
  for (const bool is_measured : {false, true}) {
    SCOPED_TRACE(is_measured);
    v1::CompileResponse response;
    Encode(forecast, {.links = is_measured, .kernels = is_measured}, &response);
    EXPECT_EQ(response.peak_bytes(), 11);
    ASSERT_EQ(response.traffic_size(), 2);
    EXPECT_THAT(response.traffic(0).axes(), ElementsAre("tp"));
    EXPECT_EQ(response.traffic(0).collectives(), 2);
    EXPECT_EQ(response.traffic(0).sent_bytes(), 100);
    EXPECT_THAT(response.traffic(1).axes(), ElementsAre("dp", "tp"));
    EXPECT_EQ(response.has_exchange_time(), is_measured);
    EXPECT_EQ(response.has_kernel_time(), is_measured);
    EXPECT_EQ(response.traffic(0).has_exchange_time(), is_measured);
    EXPECT_EQ(response.traffic(1).has_exchange_time(), is_measured) << "no time is a time";
    if (!is_measured) continue;
    EXPECT_THAT(rpc::Decode(response.exchange_time()), IsOkAndHolds(absl::Milliseconds(250)));
    EXPECT_THAT(rpc::Decode(response.traffic(0).exchange_time()),
                IsOkAndHolds(absl::Milliseconds(250)));
    EXPECT_THAT(rpc::Decode(response.traffic(1).exchange_time()),
                IsOkAndHolds(absl::ZeroDuration()));
  }
}

TEST(EncodePlanTest, TellsTheBusiestLinksInOrderAndTheSumOfAll) {
  PlanForecast forecast;
  v1::CompileResponse unknown;
  Encode(forecast, MeasuredRates{}, &unknown);
  EXPECT_FALSE(unknown.has_link_traffic());

  forecast.link_traffic =
      LinkTrafficSummary{.busiest = {{.sender = 3, .receiver = 0, .sent_bytes = 64},
                                     {.sender = 0, .receiver = 3, .sent_bytes = 8}},
                         .link_count = 40,
                         .sent_bytes = 100};
  v1::CompileResponse response;
  Encode(forecast, MeasuredRates{}, &response);
  ASSERT_TRUE(response.has_link_traffic());
  const v1::LinkTrafficSummary& links = response.link_traffic();
  EXPECT_EQ(links.link_count(), 40);
  EXPECT_EQ(links.sent_bytes(), 100);
  ASSERT_EQ(links.busiest_links_size(), 2);
  EXPECT_EQ(links.busiest_links(0).sender_rank(), 3);
  EXPECT_EQ(links.busiest_links(0).receiver_rank(), 0);
  EXPECT_EQ(links.busiest_links(0).sent_bytes(), 64);
  EXPECT_EQ(links.busiest_links(1).sender_rank(), 0);
  EXPECT_EQ(links.busiest_links(1).receiver_rank(), 3);
  EXPECT_EQ(links.busiest_links(1).sent_bytes(), 8);

  forecast.link_traffic = LinkTrafficSummary();
  Encode(forecast, MeasuredRates{}, &unknown);
  EXPECT_TRUE(unknown.has_link_traffic()) << "no bytes are known too";
}

// The planner takes both for equally fast, and orders them by their bytes.
TEST(EncodePlanTest, CandidatesThatDifferByLessThanANanosecondHaveEqualTimes) {
  for (const double seconds : {47'857.2e-9, 47'856.9e-9}) {
    PlanCandidate candidate;
    candidate.seconds = seconds;
    v1::PlanCandidate encoded;
    Encode(candidate, KernelRates(), &encoded);
    EXPECT_EQ(encoded.time().nanos(), 47'857);
    EXPECT_EQ(encoded.exchange_time().nanos(), 47'857);
    EXPECT_EQ(encoded.kernel_time().nanos(), 0);
  }
}

TEST(EncodePlanTest, ATimeBeyondTheMessagesRangeIsTheLargest) {
  for (const double seconds : {1e300, std::numeric_limits<double>::infinity()}) {
    PlanForecast forecast;
    forecast.exchange_seconds = seconds;
    v1::CompileResponse response;
    Encode(forecast, {.links = true, .kernels = true}, &response);
    EXPECT_EQ(response.exchange_time().seconds(), 315'576'000'000) << seconds;
    EXPECT_THAT(rpc::Decode(response.exchange_time()), IsOk());
  }
}

v1::LinearRequest LayerRequest() {
  v1::LinearRequest request;
  request.set_request_id("r1");
  request.set_session_id("s1");
  *request.mutable_input() = ArrayOperand("x");
  *request.add_weights() = ArrayOperand("q");
  *request.add_weights() = ArrayOperand("k");
  *request.add_biases() = ArrayOperand("q_bias");
  *request.add_biases() = ArrayOperand("k_bias");
  request.mutable_layer()->set_use_bias(true);
  request.mutable_layer()->set_rule(v1::LINEAR_SCALE_FAN_IN);
  return request;
}

TEST(ComputeCodecTest, ALayerHasItsOperandsByPart) {
  const v1::LinearRequest request = LayerRequest();
  const auto call = Decode(request);
  ASSERT_THAT(call, IsOk());
  std::vector<std::string> names;
  for (const StepOperand& operand : call->operands.operands) {
    names.push_back(std::get<ArrayReference>(operand.value).name);
  }
  EXPECT_THAT(names, ElementsAre("x", "q", "q_bias", "k", "k_bias"));
  ASSERT_TRUE(call->layer.has_value());
  EXPECT_EQ(std::get<std::string>(call->layer->options.layer.scale), "fan_in");
  // Scales follow the bias of their weight.
  v1::LinearRequest scaled = request;
  *scaled.mutable_scales() = ArrayOperand("q_scales");
  *scaled.add_further_scales() = ArrayOperand("k_scales");
  scaled.mutable_layer()->set_use_scales(true);
  const auto scaled_call = Decode(scaled);
  ASSERT_THAT(scaled_call, IsOk());
  names.clear();
  for (const StepOperand& operand : scaled_call->operands.operands) {
    names.push_back(std::get<ArrayReference>(operand.value).name);
  }
  EXPECT_THAT(names, ElementsAre("x", "q", "q_bias", "q_scales", "k", "k_bias", "k_scales"));
  EXPECT_TRUE(scaled_call->layer->options.has_scales);
  // Another layer under the same request id is another request.
  v1::LinearRequest other = request;
  other.mutable_layer()->set_rule(v1::LINEAR_SCALE_FAN_OUT);
  EXPECT_NE(Decode(other)->fingerprint, call->fingerprint);
}

TEST(ComputeCodecTest, RefusesFieldsThatDoNotGoWithALayer) {
  const auto refusal = [](const std::function<void(v1::LinearRequest&)>& change) {
    v1::LinearRequest request = LayerRequest();
    change(request);
    return Decode(request).status();
  };
  const auto is_refused = StatusIs(kInvalid, Reason::kBadField);
  EXPECT_THAT(refusal([](auto& r) { *r.mutable_weight() = ArrayOperand("w"); }), is_refused);
  EXPECT_THAT(refusal([](auto& r) { *r.mutable_bias() = ArrayOperand("b"); }), is_refused);
  EXPECT_THAT(refusal([](auto& r) { *r.mutable_scales() = ArrayOperand("s"); }), is_refused);
  EXPECT_THAT(refusal([](auto& r) { r.mutable_layer()->set_use_scales(true); }), is_refused);
  EXPECT_THAT(refusal([](auto& r) {
                r.mutable_layer()->set_use_scales(true);
                *r.mutable_scales() = ArrayOperand("s");
              }),
              is_refused);
  EXPECT_THAT(refusal([](auto& r) {
                r.mutable_layer()->set_use_scales(true);
                for (int i = 0; i < 2; ++i) *r.add_further_scales() = ArrayOperand("s");
              }),
              is_refused);
  EXPECT_THAT(refusal([](auto& r) { r.set_scale(1); }), is_refused);
  EXPECT_THAT(refusal([](auto& r) { r.set_activation(v1::ACTIVATION_RELU); }), is_refused);
  EXPECT_THAT(refusal([](auto& r) { r.mutable_biases()->RemoveLast(); }), is_refused);
  EXPECT_THAT(refusal([](auto& r) { r.mutable_layer()->set_use_bias(false); }), is_refused);
  EXPECT_THAT(refusal([](auto& r) { r.mutable_layer()->set_shards(-1); }), is_refused);
  EXPECT_THAT(refusal([](auto& r) { r.clear_layer(); }), is_refused);
  v1::CompileRequest compile;
  EXPECT_FALSE(DecodeLayer(compile)->has_value());
  compile.mutable_layer();
  EXPECT_TRUE(DecodeLayer(compile)->has_value());
  compile.mutable_program();
  EXPECT_THAT(DecodeLayer(compile), StatusIs(kInvalid, Reason::kBadField));
}

}  // namespace
}  // namespace shardmesh::server
