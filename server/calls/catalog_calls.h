// Answers to clients' calls about definitions: get, list, list versions.
#ifndef SHARDMESH_SERVER_SERVICE_CATALOG_CALLS_H_
#define SHARDMESH_SERVER_SERVICE_CATALOG_CALLS_H_

#include <functional>

#include "absl/status/status.h"
#include "server/state/definitions.h"
#include "shardmesh/v1/catalog_service.pb.h"

namespace shardmesh::server {

// The answers to the calls of catalog_service.proto, which has their errors. `response` is empty
// before.

// For a name with a version the rules may take long to compile: see CompilesLong. `is_cancelled`,
// asked meanwhile, may be null; true ends it with CANCELLED.
absl::Status GetEntry(const DefinitionStore& definition_store, const v1::GetEntryRequest& request,
                      const std::function<bool()>& is_cancelled, v1::GetEntryResponse* response);
absl::Status ListEntries(const DefinitionStore& definition_store,
                         const v1::ListEntriesRequest& request, v1::ListEntriesResponse* response);
absl::Status ListEntryVersions(const DefinitionStore& definition_store,
                               const v1::ListEntryVersionsRequest& request,
                               v1::ListEntryVersionsResponse* response);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SERVICE_CATALOG_CALLS_H_
