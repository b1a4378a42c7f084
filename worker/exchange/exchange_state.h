// The state that the parts of PeerLinks share, guarded by one mutex.
#ifndef SHARDMESH_WORKER_EXCHANGE_EXCHANGE_STATE_H_
#define SHARDMESH_WORKER_EXCHANGE_EXCHANGE_STATE_H_

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "worker/exchange/peer_links.h"
#include "worker/exchange/peer_table.h"
#include "worker/exchange/step_table.h"

namespace shardmesh::worker {

// The options outlive the state.
struct ExchangeState {
  explicit ExchangeState(const PeerLinks::Options& options) : peers(options) {}

  // Acquire this mutex before the mutexes of PeerLink, ExchangeStream and Mailbox. Do not hold it
  // while calling PeerLinks::Options::peers_changed.
  mutable absl::Mutex mutex;
  bool closed ABSL_GUARDED_BY(mutex) = false;
  PeerTable peers ABSL_GUARDED_BY(mutex);
  StepTable steps ABSL_GUARDED_BY(mutex);
  // All counters except those that MessageIntake counts without the mutex.
  PeerLinks::Counters counters ABSL_GUARDED_BY(mutex);
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_EXCHANGE_STATE_H_
