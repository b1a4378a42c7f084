// Tensors with bytes that say which they are, and their ways to workers and back.
#ifndef SHARDMESH_TESTS_MODEL_TENSORS_H_
#define SHARDMESH_TESTS_MODEL_TENSORS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/types/array.h"
#include "sharding/shape.h"
#include "sharding/tile.h"
#include "shardmesh/v1/array_service.pb.h"
#include "tensor/dtype.h"
#include "tensor/source_file.h"

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
                       absl::Duration timeout, client::Handover handover = client::Handover::kOff);
// Brings the whole array back; from its second copy where the answer has one, and must.
absl::StatusOr<std::string> FetchTiles(const v1::BeginGetResponse& begun, absl::Duration timeout);
// Brings a part of the array back: the slice of the request that `begun` answers.
absl::StatusOr<std::string> FetchPart(const v1::BeginGetResponse& begun, const Tile& part,
                                      absl::Duration timeout);

// Returns the part of a tensor.
Content PartOf(const Content& content, const Tile& part);

// Tensors in one file.
struct SourceOnDisk {
  SourceFile file;
  std::vector<int64_t> offsets_bytes;  // of each tensor
};
// Writes the tensors one after the other into a new file.
absl::StatusOr<SourceOnDisk> WriteSource(const std::string& path,
                                         const std::vector<Content>& contents);
// Returns what WriteSource returned for this file, and its change time once that is certain.
absl::StatusOr<SourceOnDisk> FindSource(const std::string& path,
                                        const std::vector<Content>& contents);
// Makes a put read its tensors from the file.
void SetSource(const SourceOnDisk& source, v1::BeginPutHeader* header, v1::PutTensors* tensors);

// The tensors of a checkpoint by name; nullopt: any bytes.
using SavedTensors = std::map<std::string, std::optional<Content>>;
// Reads the complete checkpoint in a folder, or in that of the step. NOT_FOUND: there is none.
// INTERNAL: it cannot be read.
absl::StatusOr<SavedTensors> ReadCheckpoint(const std::string& folder,
                                            std::optional<int64_t> step = std::nullopt);
// Returns whether a save into the folder died while it replaced the checkpoint of the step file by
// file: the old files are aside, and the next save puts them back.
bool IsSetAside(const std::string& folder, int64_t step);
// Returns how a checkpoint differs from what it must have; empty if it does not.
std::string Difference(const SavedTensors& have, const SavedTensors& want);

}  // namespace shardmesh::model

#endif  // SHARDMESH_TESTS_MODEL_TENSORS_H_
