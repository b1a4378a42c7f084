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
#include "server/service/service_mixins.h"
#include "server/service/step_parts.h"
#include "server/service/unary_answer.h"
#include "server/steps/step_runner.h"
#include "server/watch/step_stream.h"
#include "shardmesh/v1/compute_service.grpc.pb.h"
#include "status/status_macros.h"

namespace shardmesh::server {
namespace {

// A unary call that runs a step; cancelling the call cancels the step. `fill` encodes the step's
// answer. FinishOnce is not needed, because a step is answered once.
template <typename Response>
class StepReactor final : public grpc::ServerUnaryReactor {
 public:
  using Fill = void (*)(v1::ExecuteResponse answer, Response* response);

  StepReactor(StepRunner* runner, Response* response, Fill fill)
      : runner_(runner), response_(response), fill_(fill) {}

  void Start(StepCall call) { Run(std::move(call), runner_, this, step_); }

  // Like Start, on a thread of the background. The background and the context outlive the call.
  void StartIn(Background* background, const grpc::CallbackServerContext* context, StepCall call) {
    const std::string caller = call.caller.name;
    const bool taken = background->Run(
        caller, [this, context, runner = runner_, step = step_, call = std::move(call)]() mutable {
          if (step->is_cancelled())
            return Answered(absl::CancelledError("cancelled while it waited"));
          call.time_left = rpc::TimeLeft(*context);
          Run(std::move(call), runner, this, step);
        });
    if (!taken) Answered(TooManyWait());
  }

  void OnCancel() override { step_->Cancel(runner_); }
  void OnDone() override { delete this; }

 private:
  // Once the step is answered, the reactor may be gone.
  static void Run(StepCall call, StepRunner* runner, StepReactor* reactor,
                  const std::shared_ptr<PendingStep>& step) {
    const std::shared_ptr<PendingStep> kept = step;
    kept->Submitted(runner, runner->Run(std::move(call), [reactor](StepAnswer answer) {
      reactor->Answered(std::move(answer));
    }));
  }

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
  const std::shared_ptr<PendingStep> step_ = std::make_shared<PendingStep>();
};

#define SHARDMESH_MESSAGES(method) v1::ComputeService::WithCallbackMethod_##method
using ComputeServiceBase = WithMethods<
    v1::ComputeService::Service, v1::ComputeService::WithRawCallbackMethod_ExecuteStream,
    SHARDMESH_MESSAGES(Compile), SHARDMESH_MESSAGES(Execute), SHARDMESH_MESSAGES(Linear),
    SHARDMESH_MESSAGES(Matmul), SHARDMESH_MESSAGES(Collective)>::Type;
#undef SHARDMESH_MESSAGES

class ComputeService final : public ComputeServiceBase {
 public:
  explicit ComputeService(const StepRunnerParts& parts) : runner_(parts) {}

