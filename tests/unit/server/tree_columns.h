// Trees as they travel, written by hand.
#ifndef SHARDMESH_TESTS_UNIT_SERVER_TREE_COLUMNS_H_
#define SHARDMESH_TESTS_UNIT_SERVER_TREE_COLUMNS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "shardmesh/v1/tree.pb.h"

namespace shardmesh::server {

struct ColumnTensor {
  std::string name;
  std::vector<int64_t> shape;
  v1::Dtype dtype = v1::DTYPE_F32;
};

inline v1::TreeTensors Columns(const std::vector<ColumnTensor>& tensors) {
  v1::TreeTensors columns;
  for (const ColumnTensor& tensor : tensors) {
    columns.mutable_names()->append(tensor.name);
    columns.add_name_sizes(static_cast<uint32_t>(tensor.name.size()));
    columns.add_ranks(static_cast<uint32_t>(tensor.shape.size()));
    columns.mutable_sizes()->Add(tensor.shape.begin(), tensor.shape.end());
    columns.add_dtypes(tensor.dtype);
  }
  return columns;
}

}  // namespace shardmesh::server

#endif  // SHARDMESH_TESTS_UNIT_SERVER_TREE_COLUMNS_H_
