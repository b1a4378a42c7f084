// Ops that compute rows: norms, softmax with masks that are broadcast, and rotary embedding, whose
// sines and cosines of a position serve all heads.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
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

// Elements of a piece. A slow CPU needs 40 ns for an element.
constexpr int64_t kSoftmaxPiece = 64 * kFloatBlock;

// The mask of a softmax, row by row.
class RowMask {
 public:
  RowMask(const OpInput& mask, const Shape& shape)
      : mask_(mask), shape_(shape), strides_(shape.size(), 0) {
    int64_t stride = 1;
    for (size_t i = 0; i < mask.shape.size(); ++i) {
      const int64_t extent = mask.shape[mask.shape.size() - 1 - i];
      if (extent != 1) strides_[shape.size() - 1 - i] = stride;
      stride *= extent;
    }
  }

  // Calls hide(i) for each element of row number `row` that the mask hides.
  template <typename Hide>
  void ForEachHidden(int64_t row, Hide hide) const {
    int64_t first = 0;
    for (size_t dim = shape_.size() - 1; dim-- > 0;) {
      first += row % shape_[dim] * strides_[dim];
      row /= shape_[dim];
    }
    const auto count = static_cast<size_t>(shape_.back());
    const int64_t step = strides_.back();
    if (mask_.dtype == Dtype::kI32) {
      const int32_t* const elements = reinterpret_cast<const int32_t*>(mask_.bytes.data()) + first;
      for (size_t i = 0; i < count; ++i) {
        if (elements[static_cast<int64_t>(i) * step] == 0) hide(i);
      }
    } else {
      const char* const elements = mask_.bytes.data() + first;
      for (size_t i = 0; i < count; ++i) {
        if (elements[static_cast<int64_t>(i) * step] == 0) hide(i);
      }
    }
  }

 private:
  const OpInput& mask_;
  const Shape& shape_;
  Shape strides_;  // of the mask, in elements; 0 where it is broadcast
};

// Elements of a piece. A slow CPU needs 20 ns for an element.
constexpr int64_t kRotaryPiece = 128 * kFloatBlock;

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

absl::Status RunKernel(const SoftmaxOp& op, OpInputs inputs, const OpOutput& output,
                       const OpContext& context) {
  if (output.bytes.empty()) return absl::OkStatus();
  const OpInput& input = inputs[0];
  const auto count = static_cast<size_t>(input.shape.back());
  const int64_t row_bytes = input.shape.back() * FloatBytes(input.dtype);
  std::optional<RowMask> mask;
  if (op.mask.has_value()) mask.emplace(inputs[1], input.shape);
  const RowLoops& loops = RowLoopsOfCpu();
  constexpr float kInfinite = std::numeric_limits<float>::infinity();

  const auto compute = [&](int64_t begin, int64_t end) {
    std::vector<float> values(count);
    for (int64_t row = begin; row < end; ++row) {
      LoadFloats(input.dtype, input.bytes.data() + row * row_bytes, count, values.data());
      float largest = loops.multiply(op.scale, count, values.data());
      if (mask.has_value()) {
        // Hidden elements become e^-infinity = 0.
        mask->ForEachHidden(row, [&](size_t i) { values[i] = -kInfinite; });
        largest = loops.largest(values.data(), count);
      }
      if (std::isfinite(largest)) {
        const double sum = loops.exp(largest, count, values.data());
        loops.divide(sum, count, values.data());
      } else {
        // The row has a NaN or an infinity, is minus infinity throughout, or all of it is hidden.
        values.assign(count, std::numeric_limits<float>::quiet_NaN());
        if (mask.has_value()) mask->ForEachHidden(row, [&](size_t i) { values[i] = 0; });
      }
      StoreFloats(output.dtype, values.data(), count, output.bytes.data() + row * row_bytes);
    }
  };
  return RunPieces(
      ElementsOf(input.shape) / input.shape.back(),
      {.piece = ItemsOfPiece(kSoftmaxPiece, input.shape.back()), .threads = context.threads},
      context.abort_check, compute);
}

absl::Status RunKernel(const RotaryOp& op, OpInputs inputs, const OpOutput& output,
                       const OpContext& context) {
  if (output.bytes.empty()) return absl::OkStatus();
  const OpInput& input = inputs[0];
  const int64_t sequence = input.shape[1];
  const int64_t heads = input.shape[2];
  const auto features = static_cast<size_t>(input.shape[3]);
  const size_t pairs = features / 2;
  const int64_t head_bytes = input.shape[3] * FloatBytes(input.dtype);
  const bool is_shared = inputs[1].shape.size() == 1;
  const int32_t* const positions = reinterpret_cast<const int32_t*>(inputs[1].bytes.data());
  const float* const frequencies = reinterpret_cast<const float*>(inputs[2].bytes.data());
  const RowLoops& loops = RowLoopsOfCpu();
  const auto rotate = op.is_interleaved ? loops.rotate_neighbours : loops.rotate_halves;

  const auto rotate_tokens = [&](int64_t begin, int64_t end) {
    std::vector<float> sines(pairs);
    std::vector<float> cosines(pairs);
    std::vector<float> values(input.dtype == Dtype::kF32 ? 0 : features);
    for (int64_t token = begin; token < end; ++token) {
      const int32_t position = positions[is_shared ? token % sequence : token];
      loops.angles(position, frequencies, pairs, sines.data(), cosines.data());
      for (int64_t head = token * heads; head < (token + 1) * heads; ++head) {
        const char* const from = input.bytes.data() + head * head_bytes;
        char* const to = output.bytes.data() + head * head_bytes;
        if (input.dtype == Dtype::kF32) {
          rotate(reinterpret_cast<const float*>(from), sines.data(), cosines.data(), pairs,
                 reinterpret_cast<float*>(to));
          continue;
        }
        LoadFloats(input.dtype, from, features, values.data());
        rotate(values.data(), sines.data(), cosines.data(), pairs, values.data());
        StoreFloats(output.dtype, values.data(), features, to);
      }
    }
  };
  return RunPieces(
      input.shape[0] * sequence,
      {.piece = ItemsOfPiece(kRotaryPiece, heads * input.shape[3]), .threads = context.threads},
      context.abort_check, rotate_tokens);
}

}  // namespace shardmesh::worker
