// The reports that the worker sends to the coordinator without being asked, such as heartbeats.
#ifndef SHARDMESH_WORKER_SERVICE_ATTACH_REPORTS_H_
#define SHARDMESH_WORKER_SERVICE_ATTACH_REPORTS_H_

#include <cstdint>
#include <functional>
#include <map>
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

// Owns the stage of the current attach, the reports that are not yet sent, and the alarm for
// heartbeats. Judged means that the coordinator's verdict, its decision about each tile in the
// inventory, was applied.
//
// clang-format off
//   detached -> (Attached) -> attached -> (Judged, MemberAt, in any order) -> member
//      ^                                                                        |
//      +------------------------------- Detached ------------------------------+
// clang-format on
//
// Holds its mutex while it queues a message, so the coordinator gets messages in the order of the
// stages. Acquires the locks of the store, the recorder and the stream while it holds its mutex.
//
// Thread-safe.
class AttachReports {
 public:
  // The objects to which pointers refer outlive this object.
  struct Options {
    Clock* clock = nullptr;
    ShardStore* store = nullptr;
    // The instruction records for heartbeats. Null: heartbeats carry no instruction records.
    const FlightRecorder* recorder = nullptr;
    // `progress` returns the progress of running steps. `measured_links` returns the measurements
    // of links, and is called with the mutex of AttachReports held.
    std::function<std::vector<StepProgress>()> progress;
    std::function<MeasuredLinks()> measured_links;
    // Returns the bytes that have arrived of the tiles that are not staged, by transfer. May be
    // null.
    std::function<std::map<std::string, int64_t>()> arriving = nullptr;
    // Called whenever `ready` changes: whether the worker is a member and reaches all its peers.
    // Called with the mutex of AttachReports held, so it must not call this object.
    std::function<void(bool ready)> ready_changed;
  };

  explicit AttachReports(Options options);
  AttachReports(const AttachReports&) = delete;
  AttachReports& operator=(const AttachReports&) = delete;

  // These four methods record the stages of the attach. Attached starts the heartbeats.
  void Attached(AttachSinkPtr stream, absl::Duration heartbeat_interval);
  // Records that the whole verdict of this attach was applied. Sends a heartbeat at once.
  void Judged();
  void MemberAt(int64_t epoch);
  // Records that the stream has ended, and sends nothing more on it. Returns whether the worker was
  // attached.
  bool Detached();

  struct State {
    bool attached = false;
    bool ready = false;
    int64_t epoch = 0;  // epoch of the last membership view
  };
  State state() const;

  // Sends the report if the worker is attached. Otherwise drops it: the inventory of the next
  // attach lists the tile.
  void ReportTile(const TileReport& report);
  // Stores the report, and sends it as soon as the worker has the membership view of `epoch`.
  void ReportPeers(int64_t epoch, const std::vector<std::string>& unreached);
  // Confirms that the files of these arrays are gone. Sends the confirmation with the next
  // heartbeat, or at once if the confirmations of many arrays wait.
  void ReportDropped(absl::Span<const std::string> array_ids);
  // Reports that an array came back from the quarantine. Sends the report only after the verdict of
  // this attach, because the inventory of this attach may have lacked the array.
  void ReportRestored(const std::string& array_id);
  // Reports that a tile of the array is damaged and in quarantine. Sends the report only after the
  // verdict of this attach, because the inventory of this attach may have had the tile.
  void ReportDamaged(const std::string& array_id, const std::string& reason);
  // Sends a heartbeat at once, if the worker is attached: the coordinator has told its time, and
  // wants to know whether this worker answers.
  void BeatNow();
  // Records that a step begins. While steps run, this object checks regularly for slow
  // instructions.
  void StepBegins();

 private:
  void Beat() ABSL_LOCKS_EXCLUDED(mutex_);
  void SendHeartbeat(const std::vector<StepProgress>& progress, int64_t used_bytes, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendArriving(const std::map<std::string, int64_t>& arriving)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendDropped() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendRestored() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendDamaged() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendPeers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void UpdateReady() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;

  mutable absl::Mutex mutex_;
  AttachSinkPtr stream_ ABSL_GUARDED_BY(mutex_);  // null: not attached
  bool judged_ ABSL_GUARDED_BY(mutex_) = false;   // the whole verdict of this attach was applied
  bool member_ ABSL_GUARDED_BY(mutex_) = false;   // a membership view came in this attach
  bool ready_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t peers_epoch_ ABSL_GUARDED_BY(mutex_) = -1;
  std::vector<std::string> unreached_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> dropped_ ABSL_GUARDED_BY(mutex_);   // ids whose drop is not confirmed
  std::vector<std::string> restored_ ABSL_GUARDED_BY(mutex_);  // ids that are not yet reported
  // The numbers that the coordinator was last sent, by transfer.
  std::map<std::string, int64_t> told_arriving_ ABSL_GUARDED_BY(mutex_);
  // Arrays with damaged tiles that are not yet reported, and the reasons.
  std::vector<std::pair<std::string, std::string>> damaged_ ABSL_GUARDED_BY(mutex_);
  HeartbeatPace pace_ ABSL_GUARDED_BY(mutex_);
  // The first instruction record that no heartbeat of this attach has carried.
  int64_t next_record_ ABSL_GUARDED_BY(mutex_) = 0;
  // Revision of the measured links in the last heartbeat of this attach.
  uint64_t told_links_ ABSL_GUARDED_BY(mutex_) = 0;

  Alarm alarm_;  // last member, because its function uses the other members
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SERVICE_ATTACH_REPORTS_H_
