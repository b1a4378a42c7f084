// Computes graphs plainly.
#include "tests/testing/plain_graph.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numbers>
#include <stdexcept>
#include <utility>
#include <variant>

namespace shardmesh::test {
namespace {

size_t SizeOf(const Shape& shape) {
  size_t size = 1;
  for (const int64_t extent : shape) size *= static_cast<size_t>(extent);
  return size;
}

PlainValue Zeros(const Shape& shape) { return {shape, std::vector<double>(SizeOf(shape))}; }

size_t LastExtent(const PlainValue& value) { return static_cast<size_t>(value.shape.back()); }

double Activated(Activation activation, double x) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return std::max(x, 0.0);
    case Activation::kGelu:
      return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2));
    case Activation::kGeluTanh:
      return 0.5 * x *
             (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
  }
  throw std::runtime_error("an unknown activation");
}

// The values of one run.
class Run {
 public:
  Run(const Graph& graph, PlainValues& operands) {
    for (const GraphOperand& operand : graph.operands) {
      values_.push_back(operands.at(operand.name));
    }
    for (const ProgramOp& op : graph.program.ops) {
      PlainValue result = std::visit([this](const auto& kind) { return Of(kind); }, op);
      values_.push_back(std::move(result));
    }
    for (const StateUpdate& update : graph.program.updates) {
      operands.at(graph.operands[update.operand].name) = values_[update.value];
    }
  }

  const PlainValue& value(ValueIndex index) const { return values_[index]; }

 private:
  PlainValue Of(const LinearOp& op) const {
    const PlainValue& input = values_[op.input];
    const PlainValue& weight = values_[op.weight];
    const size_t in = LastExtent(input);
    const bool is_out_in = op.weight_layout == WeightLayout::kOutIn;
    const size_t out = static_cast<size_t>(weight.shape[is_out_in ? 0 : 1]);
    Shape shape = input.shape;
    shape.back() = static_cast<int64_t>(out);
    PlainValue result = Zeros(shape);
    for (size_t i = 0; i < result.elements.size(); ++i) {
      const size_t row = i / out;
      const size_t column = i % out;
      double sum = 0;
      for (size_t k = 0; k < in; ++k) {
        sum += input.at(row * in + k) * weight.at(is_out_in ? column * in + k : k * out + column);
      }
      sum *= static_cast<double>(op.scale);
      if (op.scales.has_value()) sum *= values_[*op.scales].at(column);
      if (op.bias.has_value()) sum += values_[*op.bias].at(column);
      result.at(i) = Activated(op.activation, sum);
    }
    return result;
  }
  PlainValue Of(const MatmulOp&) const { throw std::runtime_error("matmul is not computed"); }
  PlainValue Of(const CollectiveOp&) const {
    throw std::runtime_error("a collective is not computed");
  }
  PlainValue Of(const ReshardOp&) const { throw std::runtime_error("a reshard is not computed"); }
  PlainValue Of(const TensorOp& op) const {
    return std::visit([this](const auto& kind) { return Of(kind); }, op);
  }

  // Returns the index of an input's element that belongs to element i of a result, broadcast.
  static size_t Broadcast(const Shape& result, const Shape& input, size_t i) {
    size_t index = 0;
    size_t stride = 1;
    for (size_t back = 1; back <= result.size(); ++back) {
      const auto extent = static_cast<size_t>(result[result.size() - back]);
      const size_t coordinate = i % extent;
      i /= extent;
      if (back > input.size()) continue;
      const auto own = static_cast<size_t>(input[input.size() - back]);
      if (own != 1) index += coordinate * stride;
      stride *= own;
    }
    return index;
  }

