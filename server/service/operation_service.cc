// The methods of OperationService.
#include "server/service/operation_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "rpc/caller.h"
#include "rpc/codec/status.h"
#include "rpc/stream/outbox.h"
#include "server/calls/all_operations.h"
#include "server/codec/operation_codec.h"
#include "server/service/service_mixins.h"
#include "server/service/unary_answer.h"
#include "server/watch/get_report_stream.h"
#include "shardmesh/v1/operation_service.grpc.pb.h"
#include "status/detail.h"
#include "status/reason.h"

namespace shardmesh::server {
namespace {

constexpr absl::Duration kWatchInterval = absl::Milliseconds(100);
constexpr int64_t kOutboxBytes = int64_t{64} << 10;

// WatchOperation, as synchronous code:
//   while (true) {
//     if (!progress.ended && the call's time is over) fail with the workers that are late;
//     if (!progress.ended && the call's time is nearly over) ask the workers whether they answer;
//     write(progress); if (progress.ended) finish; sleep(kWatchInterval)
//   }
// The interval starts when the previous message is written, so a slow client gets fewer messages.
class WatchReactor final : public grpc::ServerWriteReactor<v1::WatchOperationResponse> {
 public:
  // `give_up`: when the call ends although the operation goes on.
  WatchReactor(Clock* clock, const AllOperations* calls, const StepWatch* watch,
               StreamSet<WatchReactor>* streams, std::string operation_id, absl::Time give_up)
      : calls_(calls),
        watch_(watch),
        streams_(streams),
        operation_id_(std::move(operation_id)),
        clock_(clock),
        give_up_(give_up),
        ask_from_(give_up - StepWatch::kAskBefore),
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
      const absl::Time now = clock_->Now();
      const absl::Time next_event = now < ask_from_ ? ask_from_ : give_up_;
      next_look_->SetNoLaterThan(std::min(now + kWatchInterval, next_event));
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
    const absl::StatusOr<OperationProgress> progress = calls_->Progress(operation_id_);
    if (!progress.ok()) {
      return Close(progress.status());
    }
    if (!progress->ended && clock_->Now() >= give_up_) {
      return Close(watch_->ExplainLate("the operation", calls_->WorkersOf(operation_id_)));
    }
    // Each time: the operation may have got other workers since the last question.
    if (!progress->ended && clock_->Now() >= ask_from_) {
      watch_->Ask(calls_->WorkersOf(operation_id_));
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

  const AllOperations* const calls_;
  const StepWatch* const watch_;
  StreamSet<WatchReactor>* const streams_;
  const std::string operation_id_;
  Clock* const clock_;
  const absl::Time give_up_;
  const absl::Time ask_from_;
  Outbox outbox_;
  std::unique_ptr<Alarm> next_look_;  // its destructor waits for Look
};

// ReportGet takes its requests as bytes (rpc/stream/message_bytes.h), the other methods as
// messages.
#define SHARDMESH_MESSAGES(Method) v1::OperationService::WithCallbackMethod_##Method
using OperationServiceBase =
    WithMethods<v1::OperationService::Service,
                v1::OperationService::WithRawCallbackMethod_ReportGet,
                SHARDMESH_MESSAGES(GetOperation), SHARDMESH_MESSAGES(ListOperations),
                SHARDMESH_MESSAGES(WatchOperation), SHARDMESH_MESSAGES(CancelOperation)>::Type;
#undef SHARDMESH_MESSAGES

class OperationService final : public OperationServiceBase {
 public:
  OperationService(const CoordinatorParts& parts, const StepWatch* watch)
      : clock_(parts.clock),
        watch_(watch),
        calls_(parts.transfers, parts.operations, parts.sessions),
        get_reports_(parts.clock, parts.operations, parts.sessions) {}

  grpc::ServerUnaryReactor* GetOperation(grpc::CallbackServerContext* context,
                                         const v1::GetOperationRequest* request,
                                         v1::GetOperationResponse* response) override {
    return FinishUnary(context,
                       calls_.GetOperation(request->operation_id(), response->mutable_operation()));
  }

  grpc::ServerUnaryReactor* ListOperations(grpc::CallbackServerContext* context,
                                           const v1::ListOperationsRequest* request,
                                           v1::ListOperationsResponse* response) override {
    return FinishUnary(context, calls_.ListOperations(*request, response));
  }

  grpc::ServerUnaryReactor* CancelOperation(grpc::CallbackServerContext* context,
                                            const v1::CancelOperationRequest* request,
                                            v1::CancelOperationResponse* response) override {
    return FinishUnary(context, calls_.CancelOperation(*request, rpc::CallerOf(*context),
                                                       response->mutable_operation()));
  }

  grpc::ServerWriteReactor<v1::WatchOperationResponse>* WatchOperation(
      grpc::CallbackServerContext* context, const v1::WatchOperationRequest* request) override {
    return new WatchReactor(clock_, &calls_, watch_, &watches_, request->operation_id(),
                            clock_->Now() + rpc::TimeLeft(*context) - rpc::kTimeToTell);
  }

  grpc::ServerReadReactor<grpc::ByteBuffer>* ReportGet(grpc::CallbackServerContext* context,
                                                       grpc::ByteBuffer* response) override {
    return get_reports_.Open(context, response);
  }

  void EndStreams() {
    watches_.EndAll();
    get_reports_.EndAll();
  }

 private:
  Clock* const clock_;
  const StepWatch* const watch_;
  const AllOperations calls_;
  StreamSet<WatchReactor> watches_;
  GetReports get_reports_;
};

}  // namespace

StreamingService MakeOperationService(const CoordinatorParts& parts, const StepWatch* watch) {
  auto service = std::make_unique<OperationService>(parts, watch);
  OperationService* const raw = service.get();
  return {.service = std::move(service), .end_streams = [raw] { raw->EndStreams(); }};
}

}  // namespace shardmesh::server
