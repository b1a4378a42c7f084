// Attention in blocks of rows with a running softmax: keys and values become F32 once for all
// queries of a block of their group, and no score leaves the caches. Working memory does not grow
// with the number of rows, apart from the results of chunks.
#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "status/status_macros.h"
#include "worker/kernel/float_block.h"
#include "worker/kernel/pieces.h"
#include "worker/tensor_op/attention.h"
#include "worker/tensor_op/attention_loops.h"
#include "worker/tensor_op/row_loops.h"

namespace shardmesh::worker {
namespace {

// Up to this number of queries of a group, rows are cut in chunks, whose results are combined.
// More queries have enough items for all threads, and the results of chunks would take memory.
constexpr int64_t kMostChunkQueries = 32;
constexpr int64_t kChunkRows = 512;
// Queries of a group that are computed together: fewer, if these have very many rows.
constexpr int64_t kMostQueries = 64;
constexpr int64_t kMostCost = int64_t{1} << 28;
// Multiplications and additions of a piece of work.
constexpr int64_t kAttentionPiece = int64_t{1} << 21;

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

size_t RoundUp(size_t value, size_t step) { return (value + step - 1) / step * step; }

// Floats, aligned as the loops need them, zero at first.
class AlignedFloats {
 public:
  explicit AlignedFloats(size_t size)
      : memory_(size + kAlignment / sizeof(float)), data_(Aligned(memory_.data())) {}
  AlignedFloats(AlignedFloats&&) = default;  // moving a vector does not move its elements

  float* data() const { return data_; }

 private:
  static constexpr size_t kAlignment = 64;
  static float* Aligned(float* at) {
    const size_t excess = reinterpret_cast<uintptr_t>(at) % kAlignment;
    return excess == 0 ? at : at + (kAlignment - excess) / sizeof(float);
  }

  std::vector<float> memory_;
  float* data_;
};

// Some queries of a group, and the rows of one chunk.
struct AttentionItem {
  int64_t sequence = 0;
  int64_t key_head = 0;
  int64_t first_query = 0;  // number in the group
  int64_t query_count = 0;
  int64_t begin = 0;  // rows
  int64_t end = 0;
};

// The results of an item.
struct GroupSums {
  GroupSums(int64_t queries, size_t value_width)
      : partials(static_cast<size_t>(queries)),
        values(static_cast<size_t>(queries) * value_width) {}

  std::vector<PartialSoftmax> partials;  // by query
  AlignedFloats values;                  // [queries, value width]
};

size_t ValueWidth(const AttentionTiles& tiles) {
  return RoundUp(static_cast<size_t>(tiles.value_features), kValuePadding);
}

// Computes items. Has the memory that a thread needs.
class GroupBlocks {
 public:
  // `queries` is the largest number of queries of an item.
  GroupBlocks(const AttentionTiles& tiles, int64_t queries)
      : tiles_(tiles),
        features_(static_cast<size_t>(tiles.features)),
        value_width_(ValueWidth(tiles)),
        panel_size_(RoundUp(features_, kKeyPadding) * kPanelRows),
        packs_bf16_(tiles.dtype == Dtype::kBF16 && features_ % kKeyPadding == 0),
        packs_tile_(packs_bf16_ || (tiles.dtype == Dtype::kF32 && features_ % 4 == 0)),
        queries_(RoundUp(static_cast<size_t>(queries), kTileQueries) * features_),
        keys_(kBlockRows / kPanelRows * panel_size_),
        values_(kBlockRows * value_width_),
        wide_keys_(kPanelRows * RoundUp(features_, kKeyPadding)),
        no_key_(RoundUp(features_, kKeyPadding)) {}

  void Run(const AttentionItem& item, GroupSums& sums) {
    LoadQueries(item);
    std::fill(sums.partials.begin(), sums.partials.end(), PartialSoftmax());
    std::fill_n(sums.values.data(), static_cast<size_t>(item.query_count) * value_width_, 0.0f);
    AttentionBlock block = {.query_count = static_cast<size_t>(item.query_count),
                            .features = features_,
                            .value_width = value_width_,
                            .scale = tiles_.scale,
                            .has_special_values = false,
                            .queries = queries_.data(),
                            .keys = keys_.data(),
                            .panel_size = panel_size_,
                            .values = values_.data(),
                            .seen = seen_.data(),
                            .partials = sums.partials.data(),
                            .results = sums.values.data()};
    const int64_t end = std::min(item.end, most_seen_);
    for (int64_t row = item.begin; row < end;) {
      row = ChooseRows(item, row, end);
      if (row_count_ == 0) continue;
      const bool all_see_all = CountSeen(block.query_count);
      PackKeys(item);
      LoadValues(item);
      block.has_special_values =
          !all_see_all && !loops_.all_finite(values_.data(), row_count_ * value_width_);
      block.next_keys =
          RowsFrom(tiles_.Key(item.sequence, row, item.key_head), tiles_.features, end - row);
      block.next_values = RowsFrom(tiles_.Value(item.sequence, row, item.key_head),
                                   tiles_.value_features, end - row);
      loops_.add_block(block);
    }
  }

