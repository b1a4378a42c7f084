// Attaches to the coordinator, and attaches again whenever the stream ends.
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

// The log warns about the same error at most once in this interval. Attempts in between are logged
// at level debug.
constexpr absl::Duration kLogInterval = absl::Seconds(30);
// How long one attempt to connect may take, also if the server answers slowly. After that, the link
// logs the failure and tries again.
constexpr absl::Duration kConnectTimeout = absl::Seconds(10);
// A silent connection counts as broken after kKeepaliveInterval + kKeepaliveTimeout. The
// coordinator counts a silent worker as lost after the same time.
constexpr absl::Duration kKeepaliveInterval = absl::Seconds(2);
constexpr absl::Duration kKeepaliveTimeout = absl::Seconds(3);

absl::Status CoordinatorGone() {
  return WithReason(absl::UnavailableError("this worker lost its coordinator"),
                    Reason::kStepAborted);
}

// Returns whether an error is permanent: a later attempt would fail in the same way.
bool IsFinal(const absl::Status& status) {
  const Reason reason = ReasonOf(status);
  return reason == Reason::kClusterMismatch || reason == Reason::kIdentityMismatch ||
         reason == Reason::kProtocolMismatch || absl::IsInvalidArgument(status) ||
         absl::IsPermissionDenied(status);
}

// Owns the link's thread and the current stream, and stops the link. AttachReports sends messages
// to the coordinator, AttachHandler handles messages from it, and TermKeeper decides which
// coordinator to follow. AttachLoop does not hold its mutex while it calls these three.
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
            .arriving = [gate = options_.gate] { return gate->Arriving(); },
            .ready_changed = options_.ready_changed}),
        handler_(AttachHandler::Options{.coordinator = options_.coordinator,
                                        .identity = options_.self.identity,
                                        .clock = options_.clock,
                                        .store = options_.store,
                                        .memory = options_.memory,
                                        .gate = options_.gate,
                                        .links = options_.links,
                                        .executor = options_.executor,
                                        .saves = options_.saves,
                                        .terms = terms_.get(),
                                        .reports = &reports_,
                                        .filler = options_.filler}) {}

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
  void ReportDamaged(const std::string& array_id, const std::string& reason) override {
    reports_.ReportDamaged(array_id, reason);
  }
  void ReportRestored(const std::string& array_id) override { reports_.ReportRestored(array_id); }

  void ReportPeers(int64_t epoch, const std::vector<std::string>& unreached) override {
    reports_.ReportPeers(epoch, unreached);
  }

  void Leave(const std::string& reason, absl::Time deadline) override {
    const std::shared_ptr<AttachStream> stream = Stop();
    if (stream != nullptr && !reports_.state().attached) {
      // Not attached yet, so the coordinator need not know that the worker leaves.
      stream->Cancel();
    } else if (stream != nullptr) {
      internal::v1::AttachRequest request;
      request.mutable_leaving()->set_reason(reason);
      stream->Send(std::move(request));
      {
        // The coordinator ends the stream when it needs this worker no longer.
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
  // After a half-close, a coordinator that works ends the stream at once. Wait at most this long
  // for the end of the stream.
  static constexpr absl::Duration kCloseTimeout = absl::Milliseconds(500);

  bool HasNoStream() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stream_ == nullptr; }
  // Prevents further attempts. Returns the current stream; null if there is none.
  std::shared_ptr<AttachStream> Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  // The loop that the link's thread runs.
  void Run();
  // Returns a more precise error for a connection that could not be made, if the diagnosis finds
  // the cause; otherwise `ended`.
  absl::Status Explained(absl::Status ended) const;
  absl::Status AttachOnce(rpc::Backoff& backoff);
  // Handles the end of the stream. Returns whether the worker was attached.
  bool Detached();
  void LogWait(const absl::Status& status, absl::Duration delay);
  WorkerHello MakeHello() const;

  const Options options_;
  const std::unique_ptr<rpc::Connector> connector_;
  const std::unique_ptr<TermKeeper> terms_;

  // Used only by the link's thread.
  bool was_connected_ = false;  // whether the last attempt had a connection
  std::string logged_wait_;
  absl::Time log_time_ = absl::InfinitePast();

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<AttachStream> stream_ ABSL_GUARDED_BY(mutex_);

  AttachReports reports_;
  // Used by one thread at a time: the link's, or the one that has read a message. Calls reports_.
  AttachHandler handler_;
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
    // Diagnose only if the attempt had no connection. The diagnosis resolves the coordinator's
    // name, which may block for seconds if the name servers do not answer.
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
  auto stream = std::make_shared<AttachStream>(
      channel, [this](internal::v1::AttachResponse* message, const AttachSinkPtr& sink) {
        return handler_.TakeAtOnce(message, sink);
      });
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
    logged_wait_.clear();  // so that LogWait warns about the next error at once
  }
  if (!status.ok()) {
    return status;
  }
  if (was_attached && absl::IsInvalidArgument(ended)) {
    // The coordinator accepted the hello, so the error concerns a later message. IsFinal must not
    // take the error for a permanent one, because a new attach may succeed.
    return absl::UnavailableError(ended.message());
  }
  return ended.ok() ? absl::UnavailableError("the coordinator ended the stream") : ended;
}

bool AttachLoop::Detached() {
  const bool was_attached = reports_.Detached();
  if (options_.memory != nullptr) options_.memory->Detached();
  if (was_attached) {
    options_.filler->Suspend();
    options_.gate->Suspend();
    // Staged outputs stay, because the coordinator may have committed them in a message that was
    // lost. The verdict at the next attach decides about the staged outputs.
    options_.executor->AbortUnfinished(CoordinatorGone());
    if (options_.saves != nullptr) options_.saves->EndAll();
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
          .kernels = options_.kernels,
          .overlaps_exchanges = options_.overlaps_exchanges,
          .overlaps_parts = options_.overlaps_parts,
          .durable = options_.store->has_data_dir(),
          .cache_bytes = options_.cache_bytes,
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
