// Checks graphs that come from files: references, cycles, types.
#include "program/graph/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
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
using ::testing::Not;

TensorOp Add(ValueIndex a, ValueIndex b) {
  return MapOp{.function = MapFunction::kAdd, .inputs = {a, b}};
}

// Returns a graph with operands "a" and "b" of shape (2, 3) and the output "y", the last op.
Graph GraphOf(std::vector<ProgramOp> ops) {
  const TensorType type = {.dtype = Dtype::kF32, .shape = {2, 3}};
  Graph graph;
  graph.operands = {{"a", type}, {"b", type}};
  graph.program.operand_count = 2;
  graph.program.outputs = {static_cast<ValueIndex>(1 + ops.size())};
  graph.program.ops = std::move(ops);
  graph.outputs = {{"y", {}}};
  return graph;
}

TEST(GraphTest, GivesTheTypesOfOutputs) {
  const auto graph = CheckGraph(
      GraphOf({MatmulOp{.lhs = 0, .rhs = 1, .transpose_rhs = true}, TensorOp(Add(2, 2))}));
  ASSERT_THAT(graph, IsOk());
  EXPECT_EQ(graph->outputs.front().type, (TensorType{Dtype::kF32, {2, 2}}));
}

TEST(GraphTest, PutsOpsInOrder) {
  // Value 2 = 3 + a; value 3 = 4 + b; value 4 = a + b. The output is value 2.
  Graph graph = GraphOf({TensorOp(Add(3, 0)), TensorOp(Add(4, 1)), TensorOp(Add(0, 1))});
  graph.program.outputs = {2};
  const auto checked = CheckGraph(graph);
  ASSERT_THAT(checked, IsOk());
  EXPECT_THAT(checked->program.ops,
              ElementsAre(ProgramOp(TensorOp(Add(0, 1))), ProgramOp(TensorOp(Add(2, 1))),
                          ProgramOp(TensorOp(Add(3, 0)))));
  EXPECT_THAT(checked->program.outputs, ElementsAre(4));
  // A checked graph stays as it is.
  const auto again = CheckGraph(*checked);
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(*again, *checked);
}

TEST(GraphTest, ShowsThePathOfACycle) {
  EXPECT_THAT(CheckGraph(GraphOf({TensorOp(Add(0, 1)), TensorOp(Add(2, 4)),
                                  MatmulOp{.lhs = 3, .rhs = 1, .transpose_rhs = true}})),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField,
                       HasSubstr("op 1 (add) depends on itself: op 1 (add) reads op 2 (matmul), "
                                 "which reads op 1 (add)")));
  EXPECT_THAT(CheckGraph(GraphOf({TensorOp(Add(2, 1))})),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField,
                       HasSubstr("op 0 (add) depends on itself: op 0 (add) reads op 0 (add)")));
}

TEST(GraphTest, ShortensThePathOfALongCycle) {
  std::vector<ProgramOp> ops;
  for (ValueIndex i = 0; i < 1000; ++i) ops.emplace_back(TensorOp(Add(2 + (i + 1) % 1000, 0)));
  const auto graph = CheckGraph(GraphOf(std::move(ops)));
  ASSERT_THAT(graph, Not(IsOk()));
  EXPECT_THAT(std::string(graph.status().message()),
              AllOf(HasSubstr("op 0 (add) reads op 1 (add), which reads op 2 (add)"),
                    HasSubstr("more ops to op 999 (add), which reads op 0 (add)")));
  EXPECT_LT(graph.status().message().size(), 1000u);
}

TEST(GraphTest, RefusesDanglingReferences) {
  EXPECT_THAT(CheckGraph(GraphOf({TensorOp(Add(0, 7))})),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField,
                       HasSubstr("op 0 (add) reads value 7, which nothing computes; there are 2 "
                                 "operands and 1 ops")));
  Graph output = GraphOf({TensorOp(Add(0, 1))});
  output.program.outputs = {9};
  EXPECT_THAT(CheckGraph(output), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField,
                                           HasSubstr("output 0 is value 9")));
  output.program.outputs = {1};
  EXPECT_THAT(CheckGraph(output), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField,
                                           HasSubstr("an operand")));
}

