// Running and recent instructions of each worker, from its heartbeats, and the last steps that
// failed.
#ifndef SHARDMESH_SERVER_DIAGNOSIS_FLIGHT_LOG_H_
#define SHARDMESH_SERVER_DIAGNOSIS_FLIGHT_LOG_H_

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
  // A running step, as of the last heartbeat: the step that was asked for, or else the running step
  // with the lowest number.
  std::optional<StepProgress> progress = {};
  std::vector<FlightRecord> records = {};  // ended instructions, oldest first
  int64_t omitted = 0;                     // how many older records were left out
  // Peers that the worker does not reach, by its last report.
  std::vector<std::string> unreached = {};
};

// A step that was aborted.
struct FailedStep {
  WorkRef work;
  absl::Time failed;
  absl::Status status;
};

// Keeps the records of attached workers. Also keeps the records of the last kMaxLost lost workers,
// each until a worker of that identity attaches again. Times are those of the coordinator's clock.
// Thread-safe.
class FlightLog {
 public:
  // Maximum number of records kept for each worker.
  static constexpr size_t kMaxRecords = 1024;
  static constexpr int64_t kMaxRecordBytes = int64_t{1} << 20;
  // Maximum number of lost workers whose records are kept. Above this number, the records of the
  // worker that was lost first are dropped.
  static constexpr size_t kMaxLost = 256;
  static constexpr size_t kMaxFailed = 32;

  // Registers that a worker attached. Drops the flight records of an earlier process of the same
  // identity.
  void Attached(std::string_view identity, uint64_t incarnation);
  void Lost(std::string_view identity);

  // The running steps and the ended instructions of one heartbeat. The worker sent it at `sent`, by
  // its own clock; the coordinator received it at `now`. Records that the log already has are
  // skipped.
  struct Heartbeat {
    absl::Time sent;
    std::vector<StepProgress> progress = {};  // by rising step number
    std::vector<FlightRecord> records = {};
  };
  void Heard(std::string_view identity, uint64_t incarnation, Heartbeat heartbeat, absl::Time now);
  void PeersReported(std::string_view identity, std::vector<std::string> unreached);

  // Returns the last `max_records` records of a worker: those of one step, or of all steps if
  // `step` is 0. Nullopt if the worker is not known.
  std::optional<WorkerFlight> Find(std::string_view identity, int64_t step = 0,
                                   size_t max_records = kMaxRecords) const;
  std::vector<std::string> Identities() const;

  void StepFailed(FailedStep step);
  // The last kMaxFailed failed steps, newest first.
  std::vector<FailedStep> Failed() const;

 private:
  struct Worker {
    uint64_t incarnation = 0;
    std::vector<StepProgress> progress = {};
    std::deque<FlightRecord> records = {};
    int64_t record_bytes = 0;
    int64_t next_number = 0;  // number of the first record that is not known yet
    std::vector<std::string> unreached = {};
  };
  Worker& Of(std::string_view identity, uint64_t incarnation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::map<std::string, Worker, std::less<>> workers_ ABSL_GUARDED_BY(mutex_);  // by identity
  // Lost workers, in the order in which they were lost.
  std::deque<std::string> lost_ ABSL_GUARDED_BY(mutex_);
  std::deque<FailedStep> failed_ ABSL_GUARDED_BY(mutex_);  // newest first
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_DIAGNOSIS_FLIGHT_LOG_H_
