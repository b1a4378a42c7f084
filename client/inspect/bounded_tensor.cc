// BoundedTensor: reads elements of all types, and rounds.
#include "client/inspect/bounded_tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "status/reason.h"
#include "status/str_cat.h"
#include "tensor/float_convert.h"

namespace shardmesh::client {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kExactIntegers = 0x1p53;  // F64 has all integers up to this magnitude

// Reads elements whose type in memory is T; convert(T) is their value.
template <typename T, typename Convert>
void Read(absl::Span<const char> bytes, Convert convert, std::vector<double>* to) {
  to->resize(bytes.size() / sizeof(T));
  for (size_t i = 0; i < to->size(); ++i) {
    T element;
    std::memcpy(&element, bytes.data() + i * sizeof(T), sizeof(T));
    (*to)[i] = convert(element);
  }
}

template <typename T>
void ReadNumbers(absl::Span<const char> bytes, std::vector<double>* to) {
  Read<T>(
      bytes, [](T element) { return static_cast<double>(element); }, to);
}

// The bits of an integer type, and whether it has a sign; 0 bits for other types.
struct IntegerType {
  int bits = 0;
  bool has_sign = true;
};
IntegerType IntegerTypeOf(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBool:
    case Dtype::kU8:
    case Dtype::kU16:
    case Dtype::kU32:
    case Dtype::kU64:
      return {BitsPerElement(dtype), false};
    case Dtype::kI8:
    case Dtype::kI16:
    case Dtype::kI32:
    case Dtype::kI64:
      return {BitsPerElement(dtype), true};
    default:
      return {};
  }
}

}  // namespace

bool IsFloat(Dtype dtype) {
  return dtype == Dtype::kF64 || dtype == Dtype::kF32 || dtype == Dtype::kF16 ||
         dtype == Dtype::kBF16;
}

Precision PrecisionOf(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64:
      return {.roundoff = 0x1p-53, .tiny = 0x1p-1022, .largest = 0x1.fffffffffffffp1023};
    case Dtype::kF32:
      return {.roundoff = 0x1p-24, .tiny = 0x1p-126, .largest = 0x1.fffffep127};
    case Dtype::kBF16:
      return {.roundoff = 0x1p-8, .tiny = 0x1p-126, .largest = 0x1.fep127};
    case Dtype::kF16:
      return {.roundoff = 0x1p-11, .tiny = 0x1p-14, .largest = 65504};
    default:
      return {.largest = kInfinity};
  }
}

Precision ComputedPrecisionOf(Dtype dtype) {
  return PrecisionOf(dtype == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32);
}

absl::StatusOr<BoundedTensor> ExactTensor(const TensorView& view) {
  BoundedTensor tensor{.dtype = view.dtype(), .shape = view.shape()};
  const absl::Span<const char> bytes = view.bytes();
  std::vector<double>* const values = &tensor.values;
  switch (view.dtype()) {
    case Dtype::kF64:
      ReadNumbers<double>(bytes, values);
      break;
    case Dtype::kF32:
      ReadNumbers<float>(bytes, values);
      break;
    case Dtype::kF16:
      Read<uint16_t>(
          bytes, [](uint16_t bits) { return static_cast<double>(F16ToF32(bits)); }, values);
      break;
    case Dtype::kBF16:
      Read<uint16_t>(
          bytes, [](uint16_t bits) { return static_cast<double>(BF16ToF32(bits)); }, values);
      break;
    case Dtype::kBool:
      Read<uint8_t>(
          bytes, [](uint8_t element) { return element == 0 ? 0.0 : 1.0; }, values);
      break;
    case Dtype::kI8:
      ReadNumbers<int8_t>(bytes, values);
      break;
    case Dtype::kI16:
      ReadNumbers<int16_t>(bytes, values);
      break;
    case Dtype::kI32:
      ReadNumbers<int32_t>(bytes, values);
      break;
    case Dtype::kI64:
      ReadNumbers<int64_t>(bytes, values);
      break;
    case Dtype::kU8:
      ReadNumbers<uint8_t>(bytes, values);
      break;
    case Dtype::kU16:
      ReadNumbers<uint16_t>(bytes, values);
      break;
    case Dtype::kU32:
      ReadNumbers<uint32_t>(bytes, values);
      break;
    case Dtype::kU64:
      ReadNumbers<uint64_t>(bytes, values);
      break;
    default:
      return WithReason(
          absl::UnimplementedError(StrCat("elements of type ", DtypeName(view.dtype()),
                                          " are not verified; convert them in the program, or "
                                          "leave out the verification")),
          Reason::kNotAvailable);
  }
  if (BitsPerElement(view.dtype()) == 64 && view.dtype() != Dtype::kF64) {
    tensor.bounds.resize(tensor.size());
    for (size_t i = 0; i < tensor.size(); ++i) {
      if (std::abs(tensor.values[i]) >= kExactIntegers) tensor.bounds[i] = kInfinity;
    }
  }
  return tensor;
}

double WrapInteger(Dtype dtype, double value) {
  const IntegerType type = IntegerTypeOf(dtype);
  if (type.bits == 0 || type.bits > 52) return value;
  const double range = std::ldexp(1, type.bits);
  double wrapped = std::fmod(value, range);
  const double least = type.has_sign ? -range / 2 : 0;
  if (wrapped < least) wrapped += range;
  if (wrapped >= least + range) wrapped -= range;
  return wrapped;
}

double SumError(double terms, double roundoff) {
  const double errors = terms * roundoff;
  return errors < 1 ? errors / (1 - errors) : kInfinity;
}

double RoundedBound(Dtype dtype, double value, double bound) {
  if (!IsFloat(dtype)) {
    return std::abs(value) + bound < kExactIntegers ? bound : kInfinity;
  }
  const Precision precision = PrecisionOf(dtype);
  const double magnitude = std::abs(value) + bound;
  // An infinite element is as good as a finite one where the type ends.
  if (!(magnitude < precision.largest)) return kInfinity;
  return bound + precision.roundoff * magnitude + precision.tiny;
}

void LimitBounds(double tolerance, BoundedTensor* tensor) {
  if (!IsFloat(tensor->dtype) || tensor->bounds.empty()) return;
  double largest = 0;
  for (const double value : tensor->values) {
    if (!std::isfinite(value)) return;
    largest = std::max(largest, std::abs(value));
  }
  for (double& bound : tensor->bounds) bound = std::min(bound, tolerance * largest);
}

}  // namespace shardmesh::client
