// Serves shardmesh.v1.MeshService.
#include <grpcpp/grpcpp.h>

#include <memory>
#include <utility>

#include "server/service/question_calls.h"
#include "server/service/question_services.h"
#include "server/service/service_mixins.h"
#include "shardmesh/v1/mesh_service.grpc.pb.h"

namespace shardmesh::server {
namespace {

// Requests come as bytes (rpc/stream/message_bytes.h), because the cache of answers compares bytes.
#define SHARDMESH_BYTES(Method) v1::MeshService::WithRawCallbackMethod_##Method
using MeshServiceBase = WithMethods<v1::MeshService::Service, SHARDMESH_BYTES(DescribeMesh)>::Type;
#undef SHARDMESH_BYTES

class MeshService final : public MeshServiceBase {
 public:
  explicit MeshService(SharedCalls calls) : calls_(std::move(calls)) {}

// Defines a unary method, which QuestionCalls::Remembered answers.
#define SHARDMESH_UNARY(Method)                                                                 \
  grpc::ServerUnaryReactor* Method(grpc::CallbackServerContext* context,                        \
                                   const grpc::ByteBuffer* request, grpc::ByteBuffer* response) \
      override {                                                                                \
    return calls_->Remembered<v1::Method##Request, v1::Method##Response>(context, *request,     \
                                                                         response);             \
  }
  SHARDMESH_UNARY(DescribeMesh)
#undef SHARDMESH_UNARY

 private:
  const SharedCalls calls_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeMeshService(SharedCalls calls) {
  return std::make_unique<MeshService>(std::move(calls));
}

}  // namespace shardmesh::server
