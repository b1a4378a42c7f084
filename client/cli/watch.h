// Repeats a command and shows its newest answer: --watch. Ends a command on Ctrl-C.
#ifndef SHARDMESH_CLIENT_CLI_WATCH_H_
#define SHARDMESH_CLIENT_CLI_WATCH_H_

#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/cli/output_form.h"
#include "client/types/cancellation.h"

namespace shardmesh::client {

struct WatchOptions {
  absl::Duration interval;
  OutputForm output = OutputForm::kTable;
  // Without a terminal, an answer that equals the one before it is not written again.
  bool skip_repeats = false;
};

// Runs `run`, which writes to std::cout, again and again, with pauses of `interval`. On a terminal,
// each answer replaces the previous answer. Without a terminal, each answer follows the previous
// answer. After SIGINT or SIGTERM, returns OK; if the current run does not end within 0.5 s, the
// program exits with code 0. If the first run fails without output, returns the error of that run.
// Later errors go to standard error, and watching continues. If standard output cannot be written,
// returns OK. Call this function before any thread starts.
absl::Status Watch(const WatchOptions& options, const std::function<absl::Status()>& run);

// Runs `run` and returns its result. After SIGINT or SIGTERM, cancels `stopped`; `run` must return
// once `stopped` is cancelled. If `run` does not return within 0.5 s, the program exits with code
// 0. Call this function before any thread starts.
absl::Status RunUntilStopped(const std::function<absl::Status(Cancellation* stopped)>& run);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_WATCH_H_
