// Serves shardmesh.v1.OperationService; the operations are the puts.
#ifndef SHARDMESH_SERVER_OPERATION_SERVICE_H_
#define SHARDMESH_SERVER_OPERATION_SERVICE_H_

#include "rpc/clock.h"
#include "server/session.h"
#include "server/streaming_service.h"
#include "server/transfers.h"

namespace shardmesh::server {

// Thread-safe. All outlive the service; end its streams before the clock goes.
StreamingService MakeOperationService(rpc::Clock* clock, Transfers* transfers,
                                      const SessionTable* sessions);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_OPERATION_SERVICE_H_
