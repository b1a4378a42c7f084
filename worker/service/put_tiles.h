// The PutTiles stream, with which a client puts tiles.
#ifndef SHARDMESH_WORKER_SERVICE_PUT_TILES_H_
#define SHARDMESH_WORKER_SERVICE_PUT_TILES_H_

#include <grpcpp/grpcpp.h>

#include "worker/service/tile_service.h"

namespace shardmesh::worker {

// Returns the reactor of one PutTiles call. The reactor deletes itself. `options` and `response`
// outlive the call.
grpc::ServerReadReactor<grpc::ByteBuffer>* MakePutTiles(const TileServiceOptions& options,
                                                        grpc::ByteBuffer* response);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SERVICE_PUT_TILES_H_
