// Memory for gathered tensors, and the tiles that slices mean.
#include "client/types/array.h"

#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {

namespace {

// The range in the notation of the command line.
std::string TextOf(const SliceRange& range) {
  return StrCat(range.start != 0 || range.stop.has_value() ? StrCat(range.start) : "", ":",
                range.stop.has_value() ? StrCat(*range.stop) : "");
}

// The slice in the notation of the command line, with one range for each dimension of the shape.
// Extra ranges are cut off; for missing ranges, the text has `:`.
std::string FilledUp(const ArraySlice& slice, const Shape& shape) {
  std::vector<std::string> ranges;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    ranges.push_back(TextOf(dim < slice.size() ? slice[dim] : SliceRange()));
  }
  return ranges.empty() ? "no slice" : StrJoin(ranges, ",");
}

// Returns what is wrong with the range of a dimension that has `end` indexes; empty if it fits.
std::string Objection(const SliceRange& range, size_t dim, int64_t end) {
  const int64_t stop = range.stop.value_or(end);
  // A dimension without indexes has only the empty range.
  if (range.start == 0 && stop == 0 && end == 0) return "";
  const std::string subject = StrCat("the range ", TextOf(range), " of dimension ", dim);
  if (end == 0) {
    return StrCat(subject, " is not in the array: this dimension has no index; write :");
  }
  if (range.start < 0 || range.start >= end || stop > end) {
    return StrCat(subject, " is not in the array: this dimension has the indexes 0 to ", end - 1,
                  "; write a range within 0:", end);
  }
  if (range.start >= stop) {
    return StrCat(subject, " has no index, since STOP itself is not in it; write a STOP above ",
                  range.start, ", such as ", range.start, ":", range.start + 1);
  }
  return "";
}

}  // namespace

int64_t PartialSumCount(const ArrayDescriptor& array) {
  int64_t count = 1;
  for (const std::string& axis : array.spec.unreduced()) {
    const std::optional<int64_t> found = array.mesh.FindAxis(axis);
    if (found.has_value()) count *= array.mesh.axes()[static_cast<size_t>(*found)].size;
  }
  return count;
}

int64_t PartialSumOf(const ArrayDescriptor& array, DeviceId rank) {
  int64_t number = 0;
  for (const std::string& axis : array.spec.unreduced()) {
    const std::optional<int64_t> found = array.mesh.FindAxis(axis);
    if (!found.has_value()) continue;
    number = number * array.mesh.axes()[static_cast<size_t>(*found)].size +
             array.mesh.CoordinateOf(rank, *found);
  }
  return number;
}

absl::StatusOr<Tile> TileOf(const ArraySlice& slice, const ArrayDescriptor& array) {
  const Tile whole = Tile::Whole(array.shape);
  Tile tile;
  std::string objection;
  for (size_t dim = 0; dim < slice.size(); ++dim) {
    const int64_t end = dim < array.shape.size() ? array.shape[dim] : 0;
    tile.ranges.push_back({slice[dim].start, slice[dim].stop.value_or(end)});
    if (objection.empty()) objection = Objection(slice[dim], dim, end);
  }
  if (slice.size() != array.shape.size()) {
    const auto count = [](size_t n, std::string_view noun) {
      return StrCat(n, " ", noun, n == 1 ? "" : "s");
    };
    objection =
        StrCat("the slice has ", count(slice.size(), "range"), ", the array ",
               count(array.shape.size(), "dimension"), "; write ", FilledUp(slice, array.shape));
  }
  if (objection.empty()) return tile;
  return InvalidArgument(Reason::kBadTile, objection,
                         {{fact::kArray, array.array_id},
                          {fact::kHave, tile.ToString()},
                          {fact::kNeed, whole.ToString()}});
}

absl::StatusOr<GatheredTensor> GatheredTensor::Allocate(Array array, std::optional<Tile> part) {
  if (!part.has_value()) {
    part = Tile::Whole(array.descriptor.shape);
  }
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t size_bytes, array.descriptor.TileSizeBytes(*part));
  // The budget is unlimited: only the host's memory limits the allocation.
  auto budget = std::make_shared<MemoryBudget>(std::numeric_limits<int64_t>::max());
  const auto pool = BufferPool::Create(budget.get(), /*max_idle_bytes=*/0);
  SHARDMESH_ASSIGN_OR_RETURN(
      Buffer buffer, pool->Allocate(size_bytes, StrCat("array ", array.descriptor.array_id)));
  return GatheredTensor(std::move(array), *std::move(part), std::move(budget), std::move(buffer));
}

TensorView GatheredTensor::view() const {
  // Cannot fail: Allocate made the buffer as large as dtype and shape need.
  return *TensorView::Create(array_.descriptor.dtype, part_.shape(), buffer_.bytes());
}

MutableTensorView GatheredTensor::mutable_view() {
  return *MutableTensorView::Create(array_.descriptor.dtype, part_.shape(),
                                    buffer_.mutable_bytes());
}

}  // namespace shardmesh::client
