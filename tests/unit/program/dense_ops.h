// Tensor ops in plain loops, on whole tensors or on the tiles of one device, for tests of plans.
#ifndef SHARDMESH_TESTS_UNIT_PROGRAM_DENSE_OPS_H_
#define SHARDMESH_TESTS_UNIT_PROGRAM_DENSE_OPS_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <numbers>
#include <utility>
#include <variant>
#include <vector>

#include "absl/types/span.h"
#include "client/inspect/bounded_tensor.h"
#include "program/tensor_op.h"
#include "sharding/shape.h"
#include "sharding/tile.h"
#include "tensor/dtype.h"
#include "tensor/elementwise.h"
#include "tensor/literal.h"
#include "tensor/view.h"
#include "tests/unit/program/dense.h"

namespace shardmesh {

// Returns the tensor that a literal has. Requires one of the types that ExactTensor reads.
inline Dense DenseOf(const Literal& literal) {
  const TensorView view = *TensorView::Create(literal.dtype, literal.shape, literal.bytes);
  return {.shape = literal.shape, .elements = client::ExactTensor(view)->values};
}

// Returns the element at `index`, whose dimensions are matched from the last one; along those of
// extent 1, the tensor is broadcast.
inline double BroadcastAt(const Dense& tensor, const Shape& index) {
  Shape at(tensor.shape.size(), 0);
  const size_t shift = index.size() - at.size();
  for (size_t dim = 0; dim < at.size(); ++dim) {
    if (tensor.shape[dim] != 1) at[dim] = index[shift + dim];
  }
  return tensor.elements[Offset(tensor.shape, at)];
}

// Returns `function` of one number.
inline double MapNumber(MapFunction function, double x) {
  switch (function) {
    case MapFunction::kNegate:
      return -x;
    case MapFunction::kAbs:
      return std::abs(x);
    case MapFunction::kExp:
      return std::exp(x);
    case MapFunction::kLog:
      return std::log(x);
    case MapFunction::kSqrt:
      return std::sqrt(x);
    case MapFunction::kRsqrt:
      return 1 / std::sqrt(x);
    case MapFunction::kTanh:
      return std::tanh(x);
    case MapFunction::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case MapFunction::kRelu:
      return std::max(x, 0.0);
    case MapFunction::kGelu:
      return x / 2 * (1 + std::erf(x / std::numbers::sqrt2));
    case MapFunction::kGeluTanh:
      return x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case MapFunction::kSilu:
      return x / (1 + std::exp(-x));
    default:
      return std::numeric_limits<double>::quiet_NaN();  // a function of two numbers
  }
}

// Returns `function` of two numbers.
inline double MapNumbers(MapFunction function, double a, double b) {
  switch (function) {
    case MapFunction::kAdd:
      return a + b;
    case MapFunction::kSubtract:
      return a - b;
    case MapFunction::kMultiply:
      return a * b;
    case MapFunction::kDivide:
      return a / b;
    case MapFunction::kMinimum:
      return std::min(a, b);
    case MapFunction::kMaximum:
      return std::max(a, b);
    default:
      return std::numeric_limits<double>::quiet_NaN();  // a function of one number
  }
}

inline double ReduceNumbers(Reduction reduction, double a, double b) {
  switch (reduction) {
    case Reduction::kProduct:
      return a * b;
    case Reduction::kMin:
      return std::min(a, b);
    case Reduction::kMax:
      return std::max(a, b);
    default:
      return a + b;  // a mean is a sum first
  }
}

// Computes the result's tile of an op that has its inputs' tiles in `inputs`. `first_row`: the
// first row of the table's tile, for an embedding. No element is rounded, except that numbers which
// become integers lose what follows the point, and those beyond I32 become its nearest element.
class DenseOp {
 public:
  DenseOp(absl::Span<const Dense> inputs, const Tile& tile, int64_t first_row)
      : in_(inputs), tile_(tile), shape_(tile.shape()), first_row_(first_row) {}

