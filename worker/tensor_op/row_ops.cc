// Ops that compute rows: norms, softmax with masks that are broadcast, and rotary embedding, whose
// sines and cosines of a position serve all heads.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "status/status_macros.h"
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

// A row of this many elements or more is computed in pieces, with checks for an abort between them.
constexpr int64_t kLongRow = 32 * kNormPiece;

// Sets the mean and the factor by which the row is normalised. `sum` returns the sum of the row,
// and squares(mean) that of the squares of its differences from the mean.
template <typename Sum, typename Squares>
void MeasureRow(const NormOp& op, size_t features, Sum sum, Squares squares, RowScaling& scaling) {
  const auto count = static_cast<double>(features);
  const auto epsilon = static_cast<double>(op.epsilon);
  scaling.mean = 0;
  switch (op.kind) {
    case NormKind::kRms:
      scaling.factor = 1 / std::sqrt(squares(0) / count + epsilon);
      return;
    case NormKind::kLayer:
      scaling.mean = sum() / count;
      scaling.factor = 1 / std::sqrt(squares(scaling.mean) / count + epsilon);
      return;
    case NormKind::kL2:
      scaling.factor = 1 / std::max(std::sqrt(squares(0)), epsilon);
      return;
  }
}

// Normalises rows. `weight` and `bias` are null if there are none.
class RowNorm {
 public:
  RowNorm(const NormOp& op, const OpInput& input, const OpOutput& output, const float* weight,
          const float* bias)
      : op_(op),
        input_(input),
        output_(output),
        weight_(weight),
        bias_(bias),
        features_(static_cast<size_t>(input.shape.back())) {}

  // Normalises the rows [begin, end).
  void Run(int64_t begin, int64_t end) const {
    std::vector<float> values(is_f32() ? 0 : features_);
    RowScaling scaling = {.weight = weight_, .bias = bias_};
    for (int64_t row = begin; row < end; ++row) {
      const float* const in = Load(row, 0, features_, values.data());
      MeasureRow(
          op_, features_, [&] { return loops_.sum(in, features_); },
          [&](double mean) { return loops_.squares(in, mean, features_); }, scaling);
      Store(row, 0, features_, in, scaling, values.data());
    }
  }

  // Normalises one row in pieces. Sums are those of the pieces, added in order.
  absl::Status RunLong(int64_t row, const OpContext& context) const {
    std::vector<float> values(is_f32() ? 0 : features_);
    std::vector<double> sums(features_ / static_cast<size_t>(kNormPiece) + 1);
    absl::Status status;
    // Calls run(begin, count), which returns the sum of a piece. Returns the sum of the row.
    const auto in_pieces = [&](auto run) {
      if (!status.ok()) return 0.0;
      status = RunPieces(input_.shape.back(), {.piece = kNormPiece, .threads = context.threads},
                         context.abort_check, [&](int64_t begin, int64_t end) {
                           sums[static_cast<size_t>(begin / kNormPiece)] =
                               run(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
                         });
      return std::accumulate(sums.begin(), sums.end(), 0.0);
    };
    const float* in = values.data();
    if (is_f32()) {
      in = Load(row, 0, features_, nullptr);
    } else {
      in_pieces([&](size_t begin, size_t count) {
        Load(row, begin, count, values.data() + begin);
        return 0.0;
      });
    }
    RowScaling scaling = {.weight = weight_, .bias = bias_};
    MeasureRow(
        op_, features_,
        [&] {
          return in_pieces(
              [&](size_t begin, size_t count) { return loops_.sum(in + begin, count); });
        },
        [&](double mean) {
          return in_pieces(
              [&](size_t begin, size_t count) { return loops_.squares(in + begin, mean, count); });
        },
        scaling);
    in_pieces([&](size_t begin, size_t count) {
      Store(row, begin, count, in + begin, scaling, is_f32() ? nullptr : values.data() + begin);
      return 0.0;
    });
    return status;
  }

 private:
  bool is_f32() const { return input_.dtype == Dtype::kF32; }
  size_t OffsetOf(int64_t row, size_t begin) const {
    return (static_cast<size_t>(row) * features_ + begin) *
           static_cast<size_t>(FloatBytes(input_.dtype));
  }

  // Returns `count` elements of a row: for F32 in place, for others in `values`.
  const float* Load(int64_t row, size_t begin, size_t count, float* values) const {
    const char* const from = input_.bytes.data() + OffsetOf(row, begin);
    if (is_f32()) return reinterpret_cast<const float*>(from);
    LoadFloats(input_.dtype, from, count, values);
    return values;
  }

  // Stores `count` elements from `begin` on, scaled. `values` may be `in`; null for F32.
  void Store(int64_t row, size_t begin, size_t count, const float* in, RowScaling scaling,
             float* values) const {
    if (scaling.weight != nullptr) scaling.weight += begin;
    if (scaling.bias != nullptr) scaling.bias += begin;
    char* const to = output_.bytes.data() + OffsetOf(row, begin);
    if (is_f32()) {
      loops_.scale(in, scaling, count, reinterpret_cast<float*>(to));
      return;
    }
    loops_.scale(in, scaling, count, values);
    StoreFloats(output_.dtype, values, count, to);
  }

  const NormOp& op_;
  const OpInput& input_;
  const OpOutput& output_;
  const float* const weight_;
  const float* const bias_;
  const size_t features_;
  const RowLoops& loops_ = RowLoopsOfCpu();
};

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

