// Reference results of products and tensor ops.
#include "client/inspect/reference_ops.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numbers>
#include <numeric>
#include <optional>
#include <utility>
#include <variant>

#include "status/status_macros.h"
#include "tensor/float_convert.h"

namespace shardmesh::client {
namespace {

using Inputs = absl::Span<const BoundedTensorPtr>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// The relative error of a function of elements, in units of roundoff.
constexpr double kFunctionError = 8;

size_t Count(int64_t extent) { return static_cast<size_t>(extent); }

size_t SizeOf(const Shape& shape) {
  size_t size = 1;
  for (const int64_t extent : shape) size *= Count(extent);
  return size;
}

// Returns a tensor of zeros, all exact, with room for bounds.
BoundedTensor Zeros(const TensorType& type) {
  const size_t size = SizeOf(type.shape);
  return {.dtype = type.dtype,
          .shape = type.shape,
          .values = std::vector<double>(size),
          .bounds = std::vector<double>(size)};
}

// 0 * infinity is 0 here: nothing of an unknown element is used.
double Times(double factor, double bound) { return factor == 0 ? 0 : factor * bound; }

double GeluTanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}
double Gelu(double x) { return 0.5 * x * std::erfc(-x / std::numbers::sqrt2); }
double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double Silu(double x) { return x == -kInfinity ? std::nan("") : x * Sigmoid(x); }

// Returns how far f(x + d) may be from f(x) for |d| <= bound, where f is monotone.
template <typename Function>
double Spread(Function f, double x, double bound) {
  if (bound == 0) return 0;
  const double value = f(x);
  const double spread = std::max(std::abs(f(x + bound) - value), std::abs(f(x - bound) - value));
  return std::isnan(spread) ? kInfinity : spread;
}

// Returns the function of one element, before the result is rounded to a type. `roundoff` is that
// of the computation.
BoundedNumber Applied(MapFunction function, double x, double bound, double roundoff) {
  // The largest slope of the GELU functions and of SiLU is below this number.
  constexpr double kSlope = 1.13;
  const auto of = [&](double value, double spread, double scale) {
    return BoundedNumber{value, spread + kFunctionError * roundoff * std::abs(scale)};
  };
  const auto monotone = [&](auto f) {
    const double value = f(x);
    return of(value, Spread(f, x, bound), value);
  };
  switch (function) {
    case MapFunction::kNegate:
      return {-x, bound};
    case MapFunction::kAbs:
      return {std::abs(x), bound};
    case MapFunction::kExp:
      return monotone([](double y) { return std::exp(y); });
    case MapFunction::kLog:
      return monotone([](double y) { return std::log(y); });
    case MapFunction::kSqrt:
      return monotone([](double y) { return std::sqrt(y); });
    case MapFunction::kRsqrt:
      return monotone([](double y) { return 1 / std::sqrt(y); });
    case MapFunction::kTanh:
      return monotone([](double y) { return std::tanh(y); });
    case MapFunction::kSigmoid:
      return monotone(Sigmoid);
    case MapFunction::kRelu:
      return {std::isnan(x) ? x : std::max(x, 0.0), bound};
    case MapFunction::kGelu:
      return of(Gelu(x), kSlope * bound, x);
    case MapFunction::kGeluTanh:
      return of(GeluTanh(x), kSlope * bound, x);
    case MapFunction::kSilu:
      return of(Silu(x), kSlope * bound, x);
    default:
      return {std::nan(""), kInfinity};  // not reached: a function of two inputs
  }
}

BoundedNumber Activated(Activation activation, BoundedNumber x, double roundoff) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return Applied(MapFunction::kRelu, x.value, x.bound, roundoff);
    case Activation::kGelu:
      return Applied(MapFunction::kGelu, x.value, x.bound, roundoff);
    case Activation::kGeluTanh:
      return Applied(MapFunction::kGeluTanh, x.value, x.bound, roundoff);
    case Activation::kSilu:
      return Applied(MapFunction::kSilu, x.value, x.bound, roundoff);
  }
  return x;
}

