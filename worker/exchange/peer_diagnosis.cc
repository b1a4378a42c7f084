// Dials an unreachable peer again, stage by stage, to find the stage that fails.
#include "worker/exchange/peer_diagnosis.h"

#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "process/log.h"
#include "rpc/tls/dial.h"

namespace shardmesh::worker {
namespace {

// The log repeats the same reason for the same peer at most once in this time.
constexpr absl::Duration kLogInterval = absl::Seconds(30);

}  // namespace

void PeerDiagnosis::Begin(const Peer& peer) {
  const std::vector<std::string>& endpoints = peer.device.endpoints;
  if (state_.closed || endpoints.empty() || std::exchange(is_busy_, true)) return;
  const std::string endpoint = endpoints[(peer.next_endpoint - 1) % endpoints.size()];
  queue_.Push([this, endpoint, identity = peer.device.identity] {
    {
      absl::MutexLock lock(&state_.mutex);
      if (state_.closed) return;
    }
    const std::string found =
        rpc::DiagnoseConnection(endpoint, links_.credentials, rpc::ExpectedPeer::Worker(identity));
    absl::MutexLock lock(&state_.mutex);
    is_busy_ = false;
    const absl::Time now = links_.clock->Now();
    Found& last = found_[identity];
    if (found.empty() || (last.text == found && now - last.logged < kLogInterval)) return;
    last = {found, now};
    LogWarning("cannot reach peer", {{"identity", links_.self.identity},
                                     {"peer", identity},
                                     {"address", endpoint},
                                     {"error", found}});
  });
}

}  // namespace shardmesh::worker
