// Starts and watches processes of this host with fork and exec, /proc and pidfds.
#include "client/cli/local/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "process/file.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

// Reads field 22 of /proc/PID/stat, the start time. The second field is the program's name in
// parentheses and may contain any character, so parsing begins after the last parenthesis.
std::optional<uint64_t> ReadStartTicks(pid_t pid) {
  std::ifstream file(StrCat("/proc/", pid, "/stat"));
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) {
    return std::nullopt;
  }
  // The fields from field 3 on: the start time has index 22 - 3 = 19.
  const std::vector<std::string> fields =
      absl::StrSplit(text.substr(name_end + 1), ' ', absl::SkipEmpty());
  uint64_t start_ticks = 0;
  if (fields.size() < 20 || !absl::SimpleAtoi(fields[19], &start_ticks)) {
    return std::nullopt;
  }
  return start_ticks;
}

// Returns a pidfd of the process. The pidfd is not valid if the process has ended and its parent
// has reaped it.
FileDescriptor OpenProcess(const ProcessId& id) {
  FileDescriptor process(static_cast<int>(syscall(SYS_pidfd_open, id.pid, 0)));
  // Check the identity only after the pidfd is open: an open pidfd keeps referring to the checked
  // process even if the pid is reused.
  return ReadStartTicks(id.pid) == id.start_ticks ? std::move(process) : FileDescriptor();
}

// Waits until the process has ended with all its threads; returns false if it has not ended by
// `deadline`.
bool AwaitEnd(const FileDescriptor& process, absl::Time deadline) {
  pollfd awaited = {.fd = process.get(), .events = POLLIN, .revents = 0};
  for (;;) {
    const int64_t left = std::clamp<int64_t>(absl::ToInt64Milliseconds(deadline - absl::Now()), 0,
                                             std::numeric_limits<int>::max());
    const int ready = poll(&awaited, 1, static_cast<int>(left));
    if (ready >= 0 || errno != EINTR) {
      return ready > 0;
    }
  }
}

absl::Status Gone(const ProcessId& id) {
  return absl::NotFoundError(StrCat("process ", id.pid, " is gone"));
}

// Executes the program in the child process, after the parent has written to `gate`. Runs between
// fork and exec, so it may call only async-signal-safe functions. Returns only if a step fails: the
// value of errno.
int BecomeProgram(const ProcessOptions& options, char* const* arguments, int log, int input,
                  int gate, pid_t parent) {
  sigset_t none;
  sigemptyset(&none);
  if (sigprocmask(SIG_SETMASK, &none, nullptr) != 0) {
    return errno;
  }
  // Until the parent has recorded this process, no later command could find the process. Therefore
  // this process must end with its parent.
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) {
    return errno;
  }
  if (getppid() != parent) {
    return ECHILD;  // the parent ended before prctl took effect
  }
  char go = 0;
  ssize_t size = 0;
  do {
    size = read(gate, &go, sizeof(go));
  } while (size < 0 && errno == EINTR);
  if (size != static_cast<ssize_t>(sizeof(go))) {
    return ECANCELED;
  }
  if (prctl(PR_SET_PDEATHSIG, options.ends_with_parent ? options.parent_end_signal : 0) != 0) {
    return errno;
  }
  if (options.ends_with_parent) {
    setpgid(0, 0);
  } else {
    setsid();
  }
  if (dup2(input, STDIN_FILENO) < 0 || dup2(log, STDOUT_FILENO) < 0 ||
      dup2(log, STDERR_FILENO) < 0) {
    return errno;
  }
  execv(arguments[0], arguments);
  return errno;
}

}  // namespace

absl::StatusOr<ProcessId> IdentifyProcess(pid_t pid) {
  const std::optional<uint64_t> start_ticks = ReadStartTicks(pid);
  if (!start_ticks.has_value()) {
    return Gone({pid, 0});
  }
  return ProcessId{pid, *start_ticks};
}

bool IsRunning(const ProcessId& id) { return !WaitUntilGone(id, absl::InfinitePast()); }

absl::Status SendSignal(const ProcessId& id, int signal) {
  const FileDescriptor process = OpenProcess(id);
  if (!process.valid()) {
    return Gone(id);
  }
  if (syscall(SYS_pidfd_send_signal, process.get(), signal, nullptr, 0) != 0) {
    return errno == ESRCH ? Gone(id) : FileError("signal", StrCat("process ", id.pid), errno);
  }
  return absl::OkStatus();
}

