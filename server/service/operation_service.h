// Serves shardmesh.v1.OperationService. The operations of this service are the puts.
#ifndef SHARDMESH_SERVER_SERVICE_OPERATION_SERVICE_H_
#define SHARDMESH_SERVER_SERVICE_OPERATION_SERVICE_H_

#include "process/clock.h"
#include "server/service/streaming_service.h"
#include "server/state/session.h"
#include "server/steps/transfers.h"

namespace shardmesh::server {

// Thread-safe. All arguments outlive the service; end the streams of the service before `clock` is
// destroyed.
StreamingService MakeOperationService(Clock* clock, Transfers* transfers,
                                      const SessionTable* sessions);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SERVICE_OPERATION_SERVICE_H_
