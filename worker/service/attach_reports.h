// The reports that go up to the coordinator without an order, heartbeats among them.
#ifndef SHARDMESH_WORKER_SERVICE_ATTACH_REPORTS_H_
#define SHARDMESH_WORKER_SERVICE_ATTACH_REPORTS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "process/clock.h"
#include "program/flight_record.h"
#include "worker/exchange/peer_links.h"
#include "worker/service/attach_sink.h"
#include "worker/service/heartbeat_pace.h"
#include "worker/service/tile_gate.h"
#include "worker/step/flight_recorder.h"
#include "worker/store/shard_store.h"

namespace shardmesh::worker {

// Owns the stage of the current attach, what the coordinator still has to hear, and the alarm of
// the heartbeats.
//
// clang-format off
//   detached -> (Attached) -> attached -> (Judged, MemberAt, in any order) -> member
//      ^                                                                        |
//      +------------------------------- Detached ------------------------------+
// clang-format on
//
// Its lock is held while a message is queued, so that messages go up in the order of the stages.
// The locks of the store, the recorder and the stream are taken under it.
//
// Thread-safe.
class AttachReports {
 public:
  // Pointers outlive the object.
  struct Options {
    Clock* clock = nullptr;
    ShardStore* store = nullptr;
    // The heartbeats carry its records; null: none.
    const FlightRecorder* recorder = nullptr;
    // Return what runs, and what was measured. `measured_links` is called under the lock.
    std::function<std::vector<StepProgress>()> progress;
    std::function<MeasuredLinks()> measured_links;
    // Called at each change of whether the worker is a member and reaches all its peers. Runs under
    // the lock: it must not call back.
    std::function<void(bool ready)> ready_changed;
  };

  explicit AttachReports(Options options);
  AttachReports(const AttachReports&) = delete;
  AttachReports& operator=(const AttachReports&) = delete;

  // The stages. Attached begins the heartbeats.
  void Attached(AttachSinkPtr stream, absl::Duration heartbeat_interval);
  // The whole verdict of this attach was carried out. Sends a heartbeat at once.
  void Judged();
  void MemberAt(int64_t epoch);
  // Sends nothing more on this stream. Returns whether the worker was attached.
  bool Detached();

  struct State {
    bool attached = false;
    bool ready = false;
    int64_t epoch = 0;  // of the last membership
  };
  State state() const;

  // Sends a report if the worker is attached, and drops it otherwise: the inventory of the next
  // attach covers it.
  void ReportTile(const TileReport& report);
  // Sent as soon as the worker is a member at this epoch.
  void ReportPeers(int64_t epoch, const std::vector<std::string>& unreached);
  // The files of these arrays are gone. Confirmed with the next heartbeat, or at once if many wait.
  void ReportDropped(absl::Span<const std::string> array_ids);
  // An array came back from the quarantine. Reported only after the verdict of this attach: its
  // inventory may have lacked the array.
  void ReportRestored(const std::string& array_id);
  // A step begins: looks for slow instructions from now on.
  void StepBegins();

 private:
  void Beat() ABSL_LOCKS_EXCLUDED(mutex_);
  void SendHeartbeat(const std::vector<StepProgress>& progress, int64_t used_bytes, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendDropped() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendRestored() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendPeers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void UpdateReady() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;

  mutable absl::Mutex mutex_;
  AttachSinkPtr stream_ ABSL_GUARDED_BY(mutex_);  // null: not attached
  bool judged_ ABSL_GUARDED_BY(mutex_) = false;   // the whole verdict of this attach
  bool member_ ABSL_GUARDED_BY(mutex_) = false;   // membership of this attach
  bool ready_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t peers_epoch_ ABSL_GUARDED_BY(mutex_) = -1;
  std::vector<std::string> unreached_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> dropped_ ABSL_GUARDED_BY(mutex_);   // not yet confirmed
  std::vector<std::string> restored_ ABSL_GUARDED_BY(mutex_);  // not yet reported
  HeartbeatPace pace_ ABSL_GUARDED_BY(mutex_);
  // With the last heartbeat of this attach.
  int64_t next_record_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t told_links_ ABSL_GUARDED_BY(mutex_) = 0;  // revision

  Alarm alarm_;  // last: its function uses the above
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SERVICE_ATTACH_REPORTS_H_
