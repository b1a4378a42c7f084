// Serves one BeginPut: takes the tensors, begins the transfer, and answers. If requested, ends the
// transfer with the call.
#include "server/service/put_stream.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "rpc/caller.h"
#include "rpc/codec/status.h"
#include "rpc/stream/finish_once.h"
#include "rpc/stream/message_bytes.h"
#include "server/calls/content_calls.h"
#include "server/codec/put_codec.h"
#include "server/content/content_check.h"
#include "server/service/background_reactor.h"
#include "server/steps/file_check.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// Time limits for the client: between two messages, and for all messages together. The call ends if
// the client exceeds either limit.
constexpr absl::Duration kIdleLimit = absl::Seconds(30);
constexpr absl::Duration kTakeLimit = absl::Minutes(5);

}  // namespace

// BeginPut, as synchronous code:
//   requests.Take(read()), on a thread of the background if that takes long
//   while (tensors = read()) requests.Take(tensors)
//   plan = requests.plan()
//   put = memory.Find(plan), or else, on a thread of the background:
//     if (plan.may_reuse()) plan.FindReusable()
//     if (claims = plan.TakeClaims()) plan.UseContent(check(claims)), which waits for the workers
//     if (plan.reads_files()) check(plan.Readers()), which waits for all workers
//     plan.Begin(), which begins nothing if it only validates
//   while (!answer.is_at_end()) write(answer.Next())
//   if (plan.hold()) wait for the transfer's end; abort the transfer if the client goes before
//                    its commit
//   finish
// An error of any step ends the call. OnReadDone and EndIfIdle may run at the same time. Whichever
// of the two clears is_reading_ continues or ends the call; the other function does nothing.
class PutStreams::Stream final
    : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Stream(PutStreams* streams, const grpc::CallbackServerContext* call)
      : streams_(streams),
        parts_(streams->parts_),
        begun_(&streams->begun_),
        call_(call),
        caller_(rpc::CallerOf(*call)),
        place_(streams->open_.Take(caller_.name)),
        take_by_(parts_.clock->Now() + kTakeLimit),
        requests_(parts_.plan),
        idle_(std::make_unique<Alarm>(parts_.clock, [this] { EndIfIdle(); })) {
    if (!place_.has_value()) {
      end_.End(WithRetryDelay(
          WithReason(absl::ResourceExhaustedError(
                         StrCat(caller_.name, " has ", streams->open_.max_per_caller(),
                                " BeginPut streams open, the most that a caller may have; end one "
                                "first")),
                     Reason::kOverloaded, {{fact::kLimit, streams->open_.max_per_caller()}}),
          absl::Seconds(1)));
      return;
    }
    Read();
  }

  void OnReadDone(bool ok) override {
    {
      absl::MutexLock lock(&mutex_);
      if (!std::exchange(is_reading_, false)) {
        return;  // EndIfIdle has ended the call
      }
    }
    if (absl::Status status = ok ? TakeMessage() : BeginTransfer(); !status.ok()) {
      end_.End(std::move(status));
    }
  }
  void OnWriteDone(bool ok) override {
    if (!ok) {
      // If no repeated request has got the answer either, no client knows the transfer: abort it.
      if (!transfer_id_.empty() && begun_->NotDelivered(key_)) {
        parts_.transfers
            ->Abort(transfer_id_, absl::CancelledError("the client left before it had the answer"))
            .IgnoreError();
      }
      return end_.End(absl::CancelledError("the client left"));
    }
    if (!answer_->is_at_end()) {
      return Write();
    }
    // A holding call waits for the transfer's end, and `answer_` must not keep the put's data alive
    // for that time.
    answer_.reset();
    const bool holds = requests_.plan().header().hold;
    if (!transfer_id_.empty()) {
      begun_->Delivered(key_, holds);
    }
    place_.reset();
    holds ? HoldTransfer() : end_.End(absl::OkStatus());
  }
  void OnCancel() override {
    absl::AnyInvocable<void() &&> cancel_check;
    bool was_held = false;
    {
      absl::MutexLock lock(&mutex_);
      is_cancelled_ = true;
      was_held = std::exchange(is_held_, false);
      cancel_check = std::exchange(cancel_check_, nullptr);
    }
    if (cancel_check != nullptr) std::move(cancel_check)();
    if (was_held) ReleasePut();
  }
  void OnDone() override {
    idle_.reset();
    delete this;
  }

 private:
  absl::Status TakeMessage() {
    SHARDMESH_RETURN_IF_ERROR(rpc::ParseMessage(&read_, &request_));
    if (!requests_.TakesLong(request_)) {
      return TakeAndReadOn();
    }
    SHARDMESH_RETURN_IF_ERROR(end_.BeginWork());
    if (!streams_->background_.Run(caller_.name, [this] { end_.EndWork(TakeAndReadOn()); })) {
      end_.EndWork(TooManyWait());
    }
    return absl::OkStatus();
  }
  absl::Status TakeAndReadOn() {
    SHARDMESH_RETURN_IF_ERROR(
        requests_.Take(request_, caller_, [this] { return call_->IsCancelled(); }));
    Read();
    return absl::OkStatus();
  }

  // Begins the transfer after the client's last message. CANCELLED: the client has left.
  absl::Status BeginTransfer() {
    if (call_->IsCancelled()) {
      return absl::CancelledError("the client left before it had sent all");
    }
    PutPlan& plan = requests_.plan();
    if (!plan.has_header()) {
      return rpc::BadField("header", "is missing; it must be the first message");
    }
    if (!plan.header().validate_only) {
      key_ = requests_.key();
      SHARDMESH_ASSIGN_OR_RETURN(BegunPutPtr put, begun_->Find(key_, requests_.fingerprint()));
      if (put != nullptr) {
        Answer(std::move(put));
        return absl::OkStatus();
      }
    }
    // Beginning a put takes long if the put has many tensors, or if all arrays are to be counted or
    // compared.
    absl::Status begun = end_.BeginWork();
    if (begun.ok()) {
      const bool is_queued = streams_->background_.Run(caller_.name, [this] {
        if (call_->IsCancelled()) return EndCheck(absl::CancelledError("the client left"));
        end_.EndWork(BeginNew());
      });
      if (is_queued) return absl::OkStatus();
      begun = TooManyWait();
      end_.EndWork(absl::OkStatus());
    }
    BeganNothing();
    return begun;
  }

  // Begins a put that no earlier request began. On a thread of the background.
  absl::Status BeginNew() {
    if (!requests_.plan().may_reuse()) return BeginOrCheckFiles();
    requests_.plan().FindReusable([this] { return call_->IsCancelled(); });
    if (parts_.digests == nullptr) return BeginOrCheckFiles();
    claims_ = requests_.plan().TakeClaims();
    if (claims_.empty()) return BeginOrCheckFiles();
    // If a worker does not answer, the client still needs time to send the tensors. Only then does
    // the put's error name that worker.
    constexpr int kShareOfCheck = 4;
    const absl::Duration idle_limit =
        std::min(ContentCheck::kIdleLimit, rpc::TimeLeft(*call_) / kShareOfCheck);
    // The work of the check ends with the call of ContentChecked.
    const absl::Status checking = end_.BeginWork();
    if (!checking.ok()) {
      BeganNothing();
      return checking;
    }
    std::shared_ptr<ContentCheck> check = ContentCheck::Start(
        parts_.digests, *parts_.plan.endpoints, parts_.clock, claims_,
        [this](std::vector<bool> is_true) { ContentChecked(std::move(is_true)); }, idle_limit);
    Keep([check = std::move(check)] { check->Cancel(); });
    return absl::OkStatus();
  }
  // Goes on with the claims that are true. Called on any thread, for which that takes too long.
  void ContentChecked(std::vector<bool> is_true) {
    const bool is_queued =
        streams_->background_.Run(caller_.name, [this, is_true = std::move(is_true)] {
          if (call_->IsCancelled()) return EndCheck(absl::CancelledError("the client left"));
          requests_.plan().UseContent(std::move(claims_), is_true,
                                      [this] { return call_->IsCancelled(); });
          end_.EndWork(BeginOrCheckFiles());
        });
    if (!is_queued) EndCheck(TooManyWait());
  }

  absl::Status BeginOrCheckFiles() {
    if (!requests_.plan().reads_files()) return BeginPlan();
    const absl::Status checking = StartFileCheck();
    if (!checking.ok()) BeganNothing();
    return checking;
  }

  // Records that the first request with this key failed.
  void BeganNothing() {
    if (!requests_.plan().header().validate_only) begun_->Began(key_, nullptr);
  }

  absl::Status BeginPlan() {
    absl::StatusOr<BegunPutPtr> put =
        requests_.plan().Begin([this] { return call_->IsCancelled(); });
    if (!put.ok()) {
      BeganNothing();
      return put.status();
    }
    if (!requests_.plan().header().validate_only) begun_->Began(key_, *put);
    Answer(*std::move(put));
    return absl::OkStatus();
  }

  // Makes the stream work until all workers have said whether they can read the put's files, and
  // the put has begun. On a thread of the background.
  absl::Status StartFileCheck() {
    SHARDMESH_ASSIGN_OR_RETURN(FileReaders readers, requests_.plan().Readers());
    // The work of the check ends with the call of FilesChecked.
    SHARDMESH_RETURN_IF_ERROR(end_.BeginWork());
    std::shared_ptr<FileCheck> check = FileCheck::Start(
        parts_.plan.fill, parts_.clock, std::move(readers),
        [this](absl::Status status) { FilesChecked(std::move(status)); },
        rpc::TimeLeft(*call_) - rpc::kTimeToTell);
    Keep([check = std::move(check)] { check->Cancel(); });
    return absl::OkStatus();
  }
  // Keeps a check for OnCancel. If the client has gone, cancels the check.
  void Keep(absl::AnyInvocable<void() &&> cancel) {
    absl::AnyInvocable<void() &&> former;  // destroyed without the lock
    {
      absl::MutexLock lock(&mutex_);
      if (!is_cancelled_) {
        former = std::exchange(cancel_check_, std::move(cancel));
        return;
      }
    }
    std::move(cancel)();
  }
  // Begins the put if all workers can read its files. Called on any thread, for which beginning the
  // put takes too long.
  void FilesChecked(absl::Status status) {
    if (status.ok()) {
      const bool is_queued = streams_->background_.Run(caller_.name, [this] {
        if (call_->IsCancelled()) return EndCheck(absl::CancelledError("the client left"));
        end_.EndWork(BeginPlan());
      });
      if (is_queued) return;
      status = TooManyWait();
    }
    EndCheck(std::move(status));
  }
  void EndCheck(absl::Status status) {
    BeganNothing();
    end_.EndWork(std::move(status));
  }

  // Sends the answer of a put that has begun, or was validated.
  void Answer(BegunPutPtr put) {
    transfer_id_ = put->transfer_id;
    answer_.emplace(parts_.term, parts_.token_key, std::move(put));
    Write();
  }

  // Makes the call wait for the transfer. When the transfer ends, the call finishes.
  void HoldTransfer() {
    bool is_cancelled = false;
    {
      absl::MutexLock lock(&mutex_);
      is_cancelled = is_cancelled_;
      is_held_ = !is_cancelled;
    }
    if (is_cancelled) {
      ReleasePut();
    }
    parts_.transfers->OnEnd(transfer_id_, [this] {
      bool is_held = false;
      {
        absl::MutexLock lock(&mutex_);
        is_held = std::exchange(is_held_, false);
      }
      if (is_held) {
        begun_->Ended(key_);
      }
      end_.End(absl::OkStatus());
    });
  }
  // Called when the client of a holding call has gone. Aborts the transfer, except in two cases:
  // another call also has the transfer, or the commit of the transfer was requested. In these cases
  // only this call ends. A client that lost its connection sends its commit request again, over a
  // new connection.
  void ReleasePut() {
    if (parts_.transfers->IsCommitAskedFor(transfer_id_)) return begun_->Ended(key_);
    if (!begun_->Release(key_)) return;
    // Abandon checks again whether the commit was requested, because the request may arrive at this
    // moment.
    parts_.transfers->Abandon(
        transfer_id_, WithReason(absl::CancelledError("the client's connection broke before it "
                                                      "asked for the commit of the put; put again"),
                                 Reason::kCancelled));
  }

  void Read() {
    absl::Time due;
    {
      absl::MutexLock lock(&mutex_);
      is_reading_ = true;
      due = due_ = std::min(parts_.clock->Now() + kIdleLimit, take_by_);
    }
    idle_->SetNoLaterThan(due);
    StartRead(&read_);
  }

  void EndIfIdle() {
    {
      absl::MutexLock lock(&mutex_);
      if (!is_reading_) {
        return;  // the next Read sets the alarm again
      }
      if (parts_.clock->Now() < due_) {
        return idle_->SetNoLaterThan(due_);
      }
      is_reading_ = false;
    }
    end_.End(
        WithReason(absl::DeadlineExceededError(StrCat(
                       "the client did not send all tensors of the put in time: at most ",
                       absl::FormatDuration(kIdleLimit), " may pass between two messages, and ",
                       absl::FormatDuration(kTakeLimit), " until the last one; put again")),
                   Reason::kDeadline, {{fact::kLimit, absl::ToDoubleSeconds(kTakeLimit)}}));
  }

  void Write() {
    write_ = rpc::SerializeMessage(answer_->Next());
    StartWrite(&write_);
  }

  PutStreams* const streams_;
  const PutStreamParts& parts_;
  PutMemory* const begun_;
  const grpc::CallbackServerContext* const call_;
  const rpc::Caller caller_;
  // The stream counts as one of its caller's open streams until the answer is sent.
  std::optional<CallerCount::Place> place_;
  const absl::Time take_by_;

  rpc::FinishOnce end_{[this](const absl::Status& status) { Finish(rpc::ToGrpc(status)); }};
  absl::Mutex mutex_;
  bool is_reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_held_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  // Cancels the check of this stream that began last; null: there is none.
  absl::AnyInvocable<void() &&> cancel_check_ ABSL_GUARDED_BY(mutex_);
  absl::Time due_ ABSL_GUARDED_BY(mutex_);  // while is_reading_: when the read times out

  // No lock: only one reaction (gRPC callback) at a time uses the following members.
  grpc::ByteBuffer read_;
  v1::BeginPutRequest request_;
  PutRequests requests_;
  std::vector<ClaimedArray> claims_;  // while the workers are asked about them
  std::string key_;
  std::string transfer_id_;
  std::optional<PutAnswer> answer_;  // the answer until it is sent
  grpc::ByteBuffer write_;

  std::unique_ptr<Alarm> idle_;  // its destructor waits for EndIfIdle
};

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* PutStreams::Open(
    const grpc::CallbackServerContext* call) {
  return new Stream(this, call);
}

grpc::ServerUnaryReactor* PutStreams::FindContent(const grpc::CallbackServerContext& call,
                                                  const v1::FindContentRequest* request,
                                                  v1::FindContentResponse* response) {
  return new BackgroundReactor(
      call,
      [this, request, response](const std::function<bool()>& is_cancelled) {
        return server::FindContent(*parts_.plan.registry, *request, is_cancelled, response);
      },
      &background_);
}

}  // namespace shardmesh::server
