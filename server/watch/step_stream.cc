// Runs the steps of ExecuteStream streams.
#include "server/watch/step_stream.h"

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "rpc/caller.h"
#include "rpc/codec/field_check.h"
#include "rpc/codec/status.h"
#include "rpc/stream/finish_once.h"
#include "rpc/stream/message_bytes.h"
#include "server/codec/compute_codec.h"
#include "server/steps/planner.h"
#include "server/steps/sequencer.h"
#include "shardmesh/v1/compute_service.pb.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {

// ExecuteStream, as synchronous code:
//   while (request = read()) {
//     wait until fewer than kMaxInFlight steps are not answered
//     run(request), which later calls Answer(number, its end)
//   }
//   wait until all steps are answered; finish
// The next read starts when the step is submitted, so that steps are admitted in order. A step in
// flight is work of end_, which therefore outlives all callbacks of steps.
class StepStreams::Stream final
    : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Stream(StepStreams* streams, const grpc::CallbackServerContext* call)
      : streams_(streams),
        call_(call),
        caller_(rpc::CallerOf(*call)),
        place_(streams->open_.Take(caller_.name)) {
    streams_->streams_.Add(this);
    if (!place_.has_value()) {
      End(WithRetryDelay(
          WithReason(absl::ResourceExhaustedError(StrCat(
                         caller_.name, " has ", kMaxPerCaller,
                         " ExecuteStream streams open, the most that a caller may have; end one "
                         "first")),
                     Reason::kOverloaded, {{fact::kLimit, kMaxPerCaller}}),
          absl::Seconds(1)));
    }
    MaybeRead();
  }

  // The reactions are work of end_, so that the stream is not finished while they begin to read or
  // to write.
  void OnReadDone(bool ok) override {
    if (!end_.BeginWork().ok()) return;
    if (ok) {
      TakeRead();
    } else {
      {
        absl::MutexLock lock(&mutex_);
        is_reading_ = false;
        has_read_all_ = true;
      }
      EndIfDone();
    }
    end_.EndWork(absl::OkStatus());
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return End(absl::CancelledError("the client left"));
    if (!end_.BeginWork().ok()) return;
    const grpc::ByteBuffer* next = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      answers_.pop_front();
      if (!answers_.empty() && !is_ended_) next = &answers_.front();
    }
    if (next != nullptr) StartWrite(next);
    MaybeRead();
    EndIfDone();
    end_.EndWork(absl::OkStatus());
  }

  void OnCancel() override { End(absl::CancelledError("the client left")); }
  void OnDone() override {
    streams_->streams_.Remove(this);
    delete this;
  }

  // Ends the stream because the coordinator stops. Called by StreamSet.
  void End() {
    End(WithReason(absl::UnavailableError("the coordinator is stopping; open the stream anew"),
                   Reason::kNotServing));
  }

 private:
  // Begins the step of the request that was read.
  void TakeRead() {
    if (absl::Status parsed = rpc::ParseMessage(&read_, &request_); !parsed.ok()) {
      return End(std::move(parsed));
    }
    const int64_t number = next_number_++;
    absl::StatusOr<StepCall> call = TakeRequest(number);
    if (!call.ok()) {
      Answer(number, call.status());
      return ReadOn();
    }
    Submit(number, *std::move(call));
  }

  // Ends the stream, and cancels its steps. The stream finishes when all of them have ended.
  void End(absl::Status status) {
    if (!end_.BeginWork().ok()) return;
    std::vector<std::shared_ptr<PendingStep>> steps;
    {
      absl::MutexLock lock(&mutex_);
      for (const auto& [number, step] : running_) steps.push_back(step);
      is_ended_ = true;
    }
    for (const std::shared_ptr<PendingStep>& step : steps) step->Cancel(streams_->runner_);
    end_.End(std::move(status));
    end_.EndWork(absl::OkStatus());
  }

  absl::StatusOr<StepCall> TakeRequest(int64_t number) {
    if (number == 1) {
      goes_on_ = request_.continue_after_errors();
    } else if (request_.continue_after_errors()) {
      return rpc::BadField("continue_after_errors", "is set; only the first request may set it");
    }
    v1::ExecuteRequest& step = *request_.mutable_step();
    if (step.session_id().empty()) step.set_session_id(session_id_);
    if (step.mesh_id().empty()) step.set_mesh_id(mesh_id_);
    session_id_ = step.session_id();
    mesh_id_ = step.mesh_id();
    if (step.work_case() == v1::ExecuteRequest::WORK_NOT_SET) {
      const std::shared_ptr<const PreparedPlan> before = plan_->get();
      if (before == nullptr) {
        return rpc::BadField("step.work",
                             "is not set, and no request before it had a program that was planned");
      }
      step.set_plan_hash(before->symbolic != nullptr ? before->symbolic->hash : before->hash);
    }
    {
      absl::MutexLock lock(&mutex_);
      if (failed_number_ > 0 && !goes_on_) {
        return WithReason(
            absl::AbortedError(StrCat("the step was not run because step ", failed_number_,
                                      " of its stream failed: ", failed_why_)),
            Reason::kCancelled);
      }
    }
    absl::StatusOr<StepCall> call = Decode(step);
    if (!call.ok()) return rpc::WithField(call.status(), "step");
    call->is_remembered = !call->request_id.empty();
    call->method = "ExecuteStream";
    call->caller = caller_;
    call->kept_plan = plan_;
    if (!goes_on_) call->chain = chain_;
    return call;
  }

  // Runs the step, and reads on when it is submitted.
  void Submit(int64_t number, StepCall call) {
    if (!end_.BeginWork().ok()) return;  // for the step; Answer ends it
    const auto step = std::make_shared<PendingStep>();
    bool is_ended = false;
    {
      absl::MutexLock lock(&mutex_);
      running_.emplace(number, step);
      is_ended = is_ended_;
    }
    if (is_ended) step->Cancel(streams_->runner_);
    if (!streams_->runner_->PlansLong(call)) return RunNow(number, std::move(call), step);
    if (!end_.BeginWork().ok()) return Ended(number, absl::CancelledError("the stream has ended"));
    const bool is_taken = streams_->planning_.Run(
        caller_.name, [this, number, step, call = std::move(call)]() mutable {
          RunNow(number, std::move(call), step);
          end_.EndWork(absl::OkStatus());
        });
    if (is_taken) return;
    Ended(number, TooManyWait());
    ReadOn();
    end_.EndWork(absl::OkStatus());
  }

  void RunNow(int64_t number, StepCall call, const std::shared_ptr<PendingStep>& step) {
    if (!end_.BeginWork().ok()) return Ended(number, absl::CancelledError("the stream has ended"));
    call.time_left = rpc::TimeLeft(*call_);
    step->Submitted(streams_->runner_,
                    streams_->runner_->Run(std::move(call), [this, number](StepAnswer answer) {
                      Ended(number, std::move(answer));
                    }));
    ReadOn();
    end_.EndWork(absl::OkStatus());
  }

  // Answers a step that was begun. The stream may be gone afterwards.
  void Ended(int64_t number, StepAnswer answer) {
    Answer(number, std::move(answer));
    MaybeRead();
    EndIfDone();
    end_.EndWork(absl::OkStatus());
  }

  void Answer(int64_t number, StepAnswer answer) {
    v1::ExecuteStreamResponse message;
    message.set_number(number);
    if (answer.ok()) {
      *message.mutable_response() = *std::move(answer);
    } else {
      rpc::Encode(answer.status(), message.mutable_error());
    }
    grpc::ByteBuffer bytes = rpc::SerializeMessage(message);
    const grpc::ByteBuffer* next = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      running_.erase(number);
      if (!answer.ok() && failed_number_ == 0) {
        failed_number_ = number;
        failed_why_ = ToStd(answer.status().message());
      }
      answers_.push_back(std::move(bytes));
      if (answers_.size() == 1 && !is_ended_) next = &answers_.front();
    }
    if (next != nullptr) StartWrite(next);
  }

  // Ends the turn of the request that was read.
  void ReadOn() {
    {
      absl::MutexLock lock(&mutex_);
      is_reading_ = false;
    }
    MaybeRead();
    EndIfDone();
  }

  // Reads the next request unless too many steps are not answered.
  void MaybeRead() {
    {
      absl::MutexLock lock(&mutex_);
      const auto open = static_cast<int64_t>(running_.size() + answers_.size());
      if (is_reading_ || has_read_all_ || is_ended_ || open >= kMaxInFlight) return;
      is_reading_ = true;
    }
    StartRead(&read_);
  }

  void EndIfDone() {
    {
      absl::MutexLock lock(&mutex_);
      if (!has_read_all_ || !running_.empty() || !answers_.empty()) return;
    }
    end_.End(absl::OkStatus());
  }

  StepStreams* const streams_;
  const grpc::CallbackServerContext* const call_;
  const rpc::Caller caller_;
  const std::optional<CallerCount::Place> place_;
  const std::shared_ptr<StepChain> chain_ = std::make_shared<StepChain>();
  const std::shared_ptr<KeptPlan> plan_ = std::make_shared<KeptPlan>();

  // Used only by the turn of the request that was read.
  grpc::ByteBuffer read_;
  v1::ExecuteStreamRequest request_;
  int64_t next_number_ = 1;
  bool goes_on_ = false;
  std::string session_id_;
  std::string mesh_id_;

  absl::Mutex mutex_;
  // Whether a read is under way, or the request that was read is not submitted yet.
  bool is_reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_read_all_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<int64_t, std::shared_ptr<PendingStep>> running_ ABSL_GUARDED_BY(mutex_);
  std::deque<grpc::ByteBuffer> answers_ ABSL_GUARDED_BY(mutex_);  // the first is written
  int64_t failed_number_ ABSL_GUARDED_BY(mutex_) = 0;  // of the first step that failed; 0: none
  std::string failed_why_ ABSL_GUARDED_BY(mutex_);

  rpc::FinishOnce end_{[this](const absl::Status& status) { Finish(rpc::ToGrpc(status)); }};
};

StepStreams::StepStreams(StepRunner* runner) : runner_(runner) {}

StepStreams::~StepStreams() = default;

void StepStreams::EndAll() { streams_.EndAll(); }

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StepStreams::Open(
    const grpc::CallbackServerContext* call) {
  return new Stream(this, call);
}

}  // namespace shardmesh::server
