// Builds graphs by calls, and looks at the programs and at the errors.
#include "program/graph/graph_builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Matches the error of a builder, which is INVALID_ARGUMENT.
auto IsRefused(Reason reason, std::string_view message) {
  return StatusIs(absl::StatusCode::kInvalidArgument, reason, HasSubstr(std::string(message)));
}

TEST(GraphBuilderTest, NumbersOperandsBeforeOps) {
  GraphBuilder builder;
  const GraphValue x = builder.Parameter("x", Dtype::kF32, {8, 16});
  const GraphValue w = builder.Parameter("w", Dtype::kF32, {4, 16});
  const GraphValue y = builder.Linear(x, w, {.activation = Activation::kRelu, .scale = 2});
  // Operands may follow ops.
  const GraphValue b = builder.Parameter("b", Dtype::kF32, {4});
  builder.Output("z", builder.Add(y, b));
  const auto graph = builder.Build();
  ASSERT_THAT(graph, IsOk());
  const Program& program = graph->program;
  EXPECT_EQ(program.operand_count, 3u);
  EXPECT_THAT(program.outputs, ElementsAre(4));
  EXPECT_THAT(
      program.ops,
      ElementsAre(
          ProgramOp(LinearOp{.input = 0, .weight = 1, .activation = Activation::kRelu, .scale = 2}),
          ProgramOp(TensorOp(MapOp{.function = MapFunction::kAdd, .inputs = {3, 2}}))));
  EXPECT_EQ(graph->operands[2], (GraphOperand{"b", {Dtype::kF32, {4}}}));
  EXPECT_EQ(graph->outputs[0], (GraphOutput{"z", TensorType{Dtype::kF32, {8, 4}}}));
  // The graph satisfies the rules of graphs from files.
  const auto checked = CheckGraph(*graph);
  ASSERT_THAT(checked, IsOk());
  EXPECT_EQ(*checked, *graph);
}

TEST(GraphBuilderTest, KeepsTheFirstError) {
  GraphBuilder builder;
  const GraphValue x = builder.Parameter("x", Dtype::kF32, {2, 3});
  builder.SetScope("layers.1");
  const GraphValue bad = builder.Matmul(x, x);
  builder.SetScope("layers.2");
  builder.Output("y", builder.Softmax(builder.Add(bad, 1)));
  builder.Output("", bad);
  EXPECT_THAT(builder.Build(), IsRefused(Reason::kShapeMismatch,
                                         "layers.1: op 0 (matmul): shapes (2, 3) and (2, 3) "
                                         "do not multiply: 3 is contracted with 2"));
  EXPECT_THAT(builder.status(),
              IsRefused(Reason::kShapeMismatch, "; inputs: \"x\" F32 (2, 3), \"x\" F32 (2, 3)"));
  EXPECT_EQ(builder.ShapeOf(bad), Shape{});
}

TEST(GraphBuilderTest, MakesConstantsOfNumbers) {
  GraphBuilder builder;
  const GraphValue x = builder.Parameter("x", Dtype::kBF16, {2});
  const GraphValue ids = builder.Parameter("ids", Dtype::kI32, {2});
  builder.Output("half", builder.Multiply(x, 0.5));
  builder.Output("less", builder.Subtract(1, x));
  builder.Output("next", builder.Add(ids, 1));
  const auto graph = builder.Build();
  ASSERT_THAT(graph, IsOk());
  const auto constant = [&](size_t op) {
    return std::get<ConstantOp>(std::get<TensorOp>(graph->program.ops[op])).value;
  };
  EXPECT_EQ(constant(0), (Literal{Dtype::kBF16, {}, std::string("\x00\x3f", 2)}));
  EXPECT_EQ(constant(2), (Literal{Dtype::kBF16, {}, std::string("\x80\x3f", 2)}));
  EXPECT_EQ(constant(4), (Literal{Dtype::kI32, {}, std::string("\1\0\0\0", 4)}));
  // 1 - x reads the constant first.
  EXPECT_THAT(InputsOfOp(graph->program.ops[3]), ElementsAre(4, 0));
}

