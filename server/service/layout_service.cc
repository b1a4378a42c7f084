// Serves shardmesh.v1.LayoutService.
#include <grpcpp/grpcpp.h>

#include <memory>
#include <utility>

#include "server/resolve/layout_streams.h"
#include "server/resolve/rule_streams.h"
#include "server/resolve/tree_reactor.h"
#include "server/resolve/tree_streams.h"
#include "server/service/question_calls.h"
#include "server/service/question_services.h"
#include "server/service/service_mixins.h"
#include "shardmesh/v1/layout_service.grpc.pb.h"

namespace shardmesh::server {
namespace {

// Requests come as bytes (rpc/stream/message_bytes.h), because the cache of answers compares bytes.
#define SHARDMESH_BYTES(Method) v1::LayoutService::WithRawCallbackMethod_##Method
using LayoutServiceBase =
    WithMethods<v1::LayoutService::Service, SHARDMESH_BYTES(ResolveTree),
                SHARDMESH_BYTES(AnalyzeLayout), SHARDMESH_BYTES(DiffLayouts),
                SHARDMESH_BYTES(SearchMeshes), SHARDMESH_BYTES(DescribeTiling)>::Type;
#undef SHARDMESH_BYTES

class LayoutService final : public LayoutServiceBase {
 public:
  explicit LayoutService(SharedCalls calls) : calls_(std::move(calls)) {}

// Defines a unary method, which QuestionCalls::Remembered answers.
#define SHARDMESH_UNARY(Method)                                                                 \
  grpc::ServerUnaryReactor* Method(grpc::CallbackServerContext* context,                        \
                                   const grpc::ByteBuffer* request, grpc::ByteBuffer* response) \
      override {                                                                                \
    return calls_->Remembered<v1::Method##Request, v1::Method##Response>(context, *request,     \
                                                                         response);             \
  }
  SHARDMESH_UNARY(DescribeTiling)
#undef SHARDMESH_UNARY

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ResolveTree(
      grpc::CallbackServerContext* context) override {
    return new TreeBidiReactor(*context, MakeResolveTreeCall(calls_->state(), calls_->counter()),
                               calls_->beginnings());
  }

  grpc::ServerReadReactor<grpc::ByteBuffer>* AnalyzeLayout(grpc::CallbackServerContext* context,
                                                           grpc::ByteBuffer* response) override {
    return new TreeReadReactor(*context, MakeAnalyzeLayoutCall(calls_->state()), response,
                               calls_->background());
  }

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* DiffLayouts(
      grpc::CallbackServerContext* context) override {
    return new TreeBidiReactor(*context, MakeDiffLayoutsCall(calls_->state()),
                               calls_->beginnings());
  }

  grpc::ServerReadReactor<grpc::ByteBuffer>* SearchMeshes(grpc::CallbackServerContext* context,
                                                          grpc::ByteBuffer* response) override {
    return new TreeReadReactor(*context, MakeSearchMeshesCall(calls_->state()), response,
                               calls_->background());
  }

 private:
  const SharedCalls calls_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeLayoutService(SharedCalls calls) {
  return std::make_unique<LayoutService>(std::move(calls));
}

}  // namespace shardmesh::server
