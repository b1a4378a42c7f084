// One thread waits for signals; a second thread asks the coordinator to cancel the put.
#include "client/cli/interruption.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/time/time.h"
#include "client/cli/command_line.h"
#include "process/file.h"
#include "process/thread_pool.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

constexpr char kPayload[] = "shardmesh.cli/interrupted";
// Message for a put that the coordinator may have committed.
constexpr char kUnknown[] = "the outcome is not known; look with `shardmesh ls`";
// How often the watcher thread checks whether the object is being destroyed.
constexpr absl::Duration kLook = absl::Milliseconds(20);

// After the put has ended: how long Outcome waits for the coordinator's answer to the cancel.
constexpr absl::Duration kCancelWait = absl::Seconds(2);
// How long a cancelled put may take to end by itself. After this time the program ends even if the
// put has not ended. A worker that does not read blocks the put's stream until the coordinator
// counts the worker as silent.
constexpr absl::Duration kPutEnds = absl::Seconds(1);
// Time limit of one attempt to cancel, and the pause between two attempts. The client's own timeout
// may be hours.
constexpr absl::Duration kCancelTime = absl::Seconds(3);
constexpr absl::Duration kCancelPause = absl::Milliseconds(200);

// Writes an error to standard error in the form of the command's output.
void SayError(const absl::Status& status, std::string_view message, OutputForm output) {
  const std::string line = IsTree(output)
                               ? TreeLine({{"error", ErrorJson(status, message)}}, output)
                               : StrCat("shardmesh: ", message, "\n");
  std::fputs(line.c_str(), stderr);  // std::cerr would flush std::cout first, which may block
}

}  // namespace

bool IsNothingDone(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kNotFound:
      return false;
    case absl::StatusCode::kFailedPrecondition:
      return ReasonOf(status) != Reason::kRequestIdReused;
    default:
      return true;
  }
}

std::string OutcomeOfOperation(std::string_view outcome, const absl::Status& status) {
  if (absl::IsCancelled(status) && ReasonOf(status) == Reason::kCancelled) {
    return StrCat(outcome, " (", status.message(), ")");
  }
  return IsNothingDone(status) ? StrCat("the operation failed: ", status.message())
                               : StrCat(kUnknown, " (", status.message(), ")");
}

Interruption::Interruption(std::string_view outcome, OutputForm output,
                           std::function<void()> at_end)
    : outcome_(outcome), output_(output), at_end_(std::move(at_end)) {
  absl::StatusOr<std::thread> watcher = StartThread([this] { Watch(); });
  if (!watcher.ok()) {
    // Nothing has begun yet. Without this thread, nothing would react to a signal.
    SayError(watcher.status(), ToStd(watcher.status().message()), output_);
    std::exit(ExitCodeOf(watcher.status()));
  }
  watcher_ = *std::move(watcher);
}

Interruption::~Interruption() {
  std::thread canceller;
  {
    absl::MutexLock lock(&mutex_);
    is_ending_ = true;
    canceller = std::move(canceller_);
  }
  if (canceller.joinable()) {
    canceller.join();  // a second signal still ends the program while this thread waits
  }
  {
    absl::MutexLock lock(&mutex_);
    is_over_ = true;
  }
  watcher_.join();
}

void Interruption::MayEndMidway() {
  absl::MutexLock lock(&mutex_);
  may_end_midway_ = true;
}

void Interruption::Begun(MeshClient* client, const std::string& transfer_id) {
  absl::MutexLock lock(&mutex_);
  while (canceller_.joinable()) {  // join the canceller of an earlier attempt
    std::thread before = std::move(canceller_);
    mutex_.Unlock();
    before.join();
    mutex_.Lock();
  }
  client_ = client;
  transfer_id_ = transfer_id;
  if (signal_.has_value() && !is_ending_) {
    StartCancelling();
  }
}

bool Interruption::MayBeginAgain() {
  absl::MutexLock lock(&mutex_);
  if (signal_.has_value()) return false;
  client_ = nullptr;
  return true;
}

void Interruption::StartCancelling() {
  absl::StatusOr<std::thread> thread = StartThread(
      [this, client = client_, transfer_id = transfer_id_] { Cancel(client, transfer_id); });
  if (!thread.ok()) {
    // The end of the program ends its calls. Without this end, nothing would react to the signal.
    SayAndEnd(StrCat("nothing was cancelled (", ToStd(thread.status().message()), "); ", kUnknown),
              *signal_);
  }
  is_cancelling_ = true;
  is_cancelled_ = false;
  canceller_ = *std::move(thread);
}