// Returns the function of two elements, before the result is rounded to a type.
BoundedNumber Combined(MapFunction function, BoundedNumber a, BoundedNumber b) {
  switch (function) {
    case MapFunction::kAdd:
      return {a.value + b.value, a.bound + b.bound};
    case MapFunction::kSubtract:
      return {a.value - b.value, a.bound + b.bound};
    case MapFunction::kMultiply:
      return {a.value * b.value, Times(std::abs(a.value), b.bound) +
                                     Times(std::abs(b.value), a.bound) + Times(a.bound, b.bound)};
    case MapFunction::kDivide: {
      const double quotient = a.value / b.value;
      if (a.bound == 0 && b.bound == 0) return {quotient, 0};
      const double least = std::abs(b.value) - b.bound;
      return {quotient,
              least > 0 ? (a.bound + Times(std::abs(quotient), b.bound)) / least : kInfinity};
    }
    case MapFunction::kMinimum:
    case MapFunction::kMaximum: {
      const double bound = std::max(a.bound, b.bound);
      if (std::isnan(a.value) || std::isnan(b.value)) return {std::nan(""), bound};
      return {function == MapFunction::kMinimum ? std::min(a.value, b.value)
                                                : std::max(a.value, b.value),
              bound};
    }
    default:
      return {std::nan(""), kInfinity};  // not reached: a function of one input
  }
}

// Stores the element as a worker rounds it to the tensor's type.
void Store(BoundedTensor* to, size_t i, BoundedNumber element) {
  const double value = IsFloat(to->dtype) ? element.value : WrapInteger(to->dtype, element.value);
  to->values[i] = value;
  to->bounds[i] = RoundedBound(to->dtype, element.value, element.bound);
}

BoundedNumber At(const BoundedTensor& tensor, size_t i) {
  return {tensor.values[i], tensor.bound(i)};
}

void Copy(const BoundedTensor& from, size_t i, BoundedTensor* to, size_t j) {
  to->values[j] = from.values[i];
  to->bounds[j] = from.bound(i);
}

// Marks an element of which nothing is known.
void Forget(BoundedTensor* tensor, size_t i) { tensor->bounds[i] = kInfinity; }

// Returns the index of an input's element that belongs to element i of a result, broadcast.
size_t Broadcast(const Shape& result, const Shape& input, size_t i) {
  size_t index = 0;
  size_t stride = 1;
  for (size_t back = 1; back <= result.size(); ++back) {
    const size_t extent = Count(result[result.size() - back]);
    const size_t coordinate = i % extent;
    i /= extent;
    if (back > input.size()) continue;
    const size_t own = Count(input[input.size() - back]);
    if (own != 1) index += coordinate * stride;
    stride *= own;
  }
  return index;
}

BoundedTensor ResultOf(const MapOp& op, const TensorType& type, Inputs inputs) {
  BoundedTensor result = Zeros(type);
  const double roundoff = ComputedPrecisionOf(type.dtype).roundoff;
  for (size_t i = 0; i < result.size(); ++i) {
    const BoundedNumber a = At(*inputs[0], Broadcast(type.shape, inputs[0]->shape, i));
    if (inputs.size() == 1) {
      Store(&result, i, Applied(op.function, a.value, a.bound, roundoff));
    } else {
      const BoundedNumber b = At(*inputs[1], Broadcast(type.shape, inputs[1]->shape, i));
      Store(&result, i, Combined(op.function, a, b));
    }
  }
  return result;
}

// Returns the value of the type that is nearest.
double Nearest(Dtype dtype, double value) {
  switch (dtype) {
    case Dtype::kF32:
      return static_cast<double>(F64ToF32(value));
    case Dtype::kBF16:
      return static_cast<double>(BF16ToF32(F64ToBF16(value)));
    case Dtype::kF16:
      return static_cast<double>(F16ToF32(F64ToF16(value)));
    default:
      return value;
  }
}

