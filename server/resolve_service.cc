// The rind of ResolveService: hands requests to their answers, and streams of trees to their
// reactors.
#include "server/resolve_service.h"

#include <grpcpp/grpcpp.h>

#include <memory>

#include "rpc/metrics.h"
#include "rpc/status.h"
#include "server/background.h"
#include "server/background_reactor.h"
#include "server/plan_streams.h"
#include "server/resolve_answers.h"
#include "server/rule_streams.h"
#include "server/tree_reactor.h"
#include "server/tree_streams.h"
#include "shardmesh/v1/resolve_service.grpc.pb.h"

namespace shardmesh::server {
namespace {

class ResolveService final : public v1::ResolveService::CallbackService {
 public:
  explicit ResolveService(const ResolveServiceOptions& options)
      : options_(options), counter_(options.metrics) {}

// A call of one question and one answer.
#define SHARDMESH_UNARY(Method)                                               \
  grpc::ServerUnaryReactor* Method(grpc::CallbackServerContext* context,      \
                                   const v1::Method##Request* request,        \
                                   v1::Method##Response* response) override { \
    return AtOnce(context, request, response);                                \
  }
  SHARDMESH_UNARY(ResolveSpec)
  SHARDMESH_UNARY(ResolveAxes)
  SHARDMESH_UNARY(CorrectSpec)
  SHARDMESH_UNARY(ConstrainArray)
  SHARDMESH_UNARY(CompareSpecs)
  SHARDMESH_UNARY(ExplainTensor)
  SHARDMESH_UNARY(DescribeTiling)
  SHARDMESH_UNARY(ListPresets)
  SHARDMESH_UNARY(ComposeLogicalRules)
  SHARDMESH_UNARY(ResolveLogicalAxes)
  SHARDMESH_UNARY(DescribeProfile)
  SHARDMESH_UNARY(ComputeHash)
  SHARDMESH_UNARY(DescribeMesh)
  SHARDMESH_UNARY(QueryMesh)
  SHARDMESH_UNARY(ListSpecAxes)
  SHARDMESH_UNARY(ResolveOutputSpec)
  SHARDMESH_UNARY(CheckTensorParallel)
  SHARDMESH_UNARY(DescribeLinearLayer)
  SHARDMESH_UNARY(PromoteDtypes)
#undef SHARDMESH_UNARY

  // Ordinary questions about patterns are answered at once.
  grpc::ServerUnaryReactor* ParsePatternRules(grpc::CallbackServerContext* context,
                                              const v1::ParsePatternRulesRequest* request,
                                              v1::ParsePatternRulesResponse* response) override {
    return request->text().size() <= kOrdinaryTextBytes ? AtOnce(context, request, response)
                                                        : InBackground(request, response);
  }
  grpc::ServerUnaryReactor* CheckPattern(grpc::CallbackServerContext* context,
                                         const v1::CheckPatternRequest* request,
                                         v1::CheckPatternResponse* response) override {
    return request->names_size() <= kOrdinaryNames ? AtOnce(context, request, response)
                                                   : InBackground(request, response);
  }
  grpc::ServerUnaryReactor* RewriteRules(grpc::CallbackServerContext*,
                                         const v1::RewriteRulesRequest* request,
                                         v1::RewriteRulesResponse* response) override {
    return InBackground(request, response);
  }

  grpc::ServerBidiReactor<v1::ResolveTreeRequest, v1::ResolveTreeResponse>* ResolveTree(
      grpc::CallbackServerContext*) override {
    return new TreeBidiReactor(MakeResolveTreeCall(options_.publisher->shared_state(), counter_));
  }
  grpc::ServerReadReactor<v1::LintRulesRequest>* LintRules(
      grpc::CallbackServerContext*, v1::LintRulesResponse* response) override {
    return new TreeReadReactor(
        MakeLintRulesCall(options_.publisher->shared_state(), options_.catalogue), response,
        &background_);
  }
  grpc::ServerBidiReactor<v1::DiffLayoutsRequest, v1::DiffLayoutsResponse>* DiffLayouts(
      grpc::CallbackServerContext*) override {
    return new TreeBidiReactor(MakeDiffLayoutsCall(options_.publisher->shared_state()));
  }

  grpc::ServerUnaryReactor* PlanReshard(grpc::CallbackServerContext*,
                                        const v1::PlanReshardRequest* request,
                                        v1::PlanReshardResponse* response) override {
    return InBackground(request, response);
  }

  grpc::ServerReadReactor<v1::AnalyzeLayoutRequest>* AnalyzeLayout(
      grpc::CallbackServerContext*, v1::AnalyzeLayoutResponse* response) override {
    return new TreeReadReactor(MakeAnalyzeLayoutCall(options_.publisher->shared_state()), response,
                               &background_);
  }

  grpc::ServerReadReactor<v1::SearchMeshesRequest>* SearchMeshes(
      grpc::CallbackServerContext*, v1::SearchMeshesResponse* response) override {
    return new TreeReadReactor(MakeSearchMeshesCall(options_.publisher->shared_state()), response,
                               &background_);
  }

  grpc::ServerWriteReactor<v1::ListShardingsResponse>* ListShardings(
      grpc::CallbackServerContext*, const v1::ListShardingsRequest* request) override {
    return MakeListShardingsReactor(options_.publisher->shared_state(), options_.catalogue,
                                    request);
  }

 private:
  static constexpr size_t kOrdinaryTextBytes = size_t{4} << 10;
  static constexpr int kOrdinaryNames = 64;

  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* AtOnce(grpc::CallbackServerContext* context, const Request* request,
                                   Response* response) {
    const absl::Status status = Answer({options_.publisher->state(), counter_}, *request, response);
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(status.ok() ? grpc::Status::OK : rpc::ToGrpc(status));
    return reactor;
  }

  // A call whose answer takes too long for a reaction.
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* InBackground(const Request* request, Response* response) {
    return new BackgroundReactor(options_.publisher->shared_state(), counter_, request, response,
                                 &background_);
  }

  const ResolveServiceOptions options_;
  const CorrectionCounter counter_;
  Background background_{2};  // last: its tasks use the above
};

}  // namespace

std::unique_ptr<grpc::Service> MakeResolveService(const ResolveServiceOptions& options) {
  return std::make_unique<ResolveService>(options);
}

}  // namespace shardmesh::server