  grpc::ServerUnaryReactor* Compile(grpc::CallbackServerContext* context,
                                    const v1::CompileRequest* request,
                                    v1::CompileResponse* response) override {
    absl::StatusOr<Question> question = Decode(rpc::CallerOf(*context), *request);
    if (question.ok() &&
        (question->layer.has_value() || runner_.PlansLong(question->program, question->operands))) {
      return new BackgroundReactor(
          *context,
          [this, question = *std::move(question),
           response](const std::function<bool()>&) mutable -> absl::Status {
            SHARDMESH_ASSIGN_OR_RETURN(const StepRunner::CompiledPlan compiled,
                                       Compile(std::move(question)));
            Describe(compiled, response);
            return absl::OkStatus();
          },
          &background_);
    }
    if (!question.ok()) return FinishUnary(context, question.status());
    absl::StatusOr<StepRunner::CompiledPlan> compiled = Compile(*std::move(question));
    if (compiled.ok() && LinkPairsOf(compiled->prepared->plan) > kMostStepLinkPairs) {
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

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ExecuteStream(
      grpc::CallbackServerContext* context) override {
    return streams_.Open(context);
  }
  void EndStreams() { streams_.EndAll(); }

  grpc::ServerUnaryReactor* Linear(grpc::CallbackServerContext* context,
                                   const v1::LinearRequest* request,
                                   v1::LinearResponse* response) override {
    return StartCall<v1::LinearResponse>(
        context, "Linear", server::Decode(*request), response,
        request->has_layer() ? EncodeParts : EncodeSingle<v1::LinearResponse>);
  }

  grpc::ServerUnaryReactor* Matmul(grpc::CallbackServerContext* context,
                                   const v1::MatmulRequest* request,
                                   v1::MatmulResponse* response) override {
    return Start<v1::MatmulResponse>(context, "Matmul", AsExecute(*request), response,
                                     EncodeSingle);
  }

  grpc::ServerUnaryReactor* Collective(grpc::CallbackServerContext* context,
                                       const v1::CollectiveRequest* request,
                                       v1::CollectiveResponse* response) override {
    return Start<v1::CollectiveResponse>(context, "Collective", AsExecute(*request), response,
                                         EncodeSingle);
  }

 private:
  // The arguments of StepRunner::Compile.
  struct Question {
    rpc::Caller caller;
    Program program;
    StepOperands operands;
    size_t candidates = 0;
    std::optional<LayerCall> layer = std::nullopt;
  };

  static absl::StatusOr<Question> Decode(const rpc::Caller& caller,
                                         const v1::CompileRequest& request) {
    SHARDMESH_ASSIGN_OR_RETURN(StepOperands operands, DecodeOperands(request));
    auto program = rpc::Decode(request.program());
    if (!program.ok()) {
      return rpc::WithField(program.status(), "program");
    }
    SHARDMESH_ASSIGN_OR_RETURN(const size_t candidates, DecodeCandidates(request));
    SHARDMESH_ASSIGN_OR_RETURN(std::optional<LayerCall> layer, DecodeLayer(request));
    return Question{.caller = caller,
                    .program = *std::move(program),
                    .operands = std::move(operands),
                    .candidates = candidates,
                    .layer = std::move(layer)};
  }

  absl::StatusOr<StepRunner::CompiledPlan> Compile(Question question) const {
    return runner_.Compile(question.caller, std::move(question.program),
                           std::move(question.operands), question.candidates,
                           question.layer.has_value() ? &*question.layer : nullptr);
  }

  static void Describe(const StepRunner::CompiledPlan& compiled, v1::CompileResponse* response) {
    const PreparedPlan& prepared = *compiled.prepared;
    Encode(prepared, response);
    EncodeRange(compiled, response);
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
    return StartCall<Response>(context, method, server::Decode(request), response, fill);
  }

  template <typename Response>
  grpc::ServerUnaryReactor* StartCall(grpc::CallbackServerContext* context, std::string_view method,
                                      absl::StatusOr<StepCall> call, Response* response,
                                      typename StepReactor<Response>::Fill fill) {
    if (!call.ok()) {
      return FinishUnary(context, call.status());
    }
    call->method = std::string(method);
    call->caller = rpc::CallerOf(*context);
    call->time_left = rpc::TimeLeft(*context);
    auto* reactor = new StepReactor<Response>(&runner_, response, fill);
    if (runner_.PlansLong(*call)) {
      reactor->StartIn(&planning_, context, *std::move(call));
    } else {
      reactor->Start(*std::move(call));
    }
    return reactor;
  }

  StepRunner runner_;
  StepStreams streams_{&runner_};
  Background background_{1};
  Background planning_{1};  // of steps, which do not wait for calls of Compile
};

}  // namespace

StreamingService MakeComputeService(const CoordinatorParts& context, Planner* planner,
                                    Sequencer* sequencer, rpc::Metrics* metrics) {
  auto service =
      std::make_unique<ComputeService>(StepPartsOf(context, planner, sequencer, metrics));
  ComputeService* const raw = service.get();
  return {.service = std::move(service), .end_streams = [raw] { raw->EndStreams(); }};
}

}  // namespace shardmesh::server
