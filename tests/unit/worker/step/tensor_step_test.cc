// Steps of tensor ops: each op on several ranks, compared with one rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/worker/step/executor_fixture.h"

namespace shardmesh::worker {
namespace {

// A tensor that a program takes, and how it lies on the mesh.
struct Input {
  ValueDescriptor value;
  std::string bytes;
  bool is_literal = false;
};

int64_t CountOf(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<int64_t>());
}

Input Floats(const Shape& shape, std::vector<std::string> axes, int seed = 1) {
  const Tensor tensor = Tensor::Random(shape, seed);
  return {{Dtype::kF32, shape, SpecOf(std::move(axes))},
          std::string(tensor.bytes().data(), tensor.bytes().size())};
}

Input Ints(const Shape& shape, std::vector<std::string> axes,
           const std::vector<int32_t>& elements) {
  std::string bytes(reinterpret_cast<const char*>(elements.data()),
                    elements.size() * sizeof(int32_t));
  return {{Dtype::kI32, shape, SpecOf(std::move(axes))}, std::move(bytes)};
}

Input AsLiteral(Input input) {
  input.is_literal = true;
  return input;
}

// A program whose last op's result is compared.
struct OpCase {
  std::string name;
  std::vector<Input> inputs;
  std::vector<ProgramOp> ops;
  int64_t result_rank = 0;
};

std::vector<OpCase> ElementCases() {
  const Input rows = Floats({8, 4, 6}, {"x", "", "y"});
  return {
      {"add, broadcast",
       {rows, Floats({4, 1}, {"", ""}, 2)},
       {MapOp{MapFunction::kAdd, {0, 1}}},
       3},
      {"chain over one memory",
       {rows},
       {MapOp{MapFunction::kExp, {0}}, MapOp{MapFunction::kNegate, {1}},
        MapOp{MapFunction::kMultiply, {2, 0}}},
       3},
      {"one value twice", {rows}, {MapOp{MapFunction::kMultiply, {0, 0}}}, 3},
      {"an operand that is a literal",
       {rows, AsLiteral(Floats({8, 4, 6}, {"", "", "x"}, 3))},
       {MapOp{MapFunction::kSubtract, {0, 1}}},
       3},
      {"a short literal",
       {rows, AsLiteral(Floats({1}, {""}, 3))},
       {MapOp{MapFunction::kMaximum, {0, 1}}},
       3},
      {"convert",
       {rows},
       {ConvertOp{.input = 0, .dtype = Dtype::kF16}, ConvertOp{.input = 1, .dtype = Dtype::kF32}},
       3},
      {"constant",
       {rows},
       {ConstantOp{{Dtype::kF32, {6}, Floats({6}, {""}, 4).bytes}},
        MapOp{MapFunction::kAdd, {0, 1}}},
       3},
      {"rms norm",
       {rows, Floats({6}, {"y"}, 5)},
       {NormOp{.kind = NormKind::kRms, .input = 0, .weight = 1}},
       3},
      {"layer norm",
       {rows, Floats({6}, {""}, 5), Floats({6}, {""}, 6)},
       {NormOp{.kind = NormKind::kLayer, .input = 0, .weight = 1, .bias = 2}},
       3},
      {"softmax",
       {rows, Ints({4, 1}, {"", ""}, {1, 0, 1, 1})},
       {SoftmaxOp{.input = 0, .mask = 1, .scale = 0.5F}},
       3},
      {"sum over a partitioned dimension", {rows}, {ReduceOp{.input = 0, .dimensions = {0, 2}}}, 1},
      {"mean that keeps dimensions",
       {rows},
       {ReduceOp{
           .input = 0, .reduction = Reduction::kMean, .dimensions = {1}, .keeps_dimensions = true}},
       3},
      {"no elements", {Floats({0, 4}, {"", "y"})}, {MapOp{MapFunction::kTanh, {0}}}, 2},
  };
}

std::vector<OpCase> ShapeCases() {
  const Input rows = Floats({8, 4, 6}, {"x", "", "y"});
  return {
      {"reshape", {rows}, {ReshapeOp{.input = 0, .shape = {32, 6}}}, 2},
      {"reshape over its input",
       {rows},
       {MapOp{MapFunction::kAbs, {0}}, ReshapeOp{.input = 1, .shape = {8, 2, 2, 6}},
        MapOp{MapFunction::kNegate, {2}}},
       4},
      {"reshape of no elements",
       {Floats({0, 4}, {"", ""})},
       {ReshapeOp{.input = 0, .shape = {0}}},
       1},
      {"transpose", {rows}, {TransposeOp{.input = 0, .permutation = {2, 0, 1}}}, 3},
      {"slice",
       {rows},
       {SliceOp{.input = 0, .starts = {1, 0, 0}, .limits = {8, 4, 5}, .steps = {2, 1, 3}}},
       3},
      {"concatenate",
       {rows, Floats({8, 3, 6}, {"", "", "x"}, 2)},
       {ConcatenateOp{.inputs = {0, 1, 0}, .dimension = 1}},
       3},
      {"top-k", {rows}, {TopKOp{.input = 0, .count = 3}}, 3},
      {"argmax", {rows}, {TopKOp{.input = 0, .count = 1, .drops_dimension = true}}, 2},
  };
}

std::vector<OpCase> TransformerCases() {
  const Input heads = Floats({2, 3, 4, 8}, {"", "", "x", ""});
  const Input keys = Floats({2, 5, 2, 8}, {"", "", "x", ""}, 2);
  const Input values = Floats({2, 5, 2, 6}, {"", "", "", ""}, 3);
  return {
      {"rotary",
       {heads, AsLiteral(Ints({2, 3}, {"", ""}, {0, 1, 2, 4, 5, 6})), Floats({4}, {""}, 4)},
       {RotaryOp{.input = 0, .positions = 1, .frequencies = 2}},
       4},
      {"embedding of partitioned rows",
       {Floats({8, 6}, {"x", "y"}), AsLiteral(Ints({2, 2}, {"", ""}, {7, 0, -1, 4}))},
       {EmbeddingOp{.table = 0, .ids = 1}},
       3},
      {"attention", {heads, keys, values}, {AttentionOp{.query = 0, .keys = 1, .values = 2}}, 4},
      {"attention at positions, with a mask",
       {heads, keys, values, AsLiteral(Ints({2, 3}, {"", ""}, {0, 1, 4, -1, 2, 3})),
        Ints({2, 5}, {"", ""}, {1, 1, 1, 1, 1, 0, 1, 1, 1, 1})},
       {AttentionOp{.query = 0, .keys = 1, .values = 2, .positions = 3, .mask = 4, .scale = 0.35F}},
       4},
      {"update of rows",
       {keys, Floats({2, 2, 2, 8}, {"", "", "", ""}, 5), AsLiteral(Ints({2}, {""}, {4, 1}))},
       {UpdateRowsOp{.input = 0, .update = 1, .positions = 2}},
       4},
      {"update of no rows",
       {keys, Floats({2, 0, 2, 8}, {"", "", "", ""}, 5), Ints({0}, {""}, {})},
       {UpdateRowsOp{.input = 0, .update = 1, .positions = 2}},
       4},
  };
}

class TensorStepTest : public StepExecutorTest {
 protected:
  // Runs the case on the ranks of the mesh, and returns the last result, whole.
  Tensor Run(int64_t sequence, const OpCase& each) {
    operands_.clear();
    order_.operands.clear();
    {
      absl::MutexLock lock(&mutex_);
      results_.clear();
    }
    for (size_t i = 0; i < each.inputs.size(); ++i) {
      const Input& input = each.inputs[i];
      if (input.is_literal) {
        operands_.push_back(input.value);
        order_.operands.push_back(
            {.value = Literal{input.value.dtype, input.value.shape, input.bytes}});
      } else {
        PutBytes(StrCat("in-", sequence, "-", i), input.value, input.bytes);
      }
    }
    Program program = {
        .operand_count = static_cast<uint32_t>(each.inputs.size()), .ops = each.ops, .outputs = {}};
    const auto last = static_cast<ValueIndex>(each.inputs.size() + each.ops.size() - 1);
    program.ops.push_back(
        ReshardOp{.input = last,
                  .spec = SpecOf(std::vector<std::string>(static_cast<size_t>(each.result_rank)))});
    program.outputs = {last + 1};
    Order(sequence, program);
    if (HasFatalFailure()) return {};
    RunOnAll();
    return Assemble();
  }

