// Element types of tensors: their names, sizes and NumPy codes.
#ifndef SHARDMESH_TENSOR_DTYPE_H_
#define SHARDMESH_TENSOR_DTYPE_H_

#include <cstdint>
#include <ostream>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace shardmesh {

// The element types that a safetensors file can contain, in the order of the format's own list. The
// enum's numbers are internal: files contain the name, and the wire has its own enum.
enum class Dtype : uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3Fn,
  kF8E8M0Fnu,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

// Returns every element type, each once.
absl::Span<const Dtype> AllDtypes();

// Returns the size of one element in bits. Sub-byte types have 4 or 6; their elements are packed
// without padding. All other sizes are multiples of 8.
int BitsPerElement(Dtype dtype);

// Returns the name that safetensors uses: "F32", "BF16", "F8_E4M3", ...
std::string_view DtypeName(Dtype dtype);

// Returns the type whose DtypeName is `name`. INVALID_ARGUMENT (UNKNOWN_DTYPE) lists the known
// names.
absl::StatusOr<Dtype> ParseDtype(std::string_view name);

// Returns the size in bytes of `elements` packed elements. A last byte that sub-byte elements do
// not fill counts as a whole one; its other bits are zero. INVALID_ARGUMENT if `elements` is
// negative, or if their bits are more than int64 counts.
absl::StatusOr<int64_t> PackedSizeBytes(Dtype dtype, int64_t elements);

// PackedSizeBytes for files whose formats have no padding. INVALID_ARGUMENT (INVALID_SHAPE) also if
// sub-byte elements do not fill whole bytes.
absl::StatusOr<int64_t> WholeSizeBytes(Dtype dtype, int64_t elements);

// Returns the type string of a .npy header ("<f4", "|b1"), or empty if NumPy has no such type.
std::string_view NpyTypeString(Dtype dtype);

std::ostream& operator<<(std::ostream& out, Dtype dtype);

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_DTYPE_H_
