// AdminService: maintenance of a running coordinator.
#ifndef SHARDMESH_SERVER_SERVICE_ADMIN_SERVICE_H_
#define SHARDMESH_SERVER_SERVICE_ADMIN_SERVICE_H_

#include <string>

#include "server/attach/coordinator_parts.h"
#include "server/service/streaming_service.h"
#include "server/store/store.h"

namespace shardmesh::server {

// `folder`: where a snapshot is written before it is sent; the coordinator's data folder. The parts
// and `store` outlive the service.
StreamingService MakeAdminService(const CoordinatorParts& parts, Store* store, std::string folder);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SERVICE_ADMIN_SERVICE_H_