BoundedTensor ResultOf(const ConvertOp&, const TensorType& type, Inputs inputs) {
  const BoundedTensor& input = *inputs[0];
  BoundedTensor result = Zeros(type);
  for (size_t i = 0; i < result.size(); ++i) {
    BoundedNumber x = At(input, i);
    if (IsFloat(input.dtype) && !IsFloat(type.dtype)) {
      // Saturation is not looked at: what is near or beyond the ends of the type is unknown.
      const double whole = std::trunc(x.value);
      const bool is_known = std::trunc(x.value - x.bound) == whole &&
                            std::trunc(x.value + x.bound) == whole &&
                            WrapInteger(type.dtype, whole) == whole;
      x = {std::isfinite(whole) ? whole : 0, is_known ? 0 : kInfinity};
    }
    Store(&result, i, x);
    // A worker rounds to the nearest value, so nothing is unsure about that of an exact input.
    if (IsFloat(type.dtype) && x.bound == 0 && std::isfinite(result.bounds[i])) {
      result.values[i] = Nearest(type.dtype, x.value);
      result.bounds[i] = 0;
    }
  }
  return result;
}

BoundedTensor ResultOf(const NormOp& op, const TensorType& type, Inputs inputs) {
  const BoundedTensor& input = *inputs[0];
  const BoundedTensor* const weight = op.weight.has_value() ? inputs[1].get() : nullptr;
  const BoundedTensor* const bias = op.bias.has_value() ? inputs.back().get() : nullptr;
  BoundedTensor result = Zeros(type);
  const size_t size = Count(type.shape.back());
  const auto count = static_cast<double>(size);
  const auto epsilon = static_cast<double>(op.epsilon);
  const double roundoff = ComputedPrecisionOf(type.dtype).roundoff;
  const double sum_error = SumError(count + kFunctionError, roundoff);
  for (size_t first = 0; first < result.size(); first += size) {
    double sum = 0;
    double magnitudes = 0;
    double errors = 0;  // of the elements, their sum
    for (size_t i = first; i < first + size; ++i) {
      sum += input.values[i];
      magnitudes += std::abs(input.values[i]);
      errors += input.bound(i);
    }
    const bool is_centered = op.kind == NormKind::kLayer;
    const double mean = is_centered ? sum / count : 0;
    const double mean_error = is_centered ? errors / count + sum_error * magnitudes / count : 0;
    double squares = 0;
    double error_squares = 0;
    const auto error_of = [&](size_t i) {
      return input.bound(i) + mean_error +
             (is_centered ? roundoff * std::abs(input.values[i] - mean) : 0);
    };
    for (size_t i = first; i < first + size; ++i) {
      squares += (input.values[i] - mean) * (input.values[i] - mean);
      error_squares += error_of(i) * error_of(i);
    }
    // |sqrt(a^2 + e) - sqrt(b^2 + e)| is at most |a - b|, and norms obey the triangle inequality.
    const bool is_l2 = op.kind == NormKind::kL2;
    const double divisor =
        is_l2 ? std::max(std::sqrt(squares), epsilon) : std::sqrt(squares / count + epsilon);
    const double divisor_error =
        std::sqrt(is_l2 ? error_squares : error_squares / count) + sum_error * divisor;
    const double least = divisor - divisor_error;
    for (size_t i = 0; i < size; ++i) {
      const double value = (input.values[first + i] - mean) / divisor;
      BoundedNumber x = {
          value, least > 0 ? (error_of(first + i) + std::abs(value) * divisor_error) / least +
                                 3 * roundoff * std::abs(value)
                           : kInfinity};
      if (weight != nullptr) x = Combined(MapFunction::kMultiply, x, At(*weight, i));
      x.bound += roundoff * std::abs(x.value);
      if (bias != nullptr) x = Combined(MapFunction::kAdd, x, At(*bias, i));
      x.bound += roundoff * std::abs(x.value);
      Store(&result, first + i, x);
    }
  }
  return result;
}

