// Serves one ReportGet: the get is an operation from the first message to the end of the call.
#include "server/watch/get_report_stream.h"

#include <atomic>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "rpc/caller.h"
#include "rpc/codec/status.h"
#include "rpc/stream/finish_once.h"
#include "rpc/stream/message_bytes.h"
#include "server/calls/reported_get.h"
#include "shardmesh/v1/operation_service.pb.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// Time limit for the client's first message. A later silence needs none: the session ends with it.
constexpr absl::Duration kHeaderLimit = absl::Seconds(30);

}  // namespace

// ReportGet, as synchronous code:
//   while (request = read()) get.Take(request)
//   get.Conclude(), write the answer, finish
//   get.End()
// A cancellation of the operation, an error, and the end of the server end the call at any time.
class GetReports::Stream final : public grpc::ServerReadReactor<grpc::ByteBuffer> {
 public:
  Stream(GetReports* reports, const grpc::CallbackServerContext* call, grpc::ByteBuffer* response)
      : reports_(reports),
        call_(call),
        caller_(rpc::CallerOf(*call)),
        response_(response),
        get_(reports->operations_, reports->sessions_),
        link_(std::make_shared<Link>(this)),
        header_due_(std::make_unique<Alarm>(reports->clock_, [this] { EndWithoutHeader(); })) {
    reports_->streams_.Add(this);
    header_due_->SetNoLaterThan(reports_->clock_->Now() + kHeaderLimit);
    if (!end_.BeginWork().ok()) return;  // the server is stopping
    StartRead(&read_);
    end_.EndWork(absl::OkStatus());
  }

  void End() {
    end_.End(WithRetryDelay(
        WithReason(absl::UnavailableError("the coordinator is stopping; report the get later"),
                   Reason::kNotServing),
        absl::Seconds(1)));
  }

  void OnReadDone(bool ok) override {
    if (!end_.BeginWork().ok()) return;
    if (ok) return end_.EndWork(TakeAndReadOn());
    absl::Status status = call_->IsCancelled() ? ClientLeft() : get_.Conclude();
    if (status.ok()) end_.End(absl::OkStatus());
    end_.EndWork(std::move(status));
  }
  void OnCancel() override { end_.End(ClientLeft()); }
  void OnDone() override {
    header_due_.reset();
    {
      absl::MutexLock lock(&link_->mutex);
      link_->stream = nullptr;
    }
    get_.End(result_);
    reports_->streams_.Remove(this);
    delete this;
  }

 private:
  // Leads from the operation to the stream. Cancellations can come after the stream's end.
  struct Link {
    explicit Link(Stream* of) : stream(of) {}

    absl::Status Cancel(const absl::Status& reason) {
      absl::MutexLock lock(&mutex);
      if (stream != nullptr) stream->end_.End(reason);
      return absl::OkStatus();
    }

    absl::Mutex mutex;
    Stream* stream ABSL_GUARDED_BY(mutex);  // null once the stream has ended
  };

  static absl::Status ClientLeft() {
    return absl::CancelledError("the client left before the get had ended");
  }

  absl::Status TakeAndReadOn() {
    v1::ReportGetRequest request;
    SHARDMESH_RETURN_IF_ERROR(rpc::ParseMessage(&read_, &request));
    SHARDMESH_RETURN_IF_ERROR(
        get_.Take(request, caller_,
                  [link = link_](const absl::Status& reason) { return link->Cancel(reason); }));
    has_begun_ = true;
    StartRead(&read_);
    return absl::OkStatus();
  }
  void EndWithoutHeader() {
    if (has_begun_) return;
    end_.End(WithReason(absl::DeadlineExceededError(StrCat("the first message did not come within ",
                                                           absl::FormatDuration(kHeaderLimit),
                                                           "; report the get again")),
                        Reason::kDeadline, {{fact::kLimit, absl::ToDoubleSeconds(kHeaderLimit)}}));
  }
  void FinishWith(const absl::Status& status) {
    // The operation may have ended with its result just before a cancellation reached this stream.
    const bool has_result = absl::IsCancelled(status) && get_.Conclude().ok();
    result_ = has_result ? absl::OkStatus() : status;
    if (result_.ok()) {
      v1::ReportGetResponse response;
      response.set_operation_id(get_.operation_id());
      *response_ = rpc::SerializeMessage(response);
    }
    Finish(rpc::ToGrpc(result_));
  }

  GetReports* const reports_;
  const grpc::CallbackServerContext* const call_;
  const rpc::Caller caller_;
  grpc::ByteBuffer* const response_;

  // No lock: only one reaction (gRPC callback) at a time uses the following members.
  grpc::ByteBuffer read_;
  ReportedGet get_;
  absl::Status result_;  // written before Finish, read in OnDone

  std::atomic<bool> has_begun_ = false;
  const std::shared_ptr<Link> link_;
  rpc::FinishOnce end_{[this](const absl::Status& status) { FinishWith(status); }};
  std::unique_ptr<Alarm> header_due_;  // its destructor waits for EndWithoutHeader
};

grpc::ServerReadReactor<grpc::ByteBuffer>* GetReports::Open(const grpc::CallbackServerContext* call,
                                                            grpc::ByteBuffer* response) {
  return new Stream(this, call, response);
}

void GetReports::EndAll() { streams_.EndAll(); }

}  // namespace shardmesh::server
