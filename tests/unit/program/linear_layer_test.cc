// Runs lowered linear layers on simulated devices, and compares with the whole tensors.
#include "program/graph/linear_layer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "program/program.h"
#include "program/step_plan.h"
#include "program/value_layout.h"
#include "sharding/mesh.h"
#include "sharding/shape.h"
#include "sharding/tile.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tensor/dtype.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/program/plan_examples.h"
#include "tests/unit/program/plan_simulation.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TensorParallelConfig ConfigOf(std::optional<std::string> method, bool reduce_output = false,
                              bool reduce_scatter_output = false) {
  TensorParallelConfig config;
  config.matmul_method = std::move(method);
  config.reduce_output = reduce_output;
  config.reduce_scatter_output = reduce_scatter_output;
  return config;
}

// A layer of 8 features in and 4 out, with a bias and a scale.
LinearLayerOptions SmallLayer() {
  LinearLayerOptions options;
  options.layer = {.in_features = 8, .out_features = int64_t{4}, .scale = 0.5};
  return options;
}

// Returns the columns of a matrix, or the elements of a vector, in these ranges.
Dense ColumnsOf(const Dense& tensor, const std::vector<IndexRange>& ranges) {
  Dense result{.shape = tensor.shape, .elements = {}};
  result.shape.back() = 0;
  for (const IndexRange& range : ranges) result.shape.back() += range.size();
  const auto columns = static_cast<size_t>(tensor.shape.back());
  for (size_t row = 0; row < tensor.elements.size(); row += columns) {
    for (const IndexRange& range : ranges) {
      for (int64_t column = range.start; column < range.stop; ++column) {
        result.elements.push_back(tensor.elements[row + static_cast<size_t>(column)]);
      }
    }
  }
  return result;
}

Dense TransposedMatrix(const Dense& matrix) {
  Dense result{.shape = {matrix.shape[1], matrix.shape[0]}, .elements = {}};
  ForEachIndex(result.shape, [&](const Shape& index) {
    result.elements.push_back(matrix.elements[Offset(matrix.shape, {index[1], index[0]})]);
  });
  return result;
}

// Plans a lowered layer, with the default rates.
absl::StatusOr<Plan> PlanLayer(const LinearLayerProgram& layer) {
  return PlanProgram(layer.program, layer.operands,
                     {.mesh_id = "m", .mesh_revision = 1, .mesh = layer.mesh});
}

// Runs a layer of one part on simulated devices, and expects the result of the whole tensors. The
// kernel is (in, out). Returns the spec of the result.
PartitionSpec ExpectLayerResult(const LinearLayerOptions& options, const ValueDescriptor& input,
                                const Mesh& mesh) {
  const auto lowered = LowerLinearLayer(options, input, std::nullopt, mesh);
  EXPECT_THAT(lowered, IsOk());
  if (!lowered.ok()) return {};
  const auto plan = PlanLayer(*lowered);
  EXPECT_THAT(plan, IsOk());
  if (!plan.ok()) return {};
  const Dense x = Numbered(input.shape, 1);
  const Dense kernel =
      Numbered({options.layer.in_features, std::get<int64_t>(options.layer.out_features)}, 2);
  const Dense bias = Numbered({std::get<int64_t>(options.layer.out_features)}, 3);
  Simulation simulation(*plan);
  simulation.SetOperand(0, x);
  simulation.SetOperand(
      1, options.weight_layout == WeightLayout::kInOut ? kernel : TransposedMatrix(kernel));
  if (options.layer.use_bias) simulation.SetOperand(2, bias);
  simulation.Run();
  simulation.ExpectOutput(
      plan->outputs[0], Multiply(x, kernel, options.layer.use_bias ? &bias : nullptr, false, false,
                                 std::get<double>(options.layer.scale), options.activation));
  return plan->values[plan->outputs[0]].spec;
}

// Returns whether the plan of a layer has a collective of this kind.
bool HasCollective(const LinearLayerOptions& options, const ValueDescriptor& input,
                   CollectiveKind kind) {
  const Plan plan =
      *PlanLayer(*LowerLinearLayer(options, input, std::nullopt, *Mesh::Parse("tp=2")));
  for (const Instruction& instruction : plan.instructions) {
    const auto* const collective = std::get_if<GroupCollective>(&instruction.kind);
    if (collective != nullptr && collective->kind == kind) return true;
  }
  return false;
}

