// A small tensor that a message contains.
#ifndef SHARDMESH_TENSOR_LITERAL_H_
#define SHARDMESH_TENSOR_LITERAL_H_

#include <cstdint>
#include <string>

#include "sharding/shape.h"
#include "tensor/dtype.h"

namespace shardmesh {

// Upper bound on the bytes of a literal. Messages with a larger literal are refused
// (LIMIT_EXCEEDED).
inline constexpr int64_t kMaxLiteralBytes = int64_t{1} << 20;

struct Literal {
  Dtype dtype = Dtype::kF32;
  Shape shape;
  // The elements, row-major and little-endian: exactly as many bytes as dtype and shape need.
  std::string bytes;

  friend bool operator==(const Literal&, const Literal&) = default;
};

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_LITERAL_H_
