// Serves shardmesh.internal.v1.AttachService: one stream for each attached worker.
#ifndef SHARDMESH_SERVER_SERVICE_ATTACH_SERVICE_H_
#define SHARDMESH_SERVER_SERVICE_ATTACH_SERVICE_H_

#include "rpc/tls/credentials.h"
#include "server/attach/worker_streams.h"
#include "server/service/streaming_service.h"
#include "server/steps/sequencer.h"

namespace shardmesh::server {

// `streams` outlives the service. `sequencer` outlives the streams of the service. `credentials`
// say which callers may act as which workers. `end_streams` of the result calls WorkerStreams::Stop
// before it ends the streams. Workers attach again later, or to another coordinator.
StreamingService MakeAttachService(WorkerStreams* streams, Sequencer* sequencer,
                                   rpc::Credentials credentials);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SERVICE_ATTACH_SERVICE_H_