TEST(LinearLayerTest, EveryLayoutHasTheResultOfTheWholeTensors) {
  const Mesh mesh = *Mesh::Parse("dp=2,tp=2");
  std::vector<std::optional<TensorParallelConfig>> configs = {std::nullopt};
  for (const char* method : {"", "ALL_GATHER", "reduce_scatter"}) {
    std::optional<std::string> given;
    if (*method != '\0') given = method;
    configs.push_back(ConfigOf(given));
    configs.push_back(ConfigOf(given, true));
    configs.push_back(ConfigOf(given, false, true));
  }
  const std::vector<ValueDescriptor> inputs = {
      Value({8}, Spec({})),
      Value({8}, Spec({{"tp"}})),
      Value({6, 8}, Spec({{"dp"}, {"tp"}})),
      Value({6, 8}, Spec({{"tp"}})),
      Value({2, 4, 8}, Spec({{"dp"}, {"tp"}})),
      Value({2, 3, 4, 8}, Spec({{}, {}, {"dp", "tp"}})),
      Value({0, 8}, Spec({{"dp"}})),
  };
  for (const auto& config : configs) {
    for (const ParallelDirection direction :
         {ParallelDirection::kNone, ParallelDirection::kRow, ParallelDirection::kColumn}) {
      for (const bool use_bias : {false, true}) {
        for (const WeightLayout weights : {WeightLayout::kInOut, WeightLayout::kOutIn}) {
          for (const ValueDescriptor& input : inputs) {
            SCOPED_TRACE(StrCat(
                ShapeToString(input.shape), " ", input.spec.ToString(), ", ",
                config.has_value() ? config->matmul_method.value_or("no method") : "no config",
                ", direction ", static_cast<int>(direction)));
            LinearLayerOptions options = SmallLayer();
            options.layer.direction = direction;
            options.layer.use_bias = use_bias;
            options.weight_layout = weights;
            options.activation = Activation::kRelu;
            options.parallel = config;
            ExpectLayerResult(options, input, mesh);
          }
        }
      }
    }
  }
}

TEST(LinearLayerTest, ConfigSaysHowTheResultLies) {
  const Mesh mesh = *Mesh::Parse("dp=2,tp=2");
  const ValueDescriptor input = Value({4, 6, 8}, Spec({{"dp"}, {"tp"}}));
  const auto spec_of = [&](const TensorParallelConfig& config) {
    LinearLayerOptions options = SmallLayer();
    options.parallel = config;
    return LayoutOf(mesh, Value({4, 6, 4}, ExpectLayerResult(options, input, mesh)));
  };
  const ValueLayout whole = {.dims = {{"dp"}, {}, {}}};
  const ValueLayout in_parts = {.dims = {{"dp"}, {}, {"tp"}}};
  EXPECT_EQ(spec_of(ConfigOf(std::nullopt)), whole);
  EXPECT_EQ(spec_of(ConfigOf(std::nullopt, false, true)), in_parts);
  EXPECT_EQ(spec_of(ConfigOf("ALL_GATHER")), whole);
  EXPECT_EQ(spec_of(ConfigOf("ALL_GATHER", false, true)), in_parts);
  EXPECT_EQ(spec_of(ConfigOf("REDUCE_SCATTER")), in_parts);
  EXPECT_EQ(spec_of(ConfigOf("REDUCE_SCATTER", true)), whole);
}

