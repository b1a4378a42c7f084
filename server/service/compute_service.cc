// The methods of ComputeService: decode the request, and let StepRunner run the step.
#include "server/service/compute_service.h"

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "program/plan_forecast.h"
#include "rpc/caller.h"
#include "rpc/codec/plan_codec.h"
#include "rpc/codec/status.h"
#include "server/codec/compute_codec.h"
#include "server/service/background_reactor.h"
#include "server/service/step_parts.h"
#include "server/service/unary_answer.h"
#include "server/steps/step_runner.h"
#include "shardmesh/v1/compute_service.grpc.pb.h"
#include "status/status_macros.h"

namespace shardmesh::server {
namespace {

// A unary call that runs a step; cancelling the call cancels the step. `fill` encodes the step's
// answer. FinishOnce is not needed, because a step is answered once. gRPC calls OnCancel and OnDone
// only after the method has returned the reactor, so after Start, even if the step has ended by
// then.
template <typename Response>
class StepReactor final : public grpc::ServerUnaryReactor {
 public:
  using Fill = void (*)(v1::ExecuteResponse answer, Response* response);

  StepReactor(StepRunner* runner, Response* response, Fill fill)
      : runner_(runner), response_(response), fill_(fill) {}

  void Start(StepCall call) {
    ticket_ =
        runner_->Run(std::move(call), [this](StepAnswer answer) { Answered(std::move(answer)); });
  }

  void OnCancel() override {
    if (ticket_.has_value()) {
      runner_->Cancel(*ticket_);
    }
  }
  void OnDone() override { delete this; }

 private:
  void Answered(StepAnswer answer) {
    if (answer.ok()) {
      fill_(*std::move(answer), response_);
      Finish(grpc::Status::OK);
    } else {
      Finish(rpc::ToGrpc(answer.status()));
    }
  }

  StepRunner* const runner_;
  Response* const response_;
  const Fill fill_;
  std::optional<Sequencer::StepTicket> ticket_;  // nullopt: there is no step to cancel
};

// Converts a step's answer for an RPC whose program has one result.
template <typename Response>
void FillSingle(v1::ExecuteResponse answer, Response* response) {
  *response->mutable_output() = std::move(*answer.mutable_outputs(0));
  response->set_sequence(answer.sequence());
  *response->mutable_timings() = std::move(*answer.mutable_timings());
}

class ComputeService final : public v1::ComputeService::CallbackService {
 public:
  explicit ComputeService(const StepRunnerParts& parts) : runner_(parts) {}

  grpc::ServerUnaryReactor* Compile(grpc::CallbackServerContext* context,
                                    const v1::CompileRequest* request,
                                    v1::CompileResponse* response) override {
    absl::StatusOr<StepRunner::CompiledPlan> compiled = Compile(rpc::CallerOf(*context), *request);
    if (compiled.ok() && LinkPairsOf(compiled->prepared->plan) > kMostPairsAtOnce) {
      return new BackgroundReactor(
          *context,
          [compiled = *std::move(compiled), response](const std::function<bool()>&) {
            Describe(compiled, response);
            return absl::OkStatus();
          },
          &background_);
    }
    if (compiled.ok()) Describe(*compiled, response);
    return FinishUnary(context, compiled.status());
  }

  grpc::ServerUnaryReactor* Execute(grpc::CallbackServerContext* context,
                                    const v1::ExecuteRequest* request,
                                    v1::ExecuteResponse* response) override {
    return Start<v1::ExecuteResponse>(
        context, "Execute", *request, response,
        [](v1::ExecuteResponse answer, v1::ExecuteResponse* to) { *to = std::move(answer); });
  }

  grpc::ServerUnaryReactor* Linear(grpc::CallbackServerContext* context,
                                   const v1::LinearRequest* request,
                                   v1::LinearResponse* response) override {
    return Start<v1::LinearResponse>(context, "Linear", AsExecute(*request), response, FillSingle);
  }

  grpc::ServerUnaryReactor* Matmul(grpc::CallbackServerContext* context,
                                   const v1::MatmulRequest* request,
                                   v1::MatmulResponse* response) override {
    return Start<v1::MatmulResponse>(context, "Matmul", AsExecute(*request), response, FillSingle);
  }

  grpc::ServerUnaryReactor* Collective(grpc::CallbackServerContext* context,
                                       const v1::CollectiveRequest* request,
                                       v1::CollectiveResponse* response) override {
    return Start<v1::CollectiveResponse>(context, "Collective", AsExecute(*request), response,
                                         FillSingle);
  }

 private:
  // Maximum number of link pairs (LinkPairsOf) of a plan whose forecast a reaction (gRPC callback)
  // makes. Such a forecast takes about a millisecond.
  static constexpr int64_t kMostPairsAtOnce = int64_t{1} << 13;

  absl::StatusOr<StepRunner::CompiledPlan> Compile(const rpc::Caller& caller,
                                                   const v1::CompileRequest& request) const {
    SHARDMESH_ASSIGN_OR_RETURN(StepOperands operands, DecodeOperands(request));
    auto program = rpc::Decode(request.program());
    if (!program.ok()) {
      return rpc::WithField(program.status(), "program");
    }
    SHARDMESH_ASSIGN_OR_RETURN(const size_t candidates, DecodeCandidates(request));
    return runner_.Compile(caller, *program, std::move(operands), candidates);
  }

  static void Describe(const StepRunner::CompiledPlan& compiled, v1::CompileResponse* response) {
    const PreparedPlan& prepared = *compiled.prepared;
    Encode(prepared, response);
    Encode(ForecastOf(prepared.plan, prepared.links, prepared.kernels),
           {.links = prepared.links.is_measured, .kernels = prepared.kernels.is_measured},
           response);
    for (const PlanCandidate& candidate : compiled.candidates) {
      Encode(candidate, prepared.kernels, response->add_candidates());
    }
  }

  template <typename Response>
  grpc::ServerUnaryReactor* Start(grpc::CallbackServerContext* context, std::string_view method,
                                  const v1::ExecuteRequest& request, Response* response,
                                  typename StepReactor<Response>::Fill fill) {
    absl::StatusOr<StepCall> call = Decode(request);
    if (!call.ok()) {
      return FinishUnary(context, call.status());
    }
    call->method = std::string(method);
    call->caller = rpc::CallerOf(*context);
    call->time_left = rpc::TimeLeft(*context);
    auto* reactor = new StepReactor<Response>(&runner_, response, fill);
    reactor->Start(*std::move(call));
    return reactor;
  }

  StepRunner runner_;
  Background background_{1};
};

}  // namespace

std::unique_ptr<grpc::Service> MakeComputeService(const CoordinatorParts& context, Planner* planner,
                                                  Sequencer* sequencer, rpc::Metrics* metrics) {
  return std::make_unique<ComputeService>(StepPartsOf(context, planner, sequencer, metrics));
}

}  // namespace shardmesh::server
