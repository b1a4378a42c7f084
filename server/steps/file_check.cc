// Collects the answers of workers about files.
#include "server/steps/file_check.h"

#include <algorithm>
#include <utility>

#include "server/steps/fill_codec.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// Maximum number of workers that an error lists.
constexpr size_t kMaxListed = 8;

// The higher, the more an error matters to the caller.
int Weight(const absl::Status& status) {
  switch (ReasonOf(status)) {
    case Reason::kFileChanged:
      return 5;
    case Reason::kNoReadRoot:
      return 3;
    case Reason::kNotAvailable:
      return 2;
    default:
      break;
  }
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kAborted:
      return 1;
    default:
      return 4;
  }
}

// `worker "a"`, `workers "a" and "b"`, or the first kMaxListed and the number of the others.
std::string DescribeWorkers(const std::vector<std::string>& identities) {
  const size_t listed = std::min(identities.size(), kMaxListed);
  std::string text = identities.size() == 1 ? "worker " : "workers ";
  for (size_t i = 0; i < listed; ++i) {
    const bool is_last = i + 1 == identities.size();
    StrAppend(&text, i == 0 ? "" : (is_last ? " and " : ", "), "\"", identities[i], "\"");
  }
  if (listed < identities.size()) {
    StrAppend(&text, " and ", identities.size() - listed, " more");
  }
  return text;
}

// Returns advice that the worker's own message does not give.
std::string_view Remedy(int weight) {
  switch (weight) {
    case 5:
      return "";
    case 2:
      return "; start it from this build, or let the client read the files (--source client)";
    case 1:
      return "; try again later";
    default:
      return ", or let the client read the file (--source client)";
  }
}

// Says that a worker has not answered within `timeout`. The cause of a short timeout is the call.
std::string NoAnswerWithin(absl::Duration timeout) {
  if (timeout < absl::Milliseconds(1)) {
    return "the call had no time left to wait for an answer; give it more time";
  }
  return StrCat("no answer came within ", FormatRounded(timeout),
                timeout < FileCheck::kTimeout
                    ? ", all the time that the call had left; give it more time"
                    : "; the disk of the files may be slow");
}

}  // namespace

absl::Status CannotRead(absl::Span<const FileRefusal> refusals) {
  const FileRefusal* worst = &refusals.front();
  for (const FileRefusal& each : refusals) {
    if (Weight(each.status) > Weight(worst->status)) worst = &each;
  }
  const int weight = Weight(worst->status);
  const Reason reason = ReasonOf(worst->status);
  std::vector<std::string> identities;
  for (const FileRefusal& each : refusals) {
    if (Weight(each.status) == weight && ReasonOf(each.status) == reason) {
      identities.push_back(each.identity);
    }
  }
  std::sort(identities.begin(), identities.end());
  const bool is_one = identities.size() == 1;
  std::string message =
      StrCat(DescribeWorkers(identities), weight == 1 ? " did not say whether " : " cannot read ",
             weight == 1 ? (is_one ? "it can read the files" : "they can read the files")
                         : (worst->path.empty() ? "the files" : worst->path),
             is_one ? ": " : StrCat("; \"", worst->identity, "\" says: "),
             ToStd(worst->status.message()), Remedy(weight));
  const absl::StatusCode code =
      weight == 1 ? worst->status.code() : absl::StatusCode::kFailedPrecondition;
  absl::Status status = WithFactsOf(absl::Status(code, message), worst->status);
  if (reason != Reason::kUnspecified) status = WithReason(std::move(status), reason);
  if (MayHave(reason, fact::kFile) && !worst->path.empty()) {
    status = WithFacts(std::move(status), {{fact::kFile, worst->path}});
  }
  if (MayHave(reason, fact::kIdentity)) {
    status = WithFacts(std::move(status), {{fact::kIdentity, StrJoin(identities, ",")}});
  }
  if (const auto delay = RetryDelayOf(worst->status); weight == 1 && delay.has_value()) {
    status = WithRetryDelay(std::move(status), *delay);
  }
  return status;
}

std::shared_ptr<FileCheck> FileCheck::Start(FillTransport* transport, Clock* clock,
                                            FileReaders readers, Done done,
                                            absl::Duration timeout) {
  const std::shared_ptr<FileCheck> check(
      new FileCheck(transport, clock, std::move(readers), std::move(done), timeout));
  check->Ask();
  return check;
}

