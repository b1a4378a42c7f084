// Answers to clients' calls about definitions: get, list, list versions. The check of new names.
#ifndef SHARDMESH_SERVER_CALLS_CATALOG_CALLS_H_
#define SHARDMESH_SERVER_CALLS_CATALOG_CALLS_H_

#include <functional>
#include <string_view>

#include "absl/status/status.h"
#include "server/state/definitions.h"
#include "shardmesh/v1/catalog_service.pb.h"

namespace shardmesh::server {

// Answer the calls of catalog_service.proto, which lists their errors. `response` must be empty.

// If the requested name has a version (`NAME@VERSION`), compiling the rules of that version may
// take long: see CompilesLong. `is_cancelled` may be null. The function polls `is_cancelled` while
// it compiles. If `is_cancelled` returns true, the call ends with CANCELLED.
absl::Status GetEntry(const DefinitionStore& definition_store, const v1::GetEntryRequest& request,
                      const std::function<bool()>& is_cancelled, v1::GetEntryResponse* response);
absl::Status ListEntries(const DefinitionStore& definition_store,
                         const v1::ListEntriesRequest& request, v1::ListEntriesResponse* response);
absl::Status ListEntryVersions(const DefinitionStore& definition_store,
                               const v1::ListEntryVersionsRequest& request,
                               v1::ListEntryVersionsResponse* response);

// Checks the name of a mesh that a client creates. INVALID_ARGUMENT (BAD_FIELD): it is a name of
// auxiliary meshes (ReplicaMeshName, ResizeMeshName), which the coordinator makes and deletes
// itself.
absl::Status CheckNewMeshName(std::string_view name);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_CALLS_CATALOG_CALLS_H_
