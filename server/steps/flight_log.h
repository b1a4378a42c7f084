// The workers' last and running instructions, from their heartbeats, and the last failed steps.
#ifndef SHARDMESH_SERVER_STEPS_FLIGHT_LOG_H_
#define SHARDMESH_SERVER_STEPS_FLIGHT_LOG_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "program/flight_record.h"
#include "server/steps/sequencer.h"

namespace shardmesh::server {

// The known state of one worker process.
struct WorkerFlight {
  std::string identity;
  uint64_t incarnation = 0;
  // A running step, as of the last heartbeat: the requested one, or otherwise the lowest.
  std::optional<StepProgress> progress = {};
  std::vector<FlightRecord> records = {};   // instructions that ended, in order
  int64_t omitted = 0;                      // older ones that are not there
  std::vector<std::string> unreached = {};  // peers, by its last report
};

// A step that was aborted.
struct FailedStep {
  WorkRef work;
  absl::Time failed;
  absl::Status status;
};

// Keeps the records of attached workers, and of kMaxLost lost workers until their identity attaches
// again. Times are those of the coordinator's clock. Thread-safe.
class FlightLog {
 public:
  // Most records kept for each worker.
  static constexpr size_t kMaxRecords = 1024;
  static constexpr int64_t kMaxRecordBytes = int64_t{1} << 20;
  // Most lost workers kept, the last ones.
  static constexpr size_t kMaxLost = 256;
  static constexpr size_t kMaxFailed = 32;

  // Records that a worker attached. Drops the records of another process of the same identity.
  void Attached(std::string_view identity, uint64_t incarnation);
  void Lost(std::string_view identity);

  // A heartbeat, sent at `sent` by the worker's clock and received at `now`: the running steps, and
  // the instructions that ended. Known records are skipped.
  struct Heartbeat {
    absl::Time sent;
    std::vector<StepProgress> progress = {};  // the lowest first
    std::vector<FlightRecord> records = {};
  };
  void Heard(std::string_view identity, uint64_t incarnation, Heartbeat heartbeat, absl::Time now);
  void PeersReported(std::string_view identity, std::vector<std::string> unreached);

  // Returns a worker's last `max_records` records, of one step or of all (0); nullopt if the worker
  // is unknown.
  std::optional<WorkerFlight> Find(std::string_view identity, int64_t step = 0,
                                   size_t max_records = kMaxRecords) const;
  std::vector<std::string> Identities() const;

  void StepFailed(FailedStep step);
  // The last kMaxFailed, the last one first.
  std::vector<FailedStep> Failed() const;

 private:
  struct Worker {
    uint64_t incarnation = 0;
    std::vector<StepProgress> progress = {};
    std::deque<FlightRecord> records = {};
    int64_t record_bytes = 0;
    int64_t next_number = 0;  // of the record that is not known yet
    std::vector<std::string> unreached = {};
  };
  Worker& Of(std::string_view identity, uint64_t incarnation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::map<std::string, Worker, std::less<>> workers_ ABSL_GUARDED_BY(mutex_);  // by identity
  std::deque<std::string> lost_ ABSL_GUARDED_BY(mutex_);   // identities, the longest lost first
  std::deque<FailedStep> failed_ ABSL_GUARDED_BY(mutex_);  // the last one first
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_FLIGHT_LOG_H_