TEST(GraphBuilderTest, RefusesNumbersThatTheTypeLacks) {
  struct Case {
    Dtype dtype;
    double value;
    bool is_valid;
  };
  for (const Case& test : std::vector<Case>{{Dtype::kI8, 127, true},
                                            {Dtype::kI8, 128, false},
                                            {Dtype::kI8, -128, true},
                                            {Dtype::kI8, -129, false},
                                            {Dtype::kU8, -1, false},
                                            {Dtype::kI32, 0.5, false},
                                            {Dtype::kI64, 9223372036854775808.0, false},
                                            {Dtype::kI64, -9223372036854775808.0, true},
                                            {Dtype::kU64, 18446744073709551616.0, false},
                                            {Dtype::kF16, 1e30, true},  // infinity
                                            {Dtype::kBool, 1, false},
                                            {Dtype::kC64, 1, false}}) {
    GraphBuilder builder;
    builder.Scalar(test.dtype, test.value);
    EXPECT_EQ(builder.status().ok(), test.is_valid) << test.dtype << " " << test.value;
  }
}

TEST(GraphBuilderTest, CountsDimensionsFromTheEnd) {
  GraphBuilder builder;
  const GraphValue x = builder.Parameter("x", Dtype::kF32, {2, 3, 4});
  EXPECT_THAT(builder.ShapeOf(builder.Sum(x, {-1, 0})), ElementsAre(3));
  EXPECT_THAT(builder.ShapeOf(builder.Mean(x, {-2}, /*keeps_dimensions=*/true)),
              ElementsAre(2, 1, 4));
  EXPECT_THAT(builder.ShapeOf(builder.Transpose(x, {-1, 0, 1})), ElementsAre(4, 2, 3));
  EXPECT_THAT(builder.ShapeOf(builder.Slice(x, -1, 1, -1)), ElementsAre(2, 3, 2));
  EXPECT_THAT(builder.ShapeOf(builder.Slice(x, 1, 0, 3, 2)), ElementsAre(2, 2, 4));
  EXPECT_THAT(builder.ShapeOf(builder.Concatenate({x, x, x}, -2)), ElementsAre(2, 9, 4));
  EXPECT_THAT(builder.ShapeOf(builder.Argmax(x)), ElementsAre(2, 3));
  EXPECT_EQ(builder.DtypeOf(builder.TopKIndices(x, 2)), Dtype::kI32);
  EXPECT_THAT(builder.ShapeOf(builder.TopK(x, 2)), ElementsAre(2, 3, 2));
  EXPECT_THAT(builder.status(), IsOk());
  builder.Sum(x, {-4});
  EXPECT_THAT(builder.status(), IsRefused(Reason::kInvalidDimension,
                                          "the input has 3 dimensions, and no dimension -4"));
}

TEST(GraphBuilderTest, ComputesOneExtentOfAReshape) {
  GraphBuilder builder;
  const GraphValue x = builder.Parameter("x", Dtype::kF32, {4, 6});
  EXPECT_THAT(builder.ShapeOf(builder.Reshape(x, {2, -1, 3})), ElementsAre(2, 4, 3));
  EXPECT_THAT(builder.ShapeOf(builder.Reshape(x, {-1})), ElementsAre(24));
  EXPECT_THAT(builder.status(), IsOk());
  for (const Shape& shape : std::vector<Shape>{{-1, -1}, {5, -1}, {0, -1}}) {
    GraphBuilder other;
    other.Reshape(other.Parameter("x", Dtype::kF32, {4, 6}), shape);
    EXPECT_THAT(other.status(), IsRefused(Reason::kShapeMismatch, "cannot compute the extent"));
  }
  builder.Reshape(x, {5, 5});
  EXPECT_THAT(builder.status(), IsRefused(Reason::kShapeMismatch, "op 2 (reshape)"));
}

TEST(GraphBuilderTest, ConvertsOnlyToOtherTypes) {
  GraphBuilder builder;
  const GraphValue x = builder.Parameter("x", Dtype::kF32, {4});
  builder.Convert(x, Dtype::kF32);
  builder.Output("y", builder.Convert(x, Dtype::kBF16));
  const auto graph = builder.Build();
  ASSERT_THAT(graph, IsOk());
  EXPECT_EQ(graph->program.ops.size(), 1u);
}

