// Flattening of trees.
#include "tests/testing/golden_tree.h"

#include <algorithm>
#include <utility>

namespace shardmesh::test {
namespace {

void Flatten(const Json& tree, const std::string& path, std::vector<TreeLeaf>& leaves) {
  const auto child_path = [&path](const std::string& key) {
    return path.empty() ? key : path + "/" + key;
  };
  if (tree.contains("none")) {
    return;
  }
  if (tree.contains("shape")) {
    leaves.push_back({path, DecodeShape(tree.at("shape"))});
  } else if (tree.contains("value")) {
    leaves.push_back({path, std::nullopt});
  } else if (tree.contains("__list__") || tree.contains("__tuple__")) {
    const Json& children = tree.contains("__list__") ? tree.at("__list__") : tree.at("__tuple__");
    for (size_t i = 0; i < children.size(); ++i) {
      Flatten(children[i], child_path(std::to_string(i)), leaves);
    }
  } else {
    for (const auto& [key, child] : tree.items()) {
      Flatten(child, child_path(key), leaves);
    }
  }
}

}  // namespace

std::vector<TreeLeaf> DecodeTree(const Json& input) {
  std::vector<TreeLeaf> leaves;
  if (input.contains("tree")) {
    Flatten(input.at("tree"), "", leaves);
    return leaves;
  }
  for (const Json& param : input.at("params")) {
    leaves.push_back({param.at(0).get<std::string>(), DecodeShape(param.at(1))});
  }
  // Flat parameters stand for a nested tree, whose keys are sorted level by level.
  std::sort(leaves.begin(), leaves.end(), [](const TreeLeaf& a, const TreeLeaf& b) {
    return std::lexicographical_compare(a.name.begin(), a.name.end(), b.name.begin(), b.name.end(),
                                        [](unsigned char x, unsigned char y) {
                                          return std::pair(x != '/', x) < std::pair(y != '/', y);
                                        });
  });
  return leaves;
}

}  // namespace shardmesh::test
