// Which element type an operation on several computes in: JAX's lattice, with 64-bit types off.
#ifndef SHARDMESH_TENSOR_DTYPE_PROMOTION_H_
#define SHARDMESH_TENSOR_DTYPE_PROMOTION_H_

#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tensor/dtype.h"

namespace shardmesh {

// The name that NumPy and ml_dtypes use: "float32", "bfloat16", "float8_e4m3fn", ...
std::string_view NumpyDtypeName(Dtype dtype);

// The inverse of NumpyDtypeName. INVALID_ARGUMENT (UNKNOWN_DTYPE; TypeError) lists the known names.
absl::StatusOr<Dtype> ParseNumpyDtype(std::string_view name);

// Whether the type holds fractions: floating-point of any width, or complex.
bool IsInexact(Dtype dtype);

// The type that an array has on a device: F64, I64 and U64 become F32, I32 and U32.
Dtype CanonicalDtype(Dtype dtype);

// The type that arrays of these types are combined in: the least one that all of them promote to,
// bool, then integers, then floating-point, then complex; integers without a common type take a
// signed one of twice the width, and BF16 with F16 gives F32. Canonical.
//
// Errors are INVALID_ARGUMENT: MISSING_ARGUMENT without types; UNSUPPORTED_DTYPE for types that
// only promote to themselves (those of 8 bits and fewer that hold fractions) beside other inexact
// ones (TypePromotionError), and for the 6-bit ones, which JAX does not have (TypeError).
absl::StatusOr<Dtype> ResultDtype(absl::Span<const Dtype> dtypes);

// promote_dtype of flax.nnx: the type that a layer casts its arrays to. `dtype` where it is given,
// which must be inexact (UNSUPPORTED_DTYPE; ValueError), else ResultDtype, with at least F32 where
// that is not inexact. Canonical. Further errors as ResultDtype.
//
// Example: BF16 and I32 give BF16; I8 and BOOL give F32.
absl::StatusOr<Dtype> PromoteDtype(absl::Span<const Dtype> arrays,
                                   std::optional<Dtype> dtype = std::nullopt);

// The canonical type of a layer's parameters. INVALID_ARGUMENT (UNSUPPORTED_DTYPE; ValueError)
// unless it is inexact; TypeError for F4, which is too narrow, and for the 6-bit types.
absl::StatusOr<Dtype> ParameterDtype(Dtype dtype);

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_DTYPE_PROMOTION_H_
