// The link of one step: sends and receives over the transports to its ranks.
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

// Implements StepLink. Its mutex guards only signature_. No other mutex is acquired while this
// mutex is held.
class StepLinkImpl final : public StepLink {
 public:
  // The parts of PeerLinks that a step uses. They outlive the StepLinkImpl.
  struct Parts {
    MessageIntake* intake = nullptr;
    CompletionPoller* poller = nullptr;
    Mailbox* mailbox = nullptr;
    // Ends the step in PeerLinks. Called by the destructor.
    std::function<void(int64_t sequence)> close;
  };

  // `ways[r]` has the transports to rank r.
  StepLinkImpl(Parts parts, int64_t sequence, int64_t epoch, DeviceId rank,
               std::vector<PeerWay> ways);
  ~StepLinkImpl() override;

  DeviceId rank() const override { return rank_; }
  absl::Status Begin(int64_t op, std::string signature) override;
  absl::Status Send(DeviceId peer, const Tag& tag, OwnedBytes message) override;
  absl::StatusOr<OwnedBytes> Receive(DeviceId peer, const Tag& tag, int64_t message_bytes,
                                     absl::Time deadline) override;
  absl::StatusOr<std::optional<OwnedBytes>> TryReceive(DeviceId peer, const Tag& tag,
                                                       int64_t message_bytes) override;
  void Reclaim() override;
  absl::Status Check() const override;
  int64_t sent_bytes() const override { return sent_bytes_.load(std::memory_order_relaxed); }

 private:
  // The work that this rank has already done for one other rank.
  struct Told {
    std::atomic<int64_t> op = -1;             // the last op whose signature was sent to the rank
    std::atomic<bool> is_remembered = false;  // PeerLink::RememberStep was called
  };
  class FromPeer;

  // Returns the failure of the step if this worker knows of one, otherwise OK.
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
  // The value of Mailbox::changes() at the last check that found no failure of the step. Before the
  // first check, larger than any such value.
  mutable std::atomic<uint64_t> checked_changes_ = ~uint64_t{0};
  std::atomic<uint64_t> signature_hash_ = 0;  // hash of signature_
  std::atomic<int64_t> op_ = -1;              // the op that began last

  absl::Mutex mutex_;
  std::string signature_ ABSL_GUARDED_BY(mutex_);  // this rank's signature of op_
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_STEP_LINK_H_
