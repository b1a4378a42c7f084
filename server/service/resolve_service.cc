// The rind of ResolveService: hands requests to their answers, and streams of trees to their
// reactors.
#include "server/service/resolve_service.h"

#include <google/protobuf/arena.h>
#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "rpc/codec/status.h"
#include "rpc/metrics/metrics.h"
#include "rpc/stream/message_bytes.h"
#include "server/resolve/answer_cache.h"
#include "server/resolve/background.h"
#include "server/resolve/layout_streams.h"
#include "server/resolve/resolve_answers.h"
#include "server/resolve/rule_streams.h"
#include "server/resolve/tree_reactor.h"
#include "server/resolve/tree_streams.h"
#include "server/service/background_reactor.h"
#include "server/service/service_mixins.h"
#include "shardmesh/v1/resolve_service.grpc.pb.h"
#include "status/status_macros.h"

namespace shardmesh::server {
namespace {

// Streams of requests come as bytes, see rpc/stream/message_bytes.h; and questions whose answers
// are remembered by their bytes.
#define SHARDMESH_MESSAGES(Method) v1::ResolveService::WithCallbackMethod_##Method
#define SHARDMESH_BYTES(Method) v1::ResolveService::WithRawCallbackMethod_##Method
using ResolveServiceBase = WithMethods<
    v1::ResolveService::Service, SHARDMESH_BYTES(ResolveTree), SHARDMESH_BYTES(AnalyzeLayout),
    SHARDMESH_BYTES(LintRules), SHARDMESH_BYTES(DiffLayouts), SHARDMESH_BYTES(SearchMeshes),
    SHARDMESH_BYTES(ResolveSpec), SHARDMESH_BYTES(ResolveAxes), SHARDMESH_BYTES(CorrectSpec),
    SHARDMESH_BYTES(ConstrainArray), SHARDMESH_BYTES(CompareSpecs), SHARDMESH_BYTES(ExplainTensor),
    SHARDMESH_BYTES(DescribeTiling), SHARDMESH_MESSAGES(PlanReshard),
    SHARDMESH_BYTES(DescribeProfile), SHARDMESH_BYTES(ComputeHash), SHARDMESH_BYTES(ListPresets),
    SHARDMESH_BYTES(DescribeMesh), SHARDMESH_BYTES(QueryMesh), SHARDMESH_BYTES(ListSpecAxes),
    SHARDMESH_MESSAGES(ParsePatternRules), SHARDMESH_MESSAGES(CheckPattern),
    SHARDMESH_MESSAGES(RewriteRules), SHARDMESH_BYTES(ComposeLogicalRules),
    SHARDMESH_BYTES(ResolveLogicalAxes), SHARDMESH_MESSAGES(ListShardings),
    SHARDMESH_BYTES(ResolveOutputSpec), SHARDMESH_BYTES(CheckTensorParallel),
    SHARDMESH_BYTES(DescribeLinearLayer), SHARDMESH_BYTES(PromoteDtypes)>::Type;
#undef SHARDMESH_MESSAGES
#undef SHARDMESH_BYTES

class ResolveService final : public ResolveServiceBase {
 public:
  explicit ResolveService(const ResolveServiceOptions& options)
      : options_(options), counter_(options.metrics) {}

// A call of one question and one answer.
#define SHARDMESH_UNARY(Method)                                                                 \
  grpc::ServerUnaryReactor* Method(grpc::CallbackServerContext* context,                        \
                                   const grpc::ByteBuffer* request, grpc::ByteBuffer* response) \
      override {                                                                                \
    return Remembered<v1::Method##Request, v1::Method##Response>(context, *request, response);  \
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
    return CompilesLong(request->text()) ? InBackground(context, request, response)
                                         : AtOnce(context, request, response);
  }
  grpc::ServerUnaryReactor* CheckPattern(grpc::CallbackServerContext* context,
                                         const v1::CheckPatternRequest* request,
                                         v1::CheckPatternResponse* response) override {
    return request->names_size() > kOrdinaryNames || CompilesLong(request->pattern())
               ? InBackground(context, request, response)
               : AtOnce(context, request, response);
  }
  grpc::ServerUnaryReactor* RewriteRules(grpc::CallbackServerContext* context,
                                         const v1::RewriteRulesRequest* request,
                                         v1::RewriteRulesResponse* response) override {
    return InBackground(context, request, response);
  }

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ResolveTree(
      grpc::CallbackServerContext* context) override {
    return new TreeBidiReactor(
        *context, MakeResolveTreeCall(options_.definition_store->shared_state(), counter_),
        &beginnings_);
  }
  grpc::ServerReadReactor<grpc::ByteBuffer>* LintRules(grpc::CallbackServerContext* context,
                                                       grpc::ByteBuffer* response) override {
    return new TreeReadReactor(
        *context, MakeLintRulesCall(options_.definition_store->shared_state(), options_.registry),
        response, &background_);
  }
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* DiffLayouts(
      grpc::CallbackServerContext* context) override {
    return new TreeBidiReactor(
        *context, MakeDiffLayoutsCall(options_.definition_store->shared_state()), &beginnings_);
  }

  grpc::ServerUnaryReactor* PlanReshard(grpc::CallbackServerContext* context,
                                        const v1::PlanReshardRequest* request,
                                        v1::PlanReshardResponse* response) override {
    return InBackground(context, request, response);
  }

  grpc::ServerReadReactor<grpc::ByteBuffer>* AnalyzeLayout(grpc::CallbackServerContext* context,
                                                           grpc::ByteBuffer* response) override {
    return new TreeReadReactor(*context,
                               MakeAnalyzeLayoutCall(options_.definition_store->shared_state()),
                               response, &background_);
  }

