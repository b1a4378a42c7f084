// Serves shardmesh.v1.ResolveService.
#include <grpcpp/grpcpp.h>

#include <memory>
#include <utility>

#include "server/resolve/resolve_answers.h"
#include "server/service/question_calls.h"
#include "server/service/question_services.h"
#include "server/service/service_mixins.h"
#include "shardmesh/v1/resolve_service.grpc.pb.h"

namespace shardmesh::server {
namespace {

// The methods in SHARDMESH_BYTES take requests as bytes (rpc/stream/message_bytes.h), because the
// cache of answers compares bytes.
#define SHARDMESH_BYTES(Method) v1::ResolveService::WithRawCallbackMethod_##Method
using ResolveServiceBase =
    WithMethods<v1::ResolveService::Service, SHARDMESH_BYTES(ResolveSpec),
                SHARDMESH_BYTES(ResolveEffectiveSpec), SHARDMESH_BYTES(ResolveAxes),
                SHARDMESH_BYTES(CorrectSpec), SHARDMESH_BYTES(ConstrainArray),
                SHARDMESH_BYTES(CompareSpecs), SHARDMESH_BYTES(ExplainTensor),
                SHARDMESH_BYTES(DescribeProfile), SHARDMESH_BYTES(ListPresets),
                v1::ResolveService::WithCallbackMethod_BatchResolveSpecs,
                v1::ResolveService::WithCallbackMethod_BatchConstrainArrays>::Type;
#undef SHARDMESH_BYTES

class ResolveService final : public ResolveServiceBase {
 public:
  explicit ResolveService(SharedCalls calls) : calls_(std::move(calls)) {}

// Defines a unary method, which QuestionCalls::Remembered answers.
#define SHARDMESH_UNARY(Method)                                                                 \
  grpc::ServerUnaryReactor* Method(grpc::CallbackServerContext* context,                        \
                                   const grpc::ByteBuffer* request, grpc::ByteBuffer* response) \
      override {                                                                                \
    return calls_->Remembered<v1::Method##Request, v1::Method##Response>(context, *request,     \
                                                                         response);             \
  }
  SHARDMESH_UNARY(ResolveSpec)
  SHARDMESH_UNARY(ResolveEffectiveSpec)
  SHARDMESH_UNARY(ResolveAxes)
  SHARDMESH_UNARY(CorrectSpec)
  SHARDMESH_UNARY(ConstrainArray)
  SHARDMESH_UNARY(CompareSpecs)
  SHARDMESH_UNARY(DescribeProfile)
  SHARDMESH_UNARY(ListPresets)
#undef SHARDMESH_UNARY

  // Answers in the background if the rules may take long to compile or to search.
  grpc::ServerUnaryReactor* ExplainTensor(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override {
    return calls_->Remembered<v1::ExplainTensorRequest, v1::ExplainTensorResponse>(
        context, *request, response,
        [](const Definitions& state, const v1::ExplainTensorRequest& question) {
          return SearchesLong(state, question.rule_set());
        });
  }

  grpc::ServerUnaryReactor* BatchResolveSpecs(grpc::CallbackServerContext* context,
                                              const v1::BatchResolveSpecsRequest* request,
                                              v1::BatchResolveSpecsResponse* response) override {
    return calls_->InBackground(context, request, response);
  }
  grpc::ServerUnaryReactor* BatchConstrainArrays(
      grpc::CallbackServerContext* context, const v1::BatchConstrainArraysRequest* request,
      v1::BatchConstrainArraysResponse* response) override {
    return calls_->InBackground(context, request, response);
  }

 private:
  const SharedCalls calls_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeResolveService(SharedCalls calls) {
  return std::make_unique<ResolveService>(std::move(calls));
}

}  // namespace shardmesh::server
