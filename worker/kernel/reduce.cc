// Checks types, and selects the loops of reductions.
#include "worker/kernel/reduce.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "absl/types/span.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tensor/float_convert.h"
#include "worker/kernel/reduce_loops.h"

namespace shardmesh::worker {
namespace {

// Elements that are not aligned are converted in aligned blocks that fit into the nearest cache.
constexpr int64_t kConvertBlock = 512;

template <typename T>
bool IsAligned(const char* at) {
  return reinterpret_cast<uintptr_t>(at) % alignof(T) == 0;
}

template <auto kConvert, typename From, typename To>
void Convert(const char* from, int64_t count, char* to) {
  if (IsAligned<From>(from) && IsAligned<To>(to)) {
    const auto size = static_cast<size_t>(count);
    kConvert({reinterpret_cast<const From*>(from), size}, {reinterpret_cast<To*>(to), size});
    return;
  }
  std::array<From, kConvertBlock> in;
  std::array<To, kConvertBlock> out;
  for (int64_t done = 0; done < count; done += kConvertBlock) {
    const auto size = static_cast<size_t>(std::min(kConvertBlock, count - done));
    std::memcpy(in.data(), from + done * static_cast<int64_t>(sizeof(From)), size * sizeof(From));
    kConvert(absl::MakeConstSpan(in.data(), size), absl::MakeSpan(out.data(), size));
    std::memcpy(to + done * static_cast<int64_t>(sizeof(To)), out.data(), size * sizeof(To));
  }
}

absl::Status Unsupported(Dtype dtype, std::string_view what) {
  return InvalidArgument(Reason::kUnsupportedDtype,
                         StrCat(what,
                                "; arithmetic is there for F32, F64, F16, BF16, I8, U8, I32 "
                                "and I64, partial results of F16 and BF16 being F32"),
                         {{fact::kDtype, DtypeName(dtype)}});
}

}  // namespace

absl::StatusOr<Dtype> PartialDtype(Dtype operand) {
  switch (operand) {
    case Dtype::kF16:
    case Dtype::kBF16:
      return Dtype::kF32;
    case Dtype::kF32:
    case Dtype::kF64:
    case Dtype::kI8:
    case Dtype::kU8:
    case Dtype::kI32:
    case Dtype::kI64:
      return operand;
    default:
      return Unsupported(operand, StrCat(DtypeName(operand), " cannot be reduced"));
  }
}

absl::StatusOr<CombineFn> CombineFunction(Reduction reduction, Dtype partial) {
  if (const CombineFn loop = CombineLoop(reduction, partial); loop != nullptr) return loop;
  return Unsupported(partial,
                     StrCat("partial results of ", DtypeName(partial), " cannot be combined"));
}

absl::StatusOr<ConvertFn> ConvertFunction(Dtype from, Dtype to) {
  if (from == Dtype::kF16 && to == Dtype::kF32) return &Convert<ConvertF16ToF32, uint16_t, float>;
  if (from == Dtype::kBF16 && to == Dtype::kF32) return &Convert<ConvertBF16ToF32, uint16_t, float>;
  if (from == Dtype::kF32 && to == Dtype::kF16) return &Convert<ConvertF32ToF16, float, uint16_t>;
  if (from == Dtype::kF32 && to == Dtype::kBF16) return &Convert<ConvertF32ToBF16, float, uint16_t>;
  return Unsupported(
      from, StrCat("elements of ", DtypeName(from), " are not converted to ", DtypeName(to)));
}

absl::StatusOr<ScaleFn> ScaleFunction(Dtype dtype) {
  if (const ScaleFn loop = ScaleLoop(dtype); loop != nullptr) return loop;
  return Unsupported(dtype, StrCat("elements of ", DtypeName(dtype), " are not scaled"));
}

}  // namespace shardmesh::worker
