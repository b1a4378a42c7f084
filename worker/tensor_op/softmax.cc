// Softmax of rows, with masks that are broadcast.
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

}  // namespace

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

}  // namespace shardmesh::worker