// Replaces scores by the weights exp(x) / sum(exp(x)) of those that are seen; the others become 0.
// `roundoff`: of the computation.
void Soften(std::vector<BoundedNumber>* scores, const std::vector<bool>& is_seen, double roundoff) {
  double largest = -kInfinity;
  double error = 0;
  for (size_t i = 0; i < scores->size(); ++i) {
    if (!is_seen[i]) continue;
    largest = std::max(largest, (*scores)[i].value);
    error = std::max(error, (*scores)[i].bound);
  }
  double sum = 0;
  for (size_t i = 0; i < scores->size(); ++i) {
    double& x = (*scores)[i].value;
    x = is_seen[i] ? std::exp(x - largest) : 0;
    sum += x;
  }
  // Errors of at most e in the scores change numerator and sum by a factor of at most exp(e) each.
  const double relative =
      std::expm1(2 * error) + SumError(static_cast<double>(scores->size()) + 16, roundoff);
  for (BoundedNumber& x : *scores) {
    if (sum > 0) x.value /= sum;
    x.bound = Times(x.value, relative);
  }
}

BoundedTensor ResultOf(const SoftmaxOp& op, const TensorType& type, Inputs inputs) {
  const BoundedTensor& input = *inputs[0];
  const BoundedTensor* const mask = op.mask.has_value() ? inputs[1].get() : nullptr;
  BoundedTensor result = Zeros(type);
  const size_t size = Count(type.shape.back());
  const auto scale = static_cast<double>(op.scale);
  const double roundoff = ComputedPrecisionOf(type.dtype).roundoff;
  std::vector<BoundedNumber> row(size);
  std::vector<bool> is_seen(size, true);
  for (size_t first = 0; first < result.size(); first += size) {
    bool is_known = true;
    for (size_t i = 0; i < size; ++i) {
      const double x = scale * input.values[first + i];
      row[i] = {x, Times(std::abs(scale), input.bound(first + i)) + 4 * roundoff * std::abs(x)};
      if (mask == nullptr) continue;
      const BoundedNumber masked = At(*mask, Broadcast(type.shape, mask->shape, first + i));
      is_seen[i] = masked.value != 0;
      is_known = is_known && masked.bound == 0;
    }
    Soften(&row, is_seen, roundoff);
    for (size_t i = 0; i < size; ++i) {
      Store(&result, first + i, row[i]);
      if (!is_known) Forget(&result, first + i);
    }
  }
  return result;
}

// A reduction of elements that come one after the other.
class Reducing {
 public:
  explicit Reducing(Reduction reduction) : reduction_(reduction) {}

  void Add(BoundedNumber x) {
    ++count_;
    magnitudes_ += std::abs(x.value);
    if (count_ == 1) {
      sum_ = x;
      return;
    }
    sum_ = Combined(FunctionOf(reduction_), sum_, x);
  }

  // Returns the result before it is rounded to a type. `roundoff`: of the computation; 0 for
  // integers.
  BoundedNumber Result(double roundoff) const {
    BoundedNumber result = sum_;
    const auto count = static_cast<double>(count_);
    const double error = SumError(count, roundoff);
    switch (reduction_) {
      case Reduction::kMean:
        result = {result.value / count, (result.bound + error * magnitudes_) / count};
        result.bound += 2 * roundoff * std::abs(result.value);
        break;
      case Reduction::kSum:
        result.bound += Times(magnitudes_, error);
        break;
      case Reduction::kProduct:
        result.bound += Times(std::abs(result.value) + result.bound, error);
        break;
      default:
        break;
    }
    return result;
  }

 private:
  static MapFunction FunctionOf(Reduction reduction) {
    switch (reduction) {
      case Reduction::kProduct:
        return MapFunction::kMultiply;
      case Reduction::kMin:
        return MapFunction::kMinimum;
      case Reduction::kMax:
        return MapFunction::kMaximum;
      default:
        return MapFunction::kAdd;
    }
  }

  Reduction reduction_;
  int64_t count_ = 0;
  double magnitudes_ = 0;
  BoundedNumber sum_;
};

