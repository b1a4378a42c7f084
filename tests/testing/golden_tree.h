// Reads trees of tensors from golden files.
#ifndef SHARDMESH_TESTS_TESTING_GOLDEN_TREE_H_
#define SHARDMESH_TESTS_TESTING_GOLDEN_TREE_H_

#include <optional>
#include <string>
#include <vector>

#include "sharding/shape.h"
#include "tests/testing/golden.h"

namespace shardmesh::test {

// A leaf of a tree: an array, or a value without shape.
struct TreeLeaf {
  std::string name;  // the path, joined by `/`
  std::optional<Shape> shape;
};

// The leaves of a case's `tree`, or of its flat `params`, in the order in which JAX visits them. At
// each level, keys are sorted by code point, as UTF-8 sorts. Positions in lists and tuples serve as
// names. None is not a leaf.
std::vector<TreeLeaf> DecodeTree(const Json& input);

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_TESTING_GOLDEN_TREE_H_
