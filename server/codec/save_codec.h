// Converts the messages of SaveService.
#ifndef SHARDMESH_SERVER_CODEC_SAVE_CODEC_H_
#define SHARDMESH_SERVER_CODEC_SAVE_CODEC_H_

#include "server/save/saves.h"
#include "shardmesh/v1/save_service.pb.h"

namespace shardmesh::server {

// Decodes all but the request id, from which the caller makes the request key. Saves checks the
// values.
SaveRequest Decode(const v1::BeginSaveRequest& from);
void Encode(const BegunSave& from, v1::BeginSaveResponse* to);
void Encode(const SaveResult& from, v1::WaitSaveResponse* to);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_CODEC_SAVE_CODEC_H_