  Dense operator()(const MapOp& op) const {
    return Fill([&](const Shape& at) {
      const double a = BroadcastAt(in_[0], at);
      if (InputCountOf(op.function) == 1) return MapNumber(op.function, a);
      return MapNumbers(op.function, a, BroadcastAt(in_[1], at));
    });
  }
  Dense operator()(const ConvertOp& op) const {
    Dense result = in_[0];
    if (!client::IsFloat(op.dtype)) {
      for (double& element : result.elements) element = std::trunc(element);
    }
    if (op.dtype == Dtype::kI32) {
      for (double& element : result.elements) {
        element = std::clamp<double>(element, std::numeric_limits<int32_t>::min(),
                                     std::numeric_limits<int32_t>::max());
      }
    }
    return result;
  }
  Dense operator()(const NormOp& op) const {
    const auto epsilon = static_cast<double>(op.epsilon);
    return Fill([&](const Shape& at) {
      const int64_t features = in_[0].shape.back();
      double mean = 0;
      for (int64_t i = 0; i < features && op.kind == NormKind::kLayer; ++i) {
        mean += At(0, At(at, i)) / static_cast<double>(features);
      }
      double squares = 0;
      for (int64_t i = 0; i < features; ++i) squares += std::pow(At(0, At(at, i)) - mean, 2);
      const double size = op.kind == NormKind::kL2
                              ? std::max(std::sqrt(squares), epsilon)
                              : std::sqrt(squares / static_cast<double>(features) + epsilon);
      const double weight = op.weight.has_value() ? At(1, {at.back()}) : 1;
      const double bias = op.bias.has_value() ? At(in_.size() - 1, {at.back()}) : 0;
      return (At(0, at) - mean) / size * weight + bias;
    });
  }
  Dense operator()(const SoftmaxOp& op) const {
    const auto scale = static_cast<double>(op.scale);
    return Fill([&](const Shape& at) {
      const auto takes_part = [&](const Shape& index) {
        return !op.mask.has_value() || BroadcastAt(in_[1], index) != 0;
      };
      if (!takes_part(at)) return 0.0;
      double sum = 0;
      for (int64_t i = 0; i < in_[0].shape.back(); ++i) {
        const Shape other = At(at, i);
        if (takes_part(other)) sum += std::exp(scale * (At(0, other) - At(0, at)));
      }
      return 1 / sum;
    });
  }
  Dense operator()(const ReduceOp& op) const {
    Dense result{.shape = shape_, .elements = {}};
    const auto infinity = std::numeric_limits<double>::infinity();
    double first = op.reduction == Reduction::kProduct ? 1 : 0;
    if (op.reduction == Reduction::kMin) first = infinity;
    if (op.reduction == Reduction::kMax) first = -infinity;
    result.elements.assign(static_cast<size_t>(Count(shape_)), first);
    ForEachIndex(in_[0].shape, [&](const Shape& from) {
      Shape to;
      for (size_t dim = 0; dim < from.size(); ++dim) {
        const bool is_reduced = std::count(op.dimensions.begin(), op.dimensions.end(), dim) > 0;
        if (!is_reduced) to.push_back(from[dim]);
        if (is_reduced && op.keeps_dimensions) to.push_back(0);
      }
      double& into = result.elements[Offset(shape_, to)];
      into = ReduceNumbers(op.reduction, into, At(0, from));
    });
    if (op.reduction == Reduction::kMean) {
      double count = 1;
      for (const int64_t dim : op.dimensions) {
        count *= static_cast<double>(in_[0].shape[static_cast<size_t>(dim)]);
      }
      for (double& element : result.elements) element /= count;
    }
    return result;
  }
  Dense operator()(const RotaryOp& op) const {
    const int64_t half = in_[0].shape.back() / 2;
    return Fill([&](const Shape& at) {
      const int64_t i = op.is_interleaved ? at[3] / 2 : at[3] % half;
      const bool is_first = op.is_interleaved ? at[3] % 2 == 0 : at[3] < half;
      const double angle = BroadcastAt(in_[1], {at[0], at[1]}) * At(2, {i});
      const double first = At(0, At(at, op.is_interleaved ? 2 * i : i));
      const double second = At(0, At(at, op.is_interleaved ? 2 * i + 1 : i + half));
      return is_first ? first * std::cos(angle) - second * std::sin(angle)
                      : second * std::cos(angle) + first * std::sin(angle);
    });
  }
  Dense operator()(const EmbeddingOp& /*op*/) const {
    return Fill([&](const Shape& at) {
      const Shape of_id(at.begin(), at.end() - 1);
      const int64_t row = static_cast<int64_t>(At(1, of_id)) - first_row_;
      return row < 0 || row >= in_[0].shape[0] ? 0 : At(0, {row, at.back()});
    });
  }
  Dense operator()(const AttentionOp& op) const {
    const auto scale = static_cast<double>(op.scale);
    return Fill([&](const Shape& at) {
      const int64_t key_head = at[2] / (in_[0].shape[2] / in_[1].shape[2]);
      const auto is_seen = [&](int64_t row) {
        if (op.positions.has_value() &&
            static_cast<double>(row) > BroadcastAt(in_[3], {at[0], at[1]})) {
          return false;
        }
        return !op.mask.has_value() || At(in_.size() - 1, {at[0], row}) != 0;
      };
      std::vector<std::pair<double, int64_t>> scores;  // of the rows that are seen
      for (int64_t row = 0; row < in_[1].shape[1]; ++row) {
        if (!is_seen(row)) continue;
        double score = 0;
        for (int64_t i = 0; i < in_[0].shape[3]; ++i) {
          score += At(0, {at[0], at[1], at[2], i}) * At(1, {at[0], row, key_head, i});
        }
        scores.emplace_back(score * scale, row);
      }
      if (scores.empty()) return 0.0;
      const double largest = std::max_element(scores.begin(), scores.end())->first;
      double sum = 0;
      double result = 0;
      for (const auto& [score, row] : scores) {
        sum += std::exp(score - largest);
        result += std::exp(score - largest) * At(2, {at[0], row, key_head, at[3]});
      }
      return result / sum;
    });
  }
  Dense operator()(const TopKOp& op) const {
    return Fill([&](const Shape& at) {
      Shape row = at;
      if (row.size() < in_[0].shape.size()) row.push_back(0);
      std::vector<std::pair<double, int64_t>> falling;
      for (int64_t i = 0; i < in_[0].shape.back(); ++i) falling.emplace_back(-At(0, At(row, i)), i);
      std::sort(falling.begin(), falling.end());
      const auto [negated, index] = falling[static_cast<size_t>(row.back())];
      return op.gives_indices ? static_cast<double>(index) : -negated;
    });
  }
  Dense operator()(const ReshapeOp& /*op*/) const {
    return {.shape = shape_, .elements = in_[0].elements};
  }
  Dense operator()(const TransposeOp& op) const {
    return Fill([&](const Shape& at) {
      Shape from = at;
      for (size_t i = 0; i < at.size(); ++i) from[static_cast<size_t>(op.permutation[i])] = at[i];
      return At(0, from);
    });
  }
  // A dimension whose tile is a part of the tensor is taken whole.
  Dense operator()(const SliceOp& op) const {
    return Fill([&](const Shape& at) {
      Shape from = at;
      for (size_t i = 0; i < at.size(); ++i) {
        if (shape_[i] == in_[0].shape[i]) continue;
        from[i] = op.starts[i] + at[i] * (op.steps.empty() ? 1 : op.steps[i]);
      }
      return At(0, from);
    });
  }
  Dense operator()(const ConcatenateOp& op) const {
    const auto dim = static_cast<size_t>(op.dimension);
    return Fill([&](const Shape& at) {
      Shape from = at;
      size_t input = 0;
      while (from[dim] >= in_[input].shape[dim]) from[dim] -= in_[input++].shape[dim];
      return At(input, from);
    });
  }
  Dense operator()(const UpdateRowsOp& /*op*/) const {
    Dense result = in_[0];
    ForEachIndex(in_[1].shape, [&](const Shape& from) {
      Shape to = from;
      to[1] = static_cast<int64_t>(BroadcastAt(in_[2], {from[0], from[1]}));
      if (to[1] < 0 || to[1] >= shape_[1]) return;
      result.elements[Offset(shape_, to)] = At(1, from);
    });
    return result;
  }
  Dense operator()(const ConstantOp& op) const {
    const Dense whole = DenseOf(op.value);
    return Fill([&](const Shape& at) {
      Shape from = at;
      for (size_t dim = 0; dim < at.size(); ++dim) from[dim] += tile_.ranges[dim].start;
      return whole.elements[Offset(whole.shape, from)];
    });
  }

 private:
  static Shape At(Shape index, int64_t last) {
    index.back() = last;
    return index;
  }
  double At(size_t input, const Shape& index) const {
    return in_[input].elements[Offset(in_[input].shape, index)];
  }
  Dense Fill(const std::function<double(const Shape&)>& element) const {
    Dense result{.shape = shape_, .elements = {}};
    ForEachIndex(shape_, [&](const Shape& at) { result.elements.push_back(element(at)); });
    return result;
  }

  absl::Span<const Dense> in_;
  const Tile& tile_;
  Shape shape_;
  int64_t first_row_;
};

inline Dense ComputeDense(const TensorOp& op, absl::Span<const Dense> inputs, const Tile& tile,
                          int64_t first_row = 0) {
  return std::visit(DenseOp(inputs, tile, first_row), op);
}
// The same for whole tensors.
inline Dense ComputeDense(const TensorOp& op, absl::Span<const Dense> inputs, const Shape& shape) {
  return ComputeDense(op, inputs, Tile::Whole(shape));
}

}  // namespace shardmesh

#endif  // SHARDMESH_TESTS_UNIT_PROGRAM_DENSE_OPS_H_