BoundedTensor ResultOf(const ReduceOp& op, const TensorType& type, Inputs inputs) {
  const BoundedTensor& input = *inputs[0];
  Shape kept = input.shape;
  for (const int64_t dimension : op.dimensions) kept[Count(dimension)] = 1;
  BoundedTensor result = Zeros(type);
  std::vector<Reducing> sums(result.size(), Reducing(op.reduction));
  for (size_t i = 0; i < input.size(); ++i) {
    sums[Broadcast(input.shape, kept, i)].Add(At(input, i));
  }
  const double roundoff = IsFloat(type.dtype) ? ComputedPrecisionOf(type.dtype).roundoff : 0;
  for (size_t i = 0; i < result.size(); ++i) {
    // The op says what a reduction of nothing gives, except for the largest and the least of it.
    if (input.size() == 0) {
      result.values[i] = op.reduction == Reduction::kProduct ? 1 : 0;
      if (op.reduction != Reduction::kSum && op.reduction != Reduction::kProduct) {
        Forget(&result, i);
      }
      continue;
    }
    Store(&result, i, sums[i].Result(roundoff));
  }
  return result;
}

// Returns the position of a row, of which `positions` has one for each sequence and place, or for
// each place. Positions are integers: their bounds are 0, or infinity if they are unknown.
BoundedNumber PositionOf(const BoundedTensor& positions, size_t sequence, size_t place) {
  const size_t length = Count(positions.shape.back());
  return At(positions, positions.shape.size() == 2 ? sequence * length + place : place);
}

BoundedTensor ResultOf(const RotaryOp& op, const TensorType& type, Inputs inputs) {
  const BoundedTensor& input = *inputs[0];
  const BoundedTensor& frequencies = *inputs[2];
  BoundedTensor result = Zeros(type);
  const size_t features = Count(type.shape[3]);
  const size_t heads = Count(type.shape[2]);
  const size_t length = Count(type.shape[1]);
  const double roundoff = ComputedPrecisionOf(type.dtype).roundoff;
  for (size_t first = 0; first < result.size(); first += features) {
    const size_t row = first / features / heads;
    const BoundedNumber position = PositionOf(*inputs[1], row / length, row % length);
    for (size_t i = 0; i < features / 2; ++i) {
      const auto [angle, spread] = Combined(MapFunction::kMultiply, position, At(frequencies, i));
      const double angle_error = spread + 4 * roundoff * (1 + std::abs(angle));
      const BoundedNumber cosine = {std::cos(angle), angle_error};
      const BoundedNumber sine = {std::sin(angle), angle_error};
      const size_t a = first + (op.is_interleaved ? 2 * i : i);
      const size_t b = op.is_interleaved ? a + 1 : a + features / 2;
      const auto turned = [&](MapFunction function, size_t with, size_t across) {
        const BoundedNumber x = Combined(MapFunction::kMultiply, At(input, with), cosine);
        const BoundedNumber y = Combined(MapFunction::kMultiply, At(input, across), sine);
        BoundedNumber sum = Combined(function, x, y);
        sum.bound += 2 * roundoff * (std::abs(x.value) + std::abs(y.value));
        return sum;
      };
      Store(&result, a, turned(MapFunction::kSubtract, a, b));
      Store(&result, b, turned(MapFunction::kAdd, b, a));
    }
  }
  return result;
}

BoundedTensor ResultOf(const EmbeddingOp&, const TensorType& type, Inputs inputs) {
  const BoundedTensor& table = *inputs[0];
  const BoundedTensor& ids = *inputs[1];
  BoundedTensor result = Zeros(type);
  const size_t features = Count(type.shape.back());
  for (size_t i = 0; i < result.size(); ++i) {
    const size_t row = i / features;
    if (ids.bound(row) > 0) {
      Forget(&result, i);
      continue;
    }
    const double id = ids.values[row];
    if (id < 0 || id >= static_cast<double>(table.shape[0])) continue;
    Copy(table, static_cast<size_t>(id) * features + i % features, &result, i);
  }
  return result;
}

