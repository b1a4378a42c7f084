// Serves shardmesh.v1.CatalogService over the published definitions.
#ifndef SHARDMESH_SERVER_SERVICE_CATALOG_SERVICE_H_
#define SHARDMESH_SERVER_SERVICE_CATALOG_SERVICE_H_

#include "server/service/streaming_service.h"
#include "server/state/array_registry.h"
#include "server/state/definitions.h"
#include "server/watch/mesh_gate.h"
#include "server/watch/watch_pump.h"

namespace shardmesh::server {

// A mesh on which arrays of `registry` lie cannot be changed or deleted. Changes of meshes are
// answered when `gate` lets them through; at once if it is null, as where there is no membership.
// All pointers outlive the service. Watches beyond the limits are refused with RESOURCE_EXHAUSTED
// (OVERLOADED).
StreamingService MakeCatalogService(DefinitionStore* definition_store, ArrayRegistry* registry,
                                    MeshGate* gate, const WatchLimits& limits = {});

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SERVICE_CATALOG_SERVICE_H_
