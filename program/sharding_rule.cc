// Maps the dimensions of each op's inputs and result to factors.
#include "program/sharding_rule.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <variant>

namespace shardmesh {
namespace {

// Builds the rule of one op; has one function for each op.
class RuleMaker {
 public:
  RuleMaker(absl::Span<const TensorType> inputs, const TensorType& result)
      : inputs_(inputs), result_(result) {
    for (const TensorType& input : inputs) rule_.inputs.emplace_back(input.shape.size());
    rule_.result.resize(result.shape.size());
  }

  ShardingRule Finish() && {
    rule_.are_alone.assign(rule_.sizes.size(), true);
    for (const std::vector<DimFactors>& input : rule_.inputs) FindThoseNotAlone(input);
    FindThoseNotAlone(rule_.result);
    for (size_t factor = 0; factor < rule_.kinds.size(); ++factor) {
      if (rule_.kinds[factor] != FactorKind::kWhole) rule_.divisible.push_back(factor);
    }
    return std::move(rule_);
  }

  void operator()(const MapOp& /*op*/) {
    AddDimsOfResult();
    for (size_t input = 0; input < inputs_.size(); ++input) PutAsBroadcast(input);
  }
  void operator()(const ConvertOp& /*op*/) {
    AddDimsOfResult();
    PutAsBroadcast(0);
  }
  void operator()(const NormOp& /*op*/) {
    AddDimsOfResult();
    for (size_t input = 0; input < inputs_.size(); ++input) PutAsBroadcast(input);
    MakeWhole(rule_.result.back());
  }
  void operator()(const SoftmaxOp& /*op*/) {
    AddDimsOfResult();
    for (size_t input = 0; input < inputs_.size(); ++input) PutAsBroadcast(input);
    MakeWhole(rule_.result.back());
  }
  void operator()(const ReduceOp& op) {
    const Shape& shape = inputs_[0].shape;
    size_t out = 0;
    for (size_t dim = 0; dim < shape.size(); ++dim) {
      const bool is_reduced =
          std::binary_search(op.dimensions.begin(), op.dimensions.end(), static_cast<int64_t>(dim));
      if (!is_reduced) {
        rule_.inputs[0][dim] = rule_.result[out++] = Add(shape[dim]);
        continue;
      }
      rule_.inputs[0][dim] = Add(shape[dim], MaySum(op) ? FactorKind::kSummed : FactorKind::kWhole);
      if (op.keeps_dimensions) ++out;
    }
  }
  void operator()(const RotaryOp& /*op*/) {
    AddDimsOfResult();
    rule_.inputs[0] = rule_.result;
    MakeWhole(rule_.result[3]);
    PutPositions(1, rule_.result[0], rule_.result[1]);
    rule_.inputs[2][0] = Add(inputs_[2].shape[0], FactorKind::kWhole);
  }
  void operator()(const EmbeddingOp& /*op*/) {
    AddDimsOfResult();
    rule_.inputs[0] = {Add(inputs_[0].shape[0], FactorKind::kSummed), rule_.result.back()};
    std::copy(rule_.result.begin(), rule_.result.end() - 1, rule_.inputs[1].begin());
  }
  void operator()(const AttentionOp& op) {
    const Shape& query = inputs_[0].shape;
    const Shape& values = inputs_[2].shape;
    const DimFactors batch = Add(query[0]);
    const DimFactors queries = Add(query[1]);
    const DimFactors key_heads = Add(values[2]);
    DimFactors heads = key_heads;
    if (values[2] != 0) {
      const DimFactors of_key_head = Add(query[2] / values[2]);
      heads.insert(heads.end(), of_key_head.begin(), of_key_head.end());
    }
    const DimFactors rows = Add(values[1], FactorKind::kWhole);
    const DimFactors features = Add(query[3], FactorKind::kWhole);
    const DimFactors value_features = Add(values[3]);
    rule_.inputs[0] = {batch, queries, heads, features};
    rule_.inputs[1] = {batch, rows, key_heads, features};
    rule_.inputs[2] = {batch, rows, key_heads, value_features};
    rule_.result = {batch, queries, heads, value_features};
    size_t next = 3;
    if (op.positions.has_value()) PutPositions(next++, batch, queries);
    if (op.mask.has_value()) rule_.inputs[next] = {batch, rows};
  }
  void operator()(const TopKOp& op) {
    const Shape& shape = inputs_[0].shape;
    const size_t last = shape.size() - 1;
    for (size_t dim = 0; dim < last; ++dim) {
      rule_.inputs[0][dim] = rule_.result[dim] = Add(shape[dim]);
    }
    rule_.inputs[0][last] = Add(shape[last], FactorKind::kWhole);
    if (!op.drops_dimension) rule_.result[last] = Add(op.count, FactorKind::kWhole);
  }
  void operator()(const ReshapeOp& /*op*/);
  void operator()(const TransposeOp& op) {
    AddDimsOfResult();
    for (size_t dim = 0; dim < op.permutation.size(); ++dim) {
      rule_.inputs[0][static_cast<size_t>(op.permutation[dim])] = rule_.result[dim];
    }
  }
  void operator()(const SliceOp& /*op*/) {
    const Shape& shape = inputs_[0].shape;
    for (size_t dim = 0; dim < shape.size(); ++dim) {
      if (result_.shape[dim] == shape[dim]) {  // all indices, since steps are at least 1
        rule_.inputs[0][dim] = rule_.result[dim] = Add(shape[dim]);
      } else {
        rule_.inputs[0][dim] = Add(shape[dim], FactorKind::kWhole);
        rule_.result[dim] = Add(result_.shape[dim], FactorKind::kWhole);
      }
    }
  }
  void operator()(const ConcatenateOp& op) {
    AddDimsOfResult();
    const auto joined = static_cast<size_t>(op.dimension);
    MakeWhole(rule_.result[joined]);
    for (size_t input = 0; input < inputs_.size(); ++input) {
      rule_.inputs[input] = rule_.result;
      rule_.inputs[input][joined] = Add(inputs_[input].shape[joined], FactorKind::kWhole);
    }
  }
  void operator()(const UpdateRowsOp& /*op*/) {
    AddDimsOfResult();
    MakeWhole(rule_.result[1]);
    const DimFactors sequence = Add(inputs_[1].shape[1], FactorKind::kWhole);
    rule_.inputs[0] = rule_.inputs[1] = rule_.result;
    rule_.inputs[1][1] = sequence;
    PutPositions(2, rule_.result[0], sequence);
  }
  void operator()(const ConstantOp& /*op*/) {
    AddDimsOfResult();
    for (const DimFactors& dim : rule_.result) MakeWhole(dim);
  }

