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
#include "rpc/codec/measured_link.h"
#include "tensor/buffer.h"
#include "worker/collective/link.h"

namespace shardmesh::worker {

// Measurements of one worker.
struct MeasuredLinks {
  uint64_t revision = 0;                      // rises with each change
  std::vector<rpc::MeasuredLink> links = {};  // by peer
};

// Measures links. In each pair of workers the one that dialled leads the probes (link_probe.h).
//
// It runs one probe as soon as the connection is up, and three more within the next ten seconds.
// Pairs probe at different times, because workers that start together disturb each other. The best
// figures count. The prober leads one probe at a time, and answers one at a time on another thread,
// so that no cycle of workers can wait for itself. It retries a failed probe a few times; then the
// log says why there are no figures.
//
// Thread-safe.
class LinkProber {
 public:
  // One connection to a peer; a new connection has a new number.
  struct Connection {
    std::string peer;
    uint64_t peer_incarnation = 0;
    uint64_t number = 0;
  };
  // One end of a probe. Its destruction drops the probe's messages.
  struct End {
    std::shared_ptr<const void> owner;  // keeps alive what `link` uses
    std::unique_ptr<Link> link;
    DeviceId peer = 0;
    bool shares_memory = false;
  };
  struct Options {
    std::string identity;
    // Memory for the messages.
    std::shared_ptr<BufferPool> pool;
    // Opens an end for the probe `op`; waits until `deadline` until the transport for data is
    // decided. Where this worker leads, asks the peer to answer. An error if the connection is
    // gone.
    std::function<absl::StatusOr<End>(const Connection& connection, int64_t op, bool leads,
                                      absl::Time deadline)>
        open;
  };

  explicit LinkProber(Options options);
  // Stops. Waits for running probes: their links have failed before, or their deadline passes.
  ~LinkProber();
  LinkProber(const LinkProber&) = delete;
  LinkProber& operator=(const LinkProber&) = delete;

  // Begins no more probes.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  // A connection to a peer whose probes this worker leads is up, or is gone, and its figures with
  // it.
  void Connected(const Connection& connection) ABSL_LOCKS_EXCLUDED(mutex_);
  void Disconnected(const std::string& peer) ABSL_LOCKS_EXCLUDED(mutex_);
  // A peer asks for an answer. Does not wait.
  void Called(const Connection& connection, int64_t op) ABSL_LOCKS_EXCLUDED(mutex_);

  MeasuredLinks measured() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Target {
    Connection connection;
    int64_t next_op = 1;
    int probes = 0;    // successful ones
    int failures = 0;  // since the last success
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
  std::deque<Call> calls_ ABSL_GUARDED_BY(mutex_);                 // one for each peer
  uint64_t revision_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::BitGen random_ ABSL_GUARDED_BY(mutex_);

  std::thread leading_;
  std::thread answering_;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_LINK_PROBER_H_
