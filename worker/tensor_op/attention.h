// Attention of the tiles of one device.
#ifndef SHARDMESH_WORKER_TENSOR_OP_ATTENTION_H_
#define SHARDMESH_WORKER_TENSOR_OP_ATTENTION_H_

#include <cstdint>

#include "program/tensor_op.h"
#include "worker/tensor_op/op_kernels.h"
#include "worker/tensor_op/tensor_ops.h"

namespace shardmesh::worker {

// The sizes and the memory of one attention. The query heads of one key head are a group; the
// queries of a group are numbered query * heads of the group + head.
struct AttentionTiles {
  AttentionTiles(const AttentionOp& op, OpInputs inputs, const OpOutput& output);

  int64_t group_queries() const { return queries * group; }
  // Returns how many rows a query sees, those included that the mask hides.
  int64_t SeenRows(int64_t sequence, int64_t query) const;
  // Returns the largest SeenRows of the queries [begin, end).
  int64_t MostSeenRows(int64_t sequence, int64_t begin, int64_t end) const;
  bool IsHidden(int64_t sequence, int64_t row) const;

  // Return the vectors of a sequence. `group_query` is the number of a query of a group.
  const char* Query(int64_t sequence, int64_t key_head, int64_t group_query) const;
  const char* Key(int64_t sequence, int64_t row, int64_t key_head) const;
  const char* Value(int64_t sequence, int64_t row, int64_t key_head) const;
  char* Result(int64_t sequence, int64_t key_head, int64_t group_query) const;

  Dtype dtype = Dtype::kF32;
  int64_t element_bytes = 4;
  int64_t batch = 0;
  int64_t queries = 0;
  int64_t rows = 0;
  int64_t key_heads = 0;
  int64_t group = 0;  // query heads of one key head
  int64_t features = 0;
  int64_t value_features = 0;
  float scale = 1;

 private:
  int64_t VectorOf(int64_t sequence, int64_t key_head, int64_t group_query) const;

  const char* query_ = nullptr;
  const char* keys_ = nullptr;
  const char* values_ = nullptr;
  const int32_t* positions_ = nullptr;  // null: each query sees all rows
  bool positions_are_shared_ = false;
  const OpInput* mask_ = nullptr;
  char* result_ = nullptr;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_TENSOR_OP_ATTENTION_H_
