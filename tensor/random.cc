// Reproducible random tensor values: a hashed counter, looked up in a table of normal quantiles.
#include "tensor/random.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <memory>

#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tensor/float_convert.h"

namespace shardmesh {
namespace {

constexpr int kTableBits = 12;
constexpr size_t kCells = size_t{1} << kTableBits;
constexpr double kCutoff = 4.0;

// Quantiles of the standard normal distribution at the probabilities i / kCells, limited to
// kCutoff.
using QuantileTable = std::array<float, kCells + 1>;

double NormalQuantile(double probability) {
  double low = -kCutoff;
  double high = kCutoff;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(-middle / std::sqrt(2.0)) < probability ? low : high) = middle;
  }
  return low;
}

const QuantileTable& Quantiles() {
  static const std::unique_ptr<const QuantileTable> table = [] {
    auto made = std::make_unique<QuantileTable>();
    // Mirror the lower half of the table, so that the mean is exactly 0.
    for (size_t i = 0; i < kCells / 2; ++i) {
      const double quantile =
          i == 0 ? -kCutoff : NormalQuantile(static_cast<double>(i) / double{kCells});
      (*made)[i] = static_cast<float>(quantile);
      (*made)[kCells - i] = static_cast<float>(-quantile);
    }
    (*made)[kCells / 2] = 0;
    return made;
  }();
  return *table;
}

// The finaliser of SplitMix64: every bit of the result depends on every bit of the counter.
uint64_t Hash(uint64_t counter) {
  uint64_t mixed = counter * 0x9E3779B97F4A7C15u;
  mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9u;
  mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EBu;
  return mixed ^ mixed >> 31;
}

// Draws a value for each element of `out` and writes convert(value). `first` is the first element's
// index in the tensor.
template <typename Element, typename Convert>
void Fill(uint64_t seed, float deviation, uint64_t first, absl::Span<char> out, Convert convert) {
  const QuantileTable& quantiles = Quantiles();
  const uint64_t key = Hash(seed + 1);
  auto* elements = reinterpret_cast<Element*>(out.data());
  const size_t count = out.size() / sizeof(Element);
  for (size_t i = 0; i < count; ++i) {
    const uint32_t bits = static_cast<uint32_t>(Hash(key + first + i) >> 32);
    const size_t cell = bits >> (32 - kTableBits);
    const float fraction =
        static_cast<float>(bits << kTableBits >> kTableBits) * (1.0f / (1 << (32 - kTableBits)));
    const float low = quantiles[cell];
    elements[i] = convert(deviation * (low + fraction * (quantiles[cell + 1] - low)));
  }
}

}  // namespace

absl::Status FillNormal(Dtype dtype, uint64_t seed, double deviation, int64_t first_element,
                        absl::Span<char> out) {
  const size_t element_bytes = static_cast<size_t>(BitsPerElement(dtype)) / 8;
  if (dtype != Dtype::kF16 && dtype != Dtype::kBF16 && dtype != Dtype::kF32 &&
      dtype != Dtype::kF64) {
    return InvalidArgument(
        Reason::kUnsupportedDtype,
        StrCat("random values can be F16, BF16, F32 or F64, not ", DtypeName(dtype)),
        {{fact::kDtype, DtypeName(dtype)}});
  }
  if (first_element < 0 || out.size() % element_bytes != 0 ||
      reinterpret_cast<uintptr_t>(out.data()) % element_bytes != 0) {
    return InvalidArgument(
        Reason::kInvalidShape,
        StrCat("cannot fill ", out.size(), " bytes from element ", first_element, " on with ",
               DtypeName(dtype), ": whole, aligned elements are needed"),
        {{fact::kValue, out.size()}});
  }
  const float scale = static_cast<float>(deviation);
  const uint64_t first = static_cast<uint64_t>(first_element);
  switch (dtype) {
    case Dtype::kF16:
      Fill<uint16_t>(seed, scale, first, out, F32ToF16);
      break;
    case Dtype::kBF16:
      Fill<uint16_t>(seed, scale, first, out, F32ToBF16);
      break;
    case Dtype::kF32:
      Fill<float>(seed, scale, first, out, [](float value) { return value; });
      break;
    default:
      Fill<double>(seed, scale, first, out, [](float value) { return double{value}; });
      break;
  }
  return absl::OkStatus();
}

}  // namespace shardmesh