TEST(LinearLayerTest, DirectionSaysHowTheWeightsLie) {
  const Mesh mesh = *Mesh::Parse("tp=2");
  const ValueDescriptor input = Value({8}, Spec({}));
  const auto specs_of = [&](ParallelDirection direction, std::optional<std::string> method,
                            WeightLayout weights) {
    LinearLayerOptions options = SmallLayer();
    options.layer.direction = direction;
    options.weight_layout = weights;
    options.parallel = ConfigOf(std::move(method));
    const LinearLayerProgram layer = *LowerLinearLayer(options, input, std::nullopt, mesh);
    return StrCat(layer.operands[1].spec.ToString(), " ", layer.operands[2].spec.ToString());
  };
  using Direction = ParallelDirection;
  EXPECT_EQ(specs_of(Direction::kRow, "ALL_GATHER", WeightLayout::kInOut), "P('tp', None) P(None)");
  EXPECT_EQ(specs_of(Direction::kRow, std::nullopt, WeightLayout::kOutIn), "P(None, 'tp') P(None)");
  EXPECT_EQ(specs_of(Direction::kColumn, std::nullopt, WeightLayout::kInOut),
            "P(None, 'tp') P('tp')");
  EXPECT_EQ(specs_of(Direction::kColumn, "REDUCE_SCATTER", WeightLayout::kOutIn),
            "P('tp', None) P('tp')");
  EXPECT_EQ(specs_of(Direction::kNone, "ALL_GATHER", WeightLayout::kInOut),
            "P(None, 'tp') P('tp')");
  EXPECT_EQ(specs_of(Direction::kNone, "REDUCE_SCATTER", WeightLayout::kInOut),
            "P('tp', None) P(None)");
  EXPECT_EQ(specs_of(Direction::kNone, std::nullopt, WeightLayout::kInOut),
            "P(None, None) P(None)");
}

TEST(LinearLayerTest, RowParallelLayerEndsInAReduceScatterOrAnAllReduce) {
  const ValueDescriptor input = Value({4, 8}, Spec({{}, {"tp"}}));
  LinearLayerOptions options = SmallLayer();
  options.parallel = ConfigOf("REDUCE_SCATTER");
  EXPECT_TRUE(HasCollective(options, input, CollectiveKind::kReduceScatter));
  EXPECT_FALSE(HasCollective(options, input, CollectiveKind::kAllReduce));
  options.parallel = ConfigOf("REDUCE_SCATTER", true);
  EXPECT_FALSE(HasCollective(options, input, CollectiveKind::kReduceScatter));
  EXPECT_TRUE(HasCollective(options, input, CollectiveKind::kAllReduce));
}

TEST(LinearLayerTest, ColumnParallelLayerKeepsItsPartsWithoutExchange) {
  const ValueDescriptor input = Value({4, 8}, Spec({}));
  LinearLayerOptions options = SmallLayer();
  options.layer.direction = ParallelDirection::kColumn;
  options.parallel = ConfigOf(std::nullopt, false, true);
  for (const CollectiveKind kind : AllCollectiveKinds()) {
    EXPECT_FALSE(HasCollective(options, input, kind)) << CollectiveKindName(kind);
  }
}

TEST(LinearLayerTest, PartsOfAMergedKernelHaveResultsOfTheirOwn) {
  const Mesh mesh = *Mesh::Parse("tp=2");
  const std::vector<int64_t> parts = {8, 4, 4};  // q, k and v
  LinearLayerOptions options;
  options.layer = {.in_features = 6, .out_features = parts, .scale = 2.0};
  options.layer.direction = ParallelDirection::kColumn;
  options.parallel = ConfigOf(std::nullopt, false, true);
  const ValueDescriptor input = Value({3, 6}, Spec({}));
  const auto layer = LowerLinearLayer(options, input, std::nullopt, mesh);
  ASSERT_THAT(layer, IsOk());
  ASSERT_EQ(layer->operands.size(), 7U);
  ASSERT_EQ(layer->program.outputs.size(), 3U);
  const auto plan = PlanLayer(*layer);
  ASSERT_THAT(plan, IsOk());

  const Dense x = Numbered({3, 6}, 1);
  const Dense kernel = Numbered({6, 16}, 2);
  const Dense bias = Numbered({16}, 3);
  const Dense merged = Multiply(x, kernel, &bias, false, false, 2.0, Activation::kNone);
  const Tiling halves = *Tiling::Create(mesh, Spec({{}, {"tp"}}), {6, 16});
  Simulation simulation(*plan);
  simulation.SetOperand(0, x);
  for (size_t part = 0; part < parts.size(); ++part) {
    const std::vector<IndexRange> columns = *MergedColumns(parts, 2, part);
    simulation.SetOperand(static_cast<ValueIndex>(1 + 2 * part), ColumnsOf(kernel, columns));
    simulation.SetOperand(static_cast<ValueIndex>(2 + 2 * part), ColumnsOf(bias, columns));
    // Each device's half of the merged kernel has its half of every part.
    for (DeviceId device = 0; device < 2; ++device) {
      const IndexRange half = halves.TileOf(device).ranges[1];
      const IndexRange& range = columns[static_cast<size_t>(device)];
      EXPECT_LE(half.start, range.start);
      EXPECT_LE(range.stop, half.stop);
    }
  }
  simulation.Run();
  for (size_t part = 0; part < parts.size(); ++part) {
    simulation.ExpectOutput(plan->outputs[part], ColumnsOf(merged, *MergedColumns(parts, 2, part)));
  }
}

