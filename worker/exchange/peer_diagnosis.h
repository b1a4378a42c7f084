// Finds out why a dialled peer cannot be reached, and logs the reason.
#ifndef SHARDMESH_WORKER_EXCHANGE_PEER_DIAGNOSIS_H_
#define SHARDMESH_WORKER_EXCHANGE_PEER_DIAGNOSIS_H_

#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "process/thread_pool.h"
#include "worker/exchange/exchange_state.h"
#include "worker/exchange/peer_links.h"

namespace shardmesh::worker {

// Examines one peer at a time, on its own thread. Does not hold the mutex of ExchangeState while it
// dials. The destructor waits for a running examination.
class PeerDiagnosis {
 public:
  // `links` and `state` outlive this object.
  PeerDiagnosis(const PeerLinks::Options& links, ExchangeState* state)
      : links_(links), state_(*state) {}

  // Starts to examine the peer. No effect while another peer is being examined, or once the links
  // are closed.
  void Begin(const Peer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex);

 private:
  // The reason that was logged last for a peer, and the time of the log line.
  struct Found {
    std::string text;
    absl::Time logged = absl::InfinitePast();
  };

  const PeerLinks::Options& links_;
  ExchangeState& state_;
  bool is_busy_ ABSL_GUARDED_BY(state_.mutex) = false;
  std::map<std::string, Found> found_ ABSL_GUARDED_BY(state_.mutex);  // by identity
  ThreadPool queue_{1};
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_PEER_DIAGNOSIS_H_
