// Serves shardmesh.v1.CatalogService over the published definitions.
#ifndef SHARDMESH_SERVER_CATALOG_SERVICE_H_
#define SHARDMESH_SERVER_CATALOG_SERVICE_H_

#include "server/catalogue.h"
#include "server/cluster_state.h"
#include "server/streaming_service.h"

namespace shardmesh::server {

// A mesh on which arrays of `catalogue` lie cannot be changed or deleted. Both outlive the service.
StreamingService MakeCatalogService(StatePublisher* publisher, Catalogue* catalogue);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_CATALOG_SERVICE_H_
