// The layouts, and tiles copied element by element. Compiled with optimisation and without
// sanitizers, because the tests compute thousands of tiles.
#include "tests/unit/worker/collective/random_layouts.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

#include "status/str_cat.h"

namespace shardmesh::worker {
namespace {

void CopyBits(const std::string& from, int64_t from_bit, std::string* to, int64_t to_bit,
              int64_t count) {
  if (from_bit % 8 == 0 && to_bit % 8 == 0 && count % 8 == 0) {
    std::memcpy(to->data() + to_bit / 8, from.data() + from_bit / 8,
                static_cast<size_t>(count / 8));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const int bit = from[static_cast<size_t>((from_bit + i) / 8)] >> ((from_bit + i) % 8) & 1;
    char& byte = (*to)[static_cast<size_t>((to_bit + i) / 8)];
    byte = static_cast<char>(byte | bit << ((to_bit + i) % 8));
  }
}

// The least number of elements that fill whole bytes.
int64_t ElementsOfWholeBytes(Dtype dtype) {
  return 8 / std::gcd(int64_t{BitsPerElement(dtype)}, int64_t{8});
}

bool HasEmptyPart(const CutPoints& points) {
  return std::adjacent_find(points.begin(), points.end()) != points.end();
}

}  // namespace

std::string TileOfTensor(const std::string& bytes, Dtype dtype, const Shape& shape,
                         const Tile& tile) {
  const int64_t bits = BitsPerElement(dtype);
  const int64_t count = tile.element_count();
  std::string out(static_cast<size_t>((count * bits + 7) / 8), '\0');
  Shape index;
  for (const IndexRange& range : tile.ranges) index.push_back(range.start);
  for (int64_t i = 0; i < count; ++i) {
    int64_t at = 0;
    for (size_t dim = 0; dim < shape.size(); ++dim) at = at * shape[dim] + index[dim];
    CopyBits(bytes, at * bits, &out, i * bits, bits);
    for (size_t dim = shape.size(); dim-- > 0;) {
      if (++index[dim] < tile.ranges[dim].stop) break;
      index[dim] = tile.ranges[dim].start;
    }
  }
  return out;
}

std::string RandomLayout::ToString() const {
  std::string text = spec.ToString();
  for (const CutPoints& points : cut_points) StrAppend(&text, "/", StrJoin(points, ","));
  return text;
}

Mesh LayoutDice::OneOf(absl::Span<const char* const> meshes) {
  return *Mesh::Parse(meshes[Below(meshes.size())]);
}

RandomTensor LayoutDice::Tensor() {
  RandomTensor tensor;
  tensor.dtype = AllDtypes()[Below(AllDtypes().size())];
  const int64_t whole = ElementsOfWholeBytes(tensor.dtype);
  if (whole > 1 && Below(8) > 0) tensor.unit = whole;
  // A dimension at least, whose extent is a multiple of the unit.
  for (size_t dims = std::max<size_t>(Below(5), tensor.unit > 1 ? 1 : 0); dims > 0; --dims) {
    const int64_t unit = dims == 1 ? tensor.unit : 1;
    const size_t most = unit == 1 ? 11 : 6;
    tensor.shape.push_back(Below(12) == 0 ? 0 : unit * static_cast<int64_t>(1 + Below(most)));
  }
  const int64_t count = std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1},
                                        std::multiplies<int64_t>());
  tensor.bytes.resize(static_cast<size_t>((count * BitsPerElement(tensor.dtype) + 7) / 8));
  for (char& byte : tensor.bytes) byte = static_cast<char>(random_());
  return tensor;
}

RandomLayout LayoutDice::Layout(const Mesh& mesh, const RandomTensor& tensor) {
  const Shape& shape = tensor.shape;
  const size_t rank = shape.size();
  const auto unit_of = [&](size_t dim) { return dim + 1 == rank ? tensor.unit : 1; };
  std::vector<std::vector<AxisName>> dims(rank);
  std::vector<MeshAxis> axes(mesh.axes().begin(), mesh.axes().end());
  std::shuffle(axes.begin(), axes.end(), random_);
  std::vector<int64_t> parts(rank, 1);
  for (const MeshAxis& axis : axes) {
    if (rank == 0 || Below(4) == 0) continue;
    const size_t dim = Below(rank);
    // Some dimensions get more parts than they can fill.
    const bool has_enough = shape[dim] / unit_of(dim) >= parts[dim] * axis.size;
    if (shape[dim] > 0 && !has_enough && Below(3) > 0) continue;
    parts[dim] *= axis.size;
    dims[dim].push_back(axis.name);
  }
  std::vector<SpecEntry> entries;
  for (std::vector<AxisName>& axes_of_dim : dims) {
    entries.push_back(SpecEntry::Axes(std::move(axes_of_dim)));
  }
  RandomLayout layout;
  layout.spec = PartitionSpec(std::move(entries));
  layout.cut_points.assign(rank, {});
  const bool is_empty = std::count(shape.begin(), shape.end(), 0) > 0;
  for (size_t dim = 0; dim < rank; ++dim) {
    const bool fits = shape[dim] % (parts[dim] * unit_of(dim)) == 0;
    if (shape[dim] == 0 || (fits && Below(2) == 0)) continue;
    layout.cut_points[dim] = Cut(shape[dim], unit_of(dim), parts[dim]);
    layout.has_empty_part |= !is_empty && HasEmptyPart(layout.cut_points[dim]);
  }
  layout.cut_points = WithoutEqualParts(std::move(layout.cut_points));
  return layout;
}

std::vector<int64_t> LayoutDice::Workers(int64_t count, int64_t pool) {
  std::vector<int64_t> workers(static_cast<size_t>(pool));
  std::iota(workers.begin(), workers.end(), 0);
  std::shuffle(workers.begin(), workers.end(), random_);
  workers.resize(static_cast<size_t>(count));
  return workers;
}

CutPoints LayoutDice::Cut(int64_t extent, int64_t unit, int64_t parts) {
  const int64_t units = extent / unit;
  CutPoints points;
  if (units < parts || Below(3) == 0) {
    for (int64_t i = 1; i < parts; ++i) {
      points.push_back(static_cast<int64_t>(Below(static_cast<size_t>(units) + 1)));
    }
  } else {
    points.resize(static_cast<size_t>(units - 1));
    std::iota(points.begin(), points.end(), 1);
    std::shuffle(points.begin(), points.end(), random_);
    points.resize(static_cast<size_t>(parts - 1));
  }
  points.push_back(0);
  points.push_back(units);
  std::sort(points.begin(), points.end());
  for (int64_t& point : points) point *= unit;
  return points;
}

}  // namespace shardmesh::worker
