// Writes to a pipe whose reader may be slow, until it is stopped.
#ifndef SHARDMESH_CLIENT_CLI_PIPED_OUTPUT_H_
#define SHARDMESH_CLIENT_CLI_PIPED_OUTPUT_H_

#include <atomic>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "process/steady_deadline.h"

namespace shardmesh::client {

// An open descriptor, such as that of standard output. Write is for one thread at a time; Stop is
// thread-safe.
class PipedOutput {
 public:
  // The descriptor stays open, and is a blocking one.
  PipedOutput(int descriptor, SteadyDeadline deadline)
      : descriptor_(descriptor), deadline_(deadline) {}
  PipedOutput(const PipedOutput&) = delete;
  PipedOutput& operator=(const PipedOutput&) = delete;

  // Writes all bytes, as many at once as the output takes without a wait. Waits for the reader
  // until the deadline, and at most 100 ms after Stop.
  // - DATA_LOSS (BAD_FILE): the output was closed, or its disk is full.
  // - CANCELLED: Stop was called. The reader may have some of the bytes.
  // - DEADLINE_EXCEEDED (DEADLINE): the reader has not taken all bytes.
  absl::Status Write(absl::Span<const char> bytes);
  // Ends the current and all later calls of Write.
  void Stop() { is_stopped_.store(true); }

 private:
  const int descriptor_;
  const SteadyDeadline deadline_;
  std::atomic<bool> is_stopped_ = false;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_PIPED_OUTPUT_H_