TEST(LinearLayerTest, MergedColumnsAreInterleavedByShard) {
  const std::vector<int64_t> parts = {4, 2};
  EXPECT_THAT(*MergedColumns(parts, 1, 0), ElementsAre(IndexRange{0, 4}));
  EXPECT_THAT(*MergedColumns(parts, 1, 1), ElementsAre(IndexRange{4, 6}));
  EXPECT_THAT(*MergedColumns(parts, 2, 0), ElementsAre(IndexRange{0, 2}, IndexRange{3, 5}));
  EXPECT_THAT(*MergedColumns(parts, 2, 1), ElementsAre(IndexRange{2, 3}, IndexRange{5, 6}));
  EXPECT_THAT(MergedColumns(parts, 4, 0).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kNotDivisible));
  EXPECT_THAT(MergedColumns(parts, 0, 0).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
}

TEST(LinearLayerTest, PromotesTheTypesOfAllArrays) {
  const Mesh mesh = *Mesh::Parse("tp=1");
  const auto types_of = [&](Dtype input, Dtype param, std::optional<Dtype> dtype) {
    LinearLayerOptions options = SmallLayer();
    options.param_dtype = param;
    options.dtype = dtype;
    const LinearLayerProgram layer =
        *LowerLinearLayer(options, Value({8}, Spec({}), input), std::nullopt, mesh);
    for (const ValueDescriptor& operand : layer.operands) {
      EXPECT_EQ(operand.dtype, layer.operands[0].dtype);
    }
    return std::pair(layer.dtype, layer.operands[0].dtype);
  };
  EXPECT_EQ(types_of(Dtype::kI8, Dtype::kBF16, std::nullopt),
            std::pair(Dtype::kBF16, Dtype::kBF16));
  EXPECT_EQ(types_of(Dtype::kF16, Dtype::kBF16, std::nullopt), std::pair(Dtype::kF32, Dtype::kF32));
  EXPECT_EQ(types_of(Dtype::kF32, Dtype::kF32, Dtype::kBF16),
            std::pair(Dtype::kBF16, Dtype::kBF16));
  // No kernel computes in F16.
  EXPECT_EQ(types_of(Dtype::kF16, Dtype::kF16, std::nullopt), std::pair(Dtype::kF16, Dtype::kF32));
}

TEST(LinearLayerTest, AWeightTakesThePlaceOfTheKernel) {
  const Mesh mesh = *Mesh::Parse("tp=2");
  LinearLayerOptions options = SmallLayer();
  options.layer.use_bias = false;
  options.parallel = ConfigOf("ALL_GATHER");
  const ValueDescriptor weight = Value({8, 7}, Spec({{"tp"}}), Dtype::kBF16);
  const auto layer = LowerLinearLayer(options, Value({8}, Spec({}), Dtype::kBF16), weight, mesh);
  ASSERT_THAT(layer, IsOk());
  EXPECT_EQ(layer->operands[1], weight);
  EXPECT_EQ(layer->dtype, Dtype::kBF16);
}

TEST(LinearLayerTest, ScaleByNameIsThatOfTheFeatures) {
  LinearLayerOptions options = SmallLayer();
  options.layer.in_features = 16;
  options.layer.scale = "fan_in";
  const LinearLayerProgram layer =
      *LowerLinearLayer(options, Value({16}, Spec({})), std::nullopt, *Mesh::Parse("tp=1"));
  EXPECT_EQ(std::get<LinearOp>(layer.program.ops[0]).scale, 0.25F);
}

