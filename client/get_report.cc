// Reports a get from a thread of its own, and cancels it when the coordinator says so.
#include "client/get_report.h"

#include <utility>

#include "absl/time/time.h"
#include "client/remote/coordinator_connection.h"
#include "process/steady_deadline.h"
#include "process/thread_pool.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

// How often the progress is reported. A cancellation ends the get within about this time.
constexpr absl::Duration kReportInterval = absl::Milliseconds(200);
// How long to wait before a report that broke begins again.
constexpr absl::Duration kReportAgainAfter = absl::Seconds(1);

// Whether a report that ended with this error may begin again. A call that ended with CANCELLED had
// no reason: its session has ended.
bool MayReportAgain(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsCancelled(status) ||
         absl::IsResourceExhausted(status) || absl::IsDeadlineExceeded(status) ||
         ReasonOf(status) == Reason::kSessionGone;
}

}  // namespace

GetReport::GetReport(ClientCore* core, const CallOptions& options)
    : core_(core), options_(options) {
  if (options.cancellation != nullptr) {
    by_caller_.emplace(options.cancellation, [this] { cancel_.Cancel(); });
  }
  options_.cancellation = &cancel_;
}

GetReport::~GetReport() { End(absl::CancelledError("the get ended early")); }

void GetReport::Begin(const std::string& description, int64_t arrays, int64_t size_bytes) {
  if (std::exchange(has_begun_, true)) return;
  if (size_bytes < core_->min_reported_get_bytes()) return;
  get_ = {.description = description, .arrays = arrays, .size_bytes = size_bytes};
  absl::StatusOr<std::thread> thread = StartThread([this] { Report(); });
  if (thread.ok()) thread_ = *std::move(thread);
}

ProgressCallback GetReport::Counting(ProgressCallback progress) {
  return [this, progress = std::move(progress)](int64_t done_bytes, int64_t total_bytes) {
    done_bytes_ = done_bytes;
    if (progress != nullptr) progress(done_bytes, total_bytes);
  };
}

absl::Status GetReport::Conclude(const absl::Status& result) {
  End(result);
  absl::MutexLock lock(&mutex_);
  // The coordinator may have ended the operation while the last bytes were handed over.
  return (result.ok() || absl::IsCancelled(result)) && !cancelled_.ok()
             ? WithContext(cancelled_, "the get was cancelled")
             : result;
}

void GetReport::End(const absl::Status& result) {
  if (!thread_.joinable()) return;
  {
    absl::MutexLock lock(&mutex_);
    has_ended_ = true;
    result_ = result;
    const auto need_not_wait = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return is_reported_ || is_waiting_;
    };
    mutex_.AwaitWithTimeout(absl::Condition(&need_not_wait), core_->report_end_time());
  }
  stop_.Cancel();
  thread_.join();
}

void GetReport::Report() {
  for (;;) {
    const auto reported = core_->InSession(
        SteadyDeadline::After(absl::InfiniteDuration()),
        {.cancellation = &stop_, .traceparent = options_.traceparent},
        [this](const std::string& session_id, const CallLimit& limit) -> absl::StatusOr<bool> {
          bool is_first = true;
          SHARDMESH_RETURN_IF_ERROR(ReportGet(
              core_->connection(), session_id, get_,
              [&] { return Next(std::exchange(is_first, false)); }, limit));
          return true;
        });
    const absl::Status& status = reported.status();
    if (status.ok() || stop_.is_cancelled()) break;
    if (absl::IsCancelled(status) && ReasonOf(status) == Reason::kCancelled) {
      {
        absl::MutexLock lock(&mutex_);
        cancelled_ = status;
      }
      cancel_.Cancel();
      break;
    }
    if (!MayReportAgain(status)) break;
    {
      absl::MutexLock lock(&mutex_);
      is_waiting_ = true;
    }
    SleepUnlessCancelled(kReportAgainAfter, &stop_);
    if (stop_.is_cancelled()) break;
    absl::MutexLock lock(&mutex_);
    is_waiting_ = false;
  }
  absl::MutexLock lock(&mutex_);
  is_reported_ = true;
}

GetProgress GetReport::Next(bool is_first) {
  absl::MutexLock lock(&mutex_);
  if (!is_first) mutex_.AwaitWithTimeout(absl::Condition(&has_ended_), kReportInterval);
  if (!has_ended_) return {.done = done_, .done_bytes = done_bytes_};
  if (!result_.ok()) return {.done = done_, .done_bytes = done_bytes_, .result = result_};
  return {.done = get_.arrays, .done_bytes = get_.size_bytes, .result = result_};
}

std::string DescribeGet(const Array& first, const std::optional<Tile>& part, int64_t arrays) {
  const std::string name = first.name.empty() ? StrCat("@", first.descriptor.array_id) : first.name;
  const std::string slice = part.has_value() ? StrCat(" ", part->ToString()) : "";
  const std::string more = arrays > 1 ? StrCat(" and ", arrays - 1, " more") : "";
  return StrCat(name, slice, more);
}

}  // namespace shardmesh::client
