// Tensors with bytes that say which they are, and their ways to workers and back.
#ifndef SHARDMESH_TESTS_MODEL_TENSORS_H_
#define SHARDMESH_TESTS_MODEL_TENSORS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sharding/shape.h"
#include "shardmesh/v1/array_service.pb.h"
#include "tensor/dtype.h"

namespace shardmesh::model {

// A whole tensor, row-major.
struct Content {
  Dtype dtype = Dtype::kF32;
  Shape shape;
  std::string bytes;
};

// Small whole numbers, by which products are exact; other types get random bytes.
Content MakeContent(Dtype dtype, const Shape& shape, uint64_t seed);
std::vector<float> FloatsOf(const Content& content);
Content FromFloats(const Shape& shape, const std::vector<float>& values);

// Whether they are the bytes of this tensor; of F32 by value, as zeros may have either sign.
bool HasBytes(const Content& content, const std::string& bytes);

// Returns whether all numbers are at most 1,000. Products of two such matrices of some eight rows
// and columns are exact in F32, in any order of the sums; products of larger ones need not be.
bool IsSmall(const Content& content);

// Sends all tiles of the tensors, which are in the order of the assignments.
absl::Status SendTiles(const v1::BeginPutResponse& begun, const std::vector<Content>& contents,
                       absl::Duration timeout);
// Brings the whole array back.
absl::StatusOr<std::string> FetchTiles(const v1::BeginGetResponse& begun, absl::Duration timeout);

}  // namespace shardmesh::model

#endif  // SHARDMESH_TESTS_MODEL_TENSORS_H_