BoundedTensor ResultOf(const AttentionOp& op, const TensorType& type, Inputs inputs) {
  const BoundedTensor& query = *inputs[0];
  const BoundedTensor& keys = *inputs[1];
  const BoundedTensor& values = *inputs[2];
  const BoundedTensor* const positions = op.positions.has_value() ? inputs[3].get() : nullptr;
  const BoundedTensor* const mask = op.mask.has_value() ? inputs.back().get() : nullptr;
  BoundedTensor result = Zeros(type);
  const size_t length = Count(query.shape[1]);
  const size_t heads = Count(query.shape[2]);
  const size_t rows = Count(keys.shape[1]);
  const size_t key_heads = Count(keys.shape[2]);
  const size_t features = Count(query.shape[3]);
  const size_t value_features = Count(values.shape[3]);
  const double roundoff = ComputedPrecisionOf(type.dtype).roundoff;
  // Workers may round the weights of rows to the type before they multiply the values by them.
  const double weight_error = PrecisionOf(type.dtype).roundoff;
  const double sum_error = SumError(static_cast<double>(rows) + 2, roundoff);
  std::vector<BoundedNumber> weights(rows);
  std::vector<bool> is_seen(rows);
  const auto vector = [](const BoundedTensor& tensor, size_t first, size_t size) {
    const auto part = [&](const std::vector<double>& all) {
      return all.empty() ? absl::Span<const double>()
                         : absl::MakeConstSpan(all).subspan(first, size);
    };
    return ContractedVector{part(tensor.values), part(tensor.bounds)};
  };
  const ProductEnd score_end = {.scale = static_cast<double>(op.scale), .dtype = Dtype::kF32};
  for (size_t i = 0; i < SizeOf(type.shape) / std::max<size_t>(value_features, 1); ++i) {
    const size_t head = i % heads;
    const size_t place = i / heads % length;
    const size_t sequence = i / heads / length;
    const auto row_of = [&](size_t row) {
      return (sequence * rows + row) * key_heads + head / (heads / key_heads);
    };
    const BoundedNumber position =
        positions == nullptr ? BoundedNumber() : PositionOf(*positions, sequence, place);
    bool is_known = position.bound == 0;
    for (size_t row = 0; row < rows; ++row) {
      weights[row] = ProductElement(vector(query, i * features, features),
                                    vector(keys, row_of(row) * features, features), {}, score_end);
      const BoundedNumber masked =
          mask == nullptr ? BoundedNumber{.value = 1} : At(*mask, sequence * rows + row);
      is_seen[row] =
          (positions == nullptr || static_cast<double>(row) <= position.value) && masked.value != 0;
      is_known = is_known && masked.bound == 0;
    }
    Soften(&weights, is_seen, roundoff);
    for (size_t feature = 0; feature < value_features; ++feature) {
      BoundedNumber sum;
      double magnitudes = 0;
      for (size_t row = 0; row < rows; ++row) {
        if (!is_seen[row]) continue;
        const BoundedNumber term = Combined(MapFunction::kMultiply, weights[row],
                                            At(values, row_of(row) * value_features + feature));
        sum = Combined(MapFunction::kAdd, sum, term);
        magnitudes += std::abs(term.value);
      }
      sum.bound += (sum_error + weight_error) * magnitudes;
      Store(&result, i * value_features + feature, sum);
      if (!is_known) Forget(&result, i * value_features + feature);
    }
  }
  return result;
}

BoundedTensor ResultOf(const TopKOp& op, const TensorType& type, Inputs inputs) {
  const BoundedTensor& input = *inputs[0];
  BoundedTensor result = Zeros(type);
  const size_t size = Count(input.shape.back());
  const size_t count = Count(op.count);
  std::vector<size_t> order(size);
  for (size_t row = 0; row < result.size() / count; ++row) {
    const size_t first = row * size;
    std::iota(order.begin(), order.end(), size_t{0});
    const auto value = [&](size_t i) { return input.values[first + i]; };
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      if (std::isnan(value(a)) || std::isnan(value(b))) {
        return std::isnan(value(a)) && !std::isnan(value(b));
      }
      return value(a) > value(b);
    });
    double largest_bound = 0;
    for (size_t i = 0; i < size; ++i)
      largest_bound = std::max(largest_bound, input.bound(first + i));
    // Whether errors leave the order of these neighbours as it is.
    const auto is_certain = [&](size_t place) {
      return largest_bound == 0 ||
             value(order[place]) - value(order[place + 1]) > 2 * largest_bound;
    };
    for (size_t place = 0; place < count; ++place) {
      const size_t i = row * count + place;
      if (!op.gives_indices) {
        result.values[i] = value(order[place]);
        result.bounds[i] = largest_bound;
        continue;
      }
      result.values[i] = static_cast<double>(order[place]);
      if ((place > 0 && !is_certain(place - 1)) || (place + 1 < size && !is_certain(place))) {
        Forget(&result, i);
      }
    }
  }
  return result;
}