  // Runs all cases on a mesh.
  std::vector<Tensor> RunOn(const std::string& mesh, const std::vector<OpCase>& cases) {
    TearDown();
    clock_.reset();
    StartMesh(mesh);
    std::vector<Tensor> results;
    for (const OpCase& each : cases) {
      SCOPED_TRACE(StrCat(each.name, " on ", mesh));
      results.push_back(Run(static_cast<int64_t>(results.size()) + 1, each));
      if (HasFatalFailure()) return results;
    }
    return results;
  }

  void ExpectEqualOnAllMeshes(const std::vector<OpCase>& cases) {
    const std::vector<Tensor> expected = RunOn("x=1,y=1", cases);
    ASSERT_EQ(expected.size(), cases.size());
    for (const std::string mesh : {"x=2,y=1", "x=2,y=2"}) {
      const std::vector<Tensor> results = RunOn(mesh, cases);
      ASSERT_EQ(results.size(), cases.size());
      for (size_t i = 0; i < cases.size(); ++i) {
        SCOPED_TRACE(StrCat(cases[i].name, " on ", mesh));
        ExpectClose(results[i], expected[i]);
      }
    }
  }

  // Elements of I32 look like tiny floats, and must be equal.
  static void ExpectClose(const Tensor& result, const Tensor& expected) {
    ASSERT_EQ(result.shape, expected.shape);
    ASSERT_EQ(static_cast<int64_t>(result.elements.size()), CountOf(expected.shape));
    for (size_t i = 0; i < expected.elements.size(); ++i) {
      const float want = expected.elements[i];
      if (std::fpclassify(want) != FP_NORMAL) {
        ASSERT_EQ(std::memcmp(&result.elements[i], &want, sizeof(want)), 0) << i;
      } else {
        ASSERT_NEAR(static_cast<double>(result.elements[i]), static_cast<double>(want),
                    1e-5 * std::max(1.0, std::abs(static_cast<double>(want))))
            << i;
      }
    }
  }
};

INSTANTIATE_TEST_SUITE_P(All, TensorStepTest, testing::Values(Transport::kStream, Transport::kShm),
                         TransportName);

TEST_P(TensorStepTest, OpsOnElementsEqualThoseOfOneRank) { ExpectEqualOnAllMeshes(ElementCases()); }

TEST_P(TensorStepTest, ChangesOfShapeEqualThoseOfOneRank) { ExpectEqualOnAllMeshes(ShapeCases()); }

TEST_P(TensorStepTest, OpsOfTransformersEqualThoseOfOneRank) {
  ExpectEqualOnAllMeshes(TransformerCases());
}

// Chains of functions of elements, with results that are broadcast and converted.
std::vector<OpCase> ChainCases() {
  const Input rows = Floats({8, 4, 6}, {"x", "", "y"});
  const Input row = Floats({6}, {"y"}, 2);
  const Input column = Floats({4, 1}, {"", ""}, 3);
  return {
      {"scale, bias, activation and gate",
       {rows, row, column},
       {MapOp{MapFunction::kMultiply, {0, 2}}, MapOp{MapFunction::kAdd, {3, 1}},
        MapOp{MapFunction::kSilu, {4}}, MapOp{MapFunction::kMultiply, {5, 0}}},
       3},
      {"conversions between",
       {rows, row},
       {ConvertOp{.input = 0, .dtype = Dtype::kBF16}, MapOp{MapFunction::kGelu, {2}},
        ConvertOp{.input = 3, .dtype = Dtype::kF32}, MapOp{MapFunction::kSubtract, {4, 1}}},
       3},
      {"over a value that ends",
       {rows, rows},
       {TransposeOp{.input = 0, .permutation = {0, 1, 2}}, MapOp{MapFunction::kExp, {2}},
        MapOp{MapFunction::kDivide, {3, 2}}, MapOp{MapFunction::kAdd, {4, 1}},
        TransposeOp{.input = 5, .permutation = {0, 1, 2}}},
       3},
      {"no elements",
       {Floats({0, 4}, {"", "y"})},
       {MapOp{MapFunction::kTanh, {0}}, MapOp{MapFunction::kAdd, {1, 0}}},
       2},
  };
}

TEST_P(TensorStepTest, FusedOpsHaveTheBitsOfSeparateOnes) {
  for (const std::string mesh : {"x=1,y=1", "x=2,y=2"}) {
    const std::vector<Tensor> separate = RunOn(mesh, ChainCases());
    may_fuse_ops_ = true;
    const std::vector<Tensor> fused = RunOn(mesh, ChainCases());
    may_fuse_ops_ = false;
    ASSERT_EQ(fused.size(), separate.size());
    for (size_t i = 0; i < fused.size(); ++i) {
      EXPECT_EQ(fused[i].bytes(), separate[i].bytes()) << ChainCases()[i].name << " on " << mesh;
    }
  }
}

TEST_P(TensorStepTest, AFusedKernelIsRecordedByTheNamesOfItsOps) {
  may_fuse_ops_ = true;
  StartMesh("x=1");
  Run(1, {"chain",
          {Floats({4, 6}, {"", ""})},
          {MapOp{MapFunction::kExp, {0}}, MapOp{MapFunction::kAdd, {1, 0}}},
          2});
  EXPECT_GT(Await(0).kernel_time, absl::ZeroDuration());
  const std::vector<FlightRecord> records = rank(0).recorder.Last();
  ASSERT_FALSE(records.empty());
  EXPECT_EQ(records.front().what, "op 1 (exp+add): compute");
}

TEST_P(TensorStepTest, AnOpHasTheElementsOfItsDefinition) {
  StartMesh("x=2");
  const Input a = Floats({4, 3}, {"x", ""}, 1);
  const Input b = Floats({3}, {""}, 2);
  const Tensor sum = Run(1, {"add", {a, b}, {MapOp{MapFunction::kAdd, {0, 1}}}, 2});
  const Tensor left = Tensor::Random({4, 3}, 1);
  const Tensor right = Tensor::Random({3}, 2);
  ASSERT_EQ(sum.elements.size(), 12U);
  for (size_t i = 0; i < sum.elements.size(); ++i) {
    EXPECT_EQ(sum.elements[i], left.elements[i] + right.elements[i % 3]) << i;
  }
}

TEST_P(TensorStepTest, AKnownPlanComputesFromTheOperandsOfEachRun) {
  StartMesh("x=2");
  const auto run = [this](int64_t sequence, int seed) {
    return Run(sequence, {"norm",
                          {Floats({4, 6}, {"x", ""}, seed), Floats({6}, {""}, seed + 1)},
                          {NormOp{.input = 0, .weight = 1}, MapOp{MapFunction::kTanh, {2}}},
                          2})
        .elements;
  };
  const std::vector<float> first = run(1, 10);
  const std::string plan_hash = order_.plan_hash;
  EXPECT_NE(run(2, 20), first);
  EXPECT_EQ(order_.plan_hash, plan_hash);
  EXPECT_EQ(run(3, 10), first);
}

TEST_P(TensorStepTest, AKernelIsCountedAndRecorded) {
  StartMesh("x=1");
  Run(1, {"exp", {Floats({4, 6}, {"", ""})}, {MapOp{MapFunction::kExp, {0}}}, 2});
  EXPECT_GT(Await(0).kernel_time, absl::ZeroDuration());
  const std::vector<FlightRecord> records = rank(0).recorder.Last();
  ASSERT_FALSE(records.empty());
  EXPECT_THAT(records.front().what, testing::HasSubstr("exp"));
}

}  // namespace
}  // namespace shardmesh::worker
