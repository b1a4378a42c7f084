// Ops on tensors and updates of state across the wire, in programs and in plans.
#include "rpc/codec/tensor_op_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "rpc/codec/plan_codec.h"
#include "rpc/codec/status.h"
#include "sharding/shape.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::rpc {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::kInvalid;
using ::shardmesh::test::StatusIs;
using ::testing::HasSubstr;

std::string FieldIn(const absl::Status& status) {
  const auto violations = FieldViolationsOf(status);
  return violations.size() == 1 ? violations[0].field : "";
}

// At least one op of every kind; each field has a value that is not its default somewhere.
std::vector<TensorOp> SomeOps() {
  std::vector<TensorOp> ops;
  for (const MapFunction function : AllMapFunctions()) {
    const std::vector<ValueIndex> inputs = {2, 1};
    ops.push_back(
        MapOp{function,
              {inputs.begin(), inputs.begin() + static_cast<ptrdiff_t>(InputCountOf(function))}});
  }
  for (const NormKind kind : {NormKind::kRms, NormKind::kLayer, NormKind::kL2}) {
    ops.push_back(NormOp{.kind = kind, .input = 1, .epsilon = 0});
  }
  const std::vector<TensorOp> others = {
      ConvertOp{.input = 1, .dtype = Dtype::kBF16},
      NormOp{.kind = NormKind::kLayer, .input = 2, .weight = 0, .bias = 1, .epsilon = 1e-6F},
      SoftmaxOp{.input = 1},
      SoftmaxOp{.input = 1, .mask = 0, .scale = -0.5F},
      ReduceOp{.input = 1, .reduction = Reduction::kMean, .dimensions = {0, 2}},
      ReduceOp{.input = 1, .dimensions = {kMaxRank - 1}, .keeps_dimensions = true},
      RotaryOp{.input = 2, .positions = 1, .frequencies = 0},
      RotaryOp{.input = 0, .positions = 1, .frequencies = 2, .is_interleaved = true},
      EmbeddingOp{.table = 2, .ids = 1},
      AttentionOp{.query = 2, .keys = 1, .values = 0},
      AttentionOp{.query = 0, .keys = 1, .values = 2, .positions = 0, .mask = 1, .scale = 0.125F},
      TopKOp{.input = 2, .count = 5, .gives_indices = false},
      TopKOp{.input = 2, .count = 1, .drops_dimension = true},
      ReshapeOp{.input = 1, .shape = {2, 0, 3}},
      ReshapeOp{.input = 1, .shape = {}},
      TransposeOp{.input = 1, .permutation = {2, 0, 1}},
      TransposeOp{.input = 1, .permutation = {}},
      SliceOp{.input = 1, .starts = {0, 2}, .limits = {0, 8}},
      SliceOp{.input = 1, .starts = {1}, .limits = {8}, .steps = {3}},
      ConcatenateOp{.inputs = {2, 2, 0}, .dimension = 1},
      UpdateRowsOp{.input = 2, .update = 1, .positions = 0},
      ConstantOp{{Dtype::kI32, {2}, std::string("12345678")}},
      ConstantOp{{Dtype::kU8,
                  {kMaxConstantBytes},
                  std::string(static_cast<size_t>(kMaxConstantBytes), 'x')}},
      ConstantOp{{Dtype::kF32, {0}, ""}},
  };
  ops.insert(ops.end(), others.begin(), others.end());
  return ops;
}

TEST(TensorOpCodecTest, EveryOpCrossesTheWire) {
  for (const TensorOp& op : SomeOps()) {
    SCOPED_TRACE(TensorOpName(op));
    v1::TensorOp wire;
    Encode(op, &wire);
    EXPECT_THAT(Decode(wire), IsOkAndHolds(op));
  }
}

TEST(TensorOpCodecTest, EveryOpCrossesTheWireInAProgram) {
  Program program = {.operand_count = 3, .ops = {}, .outputs = {3}, .updates = {{2, 4}, {0, 3}}};
  for (const TensorOp& op : SomeOps()) program.ops.push_back(op);
  v1::Program wire;
  Encode(program, &wire);
  EXPECT_THAT(Decode(wire), IsOkAndHolds(program));
}

