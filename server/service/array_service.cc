// The methods of ArrayService. They never block: the store's thread sends the answers of commits,
// and rules that take long are compiled in the background.
#include "server/service/array_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rpc/caller.h"
#include "rpc/codec/field_check.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "server/calls/array_calls.h"
#include "server/service/put_stream.h"
#include "server/service/reshard_stream.h"
#include "server/service/service_mixins.h"
#include "server/service/step_parts.h"
#include "server/service/unary_answer.h"
#include "server/state/array_selection.h"
#include "server/state/array_view_codec.h"
#include "sharding/digest.h"
#include "shardmesh/v1/array_service.grpc.pb.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// How long a commit without a deadline waits for missing tiles.
constexpr absl::Duration kCommitTimeout = absl::Minutes(5);

// BeginPut takes its requests as bytes (rpc/stream/message_bytes.h), the other methods as messages.
#define SHARDMESH_MESSAGES(Method) v1::ArrayService::WithCallbackMethod_##Method
using ArrayServiceBase =
    WithMethods<v1::ArrayService::Service, v1::ArrayService::WithRawCallbackMethod_BeginPut,
                SHARDMESH_MESSAGES(FindContent), SHARDMESH_MESSAGES(CommitTransfer),
                SHARDMESH_MESSAGES(AbortTransfer), SHARDMESH_MESSAGES(BeginGet),
                SHARDMESH_MESSAGES(DescribeArray), SHARDMESH_MESSAGES(ListArrays),
                SHARDMESH_MESSAGES(MoveName), SHARDMESH_MESSAGES(DeleteName),
                SHARDMESH_MESSAGES(ReleaseArrays), SHARDMESH_MESSAGES(Reshard),
                SHARDMESH_MESSAGES(ResizeMesh)>::Type;
#undef SHARDMESH_MESSAGES

class ArrayService final : public ArrayServiceBase {
 public:
  ArrayService(const CoordinatorParts& context, const StepRunnerParts& steps)
      : context_(context),
        reshards_(context, steps),
        puts_({.plan = PutPartsOf(context),
               .clock = context.clock,
               .transfers = context.transfers,
               .digests = context.digests,
               .max_streams_per_caller = context.max_put_streams_per_caller,
               .token_key = context.token_key,
               .term = context.term}) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* BeginPut(
      grpc::CallbackServerContext* context) override {
    return puts_.Open(context);
  }

  grpc::ServerUnaryReactor* FindContent(grpc::CallbackServerContext* context,
                                        const v1::FindContentRequest* request,
                                        v1::FindContentResponse* response) override {
    return puts_.FindContent(*context, request, response);
  }

  grpc::ServerUnaryReactor* CommitTransfer(grpc::CallbackServerContext* context,
                                           const v1::CommitTransferRequest* request,
                                           v1::CommitTransferResponse* response) override {
    absl::Status checked = rpc::CheckRequestId(request->request_id(), "request_id");
    if (checked.ok()) checked = CheckOwner(*context, *request);
    if (!checked.ok()) return FinishUnary(context, checked);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const absl::StatusOr<TransferProgress> progress =
        context_.transfers->Progress(request->transfer_id());
    const absl::Duration limit =
        progress.ok() && progress->is_filled ? Transfers::kTimeout : kCommitTimeout;
    const absl::Time give_up =
        context_.clock->Now() + std::min(rpc::TimeLeft(*context) - rpc::kTimeToTell, limit);
    const absl::Time started = progress.ok() ? progress->started : context_.clock->Now();
    context_.transfers->Commit(
        request->transfer_id(),
        RequestKey(request->session_id(), "CommitTransfer", request->request_id()), give_up,
        [reactor, response, started,
         clock = context_.clock](absl::StatusOr<TransferResult> result) {
          if (result.ok()) {
            for (const std::string& id : result->array_ids) response->add_array_ids(id);
            response->set_revision(result->revision);
            response->set_durability(Encode(result->durability));
            rpc::Encode(clock->Now() - started, response->mutable_transfer_time());
          }
          reactor->Finish(rpc::ToGrpc(result.status()));
        });
    return reactor;
  }

  grpc::ServerUnaryReactor* AbortTransfer(grpc::CallbackServerContext* context,
                                          const v1::AbortTransferRequest* request,
                                          v1::AbortTransferResponse*) override {
    if (const absl::Status owned = CheckOwner(*context, *request); !owned.ok()) {
      return FinishUnary(context, owned);
    }
    return FinishUnary(context,
                       context_.transfers->Abort(request->transfer_id(), ErrorOfAbort(*request)));
  }

  grpc::ServerUnaryReactor* BeginGet(grpc::CallbackServerContext* context,
                                     const v1::BeginGetRequest* request,
                                     v1::BeginGetResponse* response) override {
    const absl::Status checked =
        context_.sessions->Check(request->session_id(), rpc::CallerOf(*context));
    return FinishUnary(context,
                       checked.ok() ? server::BeginGet(context_, *request, response) : checked);
  }

  grpc::ServerUnaryReactor* DescribeArray(grpc::CallbackServerContext* context,
                                          const v1::DescribeArrayRequest* request,
                                          v1::DescribeArrayResponse* response) override {
    return FinishUnary(context, server::DescribeArray(context_, *request, response));
  }

