// Bias and activation, computed in blocks of a row that fit into the nearest cache.
#include "worker/kernel/epilogue.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/float_convert.h"

namespace shardmesh::worker {
namespace {

constexpr size_t kBlock = 512;
using FloatBlock = std::array<float, kBlock>;
using HalfBlock = std::array<uint16_t, kBlock>;

void LoadBlock(Dtype dtype, const char* from, size_t count, FloatBlock& block) {
  if (dtype == Dtype::kF32) {
    std::memcpy(block.data(), from, count * sizeof(float));
    return;
  }
  HalfBlock halves;
  std::memcpy(halves.data(), from, count * sizeof(uint16_t));
  const auto in = absl::MakeConstSpan(halves.data(), count);
  const auto out = absl::MakeSpan(block.data(), count);
  dtype == Dtype::kBF16 ? ConvertBF16ToF32(in, out) : ConvertF16ToF32(in, out);
}

void StoreBlock(Dtype dtype, const FloatBlock& block, size_t count, char* to) {
  if (dtype == Dtype::kF32) {
    std::memcpy(to, block.data(), count * sizeof(float));
    return;
  }
  HalfBlock halves;
  const auto in = absl::MakeConstSpan(block.data(), count);
  const auto out = absl::MakeSpan(halves.data(), count);
  dtype == Dtype::kBF16 ? ConvertF32ToBF16(in, out) : ConvertF32ToF16(in, out);
  std::memcpy(to, halves.data(), count * sizeof(uint16_t));
}

template <Activation kActivation>
float ActivateOne(float x) {
  if constexpr (kActivation == Activation::kRelu) {
    return x < 0 ? 0 : x;  // a NaN stays a NaN
  } else if constexpr (kActivation == Activation::kGelu) {
    constexpr float kInverseSqrt2 = 0.70710678118654752440f;
    return 0.5f * x * (1.0f + std::erf(x * kInverseSqrt2));
  } else if constexpr (kActivation == Activation::kGeluTanh) {
    constexpr float kSqrt2OverPi = 0.79788456080286535588f;
    return 0.5f * x * (1.0f + std::tanh(kSqrt2OverPi * (x + 0.044715f * x * x * x)));
  } else if constexpr (kActivation == Activation::kSilu) {
    return x / (1.0f + std::exp(-x));
  } else {
    return x;
  }
}

// Calls fn<A>(), where A is the given activation as a template argument.
template <typename Fn>
decltype(auto) Dispatch(Activation activation, Fn fn) {
  switch (activation) {
    case Activation::kRelu:
      return fn.template operator()<Activation::kRelu>();
    case Activation::kGelu:
      return fn.template operator()<Activation::kGelu>();
    case Activation::kGeluTanh:
      return fn.template operator()<Activation::kGeluTanh>();
    case Activation::kSilu:
      return fn.template operator()<Activation::kSilu>();
    case Activation::kNone:
      break;
  }
  return fn.template operator()<Activation::kNone>();
}

// Returns the size of an element in bytes for the types that an epilogue takes; 0 for other types.
int64_t ElementBytes(Dtype dtype) {
  if (dtype == Dtype::kF32) return 4;
  return dtype == Dtype::kBF16 || dtype == Dtype::kF16 ? 2 : 0;
}

absl::Status CheckMemory(std::string_view name, Dtype dtype, int64_t elements, size_t size_bytes) {
  if (ElementBytes(dtype) == 0) {
    return InvalidArgument(
        Reason::kUnsupportedDtype,
        StrCat(name, " of an epilogue is ", DtypeName(dtype), "; it can be F32, BF16 or F16"),
        {{fact::kDtype, DtypeName(dtype)}, {fact::kOp, "epilogue"}});
  }
  if (static_cast<int64_t>(size_bytes) != elements * ElementBytes(dtype)) {
    return InvalidArgument(
        Reason::kShapeMismatch,
        StrCat(name, " of an epilogue has ", size_bytes, " bytes where ", elements, " elements of ",
               DtypeName(dtype), " are ", elements * ElementBytes(dtype)),
        {{fact::kHave, size_bytes},
         {fact::kNeed, elements * ElementBytes(dtype)},
         {fact::kOp, "epilogue"}});
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ApplyEpilogue(const EpilogueSpec& spec, absl::Span<const char> in,
                           absl::Span<const char> bias, absl::Span<char> out) {
  if (spec.rows < 0 || spec.columns < 0 ||
      (spec.columns > 0 && spec.rows > std::numeric_limits<int64_t>::max() / 4 / spec.columns)) {
    return InvalidArgument(
        Reason::kShapeMismatch,
        StrCat("an epilogue of ", spec.rows, " rows and ", spec.columns, " columns"),
        {{fact::kHave, StrCat(spec.rows, ",", spec.columns)}, {fact::kOp, "epilogue"}});
  }
  const int64_t elements = spec.rows * spec.columns;
  SHARDMESH_RETURN_IF_ERROR(CheckMemory("input", spec.in_dtype, elements, in.size()));
  SHARDMESH_RETURN_IF_ERROR(CheckMemory("output", spec.out_dtype, elements, out.size()));
  SHARDMESH_RETURN_IF_ERROR(CheckMemory("bias", spec.has_bias ? spec.bias_dtype : Dtype::kF32,
                                        spec.has_bias ? spec.columns : 0, bias.size()));

  Dispatch(spec.activation, [&]<Activation kActivation>() {
    FloatBlock values;
    FloatBlock offsets;
    for (int64_t row = 0; row < spec.rows; ++row) {
      for (int64_t column = 0; column < spec.columns; column += kBlock) {
        const auto count = std::min<size_t>(kBlock, static_cast<size_t>(spec.columns - column));
        const int64_t element = row * spec.columns + column;
        LoadBlock(spec.in_dtype, in.data() + element * ElementBytes(spec.in_dtype), count, values);
        if (spec.has_bias) {
          LoadBlock(spec.bias_dtype, bias.data() + column * ElementBytes(spec.bias_dtype), count,
                    offsets);
          for (size_t i = 0; i < count; ++i) values[i] += offsets[i];
        }
        for (size_t i = 0; i < count; ++i) values[i] = ActivateOne<kActivation>(values[i]);
        StoreBlock(spec.out_dtype, values, count,
                   out.data() + element * ElementBytes(spec.out_dtype));
      }
    }
  });
  return absl::OkStatus();
}

}  // namespace shardmesh::worker
