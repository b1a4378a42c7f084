// Serves shardmesh.v1.CatalogService over the published definitions.
#ifndef SHARDMESH_SERVER_SERVICE_CATALOG_SERVICE_H_
#define SHARDMESH_SERVER_SERVICE_CATALOG_SERVICE_H_

#include <cstdint>

#include "server/service/streaming_service.h"
#include "server/state/arrays.h"
#include "server/state/definitions.h"

namespace shardmesh::server {

// Watches of the catalog at a time.
struct WatchLimits {
  int64_t max_watches = 1'000;
  int64_t max_watches_per_caller = 100;  // rpc::Caller::name
};

// A mesh on which arrays of `registry` lie cannot be changed or deleted. Both outlive the service.
// Watches beyond the limits are refused with RESOURCE_EXHAUSTED (OVERLOADED).
StreamingService MakeCatalogService(DefinitionStore* definition_store, ArrayRegistry* registry,
                                    const WatchLimits& limits = {});

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SERVICE_CATALOG_SERVICE_H_