TEST(TensorOpCodecTest, ASymbolicDimensionCrossesTheWire) {
  const Program program = {
      .operand_count = 2,
      .ops = {TensorOp(ReshapeOp{.input = 0,
                                 .shape = {8, 3},
                                 .symbolic_shape = {{.index = 0, .factor = 2, .offset = -1}}}),
              TensorOp(SliceOp{.input = 0,
                               .starts = {7, 1},
                               .limits = {8, 2},
                               .symbolic_starts = {{.index = 0, .factor = 1, .offset = -1}},
                               .symbolic_limits = {{.index = 0}, {.index = 1, .factor = 3}}})},
      .outputs = {3},
      .updates = {},
      .symbol = SymbolicDimension{.name = "n", .min = 2, .max = 8, .multiple = 2},
      .symbolic_extents = {{.operand = 1, .extent = {.index = 3, .factor = 2, .offset = 5}}}};
  v1::Program wire;
  Encode(program, &wire);
  EXPECT_THAT(Decode(wire), IsOkAndHolds(program));
  // Entries that are replaced may be any numbers.
  wire.mutable_ops(1)->mutable_tensor()->mutable_slice()->set_starts(0, -9);
  EXPECT_THAT(Decode(wire), IsOk());
  wire.mutable_symbol()->set_multiple(0);
  wire.mutable_ops(0)
      ->mutable_tensor()
      ->mutable_reshape()
      ->mutable_symbolic_shape(0)
      ->clear_factor();
  const auto decoded = Decode(wire);
  ASSERT_THAT(decoded, IsOk());
  EXPECT_EQ(decoded->symbol->multiple, 1);
  EXPECT_EQ(std::get<ReshapeOp>(std::get<TensorOp>(decoded->ops[0])).symbolic_shape[0].factor, 1);
  const auto refused = [&](const auto& change, std::string_view field) {
    v1::Program changed = wire;
    change(changed);
    EXPECT_THAT(Decode(changed), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField,
                                          HasSubstr(std::string(field))));
  };
  refused([](v1::Program& p) { p.clear_symbol(); }, "no symbolic dimension");
  refused([](v1::Program& p) { p.clear_symbolic_extents(); }, "no operand has");
  refused([](v1::Program& p) { p.mutable_symbol()->set_max(1); }, "range of n is 2 to 1");
  refused([](v1::Program& p) { p.mutable_symbolic_extents(0)->set_operand(2); }, "no operand");
  refused(
      [](v1::Program& p) {
        p.mutable_ops(1)->mutable_tensor()->mutable_slice()->mutable_symbolic_limits(1)->set_index(
            2);
      },
      "replaces entry 2");
}

TEST(TensorOpCodecTest, FieldsThatAreNotSetHaveTheirDefaults) {
  v1::TensorOp wire;
  wire.mutable_softmax()->set_input(1);
  EXPECT_THAT(Decode(wire), IsOkAndHolds(TensorOp(SoftmaxOp{.input = 1})));
  wire.mutable_attention();
  EXPECT_THAT(Decode(wire), IsOkAndHolds(TensorOp(AttentionOp())));
  wire.mutable_reduce()->add_dimensions(0);
  EXPECT_THAT(Decode(wire), IsOkAndHolds(TensorOp(ReduceOp{.dimensions = {0}})));
}

TEST(TensorOpCodecTest, EnumsThatAreNotSetOrUnknownAreRefused) {
  for (const MapFunction function : AllMapFunctions()) {
    EXPECT_THAT(Decode(Encode(function)), IsOkAndHolds(function));
  }
  EXPECT_EQ(AllMapFunctions().size() + 1,
            static_cast<size_t>(v1::MapFunction_descriptor()->value_count()));
  EXPECT_FALSE(Decode(v1::MAP_FUNCTION_UNSPECIFIED).ok());
  EXPECT_FALSE(Decode(static_cast<v1::MapFunction>(100)).ok());
  EXPECT_FALSE(Decode(v1::NORM_KIND_UNSPECIFIED).ok());
  EXPECT_FALSE(Decode(static_cast<v1::NormKind>(4)).ok());
}