TEST(GraphBuilderTest, UpdatesState) {
  GraphBuilder builder;
  const GraphValue cache = builder.State("cache", Dtype::kF32, {2, 8, 4});
  const GraphValue rows = builder.Parameter("rows", Dtype::kF32, {2, 1, 4});
  const GraphValue positions = builder.Parameter("positions", Dtype::kI32, {2, 1});
  builder.Update(cache, builder.UpdateRows(cache, rows, positions));
  const auto graph = builder.Build();
  ASSERT_THAT(graph, IsOk());
  EXPECT_THAT(graph->program.updates, ElementsAre(StateUpdate{.operand = 0, .value = 3}));
}

TEST(GraphBuilderTest, RefusesBadUpdatesAndOutputs) {
  const auto refusal = [](auto make) {
    GraphBuilder builder;
    const GraphValue x = builder.Parameter("x", Dtype::kF32, {4});
    const GraphValue state = builder.State("s", Dtype::kF32, {4});
    make(builder, x, state);
    return builder.Build().status();
  };
  using Builder = GraphBuilder;
  using Value = GraphValue;
  EXPECT_THAT(refusal([](Builder& b, Value x, Value) { b.Output("y", b.Add(x, 1)); }),
              IsRefused(Reason::kBadField, "state \"s\" is not updated"));
  EXPECT_THAT(refusal([](Builder& b, Value x, Value s) { b.Update(s, x); }),
              IsRefused(Reason::kBadField, "must be the result of an op"));
  EXPECT_THAT(refusal([](Builder& b, Value x, Value) { b.Update(x, b.Add(x, 1)); }),
              IsRefused(Reason::kBadField, "was not declared with State"));
  EXPECT_THAT(refusal([](Builder& b, Value x, Value s) {
                b.Update(s, b.Add(x, 1));
                b.Update(s, b.Add(x, 2));
              }),
              IsRefused(Reason::kBadField, "has an update already"));
  EXPECT_THAT(refusal([](Builder& b, Value x, Value s) {
                b.Update(s, b.Concatenate({x, x}, 0));
              }),
              IsRefused(Reason::kShapeMismatch, "a state keeps its type and shape"));
  EXPECT_THAT(refusal([](Builder& b, Value x, Value) { b.Output("y", x); }),
              IsRefused(Reason::kBadField, "is an operand"));
  EXPECT_THAT(refusal([](Builder& b, Value x, Value s) {
                b.Update(s, b.Add(x, 1));
                b.Output("y", b.Add(x, 1));
                b.Output("y", b.Add(x, 2));
              }),
              IsRefused(Reason::kBadField, "there is an output of this name already"));
  EXPECT_THAT(refusal([](Builder& b, Value x, Value) {
                const Value y = b.Add(x, 1);
                b.Output("y", y);
                b.Output("z", y);
              }),
              IsRefused(Reason::kBadField, "is the output \"y\" already"));
  EXPECT_THAT(GraphBuilder().Build(), IsRefused(Reason::kBadField, "neither outputs nor updates"));
}

TEST(GraphBuilderTest, RefusesBadOperands) {
  GraphBuilder twice;
  twice.Parameter("x", Dtype::kF32, {4});
  twice.State("x", Dtype::kF32, {4});
  EXPECT_THAT(twice.status(), IsRefused(Reason::kBadField, "state \"x\" is declared twice"));
  GraphBuilder negative;
  negative.Parameter("x", Dtype::kF32, {4, -2});
  EXPECT_THAT(negative.status(), IsRefused(Reason::kInvalidShape, "parameter \"x\": "));
  GraphBuilder nameless;
  nameless.Parameter("", Dtype::kF32, {4});
  EXPECT_THAT(nameless.status(), IsRefused(Reason::kBadField, "is empty"));
}

TEST(GraphBuilderTest, RefusesValuesThatAreNotItsOwn) {
  GraphBuilder builder;
  const GraphValue x = builder.Parameter("x", Dtype::kF32, {4});
  GraphBuilder unset;
  unset.Add(unset.Parameter("x", Dtype::kF32, {4}), GraphValue());
  EXPECT_THAT(unset.status(), IsRefused(Reason::kBadField, "op 0 (add): input 1 is no tensor"));
  GraphBuilder foreign;
  foreign.Exp(x);
  EXPECT_THAT(foreign.status(),
              IsRefused(Reason::kBadField, "op 0 (exp): input 0 belongs to another builder"));
  EXPECT_EQ(foreign.TypeOf(x), TensorType());
}

