// Shows the progress of work that takes more than a second, on a terminal.
#ifndef SHARDMESH_CLIENT_CLI_PROGRESS_BAR_H_
#define SHARDMESH_CLIENT_CLI_PROGRESS_BAR_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/time/time.h"
#include "client/cli/stopwatch.h"

namespace shardmesh::client {

// Returns text such as `40%  1.00 GiB of 2.50 GiB, 512 MiB/s, 3.00 s left`. If `time` is zero, the
// text has no rate and no remaining time.
std::string FormatByteProgress(int64_t done_bytes, int64_t total_bytes, absl::Duration time);
// Returns text such as `40%  2 of 5, 3.00 s left`.
std::string FormatCountProgress(int64_t done, int64_t total, absl::Duration time);

// A bar on standard error; shows nothing if standard error is not a terminal. Not thread-safe.
class ProgressBar {
 public:
  // `what` is the label, such as `load`. A quiet bar shows nothing.
  ProgressBar(std::string what, bool quiet);
  // Removes the bar from the screen.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Updates the bar. In the first second after construction, shows nothing.
  void Show(int64_t done_bytes, int64_t total_bytes);
  void ShowCount(int64_t done, int64_t total);
  // Updates the bar at once, also in the first second, with `numbers` beside it. For work whose
  // rate another process measures.
  void ShowNumbers(int64_t done, int64_t total, const std::string& numbers);

 private:
  bool is_due() const;
  void Draw(int64_t done, int64_t total, const std::string& numbers);

  const std::string what_;
  const bool enabled_;
  const Stopwatch stopwatch_;
  bool open_ = false;  // the bar is on the screen
};

// Returns a progress callback that shows bytes on `bar`, which must outlive the callback.
inline std::function<void(int64_t, int64_t)> ShowOn(ProgressBar* bar) {
  return [bar](int64_t done, int64_t total) { bar->Show(done, total); };
}

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_PROGRESS_BAR_H_
