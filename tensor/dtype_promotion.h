// The element type of an operation on several types: JAX's lattice, with 64-bit types off.
#ifndef SHARDMESH_TENSOR_DTYPE_PROMOTION_H_
#define SHARDMESH_TENSOR_DTYPE_PROMOTION_H_

#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tensor/dtype.h"

namespace shardmesh {

// Returns the name that NumPy and ml_dtypes use: "float32", "bfloat16", "float8_e4m3fn", ...
std::string_view NumpyDtypeName(Dtype dtype);

// Returns the type whose NumpyDtypeName is `name`. INVALID_ARGUMENT (UNKNOWN_DTYPE; Python:
// TypeError) lists the known names.
absl::StatusOr<Dtype> ParseNumpyDtype(std::string_view name);

// Parses a name of either form: "F32" as DtypeName writes it, or "float32" as NumpyDtypeName does.
// INVALID_ARGUMENT (UNKNOWN_DTYPE) lists the known names in both forms.
absl::StatusOr<Dtype> ParseDtypeOfAnyForm(std::string_view name);

// Returns whether the type represents fractions: floating-point of any width, or complex.
bool IsInexact(Dtype dtype);

// Returns the type of an array on a device: F64, I64 and U64 become F32, I32 and U32.
Dtype CanonicalDtype(Dtype dtype);

// Returns the canonical type in which arrays of these types are combined: the least type to which
// all of them promote. Types promote in the order bool, integers, floating-point, complex. A signed
// and an unsigned integer type promote to a wider signed type, and BF16 with F16 gives F32.
//
// Errors are INVALID_ARGUMENT. MISSING_ARGUMENT: no types. UNSUPPORTED_DTYPE (Python:
// TypePromotionError): a type that promotes only to itself (inexact, 8 bits or fewer) together with
// another inexact type. UNSUPPORTED_DTYPE (Python: TypeError): a 6-bit type, which JAX lacks.
absl::StatusOr<Dtype> ResultDtype(absl::Span<const Dtype> dtypes);

// Returns the canonical type to which a layer casts its arrays (promote_dtype of flax.nnx). If
// `dtype` is given, returns CanonicalDtype(*dtype), or UNSUPPORTED_DTYPE (Python: ValueError) if
// `dtype` is not inexact. Without `dtype`, returns ResultDtype of the arrays, or F32 if ResultDtype
// is not inexact. Further errors as ResultDtype.
//
// Example: BF16 and I32 give BF16; I8 and BOOL give F32.
absl::StatusOr<Dtype> PromoteDtype(absl::Span<const Dtype> arrays,
                                   std::optional<Dtype> dtype = std::nullopt);

// Returns CanonicalDtype(dtype), the type of a layer's parameters. Returns INVALID_ARGUMENT
// (UNSUPPORTED_DTYPE) for these types:
//   - F4, which is too narrow, and the 6-bit types (Python: TypeError);
//   - types that are not inexact (Python: ValueError).
absl::StatusOr<Dtype> ParameterDtype(Dtype dtype);

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_DTYPE_PROMOTION_H_
