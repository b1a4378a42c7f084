// Asks each endpoint of a worker for its identity, and collects the answers.
#include "server/attach/endpoint_check.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// Maximum number of bytes that an error shows of an identity that nobody has checked.
constexpr size_t kMaxIdentityShown = 255;

}  // namespace

void EndpointCheck::Start(const WorkerHello& hello, Clock* clock, const AskEndpoint& ask,
                          absl::Duration timeout, Done done) {
  const std::shared_ptr<EndpointCheck> check(new EndpointCheck(hello, clock, std::move(done)));
  for (size_t i = 0; i < hello.endpoints.size(); ++i) {
    check->Ask(i, ask, timeout);
  }
}

EndpointCheck::EndpointCheck(const WorkerHello& hello, Clock* clock, Done done)
    : identity_(hello.identity),
      incarnation_(hello.incarnation),
      nonce_(hello.nonce),
      clock_(clock),
      done_(std::move(done)),
      waiting_(hello.endpoints.size()) {
  for (const std::string& address : hello.endpoints) {
    probes_.push_back({.address = address, .cancel = nullptr, .status = {}});
  }
}

void EndpointCheck::Ask(size_t index, const AskEndpoint& ask, absl::Duration timeout) {
  std::string address;
  {
    absl::MutexLock lock(&mutex_);
    address = probes_[index].address;
  }
  std::function<void()> cancel =
      ask(address, identity_, timeout,
          [self = shared_from_this(), index](const absl::StatusOr<EndpointAnswer>& answer) {
            self->Answered(index, answer);
          });
  bool is_late = false;
  {
    absl::MutexLock lock(&mutex_);
    is_late = cancelled_;
    probes_[index].cancel = cancel;
  }
  if (is_late) cancel();
}

absl::Status EndpointCheck::CheckAnswer(const absl::StatusOr<EndpointAnswer>& answer) const {
  if (!answer.ok()) return answer.status();
  if (answer->identity == identity_ && answer->incarnation == incarnation_ &&
      answer->nonce == nonce_) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      StrCat("worker \"", absl::CHexEscape(answer->identity.substr(0, kMaxIdentityShown)),
             "\" answers there, with another identity or incarnation"));
}

void EndpointCheck::Answered(size_t index, const absl::StatusOr<EndpointAnswer>& answer) {
  absl::Status status = CheckAnswer(answer);
  std::vector<std::string> verified;
  std::string failures;
  Done done;
  {
    absl::MutexLock lock(&mutex_);
    const bool is_first = status.ok() && !std::exchange(found_, true);
    probes_[index].status = std::move(status);
    if (--waiting_ > 0) {
      if (is_first) {
        clock_->CallAt(clock_->Now() + kGrace, [check = weak_from_this()] {
          if (const auto self = check.lock(); self != nullptr) self->Cancel();
        });
      }
      return;
    }
    for (const Probe& each : probes_) {
      if (each.status.ok()) {
        verified.push_back(each.address);
      } else {
        StrAppend(&failures, failures.empty() ? "" : "; ", each.address, ": ",
                  ToStd(each.status.message()));
      }
    }
    done = std::move(done_);
  }
  std::move(done)(std::move(verified), std::move(failures));
}

void EndpointCheck::Cancel() {
  std::vector<std::function<void()>> cancels;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    for (const Probe& probe : probes_) {
      if (probe.cancel != nullptr) cancels.push_back(probe.cancel);
    }
  }
  for (const auto& cancel : cancels) cancel();
}

}  // namespace shardmesh::server
