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
#include "program/measured_link.h"
#include "tensor/buffer.h"
#include "worker/collective/link.h"

namespace shardmesh::worker {

// The measurements of one worker's links.
struct MeasuredLinks {
  uint64_t revision = 0;                 // rises with each change of `links`
  std::vector<MeasuredLink> links = {};  // by peer
};

// Measures links. In each pair of workers, the worker that dialled the stream leads the probes
// (link_probe.h).
//
// The prober runs one probe as soon as the connection is up, and three more within the next ten
// seconds. Their times are random, because workers that start together would disturb one another's
// measurements. Only the best figures count.
//
// The prober leads one probe at a time on one thread, and answers one at a time on another.
// Therefore workers that probe each other in a cycle cannot deadlock. The prober retries a failed
// probe a few times, and then logs why there are no figures.
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
    std::shared_ptr<const void> owner;  // owns what `link` uses
    std::unique_ptr<Link> link;
    DeviceId peer = 0;
    bool shares_memory = false;
  };
  struct Options {
    std::string identity;
    // The pool from which messages of probes get their memory.
    std::shared_ptr<BufferPool> pool;
    // Opens this worker's end of the probe `op`. Waits, at most until `deadline`, until both
    // workers have chosen the transport for data. If `leads`, also asks the peer to answer. Returns
    // an error if the connection is lost.
    std::function<absl::StatusOr<End>(const Connection& connection, int64_t op, bool leads,
                                      absl::Time deadline)>
        open;
  };

  explicit LinkProber(Options options);
  // Stops, and waits for running probes. The caller has ended their links before, so they fail, or
  // their deadline passes.
  ~LinkProber();
  LinkProber(const LinkProber&) = delete;
  LinkProber& operator=(const LinkProber&) = delete;

  // Lets no further probe begin.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  // Connected: a connection is up, and this worker leads its probes. Disconnected: the connection
  // is lost; its figures are dropped.
  void Connected(const Connection& connection) ABSL_LOCKS_EXCLUDED(mutex_);
  void Disconnected(const std::string& peer) ABSL_LOCKS_EXCLUDED(mutex_);
  // The peer asks this worker to answer a probe. Does not wait for the probe.
  void Called(const Connection& connection, int64_t op) ABSL_LOCKS_EXCLUDED(mutex_);

  MeasuredLinks measured() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Target {
    Connection connection;
    int64_t next_op = 1;
    int probes = 0;    // successful ones
    int failures = 0;  // failed probes since the last successful one
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
  std::map<std::string, Target> targets_ ABSL_GUARDED_BY(mutex_);  // by peer
  std::deque<Call> calls_ ABSL_GUARDED_BY(mutex_);                 // at most one for each peer
  uint64_t revision_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::BitGen random_ ABSL_GUARDED_BY(mutex_);

  std::thread leading_;
  std::thread answering_;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_LINK_PROBER_H_