TEST(TensorOpCodecTest, MalformedOpsNameTheirField) {
  using Change = std::function<void(v1::TensorOp*)>;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  struct Case {
    TensorOp good;
    Change change;
    std::string field;
  };
  const MapOp add = {MapFunction::kAdd, {0, 1}};
  const NormOp norm;
  const ReduceOp reduce = {.dimensions = {1, 2}};
  const TopKOp top_k = {.count = 3};
  const TransposeOp transpose = {.permutation = {1, 0}};
  const SliceOp slice = {.starts = {1, 1}, .limits = {2, 2}, .steps = {1, 1}};
  const ConcatenateOp concatenate = {.inputs = {0}};
  const ConstantOp constant = {{Dtype::kU8, {2}, "ab"}};
  const std::vector<Case> cases = {
      {add, [](auto* op) { op->clear_map(); }, "op"},
      {add, [](auto* op) { op->mutable_map()->clear_function(); }, "map.function"},
      {add, [](auto* op) { op->mutable_map()->add_inputs(0); }, "map.inputs"},
      {add, [](auto* op) { op->mutable_map()->clear_inputs(); }, "map.inputs"},
      {add, [](auto* op) { op->mutable_map()->set_function(v1::MAP_FUNCTION_EXP); }, "map.inputs"},
      {ConvertOp(), [](auto* op) { op->mutable_convert()->clear_dtype(); }, "convert.dtype"},
      {norm, [](auto* op) { op->mutable_norm()->clear_kind(); }, "norm.kind"},
      {norm, [](auto* op) { op->mutable_norm()->set_epsilon(-1e-9F); }, "norm.epsilon"},
      {norm, [&](auto* op) { op->mutable_norm()->set_epsilon(nan); }, "norm.epsilon"},
      {norm, [&](auto* op) { op->mutable_norm()->set_epsilon(infinity); }, "norm.epsilon"},
      {SoftmaxOp(), [&](auto* op) { op->mutable_softmax()->set_scale(nan); }, "softmax.scale"},
      {AttentionOp(), [&](auto* op) { op->mutable_attention()->set_scale(infinity); },
       "attention.scale"},
      {reduce, [](auto* op) { op->mutable_reduce()->clear_dimensions(); }, "reduce.dimensions"},
      {reduce, [](auto* op) { op->mutable_reduce()->set_dimensions(0, 2); }, "reduce.dimensions"},
      {reduce, [](auto* op) { op->mutable_reduce()->set_dimensions(0, -1); },
       "reduce.dimensions[0]"},
      {reduce, [](auto* op) { op->mutable_reduce()->set_dimensions(1, kMaxRank); },
       "reduce.dimensions[1]"},
      {reduce, [](auto* op) { op->mutable_reduce()->set_reduction(static_cast<v1::Reduction>(9)); },
       "reduce.reduction"},
      {top_k, [](auto* op) { op->mutable_top_k()->set_count(0); }, "top_k.count"},
      {top_k, [](auto* op) { op->mutable_top_k()->set_drop_dimension(true); },
       "top_k.drop_dimension"},
      {ReshapeOp(), [](auto* op) { op->mutable_reshape()->add_shape(-1); }, "reshape.shape"},
      {transpose, [](auto* op) { op->mutable_transpose()->set_permutation(0, 0); },
       "transpose.permutation"},
      {transpose, [](auto* op) { op->mutable_transpose()->set_permutation(0, 2); },
       "transpose.permutation"},
      {transpose, [](auto* op) { op->mutable_transpose()->set_permutation(0, -1); },
       "transpose.permutation"},
      {slice, [](auto* op) { op->mutable_slice()->set_starts(1, -1); }, "slice.starts[1]"},
      {slice, [](auto* op) { op->mutable_slice()->set_limits(0, 0); }, "slice.limits[0]"},
      {slice, [](auto* op) { op->mutable_slice()->set_steps(1, 0); }, "slice.steps[1]"},
      {slice, [](auto* op) { op->mutable_slice()->add_limits(1); }, "slice.limits"},
      {slice, [](auto* op) { op->mutable_slice()->mutable_steps()->RemoveLast(); }, "slice.steps"},
      {concatenate, [](auto* op) { op->mutable_concatenate()->clear_inputs(); },
       "concatenate.inputs"},
      {concatenate, [](auto* op) { op->mutable_concatenate()->set_dimension(-1); },
       "concatenate.dimension"},
      {constant, [](auto* op) { op->mutable_constant()->clear_value(); }, "constant.value.dtype"},
      {constant,
       [](auto* op) { op->mutable_constant()->mutable_value()->mutable_data()->push_back('c'); },
       "constant.value.data"},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.field);
    v1::TensorOp wire;
    Encode(each.good, &wire);
    EXPECT_THAT(Decode(wire), IsOk());
    each.change(&wire);
    EXPECT_EQ(FieldIn(Decode(wire).status()), each.field);
    EXPECT_THAT(Decode(wire).status(), StatusIs(kInvalid));
    // The same within an op of a program.
    v1::Program program;
    program.set_operand_count(1);
    *program.add_ops()->mutable_tensor() = wire;
    EXPECT_EQ(FieldIn(Decode(program).status()), "ops[0].tensor." + each.field);
  }
}

TEST(TensorOpCodecTest, TheScaleOfALinearLayerIsFinite) {
  v1::ProgramOp wire;
  v1::LinearOp* const linear = wire.mutable_linear();
  linear->set_weight_layout(v1::WEIGHT_LAYOUT_OUT_IN);
  linear->set_scale(0.5F);
  EXPECT_THAT(Decode(wire), IsOk());
  for (const float scale :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    linear->set_scale(scale);
    EXPECT_THAT(Decode(wire).status(), StatusIs(kInvalid));
    EXPECT_EQ(FieldIn(Decode(wire).status()), "linear.scale");
  }
}

