// The methods of OperationService: progress and end of a put, and the list of puts.
#include "server/service/operation_service.h"

#include <grpcpp/grpcpp.h>

#include <memory>
#include <set>
#include <string>
#include <utility>

#include "rpc/caller.h"
#include "rpc/codec/field_check.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "rpc/stream/outbox.h"
#include "server/calls/cluster_pages.h"
#include "shardmesh/v1/operation_service.grpc.pb.h"
#include "status/detail.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

constexpr absl::Duration kWatchInterval = absl::Milliseconds(100);
constexpr int64_t kOutboxBytes = int64_t{64} << 10;
// A page of operations ends once it has this many bytes.
constexpr int64_t kListBytes = int64_t{1} << 20;

v1::OperationState StateOf(const TransferProgress& progress) {
  if (!progress.ended) return v1::OPERATION_STATE_RUNNING;
  if (progress.status.ok()) return v1::OPERATION_STATE_DONE;
  return absl::IsCancelled(progress.status) ? v1::OPERATION_STATE_CANCELLED
                                            : v1::OPERATION_STATE_FAILED;
}

void Encode(const TransferProgress& from, v1::Operation* to) {
  to->set_operation_id(from.transfer_id);
  to->set_number(from.number);
  to->set_session_number(from.session_number);
  to->set_description(from.description);
  to->set_done(from.staged_tiles);
  to->set_total(from.total_tiles);
  to->set_done_bytes(from.staged_bytes);
  to->set_total_bytes(from.total_bytes);
  rpc::Encode(from.started, to->mutable_start_time());
  to->set_state(StateOf(from));
  if (from.ended) rpc::Encode(from.finished, to->mutable_end_time());
  if (!from.status.ok()) rpc::Encode(from.status, to->mutable_error());
}

// WatchOperation, as synchronous code:
//   while (true) { write(progress); if (progress.ended) finish; sleep(kWatchInterval) }
// The interval starts when the previous message is written, so a slow client gets fewer messages.
class WatchReactor final : public grpc::ServerWriteReactor<v1::WatchOperationResponse> {
 public:
  WatchReactor(Clock* clock, const Transfers* transfers, StreamSet<WatchReactor>* streams,
               std::string operation_id)
      : transfers_(transfers),
        streams_(streams),
        operation_id_(std::move(operation_id)),
        clock_(clock),
        outbox_(kOutboxBytes, [this](const v1::WatchOperationResponse* m) { StartWrite(m); }),
        next_look_(std::make_unique<Alarm>(clock, [this] { Look(); })) {
    streams_->Add(this);
    next_look_->SetNoLaterThan(clock_->Now());
  }

  void End() {
    Close(WithRetryDelay(
        WithReason(absl::UnavailableError("the coordinator is stopping; watch again later"),
                   Reason::kNotServing),
        absl::Seconds(1)));
  }

  void OnWriteDone(bool ok) override {
    outbox_.OnWriteDone(ok);
    if (ok) {
      next_look_->SetNoLaterThan(clock_->Now() + kWatchInterval);
    }
  }
  void OnCancel() override { Close(absl::CancelledError("the watcher left")); }
  void OnDone() override {
    next_look_.reset();
    streams_->Remove(this);
    delete this;
  }

 private:
  using Outbox = rpc::Outbox<v1::WatchOperationResponse>;

  void Look() {
    const absl::StatusOr<TransferProgress> progress = transfers_->Progress(operation_id_);
    if (!progress.ok()) {
      return Close(progress.status());
    }
    auto response = std::make_shared<v1::WatchOperationResponse>();
    Encode(*progress, response->mutable_operation());
    const auto size_bytes = static_cast<int64_t>(response->ByteSizeLong());
    // Push fails only after Close. In that case the call is ending, so nobody misses the message.
    outbox_.Push(std::move(response), size_bytes).IgnoreError();
    if (progress->ended) {
      outbox_.Close(Outbox::kFlush, [this] { Finish(grpc::Status::OK); });
    }
  }
  void Close(absl::Status status) {
    outbox_.Close(Outbox::kDrop,
                  [this, status = std::move(status)] { Finish(rpc::ToGrpc(status)); });
  }

