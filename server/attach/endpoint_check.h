// Checks whether the endpoints that a worker advertises lead back to that worker.
#ifndef SHARDMESH_SERVER_ATTACH_ENDPOINT_CHECK_H_
#define SHARDMESH_SERVER_ATTACH_ENDPOINT_CHECK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "process/clock.h"
#include "server/attach/worker_hello.h"

namespace shardmesh::server {

// The worker at an address, as it identifies itself.
struct EndpointAnswer {
  std::string identity;
  uint64_t incarnation = 0;
  std::string nonce;
};

// Asks the worker at `address` for its identity. If the transport can authenticate the worker, the
// worker must prove that it is `identity`. Calls `answered` exactly once within `timeout`, from any
// thread, perhaps before this function returns. Returns a function that cancels the question. The
// caller may call that function at any time, also after the answer.
using AskEndpoint = std::function<std::function<void()>(
    const std::string& address, const std::string& identity, absl::Duration timeout,
    absl::AnyInvocable<void(absl::StatusOr<EndpointAnswer>) &&> answered)>;

// Asks all endpoints in a hello (a worker's first message) at once. `done` receives the endpoints
// that lead back to the worker, in the hello's order, and a text with the failures of the other
// endpoints. `done` is called exactly once.
//
// After the first correct answer, the other endpoints have kGrace more to answer. An outdated
// address, where nothing answers, therefore does not delay the worker. Thread-safe.
class EndpointCheck : public std::enable_shared_from_this<EndpointCheck> {
 public:
  // Time for the other endpoints to answer after the first correct answer. The time is enough to
  // resolve a name and complete a handshake between running hosts.
  static constexpr absl::Duration kGrace = absl::Milliseconds(250);
  using Done = absl::AnyInvocable<void(std::vector<std::string> verified, std::string failures) &&>;

  // Starts the check. The check keeps itself alive until the last answer; `clock` must outlive it.
  // Each endpoint has `timeout` to answer.
  static void Start(const WorkerHello& hello, Clock* clock, const AskEndpoint& ask,
                    absl::Duration timeout, Done done);

 private:
  struct Probe {
    std::string address;
    std::function<void()> cancel;  // null until the AskEndpoint has returned
    absl::Status status;
  };

  EndpointCheck(const WorkerHello& hello, Clock* clock, Done done);

  void Ask(size_t index, const AskEndpoint& ask, absl::Duration timeout);
  void Answered(size_t index, const absl::StatusOr<EndpointAnswer>& answer);
  absl::Status CheckAnswer(const absl::StatusOr<EndpointAnswer>& answer) const;
  // Cancels the questions that have no answer yet.
  void Cancel();

  const std::string identity_;
  const uint64_t incarnation_;
  const std::string nonce_;
  Clock* const clock_;

  absl::Mutex mutex_;
  Done done_ ABSL_GUARDED_BY(mutex_);
  std::vector<Probe> probes_ ABSL_GUARDED_BY(mutex_);
  size_t waiting_ ABSL_GUARDED_BY(mutex_);
  bool found_ ABSL_GUARDED_BY(mutex_) = false;  // whether an endpoint led back to the worker
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_ATTACH_ENDPOINT_CHECK_H_