TEST(GraphTest, RefusesBadUpdates) {
  const auto with = [](std::vector<StateUpdate> updates) {
    Graph graph = GraphOf({TensorOp(Add(0, 1)), ReshardOp{.input = 2, .spec = PartitionSpec()}});
    graph.program.updates = std::move(updates);
    return CheckGraph(graph).status();
  };
  EXPECT_THAT(with({{.operand = 0, .value = 2}, {.operand = 1, .value = 3}}), IsOk());
  EXPECT_THAT(
      with({{.operand = 2, .value = 3}}),
      StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField, HasSubstr("is no operand")));
  EXPECT_THAT(with({{.operand = 0, .value = 1}}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField,
                       HasSubstr("result of an op")));
  EXPECT_THAT(
      with({{.operand = 0, .value = 2}, {.operand = 0, .value = 3}}),
      StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField, HasSubstr("updated twice")));
  EXPECT_THAT(
      with({{.operand = 0, .value = 2}, {.operand = 1, .value = 2}}),
      StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField, HasSubstr("occurs twice")));
  Graph graph = GraphOf({MatmulOp{.lhs = 0, .rhs = 1, .transpose_rhs = true}});
  graph.program.updates = {{.operand = 0, .value = 2}};
  EXPECT_THAT(CheckGraph(graph),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kShapeMismatch,
                       HasSubstr("\"a\" is F32 (2, 3) and cannot become op 0 "
                                 "(matmul) F32 (2, 2)")));
}

TEST(GraphTest, NamesTheOpAndItsInputsInErrors) {
  EXPECT_THAT(CheckGraph(GraphOf({MatmulOp{.lhs = 0, .rhs = 1}})),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kShapeMismatch,
                       AllOf(HasSubstr("op 0 (matmul): "), HasSubstr("3 is contracted with 2"),
                             HasSubstr("inputs: \"a\" F32 (2, 3), \"b\" F32 (2, 3)"))));
}

TEST(GraphTest, LeavesOpsAfterAMergeToThePlanner) {
  // The planner halves dimension 0 if the axis partitions it.
  const auto graph = CheckGraph(
      GraphOf({CollectiveOp{.input = 0, .kind = CollectiveKind::kAllReduce, .axes = {"dp"}},
               TensorOp(ReshapeOp{.input = 2, .shape = {3}})}));
  ASSERT_THAT(graph, IsOk());
  EXPECT_EQ(graph->outputs.front().type, std::nullopt);
}

TEST(GraphTest, RefusesBadNames) {
  Graph graph = GraphOf({TensorOp(Add(0, 1))});
  graph.operands[1].name = "a";
  EXPECT_THAT(CheckGraph(graph), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField,
                                          HasSubstr("two operands have the name \"a\"")));
  graph.operands[1].name = "";
  EXPECT_THAT(CheckGraph(graph), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField,
                                          HasSubstr("is empty")));
  graph.operands[1].name = std::string(kMaxGraphNameBytes + 1, 'b');
  EXPECT_THAT(CheckGraph(graph), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField,
                                          HasSubstr("1025 bytes")));
  graph.operands.pop_back();
  EXPECT_THAT(CheckGraph(graph), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField,
                                          HasSubstr("the graph names 1 operands")));
}

TEST(GraphTest, RefusesTooManyOps) {
  EXPECT_THAT(
      CheckGraph(
          GraphOf(std::vector<ProgramOp>(kMaxProgramSize + 1, ProgramOp(TensorOp(Add(0, 1)))))),
      StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded, HasSubstr("1025 ops")));
}

TEST(GraphTest, FindsNames) {
  const Graph graph = GraphOf({TensorOp(Add(0, 1))});
  EXPECT_EQ(FindOperand(graph, "b").value(), 1u);
  EXPECT_EQ(FindOutput(graph, "y").value(), 0u);
  EXPECT_THAT(FindOutput(graph, "Y"),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound,
                       HasSubstr("the graph has no output \"Y\"; did you mean \"y\"?")));
  EXPECT_THAT(
      FindOperand(graph, "weights"),
      StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound, HasSubstr("it has operands a, b")));
}

}  // namespace
}  // namespace shardmesh
