// Processes of this host: started in the background, recognised again later, and stopped.
#ifndef SHARDMESH_CLIENT_CLI_LOCAL_CHILD_PROCESS_H_
#define SHARDMESH_CLIENT_CLI_LOCAL_CHILD_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace shardmesh::client {

// Identifies a process for ever: the system may give the pid to another process, but not with the
// same start time.
struct ProcessId {
  pid_t pid = 0;
  // The start time, in the kernel's clock ticks since boot.
  uint64_t start_ticks = 0;

  friend bool operator==(const ProcessId&, const ProcessId&) = default;
};

// Returns the identity of the process that has the pid now. NOT_FOUND if no process has the pid.
absl::StatusOr<ProcessId> IdentifyProcess(pid_t pid);
// Whether any thread of the process still runs; false for a process that has ended, even if its
// parent has not reaped it yet.
bool IsRunning(const ProcessId& id);
// Sends a signal to exactly this process. NOT_FOUND: the process has ended. PERMISSION_DENIED: the
// process belongs to another user.
absl::Status SendSignal(const ProcessId& id, int signal);
// Waits until the process has ended; returns false if it still runs at `deadline`.
bool WaitUntilGone(const ProcessId& id, absl::Time deadline);

struct ProcessOptions {
  // The program's path, then its arguments.
  std::vector<std::string> command;
  // Standard output and error are appended to this file; standard input is empty.
  std::string log_path;
  // Whether the process gets a signal (`parent_end_signal`) when the thread that started it ends.
  // If false, the process continues in its own session.
  bool ends_with_parent = true;
  // The signal that the process gets when the thread that started it ends; 15 is SIGTERM. Use
  // SIGKILL for a process that must leave nothing behind.
  int parent_end_signal = 15;
};

// A process that the calling process started, or that another process started (see TakeOver). Not
// thread-safe. The destructor leaves the process running.
class ChildProcess {
 public:
  // Starts a process. If `on_made` is given, calls it when the process exists and before its
  // program begins. `on_made` can thus record the process before its program does anything. If
  // `on_made` fails, or the calling process ends before `on_made` has returned, the program never
  // begins. Errors are the system's, such as NOT_FOUND for a missing program, and those of
  // `on_made`.
  static absl::StatusOr<ChildProcess> Start(
      const ProcessOptions& options,
      const std::function<absl::Status(const ProcessId&)>& on_made = nullptr);
  // Returns an object for a process that another process started. The output of the process is
  // taken to be the whole log, because nobody knows where the output begins.
  static ChildProcess TakeOver(const ProcessId& id, std::string log_path) {
    return {id, std::move(log_path), 0};
  }

  const ProcessId& id() const { return id_; }
  const std::string& log_path() const { return log_path_; }
  // The offset in the log file at which the output of this process begins.
  int64_t log_offset_bytes() const { return log_offset_bytes_; }

  // Returns nullopt while the process runs. After the end of the process, reaps the process and
  // returns how it ended, such as `exited with code 1` or `was killed by signal 9 (Killed)`. For a
  // process that was taken over, the text is always `has ended`.
  std::optional<std::string> Ended();

 private:
  ChildProcess(ProcessId id, std::string log_path, int64_t log_offset_bytes)
      : id_(id), log_path_(std::move(log_path)), log_offset_bytes_(log_offset_bytes) {}

  ProcessId id_;
  std::string log_path_;
  int64_t log_offset_bytes_ = 0;
  std::optional<std::string> end_;
};

// Returns the content of a log from `offset_bytes` on; empty if the log cannot be read.
std::string ReadLog(const std::string& path, int64_t offset_bytes = 0);
// The last `lines` lines of a text.
std::string LastLines(std::string_view text, int lines);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_LOCAL_CHILD_PROCESS_H_
