// Runs tensor ops on the tiles of one device.
#ifndef SHARDMESH_WORKER_TENSOR_OP_TENSOR_OPS_H_
#define SHARDMESH_WORKER_TENSOR_OP_TENSOR_OPS_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "program/tensor_op.h"
#include "sharding/tile.h"
#include "tensor/dtype.h"

namespace shardmesh::worker {

// A tile that a tensor op reads. Row-major without gaps, aligned to its elements.
struct OpInput {
  Dtype dtype = Dtype::kF32;
  Shape shape = {};  // of the tile
  Tile tile = {};    // indices in the whole tensor
  absl::Span<const char> bytes = {};
};

// The tile that a tensor op makes. Row-major without gaps, aligned to its elements.
struct OpOutput {
  Dtype dtype = Dtype::kF32;
  Shape shape = {};
  Tile tile = {};
  absl::Span<char> bytes = {};
};

// How to run an op.
struct OpContext {
  int threads = 1;  // the caller's thread is one of them
  // Called on the caller's thread at least every 100 ms or so, if not null. A status other than OK
  // ends the run.
  std::function<absl::Status()> abort_check = nullptr;
};

// Runs an op whose values are the places in `inputs`: ValueIndexes of `op` are ignored, `inputs`
// has the tiles of InputsOf(op) in order. The tiles fit as the op's sharding rule says
// (program/sharding_rule.h). `output.bytes` may be the memory of an input for which
// MayOverwriteInput (program/tensor_op.h) is true; in all other cases it overlaps no input.
//
// The bits of the result depend neither on the number of threads nor on the CPU, except those of
// attention and of other ops that multiply matrices.
//
// Working memory is not from a pool: it is a few rows, or a few hundred KiB, for each thread. For
// attention over up to 32 queries of a key head it is also up to 1/16 of the keys and values.
//
// Errors: INVALID_ARGUMENT for sizes or types that do not fit; else the status of `abort_check`.
// After an error the output is undefined. Thread-safe.
absl::Status RunTensorOp(const TensorOp& op, absl::Span<const OpInput> inputs,
                         const OpOutput& output, const OpContext& context);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_TENSOR_OP_TENSOR_OPS_H_
