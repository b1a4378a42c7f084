// Serves shardmesh.v1.SaveService: checkpoints that the workers write.
#ifndef SHARDMESH_SERVER_SERVICE_SAVE_SERVICE_H_
#define SHARDMESH_SERVER_SERVICE_SAVE_SERVICE_H_

#include "process/clock.h"
#include "server/diagnosis/step_watch.h"
#include "server/save/saves.h"
#include "server/service/streaming_service.h"
#include "server/state/session.h"

namespace shardmesh::server {

// Thread-safe. All parts outlive the service. `end_streams` of the result ends the saves and
// answers the calls that wait for them.
StreamingService MakeSaveService(Clock* clock, Saves* saves, const SessionTable* sessions,
                                 const StepWatch* watch);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SERVICE_SAVE_SERVICE_H_