BoundedTensor ResultOf(const ReshapeOp&, const TensorType& type, Inputs inputs) {
  BoundedTensor result = *inputs[0];
  result.shape = type.shape;
  return result;
}

// Returns the elements that index(coordinates) gives for the coordinates of each result.
template <typename Index>
BoundedTensor Picked(const BoundedTensor& input, const TensorType& type, Index index) {
  BoundedTensor result = Zeros(type);
  std::vector<size_t> coordinates(type.shape.size());
  for (size_t i = 0; i < result.size(); ++i) {
    size_t rest = i;
    for (size_t dim = type.shape.size(); dim-- > 0;) {
      coordinates[dim] = rest % Count(type.shape[dim]);
      rest /= Count(type.shape[dim]);
    }
    Copy(input, index(coordinates), &result, i);
  }
  return result;
}

std::vector<size_t> StridesOf(const Shape& shape) {
  std::vector<size_t> strides(shape.size(), 1);
  for (size_t dim = shape.size(); dim-- > 1;) {
    strides[dim - 1] = strides[dim] * Count(shape[dim]);
  }
  return strides;
}

BoundedTensor ResultOf(const TransposeOp& op, const TensorType& type, Inputs inputs) {
  const std::vector<size_t> strides = StridesOf(inputs[0]->shape);
  return Picked(*inputs[0], type, [&](const std::vector<size_t>& coordinates) {
    size_t index = 0;
    for (size_t dim = 0; dim < coordinates.size(); ++dim) {
      index += coordinates[dim] * strides[Count(op.permutation[dim])];
    }
    return index;
  });
}

BoundedTensor ResultOf(const SliceOp& op, const TensorType& type, Inputs inputs) {
  const std::vector<size_t> strides = StridesOf(inputs[0]->shape);
  return Picked(*inputs[0], type, [&](const std::vector<size_t>& coordinates) {
    size_t index = 0;
    for (size_t dim = 0; dim < coordinates.size(); ++dim) {
      const size_t step = op.steps.empty() ? 1 : Count(op.steps[dim]);
      index += (Count(op.starts[dim]) + coordinates[dim] * step) * strides[dim];
    }
    return index;
  });
}

BoundedTensor ResultOf(const ConcatenateOp& op, const TensorType& type, Inputs inputs) {
  BoundedTensor result = Zeros(type);
  const size_t dim = Count(op.dimension);
  size_t inner = 1;
  for (size_t i = dim + 1; i < type.shape.size(); ++i) inner *= Count(type.shape[i]);
  const size_t result_run = Count(type.shape[dim]) * inner;
  size_t offset = 0;
  for (const BoundedTensorPtr& input : inputs) {
    const size_t run = Count(input->shape[dim]) * inner;
    for (size_t i = 0; i < input->size(); ++i) {
      Copy(*input, i, &result, i / run * result_run + offset + i % run);
    }
    offset += run;
  }
  return result;
}