TEST(TensorOpCodecTest, CountsBeyondTheirLimitsAreRefused) {
  const auto refused = [](const std::function<void(v1::TensorOp*)>& fill) {
    v1::TensorOp wire;
    fill(&wire);
    return Decode(wire).status();
  };
  const absl::Status of_slice = refused([](v1::TensorOp* op) {
    for (int64_t i = 0; i <= kMaxRank; ++i) op->mutable_slice()->add_starts(0);
  });
  EXPECT_THAT(of_slice, StatusIs(kInvalid, Reason::kLimitExceeded));
  EXPECT_EQ(FieldIn(of_slice), "slice.starts");
  const absl::Status of_join = refused([](v1::TensorOp* op) {
    for (uint32_t i = 0; i <= kMaxProgramSize; ++i) op->mutable_concatenate()->add_inputs(0);
  });
  EXPECT_THAT(of_join, StatusIs(kInvalid, Reason::kLimitExceeded));
  EXPECT_EQ(FieldIn(of_join), "concatenate.inputs");
  const absl::Status of_constant = refused([](v1::TensorOp* op) {
    v1::Literal* const value = op->mutable_constant()->mutable_value();
    value->set_dtype(v1::DTYPE_U8);
    value->add_shape(kMaxConstantBytes + 1);
    value->set_data(std::string(static_cast<size_t>(kMaxConstantBytes) + 1, 'x'));
  });
  EXPECT_THAT(of_constant, StatusIs(kInvalid, Reason::kLimitExceeded));
  EXPECT_EQ(FieldIn(of_constant), "constant.value");
}

TEST(TensorOpCodecTest, AnOpRefersOnlyToEarlierValuesAndIsNamed) {
  v1::Program wire;
  Encode(Program{.operand_count = 2,
                 .ops = {MapOp{MapFunction::kAdd, {0, 1}},
                         AttentionOp{.query = 0, .keys = 1, .values = 2, .mask = 2}},
                 .outputs = {3}},
         &wire);
  EXPECT_THAT(Decode(wire), IsOk());
  wire.mutable_ops(1)->mutable_tensor()->mutable_attention()->set_mask(3);
  const absl::Status refused = Decode(wire).status();
  EXPECT_EQ(FieldIn(refused), "ops[1]");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("op 1 (attention) refers to value 3"));
}

TEST(TensorOpCodecTest, UpdatesAreOfOperandsByResultsOfOps) {
  const Program program = {.operand_count = 2,
                           .ops = {MapOp{MapFunction::kAdd, {0, 1}}, MapOp{MapFunction::kExp, {2}}},
                           .outputs = {},
                           .updates = {{1, 2}, {0, 3}}};
  v1::Program good;
  Encode(program, &good);
  EXPECT_THAT(Decode(good), IsOkAndHolds(program));
  const auto field_with = [&good](uint32_t operand, uint32_t value) {
    v1::Program wire = good;
    wire.mutable_updates(1)->set_operand(operand);
    wire.mutable_updates(1)->set_value(value);
    return FieldIn(Decode(wire).status());
  };
  EXPECT_EQ(field_with(0, 3), "");
  EXPECT_EQ(field_with(2, 3), "updates[1].operand") << "no operand";
  EXPECT_EQ(field_with(1, 3), "updates[1].operand") << "twice";
  EXPECT_EQ(field_with(0, 2), "updates[1].value") << "twice";
  EXPECT_EQ(field_with(0, 1), "updates[1].value") << "an operand";
  EXPECT_EQ(field_with(0, 4), "updates[1].value") << "no value";
  v1::Program many = good;
  for (uint32_t i = 0; i < kMaxProgramSize; ++i) many.add_updates();
  EXPECT_THAT(Decode(many).status(), StatusIs(kInvalid, Reason::kLimitExceeded));
}

TEST(TensorOpCodecTest, PlansOfTensorOpsAndUpdatesCrossTheWire) {
  const ValueDescriptor cache = {Dtype::kF32, {2, 8, 4}, PartitionSpec()};
  const ValueDescriptor rows = {Dtype::kF32, {2, 1, 4}, PartitionSpec()};
  const ValueDescriptor positions = {Dtype::kI32, {1}, PartitionSpec()};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const Plan plan,
      PlanProgram(Program{.operand_count = 3,
                          .ops = {UpdateRowsOp{.input = 0, .update = 1, .positions = 2},
                                  MapOp{MapFunction::kTanh, {3}}},
                          .outputs = {4},
                          .updates = {{0, 3}}},
                  {cache, rows, positions}, {"default", 1, *Mesh::Parse("tp=2")}));
  EXPECT_EQ(plan.updates.size(), 1U);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Plan back, ParsePlanBytes(PlanBytes(plan)));
  EXPECT_TRUE(back == plan);
}

}  // namespace
}  // namespace shardmesh::rpc
