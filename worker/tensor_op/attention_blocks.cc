// Attention over many queries: scores and results of a block of queries are products of matrices.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>

#include "status/status_macros.h"
#include "tensor/buffer.h"
#include "worker/kernel/float_block.h"
#include "worker/kernel/pieces.h"
#include "worker/tensor_op/attention.h"
#include "worker/tensor_op/row_loops.h"

namespace shardmesh::worker {
namespace {

// Rows are rounded up to a multiple of this number, so that a growing sequence compiles few
// products.
constexpr int64_t kRowBucket = 256;
// Limits for the queries of a block, and for the bytes of its scores.
constexpr int64_t kLeastQueries = 32;
constexpr int64_t kMostQueries = 512;
constexpr int64_t kScoreBytes = int64_t{4} << 20;
// Scores of a piece. A slow CPU needs 40 ns for one.
constexpr int64_t kScorePiece = 64 * kFloatBlock;

int64_t RoundUp(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

// Whether none of the elements is an infinity or a NaN.
bool AllFinite(Dtype dtype, const char* from, int64_t count) {
  if (dtype == Dtype::kF32) {
    constexpr uint32_t kExponent = 0x7F800000u;
    bool is_finite = true;
    for (int64_t i = 0; i < count; ++i) {
      uint32_t bits = 0;
      std::memcpy(&bits, from + i * 4, sizeof(bits));
      is_finite &= (bits & kExponent) != kExponent;
    }
    return is_finite;
  }
  const uint16_t exponent = dtype == Dtype::kBF16 ? 0x7F80 : 0x7C00;
  bool is_finite = true;
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, from + i * 2, sizeof(bits));
    is_finite &= (bits & exponent) != exponent;
  }
  return is_finite;
}

// Computes group after group with one piece of memory.
class BlockStream {
 public:
  BlockStream(const AttentionTiles& tiles, const OpContext& context)
      : tiles_(tiles),
        context_(context),
        // The kernel has no products of F16.
        dtype_(tiles.dtype == Dtype::kBF16 ? Dtype::kBF16 : Dtype::kF32),
        element_bytes_(FloatBytes(dtype_)) {
    for (int64_t sequence = 0; sequence < tiles.batch; ++sequence) {
      most_rows_ = std::max(most_rows_, tiles.MostSeenRows(sequence, 0, tiles.queries));
    }
    most_rows_ = RoundUp(std::max<int64_t>(most_rows_, 1), kRowBucket);
    block_queries_ = std::clamp(kScoreBytes / 4 / most_rows_, kLeastQueries, kMostQueries);
    block_queries_ = std::min(block_queries_, RoundUp(tiles.group_queries(), kLeastQueries));
  }

  // Takes memory from the pool.
  absl::Status Allocate() {
    const int64_t query_bytes = block_queries_ * tiles_.features * element_bytes_;
    const int64_t key_bytes = most_rows_ * tiles_.features * element_bytes_;
    const int64_t value_bytes = most_rows_ * tiles_.value_features * element_bytes_;
    const int64_t score_bytes = block_queries_ * most_rows_ * 4;
    const int64_t weight_bytes = block_queries_ * most_rows_ * element_bytes_;
    const int64_t result_bytes = block_queries_ * (tiles_.value_features + 1) * 4;
    int64_t total_bytes = 0;
    const auto place = [&](int64_t bytes) {
      const int64_t offset = total_bytes;
      total_bytes += RoundUp(bytes, int64_t{Buffer::kAlignment});
      return offset;
    };
    const int64_t queries = place(query_bytes);
    const int64_t keys = place(key_bytes);
    const int64_t values = place(value_bytes);
    const int64_t scores = place(score_bytes);
    const int64_t weights = place(weight_bytes);
    const int64_t results = place(result_bytes);
    constexpr std::string_view kWhat = "attention";
    SHARDMESH_ASSIGN_OR_RETURN(memory_, context_.allocate
                                            ? context_.allocate(total_bytes, kWhat)
                                            : context_.pool->Allocate(total_bytes, kWhat));
    queries_ = memory_.data() + queries;
    keys_ = memory_.data() + keys;
    values_ = memory_.data() + values;
    scores_ = reinterpret_cast<float*>(memory_.data() + scores);
    weights_ = memory_.data() + weights;
    results_ = reinterpret_cast<float*>(memory_.data() + results);
    sums_ = results_ + block_queries_ * tiles_.value_features;
    return absl::OkStatus();
  }

