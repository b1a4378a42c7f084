// Serves shardmesh.v1.ReshardService.
#include <grpcpp/grpcpp.h>

#include <memory>
#include <utility>

#include "server/service/question_calls.h"
#include "server/service/question_services.h"
#include "server/service/service_mixins.h"
#include "shardmesh/v1/reshard_service.grpc.pb.h"

namespace shardmesh::server {
namespace {

#define SHARDMESH_MESSAGES(Method) v1::ReshardService::WithCallbackMethod_##Method
using ReshardServiceBase =
    WithMethods<v1::ReshardService::Service, SHARDMESH_MESSAGES(PlanReshard)>::Type;
#undef SHARDMESH_MESSAGES

class ReshardService final : public ReshardServiceBase {
 public:
  explicit ReshardService(SharedCalls calls) : calls_(std::move(calls)) {}

  grpc::ServerUnaryReactor* PlanReshard(grpc::CallbackServerContext* context,
                                        const v1::PlanReshardRequest* request,
                                        v1::PlanReshardResponse* response) override {
    return calls_->InBackground(context, request, response);
  }

 private:
  const SharedCalls calls_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeReshardService(SharedCalls calls) {
  return std::make_unique<ReshardService>(std::move(calls));
}

}  // namespace shardmesh::server
