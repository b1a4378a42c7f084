// Cluster: real processes that are killed, stopped and restarted, each with its own flags.
#ifndef SHARDMESH_TESTS_MODEL_PROCESS_CLUSTER_H_
#define SHARDMESH_TESTS_MODEL_PROCESS_CLUSTER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cli/local/child_process.h"

namespace shardmesh::model {

// A mesh with the axis tp, like "default", but whose ranks are the workers in the reverse order.
inline constexpr char kTurnedMesh[] = "turned";

// A coordinator (index 0), its workers (1 and on) and spare workers (after those) on loopback, with
// the mesh "default", fsdp=1, tp=WORKERS. All calls come from the thread that made it, which
// outlives it; the processes end with that thread.
class Cluster {
 public:
  struct Options {
    int workers = 2;
    // Workers that serve no rank at the start.
    int spares = 0;
    // Keep state and tiles on disk.
    bool durable = false;
    // Only the coordinator keeps its state on disk.
    bool durable_coordinator = false;
    std::string binary_folder;
    std::vector<std::string> coordinator_flags;
    std::vector<std::string> worker_flags;
    // Memory of each worker.
    std::string memory = "256MiB";
    // Workers read and write below files(), and there is a second mesh, kTurnedMesh.
    bool files = false;
    // Returns the address that workers dial, from the coordinator's; null: the coordinator's.
    std::function<std::string(const std::string& address)> worker_coordinator;
  };

  // Ready when this returns.
  static absl::StatusOr<std::unique_ptr<Cluster>> Start(const Options& options);
  // Kills all.
  ~Cluster();

  const std::string& address() const { return address_; }
  // The folder of files that workers and clients share.
  std::string files() const { return folder_ + "/files"; }
  // The folder in which a process keeps its data, if it does.
  std::string DataFolder(int index) const { return folder_ + "/" + NameOf(index); }
  int size() const { return options_.workers + options_.spares + 1; }
  // Returns "coordinator", "worker-0", ...
  static std::string NameOf(int index);

  absl::Status Signal(int index, int signal);
  // SIGKILL, then waits until it is gone.
  absl::Status Kill(int index);
  // Kills a worker of which nothing is expected until its Restart: see WaitUntilReady.
  absl::Status KillForLong(int index);
  // Restarts a process at its address, with `flags` in addition to its own. FAILED_PRECONDITION
  // while it runs.
  absl::Status Restart(int index, const std::vector<std::string>& flags = {});
  // Returns how a process ended; nullopt while it runs.
  std::optional<std::string> Ended(int index);
  // Waits until all workers are ready but those of KillForLong, and returns how long that took.
  // DEADLINE_EXCEEDED after `timeout`, with the missing ranks and the ends of the logs. UNAVAILABLE
  // when a process ended.
  absl::StatusOr<absl::Duration> WaitUntilReady(absl::Duration timeout);
  // Resident memory.
  int64_t MemoryBytes(int index) const;
  // Returns the process's log since its last start.
  std::string Log(int index) const;

 private:
  struct Member {
    std::vector<std::string> command;
    std::string log_path;
    std::optional<client::ChildProcess> process;
    std::optional<std::string> end;
    bool is_away = false;  // since KillForLong
  };

  explicit Cluster(Options options) : options_(std::move(options)) {}
  absl::Status Launch(int index, const std::vector<std::string>& flags);
  absl::Status DefineTurnedMesh() const;

  const Options options_;
  std::string folder_;
  std::string address_;
  std::vector<Member> members_;
};

}  // namespace shardmesh::model

#endif  // SHARDMESH_TESTS_MODEL_PROCESS_CLUSTER_H_