  // Computes one group. Sets `is_finite` to false, and computes nothing, if a value that some query
  // sees is not finite: a product would spread it to queries that do not see it.
  absl::Status RunGroup(int64_t sequence, int64_t key_head, bool& is_finite) {
    is_finite = Gather(sequence, key_head);
    for (int64_t first = 0; is_finite && first < tiles_.group_queries(); first += block_queries_) {
      if (context_.abort_check) SHARDMESH_RETURN_IF_ERROR(context_.abort_check());
      SHARDMESH_RETURN_IF_ERROR(RunBlock(sequence, key_head, first));
    }
    return absl::OkStatus();
  }

 private:
  // Copies a vector of the tiles as dtype_.
  void CopyVector(const char* from, int64_t count, char* to) const {
    if (dtype_ == tiles_.dtype) {
      if (count > 0) std::memcpy(to, from, static_cast<size_t>(count * element_bytes_));
    } else {
      LoadFloats(tiles_.dtype, from, static_cast<size_t>(count), reinterpret_cast<float*>(to));
    }
  }

  // Copies the keys and values of a group that queries see. The others become zero. Returns whether
  // all values are finite.
  bool Gather(int64_t sequence, int64_t key_head) {
    const int64_t rows = tiles_.MostSeenRows(sequence, 0, tiles_.queries);
    const auto key_bytes = static_cast<size_t>(tiles_.features * element_bytes_);
    const auto value_bytes = static_cast<size_t>(tiles_.value_features * element_bytes_);
    bool is_finite = true;
    for (int64_t row = 0; row < most_rows_; ++row) {
      char* const key = keys_ + static_cast<size_t>(row) * key_bytes;
      char* const value = values_ + static_cast<size_t>(row) * value_bytes;
      if (row >= rows || tiles_.IsHidden(sequence, row)) {
        std::memset(key, 0, key_bytes);
        std::memset(value, 0, value_bytes);
        continue;
      }
      const char* const from = tiles_.Value(sequence, row, key_head);
      is_finite = is_finite && AllFinite(tiles_.dtype, from, tiles_.value_features);
      CopyVector(tiles_.Key(sequence, row, key_head), tiles_.features, key);
      CopyVector(from, tiles_.value_features, value);
    }
    return is_finite;
  }

  absl::Status RunBlock(int64_t sequence, int64_t key_head, int64_t first) {
    const int64_t end = std::min(first + block_queries_, tiles_.group_queries());
    const int64_t seen =
        tiles_.MostSeenRows(sequence, first / tiles_.group, (end - 1) / tiles_.group + 1);
    const int64_t rows = RoundUp(std::max<int64_t>(seen, 1), kRowBucket);
    const int64_t query_bytes = tiles_.features * element_bytes_;
    for (int64_t i = first; i < end; ++i) {
      CopyVector(tiles_.Query(sequence, key_head, i), tiles_.features,
                 queries_ + (i - first) * query_bytes);
    }
    std::memset(queries_ + (end - first) * query_bytes, 0,
                static_cast<size_t>((block_queries_ - (end - first)) * query_bytes));
    SHARDMESH_RETURN_IF_ERROR(
        Multiply({.m = block_queries_,
                  .n = rows,
                  .k = tiles_.features,
                  .lhs_dtype = dtype_,
                  .rhs_dtype = dtype_,
                  .out_dtype = Dtype::kF32,
                  .transpose_rhs = true,
                  .scale = tiles_.scale},
                 {.lhs = {queries_, static_cast<size_t>(block_queries_ * query_bytes)},
                  .rhs = {keys_, static_cast<size_t>(rows * query_bytes)},
                  .bias = {},
                  .out = {reinterpret_cast<char*>(scores_),
                          static_cast<size_t>(block_queries_ * rows * 4)}}));
    SHARDMESH_RETURN_IF_ERROR(Weigh(sequence, first, rows));
    SHARDMESH_RETURN_IF_ERROR(Multiply(
        {.m = block_queries_,
         .n = tiles_.value_features,
         .k = rows,
         .lhs_dtype = dtype_,
         .rhs_dtype = dtype_,
         .out_dtype = Dtype::kF32},
        {.lhs = {weights_, static_cast<size_t>(block_queries_ * rows * element_bytes_)},
         .rhs = {values_, static_cast<size_t>(rows * tiles_.value_features * element_bytes_)},
         .bias = {},
         .out = {reinterpret_cast<char*>(results_),
                 static_cast<size_t>(block_queries_ * tiles_.value_features * 4)}}));
    Store(sequence, key_head, first, end);
    return absl::OkStatus();
  }

