// Attention over few queries: each key and each value is read once, for all queries of its group.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "status/status_macros.h"
#include "worker/kernel/float_block.h"
#include "worker/kernel/pieces.h"
#include "worker/tensor_op/attention.h"
#include "worker/tensor_op/attention_loops.h"
#include "worker/tensor_op/row_loops.h"

namespace shardmesh::worker {
namespace {

// Rows of a chunk, whose results are combined with those of the other chunks of a sequence.
constexpr int64_t kChunkRows = 512;
// Rows whose scores are computed before the maximum is looked at.
constexpr size_t kBlockOfRows = 32;
// Multiplications and additions of a piece of work.
constexpr int64_t kStreamPiece = int64_t{1} << 20;
// Queries of a group that are computed together.
constexpr int64_t kStreamQueries = 32;

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Reads vectors as F32.
class VectorReader {
 public:
  VectorReader(Dtype dtype, const AttentionLoops& loops) : dtype_(dtype), loops_(loops) {}

  // Returns the vector itself if it is of F32, else `scratch` with the vector.
  const float* Read(const char* from, int64_t count, float* scratch) const {
    if (dtype_ == Dtype::kF32) return reinterpret_cast<const float*>(from);
    if (dtype_ == Dtype::kBF16) {
      loops_.widen_bf16(reinterpret_cast<const uint16_t*>(from), static_cast<size_t>(count),
                        scratch);
    } else {
      LoadFloats(dtype_, from, static_cast<size_t>(count), scratch);
    }
    return scratch;
  }

 private:
  const Dtype dtype_;
  const AttentionLoops& loops_;
};

// The softmax of one query over some rows: sums of e^(score - largest), and of these times values.
struct PartialSoftmax {
  float largest = kMinusInfinity;
  float sum = 0;
  bool has_rows = false;  // whether the query sees any of the rows
  bool is_nan = false;    // whether a score is a NaN or infinity
};

// Some queries of a group, and the rows of one chunk.
struct StreamItem {
  int64_t sequence = 0;
  int64_t key_head = 0;
  int64_t first_query = 0;  // number in the group
  int64_t query_count = 0;
  int64_t begin = 0;  // rows
  int64_t end = 0;
};

// The results of an item.
struct GroupSums {
  GroupSums(int64_t queries, int64_t value_features)
      : partials(static_cast<size_t>(queries)),
        values(static_cast<size_t>(queries * value_features)) {}

  std::vector<PartialSoftmax> partials;  // by query
  std::vector<float> values;             // [queries, value features]
};

// Computes items. Has the memory that a thread needs.
class GroupStream {
 public:
  explicit GroupStream(const AttentionTiles& tiles)
      : tiles_(tiles),
        reader_(tiles.dtype, loops_),
        queries_(static_cast<size_t>(kStreamQueries * tiles.features)),
        keys_(kBlockOfRows * static_cast<size_t>(tiles.features)),
        values_(kBlockOfRows * static_cast<size_t>(tiles.value_features)) {}

  void Run(const StreamItem& item, GroupSums& sums) {
    for (int64_t i = 0; i < item.query_count; ++i) {
      LoadFloats(tiles_.dtype, tiles_.Query(item.sequence, item.key_head, item.first_query + i),
                 static_cast<size_t>(tiles_.features), QueryAt(i));
    }
    std::fill(sums.partials.begin(), sums.partials.end(), PartialSoftmax());
    std::fill(sums.values.begin(), sums.values.end(), 0.0f);
    for (int64_t row = item.begin; row < item.end;) {
      row = ReadRows(item, row);
      for (int64_t i = 0; i < item.query_count; ++i) {
        const int64_t query = (item.first_query + i) / tiles_.group;
        const int64_t seen = tiles_.SeenRows(item.sequence, query);
        const auto* const unseen =
            std::lower_bound(rows_.begin(), rows_.begin() + row_count_, seen);
        if (unseen != rows_.begin()) AddRows(i, static_cast<size_t>(unseen - rows_.begin()), sums);
      }
    }
  }

 private:
  float* QueryAt(int64_t i) { return queries_.data() + i * tiles_.features; }