 private:
  void FindThoseNotAlone(const std::vector<DimFactors>& dims) {
    for (const DimFactors& dim : dims) {
      if (dim.size() < 2) continue;
      for (const size_t factor : dim) rule_.are_alone[factor] = false;
    }
  }
  // Adds a factor. Returns the factors of a dimension that consists of it.
  DimFactors Add(int64_t size, FactorKind kind = FactorKind::kFree) {
    if (size == 1) return {};
    rule_.sizes.push_back(size);
    rule_.kinds.push_back(kind);
    return {rule_.sizes.size() - 1};
  }
  // Adds a factor for each dimension of the result.
  void AddDimsOfResult() {
    for (size_t dim = 0; dim < result_.shape.size(); ++dim) {
      rule_.result[dim] = Add(result_.shape[dim]);
    }
  }
  void MakeWhole(const DimFactors& dim) {
    for (const size_t factor : dim) rule_.kinds[factor] = FactorKind::kWhole;
  }
  // Gives an input that is broadcast to the result's shape the factors of the result.
  void PutAsBroadcast(size_t input) {
    const Shape& shape = inputs_[input].shape;
    const size_t shift = result_.shape.size() - shape.size();
    for (size_t dim = 0; dim < shape.size(); ++dim) {
      if (shape[dim] != 1) rule_.inputs[input][dim] = rule_.result[shift + dim];
    }
  }
  // Gives an input that is [sequence] or [batch, sequence] its factors.
  void PutPositions(size_t input, const DimFactors& batch, const DimFactors& sequence) {
    std::vector<DimFactors>& dims = rule_.inputs[input];
    dims.back() = sequence;
    if (dims.size() == 2) dims.front() = batch;
  }
  // Returns whether the sum of the sums of all parts is the result: bit for bit for integers, and
  // rounded once for floats of 32 or more bits. A collective must be able to add them.
  bool MaySum(const ReduceOp& op) const {
    const Dtype dtype = inputs_[0].dtype;
    return op.reduction == Reduction::kSum &&
           (dtype == Dtype::kF32 || dtype == Dtype::kF64 || dtype == Dtype::kI8 ||
            dtype == Dtype::kI32 || dtype == Dtype::kI64);
  }