  absl::Status Multiply(const MatmulSpec& spec, const MatmulOperands& operands) const {
    return context_.matmul->Run(spec, operands, context_.abort_check);
  }

  // Makes the weights e^(score - largest) of the scores, and their sums: a NaN if the results are
  // NaNs, 0 if the query sees no row.
  absl::Status Weigh(int64_t sequence, int64_t first, int64_t rows) {
    const RowLoops& loops = RowLoopsOfCpu();
    const auto weigh = [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float* const scores = scores_ + i * rows;
        sums_[i] = first + i < tiles_.group_queries()
                       ? WeighRow(loops, sequence, (first + i) / tiles_.group, rows, scores)
                       : 0;
        if (sums_[i] == 0 || sums_[i] != sums_[i]) std::fill_n(scores, rows, 0.0f);
        StoreFloats(dtype_, scores, static_cast<size_t>(rows),
                    weights_ + i * rows * element_bytes_);
      }
    };
    return RunPieces(block_queries_,
                     {.piece = ItemsOfPiece(kScorePiece, rows), .threads = context_.threads},
                     context_.abort_check, weigh);
  }

  float WeighRow(const RowLoops& loops, int64_t sequence, int64_t query, int64_t rows,
                 float* scores) const {
    constexpr float kInfinite = std::numeric_limits<float>::infinity();
    const int64_t seen = tiles_.SeenRows(sequence, query);
    bool sees_any = false;
    for (int64_t row = 0; row < seen; ++row) {
      const bool is_hidden = tiles_.IsHidden(sequence, row);
      if (is_hidden) scores[row] = -kInfinite;
      sees_any = sees_any || !is_hidden;
    }
    if (!sees_any) return 0;
    const auto count = static_cast<size_t>(seen);
    const float largest = loops.largest(scores, count);
    if (!std::isfinite(largest)) return std::numeric_limits<float>::quiet_NaN();
    std::fill(scores + seen, scores + rows, 0.0f);
    return static_cast<float>(loops.exp(largest, count, scores));
  }

  void Store(int64_t sequence, int64_t key_head, int64_t first, int64_t end) {
    const RowLoops& loops = RowLoopsOfCpu();
    const auto features = static_cast<size_t>(tiles_.value_features);
    for (int64_t i = first; i < end; ++i) {
      float* const result = results_ + (i - first) * tiles_.value_features;
      const float sum = sums_[i - first];
      if (sum != sum) {
        std::fill_n(result, features, sum);
      } else if (sum != 0) {
        loops.divide(static_cast<double>(sum), features, result);
      }
      StoreFloats(tiles_.dtype, result, features, tiles_.Result(sequence, key_head, i));
    }
  }

  const AttentionTiles& tiles_;
  const OpContext& context_;
  const Dtype dtype_;  // of operands of products
  const int64_t element_bytes_;
  int64_t most_rows_ = 0;      // of any block: a multiple of kRowBucket
  int64_t block_queries_ = 0;  // queries of a group in one block
  Buffer memory_;
  char* queries_ = nullptr;   // [block queries, features]
  char* keys_ = nullptr;      // [most rows, features]
  char* values_ = nullptr;    // [most rows, value features]
  float* scores_ = nullptr;   // [block queries, rows of the block]
  char* weights_ = nullptr;   // [block queries, rows of the block]
  float* results_ = nullptr;  // [block queries, value features]
  float* sums_ = nullptr;     // [block queries]
};

}  // namespace

absl::Status BlockAttention(const AttentionTiles& tiles, const OpContext& context) {
  BlockStream stream(tiles, context);
  SHARDMESH_RETURN_IF_ERROR(stream.Allocate());
  for (int64_t sequence = 0; sequence < tiles.batch; ++sequence) {
    for (int64_t key_head = 0; key_head < tiles.key_heads; ++key_head) {
      bool is_finite = true;
      SHARDMESH_RETURN_IF_ERROR(stream.RunGroup(sequence, key_head, is_finite));
      if (!is_finite) return StreamAttention(tiles, context);
    }
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::worker