  // Reads a block of rows that the mask does not hide. Returns the row after those that it looked
  // at.
  int64_t ReadRows(const StreamItem& item, int64_t row) {
    row_count_ = 0;
    for (; row < item.end && row_count_ < kBlockOfRows; ++row) {
      if (tiles_.IsHidden(item.sequence, row)) continue;
      rows_[row_count_] = row;
      key_at_[row_count_] =
          reader_.Read(tiles_.Key(item.sequence, row, item.key_head), tiles_.features,
                       keys_.data() + row_count_ * static_cast<size_t>(tiles_.features));
      value_at_[row_count_] =
          reader_.Read(tiles_.Value(item.sequence, row, item.key_head), tiles_.value_features,
                       values_.data() + row_count_ * static_cast<size_t>(tiles_.value_features));
      ++row_count_;
    }
    return row;
  }

  // Adds the first `count` rows of the block to the results of query `i` of the item.
  void AddRows(int64_t i, size_t count, GroupSums& sums) {
    PartialSoftmax& partial = sums.partials[static_cast<size_t>(i)];
    float* const values = sums.values.data() + i * tiles_.value_features;
    const auto value_features = static_cast<size_t>(tiles_.value_features);
    std::array<float, kBlockOfRows> scores;
    loops_.scores(QueryAt(i), key_at_.data(), count, static_cast<size_t>(tiles_.features),
                  scores.data());
    const float largest = row_loops_.multiply(tiles_.scale, count, scores.data());
    partial.has_rows = true;
    if (largest == kMinusInfinity) return;
    if (!std::isfinite(largest)) {
      partial.is_nan = true;
      return;
    }
    if (largest > partial.largest) {
      float factor = partial.largest;
      row_loops_.exp(largest, 1, &factor);
      partial.largest = largest;
      partial.sum *= factor;
      loops_.multiply(factor, value_features, values);
    }
    partial.sum += static_cast<float>(row_loops_.exp(partial.largest, count, scores.data()));
    loops_.add_values(scores.data(), value_at_.data(), count, value_features, values);
  }

  const AttentionTiles& tiles_;
  const AttentionLoops& loops_ = AttentionLoopsOfCpu();
  const RowLoops& row_loops_ = RowLoopsOfCpu();
  const VectorReader reader_;
  std::vector<float> queries_;  // [queries of an item, features]
  std::vector<float> keys_;     // [rows of the block, features], if not of F32
  std::vector<float> values_;   // [rows of the block, value features], if not of F32
  size_t row_count_ = 0;
  std::array<int64_t, kBlockOfRows> rows_ = {};  // rising
  std::array<const float*, kBlockOfRows> key_at_ = {};
  std::array<const float*, kBlockOfRows> value_at_ = {};
};

// Adds `added`, the results of later rows, to `sums`.
void CombineSums(const AttentionTiles& tiles, const GroupSums& added, GroupSums& sums) {
  const RowLoops& row_loops = RowLoopsOfCpu();
  const auto features = static_cast<size_t>(tiles.value_features);
  for (size_t i = 0; i < sums.partials.size(); ++i) {
    PartialSoftmax& partial = sums.partials[i];
    const PartialSoftmax& other = added.partials[i];
    partial.has_rows = partial.has_rows || other.has_rows;
    partial.is_nan = partial.is_nan || other.is_nan;
    if (other.largest == kMinusInfinity) continue;
    const float largest = std::max(partial.largest, other.largest);
    std::array<float, 2> factors = {partial.largest, other.largest};
    row_loops.exp(largest, factors.size(), factors.data());
    partial.largest = largest;
    partial.sum = partial.sum * factors[0] + other.sum * factors[1];
    float* const values = sums.values.data() + i * features;
    const float* const others = added.values.data() + i * features;
    for (size_t j = 0; j < features; ++j) {
      values[j] = values[j] * factors[0] + others[j] * factors[1];
    }
  }
}

void StoreResults(const AttentionTiles& tiles, const StreamItem& item, GroupSums& sums) {
  const RowLoops& row_loops = RowLoopsOfCpu();
  const auto features = static_cast<size_t>(tiles.value_features);
  for (size_t i = 0; i < static_cast<size_t>(item.query_count); ++i) {
    const PartialSoftmax& partial = sums.partials[i];
    float* const values = sums.values.data() + i * features;
    if (!partial.has_rows) {
      std::fill_n(values, features, 0.0f);
    } else if (partial.is_nan || partial.sum == 0) {
      std::fill_n(values, features, std::numeric_limits<float>::quiet_NaN());
    } else {
      row_loops.divide(static_cast<double>(partial.sum), features, values);
    }
    StoreFloats(
        tiles.dtype, values, features,
        tiles.Result(item.sequence, item.key_head, item.first_query + static_cast<int64_t>(i)));
  }
}

// The items of an attention: chunks are the fastest, then the queries of a group, key heads and
// sequences. Many queries have one chunk, so that results of chunks take little memory.
class StreamItems {
 public:
  explicit StreamItems(const AttentionTiles& tiles) : tiles_(tiles) {
    for (int64_t sequence = 0; sequence < tiles.batch; ++sequence) {
      rows_.push_back(tiles.MostSeenRows(sequence, 0, tiles.queries));
      most_rows_ = std::max(most_rows_, rows_.back());
    }
    const int64_t queries = tiles.group_queries();
    query_blocks_ = (queries + kStreamQueries - 1) / kStreamQueries;
    query_count_ = std::min(queries, kStreamQueries);
    chunk_rows_ = query_blocks_ > 1 ? most_rows_ : kChunkRows;
    chunks_ = most_rows_ == 0 ? 1 : (most_rows_ + chunk_rows_ - 1) / chunk_rows_;
  }