 private:
  RowsAhead RowsFrom(const char* first, int64_t features, int64_t count) const {
    return {.first = first,
            .count = static_cast<size_t>(std::clamp<int64_t>(count, 0, kBlockRows)),
            .row_bytes = static_cast<size_t>(features * tiles_.element_bytes),
            .stride_bytes = static_cast<size_t>(tiles_.key_heads * features * tiles_.element_bytes),
            .offset_bytes = 0};
  }

  void LoadQueries(const AttentionItem& item) {
    float* const vector = wide_keys_.data();
    most_seen_ = 0;
    for (size_t i = 0; i < static_cast<size_t>(item.query_count); ++i) {
      const int64_t query = item.first_query + static_cast<int64_t>(i);
      seen_rows_[i] = tiles_.SeenRows(item.sequence, query / tiles_.group);
      most_seen_ = std::max(most_seen_, seen_rows_[i]);
      LoadFloats(tiles_.dtype, tiles_.Query(item.sequence, item.key_head, query), features_,
                 vector);
      float* const to =
          queries_.data() + i / kTileQueries * kTileQueries * features_ + i % kTileQueries;
      for (size_t j = 0; j < features_; ++j) to[j * kTileQueries] = vector[j];
    }
  }

  // Chooses the next rows that the mask does not hide. Returns the row after those that it looked
  // at.
  int64_t ChooseRows(const AttentionItem& item, int64_t row, int64_t end) {
    row_count_ = 0;
    for (; row < end && row_count_ < kBlockRows; ++row) {
      if (!tiles_.IsHidden(item.sequence, row)) rows_[row_count_++] = row;
    }
    return row;
  }

  // Counts the rows of the block that each query sees. Returns whether each sees all.
  bool CountSeen(size_t queries) {
    const int64_t* const end = rows_.data() + row_count_;
    bool all_see_all = true;
    for (size_t i = 0; i < queries; ++i) {
      if (seen_rows_[i] > rows_[row_count_ - 1]) {
        seen_[i] = row_count_;
        continue;
      }
      seen_[i] = static_cast<size_t>(
          std::lower_bound<const int64_t*>(rows_.data(), end, seen_rows_[i]) - rows_.data());
      all_see_all = false;
    }
    return all_see_all;
  }

  void PackKeys(const AttentionItem& item) {
    const char* const first = tiles_.Key(item.sequence, 0, item.key_head);
    const int64_t stride = tiles_.key_heads * tiles_.features * tiles_.element_bytes;
    const size_t wide_stride = RoundUp(features_, kKeyPadding);
    std::array<const char*, kPanelRows> keys;
    for (size_t begin = 0; begin < row_count_; begin += kPanelRows) {
      const size_t count = std::min(kPanelRows, row_count_ - begin);
      for (size_t i = 0; i < count; ++i) {
        keys[i] = first + rows_[begin + i] * stride;
        if (packs_tile_) continue;
        float* const wide = wide_keys_.data() + i * wide_stride;
        LoadFloats(tiles_.dtype, keys[i], features_, wide);
        keys[i] = reinterpret_cast<const char*>(wide);
      }
      std::fill(keys.begin() + count, keys.end(), reinterpret_cast<const char*>(no_key_.data()));
      float* const panel = keys_.data() + begin / kPanelRows * panel_size_;
      if (packs_bf16_) {
        loops_.pack_bf16_keys(keys.data(), features_, panel);
      } else {
        loops_.pack_f32_keys(keys.data(), RoundUp(features_, 4), panel);
      }
    }
  }