FileCheck::FileCheck(FillTransport* transport, Clock* clock, FileReaders readers, Done done,
                     absl::Duration timeout)
    : transport_(transport),
      clock_(clock),
      timeout_(std::clamp(timeout, absl::ZeroDuration(), kTimeout)),
      readers_(std::move(readers)),
      done_(std::move(done)),
      workers_(readers_.identities.size()),
      waiting_(readers_.identities.size()) {}

void FileCheck::Ask() {
  deadline_ = std::make_unique<Alarm>(clock_, [weak = weak_from_this()] {
    if (const std::shared_ptr<FileCheck> check = weak.lock(); check != nullptr) {
      check->TimeIsOver();
    }
  });
  deadline_->SetNoLaterThan(clock_->Now() + timeout_);
  const std::string files = EncodeFiles(readers_.files);
  for (size_t i = 0; i < readers_.identities.size(); ++i) {
    if (readers_.convert) {
      const absl::Status can_convert = transport_->CheckCanConvert(readers_.identities[i]);
      if (!can_convert.ok()) {
        Answered(i, {.status = can_convert});
        continue;
      }
    }
    const int64_t number = transport_->CheckFiles(
        readers_.identities[i], files, [check = shared_from_this(), i](const FileVerdict& verdict) {
          check->Answered(i, verdict);
        });
    bool has_ended = false;
    {
      absl::MutexLock lock(&mutex_);
      has_ended = done_ == nullptr;
      if (!has_ended && !workers_[i].is_answered) workers_[i].number = number;
    }
    if (has_ended) return transport_->ForgetFileCheck(number);
  }
}

void FileCheck::Answered(size_t worker, const FileVerdict& verdict) {
  std::optional<Ended> ended;
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    if (done_ == nullptr || std::exchange(workers_[worker].is_answered, true)) return;
    --waiting_;
    if (!verdict.status.ok()) {
      const auto file = static_cast<size_t>(verdict.file);
      // An error that is not the worker's own is about no file.
      const bool has_file = Weight(verdict.status) > 2 && file < readers_.files.size();
      refusals_.push_back({.identity = readers_.identities[worker],
                           .status = verdict.status,
                           .path = has_file ? readers_.files[file].path : std::string()});
    }
    if (waiting_ > 0) return;
    status = refusals_.empty() ? absl::OkStatus() : CannotRead(refusals_);
    ended = End();
  }
  if (ended.has_value()) Finish(*std::move(ended), std::move(status));
}

void FileCheck::TimeIsOver() {
  std::optional<Ended> ended;
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    if (done_ == nullptr) return;
    for (size_t i = 0; i < workers_.size(); ++i) {
      if (workers_[i].is_answered) continue;
      refusals_.push_back(
          {.identity = readers_.identities[i],
           .status =
               WithReason(absl::DeadlineExceededError(NoAnswerWithin(timeout_)), Reason::kDeadline,
                          {{fact::kLimit, absl::ToDoubleSeconds(timeout_)}})});
    }
    status = CannotRead(refusals_);
    ended = End();
  }
  if (ended.has_value()) Finish(*std::move(ended), std::move(status));
}

void FileCheck::Cancel() {
  std::optional<Ended> ended;
  {
    absl::MutexLock lock(&mutex_);
    ended = End();
  }
  if (ended.has_value()) {
    Finish(*std::move(ended), WithReason(absl::CancelledError("the put was cancelled before it "
                                                              "began"),
                                         Reason::kCancelled));
  }
}

std::optional<FileCheck::Ended> FileCheck::End() {
  if (done_ == nullptr) return std::nullopt;
  Ended ended{.done = std::exchange(done_, nullptr), .unanswered = {}};
  for (const Worker& worker : workers_) {
    if (!worker.is_answered && worker.number != 0) ended.unanswered.push_back(worker.number);
  }
  return ended;
}

void FileCheck::Finish(Ended ended, absl::Status status) {
  for (const int64_t number : ended.unanswered) transport_->ForgetFileCheck(number);
  std::move(ended.done)(std::move(status));
}

}  // namespace shardmesh::server
