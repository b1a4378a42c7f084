// The methods of TileService: the streams of tiles, and Identify.
#include "worker/service/tile_service.h"

#include <grpcpp/grpcpp.h>

#include <memory>
#include <utility>

#include "shardmesh/v1/tile_service.grpc.pb.h"
#include "worker/service/get_tiles.h"
#include "worker/service/put_tiles.h"

namespace shardmesh::worker {
namespace {

// All methods except Identify pass messages as raw bytes.
using TileServiceBase =
    v1::TileService::WithRawCallbackMethod_PutTiles<v1::TileService::WithRawCallbackMethod_GetTiles<
        v1::TileService::WithCallbackMethod_Identify<v1::TileService::Service>>>;

class TileService final : public TileServiceBase {
 public:
  explicit TileService(TileServiceOptions options) : options_(std::move(options)) {}

  grpc::ServerReadReactor<grpc::ByteBuffer>* PutTiles(grpc::CallbackServerContext*,
                                                      grpc::ByteBuffer* response) override {
    return MakePutTiles(options_, response);
  }
  grpc::ServerWriteReactor<grpc::ByteBuffer>* GetTiles(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override {
    return MakeGetTiles(options_, context, *request);
  }
  grpc::ServerUnaryReactor* Identify(grpc::CallbackServerContext* context,
                                     const v1::IdentifyRequest*,
                                     v1::IdentifyResponse* response) override {
    response->set_identity(options_.self.identity);
    response->set_incarnation(options_.self.incarnation);
    response->set_nonce(options_.nonce);
    response->set_cluster_id(options_.store->cluster_id());
    if (options_.inbox != nullptr) response->set_handover_socket(options_.inbox->socket());
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  const TileServiceOptions options_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeTileService(const TileServiceOptions& options) {
  return std::make_unique<TileService>(options);
}

}  // namespace shardmesh::worker