bool WaitUntilGone(const ProcessId& id, absl::Time deadline) {
  const FileDescriptor process = OpenProcess(id);
  return !process.valid() || AwaitEnd(process, deadline);
}

absl::StatusOr<ChildProcess> ChildProcess::Start(
    const ProcessOptions& options, const std::function<absl::Status(const ProcessId&)>& on_made) {
  const std::string& program = options.command.front();
  if (access(program.c_str(), X_OK) != 0) {
    return FileError("start", program, errno);
  }
  const FileDescriptor log(
      open(options.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log.valid()) {
    return FileError("open", options.log_path, errno);
  }
  const FileDescriptor input(open("/dev/null", O_RDONLY | O_CLOEXEC));
  struct stat log_state = {};
  int error_pipe[2];
  if (!input.valid() || fstat(log.get(), &log_state) != 0 || pipe2(error_pipe, O_CLOEXEC) != 0) {
    return FileError("prepare to start", program, errno);
  }
  const FileDescriptor error_reader(error_pipe[0]);
  FileDescriptor error_writer(error_pipe[1]);
  int gate_pipe[2];
  if (pipe2(gate_pipe, O_CLOEXEC) != 0) {
    return FileError("prepare to start", program, errno);
  }
  // The parent keeps the read end of the pipe open, so that a write to the pipe raises no SIGPIPE.
  const FileDescriptor gate(gate_pipe[0]);
  FileDescriptor gate_writer(gate_pipe[1]);

  std::vector<char*> arguments;
  for (const std::string& argument : options.command) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) {
    return FileError("start", program, errno);
  }
  if (pid == 0) {
    close(gate_writer.get());
    const int error =
        BecomeProgram(options, arguments.data(), log.get(), input.get(), gate.get(), parent);
    [[maybe_unused]] const ssize_t written = write(error_writer.get(), &error, sizeof(error));
    _exit(127);
  }
  error_writer.Close();
  const absl::StatusOr<ProcessId> id = IdentifyProcess(pid);
  const absl::Status made = !id.ok() ? id.status() : on_made ? on_made(*id) : absl::OkStatus();
  if (made.ok()) {
    // If the child has already failed, nobody reads this byte: the error pipe has the child's
    // error.
    const char go = 1;
    [[maybe_unused]] const ssize_t written = write(gate_writer.get(), &go, sizeof(go));
  }
  gate_writer.Close();
  // A successful exec closes the error pipe without data.
  int error = 0;
  ssize_t size = 0;
  do {
    size = read(error_reader.get(), &error, sizeof(error));
  } while (size < 0 && errno == EINTR);
  if (!made.ok() || size == static_cast<ssize_t>(sizeof(error))) {
    waitpid(pid, nullptr, 0);
    return made.ok() ? FileError("start", program, error) : made;
  }
  return ChildProcess(*id, options.log_path, log_state.st_size);
}

std::optional<std::string> ChildProcess::Ended() {
  if (end_.has_value()) {
    return end_;
  }
  int state = 0;
  if (const pid_t reaped = waitpid(id_.pid, &state, WNOHANG); reaped == id_.pid) {
    end_ = WIFEXITED(state) ? StrCat("exited with code ", WEXITSTATUS(state))
                            : StrCat("was killed by signal ", WTERMSIG(state), " (",
                                     strsignal(WTERMSIG(state)), ")");
  } else if (reaped < 0 && !IsRunning(id_)) {
    end_ = "has ended";  // only a parent gets the exit status, and this process is not the parent
  }
  return end_;
}

std::string ReadLog(const std::string& path, int64_t offset_bytes) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(offset_bytes);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string LastLines(std::string_view text, int lines) {
  while (text.ends_with('\n')) {
    text.remove_suffix(1);
  }
  size_t begin = text.size();
  for (int i = 0; i < lines && begin != 0; ++i) {
    begin = text.rfind('\n', begin - 1);
    if (begin == std::string_view::npos) {
      return std::string(text);
    }
  }
  return std::string(text.substr(std::min(text.size(), begin + 1)));
}

}  // namespace shardmesh::client
