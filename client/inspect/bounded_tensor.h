// Tensors of F64 with a bound for the error of each element.
#ifndef SHARDMESH_CLIENT_INSPECT_BOUNDED_TENSOR_H_
#define SHARDMESH_CLIENT_INSPECT_BOUNDED_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/shape.h"
#include "tensor/dtype.h"
#include "tensor/view.h"

namespace shardmesh::client {

// How a floating-point type rounds.
struct Precision {
  // The largest relative error of one rounding to nearest; 0 for integers.
  double roundoff = 0;
  // The largest absolute error of a rounding below the normal numbers. Kernels may replace numbers
  // there by zero.
  double tiny = 0;
  double largest = 0;  // the largest finite number
};
Precision PrecisionOf(Dtype dtype);
bool IsFloat(Dtype dtype);
// The precision with which workers compute results of this type: F64 for F64, else F32.
Precision ComputedPrecisionOf(Dtype dtype);

// A value and the bound of its error.
struct BoundedNumber {
  double value = 0;
  double bound = 0;
};

// The tensor that workers should have computed. Each element has its value, computed in F64 and not
// rounded to `dtype`, and a bound: how far the element of a worker may be from that value.
struct BoundedTensor {
  Dtype dtype = Dtype::kF32;
  Shape shape = {};
  std::vector<double> values = {};
  // Not negative; infinity: nothing is known about the element. Empty: all are 0.
  std::vector<double> bounds = {};

  size_t size() const { return values.size(); }
  double bound(size_t i) const { return bounds.empty() ? 0 : bounds[i]; }
};
using BoundedTensorPtr = std::shared_ptr<const BoundedTensor>;

// Returns the elements as exact values. Integers beyond 2^53 have infinite bounds. UNIMPLEMENTED
// (NOT_AVAILABLE): the type is not BOOL, an integer, F64, F32, F16 or BF16.
absl::StatusOr<BoundedTensor> ExactTensor(const TensorView& view);

// Returns the integer that wraps to the type, for a whole number of magnitude below 2^53.
double WrapInteger(Dtype dtype, double value);

// Returns the bound of the error of a sum of `terms` terms in any order, relative to the sum of
// their magnitudes; also that of a product of so many factors, relative to the product. `roundoff`:
// of each addition. Infinity: there is no bound.
double SumError(double terms, double roundoff);

// Returns `bound` with the error of rounding `value` to the type added. Returns infinity if the
// value may be beyond the largest number of the type or is a NaN. For an integer type, returns
// `bound`, or infinity unless value and bound are so small that F64 has them exactly.
double RoundedBound(Dtype dtype, double value, double bound);

// Limits the bounds to `tolerance` times the largest magnitude of the tensor. Leaves other types
// than floats as they are, and tensors with infinite elements or NaNs.
void LimitBounds(double tolerance, BoundedTensor* tensor);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_INSPECT_BOUNDED_TENSOR_H_
