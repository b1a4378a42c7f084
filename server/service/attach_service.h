// Serves shardmesh.internal.v1.AttachService: one stream for each attached worker.
#ifndef SHARDMESH_SERVER_SERVICE_ATTACH_SERVICE_H_
#define SHARDMESH_SERVER_SERVICE_ATTACH_SERVICE_H_

#include "rpc/tls/credentials.h"
#include "server/attach/worker_streams.h"
#include "server/service/streaming_service.h"
#include "server/steps/sequencer.h"

namespace shardmesh::server {

// `streams` outlives the service, and `sequencer` outlives its streams. `credentials` say which
// callers may act as which workers. `end_streams` of the result first stops `streams`; the workers
// attach again elsewhere, or later.
StreamingService MakeAttachService(WorkerStreams* streams, Sequencer* sequencer,
                                   rpc::Credentials credentials);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SERVICE_ATTACH_SERVICE_H_
