// Ops of programs computed plainly in F64, with bounds for the errors that workers may make.
//
// The bounds are a running error analysis: each op adds the errors of its inputs, magnified as the
// op magnifies them, and its own. A worker computes in F32 (F64 for F64) and rounds the result once
// to its type, u = 2^-24 for F32. A sum of n terms in any order has an error of at most
// n u / (1 - n u) times the sum of the magnitudes of its terms (N. Higham, Accuracy and Stability
// of Numerical Algorithms, 2nd edition, section 4.2). A function of elements, such as exp, has a
// relative error of at most 8 u. Where workers round intermediate results less often than the
// program says, because ops are fused, their errors are smaller.
#ifndef SHARDMESH_CLIENT_INSPECT_REFERENCE_OPS_H_
#define SHARDMESH_CLIENT_INSPECT_REFERENCE_OPS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/inspect/bounded_tensor.h"
#include "program/tensor_op.h"
#include "tensor/elementwise.h"

namespace shardmesh::client {

// A vector that a product contracts, with the errors of its elements; empty: they are exact.
struct ContractedVector {
  absl::Span<const double> values;
  absl::Span<const double> bounds = {};
};

// The parts of a linear layer that follow its product.
struct ProductEnd {
  double scale = 1;
  BoundedNumber factor = {.value = 1};  // of the output feature: LinearOp::scales
  Activation activation = Activation::kNone;
  Dtype dtype = Dtype::kF32;  // of the result
};

// Returns activation(scale * (lhs · rhs) * factor + bias), for two vectors of one length. The bound
// is infinite if a worker's sums may exceed the numbers of the type in which it computes.
BoundedNumber ProductElement(const ContractedVector& lhs, const ContractedVector& rhs,
                             BoundedNumber bias, const ProductEnd& end);

// Returns the result of the op, of type `type`, which is ResultTypeOf for the inputs. `inputs` are
// those of InputsOf(op). UNIMPLEMENTED (NOT_AVAILABLE) for a constant of a type that ExactTensor
// refuses.
absl::StatusOr<BoundedTensor> ReferenceResult(const TensorOp& op, const TensorType& type,
                                              absl::Span<const BoundedTensorPtr> inputs);

// Returns the number of multiplications and additions of ReferenceResult, if they are many more
// than elements: those of attention; else 0.
int64_t ReferenceWork(const TensorOp& op, absl::Span<const TensorType> inputs);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_INSPECT_REFERENCE_OPS_H_