absl::Status Interruption::Outcome(const absl::Status& status) const {
  absl::MutexLock lock(&mutex_);
  if (status.ok() || !signal_.has_value()) {
    return status;
  }
  // Workers may end the put before the coordinator answers the cancel. Wait for that answer, which
  // says whether the put was committed.
  const auto has_answer = [this]()
                              ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !is_cancelling_; };
  mutex_.AwaitWithTimeout(absl::Condition(&has_answer), kCancelWait);
  const std::string outcome = may_end_midway_ ? OutcomeOfOperation(outcome_, status)
                              : is_cancelled_ || IsNothingDone(status) ? outcome_
                                                                       : kUnknown;
  absl::Status interrupted =
      WithReason(absl::CancelledError(StrCat("interrupted: ", outcome)), Reason::kCancelled);
  interrupted.SetPayload(kPayload, absl::Cord(StrCat(*signal_)));
  return interrupted;
}

void Interruption::Watch() {
  for (;;) {
    const std::optional<int> signal = stop_.WaitFor(kLook);
    absl::MutexLock lock(&mutex_);
    if (!signal.has_value()) {
      if (is_over_) return;
      continue;
    }
    const bool is_first = !std::exchange(signal_, signal).has_value();
    if (!is_first || is_ending_ || client_ == nullptr) {
      // If no client is known, no put has begun, and nothing can have been committed.
      SayAndEnd(client_ == nullptr ? outcome_ : kUnknown, *signal);
    }
    StartCancelling();
  }
}

void Interruption::Cancel(MeshClient* client, const std::string& transfer_id) {
  for (;;) {
    const absl::StatusOr<Operation> operation =
        client->cluster().CancelOperation(transfer_id, {.timeout = kCancelTime});
    const bool is_away =
        absl::IsUnavailable(operation.status()) || absl::IsDeadlineExceeded(operation.status());
    absl::MutexLock lock(&mutex_);
    if (is_away && !mutex_.AwaitWithTimeout(absl::Condition(&is_ending_), kCancelPause)) continue;
    // The coordinator does not cancel a put that it is already committing: such a put succeeds.
    is_cancelled_ =
        operation.ok() && (operation->state == OperationState::kCancelled ||
                           (operation->state == OperationState::kFailed && !may_end_midway_));
    is_cancelling_ = false;
    const bool nothing_done = is_cancelled_ && signal_.has_value();
    if (nothing_done && !mutex_.AwaitWithTimeout(absl::Condition(&is_ending_), kPutEnds)) {
      // Close the session explicitly, because the process ends here without destroying the client.
      client->CloseSession();
      SayAndEnd(outcome_, *signal_);
    }
    return;
  }
}

void Interruption::SayAndEnd(std::string_view outcome, int signal) const {
  if (at_end_) at_end_();
  const std::string message = StrCat("interrupted: ", outcome);
  SayError(WithReason(absl::CancelledError(ToAbsl(message)), Reason::kCancelled), message, output_);
  EndBy(signal);
}

void RemoveTemporaryFilesOf(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  // AtomicFileWriter puts the temporary file beside the target of symbolic links. The target may
  // not exist yet.
  constexpr int kMostLinks = 40;  // the kernel follows no more links either
  fs::path target = fs::absolute(path, error);
  if (!target.has_filename()) target = target.parent_path();  // of a folder, such as model/
  for (int links = 0; links < kMostLinks && fs::is_symlink(target, error); ++links) {
    target = target.parent_path() / fs::read_symlink(target, error);
  }
  const std::string prefix = StrCat(target.filename().string(), ".", getpid(), ".");
  for (fs::directory_iterator entry(target.parent_path(), error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(prefix) || !name.ends_with(kTemporarySuffix)) continue;
    // Another thread may still add a file to a temporary folder.
    constexpr int kTries = 3;
    std::error_code failed;
    for (int i = 0; i < kTries; ++i) {
      if (fs::remove_all(entry->path(), failed); !failed) break;
    }
  }
}

std::unique_ptr<Interruption> GuardOutputFile(const std::string& path, OutputForm output) {
  if (path.empty() || path == "-") return nullptr;
  return std::make_unique<Interruption>("no unfinished file is left", output,
                                        [path] { RemoveTemporaryFilesOf(path); });
}

std::optional<int> InterruptionOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kPayload);
  int signal = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &signal)) {
    return std::nullopt;
  }
  return signal;
}

void EndBy(int signal) {
  // This function must not block. Another thread may hold the lock of a stream while that thread
  // waits for a pipe or terminal. fflush(nullptr) would block, because fflush(nullptr) takes the
  // locks of all streams, including standard input.
  pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  if (ftrylockfile(stdout) == 0) {
    if (poll(&out, 1, 0) > 0) std::fflush(stdout);
    funlockfile(stdout);
  }
  ::signal(signal, SIG_DFL);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, signal);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  raise(signal);
  // A process with pid 1, such as the first process of a container, does not end by the raised
  // signal.
  _exit(128 + signal);
}

void SayIfAFileIsLost() {
  struct sigaction action = {};
  sigemptyset(&action.sa_mask);
  action.sa_handler = [](int) {
    constexpr char kText[] =
        "shardmesh: a file was cut short while it was read, or its disk failed; make sure that no "
        "other process writes to it, and run the command again (BAD_FILE)\n";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText, sizeof(kText) - 1);
    _exit(kExitFailed);
  };
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace shardmesh::client
