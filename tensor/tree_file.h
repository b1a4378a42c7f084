// Trees of tensors as JSON: names, shapes, element types, and requested layouts.
#ifndef SHARDMESH_TENSOR_TREE_FILE_H_
#define SHARDMESH_TENSOR_TREE_FILE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "sharding/axis_value.h"
#include "sharding/shape.h"
#include "sharding/spec.h"
#include "tensor/dtype.h"

namespace shardmesh {

// Upper bounds on the number of tensors of a tree, on the bytes of a tensor's name, and on the
// depth of nested objects.
inline constexpr size_t kMaxTreeTensors = 1'000'000;
inline constexpr size_t kMaxTreeNameBytes = 1024;
inline constexpr size_t kMaxTreeDepth = 64;
// Upper bound on the bytes of a tree's text.
inline constexpr int64_t kMaxTreeFileBytes = int64_t{512} << 20;

// A tensor of a tree. At most one of `axes` and `spec` is set.
struct TreeFileTensor {
  std::string name;  // unique in the tree, 1 to kMaxTreeNameBytes bytes of UTF-8
  Shape shape = {};  // CheckShape accepts it
  std::optional<Dtype> dtype = std::nullopt;
  std::optional<std::vector<AxisValue>> axes = std::nullopt;  // semantic axes
  std::optional<PartitionSpec> spec = std::nullopt;

  friend bool operator==(const TreeFileTensor&, const TreeFileTensor&) = default;
};

// Parses a tree from one JSON object. An object with the key `shape` (a list) is a tensor. Any
// other object contains further objects. The name of a tensor is the keys on its path, joined by
// dots. The keys of a tensor:
// clang-format off
//   shape   sizes of the dimensions
//   dtype   as safetensors or NumPy names it, "BF16" or "bfloat16"; may be null or left out
//   axes    semantic axes, one entry per dimension: null, a name, or a list of names
//   spec    mesh axes in the form of `axes`, major to minor; not together with `axes`
// clang-format on
// Example:
// clang-format off
//   {"embed": {"shape": [32000, 512], "dtype": "BF16"},
//    "layers": {"0": {"wq": {"shape": [512, 512], "spec": ["fsdp", ["tp", "sp"]]}}}}
// clang-format on
// has the tensors `embed` and `layers.0.wq`.
//
// Returns the tensors in the order of the text. `source` names the text in errors, which also name
// the tensor, or the byte where parsing stopped.
// Errors are INVALID_ARGUMENT:
//   - BAD_FILE: malformed JSON or UTF-8; an unknown or repeated key; a tensor without shape, with
//     both axes and a spec, or listed twice; objects nested deeper than kMaxTreeDepth;
//   - UNKNOWN_DTYPE: a name that is no element type;
//   - INVALID_SHAPE: a shape that CheckShape refuses;
//   - INVALID_SPEC: a spec that PartitionSpec::Create refuses;
//   - LIMIT_EXCEEDED: over kMaxTreeFileBytes, kMaxTreeTensors or kMaxTreeNameBytes, or more than
//     kMaxRank entries of `axes` or `spec`.
absl::StatusOr<std::vector<TreeFileTensor>> ParseTree(std::string_view source,
                                                      std::string_view text);

// Parses a tree from lines that each contain one tensor: an object with the keys of ParseTree and
// `name`. Skips blank lines. Errors as ParseTree, with the line's number. Example:
// clang-format off
//   {"name": "layers.0.wq", "shape": [512, 512], "dtype": "BF16", "axes": [null, "__HEAD__"]}
// clang-format on
absl::StatusOr<std::vector<TreeFileTensor>> ParseTreeLines(std::string_view source,
                                                           std::string_view text);

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_TREE_FILE_H_
