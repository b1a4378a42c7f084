// The link of one step: sends and receives over the ways to its ranks.
#ifndef SHARDMESH_WORKER_EXCHANGE_STEP_LINK_H_
#define SHARDMESH_WORKER_EXCHANGE_STEP_LINK_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "sharding/mesh.h"
#include "worker/collective/link.h"
#include "worker/collective/mailbox.h"
#include "worker/exchange/completion_poller.h"
#include "worker/exchange/message_intake.h"
#include "worker/exchange/peer_links.h"
#include "worker/exchange/peer_table.h"
#include "worker/exchange/shared_receive.h"

namespace shardmesh::worker {

// Implements StepLink. Its own mutex guards only the signature, and no other is acquired under it.
class StepLinkImpl final : public StepLink {
 public:
  // The parts of PeerLinks that a step uses; all outlive it.
  struct Parts {
    MessageIntake* intake = nullptr;
    CompletionPoller* poller = nullptr;
    Mailbox* mailbox = nullptr;
    // The step is over. Called by the destructor.
    std::function<void(int64_t sequence)> close;
  };

  // `ways[r]` leads to rank r.
  StepLinkImpl(Parts parts, int64_t sequence, int64_t epoch, DeviceId rank,
               std::vector<PeerWay> ways);
  ~StepLinkImpl() override;

  DeviceId rank() const override { return rank_; }
  absl::Status Begin(int64_t op, std::string signature) override;
  absl::Status Send(DeviceId peer, const Tag& tag, OwnedBytes message) override;
  absl::StatusOr<OwnedBytes> Receive(DeviceId peer, const Tag& tag, int64_t message_bytes,
                                     absl::Time deadline) override;
  absl::Status Check() const override;
  int64_t sent_bytes() const override { return sent_bytes_.load(std::memory_order_relaxed); }

 private:
  // A rank, from the sender's view.
  struct Told {
    std::atomic<int64_t> op = -1;             // the last op whose signature went there
    std::atomic<bool> is_remembered = false;  // RememberStep was called
  };
  class FromPeer;

  // The failure of the step, if this worker knows it.
  absl::Status CheckFailure() const;

  const Parts parts_;
  Mailbox& mailbox_;
  const int64_t sequence_;
  const int64_t epoch_;
  const DeviceId rank_;
  const std::vector<PeerWay> ways_;
  const std::unique_ptr<Told[]> told_;  // by rank
  SharedReceive shared_receive_;

  std::atomic<int64_t> sent_bytes_ = 0;
  // Mailbox::changes(), or a larger number, of the last time when the step had not failed.
  mutable std::atomic<uint64_t> checked_changes_ = ~uint64_t{0};
  std::atomic<uint64_t> signature_hash_ = 0;  // of op_'s
  std::atomic<int64_t> op_ = -1;              // the last op that began

  absl::Mutex mutex_;
  std::string signature_ ABSL_GUARDED_BY(mutex_);  // of op_
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_STEP_LINK_H_
