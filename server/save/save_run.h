// One save while it runs: the orders to its workers, one phase after the other.
#ifndef SHARDMESH_SERVER_SAVE_SAVE_RUN_H_
#define SHARDMESH_SERVER_SAVE_SAVE_RUN_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/attach/save_access.h"
#include "server/save/save_plan.h"
#include "server/state/operation_table.h"

namespace shardmesh::server {

// Where and how a checkpoint is saved.
struct SaveDestination {
  std::string folder;  // absolute path
  std::optional<int64_t> step = {};
  int keep = 0;  // complete steps to keep; 0 keeps all
  bool overwrite = false;

  friend bool operator==(const SaveDestination&, const SaveDestination&) = default;
};

struct SaveResult {
  std::string path;
  int64_t tensors = 0;
  int64_t files = 0;
  int64_t size_bytes = 0;
  int64_t written_bytes = 0;
  int64_t found_bytes = 0;  // of tiles that an earlier save, which ended early, had written
  int64_t linked_files = 0;
  bool took_over = false;
  std::vector<int64_t> removed_steps = {};
  // With a step: the complete steps of the folder, rising; empty if the leader does not tell.
  std::vector<int64_t> kept_steps = {};
  int64_t revision = 0;
};

// Phases: open (leader) -> list the files of the earlier checkpoint, and plan by them (leader) ->
// check (the others) -> manifest (leader) -> make the files (leader) ->
// compare links with tiles (all) -> replace links (leader) -> headers (leader) -> tiles (all) ->
// index (leader) -> publish (leader) -> end (all). After an error, a lost worker or a cancellation,
// the end follows at once. The leader then keeps what is written for the next save, if it is much,
// or removes it. After an error of a disk, it removes it.
//
// Run blocks its thread until the save has ended. Cancel is thread-safe.
class SaveRun {
 public:
  static constexpr int64_t kMinKeptBytes = int64_t{64} << 20;

  struct Options {
    std::string save_id;
    SavePlan plan;
    // If set, the files are planned again, so that unchanged tensors stay in the files that they
    // have in the newest complete checkpoint.
    std::optional<SaveLayout> layout = {};
    SaveDestination destination;
    SaveDescription description;
    bool one_host = false;         // all workers of the plan are on one host
    SaveAccess* access = nullptr;  // outlives the run
    // Gets the pieces and bytes to write, when they are known.
    std::function<void(int64_t pieces, int64_t bytes)> total;
    // Gets written pieces and bytes, each once.
    std::function<void(int64_t pieces, int64_t bytes)> progress;
    // Says what to do about a worker that was lost, for errors. May be null.
    std::function<std::string(const SavePlan& plan, const std::string& identity)> advise_on_lost =
        nullptr;
    // Bytes that are worth keeping for the next save. Less is written again sooner than it is read.
    int64_t min_kept_bytes = kMinKeptBytes;
    // Time for a worker to open or check the folder.
    absl::Duration open_timeout = absl::Seconds(60);
    // Time for the workers to answer the orders of the end.
    absl::Duration end_timeout = absl::Seconds(10);
  };

  explicit SaveRun(Options options);

  // Not during Run and Validate, which may plan the files again.
  const SavePlan& plan() const { return plan_; }
  // Errors: those of WaitSave in save_service.proto.
  absl::StatusOr<SaveResult> Run();
  // Asks each worker whether it could write into the folder; nothing is created. Instead of Run.
  // The plan is then the one that Run would carry out.
  // Errors: those of Run about the folder.
  absl::Status Validate();

  // Returns the workers of the save, and those that have not answered an order yet. Thread-safe.
  OperationWorkers Workers() const;

  // Makes Run end with `reason`. FAILED_PRECONDITION: the checkpoint is being published.
  absl::Status Cancel(const absl::Status& reason);

 private:
  struct Order;   // an order and the worker that gets it
  struct Event;   // an answer
  struct Shared;  // shared with the callbacks, which may come after the run
  // By worker: makes the next order when it is sent; nullopt: there are no more.
  using Lanes = std::map<std::string, std::function<std::optional<Order>()>>;

  absl::Status RunPhases(SaveResult* result);
  // kStop: return the first error at once. kGoOn: send the worker nothing more, and go on. kIgnore:
  // as kGoOn, and not even a cancellation ends the wait; for the orders of the end.
  enum class OnError { kStop, kGoOn, kIgnore };
  // Sends the orders of each worker one after the other, all workers at the same time. Calls
  // `answered` for each answer and each error.
  absl::Status RunLanes(Lanes lanes, absl::Duration timeout, OnError on_error,
                        const std::function<void(const Event&)>& answered);
  void Send(const std::string& identity, Order order);
  // Returns the error of a worker with the worker's name.
  static absl::Status OfWorker(const absl::Status& status, const std::string& identity);
  // Adds advice to the error of the whole save, if that is the loss of a worker. The advice looks
  // at all tensors: call this function once, and not for each lost worker.
  absl::Status WithAdvice(const absl::Status& status) const;
  Order NewOrder() const;
  // Returns a lane of these orders.
  static std::function<std::optional<Order>()> LaneOf(std::deque<Order> orders);
  absl::Status AskLeader(Order order, Event* answer,
                         absl::Duration timeout = absl::InfiniteDuration());
  // An answer that ends the save of one worker.
  struct Refusal;
  // Makes the error of workers that cannot write into the folder. Requires one at least.
  absl::Status CannotWrite(std::vector<Refusal> refusals) const;
  absl::Status AsFolderError(const absl::Status& status) const;
  struct FolderLane;
  absl::Status ValidateFolders();
  std::optional<Order> NextFiles(FolderLane* lane) const;
  absl::Status OpenFolder(SaveResult* result);
  // Plans the files by those of the checkpoint that the leader may link, if there is a layout.
  absl::Status PlanByEarlier(absl::Duration timeout);
  absl::Status CheckFolders();
  absl::Status MakeFiles(SaveResult* result);
  // Takes the tiles of a file that are present; `is_intact`: as FoundTiles.is_intact.
  absl::Status TakeFound(size_t file, std::string_view is_intact, SaveResult* result);
  // Lets the workers compare the files of alike_ with their tiles. Those that are equal are linked,
  // and the leader creates the others.
  absl::Status CompareAlike();
  // The orders of one worker to compare its tiles.
  struct CompareLane;
  std::optional<Order> NextCompare(CompareLane* lane, const std::set<size_t>& differing) const;
  // Takes a worker's answer: the checksums of equal regions, or the files that differ.
  absl::Status TakeCompared(const Event& event, CompareLane* lane,
                            std::set<size_t>* differing) const;
  absl::Status ReplaceLinks(const std::set<size_t>& files);
  absl::Status WriteTexts(const std::vector<std::pair<std::string, std::string_view>>& texts);
  absl::Status WriteTiles(SaveResult* result);
  // The orders of one worker to write its tiles.
  struct TileLane;
  Order NextTiles(TileLane* lane) const;
  // `first_manifest`: what the folder has as manifest so far.
  absl::Status Publish(const std::string& first_manifest, SaveResult* result);
  // Waits for the workers until `timeout`.
  void EndAll(bool keep, absl::Duration timeout);

  SavePlan plan_;
  const Options options_;
  const std::shared_ptr<Shared> shared_;
  std::string leader_;
  std::vector<std::string> identities_;  // all workers of the save, the leader first
  std::vector<std::string> opened_;      // those that got an order
  PresentBytes present_;
  PieceChecksums pieces_;
  std::set<size_t> alike_;  // files that the leader has linked by their checksums
  std::string probe_;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SAVE_SAVE_RUN_H_
