// Converts definitions between wire and domain types.
#ifndef SHARDMESH_SERVER_CODEC_CATALOG_CODEC_H_
#define SHARDMESH_SERVER_CODEC_CATALOG_CODEC_H_

#include "absl/status/statusor.h"
#include "server/state/definitions.h"
#include "shardmesh/v1/catalog_service.pb.h"

namespace shardmesh::server {

v1::EntryKind Encode(DefinitionKind kind);
// INVALID_ARGUMENT (BAD_FIELD) names the field `kind`.
absl::StatusOr<DefinitionKind> Decode(v1::EntryKind kind);

// Says whether to encode a tree's tensors. The tensors can fill a whole message, and few callers
// need them.
enum class Tensors { kLeftOut, kWithTree };

void Encode(const Definition& definition, Tensors tensors, v1::Entry* to);
void Encode(const Definitions::Version& version, v1::EntryVersion* to);

// Encodes a change for watchers, without a tree's tensors. A definition that cannot be read is
// encoded without its value. The watcher then knows that the definition changed, and can get the
// definition again.
void Encode(const DefinitionStore::Event& event, const DefinitionStore& definition_store,
            v1::EntryChange* to);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_CODEC_CATALOG_CODEC_H_
