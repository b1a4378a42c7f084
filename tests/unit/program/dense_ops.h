// Tensor ops in plain loops, on whole tensors or on the tiles of one device, for tests of plans.
#ifndef SHARDMESH_TESTS_UNIT_PROGRAM_DENSE_OPS_H_
#define SHARDMESH_TESTS_UNIT_PROGRAM_DENSE_OPS_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/types/span.h"
#include "program/tensor_op.h"
#include "sharding/shape.h"
#include "tests/unit/program/dense.h"

namespace shardmesh {

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

// Computes the result's tile, of shape `shape`, of an op that has its inputs' tiles in `inputs`.
// `first_row`: the first row of the table's tile, for an embedding. Has no norms but RMS norms, no
// masks, and of the functions only add, multiply and negate.
class DenseOp {
 public:
  DenseOp(absl::Span<const Dense> inputs, const Shape& shape, int64_t first_row)
      : in_(inputs), shape_(shape), first_row_(first_row) {}

  Dense operator()(const MapOp& op) const {
    return Fill([&](const Shape& at) {
      const double a = BroadcastAt(in_[0], at);
      if (op.function == MapFunction::kNegate) return -a;
      const double b = BroadcastAt(in_[1], at);
      return op.function == MapFunction::kAdd ? a + b : a * b;
    });
  }
  Dense operator()(const ConvertOp& /*op*/) const { return in_[0]; }
  Dense operator()(const NormOp& op) const {
    return Fill([&](const Shape& at) {
      double squares = 0;
      const int64_t features = in_[0].shape.back();
      for (int64_t i = 0; i < features; ++i) squares += std::pow(At(0, At(at, i)), 2);
      const double weight = op.weight.has_value() ? At(1, {at.back()}) : 1;
      return At(0, at) / std::sqrt(squares / static_cast<double>(features) + 1) * weight;
    });
  }
  Dense operator()(const SoftmaxOp& /*op*/) const {
    return Fill([&](const Shape& at) {
      double sum = 0;
      for (int64_t i = 0; i < in_[0].shape.back(); ++i) sum += std::exp(At(0, At(at, i)));
      return std::exp(At(0, at)) / sum;
    });
  }
  Dense operator()(const ReduceOp& op) const {
    Dense result{.shape = shape_, .elements = {}};
    const bool is_sum = op.reduction == Reduction::kSum;
    result.elements.assign(static_cast<size_t>(Count(shape_)), is_sum ? 0 : -1e9);
    ForEachIndex(in_[0].shape, [&](const Shape& from) {
      Shape to;
      for (size_t dim = 0; dim < from.size(); ++dim) {
        const bool is_reduced = std::count(op.dimensions.begin(), op.dimensions.end(), dim) > 0;
        if (!is_reduced) to.push_back(from[dim]);
        if (is_reduced && op.keeps_dimensions) to.push_back(0);
      }
      double& into = result.elements[Offset(shape_, to)];
      into = is_sum ? into + At(0, from) : std::max(into, At(0, from));
    });
    return result;
  }
  Dense operator()(const RotaryOp& /*op*/) const {
    const int64_t half = in_[0].shape.back() / 2;
    return Fill([&](const Shape& at) {
      const int64_t i = at[3] % half;
      const double angle = BroadcastAt(in_[1], {at[0], at[1]}) * At(2, {i});
      const double first = At(0, At(at, i));
      const double second = At(0, At(at, i + half));
      return at[3] < half ? first * std::cos(angle) - second * std::sin(angle)
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
  Dense operator()(const AttentionOp& /*op*/) const {
    return Fill([&](const Shape& at) {
      const int64_t key_head = at[2] / (in_[0].shape[2] / in_[1].shape[2]);
      const int64_t rows = in_.size() < 4
                               ? in_[1].shape[1]
                               : static_cast<int64_t>(BroadcastAt(in_[3], {at[0], at[1]})) + 1;
      double sum = 0;
      double result = 0;
      for (int64_t row = 0; row < std::min(rows, in_[1].shape[1]); ++row) {
        double score = 0;
        for (int64_t i = 0; i < in_[0].shape[3]; ++i) {
          score += At(0, {at[0], at[1], at[2], i}) * At(1, {at[0], row, key_head, i});
        }
        sum += std::exp(score / 100);
        result += std::exp(score / 100) * At(2, {at[0], row, key_head, at[3]});
      }
      return sum == 0 ? 0 : result / sum;
    });
  }
  Dense operator()(const TopKOp& /*op*/) const {
    return Fill([&](const Shape& at) {
      Shape row = at;
      if (row.size() < in_[0].shape.size()) row.push_back(0);
      std::vector<std::pair<double, int64_t>> falling;
      for (int64_t i = 0; i < in_[0].shape.back(); ++i) falling.emplace_back(-At(0, At(row, i)), i);
      std::sort(falling.begin(), falling.end());
      return static_cast<double>(falling[static_cast<size_t>(row.back())].second);
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
  Dense operator()(const ConstantOp& /*op*/) const {
    return Fill([&](const Shape& /*at*/) { return 1; });
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
  const Shape& shape_;
  int64_t first_row_;
};

inline Dense ComputeDense(const TensorOp& op, absl::Span<const Dense> inputs, const Shape& shape,
                          int64_t first_row = 0) {
  return std::visit(DenseOp(inputs, shape, first_row), op);
}

}  // namespace shardmesh

#endif  // SHARDMESH_TESTS_UNIT_PROGRAM_DENSE_OPS_H_