BoundedTensor ResultOf(const UpdateRowsOp&, const TensorType& type, Inputs inputs) {
  const BoundedTensor& input = *inputs[0];
  const BoundedTensor& update = *inputs[1];
  BoundedTensor result = Zeros(type);
  for (size_t i = 0; i < input.size(); ++i) Copy(input, i, &result, i);
  if (input.size() == 0) return result;
  const size_t rows = Count(type.shape[1]);
  const size_t length = Count(update.shape[1]);
  const size_t row_size = result.size() / rows / Count(type.shape[0]);
  std::optional<size_t> unknown;  // a sequence of which all rows are
  for (size_t i = 0; i < update.size(); ++i) {
    const size_t sequence = i / row_size / length;
    if (unknown == sequence) continue;
    const BoundedNumber position = PositionOf(*inputs[2], sequence, i / row_size % length);
    if (position.bound > 0) {
      // Any row of the sequence may get this one.
      const size_t begin = sequence * rows * row_size;
      std::fill_n(result.bounds.begin() + static_cast<std::ptrdiff_t>(begin), rows * row_size,
                  kInfinity);
      unknown = sequence;
      continue;
    }
    if (position.value < 0 || position.value >= static_cast<double>(rows)) continue;
    const size_t row = sequence * rows + static_cast<size_t>(position.value);
    Copy(update, i, &result, row * row_size + i % row_size);
  }
  return result;
}

absl::StatusOr<BoundedTensor> ResultOf(const ConstantOp& op, const TensorType& /*type*/,
                                       Inputs /*inputs*/) {
  SHARDMESH_ASSIGN_OR_RETURN(const TensorView view,
                             TensorView::Create(op.value.dtype, op.value.shape, op.value.bytes));
  return ExactTensor(view);
}

}  // namespace

BoundedNumber ProductElement(const ContractedVector& lhs, const ContractedVector& rhs,
                             BoundedNumber bias, const ProductEnd& end) {
  const size_t size = lhs.values.size();
  double sum = 0;
  double magnitudes = 0;
  for (size_t k = 0; k < size; ++k) {
    const double term = lhs.values[k] * rhs.values[k];
    sum += term;
    magnitudes += std::abs(term);
  }
  double error = 0;  // from those of the operands
  for (size_t k = 0; k < lhs.bounds.size(); ++k) {
    error += Times(std::abs(rhs.values[k]), lhs.bounds[k]);
  }
  for (size_t k = 0; k < rhs.bounds.size(); ++k) {
    const double own = lhs.bounds.empty() ? 0 : lhs.bounds[k];
    error += Times(std::abs(lhs.values[k]) + own, rhs.bounds[k]);
  }
  const Precision precision = ComputedPrecisionOf(end.dtype);
  const auto terms = static_cast<double>(size) + 2;
  // Products below the normal numbers may become zero.
  error += (magnitudes + error) * SumError(terms, precision.roundoff) + terms * precision.tiny;
  // Parts of the sum may be larger than the sum.
  double largest = magnitudes + error;
  const auto scaled = [&](BoundedNumber x, BoundedNumber factor) {
    x = Combined(MapFunction::kMultiply, x, factor);
    x.bound += precision.roundoff * std::abs(x.value) + precision.tiny;
    magnitudes *= std::abs(factor.value) + factor.bound;
    largest = std::max(largest, magnitudes + x.bound);
    return x;
  };
  BoundedNumber result = {sum, error};
  if (end.scale != 1) result = scaled(result, {.value = end.scale});
  if (end.factor.value != 1 || end.factor.bound > 0) result = scaled(result, end.factor);
  result = Combined(MapFunction::kAdd, result, bias);
  result.bound += precision.roundoff * (std::abs(result.value) + std::abs(bias.value));
  largest = std::max(largest, magnitudes + std::abs(bias.value) + result.bound);
  if (!(largest < precision.largest)) result.bound = kInfinity;
  result = Activated(end.activation, result, precision.roundoff);
  result.bound = RoundedBound(end.dtype, result.value, result.bound);
  return result;
}

absl::StatusOr<BoundedTensor> ReferenceResult(const TensorOp& op, const TensorType& type,
                                              absl::Span<const BoundedTensorPtr> inputs) {
  return std::visit(
      [&](const auto& kind) -> absl::StatusOr<BoundedTensor> {
        return ResultOf(kind, type, inputs);
      },
      op);
}

int64_t ReferenceWork(const TensorOp& op, absl::Span<const TensorType> inputs) {
  if (!std::holds_alternative<AttentionOp>(op)) return 0;
  const Shape& query = inputs[0].shape;
  const Shape& values = inputs[2].shape;
  return query[0] * query[1] * query[2] * values[1] * (query[3] + values[3]);
}

}  // namespace shardmesh::client
