// The rind of ResolveService: hands requests to their answers, and streams of trees to their
// reactors.
#include "server/resolve_service.h"

#include <grpcpp/grpcpp.h>

#include <memory>

#include "rpc/metrics.h"
#include "rpc/status.h"
#include "server/background.h"
#include "server/plan_streams.h"
#include "server/resolve_answers.h"
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
    const absl::Status status =                                               \
        Answer({options_.publisher->state(), counter_}, *request, response);  \
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();            \
    reactor->Finish(status.ok() ? grpc::Status::OK : rpc::ToGrpc(status));    \
    return reactor;                                                           \
  }
  SHARDMESH_UNARY(ResolveSpec)
  SHARDMESH_UNARY(ResolveAxes)
  SHARDMESH_UNARY(CorrectSpec)
  SHARDMESH_UNARY(ConstrainArray)
  SHARDMESH_UNARY(CompareSpecs)
  SHARDMESH_UNARY(ExplainTensor)
  SHARDMESH_UNARY(DescribeTiling)
  SHARDMESH_UNARY(ListPresets)
#undef SHARDMESH_UNARY

  grpc::ServerBidiReactor<v1::ResolveTreeRequest, v1::ResolveTreeResponse>* ResolveTree(
      grpc::CallbackServerContext*) override {
    return MakeResolveTreeReactor(options_.publisher->shared_state(), counter_);
  }

  grpc::ServerUnaryReactor* PlanReshard(grpc::CallbackServerContext*,
                                        const v1::PlanReshardRequest* request,
                                        v1::PlanReshardResponse* response) override {
    return MakePlanReshardReactor(options_.publisher->shared_state(), counter_, request, response,
                                  &background_);
  }

  grpc::ServerReadReactor<v1::AnalyzeLayoutRequest>* AnalyzeLayout(
      grpc::CallbackServerContext*, v1::AnalyzeLayoutResponse* response) override {
    return MakeAnalyzeLayoutReactor(options_.publisher->shared_state(), response, &background_);
  }

  grpc::ServerReadReactor<v1::SearchMeshesRequest>* SearchMeshes(
      grpc::CallbackServerContext*, v1::SearchMeshesResponse* response) override {
    return MakeSearchMeshesReactor(options_.publisher->shared_state(), response, &background_);
  }

  grpc::ServerWriteReactor<v1::ListShardingsResponse>* ListShardings(
      grpc::CallbackServerContext*, const v1::ListShardingsRequest* request) override {
    return MakeListShardingsReactor(options_.publisher->shared_state(), options_.catalogue,
                                    request);
  }

 private:
  const ResolveServiceOptions options_;
  const CorrectionCounter counter_;
  Background background_{2};  // last: its tasks use the above
};

}  // namespace

std::unique_ptr<grpc::Service> MakeResolveService(const ResolveServiceOptions& options) {
  return std::make_unique<ResolveService>(options);
}

}  // namespace shardmesh::server