  absl::Span<const TensorType> inputs_;
  const TensorType& result_;
  ShardingRule rule_;
};

// A walk over the dimensions of a shape, from the first on, that gives each dimension its factors.
class DimWalk {
 public:
  DimWalk(const Shape& shape, std::vector<DimFactors>* factors)
      : shape_(shape), factors_(*factors) {}

  // The part of the current dimension's extent that has no factors yet.
  int64_t left() const { return left_; }

  // Moves on to the next dimension if nothing is left of the current one. Returns false at the end.
  bool Advance() {
    while (left_ == 1) {
      if (next_ == shape_.size()) return false;
      left_ = shape_[next_++];
    }
    return true;
  }
  // Gives the current dimension a factor of this size, which divides left().
  void Take(int64_t size, const DimFactors& factor) {
    DimFactors& dim = factors_[next_ - 1];
    dim.insert(dim.end(), factor.begin(), factor.end());
    left_ /= size;
  }

 private:
  const Shape& shape_;
  std::vector<DimFactors>& factors_;
  size_t next_ = 0;
  int64_t left_ = 1;
};

// Both shapes are walked from the major end. As long as the two current extents have a common
// divisor, it is a factor of both: its parts are equal ranges of the row-major order. If there is
// none, everything up to the next common boundary of the dimensions is whole.
void RuleMaker::operator()(const ReshapeOp& /*op*/) {
  const Shape& from = inputs_[0].shape;
  const Shape& to = result_.shape;
  if (std::count(from.begin(), from.end(), 0) > 0) {
    for (size_t dim = 0; dim < from.size(); ++dim) {
      rule_.inputs[0][dim] = Add(from[dim], FactorKind::kWhole);
    }
    for (size_t dim = 0; dim < to.size(); ++dim) {
      rule_.result[dim] = Add(to[dim], FactorKind::kWhole);
    }
    return;
  }
  DimWalk in(from, &rule_.inputs[0]);
  DimWalk out(to, &rule_.result);
  while (in.Advance() && out.Advance()) {
    const int64_t common = std::gcd(in.left(), out.left());
    if (common > 1) {
      const DimFactors factor = Add(common);
      in.Take(common, factor);
      out.Take(common, factor);
      continue;
    }
    int64_t in_size = 1;
    int64_t out_size = 1;
    do {
      DimWalk& walk = in_size <= out_size ? in : out;
      int64_t& size = in_size <= out_size ? in_size : out_size;
      if (!walk.Advance()) break;
      size *= walk.left();
      walk.Take(walk.left(), Add(walk.left(), FactorKind::kWhole));
    } while (in_size != out_size);
  }
}

}  // namespace

ShardingRule ShardingRuleOf(const TensorOp& op, absl::Span<const TensorType> inputs,
                            const TensorType& result) {
  RuleMaker maker(inputs, result);
  std::visit([&](const auto& kind) { maker(kind); }, op);
  return std::move(maker).Finish();
}

}  // namespace shardmesh