  void LoadValues(const AttentionItem& item) {
    const char* const first = tiles_.Value(item.sequence, 0, item.key_head);
    const int64_t stride = tiles_.key_heads * tiles_.value_features * tiles_.element_bytes;
    const auto features = static_cast<size_t>(tiles_.value_features);
    for (size_t i = 0; i < row_count_; ++i) {
      float* const to = values_.data() + i * value_width_;
      if (tiles_.dtype == Dtype::kBF16) {
        loops_.widen_bf16(first + rows_[i] * stride, features, to);
      } else {
        LoadFloats(tiles_.dtype, first + rows_[i] * stride, features, to);
      }
    }
  }

  const AttentionTiles& tiles_;
  const AttentionLoops& loops_ = AttentionLoopsOfCpu();
  const size_t features_;
  const size_t value_width_;
  const size_t panel_size_;
  const bool packs_bf16_;  // without a copy as F32
  const bool packs_tile_;  // without a copy
  AlignedFloats queries_;  // as AttentionBlock has them
  AlignedFloats keys_;
  AlignedFloats values_;
  AlignedFloats wide_keys_;  // of one panel, as F32
  AlignedFloats no_key_;     // zeros, for panels that are not full
  int64_t most_seen_ = 0;    // largest of seen_rows_
  size_t row_count_ = 0;
  std::array<int64_t, kBlockRows> rows_ = {};         // rising
  std::array<int64_t, kMostQueries> seen_rows_ = {};  // by query of the item
  std::array<size_t, kMostQueries> seen_ = {};        // by query: of the rows of the block
};

// The memory of the threads of one attention, used again by later pieces. Thread-safe.
class BlocksOfThreads {
 public:
  BlocksOfThreads(const AttentionTiles& tiles, int64_t queries)
      : tiles_(tiles), queries_(queries) {}

  std::unique_ptr<GroupBlocks> Take() ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      const absl::MutexLock lock(&mutex_);
      if (!unused_.empty()) {
        std::unique_ptr<GroupBlocks> blocks = std::move(unused_.back());
        unused_.pop_back();
        return blocks;
      }
    }
    return std::make_unique<GroupBlocks>(tiles_, queries_);
  }
  void Return(std::unique_ptr<GroupBlocks> blocks) ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    unused_.push_back(std::move(blocks));
  }

 private:
  const AttentionTiles& tiles_;
  const int64_t queries_;
  absl::Mutex mutex_;
  std::vector<std::unique_ptr<GroupBlocks>> unused_ ABSL_GUARDED_BY(mutex_);
};

// Adds `added`, the results of later rows, to `sums`.
void CombineSums(size_t value_width, const GroupSums& added, GroupSums& sums) {
  const RowLoops& row_loops = RowLoopsOfCpu();
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
    float* const values = sums.values.data() + i * value_width;
    const float* const others = added.values.data() + i * value_width;
    for (size_t j = 0; j < value_width; ++j) {
      values[j] = values[j] * factors[0] + others[j] * factors[1];
    }
  }
}

void StoreResults(const AttentionTiles& tiles, const AttentionItem& item, const GroupSums& sums) {
  const AttentionLoops& loops = AttentionLoopsOfCpu();
  const auto features = static_cast<size_t>(tiles.value_features);
  for (size_t i = 0; i < static_cast<size_t>(item.query_count); ++i) {
    const PartialSoftmax& partial = sums.partials[i];
    float* const values = sums.values.data() + i * ValueWidth(tiles);
    if (!partial.has_rows) {
      std::fill_n(values, features, 0.0f);
    } else if (partial.is_nan || partial.sum == 0) {
      std::fill_n(values, features, std::numeric_limits<float>::quiet_NaN());
    } else {
      loops.divide(partial.sum, features, values);
    }
    StoreFloats(
        tiles.dtype, values, features,
        tiles.Result(item.sequence, item.key_head, item.first_query + static_cast<int64_t>(i)));
  }
}

// The items of an attention. Key heads are the fastest, because the keys of all heads lie side by
// side, then the queries of a group, chunks and sequences.
class AttentionItems {
 public:
  explicit AttentionItems(const AttentionTiles& tiles) : tiles_(tiles) {
    for (int64_t sequence = 0; sequence < tiles.batch; ++sequence) {
      rows_.push_back(tiles.MostSeenRows(sequence, 0, tiles.queries));
      most_rows_ = std::max(most_rows_, rows_.back());
    }
    const int64_t queries = tiles.group_queries();
    chunk_rows_ = queries <= kMostChunkQueries ? kChunkRows : std::max<int64_t>(most_rows_, 1);
    chunks_ = std::max<int64_t>((most_rows_ + chunk_rows_ - 1) / chunk_rows_, 1);
    const int64_t cost_of_query = std::max<int64_t>(
        std::min(most_rows_, chunk_rows_) * (tiles.features + tiles.value_features), 1);
    constexpr auto kTile = static_cast<int64_t>(kTileQueries);
    item_queries_ = std::clamp(kMostCost / cost_of_query / kTile * kTile, kTile, kMostQueries);
    item_queries_ = std::min(item_queries_, queries);
    query_blocks_ = (queries + item_queries_ - 1) / item_queries_;
    cost_ = cost_of_query * item_queries_;
  }

