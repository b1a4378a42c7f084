// Chooses the loops of functions of elements. Floats of 16 bits are computed as F32, and
// conversions go through blocks of the widest type of their kind.
#include "worker/tensor_op/element_function.h"

#include <cstring>

#include "worker/kernel/activation_loops.h"
#include "worker/kernel/float_block.h"

namespace shardmesh::worker {
namespace {

std::optional<Activation> ActivationOf(MapFunction function) {
  switch (function) {
    case MapFunction::kRelu:
      return Activation::kRelu;
    case MapFunction::kGelu:
      return Activation::kGelu;
    case MapFunction::kGeluTanh:
      return Activation::kGeluTanh;
    case MapFunction::kSilu:
      return Activation::kSilu;
    default:
      return std::nullopt;
  }
}

bool IsHalf(Dtype dtype) { return FloatBytes(dtype) == 2; }

void ConvertBlock(Dtype from_type, const char* from, size_t count, Dtype to_type, char* to) {
  if (FloatBytes(from_type) > 0 && FloatBytes(to_type) > 0) {
    FloatBlock floats;
    LoadFloats(from_type, from, count, floats.data());
    StoreFloats(to_type, floats.data(), count, to);
  } else if (IsFloat(from_type)) {
    WideBlock<double> values;
    LoadDoubles(from_type, from, count, values.data());
    StoreDoubles(to_type, values.data(), count, to);
  } else {
    WideBlock<uint64_t> values;
    LoadIntegers(from_type, from, count, values.data());
    StoreIntegers(to_type, from_type != Dtype::kU64, values.data(), count, to);
  }
}

}  // namespace

int64_t ElementBytes(Dtype dtype) { return BitsPerElement(dtype) / 8; }

ElementFunction::ElementFunction(const MapOp& op, Dtype dtype)
    : kind_(InputCountOf(op.function) == 1 ? Kind::kUnary : Kind::kPair),
      input_(dtype),
      result_(dtype) {
  const Dtype computed = IsHalf(dtype) ? Dtype::kF32 : dtype;
  if (kind_ == Kind::kPair) {
    pair_ = PairLoop(op.function, computed);
    return;
  }
  if (dtype != Dtype::kF64) activation_ = ActivationOf(op.function);
  unary_ = MapLoop(op.function, computed);
  // 2 us for an element.
  if (dtype == Dtype::kF64 && op.function == MapFunction::kGelu) cost_ = 64;
}

ElementFunction::ElementFunction(const ConvertOp& op, Dtype dtype)
    : kind_(op.dtype == dtype ? Kind::kCopy : Kind::kConvert), input_(dtype), result_(op.dtype) {}

void ElementFunction::Apply(const char* left, const char* right, int64_t count, char* out) const {
  switch (kind_) {
    case Kind::kCopy:
      if (out != left) std::memcpy(out, left, static_cast<size_t>(count * ElementBytes(input_)));
      return;
    case Kind::kConvert:
      ConvertBlock(input_, left, static_cast<size_t>(count), result_, out);
      return;
    case Kind::kUnary:
      ApplyUnary(left, count, out);
      return;
    case Kind::kPair:
      ApplyPair(left, right, count, out);
      return;
  }
}

void ElementFunction::ApplyUnary(const char* in, int64_t count, char* out) const {
  if (!IsHalf(input_) && !activation_.has_value()) {
    unary_(in, count, out);
    return;
  }
  alignas(64) FloatBlock values;
  LoadFloats(input_, in, static_cast<size_t>(count), values.data());
  if (activation_.has_value()) {
    ActivationLoop (*activation_)(nullptr, values.data(), static_cast<size_t>(count));
  } else {
    char* const bytes = reinterpret_cast<char*>(values.data());
    unary_(bytes, count, bytes);
  }
  StoreFloats(input_, values.data(), static_cast<size_t>(count), out);
}

void ElementFunction::ApplyPair(const char* left, const char* right, int64_t count,
                                char* out) const {
  if (!IsHalf(input_)) {
    pair_(left, right, count, out);
    return;
  }
  alignas(64) FloatBlock left_values;
  alignas(64) FloatBlock right_values;
  LoadFloats(input_, left, static_cast<size_t>(count), left_values.data());
  LoadFloats(input_, right, static_cast<size_t>(count), right_values.data());
  char* const result = reinterpret_cast<char*>(left_values.data());
  pair_(result, reinterpret_cast<const char*>(right_values.data()), count, result);
  StoreFloats(input_, left_values.data(), static_cast<size_t>(count), out);
}

}  // namespace shardmesh::worker
