// Writes only as much as a pipe takes at once, so that no write waits for the reader.
#include "client/cli/piped_output.h"

#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

#include "status/reason.h"

namespace shardmesh::client {
namespace {

// How often Write asks whether it was stopped.
constexpr int kPollMilliseconds = 100;

absl::Status NotWritten() {
  return WithReason(
      absl::DataLossError("the output cannot be written: it was closed, or its disk is full"),
      Reason::kBadFile);
}

bool IsFile(int descriptor) {
  struct stat state = {};
  return fstat(descriptor, &state) == 0 && S_ISREG(state.st_mode);
}

}  // namespace

absl::Status PipedOutput::Write(absl::Span<const char> bytes) {
  // A pipe that poll() reports as writable takes PIPE_BUF bytes without a wait.
  const size_t at_once = IsFile(descriptor_) ? size_t{1} << 20 : size_t{PIPE_BUF};
  while (!bytes.empty()) {
    if (is_stopped_.load()) return absl::CancelledError("the output was stopped");
    pollfd out = {.fd = descriptor_, .events = POLLOUT, .revents = 0};
    if (deadline_.is_over()) {
      return WithReason(absl::DeadlineExceededError("the reader of the output has not taken all of "
                                                    "it in time; give more time with --deadline"),
                        Reason::kDeadline);
    }
    const int ready = poll(&out, 1, kPollMilliseconds);
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    if (ready < 0) return NotWritten();
    const absl::Span<const char> piece = bytes.subspan(0, at_once);
    const ssize_t written = write(descriptor_, piece.data(), piece.size());
    if (written < 0 && errno != EINTR && errno != EAGAIN) return NotWritten();
    if (written > 0) bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::client