  grpc::ServerReadReactor<grpc::ByteBuffer>* SearchMeshes(grpc::CallbackServerContext* context,
                                                          grpc::ByteBuffer* response) override {
    return new TreeReadReactor(*context,
                               MakeSearchMeshesCall(options_.definition_store->shared_state()),
                               response, &background_);
  }

  grpc::ServerWriteReactor<v1::ListShardingsResponse>* ListShardings(
      grpc::CallbackServerContext*, const v1::ListShardingsRequest* request) override {
    return MakeListShardingsReactor(options_.definition_store->shared_state(), options_.registry,
                                    request);
  }

 private:
  static constexpr int kOrdinaryNames = 64;

  // Some ten thousand answers to ordinary questions.
  static constexpr size_t kRememberedBytes = size_t{32} << 20;

  static grpc::ServerUnaryReactor* Finished(grpc::CallbackServerContext* context,
                                            const absl::Status& status) {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(status.ok() ? grpc::Status::OK : rpc::ToGrpc(status));
    return reactor;
  }

  // Whether the answer takes too long for a reaction.
  template <typename Request>
  static bool TakesLong(const Request&) {
    return false;
  }
  static bool TakesLong(const v1::ExplainTensorRequest& request) {
    return CompilesLong(request.rule_set());
  }

  // Looks the request up among those that were answered before, or else answers it.
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* Remembered(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer& request,
                                       grpc::ByteBuffer* response) {
    grpc::Slice slice;
    if (!request.TrySingleSlice(&slice).ok() && !request.DumpToSingleSlice(&slice).ok()) {
      return Finished(context, rpc::UnparsedMessage(*Request::descriptor()));
    }
    const Definitions& state = options_.definition_store->state();
    if (const auto known = answers_.Find(MethodOf<Request>(), BytesOf(slice), state.revision());
        known.has_value()) {
      counter_.Count(known->corrections);
      *response = grpc::ByteBuffer(&known->bytes, 1);
      return Finished(context, absl::OkStatus());
    }
    google::protobuf::Arena arena;
    auto* const question = google::protobuf::Arena::CreateMessage<Request>(&arena);
    grpc::ByteBuffer parsed(request);
    if (const absl::Status status = rpc::ParseMessage(&parsed, question); !status.ok()) {
      return Finished(context, status);
    }
    if (TakesLong(*question)) {
      return new BackgroundReactor(
          *context,
          [this, shared_state = options_.definition_store->shared_state(), slice,
           kept = std::make_unique<Request>(*question),
           response](const std::function<bool()>& is_cancelled) {
            google::protobuf::Arena own_arena;
            return AnswerAndKeep<Response>(*shared_state, slice, *kept, is_cancelled, &own_arena,
                                           response);
          },
          &background_);
    }
    return Finished(context,
                    AnswerAndKeep<Response>(state, slice, *question, {}, &arena, response));
  }

  // Answers what is not known yet; `request` is the question's bytes.
  template <typename Response, typename Request>
  absl::Status AnswerAndKeep(const Definitions& state, const grpc::Slice& request,
                             const Request& question, const std::function<bool()>& is_cancelled,
                             google::protobuf::Arena* arena, grpc::ByteBuffer* response) {
    auto* const answered = google::protobuf::Arena::CreateMessage<Response>(arena);
    KnownAnswer answer;
    const AnswerContext context = {state, answer.corrections};
    absl::Status status;
    if constexpr (requires { Answer(context, question, answered, is_cancelled); }) {
      status = Answer(context, question, answered, is_cancelled);
    } else {
      status = Answer(context, question, answered);
    }
    counter_.Count(answer.corrections);
    SHARDMESH_RETURN_IF_ERROR(status);
    answer.bytes = grpc::Slice(answered->SerializeAsString());
    *response = grpc::ByteBuffer(&answer.bytes, 1);
    answers_.Keep(MethodOf<Request>(), BytesOf(request), state.revision(), answer);
    return absl::OkStatus();
  }

  // Tells the calls apart: no two take the same message.
  template <typename Request>
  static int MethodOf() {
    return Request::descriptor()->index();
  }
  static std::string_view BytesOf(const grpc::Slice& slice) {
    return {reinterpret_cast<const char*>(slice.begin()), slice.size()};
  }

  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* AtOnce(grpc::CallbackServerContext* context, const Request* request,
                                   Response* response) {
    CorrectionTally corrections;
    return Finished(context,
                    Answer({options_.definition_store->state(), corrections}, *request, response));
  }

  // A call whose answer takes too long for a reaction.
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* InBackground(const grpc::CallbackServerContext* context,
                                         const Request* request, Response* response) {
    return new BackgroundReactor(
        *context,
        [this, state = options_.definition_store->shared_state(), request,
         response](const std::function<bool()>& is_cancelled) {
          CorrectionTally corrections;
          const absl::Status status =
              Answer({*state, corrections}, *request, response, is_cancelled);
          counter_.Count(corrections);
          return status;
        },
        &background_);
  }

  const ResolveServiceOptions options_;
  const CorrectionCounter counter_;
  AnswerCache answers_{kRememberedBytes};
  // Last: their tasks use the above. Headers of streams whose rules take long to compile have
  // threads of their own, so that they do not wait behind calls that take seconds.
  Background background_{2};
  Background beginnings_{2};
};

}  // namespace

std::unique_ptr<grpc::Service> MakeResolveService(const ResolveServiceOptions& options) {
  return std::make_unique<ResolveService>(options);
}

}  // namespace shardmesh::server
