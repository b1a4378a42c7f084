// Reductions along dimensions of a tensor, in F64 or in 64-bit integers. The order of operations
// depends on shapes alone: the elements of a result are cut in chunks, and the results of the
// chunks are combined in their order.
#include <algorithm>
#include <limits>
#include <type_traits>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "status/status_macros.h"
#include "worker/kernel/float_block.h"
#include "worker/kernel/pieces.h"
#include "worker/kernel/reduce_loops.h"
#include "worker/tensor_op/op_kernels.h"

namespace shardmesh::worker {
namespace {

// Elements of a chunk, and of a piece. A slow CPU needs 10 ns for an element.
constexpr int64_t kChunk = 512 * kFloatBlock;
// The part of a run of reduced elements that a chunk takes or leaves.
constexpr int64_t kRunPart = 128 * kFloatBlock;

struct ReducedDimension {
  int64_t extent = 1;
  int64_t stride = 0;  // in elements
  bool is_reduced = false;
};
using ReducedDimensions = absl::InlinedVector<ReducedDimension, 6>;

int64_t CountOf(const ReducedDimensions& loops) {
  int64_t count = 1;
  for (const ReducedDimension& loop : loops) count *= loop.extent;
  return count;
}

int64_t OffsetOf(const ReducedDimensions& loops, int64_t index) {
  int64_t offset = 0;
  for (size_t i = loops.size(); i-- > 0;) {
    offset += index % loops[i].extent * loops[i].stride;
    index /= loops[i].extent;
  }
  return offset;
}

int64_t QuotientUp(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// The loops of a reduction. The innermost dimension is apart: a block is up to kFloatBlock results
// if it is kept, and one result if it is reduced. A result is made of units: elements of one row,
// or parts of a run of reduced elements.
struct ReduceShape {
  ReduceShape(const Shape& shape, const ReduceOp& op) {
    ReducedDimensions all;
    int64_t stride = 1;
    for (size_t i = shape.size(); i-- > 0;) {
      const bool is_reduced =
          std::binary_search(op.dimensions.begin(), op.dimensions.end(), static_cast<int64_t>(i));
      if (is_reduced) reduced_count *= shape[i];
      if (shape[i] != 1) {
        if (!all.empty() && all.back().is_reduced == is_reduced) {
          all.back().extent *= shape[i];
        } else {
          all.push_back({.extent = shape[i], .stride = stride, .is_reduced = is_reduced});
        }
      }
      stride *= shape[i];
    }
    if (all.empty()) all.push_back({.extent = 1, .stride = 1, .is_reduced = true});
    inner = all.front();
    for (size_t i = all.size(); i-- > 1;) (all[i].is_reduced ? reduced : kept).push_back(all[i]);
    if (inner.is_reduced) {
      parts = QuotientUp(inner.extent, kRunPart);
      unit_elements = std::min(inner.extent, kRunPart);
    } else {
      parts = QuotientUp(inner.extent, kFloatBlock);
      width = std::min(inner.extent, kFloatBlock);
      unit_elements = width;
    }
    blocks = CountOf(kept) * (inner.is_reduced ? 1 : parts);
    units = CountOf(reduced) * (inner.is_reduced ? parts : 1);
    chunk_units = ItemsOfPiece(kChunk, unit_elements);
    chunks = QuotientUp(units, chunk_units);
  }

  ReducedDimension inner;
  ReducedDimensions kept;     // without `inner`
  ReducedDimensions reduced;  // without `inner`
  int64_t reduced_count = 1;  // elements of a result
  int64_t parts = 1;          // of the innermost dimension
  int64_t width = 1;          // results of a block; the last one of a row may have fewer
  int64_t unit_elements = 1;
  int64_t blocks = 1;
  int64_t units = 1;  // of each result
  int64_t chunk_units = 1;
  int64_t chunks = 1;
};

// Reduces with accumulators of type Wide: double or uint64_t.
template <typename Wide>
class DimensionReducer {
 public:
  DimensionReducer(const ReduceOp& op, const OpInput& input)
      : shape_(input.shape, op),
        reduction_(op.reduction),
        input_(input),
        element_bytes_(BitsPerElement(input.dtype) / 8),
        combine_(
            CombineLoop(op.reduction, std::is_same_v<Wide, double> ? Dtype::kF64 : Dtype::kI64)) {}

  absl::Status Run(const OpOutput& output, const OpContext& context) {
    const bool is_direct = shape_.chunks == 1;
    if (!is_direct) {
      partials_.resize(static_cast<size_t>(shape_.blocks * shape_.chunks * shape_.width));
    }
    const int64_t cost = std::min(shape_.units, shape_.chunk_units) * shape_.unit_elements + 64;
    SHARDMESH_RETURN_IF_ERROR(RunPieces(
        shape_.blocks * shape_.chunks,
        {.piece = ItemsOfPiece(kChunk, cost), .threads = context.threads}, context.abort_check,
        [&](int64_t begin, int64_t end) {
          for (int64_t item = begin; item < end; ++item) {
            WideBlock<Wide> results;
            ReduceChunk(item / shape_.chunks, item % shape_.chunks, results);
            if (is_direct) {
              StoreResults(item, results, output);
            } else {
              std::copy_n(results.begin(), shape_.width, partials_.begin() + item * shape_.width);
            }
          }
        }));
    for (int64_t block = 0; !is_direct && block < shape_.blocks; ++block) {
      WideBlock<Wide> results;
      const Wide* const first = partials_.data() + block * shape_.chunks * shape_.width;
      std::copy_n(first, shape_.width, results.begin());
      for (int64_t chunk = 1; chunk < shape_.chunks; ++chunk) {
        Combine(results.data(), first + chunk * shape_.width, shape_.width);
      }
      StoreResults(block, results, output);
    }
    return absl::OkStatus();
  }

  // Sets all results to those of no elements.
  void SetNeutral(const OpOutput& output) const {
    WideBlock<Wide> results;
    results.fill(NeutralElement());
    const int64_t count = ElementsOf(output.shape);
    for (int64_t i = 0; i < count; i += kFloatBlock) {
      Store(results, i, std::min(kFloatBlock, count - i), output);
    }
  }

 private:
  Wide NeutralElement() const {
    const bool is_double = std::is_same_v<Wide, double>;
    switch (reduction_) {
      case Reduction::kProduct:
        return 1;
      case Reduction::kMin:
        return is_double ? std::numeric_limits<Wide>::infinity() : LargestInteger();
      case Reduction::kMax:
        return is_double ? static_cast<Wide>(-std::numeric_limits<Wide>::infinity())
                         : static_cast<Wide>(~static_cast<uint64_t>(LargestInteger()));
      default:
        return 0;
    }
  }
  // Returns the largest integer of the input's type, which is signed.
  Wide LargestInteger() const {
    return static_cast<Wide>((uint64_t{1} << (element_bytes_ * 8 - 1)) - 1);
  }

  void Combine(Wide* results, const Wide* others, int64_t count) const {
    combine_(reinterpret_cast<const char*>(results), reinterpret_cast<const char*>(others), count,
             reinterpret_cast<char*>(results));
  }

  void Load(int64_t offset, int64_t count, Wide* to) const {
    const char* const from = input_.bytes.data() + offset * element_bytes_;
    if constexpr (std::is_same_v<Wide, double>) {
      LoadDoubles(input_.dtype, from, static_cast<size_t>(count), to);
    } else {
      LoadIntegers(input_.dtype, from, static_cast<size_t>(count), to);
    }
  }

  // Combines a block of elements with the first ones of `results`, of which `filled` are set.
  void Take(int64_t offset, int64_t count, int64_t& filled, WideBlock<Wide>& results) const {
    WideBlock<Wide> others;
    Load(offset, count, others.data());
    const int64_t common = std::min(count, filled);
    Combine(results.data(), others.data(), common);
    std::copy(others.begin() + common, others.begin() + count, results.begin() + common);
    filled = std::max(count, filled);
  }

  // Reduces the units of one chunk of one block.
  void ReduceChunk(int64_t block, int64_t chunk, WideBlock<Wide>& results) const {
    const int64_t first = chunk * shape_.chunk_units;
    const int64_t last = std::min(first + shape_.chunk_units, shape_.units);
    int64_t filled = 0;
    if (!shape_.inner.is_reduced) {
      const int64_t column = block % shape_.parts * kFloatBlock;
      const int64_t count = std::min(kFloatBlock, shape_.inner.extent - column);
      const int64_t offset = OffsetOf(shape_.kept, block / shape_.parts) + column;
      for (int64_t unit = first; unit < last; ++unit) {
        Take(offset + OffsetOf(shape_.reduced, unit), count, filled, results);
      }
      return;
    }
    const int64_t offset = OffsetOf(shape_.kept, block);
    for (int64_t unit = first; unit < last; ++unit) {
      const int64_t run = offset + OffsetOf(shape_.reduced, unit / shape_.parts);
      const int64_t begin = unit % shape_.parts * kRunPart;
      const int64_t end = std::min(begin + kRunPart, shape_.inner.extent);
      for (int64_t i = begin; i < end; i += kFloatBlock) {
        Take(run + i, std::min(kFloatBlock, end - i), filled, results);
      }
    }
    while (filled > 1) {
      const int64_t half = (filled + 1) / 2;
      Combine(results.data(), results.data() + half, filled - half);
      filled = half;
    }
  }

  // Stores the results of a block.
  void StoreResults(int64_t block, WideBlock<Wide>& results, const OpOutput& output) const {
    const int64_t column = shape_.inner.is_reduced ? 0 : block % shape_.parts * kFloatBlock;
    const int64_t count =
        shape_.inner.is_reduced ? 1 : std::min(kFloatBlock, shape_.inner.extent - column);
    if constexpr (std::is_same_v<Wide, double>) {
      if (reduction_ == Reduction::kMean) {
        for (int64_t i = 0; i < count; ++i) {
          results[static_cast<size_t>(i)] /= static_cast<double>(shape_.reduced_count);
        }
      }
    }
    Store(results,
          shape_.inner.is_reduced ? block : block / shape_.parts * shape_.inner.extent + column,
          count, output);
  }

  void Store(const WideBlock<Wide>& results, int64_t offset, int64_t count,
             const OpOutput& output) const {
    char* const to = output.bytes.data() + offset * element_bytes_;
    if constexpr (std::is_same_v<Wide, double>) {
      StoreDoubles(output.dtype, results.data(), static_cast<size_t>(count), to);
    } else {
      StoreIntegers(output.dtype, true, results.data(), static_cast<size_t>(count), to);
    }
  }

  const ReduceShape shape_;
  const Reduction reduction_;
  const OpInput& input_;
  const int64_t element_bytes_;
  const CombineFn combine_;
  std::vector<Wide> partials_;  // by block and chunk
};

template <typename Wide>
absl::Status ReduceAs(const ReduceOp& op, const OpInput& input, const OpOutput& output,
                      const OpContext& context) {
  DimensionReducer<Wide> reducer(op, input);
  if (!input.bytes.empty()) return reducer.Run(output, context);
  reducer.SetNeutral(output);
  return absl::OkStatus();
}

}  // namespace

absl::Status RunKernel(const ReduceOp& op, OpInputs inputs, const OpOutput& output,
                       const OpContext& context) {
  if (output.bytes.empty()) return absl::OkStatus();
  return IsFloat(output.dtype) ? ReduceAs<double>(op, inputs[0], output, context)
                               : ReduceAs<uint64_t>(op, inputs[0], output, context);
}

}  // namespace shardmesh::worker
