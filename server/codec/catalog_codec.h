// Definitions between wire and domain.
#ifndef SHARDMESH_SERVER_CODEC_CATALOG_CODEC_H_
#define SHARDMESH_SERVER_CODEC_CATALOG_CODEC_H_

#include "absl/status/statusor.h"
#include "server/state/definitions.h"
#include "shardmesh/v1/catalog_service.pb.h"

namespace shardmesh::server {

v1::EntryKind Encode(DefinitionKind kind);
// INVALID_ARGUMENT (BAD_FIELD) names the field `kind`.
absl::StatusOr<DefinitionKind> Decode(v1::EntryKind kind);

// Whether a tree's tensors go with it: they can be as large as a message, and few ask for them.
enum class Tensors { kLeftOut, kWithTree };

void Encode(const Definition& definition, Tensors tensors, v1::Entry* to);
void Encode(const Definitions::Version& version, v1::EntryVersion* to);

// A change as watchers are sent it, without a tree's tensors. A definition that cannot be read is
// sent without its value: the watcher learns that it changed, and reads it again if it needs it.
void Encode(const DefinitionStore::Event& event, const DefinitionStore& definition_store,
            v1::EntryChange* to);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_CODEC_CATALOG_CODEC_H_
