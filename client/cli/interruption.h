// Ctrl-C and SIGTERM while tensors are on their way: the transfer is cancelled before the program
// ends.
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

// Takes SIGINT and SIGTERM as long as it lives: make it before anything starts threads. The first
// signal cancels the put that has begun, which then returns CANCELLED, or succeeds if it was being
// committed. A coordinator that does not answer is asked again until the put has ended. Before a
// put has begun, at the second signal, and while this is destroyed, the program ends at once; the
// coordinator then aborts what was begun.
class Interruption {
 public:
  // `outcome` is what a put that was cancelled comes to, such as "nothing was loaded". Where the
  // coordinator may have committed it all the same, the outcome is said to be unknown.
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

// The signal that interrupted what ended with this status.
std::optional<int> InterruptionOf(const absl::Status& status);
// Ends this process as the signal would have, or with the code that shells give to that.
[[noreturn]] void EndBy(int signal);

// Files are read through a mapping: one that is cut short meanwhile, or whose disk fails, would end
// this process by SIGBUS without a word. From now on it then says so, and ends with kExitFailed. A
// transfer that was under way is not committed. Call it before threads are started.
void SayIfAFileIsLost();

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_INTERRUPTION_H_
