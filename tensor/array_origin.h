// The origin of an array's elements: by it, a later put finds an array that has them already.
#ifndef SHARDMESH_TENSOR_ARRAY_ORIGIN_H_
#define SHARDMESH_TENSOR_ARRAY_ORIGIN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "sharding/shape.h"
#include "tensor/dtype.h"
#include "tensor/source_file.h"

namespace shardmesh {

// A place in a file, and how the elements are made from the bytes there.
struct ArrayOrigin {
  // The largest number of bytes of `conversion`.
  static constexpr size_t kMaxConversionBytes = 1'024;

  // The file, as its reader found it. Null: the origin is not known.
  std::shared_ptr<const SourceFile> file = nullptr;
  int64_t offset_bytes = 0;
  // Equal texts stand for equal conversions. Empty: the elements are the bytes of the file.
  std::string conversion = {};
};

// Returns a key that is equal for two arrays only if they have the same elements: 32 bytes, a
// SHA-256 of the origin with all of the file's identity, the type and the shape. Empty if the
// origin is not known, or if the file may have changed unseen (SourceFile::change_time).
std::string OriginKey(const ArrayOrigin& origin, Dtype dtype, const Shape& shape);

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_ARRAY_ORIGIN_H_
