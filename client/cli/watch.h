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
};

// Runs `run`, which writes to std::cout, again and again. On a terminal, each answer replaces the
// one before; otherwise one block follows another. After SIGINT or SIGTERM, returns OK; if the
// current run does not end within 0.5 s, the program exits. If the first run fails without output,
// returns its error. Later errors go to standard error, and watching continues. Also returns if
// standard output cannot be written. Call it before any thread starts.
absl::Status Watch(const WatchOptions& options, const std::function<absl::Status()>& run);

// Runs `run`. After SIGINT or SIGTERM, cancels `stopped`, on which `run` must end. If `run` does
// not end within 0.5 s, the program exits. Call it before any thread starts.
absl::Status RunUntilStopped(const std::function<absl::Status(Cancellation* stopped)>& run);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_WATCH_H_
