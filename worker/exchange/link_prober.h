// Measures the links of one worker to its peers, on its own threads.
#ifndef SHARDMESH_WORKER_EXCHANGE_LINK_PROBER_H_
#define SHARDMESH_WORKER_EXCHANGE_LINK_PROBER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/random/random.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "program/measured_rates.h"
#include "tensor/buffer.h"
#include "worker/collective/link.h"

namespace shardmesh::worker {

// The measurements of one worker's links.
struct MeasuredLinks {
  uint64_t revision = 0;                 // rises with each change of `links`
  std::vector<MeasuredLink> links = {};  // sorted by the peer's identity
};

// Measures links. In each pair of workers, the worker that dialled the stream leads the probes
// (link_probe.h).
//
// The prober runs one probe as soon as the connection is up, and three more within the next ten
// seconds. The times of the later probes are random, because workers that start together would
// disturb one another's measurements. The lowest latency and the highest bandwidth of all probes on
// one connection count.
//
// The prober leads one probe at a time on one thread, and answers one probe at a time on another
// thread. Therefore workers that probe each other in a cycle cannot deadlock. The prober logs each
// failed probe and runs the probe again. After 5 failed probes in a row, the prober runs no more
// probes on this connection.
//
// Thread-safe.
class LinkProber {
 public:
  // One connection to a peer. Each new connection gets a new `number`.
  struct Connection {
    std::string peer;
    uint64_t peer_incarnation = 0;
    uint64_t number = 0;
  };
  // This worker's end of a probe. Its destruction drops the probe's messages.
  struct End {
    std::shared_ptr<const void> owner;  // owns the objects that `link` uses
    std::unique_ptr<Link> link;
    DeviceId peer = 0;
    bool shares_memory = false;
  };
  struct Options {
    std::string identity;
    // The pool from which messages of probes get their memory.
    std::shared_ptr<BufferPool> pool;
    // Opens this worker's end of the probe `op`. Waits, at most until `deadline`, until both
    // workers have chosen the transport for data. If `leads`, also asks the peer to answer the
    // probe. Returns an error if the connection is lost.
    std::function<absl::StatusOr<End>(const Connection& connection, int64_t op, bool leads,
                                      absl::Time deadline)>
        open;
  };

  explicit LinkProber(Options options);
  // Calls Join.
  ~LinkProber();
  LinkProber(const LinkProber&) = delete;
  LinkProber& operator=(const LinkProber&) = delete;

  // Prevents further probes. Does not end running probes.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls Stop, and waits until running probes end. They end at once if the caller has ended their
  // links, otherwise at their deadline. The other methods may be called afterwards. Only one thread
  // may call Join.
  void Join() ABSL_LOCKS_EXCLUDED(mutex_);

  // Connected records that a connection is up, on which this worker leads the probes. Disconnected
  // records that the connection to a peer is lost, and drops the figures measured on this
  // connection.
  void Connected(const Connection& connection) ABSL_LOCKS_EXCLUDED(mutex_);
  void Disconnected(const std::string& peer) ABSL_LOCKS_EXCLUDED(mutex_);
  // Queues the peer's request to answer the probe `op`. Returns before the probe runs.
  void Called(const Connection& connection, int64_t op) ABSL_LOCKS_EXCLUDED(mutex_);

  MeasuredLinks measured() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Target {
    Connection connection;
    int64_t next_op = 1;
    int probes = 0;    // successful probes
    int failures = 0;  // failed probes since the last successful probe
    absl::Time due = absl::InfinitePast();
    std::optional<MeasuredLink> best = {};
  };
  struct Call {
    Connection connection;
    int64_t op = 0;
  };

  void LeadAll() ABSL_LOCKS_EXCLUDED(mutex_);
  void AnswerAll() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<MeasuredLink> Lead(const Connection& connection, int64_t op) const;
  absl::Status Answer(const Connection& connection, int64_t op) const;
  void Note(const Connection& connection, absl::StatusOr<MeasuredLink> measured)
      ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;

  mutable absl::Mutex mutex_;
  absl::CondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::string, Target> targets_ ABSL_GUARDED_BY(mutex_);  // by the peer's identity
  std::deque<Call> calls_ ABSL_GUARDED_BY(mutex_);                 // at most one for each peer
  uint64_t revision_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::BitGen random_ ABSL_GUARDED_BY(mutex_);

  std::thread leading_;
  std::thread answering_;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_LINK_PROBER_H_