TEST(GraphBuilderTest, KnowsTypesAfterCollectives) {
  GraphBuilder builder;
  const GraphValue x = builder.Parameter("x", Dtype::kF32, {4, 6});
  builder.Output("gathered", builder.AllGather(x, {"tp"}, -1));
  builder.Output("reduced", builder.AllReduce(x, {"tp"}));
  builder.Output(
      "halved",
      builder.Collective(x, {.kind = CollectiveKind::kAllReduce, .axes = {"tp"}}, Shape{2, 6}));
  builder.Output("scattered", builder.ReduceScatter(x, {"tp"}, -2));
  const auto graph = builder.Build();
  ASSERT_THAT(graph, IsOk());
  EXPECT_EQ(graph->outputs[0].type, (TensorType{Dtype::kF32, {4, 6}}));
  EXPECT_EQ(graph->outputs[1].type, std::nullopt);
  EXPECT_EQ(graph->outputs[2].type, (TensorType{Dtype::kF32, {2, 6}}));
  EXPECT_EQ(std::get<CollectiveOp>(graph->program.ops[3]).dimension, 0);
}

TEST(GraphBuilderTest, ChecksProductsAndLayouts) {
  const auto refusal = [](auto make) {
    GraphBuilder builder;
    const GraphValue x = builder.Parameter("x", Dtype::kF32, {2, 8});
    make(builder, x);
    return builder.status();
  };
  using Builder = GraphBuilder;
  using Value = GraphValue;
  EXPECT_THAT(refusal([](Builder& b, Value x) {
                b.Linear(x, b.Parameter("w", Dtype::kF32, {1, 4, 8}));
              }),
              IsRefused(Reason::kShapeMismatch, "the weight has shape (1, 4, 8)"));
  EXPECT_THAT(refusal([](Builder& b, Value x) {
                b.Linear(x, b.Parameter("w", Dtype::kF32, {8, 4}));
              }),
              IsRefused(Reason::kShapeMismatch, "8 is contracted with 4"));
  EXPECT_THAT(refusal([](Builder& b, Value x) {
                b.Linear(x, b.Parameter("w", Dtype::kF32, {4, 8}),
                         {.bias = b.Parameter("b", Dtype::kF32, {8})});
              }),
              IsRefused(Reason::kShapeMismatch, "the bias has shape (8,); it must be (4,)"));
  EXPECT_THAT(refusal([](Builder& b, Value x) {
                b.Linear(x, b.Parameter("w", Dtype::kBF16, {4, 8}));
              }),
              IsRefused(Reason::kUnsupportedDtype, "cannot multiply F32 by BF16"));
  EXPECT_THAT(refusal([](Builder& b, Value x) {
                b.Linear(x, b.Parameter("w", Dtype::kI8, {4, 8}));
              }),
              IsRefused(Reason::kUnsupportedDtype, "weights of I8 need their scales"));
  EXPECT_THAT(refusal([](Builder& b, Value x) {
                b.Linear(x, b.Parameter("w", Dtype::kI8, {4, 8}),
                         {.bias = b.Parameter("b", Dtype::kF32, {4}),
                          .scales = b.Parameter("s", Dtype::kF32, {8})});
              }),
              IsRefused(Reason::kShapeMismatch, "the scales have shape (8,); it must be (4,)"));
  EXPECT_THAT(refusal([](Builder& b, Value x) {
                b.Reshard(x, PartitionSpec({SpecEntry::Axis("a"), SpecEntry::Axis("b"),
                                            SpecEntry::Axis("c")}));
              }),
              IsRefused(Reason::kInvalidDimension, "has 3 entries"));
  EXPECT_THAT(refusal([](Builder& b, Value x) { b.AllGather(x, {"tp"}, 2); }),
              IsRefused(Reason::kInvalidDimension, "no dimension 2"));
}

TEST(GraphBuilderTest, RefusesTooManyOps) {
  GraphBuilder builder;
  GraphValue x = builder.Parameter("x", Dtype::kF32, {1});
  for (uint32_t i = 0; i < kMaxProgramSize; ++i) x = builder.Negate(x);
  EXPECT_THAT(builder.status(), IsOk());
  builder.Negate(x);
  EXPECT_THAT(builder.status(),
              IsRefused(Reason::kLimitExceeded, StrCat("op ", kMaxProgramSize, " (negate)")));
}

}  // namespace
}  // namespace shardmesh
