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

// Handles SIGINT and SIGTERM during its lifetime. Create it before any thread starts, so that all
// threads block these signals. Writes its message to standard error in the form of the command's
// output.
//
// The first signal asks the coordinator to cancel the current put. The put then returns CANCELLED,
// or succeeds if the coordinator was committing it. If the coordinator is unreachable, the cancel
// is retried until the put has ended. A signal ends the program at once if no put has begun, if it
// is the second signal, or during this object's destruction. The coordinator then aborts the
// transfer.
class Interruption {
 public:
  // `outcome` describes the result of a cancelled put, such as "nothing was loaded". If the
  // coordinator may have committed the put, the message says that the outcome is unknown. `at_end`
  // runs before a signal ends the program.
  Interruption(std::string_view outcome, OutputForm output, std::function<void()> at_end = {});
  // Waits a few seconds at most for the coordinator's answer to a cancel.
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  // Call it from PutOptions::on_begun, once for each attempt of a put. If the signal came before,
  // cancels that attempt. `client` outlives this object.
  void Begun(MeshClient* client, const std::string& transfer_id);

  // Returns `status`, the put's result, or CANCELLED with the outcome if a signal ended the put.
  // The command line then ends the program by that signal, as its parent expects (InterruptionOf).
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
  // Later signals cancel nothing: they end the program.
  bool is_ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;        // nor watched
  bool is_cancelling_ ABSL_GUARDED_BY(mutex_) = false;  // the coordinator has not answered yet
  // The coordinator confirmed that nothing is committed.
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread canceller_ ABSL_GUARDED_BY(mutex_);
  std::thread watcher_;  // declared last: the thread uses the members above
};

// Whether `status` proves that a begun put was not committed: its transfer was cancelled, or the
// coordinator refused it. Without an answer of the coordinator, nothing is proved. The same holds
// if the commit was repeated. The first commit may then have succeeded, and the coordinator no
// longer remembers its arrays (REQUEST_ID_REUSED), or they no longer exist (NOT_FOUND).
bool IsNothingDone(const absl::Status& status);

// Removes the temporary files that this process has made to write the file at `path`.
void RemoveTemporaryFilesOf(const std::string& path);

// Returns an interruption that removes the temporary files of `path`, a file that the command
// writes. Null if `path` is empty, or `-` for standard output. Create it before any thread starts.
std::unique_ptr<Interruption> GuardOutputFile(const std::string& path, OutputForm output);

// Returns the signal that interrupted the call with this status.
std::optional<int> InterruptionOf(const absl::Status& status);
// Ends this process by the signal's default action. If that does not end it, exits with the code
// that shells use for the signal, 128 + `signal`.
[[noreturn]] void EndBy(int signal);

// Installs a handler for SIGBUS, which the system raises if a mapped file is truncated or its disk
// fails. The handler writes a message and ends the program with kExitFailed; without it, the
// process would end without a message. The current transfer is not committed. Call this function
// before any thread starts.
void SayIfAFileIsLost();

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_INTERRUPTION_H_
