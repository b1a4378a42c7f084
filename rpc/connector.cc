// Makes two parallel attempts to connect. The thread that waits for them also polls for gRPC.
#include "rpc/connector.h"

#include <grpcpp/channel.h>
#include <grpcpp/completion_queue.h>

#include <array>
#include <utility>

#include "absl/time/clock.h"
#include "process/clock.h"
#include "process/host_port.h"
#include "process/log.h"
#include "process/steady_deadline.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {
namespace {

// Interval at which the channels' states are read, even if gRPC reports no change. It bounds the
// time that Cancel and the end of Connect take.
constexpr absl::Duration kLook = absl::Milliseconds(20);

// The channels that are connecting, and the completion queue whose polling makes them progress.
class Attempts {
 public:
  ~Attempts() {
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }

  // Replaces the channel at index `place`.
  void Begin(size_t place, std::shared_ptr<grpc::Channel> channel) {
    channels_[place] = std::move(channel);
  }

  // Returns the first connected channel, or else the first failed one; null if all are still
  // connecting.
  std::shared_ptr<grpc::Channel> Ended() {
    std::shared_ptr<grpc::Channel> failed;
    for (const auto& channel : channels_) {
      if (channel == nullptr) continue;
      const grpc_connectivity_state state = channel->GetState(/*try_to_connect=*/true);
      if (state == GRPC_CHANNEL_READY) return channel;
      if (state == GRPC_CHANNEL_TRANSIENT_FAILURE && failed == nullptr) failed = channel;
    }
    return failed;
  }

  // Polls until the state of a channel may have changed, for at most kLook.
  void Poll() {
    const auto deadline = absl::ToChronoTime(absl::Now() + kLook);
    for (size_t i = 0; i < channels_.size(); ++i) {
      if (channels_[i] == nullptr || watched_[i]) continue;
      watched_[i] = true;
      channels_[i]->NotifyOnStateChange(channels_[i]->GetState(false), deadline, &queue_,
                                        &watched_[i]);
    }
    void* tag = nullptr;
    bool ok = false;
    if (queue_.Next(&tag, &ok)) *static_cast<bool*>(tag) = false;
  }

 private:
  // After the second channel is replaced, the watch on the old channel can last for at most kLook.
  std::array<std::shared_ptr<grpc::Channel>, 2> channels_;
  std::array<bool, 2> watched_ = {};
  grpc::CompletionQueue queue_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Connector>> Connector::Create(std::string address,
                                                             ChannelOptions options) {
  SHARDMESH_RETURN_IF_ERROR(CheckAddress(address));
  options.own_connection = true;
  return std::unique_ptr<Connector>(new Connector(std::move(address), std::move(options)));
}

Connector::Connector(std::string address, ChannelOptions options)
    : address_(std::move(address)), options_(std::move(options)) {}

bool Connector::is_cancelled() const {
  absl::MutexLock lock(&mutex_);
  return cancelled_;
}

void Connector::Cancel() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> Connector::Connect(absl::Duration timeout) {
  const auto end = SteadyDeadline::After(timeout);
  auto renewal = SteadyDeadline::After(kRenewal);
  Attempts attempts;
  SHARDMESH_ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> first,
                             CreateChannel(address_, options_));
  attempts.Begin(0, std::move(first));
  for (;;) {
    if (is_cancelled()) {
      return absl::CancelledError(StrCat("connecting to ", address_, " was cancelled"));
    }
    if (std::shared_ptr<grpc::Channel> ended = attempts.Ended(); ended != nullptr) {
      return ended;
    }
    if (end.is_over()) {
      return absl::DeadlineExceededError(
          StrCat("no connection to ", address_, " within ", FormatRounded(timeout)));
    }
    if (renewal.is_over()) {
      renewal = SteadyDeadline::After(kRenewal);
      LogInfo("no connection yet, will try another beside it",
              {{"address", address_}, {"waited", FormatRounded(timeout - end.left())}});
      SHARDMESH_ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> next,
                                 CreateChannel(address_, options_));
      attempts.Begin(1, std::move(next));
    }
    attempts.Poll();
  }
}

}  // namespace shardmesh::rpc
