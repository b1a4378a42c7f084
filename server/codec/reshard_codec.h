// Converts reshards between wire and domain types.
#ifndef SHARDMESH_SERVER_CODEC_RESHARD_CODEC_H_
#define SHARDMESH_SERVER_CODEC_RESHARD_CODEC_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/reshard/reshard_call.h"
#include "server/reshard/resize_plan.h"
#include "server/reshard/resize_runner.h"
#include "sharding/mesh_definition.h"
#include "shardmesh/v1/array_service.pb.h"

namespace shardmesh::server {

// Returns the call without its caller and with the request's own time limit, from `now`. The call
// keeps `from` alive. INVALID_ARGUMENT (BAD_FIELD) names the malformed field.
absl::StatusOr<ReshardCall> Decode(const std::shared_ptr<const v1::ReshardRequest>& from,
                                   absl::Time now);

// Returns the call without its caller. INVALID_ARGUMENT: a field is malformed; names the field.
absl::StatusOr<ResizeCall> Decode(const v1::ResizeMeshRequest& from);
// Returns a mesh as the store of definitions takes it: a serialised EntryValue.
std::string EncodeEntry(const MeshDefinition& mesh);

void Encode(const BegunResize& from, v1::ResizeMeshResponse* to);
void Encode(const ReshardOutline& from, v1::ReshardResponse* to);
void Encode(const ReshardedArray& from, v1::ReshardedArray* to);

// Cuts `message` to the size of one message. Moves the end of its list of memory, its last arrays
// and its revision to `rest`, which must be empty. Returns false if nothing had to move.
bool MoveExcess(v1::ReshardResponse* message, v1::ReshardResponse* rest);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_CODEC_RESHARD_CODEC_H_
