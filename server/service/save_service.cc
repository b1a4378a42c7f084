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
#include "server/diagnosis/late_call.h"
#include "server/resolve/background.h"
#include "server/service/background_reactor.h"
#include "server/state/request_index.h"
#include "shardmesh/v1/save_service.grpc.pb.h"
#include "status/reason.h"
#include "status/status_macros.h"

namespace shardmesh::server {
namespace {

// The end of a unary call that several threads may end. The first one ends it; the others find it
// answered. Outlives the reactor if what the call waits for ends after the call.
template <typename Response>
class SharedAnswer {
 public:
  SharedAnswer(grpc::ServerUnaryReactor* reactor, Response* response)
      : reactor_(reactor), response_(response) {}

  // `fill` gets the response, and returns the status of the call.
  template <typename Fill>
  void Answer(const Fill& fill) {
    if (!is_answered_.exchange(true)) reactor_->Finish(fill(response_));
  }
  void Fail(const grpc::Status& status) {
    Answer([&status](Response*) { return status; });
  }

 private:
  grpc::ServerUnaryReactor* const reactor_;
  Response* const response_;
  std::atomic<bool> is_answered_ = false;
};

// BeginSave with validate_only: a thread of the background asks the workers. The client's
// cancellation, and LateCall before the call's deadline, also end the call, and make the thread
// stop.
class CheckSaveReactor final : public grpc::ServerUnaryReactor {
 public:
  CheckSaveReactor(Clock* clock, const StepWatch* watch, v1::BeginSaveResponse* response)
      : call_(std::make_shared<Call>(this, response)),
        late_(
            clock, watch, "the check of the save", [check = check_] { return check->Workers(); },
            [this](const absl::Status& late) {
              check_->Cancel(late);
              call_->Fail(rpc::ToGrpc(late));
            }) {}

  // Cancellations come only after the method has returned the reactor, and Start before it.
  // `check` runs on the background, perhaps after the reactor's end.
  void Start(Background* background, const std::string& caller,
             std::function<absl::StatusOr<BegunSave>(SaveCheck*)> check, absl::Time give_up) {
    const bool is_taken =
        background->Run(caller, [call = call_, of = check_, check = std::move(check)] {
          const absl::StatusOr<BegunSave> checked = check(of.get());
          call->Answer([&checked](v1::BeginSaveResponse* response) {
            if (checked.ok()) Encode(*checked, response);
            return rpc::ToGrpc(checked.status());
          });
        });
    if (!is_taken) return call_->Fail(rpc::ToGrpc(TooManyWait()));
    late_.Start(give_up);
  }

  void OnCancel() override {
    check_->Cancel(absl::CancelledError("the client has gone"));
    call_->Fail(grpc::Status::CANCELLED);
  }
  void OnDone() override { delete this; }

 private:
  using Call = SharedAnswer<v1::BeginSaveResponse>;

  const std::shared_ptr<SaveCheck> check_ = std::make_shared<SaveCheck>();
  const std::shared_ptr<Call> call_;
  LateCall late_;  // last: its destructor waits for the callbacks
};

// WaitSave: the save answers the call. The client's cancellation, and LateCall before the call's
// deadline, also answer it, and stop the wait.
class WaitSaveReactor final : public grpc::ServerUnaryReactor {
 public:
  WaitSaveReactor(Clock* clock, Saves* saves, const StepWatch* watch,
                  v1::WaitSaveResponse* response)
      : saves_(saves),
        call_(std::make_shared<Call>(this, response)),
        late_(
            clock, watch, "the save", [this] { return saves_->WorkersOf(operation_id_); },
            [this](const absl::Status& late) {
              saves_->StopWaiting(operation_id_, number_);
              call_->Fail(rpc::ToGrpc(late));
            }) {}

  // Cancellations come only after the method has returned the reactor, and Start before it.
  // `give_up`: when the call ends without an answer of the save.
  void Start(const std::string& operation_id, absl::Time give_up) {
    operation_id_ = operation_id;
    number_ = saves_->Wait(operation_id, [call = call_](const absl::StatusOr<SaveResult>& result) {
      call->Answer([&result](v1::WaitSaveResponse* response) {
        if (result.ok()) Encode(*result, response);
        return rpc::ToGrpc(result.status());
      });
    });
    late_.Start(give_up);
  }

  void OnCancel() override {
    saves_->StopWaiting(operation_id_, number_);
    call_->Fail(grpc::Status::CANCELLED);
  }
  void OnDone() override { delete this; }

 private:
  using Call = SharedAnswer<v1::WaitSaveResponse>;

  Saves* const saves_;
  const std::shared_ptr<Call> call_;
  // These are constant after Start.
  std::string operation_id_;
  int64_t number_ = 0;
  LateCall late_;  // last: its destructor waits for the callbacks
};

class SaveService final : public v1::SaveService::CallbackService {
 public:
  SaveService(Clock* clock, Saves* saves, const SessionTable* sessions, const StepWatch* watch)
      : clock_(clock), saves_(saves), sessions_(sessions), watch_(watch) {}

  grpc::ServerUnaryReactor* BeginSave(grpc::CallbackServerContext* context,
                                      const v1::BeginSaveRequest* request,
                                      v1::BeginSaveResponse* response) override {
    if (request->validate_only()) return Validate(*context, *request, response);
    return new BackgroundReactor(
        *context,
        [this, caller = rpc::CallerOf(*context), request, response](const std::function<bool()>&) {
          return Begin(caller, *request, response);
        },
        &background_);
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
  absl::Status CheckCaller(const rpc::Caller& caller, const v1::BeginSaveRequest& request) const {
    SHARDMESH_RETURN_IF_ERROR(rpc::CheckRequestId(request.request_id(), "request_id"));
    return sessions_->Check(request.session_id(), caller);
  }

  grpc::ServerUnaryReactor* Validate(const grpc::CallbackServerContext& context,
                                     const v1::BeginSaveRequest& request,
                                     v1::BeginSaveResponse* response) {
    auto* const reactor = new CheckSaveReactor(clock_, watch_, response);
    const rpc::Caller caller = rpc::CallerOf(context);
    // A worker whose disk hangs delays other validations only.
    reactor->Start(
        &validations_, caller.name,
        [this, allowed = CheckCaller(caller, request),
         save = Decode(request)](SaveCheck* check) -> absl::StatusOr<BegunSave> {
          SHARDMESH_RETURN_IF_ERROR(allowed);
          return saves_->Check(save, check);
        },
        clock_->Now() + rpc::TimeToWait(context));
    return reactor;
  }

  absl::Status Begin(const rpc::Caller& caller, const v1::BeginSaveRequest& request,
                     v1::BeginSaveResponse* response) {
    SHARDMESH_RETURN_IF_ERROR(CheckCaller(caller, request));
    SaveRequest save = Decode(request);
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
