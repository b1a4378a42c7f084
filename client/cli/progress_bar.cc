// Shows the progress of work that takes more than a second, on a terminal.
#include "client/cli/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "client/cli/table.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

constexpr size_t kWidth = 30;
constexpr absl::Duration kShownAfter = absl::Seconds(1);

double ShareOf(int64_t done, int64_t total) {
  return total <= 0 ? 1
                    : std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0);
}

// Returns text such as `, 3.00 s left`, an estimate from the rate so far.
std::string TimeLeft(int64_t done, int64_t total, absl::Duration time) {
  if (done <= 0 || done >= total || time <= absl::ZeroDuration()) return "";
  const double rest = static_cast<double>(total - done) / static_cast<double>(done);
  return StrCat(", ", FormatTime(time * rest), " left");
}

std::string Percent(int64_t done, int64_t total) {
  return StrCat(static_cast<int>(ShareOf(done, total) * 100), "%  ");
}

}  // namespace

std::string FormatByteProgress(int64_t done_bytes, int64_t total_bytes, absl::Duration time) {
  const double seconds = absl::ToDoubleSeconds(time);
  const std::string rate =
      seconds <= 0
          ? std::string()
          : StrCat(", ",
                   FormatBytes(static_cast<int64_t>(static_cast<double>(done_bytes) / seconds)),
                   "/s");
  return StrCat(Percent(done_bytes, total_bytes), FormatBytes(done_bytes), " of ",
                FormatBytes(total_bytes), rate, TimeLeft(done_bytes, total_bytes, time));
}

std::string FormatCountProgress(int64_t done, int64_t total, absl::Duration time) {
  return StrCat(Percent(done, total), done, " of ", total, TimeLeft(done, total, time));
}

ProgressBar::ProgressBar(std::string what, bool quiet)
    : what_(std::move(what)), enabled_(!quiet && isatty(STDERR_FILENO) != 0) {}

ProgressBar::~ProgressBar() {
  if (open_) std::fputs("\r\033[K", stderr);
}

bool ProgressBar::is_due() const { return enabled_ && stopwatch_.time() >= kShownAfter; }

void ProgressBar::Show(int64_t done_bytes, int64_t total_bytes) {
  if (!is_due()) return;
  Draw(done_bytes, total_bytes, FormatByteProgress(done_bytes, total_bytes, stopwatch_.time()));
}

void ProgressBar::ShowCount(int64_t done, int64_t total) {
  if (!is_due()) return;
  Draw(done, total, FormatCountProgress(done, total, stopwatch_.time()));
}

void ProgressBar::ShowNumbers(int64_t done, int64_t total, const std::string& numbers) {
  if (enabled_) Draw(done, total, numbers);
}

void ProgressBar::Draw(int64_t done, int64_t total, const std::string& numbers) {
  const auto filled = static_cast<size_t>(ShareOf(done, total) * kWidth);
  // The escape sequence clears what an earlier, longer line left to the right.
  std::fprintf(stderr, "\r%s [%s%s] %s\033[K", what_.c_str(), std::string(filled, '#').c_str(),
               std::string(kWidth - filled, ' ').c_str(), numbers.c_str());
  std::fflush(stderr);
  open_ = true;
}

}  // namespace shardmesh::client
