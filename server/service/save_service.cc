// The methods of SaveService.
#include "server/service/save_service.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "rpc/caller.h"
#include "rpc/codec/field_check.h"
#include "rpc/codec/status.h"
#include "server/codec/save_codec.h"
#include "server/resolve/background.h"
#include "server/service/background_reactor.h"
#include "server/state/request_index.h"
#include "shardmesh/v1/save_service.grpc.pb.h"
#include "status/reason.h"
#include "status/status_macros.h"

namespace shardmesh::server {
namespace {

// WaitSave: the save answers the call. The client's cancellation and the alarm before the call's
// deadline also answer it, and stop the wait. The call ends once: a save that ends at the same time
// finds it answered.
class WaitSaveReactor final : public grpc::ServerUnaryReactor {
 public:
  WaitSaveReactor(Clock* clock, Saves* saves, const StepWatch* watch,
                  v1::WaitSaveResponse* response)
      : clock_(clock),
        saves_(saves),
        watch_(watch),
        call_(std::make_shared<Call>(this, response)),
        overdue_(clock, [this] { GiveUp(); }) {}

  // Cancellations come only after the method has returned the reactor, and Start before it.
  // `give_up`: when the call ends without an answer of the save.
  void Start(const std::string& operation_id, absl::Time give_up) {
    operation_id_ = operation_id;
    give_up_ = give_up;
    number_ = saves_->Wait(operation_id, [call = call_](const absl::StatusOr<SaveResult>& result) {
      call->Answer([&result](v1::WaitSaveResponse* response) {
        if (result.ok()) Encode(*result, response);
        return rpc::ToGrpc(result.status());
      });
    });
    overdue_.SetNoLaterThan(give_up - StepWatch::kAskBefore);
  }

  void OnCancel() override {
    saves_->StopWaiting(operation_id_, number_);
    call_->Answer([](v1::WaitSaveResponse*) { return grpc::Status::CANCELLED; });
  }
  void OnDone() override { delete this; }

 private:
  void GiveUp() {
    if (clock_->Now() < give_up_) {
      watch_->Ask({.waiting_for = saves_->WaitsFor(operation_id_)});
      return overdue_.SetNoLaterThan(give_up_);
    }
    saves_->StopWaiting(operation_id_, number_);
    const absl::Status late =
        watch_->ExplainLate("the save", {.waiting_for = saves_->WaitsFor(operation_id_)});
    call_->Answer([&late](v1::WaitSaveResponse*) { return rpc::ToGrpc(late); });
  }

  // Outlives the reactor if the save ends after the call.
  struct Call {
    Call(WaitSaveReactor* reactor_in, v1::WaitSaveResponse* response_in)
        : reactor(reactor_in), response(response_in) {}

    template <typename Fill>
    void Answer(const Fill& fill) {
      if (!is_answered.exchange(true)) reactor->Finish(fill(response));
    }

    WaitSaveReactor* const reactor;
    v1::WaitSaveResponse* const response;
    std::atomic<bool> is_answered = false;
  };

  Clock* const clock_;
  Saves* const saves_;
  const StepWatch* const watch_;
  const std::shared_ptr<Call> call_;
  // These are constant after Start.
  std::string operation_id_;
  absl::Time give_up_;
  int64_t number_ = 0;
  // Last: its destructor waits for GiveUp, which sets it again.
  Alarm overdue_;
};

class SaveService final : public v1::SaveService::CallbackService {
 public:
  SaveService(Clock* clock, Saves* saves, const SessionTable* sessions, const StepWatch* watch)
      : clock_(clock), saves_(saves), sessions_(sessions), watch_(watch) {}

  grpc::ServerUnaryReactor* BeginSave(grpc::CallbackServerContext* context,
                                      const v1::BeginSaveRequest* request,
                                      v1::BeginSaveResponse* response) override {
    return new BackgroundReactor(
        *context,
        [this, caller = rpc::CallerOf(*context), request, response](const std::function<bool()>&) {
          return Begin(caller, *request, response);
        },
        // A worker whose disk hangs delays other validations only.
        request->validate_only() ? &validations_ : &background_);
  }

  grpc::ServerUnaryReactor* WaitSave(grpc::CallbackServerContext* context,
                                     const v1::WaitSaveRequest* request,
                                     v1::WaitSaveResponse* response) override {
    auto* const reactor = new WaitSaveReactor(clock_, saves_, watch_, response);
    reactor->Start(request->operation_id(),
                   clock_->Now() + rpc::TimeLeft(*context) - rpc::kTimeToTell);
    return reactor;
  }

  void EndSaves() {
    saves_->Stop(WithReason(absl::UnavailableError("the coordinator is stopping, and the save was "
                                                   "cancelled; save again when it serves"),
                            Reason::kNotServing));
  }

 private:
  absl::Status Begin(const rpc::Caller& caller, const v1::BeginSaveRequest& request,
                     v1::BeginSaveResponse* response) {
    SHARDMESH_RETURN_IF_ERROR(rpc::CheckRequestId(request.request_id(), "request_id"));
    SHARDMESH_RETURN_IF_ERROR(sessions_->Check(request.session_id(), caller));
    SaveRequest save = Decode(request);
    if (request.validate_only()) {
      SHARDMESH_ASSIGN_OR_RETURN(const BegunSave checked, saves_->Check(save));
      Encode(checked, response);
      return absl::OkStatus();
    }
    save.request_key = RequestKey(request.session_id(), "BeginSave", request.request_id());
    SHARDMESH_ASSIGN_OR_RETURN(const BegunSave begun, saves_->Begin(save));
    Encode(begun, response);
    return absl::OkStatus();
  }

  Clock* const clock_;
  Saves* const saves_;
  const SessionTable* const sessions_;
  const StepWatch* const watch_;
  Background background_{1};  // these last: their threads use the members above
  Background validations_{2};
};

}  // namespace

StreamingService MakeSaveService(Clock* clock, Saves* saves, const SessionTable* sessions,
                                 const StepWatch* watch) {
  auto service = std::make_unique<SaveService>(clock, saves, sessions, watch);
  SaveService* const raw = service.get();
  return {.service = std::move(service), .end_streams = [raw] { raw->EndSaves(); }};
}

}  // namespace shardmesh::server
