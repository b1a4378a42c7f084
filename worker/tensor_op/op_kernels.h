// The kernels behind RunTensorOp, one for each op.
#ifndef SHARDMESH_WORKER_TENSOR_OP_OP_KERNELS_H_
#define SHARDMESH_WORKER_TENSOR_OP_OP_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "program/tensor_op.h"
#include "worker/tensor_op/tensor_ops.h"

namespace shardmesh::worker {

// Each kernel is RunTensorOp for its op. RunTensorOp has checked the number, types and shapes of
// the tiles, and that each has the memory that its type and shape need. ReshapeOp, SliceOp and
// ConstantOp, which name indices of whole tensors, check theirs.
using OpInputs = absl::Span<const OpInput>;
absl::Status RunKernel(const MapOp& op, OpInputs inputs, const OpOutput& output,
                       const OpContext& context);
absl::Status RunKernel(const ConvertOp& op, OpInputs inputs, const OpOutput& output,
                       const OpContext& context);
absl::Status RunKernel(const NormOp& op, OpInputs inputs, const OpOutput& output,
                       const OpContext& context);
absl::Status RunKernel(const SoftmaxOp& op, OpInputs inputs, const OpOutput& output,
                       const OpContext& context);
absl::Status RunKernel(const ReduceOp& op, OpInputs inputs, const OpOutput& output,
                       const OpContext& context);
absl::Status RunKernel(const RotaryOp& op, OpInputs inputs, const OpOutput& output,
                       const OpContext& context);
absl::Status RunKernel(const EmbeddingOp& op, OpInputs inputs, const OpOutput& output,
                       const OpContext& context);
absl::Status RunKernel(const AttentionOp& op, OpInputs inputs, const OpOutput& output,
                       const OpContext& context);
absl::Status RunKernel(const TopKOp& op, OpInputs inputs, const OpOutput& output,
                       const OpContext& context);
absl::Status RunKernel(const ReshapeOp& op, OpInputs inputs, const OpOutput& output,
                       const OpContext& context);
absl::Status RunKernel(const TransposeOp& op, OpInputs inputs, const OpOutput& output,
                       const OpContext& context);
absl::Status RunKernel(const SliceOp& op, OpInputs inputs, const OpOutput& output,
                       const OpContext& context);
absl::Status RunKernel(const ConcatenateOp& op, OpInputs inputs, const OpOutput& output,
                       const OpContext& context);
absl::Status RunKernel(const UpdateRowsOp& op, OpInputs inputs, const OpOutput& output,
                       const OpContext& context);
absl::Status RunKernel(const ConstantOp& op, OpInputs inputs, const OpOutput& output,
                       const OpContext& context);

// Returns OK if the tile has this shape and its memory has the size that type and shape need, and
// INVALID_ARGUMENT (SHAPE_MISMATCH) otherwise. `op` and `name` are for the message.
absl::Status CheckTile(std::string_view op, std::string_view name, Dtype dtype, const Shape& shape,
                       const Tile& tile, size_t size_bytes);

// Returns INVALID_ARGUMENT (SHAPE_MISMATCH) for a tile that does not fit. `tile` names it.
absl::Status TileMisfit(std::string_view op, std::string_view tile, const Shape& have,
                        const Shape& need);

// Returns the product of the extents of a checked shape.
int64_t ElementsOf(absl::Span<const int64_t> shape);

// Copies whole bytes in pieces, as RunPieces does. Does nothing if `to` is `from`.
absl::Status CopyInPieces(absl::Span<const char> from, char* to, const OpContext& context);

// A dimension of a copy; strides are in bytes.
struct CopyDimension {
  int64_t extent = 0;
  int64_t from_stride = 0;
  int64_t to_stride = 0;
};

// Copies elements of 1, 2, 4 or 8 bytes, or of any size where the last dimension has no gaps,
// between memory that does not overlap. `dimensions` has the outermost one of `to` first. In pieces
// as RunPieces.
absl::Status CopyStrided(int64_t element_bytes, absl::Span<const CopyDimension> dimensions,
                         const char* from, char* to, const OpContext& context);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_TENSOR_OP_OP_KERNELS_H_
