// A link that counts what is sent over it.
#ifndef SHARDMESH_TESTS_UNIT_WORKER_COLLECTIVE_COUNTING_LINK_H_
#define SHARDMESH_TESTS_UNIT_WORKER_COLLECTIVE_COUNTING_LINK_H_

#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/collective/collective_call.h"
#include "worker/collective/link.h"

namespace shardmesh::worker {

// Counts the bytes that one rank sends to each peer. For one thread.
class CountingLink final : public Link {
 public:
  // `base` outlives the link.
  CountingLink(Link* base, int64_t ranks) : base_(base), sent_bytes_(Index(ranks)) {}

  const std::vector<int64_t>& sent_bytes() const { return sent_bytes_; }  // by receiver
  int64_t total_bytes() const {
    return std::accumulate(sent_bytes_.begin(), sent_bytes_.end(), int64_t{0});
  }

  DeviceId rank() const override { return base_->rank(); }
  absl::Status Begin(int64_t op, std::string signature) override {
    return base_->Begin(op, std::move(signature));
  }
  absl::Status Send(DeviceId peer, const Tag& tag, OwnedBytes message) override {
    sent_bytes_[Index(peer)] += SizeOf(message);
    return base_->Send(peer, tag, std::move(message));
  }
  absl::StatusOr<OwnedBytes> Receive(DeviceId peer, const Tag& tag, int64_t message_bytes,
                                     absl::Time deadline) override {
    return base_->Receive(peer, tag, message_bytes, deadline);
  }

 private:
  Link* const base_;
  std::vector<int64_t> sent_bytes_;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_TESTS_UNIT_WORKER_COLLECTIVE_COUNTING_LINK_H_
