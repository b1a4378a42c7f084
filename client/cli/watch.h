// Repeats a command and shows its newest answer: --watch. Ends a command at Ctrl-C.
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

// Runs `run`, which writes to std::cout, again and again. A terminal is repainted; elsewhere one
// block follows another. Returns OK after SIGINT or SIGTERM, at once if a run takes long. If the
// first run fails without output, returns its error. Later errors go to standard error, and
// watching continues. Returns once standard output cannot be written. Call it before any thread
// starts.
absl::Status Watch(const WatchOptions& options, const std::function<absl::Status()>& run);

// Runs `run`. After SIGINT or SIGTERM, `stopped` is cancelled, and `run` then ends. If that takes
// long, the program ends at once. Call it before any thread starts.
absl::Status RunUntilStopped(const std::function<absl::Status(Cancellation* stopped)>& run);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_WATCH_H_