TEST(LinearLayerTest, KeepsTheCutPointsOfTheRows) {
  const Mesh mesh = *Mesh::Parse("dp=2,tp=2");
  LinearLayerOptions options = SmallLayer();
  options.parallel = ConfigOf("REDUCE_SCATTER");
  ValueDescriptor input = Value({5, 8}, Spec({{"dp"}, {"tp"}}));
  input.cut_points = {{0, 3, 5}, {}};
  ExpectLayerResult(options, input, mesh);
  const Plan plan = *PlanLayer(*LowerLinearLayer(options, input, std::nullopt, mesh));
  EXPECT_THAT(plan.values[plan.outputs[0]].cut_points,
              ElementsAre(CutPoints{0, 3, 5}, CutPoints{}));
}

TEST(LinearLayerTest, RefusesWhatDoesNotFit) {
  const Mesh mesh = *Mesh::Parse("tp=2");
  const ValueDescriptor input = Value({3, 8}, Spec({}));
  const auto refusal = [&](const LinearLayerOptions& options, const ValueDescriptor& x,
                           const std::optional<ValueDescriptor>& weight = std::nullopt) {
    return LowerLinearLayer(options, x, weight, mesh).status();
  };
  const auto is = [](Reason reason) {
    return StatusIs(absl::StatusCode::kInvalidArgument, reason);
  };
  EXPECT_THAT(refusal(SmallLayer(), Value({}, Spec({}))), is(Reason::kShapeMismatch));
  EXPECT_THAT(refusal(SmallLayer(), Value({3, 7}, Spec({}))), is(Reason::kShapeMismatch));
  EXPECT_THAT(refusal(SmallLayer(), input, Value({8}, Spec({}))), is(Reason::kShapeMismatch));
  EXPECT_THAT(refusal(SmallLayer(), input, Value({4, 8}, Spec({}))), is(Reason::kShapeMismatch));
  const absl::Status bias = refusal(SmallLayer(), input, Value({8, 7}, Spec({})));
  EXPECT_THAT(bias, is(Reason::kShapeMismatch));
  EXPECT_EQ(PythonTypeOf(bias), "TypeError");

  LinearLayerOptions options = SmallLayer();
  options.parallel = ConfigOf("RING");
  const absl::Status method = refusal(options, input);
  EXPECT_THAT(method, is(Reason::kBadField));
  EXPECT_THAT(std::string(method.message()),
              HasSubstr("matmul_method 'RING' is neither ALL_GATHER nor REDUCE_SCATTER"));
  options.parallel = ConfigOf(std::nullopt, true, true);
  EXPECT_THAT(refusal(options, input), is(Reason::kBadField));
  options.parallel = ConfigOf(std::nullopt);
  options.parallel->axis_name = "sp";
  EXPECT_THAT(refusal(options, input), is(Reason::kAxisNotInMesh));
  options.parallel = ConfigOf("ALL_GATHER");
  options.layer.out_features = int64_t{5};
  EXPECT_THAT(refusal(options, input), is(Reason::kNotDivisible));

  options.parallel = ConfigOf("REDUCE_SCATTER");
  EXPECT_THAT(refusal(options, input), is(Reason::kNotDivisible)) << "the result over tp";
  options.parallel = ConfigOf("REDUCE_SCATTER", true);
  EXPECT_THAT(refusal(options, input), IsOk());
  // Without tp, the rows lie over dp in equal parts.
  ValueDescriptor cut = Value({5, 8}, Spec({{"dp", "tp"}}));
  cut.cut_points = {{0, 1, 2, 3, 5}, {}};
  EXPECT_THAT(LowerLinearLayer(options, cut, std::nullopt, *Mesh::Parse("dp=2,tp=2")).status(),
              is(Reason::kNotDivisible));

  LinearLayerOptions parts = SmallLayer();
  parts.layer.out_features = std::vector<int64_t>{2, 2};
  EXPECT_THAT(refusal(parts, input, Value({8, 4}, Spec({}))), is(Reason::kBadField));
  parts.layer.out_features = std::vector<int64_t>(4096, 1);
  EXPECT_THAT(refusal(parts, input), is(Reason::kLimitExceeded));

  LinearLayerOptions narrow = SmallLayer();
  narrow.dtype = Dtype::kF8E5M2;
  EXPECT_THAT(refusal(narrow, input), is(Reason::kUnsupportedDtype));
}

}  // namespace
}  // namespace shardmesh
