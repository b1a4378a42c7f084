// Shows on standard error how far a transfer is: a bar on a terminal, plain lines elsewhere.
#ifndef SHARDMESH_CLIENT_CLI_PROGRESS_BAR_H_
#define SHARDMESH_CLIENT_CLI_PROGRESS_BAR_H_

#include <cstdint>
#include <string>

#include "client/cli/stopwatch.h"

namespace shardmesh::client {

// Not thread-safe.
class ProgressBar {
 public:
  // `what` is the label, such as `load`.
  explicit ProgressBar(std::string what);
  // Ends the bar's line.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // A line elsewhere than on a terminal is written at each quarter only.
  void Show(int64_t done_bytes, int64_t total_bytes);

 private:
  const std::string what_;
  const bool terminal_;
  const Stopwatch stopwatch_;
  int64_t quarters_ = 0;
  bool open_ = false;  // the bar's line is not ended
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_PROGRESS_BAR_H_
