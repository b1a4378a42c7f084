// The GetTiles stream, with which a client gets tiles.
#ifndef SHARDMESH_WORKER_SERVICE_GET_TILES_H_
#define SHARDMESH_WORKER_SERVICE_GET_TILES_H_

#include <grpcpp/grpcpp.h>

#include "worker/service/tile_service.h"

namespace shardmesh::worker {

// Returns the reactor of one GetTiles call. The reactor deletes itself. `options` and `context`
// outlive the call.
grpc::ServerWriteReactor<grpc::ByteBuffer>* MakeGetTiles(const TileServiceOptions& options,
                                                         grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer& request);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SERVICE_GET_TILES_H_
