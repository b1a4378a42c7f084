// Random tensors and random layouts of them, and the bytes of their tiles by plain indexing. Slow,
// and independent of the library where it computes bytes to compare with.
#ifndef SHARDMESH_TESTS_UNIT_WORKER_COLLECTIVE_RANDOM_LAYOUTS_H_
#define SHARDMESH_TESTS_UNIT_WORKER_COLLECTIVE_RANDOM_LAYOUTS_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "sharding/mesh.h"
#include "sharding/shape.h"
#include "sharding/spec.h"
#include "sharding/tile.h"
#include "tensor/dtype.h"

namespace shardmesh::worker {

// Returns the bytes of a tile of the row-major tensor `bytes`, element by element. A last byte that
// is not full is padded with zeros.
std::string TileOfTensor(const std::string& bytes, Dtype dtype, const Shape& shape,
                         const Tile& tile);

struct RandomTensor {
  Dtype dtype = Dtype::kF32;
  Shape shape;
  std::string bytes;
  // Layouts cut the last dimension at multiples of this many elements.
  int64_t unit = 1;

  // Whether tiles may begin or end within a byte.
  bool is_ragged() const { return unit * BitsPerElement(dtype) % 8 != 0; }
};

struct RandomLayout {
  PartitionSpec spec;
  std::vector<CutPoints> cut_points;  // in the form of WithoutEqualParts
  bool has_empty_part = false;        // a part of a tensor that is not empty

  // Returns a text such as `P('a', None)/0,3,8/`.
  std::string ToString() const;
};

// Not thread-safe.
class LayoutDice {
 public:
  explicit LayoutDice(uint32_t seed) : random_(seed) {}

  // Returns a number of [0, limit).
  size_t Below(size_t limit) { return random_() % limit; }
  // Returns one of the meshes, which are in the form of Mesh::Parse.
  Mesh OneOf(absl::Span<const char* const> meshes);
  // Returns a tensor of any element type, of at most four dimensions. One in eight tensors of types
  // of less than a byte is ragged; all other tensors have tiles of whole bytes in every layout.
  RandomTensor Tensor();
  // Puts some axes of the mesh on some dimensions of the tensor. Parts are equal or between cut
  // points, and some parts between cut points are empty.
  RandomLayout Layout(const Mesh& mesh, const RandomTensor& tensor);
  // Returns the numbers of `count` of the workers [0, pool), in random order.
  std::vector<int64_t> Workers(int64_t count, int64_t pool);

 private:
  CutPoints Cut(int64_t extent, int64_t unit, int64_t parts);

  std::mt19937 random_;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_TESTS_UNIT_WORKER_COLLECTIVE_RANDOM_LAYOUTS_H_
