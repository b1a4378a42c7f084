// Whole tensors of doubles, for tests of plans.
#ifndef SHARDMESH_TESTS_UNIT_PROGRAM_DENSE_H_
#define SHARDMESH_TESTS_UNIT_PROGRAM_DENSE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "sharding/shape.h"

namespace shardmesh {

// A dense tensor of doubles; small integers, so that every sum is exact.
struct Dense {
  Shape shape;
  std::vector<double> elements;
};

inline int64_t Count(const Shape& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) {
    count *= extent;
  }
  return count;
}

inline Dense Numbered(Shape shape, int seed) {
  Dense dense{.shape = shape, .elements = {}};
  for (int64_t i = 0; i < Count(shape); ++i) {
    dense.elements.push_back(static_cast<double>((i * 7 + seed * 13) % 11 - 5));
  }
  return dense;
}

// Calls `visit` with the index of every element of a tensor of this shape, in row-major order.
inline void ForEachIndex(const Shape& shape, const std::function<void(const Shape&)>& visit) {
  Shape index(shape.size(), 0);
  for (int64_t i = 0; i < Count(shape); ++i) {
    visit(index);
    for (size_t dim = shape.size(); dim-- > 0;) {
      if (++index[dim] < shape[dim]) {
        break;
      }
      index[dim] = 0;
    }
  }
}

inline size_t Offset(const Shape& shape, const Shape& index) {
  int64_t offset = 0;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    offset = offset * shape[dim] + index[dim];
  }
  return static_cast<size_t>(offset);
}

}  // namespace shardmesh

#endif  // SHARDMESH_TESTS_UNIT_PROGRAM_DENSE_H_
