// Ctrl-C and SIGTERM during a transfer: the transfer is cancelled before the program ends.
#ifndef SHARDMESH_CLIENT_CLI_INTERRUPTION_H_
#define SHARDMESH_CLIENT_CLI_INTERRUPTION_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "client/cli/output_form.h"
#include "client/mesh_client.h"
#include "process/signal.h"

namespace shardmesh::client {

// Handles SIGINT and SIGTERM during this object's lifetime. Create this object before any thread
// starts, so that all threads block these signals. Writes its message to standard error in the form
// of the command's output.
//
// The first signal asks the coordinator to cancel the current put. The put then returns CANCELLED,
// or succeeds if the coordinator was committing it. If the coordinator is unreachable, the cancel
// is retried until the put has ended. A signal ends the program at once in three cases: no put has
// begun; it is the second signal; or this object is being destroyed. The end of the program ends
// its calls, so the coordinator aborts a transfer that is not committed.
class Interruption {
 public:
  // `outcome` describes the result of a cancelled put, such as "nothing was loaded". If the
  // coordinator may have committed the put, the message says that the outcome is unknown. `at_end`
  // runs before a signal ends the program. If the host allows no more threads, writes the error,
  // and ends the program with its exit code: no signal could end the command otherwise.
  Interruption(std::string_view outcome, OutputForm output, std::function<void()> at_end = {});
  // If a cancel is in progress, waits a few seconds at most for the coordinator's answer.
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  // Call this method before Begun if an operation that fails may stop midway, as a resize can. The
  // message is then that of OutcomeOfOperation.
  void MayEndMidway();

  // Call MayBeginAgain from PutOptions::may_begin_again. False if a signal came. Otherwise a signal
  // ends the program at once until the next call of Begun.
  bool MayBeginAgain();
  // Call Begun from PutOptions::on_begun, once for each attempt of a put. If a signal came before
  // this call, cancels the attempt. `client` outlives this object.
  void Begun(MeshClient* client, const std::string& transfer_id);

  // Returns `status`, the result of the put. If a signal interrupted the put and `status` is an
  // error, returns CANCELLED with the outcome. The command line then ends the program by that
  // signal, as the program's parent expects (see InterruptionOf).
  absl::Status Outcome(const absl::Status& status) const;

 private:
  void Watch();
  // Starts the thread that cancels the put. Ends the program by the signal if the host allows no
  // more threads. Requires a signal.
  void StartCancelling() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Cancel(MeshClient* client, const std::string& transfer_id);
  [[noreturn]] void SayAndEnd(std::string_view outcome, int signal) const;

  const std::string outcome_;
  const OutputForm output_;
  const std::function<void()> at_end_;
  StopSignal stop_;
  mutable absl::Mutex mutex_;
  MeshClient* client_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::string transfer_id_ ABSL_GUARDED_BY(mutex_);
  std::optional<int> signal_ ABSL_GUARDED_BY(mutex_);
  // The destructor has begun: further signals cancel nothing, but end the program.
  bool is_ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool may_end_midway_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;        // the watcher thread must end
  bool is_cancelling_ ABSL_GUARDED_BY(mutex_) = false;  // the cancel has no answer yet
  // The coordinator confirmed that nothing is committed.
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread canceller_ ABSL_GUARDED_BY(mutex_);
  std::thread watcher_;  // declared last: the thread uses the members above
};

// Whether `status`, the error of a begun put, proves that the put was not committed: the transfer
// was cancelled, or the coordinator refused the commit. Errors without an answer of the coordinator
// prove nothing. REQUEST_ID_REUSED and NOT_FOUND prove nothing either, because the commit may have
// been repeated after a first commit that succeeded. In that case the coordinator no longer
// remembers the put's arrays (REQUEST_ID_REUSED), or the arrays no longer exist (NOT_FOUND).
bool IsNothingDone(const absl::Status& status);

// Returns what to say of an interrupted operation that ended with the error `status` and may have
// ended midway: `outcome` only if the coordinator cancelled the operation.
std::string OutcomeOfOperation(std::string_view outcome, const absl::Status& status);

// Removes the temporary files and folders that this process has made to write `path`.
void RemoveTemporaryFilesOf(const std::string& path);

// Returns an Interruption that removes the temporary files of `path`, a file that the command
// writes. Returns null if `path` is empty, or is `-` for standard output. Call this function before
// any thread starts.
std::unique_ptr<Interruption> GuardOutputFile(const std::string& path, OutputForm output);

// Returns the signal that interrupted the call with this status; nullopt if no signal did.
std::optional<int> InterruptionOf(const absl::Status& status);
// Ends this process by the default action of the signal. If that action does not end the process,
// exits with 128 + `signal`, the exit code that shells use for the signal.
[[noreturn]] void EndBy(int signal);

// Installs a handler for SIGBUS, which the system raises if a mapped file is truncated or its disk
// fails. The handler writes a message and ends the program with kExitFailed; without the handler,
// the process would end without a message. The current transfer is not committed. Call this
// function before any thread starts.
void SayIfAFileIsLost();

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_INTERRUPTION_H_
