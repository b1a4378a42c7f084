// Serves shardmesh.compat.v1.CompatService.
#include <grpcpp/grpcpp.h>

#include <memory>
#include <utility>

#include "server/resolve/layout_streams.h"
#include "server/resolve/resolve_answers.h"
#include "server/resolve/tree_reactor.h"
#include "server/resolve/tree_streams.h"
#include "server/service/question_calls.h"
#include "server/service/question_services.h"
#include "server/service/service_mixins.h"
#include "shardmesh/compat/v1/compat_service.grpc.pb.h"

namespace shardmesh::server {
namespace {

#define SHARDMESH_MESSAGES(Method) compat::v1::CompatService::WithCallbackMethod_##Method
// The methods in SHARDMESH_BYTES take requests as bytes (rpc/stream/message_bytes.h), because the
// cache of answers compares bytes.
#define SHARDMESH_BYTES(Method) compat::v1::CompatService::WithRawCallbackMethod_##Method
using CompatServiceBase =
    WithMethods<compat::v1::CompatService::Service, SHARDMESH_BYTES(ComputeHash),
                SHARDMESH_BYTES(AnalyzeShardingStrategy), SHARDMESH_BYTES(ListSpecAxes),
                SHARDMESH_BYTES(QueryMesh), SHARDMESH_MESSAGES(ParsePatternRules),
                SHARDMESH_MESSAGES(ListShardings), SHARDMESH_BYTES(ResolveOutputSpec),
                SHARDMESH_BYTES(CheckTensorParallel), SHARDMESH_BYTES(DescribeLinearLayer),
                SHARDMESH_BYTES(PromoteDtypes)>::Type;
#undef SHARDMESH_MESSAGES
#undef SHARDMESH_BYTES

class CompatService final : public CompatServiceBase {
 public:
  explicit CompatService(SharedCalls calls) : calls_(std::move(calls)) {}

// Defines a unary method, which QuestionCalls::Remembered answers.
#define SHARDMESH_UNARY(Method)                                                                 \
  grpc::ServerUnaryReactor* Method(grpc::CallbackServerContext* context,                        \
                                   const grpc::ByteBuffer* request, grpc::ByteBuffer* response) \
      override {                                                                                \
    return calls_->Remembered<compat::v1::Method##Request, compat::v1::Method##Response>(       \
        context, *request, response);                                                           \
  }
  SHARDMESH_UNARY(ComputeHash)
  SHARDMESH_UNARY(ListSpecAxes)
  SHARDMESH_UNARY(QueryMesh)
  SHARDMESH_UNARY(ResolveOutputSpec)
  SHARDMESH_UNARY(CheckTensorParallel)
  SHARDMESH_UNARY(DescribeLinearLayer)
  SHARDMESH_UNARY(PromoteDtypes)
#undef SHARDMESH_UNARY

  grpc::ServerReadReactor<grpc::ByteBuffer>* AnalyzeShardingStrategy(
      grpc::CallbackServerContext* context, grpc::ByteBuffer* response) override {
    return new TreeReadReactor(*context, MakeShardingStrategyCall(calls_->state()), response,
                               calls_->background());
  }

  // Patterns of ordinary size that do not backtrack are compiled and searched at once; others are
  // compiled and searched in the background.
  grpc::ServerUnaryReactor* ParsePatternRules(
      grpc::CallbackServerContext* context, const compat::v1::ParsePatternRulesRequest* request,
      compat::v1::ParsePatternRulesResponse* response) override {
    return SearchesLong(request->text()) ? calls_->InBackground(context, request, response)
                                         : calls_->AtOnce(context, request, response);
  }

  grpc::ServerWriteReactor<compat::v1::ListShardingsResponse>* ListShardings(
      grpc::CallbackServerContext*, const compat::v1::ListShardingsRequest* request) override {
    return MakeListShardingsReactor(calls_->state(), calls_->registry(), request);
  }

 private:
  const SharedCalls calls_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeCompatService(SharedCalls calls) {
  return std::make_unique<CompatService>(std::move(calls));
}

}  // namespace shardmesh::server
