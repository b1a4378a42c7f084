// Programs computed plainly in F64, with bounds for the errors that workers may make.
#ifndef SHARDMESH_CLIENT_INSPECT_REFERENCE_PROGRAM_H_
#define SHARDMESH_CLIENT_INSPECT_REFERENCE_PROGRAM_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/inspect/bounded_tensor.h"
#include "program/product_layout.h"
#include "program/program.h"
#include "program/tensor_op.h"
#include "tensor/elementwise.h"

namespace shardmesh::client {

// The most elements that the values of a program may have together, with its operands, and the most
// multiplications and additions of its products and attentions. Beyond, a recomputation would take
// more than about 512 MiB, or more than about ten seconds.
inline constexpr int64_t kMaxReferenceElements = int64_t{1} << 25;
inline constexpr int64_t kMaxReferenceWork = int64_t{1} << 33;

// A product of a program, as LinearOp or MatmulOp.
struct ReferenceProduct {
  ValueIndex lhs = 0;
  ValueIndex rhs = 0;
  std::optional<ValueIndex> bias = std::nullopt;
  std::optional<ValueIndex> scales = std::nullopt;
  bool transpose_lhs = false;
  bool transpose_rhs = false;
  double scale = 1;
  Activation activation = Activation::kNone;
};

// Returns the product that the op is; nullopt for other ops.
std::optional<ReferenceProduct> ProductOf(const ProgramOp& op);

// Returns the program for operands of these types: without a symbolic dimension, the program
// itself; with one, that of their length. Errors of CheckSymbolicProgram and of LengthOf
// (program/graph/symbolic_program.h).
absl::StatusOr<Program> ProgramOfTypes(const Program& program,
                                       absl::Span<const TensorType> operands);

// Returns the types of all values: of the operands, and of the results of the ops. `operands` has
// program.operand_count types.
//
// UNIMPLEMENTED (NOT_AVAILABLE): the program has a collective, whose result depends on how its
// operand lies; ReferenceCollective computes one alone. INVALID_ARGUMENT: an op does not fit its
// inputs, or there is no value of the number that it reads (BAD_FIELD).
absl::StatusOr<std::vector<TensorType>> TypesOfValues(const Program& program,
                                                      absl::Span<const TensorType> operands);

// Checks that the program is within the limits above. INVALID_ARGUMENT (LIMIT_EXCEEDED) says which
// limit it exceeds. `types` are those of TypesOfValues.
absl::Status CheckReferenceSize(const Program& program, absl::Span<const TensorType> types);
// Returns OK if have <= limit; else INVALID_ARGUMENT (LIMIT_EXCEEDED). `what`: the things that are
// counted, such as `elements in all values`.
absl::Status CheckReferenceLimit(double have, int64_t limit, std::string_view what);

// Returns all values of the program, in the order of `types`, which are those of TypesOfValues.
// `operands` are the values of its operands. A finite `tolerance` limits the bounds of each result
// of an op: see LimitBounds.
absl::StatusOr<std::vector<BoundedTensorPtr>> ReferenceValues(
    const Program& program, absl::Span<const TensorType> types,
    std::vector<BoundedTensorPtr> operands,
    double tolerance = std::numeric_limits<double>::infinity());

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_INSPECT_REFERENCE_PROGRAM_H_