  PlainValue Of(const MapOp& op) const {
    if (op.function != MapFunction::kAdd && op.function != MapFunction::kMultiply) {
      throw std::runtime_error("this function of elements is not computed");
    }
    const PlainValue& lhs = values_[op.inputs[0]];
    const PlainValue& rhs = values_[op.inputs[1]];
    Shape shape = lhs.shape.size() >= rhs.shape.size() ? lhs.shape : rhs.shape;
    const Shape& other = lhs.shape.size() >= rhs.shape.size() ? rhs.shape : lhs.shape;
    for (size_t back = 1; back <= other.size(); ++back) {
      int64_t& extent = shape[shape.size() - back];
      extent = std::max(extent, other[other.size() - back]);
    }
    PlainValue result = Zeros(shape);
    for (size_t i = 0; i < result.elements.size(); ++i) {
      const double a = lhs.at(Broadcast(shape, lhs.shape, i));
      const double b = rhs.at(Broadcast(shape, rhs.shape, i));
      result.at(i) = op.function == MapFunction::kAdd ? a + b : a * b;
    }
    return result;
  }
  PlainValue Of(const ConvertOp& op) const { return values_[op.input]; }
  PlainValue Of(const NormOp& op) const {
    PlainValue result = values_[op.input];
    const size_t size = LastExtent(result);
    const auto count = static_cast<double>(size);
    const auto epsilon = static_cast<double>(op.epsilon);
    for (size_t first = 0; first < result.elements.size(); first += size) {
      double sum = 0;
      double squares = 0;
      for (size_t i = 0; i < size; ++i) sum += result.at(first + i);
      const double mean = op.kind == NormKind::kLayer ? sum / count : 0;
      for (size_t i = 0; i < size; ++i) squares += std::pow(result.at(first + i) - mean, 2);
      const double divisor = op.kind == NormKind::kL2 ? std::max(std::sqrt(squares), epsilon)
                                                      : std::sqrt(squares / count + epsilon);
      for (size_t i = 0; i < size; ++i) {
        double& x = result.at(first + i);
        x = (x - mean) / divisor;
        if (op.weight.has_value()) x *= values_[*op.weight].at(i);
        if (op.bias.has_value()) x += values_[*op.bias].at(i);
      }
    }
    return result;
  }
  PlainValue Of(const SoftmaxOp&) const { throw std::runtime_error("softmax is not computed"); }
  PlainValue Of(const ReduceOp& op) const {
    if (op.dimensions.size() != 1 || op.reduction != Reduction::kSum || op.keeps_dimensions) {
      throw std::runtime_error("only sums along one dimension are computed");
    }
    const PlainValue& input = values_[op.input];
    const auto dimension = static_cast<size_t>(op.dimensions[0]);
    size_t inner = 1;
    for (size_t i = dimension + 1; i < input.shape.size(); ++i) {
      inner *= static_cast<size_t>(input.shape[i]);
    }
    const auto extent = static_cast<size_t>(input.shape[dimension]);
    Shape shape = input.shape;
    shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(dimension));
    PlainValue result = Zeros(shape);
    for (size_t i = 0; i < input.elements.size(); ++i) {
      result.at(i / (inner * extent) * inner + i % inner) += input.at(i);
    }
    return result;
  }
  // Returns the position of a row, of which `positions` has one for each sequence and place, or for
  // each place.
  static double PositionOf(const PlainValue& positions, size_t sequence, size_t place) {
    const size_t length = LastExtent(positions);
    return positions.at(positions.shape.size() == 2 ? sequence * length + place : place);
  }
  PlainValue Of(const RotaryOp& op) const {
    const PlainValue& input = values_[op.input];
    const PlainValue& frequencies = values_[op.frequencies];
    PlainValue result = input;
    const size_t features = LastExtent(input);
    const auto heads = static_cast<size_t>(input.shape[2]);
    const auto length = static_cast<size_t>(input.shape[1]);
    for (size_t first = 0; first < input.elements.size(); first += features) {
      const size_t row = first / features / heads;
      const double position = PositionOf(values_[op.positions], row / length, row % length);
      for (size_t i = 0; i < features / 2; ++i) {
        const double angle = position * frequencies.at(i);
        const size_t a = first + (op.is_interleaved ? 2 * i : i);
        const size_t b = op.is_interleaved ? a + 1 : a + features / 2;
        result.at(a) = input.at(a) * std::cos(angle) - input.at(b) * std::sin(angle);
        result.at(b) = input.at(b) * std::cos(angle) + input.at(a) * std::sin(angle);
      }
    }
    return result;
  }
  PlainValue Of(const EmbeddingOp& op) const {
    const PlainValue& table = values_[op.table];
    const PlainValue& ids = values_[op.ids];
    const size_t features = LastExtent(table);
    Shape shape = ids.shape;
    shape.push_back(table.shape.back());
    PlainValue result = Zeros(shape);
    for (size_t i = 0; i < result.elements.size(); ++i) {
      const double id = ids.at(i / features);
      if (id < 0 || id >= static_cast<double>(table.shape[0])) continue;
      result.at(i) = table.at(static_cast<size_t>(id) * features + i % features);
    }
    return result;
  }
  PlainValue Of(const AttentionOp& op) const {
    const PlainValue& query = values_[op.query];
    const PlainValue& keys = values_[op.keys];
    const PlainValue& values = values_[op.values];
    const auto length = static_cast<size_t>(query.shape[1]);
    const auto heads = static_cast<size_t>(query.shape[2]);
    const auto rows = static_cast<size_t>(keys.shape[1]);
    const auto key_heads = static_cast<size_t>(keys.shape[2]);
    const size_t features = LastExtent(query);
    PlainValue result = Zeros(query.shape);
    for (size_t first = 0; first < query.elements.size(); first += features) {
      const size_t head = first / features % heads;
      const size_t place = first / features / heads % length;
      const size_t sequence = first / features / heads / length;
      const auto row_of = [&](size_t row) {
        return ((sequence * rows + row) * key_heads + head / (heads / key_heads)) * features;
      };
      std::vector<double> scores(rows);
      double largest = 0;
      for (size_t row = 0; row < rows; ++row) {
        for (size_t i = 0; i < features; ++i) {
          scores[row] += query.at(first + i) * keys.at(row_of(row) + i);
        }
        scores[row] *= static_cast<double>(op.scale);
        largest = std::max(largest, scores[row]);
      }
      double sum = 0;
      for (size_t row = 0; row < rows; ++row) {
        bool is_seen = true;
        if (op.positions.has_value()) {
          is_seen = static_cast<double>(row) <= PositionOf(values_[*op.positions], sequence, place);
        }
        if (op.mask.has_value()) {
          is_seen = is_seen && values_[*op.mask].at(sequence * rows + row) != 0;
        }
        scores[row] = is_seen ? std::exp(scores[row] - largest) : 0;
        sum += scores[row];
      }
      for (size_t row = 0; row < rows && sum > 0; ++row) {
        for (size_t i = 0; i < features; ++i) {
          result.at(first + i) += scores[row] / sum * values.at(row_of(row) + i);
        }
      }
    }
    return result;
  }
  PlainValue Of(const TopKOp& op) const {
    if (op.count != 1 || !op.gives_indices || !op.drops_dimension) {
      throw std::runtime_error("only the index of the largest element is computed");
    }
    const PlainValue& input = values_[op.input];
    PlainValue result = Zeros(Shape(input.shape.begin(), input.shape.end() - 1));
    const auto size = static_cast<std::ptrdiff_t>(LastExtent(input));
    for (size_t row = 0; row < result.elements.size(); ++row) {
      const auto first = input.elements.begin() + static_cast<std::ptrdiff_t>(row) * size;
      result.at(row) = static_cast<double>(std::max_element(first, first + size) - first);
    }
    return result;
  }
  PlainValue Of(const ReshapeOp& op) const { return {op.shape, values_[op.input].elements}; }
  PlainValue Of(const TransposeOp&) const { throw std::runtime_error("transpose is not computed"); }
  PlainValue Of(const SliceOp& op) const {
    const PlainValue& input = values_[op.input];
    Shape shape;
    for (size_t i = 0; i < input.shape.size(); ++i) {
      if (!op.steps.empty() && op.steps[i] != 1) throw std::runtime_error("steps of 1 only");
      shape.push_back(op.limits[i] - op.starts[i]);
    }
    PlainValue result = Zeros(shape);
    for (size_t i = 0; i < result.elements.size(); ++i) {
      size_t rest = i;
      size_t index = 0;
      size_t stride = 1;
      for (size_t back = shape.size(); back-- > 0;) {
        const auto extent = static_cast<size_t>(shape[back]);
        index += (rest % extent + static_cast<size_t>(op.starts[back])) * stride;
        stride *= static_cast<size_t>(input.shape[back]);
        rest /= extent;
      }
      result.at(i) = input.at(index);
    }
    return result;
  }
  PlainValue Of(const ConcatenateOp&) const {
    throw std::runtime_error("concatenate is not computed");
  }
  PlainValue Of(const UpdateRowsOp& op) const {
    PlainValue result = values_[op.input];
    const PlainValue& update = values_[op.update];
    const auto rows = static_cast<size_t>(result.shape[1]);
    const auto length = static_cast<size_t>(update.shape[1]);
    const size_t row_size = result.elements.size() / rows / static_cast<size_t>(result.shape[0]);
    for (size_t i = 0; i < update.elements.size(); ++i) {
      const size_t sequence = i / row_size / length;
      const double position = PositionOf(values_[op.positions], sequence, i / row_size % length);
      if (position < 0 || position >= static_cast<double>(rows)) continue;
      const size_t row = sequence * rows + static_cast<size_t>(position);
      result.at(row * row_size + i % row_size) = update.at(i);
    }
    return result;
  }
  PlainValue Of(const ConstantOp& op) const {
    PlainValue result = Zeros(op.value.shape);
    for (size_t i = 0; i < result.elements.size(); ++i) {
      if (op.value.dtype == Dtype::kF32) {
        float element = 0;
        std::memcpy(&element, op.value.bytes.data() + i * sizeof(element), sizeof(element));
        result.at(i) = static_cast<double>(element);
      } else if (op.value.dtype == Dtype::kI32) {
        int32_t element = 0;
        std::memcpy(&element, op.value.bytes.data() + i * sizeof(element), sizeof(element));
        result.at(i) = element;
      } else {
        throw std::runtime_error("only constants of F32 and I32 are computed");
      }
    }
    return result;
  }

  std::vector<PlainValue> values_;
};

}  // namespace

PlainValues RunPlainly(const Graph& graph, PlainValues& operands) {
  const Run run(graph, operands);
  PlainValues outputs;
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    outputs[graph.outputs[i].name] = run.value(graph.program.outputs[i]);
  }
  return outputs;
}

}  // namespace shardmesh::test
