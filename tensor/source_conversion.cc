// Checks conversions, and describes them.
#include "tensor/source_conversion.h"

#include <algorithm>
#include <string_view>

#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

absl::Status CannotConvert(Dtype dtype, std::string_view message) {
  return InvalidArgument(Reason::kUnsupportedDtype, message, {{fact::kDtype, DtypeName(dtype)}});
}

}  // namespace

bool IsConvertibleFloat(Dtype dtype) {
  return dtype == Dtype::kF64 || dtype == Dtype::kF32 || dtype == Dtype::kF16 ||
         dtype == Dtype::kBF16;
}

bool CanConvert(Dtype from, Dtype to) {
  if (from == to) return true;
  return IsConvertibleFloat(from) &&
         (to == Dtype::kI8 || (IsConvertibleFloat(to) && to != Dtype::kF64));
}

absl::StatusOr<Shape> PermutedShape(absl::Span<const int64_t> shape,
                                    absl::Span<const size_t> permutation) {
  if (permutation.empty()) return Shape(shape.begin(), shape.end());
  Shape permuted;
  std::vector<bool> seen(shape.size(), false);
  for (const size_t dim : permutation) {
    if (permutation.size() != shape.size() || dim >= shape.size() || seen[dim]) {
      return InvalidArgument(
          Reason::kShapeMismatch,
          StrCat("the permutation [", StrJoin(permutation, ", "), "] does not fit shape ",
                 ShapeToString(shape), ": it must name each of the ", shape.size(),
                 " dimensions once, from 0"),
          {{fact::kHave, permutation.size()}, {fact::kNeed, shape.size()}});
    }
    seen[dim] = true;
    permuted.push_back(shape[dim]);
  }
  return permuted;
}

std::vector<size_t> InversePermutation(absl::Span<const size_t> permutation) {
  std::vector<size_t> inverse(permutation.size());
  for (size_t dim = 0; dim < permutation.size(); ++dim) inverse[permutation[dim]] = dim;
  return inverse;
}

absl::StatusOr<Shape> ShapeInFile(const SourceConversion& conversion, Dtype dtype,
                                  absl::Span<const int64_t> shape) {
  const Dtype from = conversion.dtype;
  if (from != dtype && (!CanConvert(from, dtype) || dtype == Dtype::kI8)) {
    return CannotConvert(
        from, StrCat("a reader of a file cannot convert ", DtypeName(from), " to ",
                     DtypeName(dtype), "; F64, F32, F16 and BF16 can become F32, F16 and BF16"));
  }
  if (!conversion.permutation.empty() && BitsPerElement(from) % 8 != 0) {
    return CannotConvert(from, StrCat("elements of ", DtypeName(from),
                                      " are smaller than a byte and cannot be transposed"));
  }
  // An error here is about the same permutation as one of the inverse, which may not exist.
  SHARDMESH_RETURN_IF_ERROR(PermutedShape(shape, conversion.permutation).status());
  return PermutedShape(shape, InversePermutation(conversion.permutation));
}

bool IsIdentity(const SourceConversion& conversion, Dtype dtype) {
  return conversion.dtype == dtype &&
         std::is_sorted(conversion.permutation.begin(), conversion.permutation.end());
}

std::string ConversionText(Dtype from, absl::Span<const int64_t> shape_in_file,
                           absl::Span<const size_t> permutation, Dtype to,
                           std::optional<size_t> channel) {
  // The number changes with the results of conversions.
  return StrCat("1 ", DtypeName(from), " ", ShapeToString(shape_in_file), " permuted ",
                StrJoin(permutation, ","), " to ", DtypeName(to), " by channel ",
                channel.has_value() ? StrCat(*channel) : "none");
}

std::string ConversionText(const std::optional<SourceConversion>& conversion, Dtype dtype,
                           absl::Span<const int64_t> shape) {
  if (!conversion.has_value()) return "";
  const absl::StatusOr<Shape> in_file = ShapeInFile(*conversion, dtype, shape);
  if (!in_file.ok()) return "";
  return ConversionText(conversion->dtype, *in_file, conversion->permutation, dtype);
}

}  // namespace shardmesh
