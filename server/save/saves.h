// The saves of the coordinator: which arrays, who runs them, and their results.
#ifndef SHARDMESH_SERVER_SAVE_SAVES_H_
#define SHARDMESH_SERVER_SAVE_SAVES_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "server/attach/save_access.h"
#include "server/save/save_plan.h"
#include "server/save/save_run.h"
#include "server/save/saved_places.h"
#include "server/state/array_registry.h"
#include "server/state/membership.h"
#include "server/state/operation_table.h"
#include "server/state/recovery.h"
#include "server/state/session.h"
#include "server/store/store.h"

namespace shardmesh::server {

// A request for a checkpoint.
struct SaveRequest {
  // Identifies a repeated request (RequestKey); empty: each request is a new one.
  std::string request_key;
  std::string session_id;
  std::string prefix;         // of the names of the arrays to save
  bool strip_prefix = false;  // from the names in the checkpoint
  SaveDestination destination;
  int64_t max_file_bytes = 0;  // 0: kDefaultFileBytes, or for a step StepFileBytes
  bool single_file = false;
  bool is_detached = false;  // the end of the session does not cancel the save

  friend bool operator==(const SaveRequest&, const SaveRequest&) = default;
};

inline constexpr int64_t kDefaultFileBytes = 5'000'000'000;
inline constexpr int64_t kMinFileBytes = int64_t{1} << 20;

struct BegunSave {
  std::string operation_id;  // empty if the save was only checked
  int64_t tensors = 0;
  // The number of files. After Begin, it is the number without an earlier checkpoint: the workers
  // are asked for that one only later.
  int64_t files = 0;
  int64_t size_bytes = 0;
  int64_t revision = 0;
  bool is_detached = false;
};

// Lets other threads look at a call of Saves::Check, and end it. Thread-safe.
class SaveCheck {
 public:
  // Returns the workers that the call asks, and those that have not answered yet; none before and
  // after.
  OperationWorkers Workers() const;
  // Makes the call end soon, with `reason`.
  void Cancel(const absl::Status& reason);

 private:
  friend class Saves;

  mutable absl::Mutex mutex_;
  std::shared_ptr<SaveRun> run_ ABSL_GUARDED_BY(mutex_);  // null: not yet, or no longer
  absl::Status cancelled_ ABSL_GUARDED_BY(mutex_);
};

// Begins saves and runs each on a thread of its own. A save is an operation. The end of its session
// cancels it, unless the save is detached.
//
// Thread-safe. All parts outlive this object.
class Saves {
 public:
  struct Parts {
    ArrayRegistry* registry = nullptr;
    const SessionTable* sessions = nullptr;
    const Membership* membership = nullptr;
    const Recovery* recovery = nullptr;
    OperationTable* operations = nullptr;
    SaveAccess* access = nullptr;
    std::string cluster_id;
    // Keeps the places of checkpoints for repairs after a restart. May be null: then they are lost.
    Store* store = nullptr;
    bool has_repairs = true;  // lost tiles are read again from files and checkpoints
    int64_t max_tiles = kMaxTiles;
    int64_t min_kept_bytes = SaveRun::kMinKeptBytes;
  };
  using WaitCallback = absl::AnyInvocable<void(absl::StatusOr<SaveResult>) &&>;

  // Bounds the threads, and the disk traffic that workers compete for.
  static constexpr size_t kMaxRunning = 8;
  static constexpr int64_t kMaxTensors = 100'000;
  // Tiles of all running saves. The plan of a save takes about 250 bytes for each.
  static constexpr int64_t kMaxTiles = 4'000'000;
  // Results that are remembered for Wait; the oldest are dropped first.
  static constexpr size_t kMaxResults = 1'000;

  // Tells the registry what the store knows of earlier saves (SavedPlaces).
  explicit Saves(Parts parts);
  // Cancels all saves and waits for their ends.
  ~Saves();
  Saves(const Saves&) = delete;
  Saves& operator=(const Saves&) = delete;

