// TestCluster: the real programs as processes, for tests that kill, stop and restart them.
#ifndef SHARDMESH_TESTS_TESTING_TEST_CLUSTER_H_
#define SHARDMESH_TESTS_TESTING_TEST_CLUSTER_H_

#include <gmock/gmock.h>

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/cli/local/child_process.h"
#include "client/cli/local/local_cluster.h"
#include "client/mesh_client.h"
#include "sharding/shape.h"
#include "sharding/spec.h"

namespace shardmesh::test {

// How a run of the command line ended.
struct CommandResult {
  int exit_code = -1;  // -1 if it was killed, by a signal or because it took too long
  std::string out;
  std::string err;
  absl::Duration time;
};
// Shows how a command ended, and what it said, where an assertion on it fails.
std::ostream& operator<<(std::ostream& out, const CommandResult& result);

// Matches a command that ended with exit code 0; a mismatch shows what it said.
MATCHER(Succeeded, "exit code 0") { return arg.exit_code == 0; }

// Runs `shardmesh ARGUMENTS...` and waits at most `timeout` for its end. The command keeps cluster
// records below `runtime_folder`.
CommandResult RunShardmesh(const std::vector<std::string>& arguments,
                           const std::string& runtime_folder,
                           absl::Duration timeout = absl::Seconds(60));
// Like RunShardmesh, for another program of this build.
CommandResult RunProgram(const std::string& program, const std::vector<std::string>& arguments,
                         const std::string& runtime_folder,
                         absl::Duration timeout = absl::Seconds(60));

// Makes a new, empty folder below the test's temporary folder.
std::string MakeTestFolder(const std::string& name);

// Puts a tensor of F32 onto a mesh, by default the cluster's own; returns the array's id.
absl::StatusOr<std::string> PutFloats(client::MeshClient& client, const std::string& name,
                                      const Shape& shape, absl::Span<const float> elements,
                                      const PartitionSpec& spec, const std::string& mesh = {});
// Decodes the elements of an F32 tensor.
std::vector<float> FloatsOf(absl::Span<const char> bytes);

// A process of one server program, such as `shardmesh-worker`, with given flags. The destructor
// kills the process.
class ServerProcess {
 public:
  ServerProcess(const std::string& program, const std::vector<std::string>& flags);
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  std::string Log() const { return client::ReadLog(process_->log_path()); }
  // Waits for the process's end. Returns how it ended, such as `exited with code 1`; `it still
  // runs` after half a minute.
  std::string AwaitEnd();
  bool AwaitInLog(const std::string& text) const;

 private:
  const std::string folder_;
  std::unique_ptr<client::ChildProcess> process_;
};

// A cluster with its own runtime folder. The processes end with the thread that started the
// cluster, in whatever way the test ends. Not thread-safe, except client().
class TestCluster {
 public:
  struct Options {
    std::string mesh = "fsdp=2,tp=2";
    // Whether the cluster keeps state and tiles on disk.
    bool durable = false;
    // The folder of certificates for mutual TLS; missing certificates are made. Empty: plaintext.
    std::string tls_folder = {};
    std::vector<std::string> coordinator_flags;
    std::vector<std::string> worker_flags;
    // The folder of the programs; empty: the programs of this build.
    std::string binary_folder = {};
  };

  // Starts a cluster and waits until it is healthy.
  static absl::StatusOr<std::unique_ptr<TestCluster>> Start(const Options& options);
  static absl::StatusOr<std::unique_ptr<TestCluster>> Start() { return Start(Options()); }
  ~TestCluster();

  const std::string& address() const { return cluster_->address(); }
  const std::string& folder() const { return folder_; }
  // The addresses (HOST:PORT) where the processes serve their metrics, the coordinator's first.
  std::vector<std::string> metrics_addresses() const;
  // A client that is connected since the start.
  client::MeshClient& client() { return *client_; }
  // Waits until all ranks have ready workers.
  absl::Status WaitUntilHealthy();

  // Runs a command against this cluster.
  CommandResult Run(std::vector<std::string> arguments) const;

  // Sends a signal to a process. Identities are `coordinator`, `worker-0`, `worker-1`, ...
  absl::Status Signal(const std::string& identity, int signal) {
    return cluster_->Signal(identity, signal);
  }
  // Waits until the process is gone. Returns how it ended, such as `exited with code 0`.
  absl::StatusOr<std::string> AwaitEnd(const std::string& identity,
                                       absl::Duration timeout = absl::Seconds(60));
  // Sends SIGTERM, then waits like AwaitEnd.
  absl::StatusOr<std::string> Terminate(const std::string& identity,
                                        absl::Duration timeout = absl::Seconds(60));
  // Kills with SIGKILL and waits until the process is gone.
  absl::Status Kill(const std::string& identity);
  absl::Status Restart(const std::string& identity);

 private:
  TestCluster() = default;

  absl::Status WaitUntilGone(const std::string& identity, absl::Time deadline) const;

  std::string folder_;
  std::string tls_folder_;
  std::unique_ptr<client::LocalCluster> cluster_;
  std::unique_ptr<client::MeshClient> client_;  // declared last: closes before the cluster ends
};

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_TESTING_TEST_CLUSTER_H_
