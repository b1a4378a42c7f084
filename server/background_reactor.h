// Calls of one question and one answer whose answer takes too long for a reaction.
#ifndef SHARDMESH_SERVER_BACKGROUND_REACTOR_H_
#define SHARDMESH_SERVER_BACKGROUND_REACTOR_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <utility>

#include "rpc/status.h"
#include "server/background.h"
#include "server/resolve_answers.h"

namespace shardmesh::server {

// A call that is answered in the background, and ends soon after it is cancelled:
//   on a thread of its own: finish(Answer(request, &response))
// Lives until the call is done. Request and response are the call's own; the counter and the
// background outlive it.
template <typename Request, typename Response>
class BackgroundReactor final : public grpc::ServerUnaryReactor {
 public:
  BackgroundReactor(std::shared_ptr<const ClusterState> state, const CorrectionCounter& counter,
                    const Request* request, Response* response, Background* background)
      : state_(std::move(state)) {
    const bool taken = background->Run([this, &counter, request, response] {
      const auto is_cancelled = [this] { return cancelled_.load(std::memory_order_relaxed); };
      CorrectionTally corrections;
      const absl::Status status =
          is_cancelled() ? absl::CancelledError("cancelled while it waited")
                         : Answer({*state_, corrections}, *request, response, is_cancelled);
      counter.Count(corrections);
      Finish(rpc::ToGrpc(status));
    });
    if (!taken) {
      Finish(rpc::ToGrpc(TooManyWait()));
    }
  }

  void OnCancel() override { cancelled_.store(true, std::memory_order_relaxed); }
  void OnDone() override { delete this; }

 private:
  const std::shared_ptr<const ClusterState> state_;
  std::atomic<bool> cancelled_ = false;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_BACKGROUND_REACTOR_H_
