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

// Handles SIGINT and SIGTERM during its lifetime: create it before any thread starts. A message
// goes to standard error in the form of the command's output.
//
// The first signal cancels the current put, which then returns CANCELLED, or succeeds if it was
// being committed. If the coordinator is unreachable, the cancel is retried until the put has
// ended. The program ends at once before a put has begun, at the second signal, and during this
// object's destruction. The coordinator then aborts the transfer.
class Interruption {
 public:
  // `outcome` describes the result of a cancelled put, such as "nothing was loaded". If the
  // coordinator may have committed it, the message says that the outcome is unknown. `at_end` runs
  // before a signal ends the program.
  Interruption(std::string_view outcome, OutputForm output, std::function<void()> at_end = {});
  // Waits a few seconds at most for the answer of a coordinator.
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  // From PutOptions::on_begun: once for each attempt of a put. An attempt is cancelled if the
  // signal came before it. `client` outlives this.
  void Begun(MeshClient* client, const std::string& transfer_id);

  // Returns `status` of the put, or CANCELLED with the outcome if a signal ended it. The program
  // then ends by that signal, as its parent expects (InterruptionOf).
  absl::Status Outcome(const absl::Status& status) const;

 private:
  void Watch();
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
  bool is_ending_ ABSL_GUARDED_BY(mutex_) = false;      // cancels nothing from now on
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;        // nor watched
  bool is_cancelling_ ABSL_GUARDED_BY(mutex_) = false;  // the coordinator has not answered yet
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;   // confirmed: nothing is committed
  std::thread canceller_ ABSL_GUARDED_BY(mutex_);
  std::thread watcher_;  // last: uses the members above
};

// Whether a begun put with this end is known not to be committed: its transfer was cancelled, or
// the coordinator refused it. That is unknown if no answer came. It is also unknown if a commit was
// repeated: the first one may have succeeded, and its arrays are no longer remembered
// (REQUEST_ID_REUSED), or no longer exist (NOT_FOUND).
bool IsNothingDone(const absl::Status& status);

// Removes the temporary files that this process has made to write the file at `path`.
void RemoveTemporaryFilesOf(const std::string& path);

// Returns an interruption that removes the temporary files of `path`, a file that the command
// writes. Null if `path` is empty or `-`, standard output. Create it before any thread starts.
std::unique_ptr<Interruption> GuardOutputFile(const std::string& path, OutputForm output);

// Returns the signal that interrupted the call with this status.
std::optional<int> InterruptionOf(const absl::Status& status);
// Ends this process as the signal would have, or with the exit code that shells use for it.
[[noreturn]] void EndBy(int signal);

// From now on, the loss of a mapped file is reported before the program ends with kExitFailed.
// Otherwise a file that is truncated meanwhile, or whose disk fails, would end the process by
// SIGBUS without a message. The current transfer is not committed. Call it before any thread
// starts.
void SayIfAFileIsLost();

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_INTERRUPTION_H_
