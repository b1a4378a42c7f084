// Ops that move elements and compute none.
#include <algorithm>
#include <cstring>

#include "absl/container/inlined_vector.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/copy.h"
#include "tensor/view.h"
#include "worker/kernel/pieces.h"
#include "worker/tensor_op/op_kernels.h"

namespace shardmesh::worker {
namespace {

constexpr int64_t kCopyPieceBytes = int64_t{4} << 20;
// The part of a long run that is one item of a copy.
constexpr int64_t kRunBytes = int64_t{256} << 10;
// Blocks of elements that lie in another order in both memories: kBlockRows neighbours of `from`
// are read for each column, and each row of `to` is written from left to right.
constexpr int64_t kBlockRows = 16;
constexpr int64_t kBlockColumns = 4096;

using CopyDimensions = absl::InlinedVector<CopyDimension, 6>;

// Leaves out extents of 1, and merges dimensions that continue each other in both memories.
CopyDimensions MergedDimensions(absl::Span<const CopyDimension> dimensions) {
  CopyDimensions merged;
  for (const CopyDimension& dimension : dimensions) {
    if (dimension.extent == 1) continue;
    if (!merged.empty()) {
      CopyDimension& outer = merged.back();
      if (outer.from_stride == dimension.from_stride * dimension.extent &&
          outer.to_stride == dimension.to_stride * dimension.extent) {
        outer = {.extent = outer.extent * dimension.extent,
                 .from_stride = dimension.from_stride,
                 .to_stride = dimension.to_stride};
        continue;
      }
    }
    merged.push_back(dimension);
  }
  return merged;
}

struct CopyOffsets {
  int64_t from = 0;
  int64_t to = 0;
};

// Returns where item number `item` of the loops begins; the last loop is the fastest.
CopyOffsets OffsetsOf(const CopyDimensions& loops, int64_t item) {
  CopyOffsets offsets;
  for (size_t i = loops.size(); i-- > 0;) {
    const int64_t index = item % loops[i].extent;
    item /= loops[i].extent;
    offsets.from += index * loops[i].from_stride;
    offsets.to += index * loops[i].to_stride;
  }
  return offsets;
}

int64_t ItemCount(const CopyDimensions& loops) {
  int64_t count = 1;
  for (const CopyDimension& loop : loops) count *= loop.extent;
  return count;
}

int64_t PartsOf(int64_t size, int64_t part) { return size / part + (size % part != 0 ? 1 : 0); }

// Copies runs without gaps.
absl::Status CopyRuns(int64_t run_bytes, const CopyDimensions& loops, const char* from, char* to,
                      const OpContext& context) {
  const int64_t parts = PartsOf(run_bytes, kRunBytes);
  const int64_t part_bytes = std::min(run_bytes, kRunBytes);
  // A run of a few bytes costs as much as one of 64.
  const int64_t piece = ItemsOfPiece(kCopyPieceBytes, std::max<int64_t>(part_bytes, 64));
  return RunPieces(ItemCount(loops) * parts, {.piece = piece, .threads = context.threads},
                   context.abort_check, [&](int64_t begin, int64_t end) {
                     for (int64_t item = begin; item < end; ++item) {
                       const CopyOffsets at = OffsetsOf(loops, item / parts);
                       const int64_t skip = item % parts * kRunBytes;
                       CopyBytes(to + at.to + skip, from + at.from + skip,
                                 static_cast<size_t>(std::min(kRunBytes, run_bytes - skip)));
                     }
                   });
}

// Rows that are neighbours in `from`, and columns that are neighbours in `to` or have steps there.
struct CopyPlane {
  CopyDimension rows = {.extent = 1, .from_stride = 0, .to_stride = 0};
  CopyDimension columns;
};

template <typename Element>
void CopyBlock(const CopyPlane& plane, int64_t rows, int64_t columns, const char* from, char* to) {
  for (int64_t column = 0; column < columns; ++column) {
    const char* const in = from + column * plane.columns.from_stride;
    char* const out = to + column * plane.columns.to_stride;
    for (int64_t row = 0; row < rows; ++row) {
      std::memcpy(out + row * plane.rows.to_stride, in + row * plane.rows.from_stride,
                  sizeof(Element));
    }
  }
}

void CopyBlockOf(int64_t element_bytes, const CopyPlane& plane, int64_t rows, int64_t columns,
                 const char* from, char* to) {
  switch (element_bytes) {
    case 1:
      return CopyBlock<uint8_t>(plane, rows, columns, from, to);
    case 2:
      return CopyBlock<uint16_t>(plane, rows, columns, from, to);
    case 4:
      return CopyBlock<uint32_t>(plane, rows, columns, from, to);
    default:
      return CopyBlock<uint64_t>(plane, rows, columns, from, to);
  }
}

absl::Status CopyPlanes(int64_t element_bytes, const CopyPlane& plane, const CopyDimensions& loops,
                        const char* from, char* to, const OpContext& context) {
  const int64_t row_blocks = PartsOf(plane.rows.extent, kBlockRows);
  const int64_t column_blocks = PartsOf(plane.columns.extent, kBlockColumns);
  const int64_t cost = std::min(plane.rows.extent, kBlockRows) *
                       std::min(plane.columns.extent, kBlockColumns) * element_bytes;
  // Elements one by one take some times as long as runs.
  const int64_t piece = ItemsOfPiece(kCopyPieceBytes / 8, std::max<int64_t>(cost, 64));
  return RunPieces(
      ItemCount(loops) * row_blocks * column_blocks, {.piece = piece, .threads = context.threads},
      context.abort_check, [&](int64_t begin, int64_t end) {
        for (int64_t item = begin; item < end; ++item) {
          const int64_t block = item % (row_blocks * column_blocks);
          const int64_t row = block / column_blocks * kBlockRows;
          const int64_t column = block % column_blocks * kBlockColumns;
          const CopyOffsets at = OffsetsOf(loops, item / (row_blocks * column_blocks));
          CopyBlockOf(
              element_bytes, plane, std::min(kBlockRows, plane.rows.extent - row),
              std::min(kBlockColumns, plane.columns.extent - column),
              from + at.from + row * plane.rows.from_stride + column * plane.columns.from_stride,
              to + at.to + row * plane.rows.to_stride + column * plane.columns.to_stride);
        }
      });
}

// Returns the strides of a row-major tensor, in bytes.
Shape StridesOf(absl::Span<const int64_t> shape, int64_t element_bytes) {
  Shape strides(shape.size());
  int64_t stride = element_bytes;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= shape[i];
  }
  return strides;
}

int64_t WholeElementBytes(Dtype dtype) { return BitsPerElement(dtype) / 8; }

// SHAPE_MISMATCH unless the slice of the input's tile has all of the result's tile.
absl::Status CheckSlice(const SliceOp& op, const OpInput& input, const OpOutput& output) {
  const size_t rank = output.shape.size();
  if (input.shape.size() != rank || op.starts.size() != rank ||
      (!op.steps.empty() && op.steps.size() != rank)) {
    return TileMisfit("slice", "the input", input.shape, output.shape);
  }
  if (input.dtype != output.dtype || BitsPerElement(input.dtype) % 8 != 0) {
    return InvalidArgument(
        Reason::kUnsupportedDtype,
        StrCat("a slice of ", DtypeName(input.dtype), " cannot be ", DtypeName(output.dtype)),
        {{fact::kDtype, DtypeName(input.dtype)}, {fact::kOp, "slice"}});
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CopyInPieces(absl::Span<const char> from, char* to, const OpContext& context) {
  if (from.data() == to) return absl::OkStatus();
  return RunPieces(static_cast<int64_t>(from.size()),
                   {.piece = kCopyPieceBytes, .threads = context.threads}, context.abort_check,
                   [&](int64_t begin, int64_t end) {
                     CopyBytes(to + begin, from.data() + begin, static_cast<size_t>(end - begin));
                   });
}

absl::Status CopyStrided(int64_t element_bytes, absl::Span<const CopyDimension> dimensions,
                         const char* from, char* to, const OpContext& context) {
  for (const CopyDimension& dimension : dimensions) {
    if (dimension.extent == 0) return absl::OkStatus();
  }
  CopyDimensions loops = MergedDimensions(dimensions);
  if (loops.empty()) return CopyRuns(element_bytes, loops, from, to, context);
  const CopyDimension last = loops.back();
  loops.pop_back();
  if (last.from_stride == element_bytes && last.to_stride == element_bytes) {
    return CopyRuns(last.extent * element_bytes, loops, from, to, context);
  }
  CopyPlane plane = {.columns = last};
  const auto rows = std::find_if(loops.begin(), loops.end(), [&](const CopyDimension& loop) {
    return loop.from_stride == element_bytes;
  });
  if (rows != loops.end()) {
    plane.rows = *rows;
    loops.erase(rows);
  }
  return CopyPlanes(element_bytes, plane, loops, from, to, context);
}

absl::Status RunKernel(const ReshapeOp& /*op*/, OpInputs inputs, const OpOutput& output,
                       const OpContext& context) {
  const OpInput& input = inputs[0];
  if (input.dtype != output.dtype || input.bytes.size() != output.bytes.size()) {
    return TileMisfit("reshape", "the input", input.shape, output.shape);
  }
  return CopyInPieces(input.bytes, output.bytes.data(), context);
}

absl::Status RunKernel(const TransposeOp& op, OpInputs inputs, const OpOutput& output,
                       const OpContext& context) {
  const int64_t size = WholeElementBytes(output.dtype);
  const Shape from = StridesOf(inputs[0].shape, size);
  const Shape to = StridesOf(output.shape, size);
  CopyDimensions dimensions;
  for (size_t i = 0; i < to.size(); ++i) {
    dimensions.push_back({.extent = output.shape[i],
                          .from_stride = from[static_cast<size_t>(op.permutation[i])],
                          .to_stride = to[i]});
  }
  return CopyStrided(size, dimensions, inputs[0].bytes.data(), output.bytes.data(), context);
}

absl::Status RunKernel(const SliceOp& op, OpInputs inputs, const OpOutput& output,
                       const OpContext& context) {
  const OpInput& input = inputs[0];
  SHARDMESH_RETURN_IF_ERROR(CheckSlice(op, input, output));
  const int64_t size = WholeElementBytes(output.dtype);
  const Shape from = StridesOf(input.shape, size);
  const Shape to = StridesOf(output.shape, size);
  CopyDimensions dimensions;
  int64_t offset = 0;
  for (size_t i = 0; i < to.size(); ++i) {
    if (output.shape[i] == 0) return absl::OkStatus();
    const int64_t step = op.steps.empty() ? 1 : op.steps[i];
    const int64_t first =
        op.starts[i] + step * output.tile.ranges[i].start - input.tile.ranges[i].start;
    if (step < 1 || first < 0 || (output.shape[i] - 1) * step >= input.shape[i] - first) {
      return TileMisfit("slice", "the input", input.shape, output.shape);
    }
    offset += first * from[i];
    // The step of a single index can be any number: the stride would not fit.
    dimensions.push_back({.extent = output.shape[i],
                          .from_stride = output.shape[i] == 1 ? from[i] : step * from[i],
                          .to_stride = to[i]});
  }
  return CopyStrided(size, dimensions, input.bytes.data() + offset, output.bytes.data(), context);
}

absl::Status RunKernel(const ConcatenateOp& op, OpInputs inputs, const OpOutput& output,
                       const OpContext& context) {
  const int64_t size = WholeElementBytes(output.dtype);
  const Shape to = StridesOf(output.shape, size);
  int64_t offset = 0;
  for (const OpInput& input : inputs) {
    const Shape from = StridesOf(input.shape, size);
    CopyDimensions dimensions;
    for (size_t i = 0; i < to.size(); ++i) {
      dimensions.push_back({.extent = input.shape[i], .from_stride = from[i], .to_stride = to[i]});
    }
    SHARDMESH_RETURN_IF_ERROR(
        CopyStrided(size, dimensions, input.bytes.data(), output.bytes.data() + offset, context));
    const auto joined = static_cast<size_t>(op.dimension);
    offset += input.shape[joined] * to[joined];
  }
  return absl::OkStatus();
}

absl::Status RunKernel(const ConstantOp& op, OpInputs /*inputs*/, const OpOutput& output,
                       const OpContext& /*context*/) {
  const Literal& value = op.value;
  if (value.dtype != output.dtype) {
    return InvalidArgument(
        Reason::kUnsupportedDtype,
        StrCat("a constant of ", DtypeName(value.dtype), " cannot be ", DtypeName(output.dtype)),
        {{fact::kDtype, DtypeName(output.dtype)}, {fact::kOp, "constant"}});
  }
  SHARDMESH_ASSIGN_OR_RETURN(const TensorView view,
                             TensorView::Create(value.dtype, value.shape, value.bytes));
  return CopyTileBytes(view, output.tile, 0, output.bytes);
}

}  // namespace shardmesh::worker
