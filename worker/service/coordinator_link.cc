// Attaches to the coordinator, and stays attached.
#include "worker/service/coordinator_link.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "process/log.h"
#include "rpc/connector.h"
#include "rpc/tls/dial.h"
#include "status/detail.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "worker/service/attach_handler.h"
#include "worker/service/attach_message_codec.h"
#include "worker/service/attach_reports.h"
#include "worker/service/attach_stream.h"
#include "worker/service/term_keeper.h"

namespace shardmesh::worker {
namespace {

// Interval between log warnings about the same wait; each try in between logs at level debug.
constexpr absl::Duration kLogInterval = absl::Seconds(30);
// How long connecting may take before a new attempt, which is logged; also the limit for a slow
// server's answer.
constexpr absl::Duration kConnectTimeout = absl::Seconds(10);
// A silent connection counts as broken after the sum of both times, as the coordinator counts a
// silent worker as lost.
constexpr absl::Duration kKeepaliveInterval = absl::Seconds(2);
constexpr absl::Duration kKeepaliveTimeout = absl::Seconds(3);

absl::Status CoordinatorGone() {
  return WithReason(absl::UnavailableError("this worker lost its coordinator"),
                    Reason::kStepAborted);
}

// Returns whether waiting cannot cure the error.
bool IsFinal(const absl::Status& status) {
  const Reason reason = ReasonOf(status);
  return reason == Reason::kClusterMismatch || reason == Reason::kIdentityMismatch ||
         reason == Reason::kProtocolMismatch || absl::IsInvalidArgument(status) ||
         absl::IsPermissionDenied(status);
}

// Owns the link's thread, the current stream and the end of the link. AttachReports has what goes
// up, AttachHandler what comes down, TermKeeper which coordinator is followed. No lock is held
// across their calls.
class AttachLoop final : public CoordinatorLink {
 public:
  AttachLoop(Options options, std::unique_ptr<TermKeeper> terms,
             std::unique_ptr<rpc::Connector> connector)
      : options_(std::move(options)),
        connector_(std::move(connector)),
        terms_(std::move(terms)),
        reports_(AttachReports::Options{
            .clock = options_.clock,
            .store = options_.store,
            .recorder = options_.recorder,
            .progress = [executor = options_.executor] { return executor->progress(); },
            .measured_links = [links = options_.links] { return links->measured_links(); },
            .ready_changed = options_.ready_changed}),
        handler_(AttachHandler::Options{.coordinator = options_.coordinator,
                                        .identity = options_.self.identity,
                                        .clock = options_.clock,
                                        .store = options_.store,
                                        .gate = options_.gate,
                                        .links = options_.links,
                                        .executor = options_.executor,
                                        .terms = terms_.get(),
                                        .reports = &reports_}) {}

  ~AttachLoop() override {
    const std::shared_ptr<AttachStream> stream = Stop();
    if (stream != nullptr) {
      stream->Cancel();
    }
    if (thread_.joinable()) {
      thread_.join();
    }
  }

  void Start() override {
    thread_ = std::thread([this] { Run(); });
  }

  void ReportTile(const TileReport& report) override { reports_.ReportTile(report); }

  void ReportPeers(int64_t epoch, const std::vector<std::string>& unreached) override {
    reports_.ReportPeers(epoch, unreached);
  }

  void Leave(const std::string& reason, absl::Time deadline) override {
    const std::shared_ptr<AttachStream> stream = Stop();
    if (stream != nullptr && !reports_.state().attached) {
      stream->Cancel();  // the coordinator does not count on this worker yet
    } else if (stream != nullptr) {
      internal::v1::AttachRequest request;
      request.mutable_leaving()->set_reason(reason);
      stream->Send(std::move(request));
      {
        // The coordinator ends the stream when nothing needs this worker any more.
        absl::MutexLock lock(&mutex_);
        mutex_.AwaitWithDeadline(absl::Condition(this, &AttachLoop::HasNoStream), deadline);
      }
      stream->CloseAfterWrites();
    }
    absl::MutexLock lock(&mutex_);
    if (!mutex_.AwaitWithDeadline(absl::Condition(this, &AttachLoop::HasNoStream),
                                  std::max(deadline, absl::Now() + kCloseTimeout))) {
      stream->Cancel();
    }
  }

  State state() const override {
    const AttachReports::State reported = reports_.state();
    return {.attached = reported.attached,
            .ready = reported.ready,
            .epoch = reported.epoch,
            .term = terms_->known().number};
  }

 private:
  // A live coordinator ends a half-closed stream at once.
  static constexpr absl::Duration kCloseTimeout = absl::Milliseconds(500);

  bool HasNoStream() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stream_ == nullptr; }
  // No further attempt begins. Returns the current stream; null if there is none.
  std::shared_ptr<AttachStream> Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  // On the link's thread.
  void Run();
  // Returns the error that ended an attempt, or the cause of a failed connection where it is found.
  absl::Status Explained(absl::Status ended) const;
  absl::Status AttachOnce(rpc::Backoff& backoff);
  // The stream is over. Returns whether the worker was attached.
  bool Detached();
  void LogWait(const absl::Status& status, absl::Duration delay);
  WorkerHello MakeHello() const;

  const Options options_;
  const std::unique_ptr<rpc::Connector> connector_;
  const std::unique_ptr<TermKeeper> terms_;

