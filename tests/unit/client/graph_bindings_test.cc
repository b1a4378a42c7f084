// Binds graphs to arrays and literals by name.
#include "client/types/graph_bindings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "status/reason.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::client {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// y = a + b, z = -y; the state "cache" becomes z.
Graph SmallGraph() {
  GraphBuilder builder;
  const GraphValue a = builder.Parameter("a", Dtype::kF32, {2});
  const GraphValue b = builder.Parameter("b", Dtype::kF32, {2});
  const GraphValue cache = builder.State("cache", Dtype::kF32, {2});
  const GraphValue y = builder.Add(a, b);
  const GraphValue z = builder.Negate(y);
  builder.Output("y", y);
  builder.Output("z", z);
  builder.Update(cache, builder.Abs(z));
  return builder.Build().value();
}

Literal TwoFloats() { return {Dtype::kF32, {2}, std::string(8, '\0')}; }

TEST(GraphBindingsTest, BindsByName) {
  const Graph graph = SmallGraph();
  GraphBindings bindings;
  bindings.operands.emplace("b", TwoFloats());
  bindings.array_prefix = "model/";
  bindings.output_names = {{"z", "kept"}};
  bindings.output_specs.emplace("y", PartitionSpec({SpecEntry::Axis("tp")}));
  bindings.mesh_id = "m";
  const auto call = BindGraph(graph, bindings);
  ASSERT_THAT(call, IsOk());
  EXPECT_EQ(std::get<Program>(call->work), graph.program);
  ASSERT_EQ(call->operands.size(), 3u);
  EXPECT_EQ(std::get<ArraySelector>(call->operands[0].value).name, "model/a");
  EXPECT_EQ(std::get<Literal>(call->operands[1].value), TwoFloats());
  EXPECT_EQ(std::get<ArraySelector>(call->operands[2].value).name, "model/cache");
  EXPECT_THAT(call->output.names, ElementsAre("", "kept"));
  EXPECT_THAT(call->output.specs,
              ElementsAre(PartitionSpec({SpecEntry::Axis("tp")}), std::nullopt));
  EXPECT_EQ(call->mesh_id, "m");
}

TEST(GraphBindingsTest, ListsMissingOperands) {
  GraphBindings bindings;
  bindings.operands.emplace("b", TwoFloats());
  EXPECT_THAT(BindGraph(SmallGraph(), bindings),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kMissingArgument,
                       HasSubstr("nothing is given for 2 of the graph's 3 operands: \"a\" F32 "
                                 "(2,), \"cache\" F32 (2,)")));
}

TEST(GraphBindingsTest, RefusesUnknownNames) {
  GraphBindings operand;
  operand.operands.emplace("cach", TwoFloats());
  EXPECT_THAT(BindGraph(SmallGraph(), operand),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound,
                       HasSubstr("no operand \"cach\"; did you mean \"cache\"?")));
  GraphBindings output;
  output.array_prefix = "";
  output.output_names = {{"Z", "kept"}};
  EXPECT_THAT(BindGraph(SmallGraph(), output),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound,
                       HasSubstr("no output \"Z\"; did you mean \"z\"?")));
}

TEST(GraphBindingsTest, RefusesLiteralsThatDoNotFit) {
  GraphBindings bindings;
  bindings.array_prefix = "";
  bindings.operands.emplace("b", Literal{Dtype::kF32, {1}, std::string(4, '\0')});
  EXPECT_THAT(BindGraph(SmallGraph(), bindings),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kShapeMismatch,
                       HasSubstr("operand \"b\" is F32 (2,); F32 (1,) is given")));
  GraphBindings state;
  state.array_prefix = "";
  state.operands.emplace("cache", TwoFloats());
  EXPECT_THAT(BindGraph(SmallGraph(), state),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField,
                       HasSubstr("\"cache\" is state")));
}

TEST(GraphBindingsTest, LiteralsOfASymbolicDimensionHaveOneLength) {
  GraphBuilder builder;
  const GraphExtent n = builder.Symbol("n", 1, 4);
  const GraphValue a = builder.Parameter("a", Dtype::kF32, {n});
  const GraphValue b = builder.Parameter("b", Dtype::kF32, {n, 2});
  builder.Output("y", builder.Add(builder.Reshape(a, {n, 1}), b));
  const Graph graph = builder.Build().value();
  const auto bind = [&](int64_t first, int64_t second) {
    GraphBindings bindings;
    const auto zeros = [](int64_t count) {
      return std::string(static_cast<size_t>(count) * sizeof(float), '\0');
    };
    bindings.operands.emplace("a", Literal{Dtype::kF32, {first}, zeros(first)});
    bindings.operands.emplace("b", Literal{Dtype::kF32, {second, 2}, zeros(2 * second)});
    return BindGraph(graph, bindings);
  };
  EXPECT_THAT(bind(1, 1), IsOk());
  EXPECT_THAT(bind(4, 4), IsOk());
  EXPECT_THAT(bind(2, 3), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kShapeMismatch,
                                   HasSubstr("dimension 0 of operand \"b\" is 3, so n would be 3; "
                                             "by dimension 0 of operand \"a\" it is 2")));
  EXPECT_THAT(bind(5, 5), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kShapeMismatch,
                                   HasSubstr("n is 5; the program is for n from 1 to 4")));
  EXPECT_THAT(BindGraph(graph, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kMissingArgument,
                       HasSubstr("\"b\" F32 (n, 2)")));
}

TEST(GraphBindingsTest, CallsByAHandleHaveNoProgram) {
  const Graph graph = SmallGraph();
  CompiledProgram compiled;
  compiled.plan_hash = std::string(32, 'h');
  compiled.program = std::make_shared<const Program>(graph.program);
  compiled.mesh_id = "pod";
  GraphBindings bindings;
  bindings.array_prefix = "";
  const auto call = BindGraph(graph, compiled, bindings);
  ASSERT_THAT(call, IsOk());
  EXPECT_EQ(std::get<std::string>(call->work), compiled.plan_hash);
  EXPECT_EQ(call->program, compiled.program);
  EXPECT_EQ(call->operands.size(), 3u);
  EXPECT_EQ(call->mesh_id, "pod");
  bindings.mesh_id = "other";
  const auto elsewhere = BindGraph(graph, compiled, bindings);
  ASSERT_THAT(elsewhere, IsOk());
  EXPECT_EQ(elsewhere->mesh_id, "other");
  bindings.output_specs.emplace("y", PartitionSpec());
  EXPECT_THAT(BindGraph(graph, compiled, bindings),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
}

TEST(GraphBindingsTest, FindsOutputs) {
  const Graph graph = SmallGraph();
  StepResult result;
  result.outputs.resize(2);
  const auto found = FindOutput(graph, result, "z");
  ASSERT_THAT(found, IsOk());
  EXPECT_EQ(*found, &result.outputs[1]);
  EXPECT_THAT(
      FindOutput(graph, StepResult(), "z"),
      StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField, HasSubstr("0 results")));
}

}  // namespace
}  // namespace shardmesh::client
