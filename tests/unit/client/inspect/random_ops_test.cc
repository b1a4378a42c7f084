// The ops of random graphs, as workers compute them from whole tensors, beside their reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <variant>
#include <vector>

#include "client/inspect/reference_ops.h"
#include "client/inspect/reference_program.h"
#include "program/graph/graph.h"
#include "status/str_cat.h"
#include "tests/testing/random_cases.h"
#include "tests/unit/program/plan_simulation.h"
#include "tests/unit/program/random_programs.h"
#include "tests/unit/worker/tensor_op/op_run.h"

namespace shardmesh::client {
namespace {

using ::shardmesh::worker::op_test::RunOp;
using ::shardmesh::worker::op_test::TestTile;
using ::shardmesh::worker::op_test::Unset;
using ::shardmesh::worker::op_test::ValuesOf;

TestTile TileOf(const Literal& literal) {
  TestTile tile = Unset(literal.dtype, literal.shape);
  tile.bytes.assign(literal.bytes.begin(), literal.bytes.end());
  return tile;
}

// Returns the reference of one op for these inputs.
BoundedTensorPtr ReferenceOf(const ProgramOp& op, const std::vector<TestTile>& inputs) {
  std::vector<ValueIndex> numbers;
  std::vector<TensorType> types;
  std::vector<BoundedTensorPtr> tensors;
  for (const TestTile& tile : inputs) {
    numbers.push_back(static_cast<ValueIndex>(numbers.size()));
    types.push_back({.dtype = tile.dtype, .shape = tile.shape});
    tensors.push_back(std::make_shared<const BoundedTensor>(
        *ExactTensor(*TensorView::Create(tile.dtype, tile.shape, tile.bytes))));
  }
  Program program = {.operand_count = static_cast<uint32_t>(inputs.size()),
                     .ops = {WithProgramOpInputs(op, numbers)},
                     .outputs = {}};
  const auto all = TypesOfValues(program, types);
  EXPECT_TRUE(all.ok()) << all.status();
  return ReferenceValues(program, *all, std::move(tensors))->back();
}

TEST(RandomOpsTest, ResultsOfWorkersAreWithinTheBounds) {
  const test::RandomCases cases = test::RandomCasesOf(200);
  for (int64_t i = 0; i < cases.count && !testing::Test::HasFailure(); ++i) {
    const auto seed = static_cast<uint32_t>(cases.first_seed + i);
    std::mt19937 random(seed);
    const RandomProgram graph =
        RandomGraph(*Mesh::Parse("a=1"), {.has_collectives = false}, random);
    SCOPED_TRACE(StrCat("SHARDMESH_RANDOM_SEED=", seed, ": ", graph.ToString()));
    std::vector<TestTile> values;
    for (const Literal& content : graph.contents) values.push_back(TileOf(content));
    for (const ProgramOp& op : graph.program.ops) {
      std::vector<TestTile> inputs;
      for (const ValueIndex input : InputsOfOp(op)) inputs.push_back(values[input]);
      const BoundedTensorPtr reference = ReferenceOf(op, inputs);
      const auto* const tensor_op = std::get_if<TensorOp>(&op);
      if (tensor_op == nullptr) {  // no op of worker/tensor_op
        values.push_back(TileOf(LiteralOf(
            reference->dtype, {.shape = reference->shape, .elements = reference->values})));
        continue;
      }
      values.push_back(RunOp(*tensor_op, inputs));
      const std::vector<double> elements = ValuesOf(values.back());
      ASSERT_EQ(elements.size(), reference->size());
      for (size_t e = 0; e < elements.size(); ++e) {
        const double expected = reference->values[e];
        const bool are_nans = std::isnan(elements[e]) && std::isnan(expected);
        if (!std::isfinite(reference->bound(e)) || are_nans || elements[e] == expected) continue;
        ASSERT_TRUE(std::abs(elements[e] - expected) <= reference->bound(e))
            << "value " << values.size() - 1 << ", element " << e << " is " << elements[e]
            << ", not " << expected;
      }
    }
  }
}

}  // namespace
}  // namespace shardmesh::client
