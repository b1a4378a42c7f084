// Ctrl-C and SIGTERM during a transfer: the transfer is cancelled before the program ends.
#ifndef SHARDMESH_CLIENT_CLI_INTERRUPTION_H_
#define SHARDMESH_CLIENT_CLI_INTERRUPTION_H_

#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "client/mesh_client.h"
#include "process/signal.h"

namespace shardmesh::client {

// Handles SIGINT and SIGTERM during its lifetime: create it before any thread starts.
//
// The first signal cancels the current put, which then returns CANCELLED, or succeeds if it was
// being committed. It retries an unreachable coordinator until the put has ended. The program ends
// at once before a put has begun, at the second signal, and during this object's destruction. The
// coordinator then aborts the transfer.
class Interruption {
 public:
  // `outcome` describes the result of a cancelled put, such as "nothing was loaded". If the
  // coordinator may have committed it, the message says that the outcome is unknown.
  explicit Interruption(std::string_view outcome);
  // Waits a few seconds at most for a coordinator that is being asked.
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  // From PutOptions::on_begun; of a put that is tried again once for each try, which is cancelled
  // if the signal has come before. `client` outlives this.
  void Begun(MeshClient* client, const std::string& transfer_id);

  // `status` of the put, or CANCELLED with the outcome if a signal ended it: the program then ends
  // by that signal, as its parent expects (InterruptionOf).
  absl::Status Outcome(const absl::Status& status) const;

 private:
  void Watch();
  void StartCancelling() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Cancel(MeshClient* client, const std::string& transfer_id);

  const std::string outcome_;
  rpc::StopSignal stop_;
  mutable absl::Mutex mutex_;
  MeshClient* client_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::string transfer_id_ ABSL_GUARDED_BY(mutex_);
  std::optional<int> signal_ ABSL_GUARDED_BY(mutex_);
  bool is_ending_ ABSL_GUARDED_BY(mutex_) = false;      // nothing is cancelled any more
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;        // nor watched
  bool is_cancelling_ ABSL_GUARDED_BY(mutex_) = false;  // the coordinator has yet to answer
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;   // it has, and nothing is committed
  std::thread canceller_ ABSL_GUARDED_BY(mutex_);
  std::thread watcher_;  // last: uses the above
};

// Whether a put that ended so after it had begun is known not to be committed: its transfer was
// cancelled, or the coordinator refused it. It is not where no answer came, nor where a commit was
// repeated and the first one did it: its arrays are no longer remembered (REQUEST_ID_REUSED), or
// gone since (NOT_FOUND).
bool IsNothingDone(const absl::Status& status);

// Returns the signal that interrupted the call with this status.
std::optional<int> InterruptionOf(const absl::Status& status);
// Ends this process as the signal would have, or with the code that shells give to that.
[[noreturn]] void EndBy(int signal);

// From now on, a lost file is reported before the program ends with kExitFailed. Files are read
// through a mapping. A file that is truncated meanwhile, or whose disk fails, would otherwise end
// the process by SIGBUS without a message. The current transfer is not committed. Call it before
// any thread starts.
void SayIfAFileIsLost();

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_INTERRUPTION_H_