  grpc::ServerUnaryReactor* ListArrays(grpc::CallbackServerContext* context,
                                       const v1::ListArraysRequest* request,
                                       v1::ListArraysResponse* response) override {
    return FinishUnary(context, server::ListArrays(context_, *request, response));
  }

  grpc::ServerUnaryReactor* MoveName(grpc::CallbackServerContext* context,
                                     const v1::MoveNameRequest* request,
                                     v1::MoveNameResponse* response) override {
    absl::Status checked = rpc::CheckArrayName(request->name(), "name");
    if (checked.ok()) checked = rpc::CheckArrayId(request->array_id(), "array_id");
    return Move(context, checked, "MoveName", *request,
                {.name = request->name(), .array_id = request->array_id(), .expected_version = {}},
                [response](Revision revision) {
                  response->set_version(revision);
                  response->set_revision(revision);
                });
  }

  grpc::ServerUnaryReactor* DeleteName(grpc::CallbackServerContext* context,
                                       const v1::DeleteNameRequest* request,
                                       v1::DeleteNameResponse* response) override {
    return Move(context, rpc::CheckArrayName(request->name(), "name"), "DeleteName", *request,
                {.name = request->name(), .array_id = "", .expected_version = {}},
                [response](Revision revision) { response->set_revision(revision); });
  }

  grpc::ServerWriteReactor<v1::ReshardResponse>* Reshard(
      grpc::CallbackServerContext* context, const v1::ReshardRequest* request) override {
    return reshards_.Open(*context, *request);
  }

  grpc::ServerUnaryReactor* ResizeMesh(grpc::CallbackServerContext* context,
                                       const v1::ResizeMeshRequest* request,
                                       v1::ResizeMeshResponse* response) override {
    return reshards_.Resize(*context, request, response);
  }
  ReshardStreams* reshards() { return &reshards_; }

  grpc::ServerUnaryReactor* ReleaseArrays(grpc::CallbackServerContext* context,
                                          const v1::ReleaseArraysRequest* request,
                                          v1::ReleaseArraysResponse* response) override {
    const absl::Status checked =
        context_.sessions->Check(request->session_id(), rpc::CallerOf(*context));
    return FinishUnary(
        context, checked.ok() ? server::ReleaseArrays(context_, *request, response) : checked);
  }

 private:
  // Checks that the caller may end the request's transfer. A closed session is no error: it owns no
  // live transfer, but its client may repeat the request that committed a transfer.
  template <typename Request>
  absl::Status CheckOwner(const grpc::CallbackServerContext& context,
                          const Request& request) const {
    const absl::Status session =
        context_.sessions->Check(request.session_id(), rpc::CallerOf(context));
    if (!session.ok() && !absl::IsNotFound(session)) {
      return session;
    }
    return context_.transfers->CheckOwner(request.transfer_id(), request.session_id());
  }

  template <typename Request, typename OnMoved>
  grpc::ServerUnaryReactor* Move(grpc::CallbackServerContext* context, absl::Status checked,
                                 std::string_view method, const Request& request, NameMove move,
                                 OnMoved on_moved) {
    const std::string& request_id = request.request_id();
    if (checked.ok()) checked = rpc::CheckRequestId(request_id, "request_id");
    // A request without an array removes the name, which must exist. A request with an array may
    // create the name.
    const auto expected = Decode(request.precondition(), /*must_exist=*/move.array_id.empty());
    checked.Update(expected.status());
    checked.Update(CheckNotAwaited(*context_.registry, move.array_id, *context_.recovery));
    if (!checked.ok()) return FinishUnary(context, checked);
    move.expected_version = *expected;
    if (request.validate_only()) {
      return FinishUnary(context, context_.registry->CheckNameMove(move));
    }
    const std::string key = RequestKey(rpc::CallerOf(*context).name, method, request_id);
    const auto remembered = context_.registry->requests().Begin(
        key, Sha256(StrCat("move ", move.name, "\n", move.array_id, "\n",
                           move.expected_version.value_or(-1))));
    if (!remembered.ok()) return FinishUnary(context, remembered.status());
    if (remembered->has_value()) {
      on_moved((*remembered)->revision);
      return FinishUnary(context, absl::OkStatus());
    }
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    CommitRequest commit;
    commit.moves.push_back(std::move(move));
    commit.request_id = key;
    context_.registry->Commit(std::move(commit),
                              [reactor, on_moved](absl::StatusOr<CommitResult> result) {
                                if (result.ok()) on_moved(result->revision);
                                reactor->Finish(rpc::ToGrpc(result.status()));
                              });
    return reactor;
  }

  const CoordinatorParts context_;
  ReshardStreams reshards_;
  PutStreams puts_;
};

}  // namespace

StreamingService MakeArrayService(const CoordinatorParts& context, const StepRunnerParts& steps) {
  auto service = std::make_unique<ArrayService>(context, steps);
  ReshardStreams* const raw = service->reshards();
  return {.service = std::move(service),
          .end_streams = [raw] { raw->EndResizes(); },
          .join_threads = [raw] { raw->JoinResizes(); }};
}

}  // namespace shardmesh::server
