// Repeats a command and shows its newest answer: --watch. Ends a command on Ctrl-C.
#include "client/cli/watch.h"

#include <unistd.h>

#include <iostream>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "absl/synchronization/notification.h"
#include "client/cli/table.h"
#include "process/signal.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

// How often the thread that waits for signals checks whether its owner is being destroyed.
constexpr absl::Duration kLook = absl::Milliseconds(20);
// How long the current run may continue after a signal. After this time the program exits.
constexpr absl::Duration kLastRun = absl::Milliseconds(500);

// Captures the text written to std::cout during the object's lifetime.
class OutputCapture {
 public:
  OutputCapture() : before_(std::cout.rdbuf(text_.rdbuf())) {}
  ~OutputCapture() { std::cout.rdbuf(before_); }
  OutputCapture(const OutputCapture&) = delete;
  OutputCapture& operator=(const OutputCapture&) = delete;

  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::streambuf* const before_;
};

// Owns a thread that waits for SIGINT or SIGTERM.
class StopWatcher {
 public:
  // After the signal, the thread calls `on_stop`, if that is not null.
  explicit StopWatcher(std::function<void()> on_stop = nullptr)
      : on_stop_(std::move(on_stop)), thread_([this] { Wait(); }) {}
  ~StopWatcher() {
    over_.Notify();
    thread_.join();
  }
  StopWatcher(const StopWatcher&) = delete;
  StopWatcher& operator=(const StopWatcher&) = delete;

  bool stopped() const { return stopped_.HasBeenNotified(); }
  // Waits at most `time`; returns whether the signal has arrived.
  bool WaitFor(absl::Duration time) const { return stopped_.WaitForNotificationWithTimeout(time); }

 private:
  void Wait() {
    while (!stop_.WaitFor(kLook).has_value()) {
      if (over_.HasBeenNotified()) return;
    }
    stopped_.Notify();
    if (on_stop_) on_stop_();
    // Exit if the current run does not end within kLastRun: the run may wait, until its deadline,
    // for a coordinator that does not answer.
    if (!over_.WaitForNotificationWithTimeout(kLastRun)) _exit(0);
  }

  const std::function<void()> on_stop_;
  StopSignal stop_;
  absl::Notification stopped_;
  absl::Notification over_;
  std::thread thread_;  // declared last: the thread uses the members above
};

}  // namespace

absl::Status Watch(const WatchOptions& options, const std::function<absl::Status()>& run) {
  const bool is_terminal = isatty(STDOUT_FILENO) != 0;
  const StopWatcher watcher;
  std::string last;
  for (bool is_first = true; !watcher.stopped(); is_first = false) {
    absl::Status status;
    std::string text;
    {
      const OutputCapture capture;
      status = run();
      text = capture.text();
    }
    if (watcher.stopped()) break;
    if (is_first && !status.ok() && text.empty()) return status;
    if (is_terminal) {
      // These escape sequences move the cursor to the top and clear the screen.
      std::cout << "\033[H\033[2J" << text;
    } else if (!text.empty() && !(options.skip_repeats && text == last)) {
      std::cout << (is_first ? "" : options.output == OutputForm::kYaml ? "---\n" : "\n") << text;
    }
    last = std::move(text);
    std::cout.flush();
    if (!std::cout.good()) break;  // the command line reports why the output failed
    if (!status.ok()) {
      std::cerr << StrCat(
          "shardmesh: ", EscapeForTerminal(ToStd(status.message()), /*keep_lines=*/true),
          "; will ask again in ", absl::FormatDuration(options.interval), "\n");
    }
    if (watcher.WaitFor(options.interval)) break;
  }
  return absl::OkStatus();
}

absl::Status RunUntilStopped(const std::function<absl::Status(Cancellation* stopped)>& run) {
  Cancellation stopped;
  const StopWatcher watcher([&stopped] { stopped.Cancel(); });
  return run(&stopped);
}

}  // namespace shardmesh::client