  const Transfers* const transfers_;
  StreamSet<WatchReactor>* const streams_;
  const std::string operation_id_;
  Clock* const clock_;
  Outbox outbox_;
  std::unique_ptr<Alarm> next_look_;  // its destructor waits for Look
};

class OperationService final : public v1::OperationService::CallbackService {
 public:
  OperationService(Clock* clock, Transfers* transfers, const SessionTable* sessions)
      : clock_(clock), transfers_(transfers), sessions_(sessions) {}

  grpc::ServerUnaryReactor* GetOperation(grpc::CallbackServerContext* context,
                                         const v1::GetOperationRequest* request,
                                         v1::GetOperationResponse* response) override {
    return Answer(context, request->operation_id(), response);
  }

  grpc::ServerUnaryReactor* ListOperations(grpc::CallbackServerContext* context,
                                           const v1::ListOperationsRequest* request,
                                           v1::ListOperationsResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(rpc::ToGrpc(List(*request, response)));
    return reactor;
  }

  grpc::ServerUnaryReactor* CancelOperation(grpc::CallbackServerContext* context,
                                            const v1::CancelOperationRequest* request,
                                            v1::CancelOperationResponse* response) override {
    absl::Status aborted = sessions_->Check(request->session_id(), rpc::CallerOf(*context));
    if (aborted.ok()) {
      aborted = transfers_->CheckOwner(request->operation_id(), request->session_id());
    }
    if (aborted.ok()) {
      aborted = transfers_->Abort(
          request->operation_id(),
          WithReason(absl::CancelledError("the operation was cancelled"), Reason::kCancelled));
    }
    if (!aborted.ok()) {
      grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
      reactor->Finish(rpc::ToGrpc(aborted));
      return reactor;
    }
    return Answer(context, request->operation_id(), response);
  }

  grpc::ServerWriteReactor<v1::WatchOperationResponse>* WatchOperation(
      grpc::CallbackServerContext*, const v1::WatchOperationRequest* request) override {
    return new WatchReactor(clock_, transfers_, &watches_, request->operation_id());
  }

  void EndWatches() { watches_.EndAll(); }

 private:
  template <typename Response>
  grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                   const std::string& operation_id, Response* response) const {
    const absl::StatusOr<TransferProgress> progress = transfers_->Progress(operation_id);
    if (progress.ok()) {
      Encode(*progress, response->mutable_operation());
    }
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(rpc::ToGrpc(progress.status()));
    return reactor;
  }

  absl::Status List(const v1::ListOperationsRequest& request,
                    v1::ListOperationsResponse* response) const {
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t page_size,
                               rpc::CheckPageSize(request.page_size(), "page_size"));
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t after, NumberOfPageToken(request.page_token()));
    std::set<int> states(request.states().begin(), request.states().end());
    for (const int state : states) {
      if (state == v1::OPERATION_STATE_UNSPECIFIED || !v1::OperationState_IsValid(state)) {
        return rpc::BadField("states", StrCat("has the number ", state, ", which is no state"));
      }
    }
    const Transfers::Listed listed =
        transfers_->List(after, page_size, [&states](const TransferProgress& progress) {
          return states.empty() || states.contains(StateOf(progress));
        });
    PageBudget budget(page_size, kListBytes);
    int64_t next_after = listed.next_after;
    for (const TransferProgress& progress : listed.puts) {
      if (budget.is_spent()) {
        next_after = response->operations().rbegin()->number();
        break;
      }
      v1::Operation* const added = response->add_operations();
      Encode(progress, added);
      budget.Spend(*added);
    }
    if (next_after > 0) response->set_next_page_token(StrCat(next_after));
    return absl::OkStatus();
  }

  Clock* const clock_;
  Transfers* const transfers_;
  const SessionTable* const sessions_;
  StreamSet<WatchReactor> watches_;
};

}  // namespace

StreamingService MakeOperationService(Clock* clock, Transfers* transfers,
                                      const SessionTable* sessions) {
  auto service = std::make_unique<OperationService>(clock, transfers, sessions);
  OperationService* const raw = service.get();
  return {.service = std::move(service), .end_streams = [raw] { raw->EndWatches(); }};
}

}  // namespace shardmesh::server
