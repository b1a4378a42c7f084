// Conversions of blocks. Short floats pass through blocks on the stack: their memory need not be
// aligned.
#include "worker/kernel/float_block.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "absl/types/span.h"
#include "tensor/float_convert.h"

namespace shardmesh::worker {
namespace {

using Halves = std::array<uint16_t, static_cast<size_t>(kFloatBlock)>;

template <typename From, typename Wide>
void Widen(const char* from, size_t count, Wide* to) {
  const From* const elements = reinterpret_cast<const From*>(from);
  for (size_t i = 0; i < count; ++i) to[i] = static_cast<Wide>(elements[i]);
}

// Converts towards zero; numbers beyond the type become its last one, and a NaN becomes 0.
template <typename To>
To Saturated(double value) {
  constexpr double kLow = static_cast<double>(std::numeric_limits<To>::min());
  // The number after the last one: a power of two, which is exact.
  constexpr double kEnd =
      2 * static_cast<double>(uint64_t{1} << (std::numeric_limits<To>::digits - 1));
  if (!(value > kLow)) return value != value ? To{0} : std::numeric_limits<To>::min();
  return value >= kEnd ? std::numeric_limits<To>::max() : static_cast<To>(value);
}

template <typename To>
void StoreSaturated(const double* from, size_t count, char* to) {
  To* const elements = reinterpret_cast<To*>(to);
  for (size_t i = 0; i < count; ++i) elements[i] = Saturated<To>(from[i]);
}

template <typename To>
void StoreWrapped(const uint64_t* from, size_t count, char* to) {
  To* const elements = reinterpret_cast<To*>(to);
  for (size_t i = 0; i < count; ++i) elements[i] = static_cast<To>(from[i]);
}

// Calls store(To()) with the C++ type of a type of integers.
template <typename Store>
void WithInteger(Dtype dtype, Store store) {
  switch (dtype) {
    case Dtype::kI8:
      return store(int8_t{});
    case Dtype::kI16:
      return store(int16_t{});
    case Dtype::kI32:
      return store(int32_t{});
    case Dtype::kI64:
      return store(int64_t{});
    case Dtype::kU16:
      return store(uint16_t{});
    case Dtype::kU32:
      return store(uint32_t{});
    case Dtype::kU64:
      return store(uint64_t{});
    default:
      return store(uint8_t{});
  }
}

// Returns an F64 that rounds to a type of fewer bits as the integer itself does. If the integer has
// more bits than an F64, its last bit says whether bits were lost: no tie is made or broken.
double ForOneRounding(uint64_t bits, bool is_signed) {
  const bool is_negative = is_signed && static_cast<int64_t>(bits) < 0;
  uint64_t magnitude = is_negative ? 0 - bits : bits;
  if (magnitude >> 53 != 0)
    magnitude = (magnitude & ~uint64_t{0xFFF}) | ((magnitude & 0xFFF) != 0 ? 0x800 : 0);
  const double value = static_cast<double>(magnitude);
  return is_negative ? -value : value;
}

}  // namespace

int64_t FloatBytes(Dtype dtype) {
  if (dtype == Dtype::kF32) return 4;
  return dtype == Dtype::kBF16 || dtype == Dtype::kF16 ? 2 : 0;
}

void LoadFloats(Dtype dtype, const char* from, size_t count, float* to) {
  if (dtype == Dtype::kF32) {
    if (count > 0) std::memcpy(to, from, count * sizeof(float));
    return;
  }
  Halves halves;
  while (count > 0) {
    const size_t size = std::min(count, halves.size());
    std::memcpy(halves.data(), from, size * sizeof(uint16_t));
    const auto in = absl::MakeConstSpan(halves.data(), size);
    const auto out = absl::MakeSpan(to, size);
    dtype == Dtype::kBF16 ? ConvertBF16ToF32(in, out) : ConvertF16ToF32(in, out);
    from += size * sizeof(uint16_t);
    to += size;
    count -= size;
  }
}

void StoreFloats(Dtype dtype, const float* from, size_t count, char* to) {
  if (dtype == Dtype::kF32) {
    if (count > 0) std::memcpy(to, from, count * sizeof(float));
    return;
  }
  Halves halves;
  while (count > 0) {
    const size_t size = std::min(count, halves.size());
    const auto in = absl::MakeConstSpan(from, size);
    const auto out = absl::MakeSpan(halves.data(), size);
    dtype == Dtype::kBF16 ? ConvertF32ToBF16(in, out) : ConvertF32ToF16(in, out);
    std::memcpy(to, halves.data(), size * sizeof(uint16_t));
    from += size;
    to += size * sizeof(uint16_t);
    count -= size;
  }
}

void LoadDoubles(Dtype dtype, const char* from, size_t count, double* to) {
  if (dtype == Dtype::kF64) {
    std::memcpy(to, from, count * sizeof(double));
    return;
  }
  FloatBlock floats;
  LoadFloats(dtype, from, count, floats.data());
  for (size_t i = 0; i < count; ++i) to[i] = static_cast<double>(floats[i]);
}

void LoadIntegers(Dtype dtype, const char* from, size_t count, uint64_t* to) {
  switch (dtype) {
    case Dtype::kI8:
      return Widen<int8_t>(from, count, to);
    case Dtype::kI16:
      return Widen<int16_t>(from, count, to);
    case Dtype::kI32:
      return Widen<int32_t>(from, count, to);
    case Dtype::kU16:
      return Widen<uint16_t>(from, count, to);
    case Dtype::kU32:
      return Widen<uint32_t>(from, count, to);
    case Dtype::kI64:
    case Dtype::kU64:
      return Widen<uint64_t>(from, count, to);
    case Dtype::kBool:
      Widen<uint8_t>(from, count, to);
      for (size_t i = 0; i < count; ++i) to[i] = to[i] != 0 ? 1 : 0;
      return;
    default:
      return Widen<uint8_t>(from, count, to);
  }
}

bool IsFloat(Dtype dtype) { return dtype == Dtype::kF64 || FloatBytes(dtype) > 0; }

void StoreDoubles(Dtype dtype, const double* from, size_t count, char* to) {
  const auto in = absl::MakeConstSpan(from, count);
  switch (dtype) {
    case Dtype::kF64:
      std::memcpy(to, from, count * sizeof(double));
      return;
    case Dtype::kF32:
      return ConvertF64ToF32(in, absl::MakeSpan(reinterpret_cast<float*>(to), count));
    case Dtype::kBF16:
      return ConvertF64ToBF16(in, absl::MakeSpan(reinterpret_cast<uint16_t*>(to), count));
    case Dtype::kF16:
      return ConvertF64ToF16(in, absl::MakeSpan(reinterpret_cast<uint16_t*>(to), count));
    default:
      WithInteger(dtype, [&](auto type) { StoreSaturated<decltype(type)>(from, count, to); });
  }
}

void StoreIntegers(Dtype dtype, bool is_signed, const uint64_t* from, size_t count, char* to) {
  if (!IsFloat(dtype)) {
    WithInteger(dtype, [&](auto type) { StoreWrapped<decltype(type)>(from, count, to); });
    return;
  }
  WideBlock<double> values;
  for (size_t i = 0; i < count; ++i) {
    if (dtype == Dtype::kF64) {
      values[i] = is_signed ? static_cast<double>(static_cast<int64_t>(from[i]))
                            : static_cast<double>(from[i]);
    } else {
      values[i] = ForOneRounding(from[i], is_signed);
    }
  }
  StoreDoubles(dtype, values.data(), count, to);
}

}  // namespace shardmesh::worker
