// Trees of tensors as the golden files have them.
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

// The leaves of a case's `tree`, or its flat `params`, in the order in which JAX visits them: keys
// sorted by code point (as UTF-8 sorts) at each level, positions of lists and tuples as names; None
// is no leaf.
std::vector<TreeLeaf> DecodeTree(const Json& input);

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_TESTING_GOLDEN_TREE_H_
