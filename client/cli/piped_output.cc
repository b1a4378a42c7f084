// Writes only as much as a pipe takes at once, so that no write waits for the reader.
#include "client/cli/piped_output.h"

#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/uio.h>
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

// Writes only as much as the output takes at once, although the descriptor is a blocking one.
// Returns -1 with errno EOPNOTSUPP if the kernel cannot do that with this kind of output.
ssize_t WriteWithoutWait(int descriptor, absl::Span<const char> bytes) {
  iovec piece = {.iov_base = const_cast<char*>(bytes.data()), .iov_len = bytes.size()};
  return pwritev2(descriptor, &piece, 1, /*offset=*/-1, RWF_NOWAIT);
}

}  // namespace

absl::Status PipedOutput::Write(absl::Span<const char> bytes) {
  constexpr size_t kLargePiece = size_t{1} << 20;
  const bool is_file = IsFile(descriptor_);
  bool can_refuse_to_wait = !is_file;
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
    ssize_t written = 0;
    if (can_refuse_to_wait) {
      written = WriteWithoutWait(descriptor_, bytes.subspan(0, kLargePiece));
      if (written < 0 && (errno == EOPNOTSUPP || errno == ENOSYS || errno == ESPIPE)) {
        can_refuse_to_wait = false;
        continue;
      }
    } else {
      // A pipe that poll() reports as writable takes PIPE_BUF bytes without a wait. Kernels before
      // Linux 6.4, and pipes with a name, need this.
      const absl::Span<const char> piece =
          bytes.subspan(0, is_file ? kLargePiece : size_t{PIPE_BUF});
      written = write(descriptor_, piece.data(), piece.size());
    }
    if (written < 0 && errno != EINTR && errno != EAGAIN) return NotWritten();
    if (written > 0) bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::client
