// Encodes graphs, and parses them from text.
#include "client/remote/graph_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "program/graph/graph_builder.h"
#include "status/reason.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::rpc {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::kInvalid;
using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(GraphCodecTest, TextOfAGraphGivesTheGraph) {
  GraphBuilder builder;
  const GraphValue x = builder.Parameter("x", Dtype::kBF16, {2, 8});
  const GraphValue w = builder.Parameter("w \"quoted\"", Dtype::kBF16, {4, 8});
  const GraphValue state = builder.State("state", Dtype::kBF16, {2, 4});
  const GraphValue y = builder.Linear(x, w, {.activation = Activation::kGelu, .scale = 0.25F});
  builder.Output("y", builder.Softmax(builder.Multiply(y, 2)));
  builder.Output("z", builder.Reshard(y, PartitionSpec({SpecEntry::Axis("tp")})));
  builder.Update(state, builder.Add(y, state));
  const auto graph = builder.Build();
  ASSERT_THAT(graph, IsOk());
  const auto parsed = ParseGraphText(GraphToText(*graph));
  ASSERT_THAT(parsed, IsOk());
  EXPECT_EQ(*parsed, *graph);
}

TEST(GraphCodecTest, ASymbolicDimensionCrossesAsText) {
  GraphBuilder builder;
  const GraphExtent seq = builder.Symbol("seq", 16, 512, 16);
  const GraphValue x = builder.Parameter("x", Dtype::kF32, {seq, 8});
  const GraphValue y = builder.Parameter("y", Dtype::kF32, {4, 2 * seq + 1});
  builder.Output("last", builder.Slice(x, 0, seq - 1, seq));
  builder.Output("flat", builder.Reshape(x, {-1}));
  builder.Output("part", builder.Slice(y, 1, 0, -2));
  const auto graph = builder.Build();
  ASSERT_THAT(graph, IsOk());
  const auto parsed = ParseGraphText(GraphToText(*graph));
  ASSERT_THAT(parsed, IsOk());
  EXPECT_EQ(*parsed, *graph);
}

TEST(GraphCodecTest, ParsesSymbolsThatPeopleWrite) {
  const std::string text = R"(
      symbol { name: "seq" min: 1 max: 9 }
      operands { name: "x" dtype: DTYPE_F32 shape: [0, 4] symbolic_shape { index: 0 } }
      ops { tensor { reshape { input: 0 shape: [0, 2] symbolic_shape { index: 0 factor: 2 } } } }
      ops { tensor { slice { input: 1 starts: [1, 0] limits: [0, 2]
                             symbolic_limits { index: 0 factor: 2 } } } }
      outputs { name: "y" value: 2 })";
  const auto graph = ParseGraphText(text);
  ASSERT_THAT(graph, IsOk());
  EXPECT_EQ(graph->program.symbol, (SymbolicDimension{.name = "seq", .min = 1, .max = 9}));
  EXPECT_EQ(graph->operands[0].type, (TensorType{Dtype::kF32, {9, 4}}));
  EXPECT_EQ(graph->outputs[0].type, (TensorType{Dtype::kF32, {17, 2}}));
  const auto with = [&](std::string_view from, std::string_view to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return ParseGraphText(changed);
  };
  EXPECT_THAT(with("starts: [1, 0]", "starts: [3, 0]"),
              StatusIs(kInvalid, Reason::kBadField, HasSubstr("at seq 1: op 1 (slice)")));
  EXPECT_THAT(with("factor: 2 } } } }\n      ops", "factor: 3 } } } }\n      ops"),
              StatusIs(kInvalid, Reason::kShapeMismatch, HasSubstr("at seq 1: op 0 (reshape)")));
  EXPECT_THAT(with("symbolic_shape { index: 0 } }", "symbolic_shape { index: 2 } }"),
              StatusIs(kInvalid, Reason::kBadField, HasSubstr("has 2 dimensions")));
  EXPECT_THAT(with("symbol { name: \"seq\" min: 1 max: 9 }", ""),
              StatusIs(kInvalid, Reason::kBadField, HasSubstr("no symbolic dimension")));
}

TEST(GraphCodecTest, ParsesWhatPeopleWrite) {
  const auto graph = ParseGraphText(R"(
      # y = a + a
      operands { name: "a" dtype: DTYPE_F32 shape: 3 }
      ops { matmul { lhs: 2 rhs: 0 } }     # reads a later op
      ops { tensor { reshape { input: 0 shape: [1, 3] } } }
      outputs { name: "y" value: 2 }
  )");
  EXPECT_THAT(graph, StatusIs(kInvalid, Reason::kShapeMismatch, HasSubstr("op 0 (matmul)")));
  const auto scalar = ParseGraphText(R"(
      operands { name: "a" dtype: DTYPE_I32 }
      ops { tensor { map { function: MAP_FUNCTION_NEGATE inputs: 0 } } }
      outputs { name: "y" value: 1 })");
  ASSERT_THAT(scalar, IsOk());
  EXPECT_EQ(scalar->outputs[0].type, (TensorType{Dtype::kI32, {}}));
}

TEST(GraphCodecTest, GivesThePlaceOfAFault) {
  EXPECT_THAT(ParseGraphText("operands {}\noperand {}"),
              StatusIs(kInvalid, Reason::kBadFile,
                       AllOf(HasSubstr("not a graph in protobuf's text format: line 2, column "),
                             HasSubstr("operand"))));
  EXPECT_THAT(ParseGraphText("operands { dtype: F32 }"),
              StatusIs(kInvalid, Reason::kBadFile, HasSubstr("line 1, column ")));
  EXPECT_THAT(ParseGraphText(R"(operands { name: "a" })"),
              StatusIs(kInvalid, Reason::kUnknownDtype));
  EXPECT_THAT(ParseGraphText("ops {}"), StatusIs(kInvalid, Reason::kBadField, HasSubstr("op")));
  EXPECT_THAT(ParseGraphText(std::string("\0\xff", 2)), StatusIs(kInvalid, Reason::kBadFile));
}

TEST(GraphCodecTest, AnEmptyTextIsAnEmptyGraph) {
  const auto graph = ParseGraphText("");
  ASSERT_THAT(graph, IsOk());
  EXPECT_EQ(*graph, Graph());
}

}  // namespace
}  // namespace shardmesh::rpc