  // Returns the answer that Begin would give now, without an operation. Asks the workers whether
  // they could write, and waits for them: do not call it on a gRPC thread. Errors: those of Begin,
  // and those of Wait about the folder. `check`: for other threads; a new one for each call.
  absl::StatusOr<BegunSave> Check(const SaveRequest& request, SaveCheck* check = nullptr);
  // Begins a save. Takes all names with the prefix at one revision, and pins their arrays. Takes up
  // to a second with very many names: do not call it on a gRPC thread. Errors: those of BeginSave
  // in save_service.proto.
  absl::StatusOr<BegunSave> Begin(const SaveRequest& request);
  // Calls `callback` when the save has ended, with its result; at once if it has ended. NOT_FOUND:
  // no such save, or it is forgotten. Returns a number for StopWaiting; 0 if `callback` was called.
  int64_t Wait(const std::string& operation_id, WaitCallback callback);
  // Returns the workers of a running save, and those for whose answers it waits; none if there is
  // no such save.
  OperationWorkers WorkersOf(const std::string& operation_id) const;
  // Destroys the callback of a waiting caller, unless the save has just ended and calls it.
  void StopWaiting(const std::string& operation_id, int64_t number);

  // Cancels all saves with `reason`, and begins no more. For a coordinator that stops.
  void Stop(const absl::Status& reason);

 private:
  struct Running {
    std::shared_ptr<SaveRun> run;
    int64_t tiles = 0;  // of the plan
    std::vector<std::string> pinned;
    std::atomic<bool> is_over = false;
    std::thread thread;
  };
  struct Remembered {
    SaveRequest request;
    BegunSave begun;
  };
  using AdviceFunction =
      std::function<std::string(const SavePlan& plan, const std::string& identity)>;

  // `layout`: for SaveRun::Options.
  absl::StatusOr<SavePlan> Plan(const SaveRequest& request, SaveDescription* description,
                                std::optional<SaveLayout>* layout,
                                std::vector<std::string>* pinned) const;
  // The sizes of files that the request asks for, or the default ones.
  absl::StatusOr<SaveLayout> LayoutOf(const SaveRequest& request,
                                      absl::Span<const TensorToSave> tensors) const;
  absl::Status Snapshot(const std::string& prefix, bool pins,
                        std::vector<ArrayRegistry::NamedArray>* names) const;
  // Whether all workers that may write a part are on one host.
  bool IsOneHost(const SavePlan& plan) const;
  // Returns the function that advises on a worker that the save of the request loses.
  AdviceFunction AdviseOnLost(const SaveRequest& request) const;
  // Returns the answer to an earlier request with the same key; nullopt if there was none.
  absl::StatusOr<std::optional<BegunSave>> FindKnown(const SaveRequest& request) const;
  // Gives a plan without a region, whose tensors have no elements, a worker that makes the files.
  absl::Status AddLeader(const MembershipView& view, SavePlan* plan) const;
  // Removes saves that are over. RESOURCE_EXHAUSTED (OVERLOADED): kMaxRunning are not.
  absl::Status MakeRoom();
  void RememberPlaces(const SavePlan& plan, const std::string& path);
  // RESOURCE_EXHAUSTED (OVERLOADED): the running saves leave no room for so many tiles.
  absl::Status CheckRoomForTiles(int64_t tiles) const;
  void Execute(const std::string& id, Running* running);

  const Parts parts_;
  SavedPlaces places_;
  absl::Mutex begin_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);  // held by Begin
  mutable absl::Mutex mutex_;                             // held only for short times
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::unique_ptr<Running>> running_ ABSL_GUARDED_BY(mutex_);  // by id
  std::set<SaveRun*> validations_ ABSL_GUARDED_BY(mutex_);  // of Check, while they ask workers
  std::map<std::string, SaveResult> results_ ABSL_GUARDED_BY(mutex_);  // by id
  std::deque<std::string> result_order_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Remembered> requests_ ABSL_GUARDED_BY(mutex_);  // by request key
  std::deque<std::string> request_order_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SAVE_SAVES_H_
