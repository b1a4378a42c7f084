// Catches the exception of std::thread.
#include "process/start_thread.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "process/failpoint.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

absl::Status NoThread(std::string_view error) {
  return absl::ResourceExhaustedError(
      StrCat("cannot start a thread: ", error,
             "; the host allows this user or container no more threads: end other processes, or "
             "raise the limit (ulimit -u)"));
}

}  // namespace

absl::StatusOr<std::thread> StartThread(absl::AnyInvocable<void() &&> run) {
  if (SHARDMESH_FAILS("thread.start")) {
    return NoThread(std::system_category().message(EAGAIN));
  }
  try {
    return std::thread(std::move(run));
  } catch (const std::system_error& error) {
    return NoThread(error.code().message());
  }
}

void RunOnThreads(size_t count, size_t max_threads, absl::FunctionRef<void(size_t i)> body) {
  std::atomic<size_t> next = 0;
  const auto work = [&next, count, body] {
    for (size_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) body(i);
  };
  std::vector<std::thread> others;
  for (size_t i = 1; i < std::min(count, max_threads); ++i) {
    absl::StatusOr<std::thread> other = StartThread(work);
    if (!other.ok()) break;
    others.push_back(*std::move(other));
  }
  work();
  for (std::thread& other : others) other.join();
}

}  // namespace shardmesh
