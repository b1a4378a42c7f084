// Each tensor op against numpy's recorded results (tests/data/numpy).
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/unit/worker/tensor_op/op_run.h"

namespace shardmesh::worker::op_test {
namespace {

// The ops by the names of the recorded cases.
std::map<std::string, TensorOp> RecordedOps() {
  std::map<std::string, TensorOp> ops;
  for (const MapFunction function : AllMapFunctions()) {
    ops[std::string(MapFunctionName(function))] =
        MapOp{.function = function,
              .inputs = std::vector<ValueIndex>(InputCountOf(function), ValueIndex{0})};
  }
  ops["rms-norm"] = NormOp{.kind = NormKind::kRms, .weight = 1};
  ops["layer-norm"] = NormOp{.kind = NormKind::kLayer, .weight = 1, .bias = 2};
  ops["l2-norm"] = NormOp{.kind = NormKind::kL2};
  ops["softmax"] = SoftmaxOp{};
  ops["sum"] = ReduceOp{.reduction = Reduction::kSum, .dimensions = {0, 2}};
  ops["product"] = ReduceOp{.reduction = Reduction::kProduct, .dimensions = {0, 2}};
  ops["min"] = ReduceOp{.reduction = Reduction::kMin, .dimensions = {0, 2}};
  ops["max"] = ReduceOp{.reduction = Reduction::kMax, .dimensions = {0, 2}};
  ops["mean"] = ReduceOp{.reduction = Reduction::kMean, .dimensions = {0, 2}};
  ops["transpose"] = TransposeOp{.permutation = {2, 0, 1}};
  ops["slice"] = SliceOp{.starts = {1, 0, 1}, .limits = {3, 4, 5}, .steps = {1, 2, 3}};
  ops["concatenate"] = ConcatenateOp{.inputs = {0, 1}, .dimension = 1};
  ops["reshape"] = ReshapeOp{.shape = {6, 10}};
  ops["top-k"] = TopKOp{.count = 3};
  ops["argmax"] = TopKOp{.drops_dimension = true};
  ops["convert"] = ConvertOp{.dtype = Dtype::kI32};
  ops["convert-to-f64"] = ConvertOp{.dtype = Dtype::kF64};
  ops["convert-to-f16"] = ConvertOp{.dtype = Dtype::kF16};
  ops["convert-to-i8"] = ConvertOp{.dtype = Dtype::kI8};
  ops["convert-to-u8"] = ConvertOp{.dtype = Dtype::kU8};
  ops["masked-softmax"] = SoftmaxOp{.mask = 1, .scale = 0.5F};
  ops["top-values"] = TopKOp{.count = 4, .gives_indices = false};
  ops["kept-mean"] =
      ReduceOp{.reduction = Reduction::kMean, .dimensions = {1}, .keeps_dimensions = true};
  ops["interleaved-rotary"] = RotaryOp{.is_interleaved = true};
  ops["masked-attention"] = AttentionOp{.mask = 3, .scale = 0.5F};
  ops["embedding"] = EmbeddingOp{};
  ops["update-rows"] = UpdateRowsOp{};
  ops["rotary"] = RotaryOp{};
  ops["attention"] = AttentionOp{.positions = 3, .mask = std::nullopt, .scale = 0.5f};
  return ops;
}

// Reads `DTYPE EXTENTS VALUES...`.
void ReadTensor(std::istringstream& text, TestTile& tile, std::vector<double>& values) {
  std::string dtype, extents;
  text >> dtype >> extents;
  Shape shape;
  std::istringstream parts(extents == "-" ? "" : extents);
  for (std::string part; std::getline(parts, part, ',');) shape.push_back(std::stoll(part));
  values.clear();
  for (std::string value; text >> value;) values.push_back(std::stod(value));
  const absl::StatusOr<Dtype> parsed = ParseDtype(dtype);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  tile = Made(*parsed, shape, values);
}

TEST(NumpyTest, EachOpGivesNumpysResults) {
  std::ifstream file(SHARDMESH_SOURCE_DIR "/tests/data/numpy/tensor_ops.txt");
  ASSERT_TRUE(file.good());
  const std::map<std::string, TensorOp> ops = RecordedOps();
  std::string name;
  std::vector<TestTile> inputs;
  int cases = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream text(line);
    std::string kind;
    text >> kind;
    if (kind == "case") {
      text >> name;
      inputs.clear();
      ASSERT_TRUE(ops.contains(name)) << name;
      continue;
    }
    TestTile tile;
    std::vector<double> values;
    ASSERT_NO_FATAL_FAILURE(ReadTensor(text, tile, values));
    if (kind == "in") {
      inputs.push_back(tile);
      continue;
    }
    SCOPED_TRACE(name);
    const TestTile result = RunOp(ops.at(name), inputs);
    EXPECT_EQ(result.dtype, tile.dtype);
    EXPECT_EQ(result.shape, tile.shape);
    if (tile.dtype == Dtype::kI8 || tile.dtype == Dtype::kU8 || tile.dtype == Dtype::kI16 ||
        tile.dtype == Dtype::kI32 || tile.dtype == Dtype::kI64) {
      EXPECT_EQ(ValuesOf(result), values);
      ++cases;
      continue;
    }
    // Sums and angles of F32 are off by some units; the other results by less than one.
    const bool has_sums =
        name.ends_with("attention") || name.ends_with("rotary") || name.ends_with("softmax");
    const double units = has_sums ? 40 : tile.dtype == Dtype::kF64 ? 2 : 0.53;
    ExpectClose(result, values, units, has_sums ? 0.1 : 1e-3);
    ++cases;
  }
  EXPECT_GT(cases, 100);
}

}  // namespace
}  // namespace shardmesh::worker::op_test