  // Calls hide(i) for each element begin + i of row number `row` that the mask hides, i < count.
  template <typename Hide>
  void ForEachHidden(int64_t row, size_t begin, size_t count, Hide hide) const {
    int64_t first = static_cast<int64_t>(begin) * strides_.back();
    for (size_t dim = shape_.size() - 1; dim-- > 0;) {
      first += row % shape_[dim] * strides_[dim];
      row /= shape_[dim];
    }
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

// The softmax of rows.
class RowSoftmax {
 public:
  RowSoftmax(const SoftmaxOp& op, OpInputs inputs, const OpOutput& output)
      : op_(op),
        input_(inputs[0]),
        output_(output),
        count_(static_cast<size_t>(input_.shape.back())) {
    if (op.mask.has_value()) mask_.emplace(inputs[1], input_.shape);
  }

  // Computes the rows [begin, end).
  void Run(int64_t begin, int64_t end) const {
    std::vector<float> values(count_);
    for (int64_t row = begin; row < end; ++row) {
      const float largest = Load(row, 0, count_, values.data());
      const double sum =
          std::isfinite(largest) ? loops_.exp(largest, count_, values.data()) : kNoSum;
      Store(row, 0, count_, sum, values.data());
    }
  }

  // Computes one row in pieces. The sum is that of the pieces, added in order.
  absl::Status RunLong(int64_t row, const OpContext& context) const {
    std::vector<float> values(count_);
    std::vector<float> largest_of(count_ / static_cast<size_t>(kSoftmaxPiece) + 1, -kInfinite);
    std::vector<double> sums(largest_of.size());
    const auto in_pieces = [&](auto run) {
      return RunPieces(input_.shape.back(), {.piece = kSoftmaxPiece, .threads = context.threads},
                       context.abort_check, [&](int64_t begin, int64_t end) {
                         run(static_cast<size_t>(begin / kSoftmaxPiece), static_cast<size_t>(begin),
                             static_cast<size_t>(end - begin));
                       });
    };
    SHARDMESH_RETURN_IF_ERROR(in_pieces([&](size_t piece, size_t begin, size_t count) {
      largest_of[piece] = Load(row, begin, count, values.data() + begin);
    }));
    const float largest = loops_.largest(largest_of.data(), largest_of.size());
    double sum = kNoSum;
    if (std::isfinite(largest)) {
      SHARDMESH_RETURN_IF_ERROR(in_pieces([&](size_t piece, size_t begin, size_t count) {
        sums[piece] = loops_.exp(largest, count, values.data() + begin);
      }));
      sum = std::accumulate(sums.begin(), sums.end(), 0.0);
    }
    return in_pieces([&](size_t /*piece*/, size_t begin, size_t count) {
      Store(row, begin, count, sum, values.data() + begin);
    });
  }

 private:
  static constexpr float kInfinite = std::numeric_limits<float>::infinity();
  // The row has a NaN or an infinity, is minus infinity throughout, or all of it is hidden.
  static constexpr double kNoSum = -1;

  size_t OffsetOf(int64_t row, size_t begin) const {
    return (static_cast<size_t>(row) * count_ + begin) *
           static_cast<size_t>(FloatBytes(input_.dtype));
  }

  // Loads `count` elements, times the scale. Hidden ones become minus infinity, whose power is 0.
  // Returns the largest.
  float Load(int64_t row, size_t begin, size_t count, float* values) const {
    LoadFloats(input_.dtype, input_.bytes.data() + OffsetOf(row, begin), count, values);
    const float largest = loops_.multiply(op_.scale, count, values);
    if (!mask_.has_value()) return largest;
    mask_->ForEachHidden(row, begin, count, [&](size_t i) { values[i] = -kInfinite; });
    return loops_.largest(values, count);
  }

  // Stores `count` powers divided by their sum.
  void Store(int64_t row, size_t begin, size_t count, double sum, float* values) const {
    if (sum != kNoSum) {
      loops_.divide(sum, count, values);
    } else {
      std::fill_n(values, count, std::numeric_limits<float>::quiet_NaN());
      if (mask_.has_value()) {
        mask_->ForEachHidden(row, begin, count, [&](size_t i) { values[i] = 0; });
      }
    }
    StoreFloats(output_.dtype, values, count, output_.bytes.data() + OffsetOf(row, begin));
  }

  const SoftmaxOp& op_;
  const OpInput& input_;
  const OpOutput& output_;
  const size_t count_;
  std::optional<RowMask> mask_;
  const RowLoops& loops_ = RowLoopsOfCpu();
};

// Runs `rows`, which has the members Run and RunLong of RowNorm.
template <typename Rows>
absl::Status RunRows(const Rows& rows, const Shape& shape, int64_t piece,
                     const OpContext& context) {
  const int64_t count = ElementsOf(shape) / shape.back();
  if (shape.back() < kLongRow) {
    const PieceOptions options = {
        .piece = ItemsOfPiece(piece, shape.back()),
        .threads = context.threads,
        .pieces_of_turn = std::min<int64_t>(ItemsOfPiece(32 * piece, shape.back()), 32)};
    return RunPieces(count, options, context.abort_check,
                     [&rows](int64_t begin, int64_t end) { rows.Run(begin, end); });
  }
  for (int64_t row = 0; row < count; ++row) {
    if (row > 0 && context.abort_check) SHARDMESH_RETURN_IF_ERROR(context.abort_check());
    SHARDMESH_RETURN_IF_ERROR(rows.RunLong(row, context));
  }
  return absl::OkStatus();
}

// Elements of a piece. A slow CPU needs 20 ns for an element.
constexpr int64_t kRotaryPiece = 128 * kFloatBlock;

}  // namespace

absl::Status RunKernel(const NormOp& op, OpInputs inputs, const OpOutput& output,
                       const OpContext& context) {
  if (output.bytes.empty()) return absl::OkStatus();
  const std::vector<float> weight =
      op.weight.has_value() ? FloatsOf(inputs[1]) : std::vector<float>();
  const std::vector<float> bias =
      op.bias.has_value() ? FloatsOf(inputs.back()) : std::vector<float>();
  const RowNorm norm(op, inputs[0], output, weight.empty() ? nullptr : weight.data(),
                     bias.empty() ? nullptr : bias.data());
  return RunRows(norm, inputs[0].shape, kNormPiece, context);
}

absl::Status RunKernel(const SoftmaxOp& op, OpInputs inputs, const OpOutput& output,
                       const OpContext& context) {
  if (output.bytes.empty()) return absl::OkStatus();
  return RunRows(RowSoftmax(op, inputs, output), inputs[0].shape, kSoftmaxPiece, context);
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
