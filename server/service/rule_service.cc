// Serves shardmesh.v1.RuleService.
#include <grpcpp/grpcpp.h>

#include <memory>
#include <utility>

#include "server/resolve/resolve_answers.h"
#include "server/resolve/rule_streams.h"
#include "server/resolve/tree_reactor.h"
#include "server/service/question_calls.h"
#include "server/service/question_services.h"
#include "server/service/service_mixins.h"
#include "shardmesh/v1/rule_service.grpc.pb.h"

namespace shardmesh::server {
namespace {

#define SHARDMESH_MESSAGES(Method) v1::RuleService::WithCallbackMethod_##Method
// The methods in SHARDMESH_BYTES take requests as bytes (rpc/stream/message_bytes.h), because the
// cache of answers compares bytes.
#define SHARDMESH_BYTES(Method) v1::RuleService::WithRawCallbackMethod_##Method
using RuleServiceBase =
    WithMethods<v1::RuleService::Service, SHARDMESH_BYTES(LintRules),
                SHARDMESH_MESSAGES(CheckPattern), SHARDMESH_MESSAGES(RewriteRules),
                SHARDMESH_BYTES(ComposeLogicalRules), SHARDMESH_BYTES(ResolveLogicalAxes)>::Type;
#undef SHARDMESH_MESSAGES
#undef SHARDMESH_BYTES

class RuleService final : public RuleServiceBase {
 public:
  explicit RuleService(SharedCalls calls) : calls_(std::move(calls)) {}

// Defines a unary method, which QuestionCalls::Remembered answers.
#define SHARDMESH_UNARY(Method)                                                                 \
  grpc::ServerUnaryReactor* Method(grpc::CallbackServerContext* context,                        \
                                   const grpc::ByteBuffer* request, grpc::ByteBuffer* response) \
      override {                                                                                \
    return calls_->Remembered<v1::Method##Request, v1::Method##Response>(context, *request,     \
                                                                         response);             \
  }
  SHARDMESH_UNARY(ComposeLogicalRules)
  SHARDMESH_UNARY(ResolveLogicalAxes)
#undef SHARDMESH_UNARY

  grpc::ServerReadReactor<grpc::ByteBuffer>* LintRules(grpc::CallbackServerContext* context,
                                                       grpc::ByteBuffer* response) override {
    return new TreeReadReactor(*context, MakeLintRulesCall(calls_->state(), calls_->registry()),
                               response, calls_->background());
  }

  // Few names and a pattern of ordinary size that does not backtrack are answered at once; other
  // requests are answered in the background.
  grpc::ServerUnaryReactor* CheckPattern(grpc::CallbackServerContext* context,
                                         const v1::CheckPatternRequest* request,
                                         v1::CheckPatternResponse* response) override {
    return request->names_size() > kOrdinaryNames || SearchesLong(request->pattern())
               ? calls_->InBackground(context, request, response)
               : calls_->AtOnce(context, request, response);
  }

  grpc::ServerUnaryReactor* RewriteRules(grpc::CallbackServerContext* context,
                                         const v1::RewriteRulesRequest* request,
                                         v1::RewriteRulesResponse* response) override {
    return calls_->InBackground(context, request, response);
  }

 private:
  static constexpr int kOrdinaryNames = 64;

  const SharedCalls calls_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeRuleService(SharedCalls calls) {
  return std::make_unique<RuleService>(std::move(calls));
}

}  // namespace shardmesh::server
