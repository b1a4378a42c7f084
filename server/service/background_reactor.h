// Unary calls whose answers take too long for a reaction (a gRPC callback).
#ifndef SHARDMESH_SERVER_SERVICE_BACKGROUND_REACTOR_H_
#define SHARDMESH_SERVER_SERVICE_BACKGROUND_REACTOR_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "rpc/caller.h"
#include "rpc/codec/status.h"
#include "server/resolve/background.h"

namespace shardmesh::server {

// Answers a call on a thread of the background. The call ends soon after it is cancelled:
//   on a thread of the background: finish(answer(is_cancelled))
// Lives until the call is done; the background outlives the reactor. FinishOnce is not needed:
// either the task finishes the call, or the constructor if the task is refused.
class BackgroundReactor final : public grpc::ServerUnaryReactor {
 public:
  // Computes the answer and fills the call's response.
  using Answering = absl::AnyInvocable<absl::Status(const std::function<bool()>& is_cancelled)>;

  BackgroundReactor(const grpc::CallbackServerContext& context, Answering answer,
                    Background* background)
      : answer_(std::move(answer)) {
    const bool taken = background->Run(rpc::CallerOf(context).name, [this] {
      stop_.Begin();
      const auto is_cancelled = [this] { return stop_.is_due(); };
      const absl::Status status = is_cancelled() ? absl::CancelledError("cancelled while it waited")
                                                 : answer_(is_cancelled);
      Finish(rpc::ToGrpc(stop_.Explain(status)));
    });
    if (!taken) {
      Finish(rpc::ToGrpc(TooManyWait()));
    }
  }

  void OnCancel() override { stop_.Cancel(); }
  void OnDone() override { delete this; }

 private:
  Answering answer_;
  BackgroundStop stop_;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SERVICE_BACKGROUND_REACTOR_H_
