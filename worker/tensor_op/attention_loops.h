// The loops of attention over one block of rows, compiled for several instruction sets.
#ifndef SHARDMESH_WORKER_TENSOR_OP_ATTENTION_LOOPS_H_
#define SHARDMESH_WORKER_TENSOR_OP_ATTENTION_LOOPS_H_

#include <cstddef>
#include <cstdint>
#include <limits>

namespace shardmesh::worker {

// Queries whose scores are computed together. Their features lie side by side in memory.
inline constexpr size_t kTileQueries = 8;
// Rows of a panel of keys. Equal features of its keys lie side by side.
inline constexpr size_t kPanelRows = 32;
// The most rows of a block: a multiple of kPanelRows. Its keys and values stay in the second cache.
inline constexpr size_t kBlockRows = 128;
// Vectors of values and results are padded with zeros to a multiple of this number of features,
// the lanes of the widest vector.
inline constexpr size_t kValuePadding = 16;
// Panels of keys have memory for a multiple of this number of features.
inline constexpr size_t kKeyPadding = 8;

// The softmax of one query over some rows.
struct PartialSoftmax {
  float largest = -std::numeric_limits<float>::infinity();  // score
  float sum = 0;                                            // of e^(score - largest)
  bool has_rows = false;  // whether the query sees any of the rows
  bool is_nan = false;    // whether a score is a NaN or plus infinity
};

// Rows in memory.
struct RowsAhead {
  const char* first = nullptr;
  size_t count = 0;
  size_t row_bytes = 0;
  size_t stride_bytes = 0;
  size_t offset_bytes = 0;  // in the first row
};

// Queries, a block of rows, and the results so far. All memory is aligned to 64 bytes.
struct AttentionBlock {
  size_t query_count = 0;
  size_t features = 0;
  size_t value_width = 0;  // padded number of value features
  float scale = 1;         // of scores
  // Whether a value that some query does not see may be an infinity or a NaN.
  bool has_special_values = false;
  const float* queries = nullptr;  // [ceil(query_count / kTileQueries), features, kTileQueries]
  const float* keys = nullptr;     // panels; `panel_size` floats from one to the next
  size_t panel_size = 0;
  const float* values = nullptr;       // [rows, value_width]
  const size_t* seen = nullptr;        // by query: sees the first seen[i] <= kBlockRows rows
  PartialSoftmax* partials = nullptr;  // by query
  RowsAhead next_keys = {};            // of the next block: their memory is loaded into the caches
  RowsAhead next_values = {};
  float* results = nullptr;  // [query_count, value_width]: sums of weight * value
};

// Loops for one CPU. Sums are F32, in an order that depends on the CPU, but not on other queries
// or on rows that a query does not see. Thread-safe.
struct AttentionLoops {
  // Make a panel of kPanelRows keys: panel[i * kPanelRows + row] = keys[row][i]. For F32,
  // `features` is a multiple of 4; for BF16, of 8.
  void (*pack_f32_keys)(const char* const* keys, size_t features, float* panel);
  void (*pack_bf16_keys)(const char* const* keys, size_t features, float* panel);
  void (*widen_bf16)(const char* in, size_t count, float* out);
  // Returns whether none of the numbers is an infinity or a NaN.
  bool (*all_finite)(const float* values, size_t count);
  // Adds the block's rows to the partial softmaxes and to the results.
  void (*add_block)(const AttentionBlock& block);
  void (*divide)(float divisor, size_t count, float* values);
};

// Returns the loops for this CPU.
const AttentionLoops& AttentionLoopsOfCpu();

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_TENSOR_OP_ATTENTION_LOOPS_H_
