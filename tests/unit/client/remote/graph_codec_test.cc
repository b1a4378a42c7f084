// Encodes graphs, and parses them from text.
#include "client/remote/graph_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

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