  // Used only by the link's thread.
  bool was_connected_ = false;  // of the last attempt
  std::string logged_wait_;
  absl::Time log_time_ = absl::InfinitePast();

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<AttachStream> stream_ ABSL_GUARDED_BY(mutex_);

  AttachReports reports_;
  AttachHandler handler_;  // used only by the link's thread; it reports to the above
  std::thread thread_;
};

std::shared_ptr<AttachStream> AttachLoop::Stop() {
  std::shared_ptr<AttachStream> stream;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    stream = stream_;
  }
  connector_->Cancel();
  return stream;
}

void AttachLoop::Run() {
  rpc::Backoff backoff(options_.retry);
  for (;;) {
    absl::Status ended = AttachOnce(backoff);
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) {
        return;
      }
    }
    // An established connection needs no diagnosis. The diagnosis resolves the name, which may
    // block for seconds where name servers are silent.
    if (!was_connected_) ended = Explained(std::move(ended));
    if (handler_.is_detached_for_good() || IsFinal(ended)) {
      LogError("the coordinator refuses this worker",
               {{"coordinator", options_.coordinator}, {"error", ended}});
      return options_.failed(ended);
    }
    const absl::Duration delay = backoff.NextDelay(ended);
    LogWait(ended, delay);
    absl::MutexLock lock(&mutex_);
    if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), delay)) {
      return;
    }
  }
}

absl::Status AttachLoop::Explained(absl::Status ended) const {
  if (!absl::IsUnavailable(ended) || ReasonOf(ended) != Reason::kUnspecified) {
    return ended;
  }
  const std::string found = rpc::DiagnoseConnection(options_.coordinator, options_.credentials,
                                                    rpc::ExpectedPeer::Coordinator());
  return found.empty()
             ? ended
             : absl::UnavailableError(StrCat("cannot reach ", options_.coordinator, ": ", found));
}

absl::Status AttachLoop::AttachOnce(rpc::Backoff& backoff) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel,
                             connector_->Connect(kConnectTimeout));
  was_connected_ = channel->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY;
  auto stream = std::make_shared<AttachStream>(channel);
  internal::v1::AttachRequest hello = Encode(MakeHello());
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) {
      return absl::CancelledError("the worker stops");
    }
    stream_ = stream;
    stream->Start();
  }
  stream->Send(std::move(hello));
  absl::Status status;
  while (std::optional<internal::v1::AttachResponse> message = stream->Next()) {
    if (!status.ok()) {
      continue;
    }
    if (message->has_membership() && reports_.state().attached) {
      backoff.Reset();
    }
    status = handler_.Take(*std::move(message), stream);
    if (!status.ok()) {
      stream->Cancel();
    }
  }
  const absl::Status ended = stream->Wait();
  const bool was_attached = Detached();
  if (was_attached) {
    logged_wait_.clear();  // the next wait is another one
  }
  if (!status.ok()) {
    return status;
  }
  if (was_attached && absl::IsInvalidArgument(ended)) {
    // The error does not concern the hello: a new attach may help.
    return absl::UnavailableError(ended.message());
  }
  return ended.ok() ? absl::UnavailableError("the coordinator ended the stream") : ended;
}

bool AttachLoop::Detached() {
  const bool was_attached = reports_.Detached();
  if (was_attached) {
    options_.gate->Suspend();
    // The commit message of a staged output may be lost: the next verdict decides.
    options_.executor->AbortUnfinished(CoordinatorGone());
  }
  absl::MutexLock lock(&mutex_);
  stream_ = nullptr;
  return was_attached;
}

void AttachLoop::LogWait(const absl::Status& status, absl::Duration delay) {
  const absl::Time now = options_.clock->Now();
  std::string text = status.ToString(absl::StatusToStringMode::kWithNoExtraData);
  if (const Reason reason = ReasonOf(status); reason != Reason::kUnspecified) {
    StrAppend(&text, " (", ReasonName(reason), ")");
  }
  const bool is_told = text == logged_wait_ && now - log_time_ < kLogInterval;
  (is_told ? LogDebug : LogWarning)(
      "cannot attach, will retry",
      {{"coordinator", options_.coordinator}, {"error", text}, {"retry_in", FormatRounded(delay)}});
  if (!is_told) {
    logged_wait_ = std::move(text);
    log_time_ = now;
  }
}

WorkerHello AttachLoop::MakeHello() const {
  return {.self = options_.self,
          .cluster_id = options_.store->cluster_id(),
          .data_identity = options_.store->data_identity(),
          .endpoints = options_.endpoints,
          .exchange_port = options_.exchange_port,
          .nonce = options_.nonce,
          .memory_bytes = options_.store->limit_bytes(),
          .threads = options_.threads,
          .durable = options_.store->has_data_dir(),
          .pid = getpid(),
          .term = terms_->known().number};
}

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorLink>> CoordinatorLink::Create(Options options) {
  SHARDMESH_ASSIGN_OR_RETURN(std::unique_ptr<TermKeeper> terms, TermKeeper::Open(options.data_dir));
  SHARDMESH_ASSIGN_OR_RETURN(
      std::unique_ptr<rpc::Connector> connector,
      rpc::Connector::Create(options.coordinator, {.credentials = options.credentials,
                                                   .keepalive_interval = kKeepaliveInterval,
                                                   .keepalive_timeout = kKeepaliveTimeout}));
  return std::make_unique<AttachLoop>(std::move(options), std::move(terms), std::move(connector));
}

}  // namespace shardmesh::worker
