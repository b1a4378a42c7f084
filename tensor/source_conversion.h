// How a process that reads a tensor from a file makes its elements from those in the file.
#ifndef SHARDMESH_TENSOR_SOURCE_CONVERSION_H_
#define SHARDMESH_TENSOR_SOURCE_CONVERSION_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/shape.h"
#include "tensor/dtype.h"

namespace shardmesh {

// The tensor in the file, as far as the tensor that is made from it does not say it. Each element
// needs one element of the file only, so that each tile can be made alone.
struct SourceConversion {
  Dtype dtype = Dtype::kF32;  // of the elements in the file
  // Dimension i of the tensor is dimension permutation[i] in the file. Empty: as in the file.
  std::vector<size_t> permutation = {};

  friend bool operator==(const SourceConversion&, const SourceConversion&) = default;
};

// Whether the elements of `from` can be converted to `to`: equal types; F64, F32, F16 and BF16 to
// F32, F16, BF16; and the same four to I8 with scales.
bool CanConvert(Dtype from, Dtype to);

// The types between which --dtype converts: F64, F32, F16 and BF16.
bool IsConvertibleFloat(Dtype dtype);

// Returns the shape of a tensor of `shape` after the permutation, which may be empty.
// SHAPE_MISMATCH for a permutation of another rank, or one that names a dimension twice.
absl::StatusOr<Shape> PermutedShape(absl::Span<const int64_t> shape,
                                    absl::Span<const size_t> permutation);

// Returns the permutation of the dimensions in the other direction. Requires a permutation.
std::vector<size_t> InversePermutation(absl::Span<const size_t> permutation);

// Returns the shape in the file of a tensor of `dtype` and `shape`. INVALID_ARGUMENT:
// SHAPE_MISMATCH as PermutedShape; UNSUPPORTED_DTYPE for types between which CanConvert converts
// not or only with scales, and for elements of less than a byte that are transposed.
absl::StatusOr<Shape> ShapeInFile(const SourceConversion& conversion, Dtype dtype,
                                  absl::Span<const int64_t> shape);

// Whether the elements are the bytes in the file.
bool IsIdentity(const SourceConversion& conversion, Dtype dtype);

// Returns a text that says how elements of `to` are made from those of a tensor in a file, for
// ArrayOrigin. `channel`: see Conversion.
std::string ConversionText(Dtype from, absl::Span<const int64_t> shape_in_file,
                           absl::Span<const size_t> permutation, Dtype to,
                           std::optional<size_t> channel = std::nullopt);
// The same for a tensor of `dtype` and `shape`. Empty if there is no conversion, or if it does not
// fit the tensor.
std::string ConversionText(const std::optional<SourceConversion>& conversion, Dtype dtype,
                           absl::Span<const int64_t> shape);

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_SOURCE_CONVERSION_H_
