// Measures the links of one worker to its peers, on threads of its own.
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
#include "rpc/codec/measured_link.h"
#include "tensor/buffer.h"
#include "worker/collective/link.h"

namespace shardmesh::worker {

// What a worker has measured.
struct MeasuredLinks {
  uint64_t revision = 0;                      // rises with each change
  std::vector<rpc::MeasuredLink> links = {};  // by peer
};

// Of a pair of workers the one that dials leads the probes (link_probe.h): one as soon as the
// connection is up, and three more within the next ten seconds, not all pairs at the same time,
// since workers that start together disturb each other; the best figures count. It leads them one
// at a time, and answers its peers one at a time on another thread, so that no circle of workers
// waits for itself. A probe that fails is tried again, a few times, then the log says why there are
// no figures.
//
// Thread-safe.
class LinkProber {
 public:
  // Of one connection to a peer; a new connection has a new number.
  struct Connection {
    std::string peer;
    uint64_t peer_incarnation = 0;
    uint64_t number = 0;
  };
  // One end of a probe, which ends the probe's messages with itself.
  struct End {
    std::shared_ptr<const void> owner;  // of what `link` uses
    std::unique_ptr<Link> link;
    DeviceId peer = 0;
    bool shares_memory = false;
  };
  struct Options {
    std::string identity;
    // Memory for the messages.
    std::shared_ptr<BufferPool> pool;
    // Opens an end for the probe `op`; waits until `deadline` for what decides how data goes. Where
    // this worker leads, the peer is called to answer. An error if the connection is gone.
    std::function<absl::StatusOr<End>(const Connection& connection, int64_t op, bool leads,
                                      absl::Time deadline)>
        open;
  };

  explicit LinkProber(Options options);
  // Stops. The links of probes under way have failed before, or the probes' time passes first.
  ~LinkProber();
  LinkProber(const LinkProber&) = delete;
  LinkProber& operator=(const LinkProber&) = delete;

  // Begins no more probes.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  // A connection to a peer whose probes this worker leads is up, or is over: then the figures of it
  // are, too.
  void Connected(const Connection& connection) ABSL_LOCKS_EXCLUDED(mutex_);
  void Disconnected(const std::string& peer) ABSL_LOCKS_EXCLUDED(mutex_);
  // A peer calls for an answer. Does not wait.
  void Called(const Connection& connection, int64_t op) ABSL_LOCKS_EXCLUDED(mutex_);

  MeasuredLinks measured() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Target {
    Connection connection;
    int64_t next_op = 1;
    int probes = 0;    // that succeeded
    int failures = 0;  // since the last one that did
    absl::Time due = absl::InfinitePast();
    std::optional<rpc::MeasuredLink> best = {};
  };
  struct Call {
    Connection connection;
    int64_t op = 0;
  };

  void LeadAll() ABSL_LOCKS_EXCLUDED(mutex_);
  void AnswerAll() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<rpc::MeasuredLink> Lead(const Connection& connection, int64_t op) const;
  absl::Status Answer(const Connection& connection, int64_t op) const;
  void Note(const Connection& connection, absl::StatusOr<rpc::MeasuredLink> measured)
      ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;

  mutable absl::Mutex mutex_;
  absl::CondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::string, Target> targets_ ABSL_GUARDED_BY(mutex_);  // by peer
  std::deque<Call> calls_ ABSL_GUARDED_BY(mutex_);                 // one of a peer
  uint64_t revision_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::BitGen random_ ABSL_GUARDED_BY(mutex_);

  std::thread leading_;
  std::thread answering_;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_LINK_PROBER_H_
