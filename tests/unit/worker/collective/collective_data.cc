// Compiled with optimisation and without sanitizers: the tests compare a hundred million elements.
#include "tests/unit/worker/collective/collective_data.h"

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tensor/float_convert.h"

namespace shardmesh::worker {
namespace {

// Bits of which each says something.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
  return x ^ (x >> 32);
}

// The canonical order: an element at a time, the tree as it is written down. at(p) is the element
// of place p.
template <typename T, typename At>
T TreeReduce(T (*combine)(T, T), const At& at, size_t lo, size_t n) {
  if (n == 1) return at(lo);
  size_t k = 1;
  while (2 * k < n) k *= 2;
  return combine(TreeReduce(combine, at, lo, k), TreeReduce(combine, at, lo + k, n - k));
}

// The ring's: from the place behind `owner` around to it.
template <typename T, typename At>
T RingReduce(T (*combine)(T, T), const At& at, size_t ranks, size_t owner) {
  T sum = at((owner + 1) % ranks);
  for (size_t i = 2; i <= ranks; ++i) sum = combine(sum, at((owner + i) % ranks));
  return sum;
}

// Calls what(T) with an element's arithmetic type: unsigned where sums wrap.
template <typename What>
void WithType(Dtype dtype, Reduction reduction, What what) {
  const bool wraps = reduction == Reduction::kSum || reduction == Reduction::kProduct;
  switch (dtype) {
    case Dtype::kF64:
      return what(double());
    case Dtype::kI8:
      return wraps ? what(uint8_t()) : what(int8_t());
    case Dtype::kU8:
      return what(uint8_t());
    case Dtype::kI32:
      return wraps ? what(uint32_t()) : what(int32_t());
    case Dtype::kI64:
      return wraps ? what(uint64_t()) : what(int64_t());
    default:
      return what(float());
  }
}

template <typename T>
auto CombineOf(Reduction reduction) -> T (*)(T, T) {
  switch (reduction) {
    case Reduction::kProduct:
      return [](T a, T b) { return static_cast<T>(a * b); };
    case Reduction::kMin:
      return [](T a, T b) { return b < a ? b : a; };
    case Reduction::kMax:
      return [](T a, T b) { return a < b ? b : a; };
    default:
      return [](T a, T b) { return static_cast<T>(a + b); };
  }
}

}  // namespace

Bytes OperandOf(Dtype dtype, int64_t count, DeviceId rank) {
  const int64_t size = BitsPerElement(dtype) / 8;
  Bytes bytes = MakeBytes(count * size);
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t bits = Mix(static_cast<uint64_t>(i * 131 + rank + 1));
    const double value = (static_cast<double>(bits % 20011) - 10005) / (1 << (bits >> 60));
    char* at = bytes->data() + i * size;
    if (dtype == Dtype::kF32) {
      const auto typed = static_cast<float>(value);
      std::memcpy(at, &typed, 4);
    } else if (dtype == Dtype::kF64) {
      std::memcpy(at, &value, 8);
    } else if (dtype == Dtype::kF16 || dtype == Dtype::kBF16) {
      const auto small = static_cast<float>(value / 16);
      const uint16_t typed = dtype == Dtype::kF16 ? F32ToF16(small) : F32ToBF16(small);
      std::memcpy(at, &typed, 2);
    } else {
      std::memcpy(at, &bits, static_cast<size_t>(size));
    }
  }
  return bytes;
}

std::vector<char> PlainReduction(Reduction reduction, Dtype dtype,
                                 const std::vector<Bytes>& operands, int64_t count,
                                 const std::vector<int64_t>& ring_cuts) {
  const auto size = static_cast<size_t>(BitsPerElement(dtype) / 8);
  std::vector<char> out(static_cast<size_t>(count) * size);
  WithType(dtype, reduction, [&](auto example) {
    using T = decltype(example);
    T (*const combine)(T, T) = CombineOf<T>(reduction);
    size_t owner = 0;
    size_t i = 0;
    const auto at = [&](size_t place) {
      const char* const from = operands[place]->data() + i * size;
      if constexpr (std::is_same_v<T, float>) {
        uint16_t bits;
        if (size == 2) {
          std::memcpy(&bits, from, 2);
          return dtype == Dtype::kF16 ? F16ToF32(bits) : BF16ToF32(bits);
        }
      }
      T value;
      std::memcpy(&value, from, sizeof(T));
      return value;
    };
    for (; i < static_cast<size_t>(count); ++i) {
      while (!ring_cuts.empty() && static_cast<int64_t>(i) >= ring_cuts[owner + 1]) ++owner;
      T value = ring_cuts.empty() ? TreeReduce(combine, at, 0, operands.size())
                                  : RingReduce(combine, at, operands.size(), owner);
      if (reduction == Reduction::kMean) {
        value = static_cast<T>(value * static_cast<T>(1.0 / static_cast<double>(operands.size())));
      }
      char* const to = out.data() + i * size;
      if constexpr (std::is_same_v<T, float>) {
        if (size == 2) {
          const uint16_t bits = dtype == Dtype::kF16 ? F32ToF16(value) : F32ToBF16(value);
          std::memcpy(to, &bits, 2);
          continue;
        }
      }
      std::memcpy(to, &value, sizeof(T));
    }
  });
  return out;
}

}  // namespace shardmesh::worker