  int64_t chunks() const { return chunks_; }
  // Returns the number of queries of an item; the last one of a group may have fewer.
  int64_t query_count() const { return query_count_; }
  int64_t count() const { return tiles_.batch * tiles_.key_heads * query_blocks_ * chunks_; }
  // Returns the multiplications of an item.
  int64_t cost() const {
    return std::min(most_rows_, chunk_rows_) * query_count_ *
           (tiles_.features + tiles_.value_features);
  }

  StreamItem At(int64_t number) const {
    StreamItem item;
    const int64_t first_row = number % chunks_ * chunk_rows_;
    number /= chunks_;
    item.first_query = number % query_blocks_ * kStreamQueries;
    number /= query_blocks_;
    item.query_count = std::min(kStreamQueries, tiles_.group_queries() - item.first_query);
    item.key_head = number % tiles_.key_heads;
    item.sequence = number / tiles_.key_heads;
    const int64_t rows = rows_[static_cast<size_t>(item.sequence)];
    item.begin = std::min(first_row, rows);
    item.end = std::min(first_row + chunk_rows_, rows);
    return item;
  }

 private:
  const AttentionTiles& tiles_;
  std::vector<int64_t> rows_;  // that some query sees, by sequence
  int64_t most_rows_ = 0;
  int64_t query_blocks_ = 1;
  int64_t query_count_ = 1;
  int64_t chunk_rows_ = 1;
  int64_t chunks_ = 1;
};

}  // namespace

absl::Status StreamAttention(const AttentionTiles& tiles, const OpContext& context) {
  const StreamItems items(tiles);
  const int64_t chunks = items.chunks();
  const GroupSums none(items.query_count(), tiles.value_features);
  std::vector<GroupSums> sums;  // by item
  if (chunks > 1) sums.assign(static_cast<size_t>(items.count()), none);
  const auto compute = [&](int64_t begin, int64_t end) {
    GroupStream stream(tiles);
    GroupSums own = none;
    for (int64_t number = begin; number < end; ++number) {
      const StreamItem item = items.At(number);
      stream.Run(item, chunks > 1 ? sums[static_cast<size_t>(number)] : own);
      if (chunks == 1) StoreResults(tiles, item, own);
    }
  };
  const PieceOptions options = {
      .piece = ItemsOfPiece(kStreamPiece, items.cost()),
      .threads = context.threads,
      .pieces_of_turn = std::min<int64_t>(ItemsOfPiece(32 * kStreamPiece, items.cost()), 32)};
  SHARDMESH_RETURN_IF_ERROR(RunPieces(items.count(), options, context.abort_check, compute));
  for (int64_t number = 0; chunks > 1 && number < items.count(); number += chunks) {
    GroupSums& first = sums[static_cast<size_t>(number)];
    for (int64_t chunk = 1; chunk < chunks; ++chunk) {
      CombineSums(tiles, sums[static_cast<size_t>(number + chunk)], first);
    }
    StoreResults(tiles, items.At(number), first);
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::worker
