// Shows on standard error how far a transfer is.
#include "client/cli/progress_bar.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "client/cli/table.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {
constexpr int kWidth = 30;
}

ProgressBar::ProgressBar(std::string what)
    : what_(std::move(what)), terminal_(isatty(STDERR_FILENO) != 0) {}

ProgressBar::~ProgressBar() {
  if (open_) {
    std::fputs("\n", stderr);
  }
}

void ProgressBar::Show(int64_t done_bytes, int64_t total_bytes) {
  const double share =
      total_bytes <= 0 ? 1 : static_cast<double>(done_bytes) / static_cast<double>(total_bytes);
  const double seconds = absl::ToDoubleSeconds(stopwatch_.time());
  const int64_t rate =
      seconds <= 0 ? 0 : static_cast<int64_t>(static_cast<double>(done_bytes) / seconds);
  const std::string numbers =
      StrCat(static_cast<int>(share * 100), "%  ", FormatBytes(done_bytes), " of ",
             FormatBytes(total_bytes), ", ", FormatBytes(rate), "/s");
  if (terminal_) {
    const auto filled = static_cast<size_t>(share * kWidth);
    // The escape sequence clears the rest of an earlier, longer line.
    std::fprintf(stderr, "\r%s [%s%s] %s\033[K", what_.c_str(), std::string(filled, '#').c_str(),
                 std::string(kWidth - filled, ' ').c_str(), numbers.c_str());
    open_ = true;
  } else if (const auto quarters = static_cast<int64_t>(share * 4); quarters > quarters_) {
    quarters_ = quarters;
    std::fprintf(stderr, "%s %s\n", what_.c_str(), numbers.c_str());
  }
}

}  // namespace shardmesh::client
