// QuarantineStop: ends calls about quarantines when their clients have gone or give up.
#include <string>
#include <utility>

#include "server/quarantine/quarantine_calls.h"

namespace shardmesh::server {

void QuarantineStop::Cancel() {
  absl::AnyInvocable<void() &&> on_cancel;
  {
    absl::MutexLock lock(&mutex_);
    is_cancelled_ = true;
    on_cancel = std::exchange(on_cancel_, nullptr);
  }
  if (on_cancel) std::move(on_cancel)();
}

void QuarantineStop::Set(absl::AnyInvocable<void() &&> on_cancel) {
  {
    absl::MutexLock lock(&mutex_);
    if (!is_cancelled_) {
      on_cancel_ = std::move(on_cancel);
      return;
    }
  }
  std::move(on_cancel)();
}

std::string QuarantineStop::awaited() const {
  absl::MutexLock lock(&mutex_);
  return awaited_;
}

void QuarantineStop::SetAwaited(std::string identity) {
  absl::MutexLock lock(&mutex_);
  awaited_ = std::move(identity);
}

}  // namespace shardmesh::server
