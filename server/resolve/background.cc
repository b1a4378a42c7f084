// Threads for answers that take too long for a reaction (a gRPC callback).
#include "server/resolve/background.h"

#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::server {

absl::Status TooManyWait() {
  return WithRetryDelay(
      WithReason(absl::ResourceExhaustedError(StrCat(
                     "too many such calls wait for their answers: at most ",
                     Background::kMaxWaiting, " in all, and ", Background::kMaxWaitingOfCaller,
                     " of one caller; ask again in a while")),
                 Reason::kOverloaded, {{fact::kLimit, Background::kMaxWaiting}}),
      absl::Seconds(1));
}

absl::Status BackgroundStop::Explain(const absl::Status& status) const {
  if (status.ok() || cancelled_.load() || !is_over_time() || !absl::IsCancelled(status)) {
    return status;
  }
  return WithReason(
      absl::DeadlineExceededError(
          StrCat("the answer took longer than ", absl::FormatDuration(Background::kTimeLimit),
                 ", the most that a call may compute; ask for less at once")),
      Reason::kDeadline, {{fact::kLimit, absl::ToDoubleSeconds(Background::kTimeLimit)}});
}

}  // namespace shardmesh::server