  int64_t chunks() const { return chunks_; }
  // Returns the number of queries of an item; the last one of a group may have fewer.
  int64_t query_count() const { return item_queries_; }
  // Returns the number of items of a chunk, which is the distance between the items of two chunks.
  int64_t items_of_chunk() const { return tiles_.key_heads * query_blocks_; }
  int64_t count() const { return tiles_.batch * chunks_ * items_of_chunk(); }
  // Returns the multiplications of an item.
  int64_t cost() const { return cost_; }

  AttentionItem At(int64_t number) const {
    AttentionItem item;
    item.key_head = number % tiles_.key_heads;
    number /= tiles_.key_heads;
    item.first_query = number % query_blocks_ * item_queries_;
    item.query_count = std::min(item_queries_, tiles_.group_queries() - item.first_query);
    number /= query_blocks_;
    const int64_t first_row = number % chunks_ * chunk_rows_;
    item.sequence = number / chunks_;
    const int64_t rows = rows_[static_cast<size_t>(item.sequence)];
    item.begin = std::min(first_row, rows);
    item.end = std::min(first_row + chunk_rows_, rows);
    return item;
  }

 private:
  const AttentionTiles& tiles_;
  std::vector<int64_t> rows_;  // that some query sees, by sequence
  int64_t most_rows_ = 0;
  int64_t item_queries_ = 1;
  int64_t query_blocks_ = 1;
  int64_t chunk_rows_ = 1;
  int64_t chunks_ = 1;
  int64_t cost_ = 1;
};

}  // namespace

absl::Status RunKernel(const AttentionOp& op, OpInputs inputs, const OpOutput& output,
                       const OpContext& context) {
  if (output.bytes.empty()) return absl::OkStatus();
  const AttentionTiles tiles(op, inputs, output);
  const AttentionItems items(tiles);
  const int64_t chunks = items.chunks();
  std::vector<GroupSums> sums;  // by item
  for (int64_t i = 0; chunks > 1 && i < items.count(); ++i) {
    sums.emplace_back(items.query_count(), ValueWidth(tiles));
  }
  BlocksOfThreads memory(tiles, items.query_count());
  const auto compute = [&](int64_t begin, int64_t end) {
    std::unique_ptr<GroupBlocks> blocks = memory.Take();
    GroupSums own(chunks > 1 ? 0 : items.query_count(), ValueWidth(tiles));
    for (int64_t number = begin; number < end; ++number) {
      const AttentionItem item = items.At(number);
      blocks->Run(item, chunks > 1 ? sums[static_cast<size_t>(number)] : own);
      if (chunks == 1) StoreResults(tiles, item, own);
    }
    memory.Return(std::move(blocks));
  };
  const PieceOptions options = {
      .piece = ItemsOfPiece(kAttentionPiece, items.cost()),
      .threads = context.threads,
      .pieces_of_turn = std::min<int64_t>(ItemsOfPiece(32 * kAttentionPiece, items.cost()), 32)};
  SHARDMESH_RETURN_IF_ERROR(RunPieces(items.count(), options, context.abort_check, compute));
  if (chunks == 1) return absl::OkStatus();
  const int64_t stride = items.items_of_chunk();
  const auto combine = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t number = i / stride * stride * chunks + i % stride;  // of the first chunk
      GroupSums& first = sums[static_cast<size_t>(number)];
      for (int64_t chunk = 1; chunk < chunks; ++chunk) {
        CombineSums(ValueWidth(tiles), sums[static_cast<size_t>(number + chunk * stride)], first);
      }
      StoreResults(tiles, items.At(number), first);
    }
  };
  const int64_t sums_of_group =
      chunks * items.query_count() * static_cast<int64_t>(ValueWidth(tiles));
  return RunPieces(
      items.count() / chunks,
      {.piece = ItemsOfPiece(kAttentionPiece, sums_of_group), .threads = context.threads},
      context.abort_check, combine);
}

}  // namespace shardmesh::worker
