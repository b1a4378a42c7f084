// Norms of rows.
#include <algorithm>
#include <cmath>
#include <vector>

#include "worker/kernel/float_block.h"
#include "worker/kernel/pieces.h"
#include "worker/tensor_op/op_kernels.h"
#include "worker/tensor_op/row_loops.h"

namespace shardmesh::worker {
namespace {

// Elements of a piece. A slow CPU needs 20 ns for an element.
constexpr int64_t kNormPiece = 128 * kFloatBlock;

std::vector<float> FloatsOf(const OpInput& input) {
  std::vector<float> floats(static_cast<size_t>(ElementsOf(input.shape)));
  LoadFloats(input.dtype, input.bytes.data(), floats.size(), floats.data());
  return floats;
}

// Sets the mean and the factor by which the row is normalised.
void MeasureRow(const NormOp& op, const RowLoops& loops, const float* row, size_t features,
                RowScaling& scaling) {
  const auto count = static_cast<double>(features);
  const auto epsilon = static_cast<double>(op.epsilon);
  scaling.mean = 0;
  switch (op.kind) {
    case NormKind::kRms:
      scaling.factor = 1 / std::sqrt(loops.squares(row, 0, features) / count + epsilon);
      return;
    case NormKind::kLayer:
      scaling.mean = loops.sum(row, features) / count;
      scaling.factor = 1 / std::sqrt(loops.squares(row, scaling.mean, features) / count + epsilon);
      return;
    case NormKind::kL2:
      scaling.factor = 1 / std::max(std::sqrt(loops.squares(row, 0, features)), epsilon);
      return;
  }
}

}  // namespace

absl::Status RunKernel(const NormOp& op, OpInputs inputs, const OpOutput& output,
                       const OpContext& context) {
  if (output.bytes.empty()) return absl::OkStatus();
  const OpInput& input = inputs[0];
  const auto features = static_cast<size_t>(input.shape.back());
  const int64_t row_bytes = input.shape.back() * FloatBytes(input.dtype);
  const std::vector<float> weight =
      op.weight.has_value() ? FloatsOf(inputs[1]) : std::vector<float>();
  const std::vector<float> bias =
      op.bias.has_value() ? FloatsOf(inputs.back()) : std::vector<float>();
  const RowLoops& loops = RowLoopsOfCpu();
  const auto normalise = [&](int64_t begin, int64_t end) {
    std::vector<float> values(input.dtype == Dtype::kF32 ? 0 : features);
    RowScaling scaling = {.weight = weight.empty() ? nullptr : weight.data(),
                          .bias = bias.empty() ? nullptr : bias.data()};
    for (int64_t row = begin; row < end; ++row) {
      const char* const from = input.bytes.data() + row * row_bytes;
      char* const to = output.bytes.data() + row * row_bytes;
      if (input.dtype == Dtype::kF32) {
        const float* const in = reinterpret_cast<const float*>(from);
        MeasureRow(op, loops, in, features, scaling);
        loops.scale(in, scaling, features, reinterpret_cast<float*>(to));
        continue;
      }
      LoadFloats(input.dtype, from, features, values.data());
      MeasureRow(op, loops, values.data(), features, scaling);
      loops.scale(values.data(), scaling, features, values.data());
      StoreFloats(output.dtype, values.data(), features, to);
    }
  };
  return RunPieces(
      ElementsOf(input.shape) / input.shape.back(),
      {.piece = ItemsOfPiece(kNormPiece, input.shape.back()), .threads = context.threads},
      context.abort_check, normalise);
}

}  // namespace shardmesh::worker
