// Brings back tiles that were lost with a worker, as soon as a worker serves their rank again.
#ifndef SHARDMESH_SERVER_REPAIR_REPAIRS_H_
#define SHARDMESH_SERVER_REPAIR_REPAIRS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
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
#include "process/clock.h"
#include "server/repair/repair_sources.h"
#include "server/repair/search_thread.h"
#include "server/state/array_registry.h"
#include "server/state/membership.h"
#include "server/state/operation_table.h"
#include "server/state/recovery.h"
#include "server/steps/array_cache.h"
#include "server/steps/fill_transport.h"
#include "server/steps/mesh_endpoints.h"
#include "server/steps/sequencer.h"
#include "server/steps/transfers.h"

namespace shardmesh::server {

// The objects that the repairs use. All of them outlive the repairs. The sequencer ends its work
// before it is destroyed, and may be destroyed after Stop.
struct RepairParts {
  Clock* clock = nullptr;
  const Membership* membership = nullptr;
  ArrayRegistry* registry = nullptr;
  OperationTable* operations = nullptr;
  Sequencer* sequencer = nullptr;
  const MeshEndpoints* endpoints = nullptr;
  FillTransport* fill = nullptr;
  const Transfers* transfers = nullptr;
  ArrayCache* cache = nullptr;  // may be null if nothing is cached
  std::string token_key = {};   // see rpc/transfer_token.h
  int64_t term = 0;
};

// A tile is lost if its array's registry entry misses its rank. A lost tile is repaired once the
// rank's worker is attached and its inventory was judged. The worker reads the tile from the first
// source that works (RepairSourcesOf). A tile is repaired as a transfer with one participant:
//
//   waiting -> transfer begun, order sent -> tile staged -> checksum compared with the registry's
//           -> the rank has its tile (ArrayRegistry::TakeRestored), the worker commits the tile
//
// If a source fails, the next one is tried. If all fail, the tile waits, each time twice as long,
// up to Options::last_retry. It is tried at once when any worker attaches: that worker may be a
// source. All tiles that one worker reads are one operation (OperationKind::kRepair), which ends
// when nothing is left to try. A cancelled operation begins again when its worker attaches again.
//
// Limits keep the repairs behind other work. A worker reads few tiles at once, and only into memory
// that neither its tiles nor running puts need.
//
// Nothing of this is durable: a coordinator that starts finds the lost tiles again.
//
// Thread-safe. No function blocks, except Stop and the destructor, which wait for the own thread.
class Repairs {
 public:
  struct Options {
    // Arrays of workers that attach within this time are looked for together.
    absl::Duration gather = absl::Milliseconds(200);
    absl::Duration first_retry = absl::Seconds(5);
    absl::Duration last_retry = absl::Minutes(5);
    // Tiles and bytes that one worker reads at once. A larger tile is read by itself.
    int64_t tiles_at_once = 4;
    int64_t bytes_at_once = int64_t{512} << 20;
  };

  explicit Repairs(RepairParts parts) : Repairs(std::move(parts), Options()) {}
  Repairs(RepairParts parts, Options options);
  ~Repairs();
  Repairs(const Repairs&) = delete;
  Repairs& operator=(const Repairs&) = delete;

  // Records that the inventory of this attachment of a worker was judged.
  void WorkerJoined(std::string_view identity, uint64_t attachment);
  // Looks for lost tiles again, because a worker takes work again.
  void LookAgain();
  // Records how many bytes of the tile that this transfer brings have arrived at its worker. No
  // effect for a transfer that is no repair, or has ended.
  void TilesArriving(std::string_view transfer_id, int64_t bytes);
  // Ends all repairs, and begins no more. Waits for the own thread. For a coordinator that stops.
  void Stop();

  // Returns what is done, or is about to be done (ArrayRepair::is_due), about the array. Nullopt:
  // the array lacks no tile of an attached worker. Takes the locks of the registry and the
  // endpoints.
  std::optional<ArrayRepair> Find(std::string_view array_id) const;
  RepairTotals totals() const;

 private:
  using TileKey = std::pair<std::string, int64_t>;  // array id and rank
  // A source that failed, or an obstacle (`source` is empty then).
  struct Failure {
    std::string source;
    absl::Status status;
  };
  // A lost tile of an attached worker.
  struct LostTile {
    std::string identity;
    uint64_t attachment = 0;
    int64_t size_bytes = 0;
    enum class State { kWaiting, kRunning, kFailed } state = State::kWaiting;
    std::vector<Failure> failures = {};            // of the current or last round
    int rounds = 0;                                // that failed
    int delays = 0;                                // of the current source: see kMaxDelays
    absl::Time not_before = absl::InfinitePast();  // kWaiting
    absl::Time next_try = absl::InfiniteFuture();  // kFailed
    bool is_cancelled = false;
    std::string transfer_id = {};  // kRunning
  };
  // The work of one worker.
  struct Worker {
    std::deque<TileKey> queue = {};  // tiles that wait for their turn
    int64_t running = 0;
    int64_t running_bytes = 0;
    // The operation; empty: none runs. The next four fields belong to it.
    std::string operation_id = {};
    int64_t done = 0;
    int64_t done_bytes = 0;
    int64_t failed = 0;
    absl::Status first_failure = {};
    absl::Status cancelled = {};  // why the operation was cancelled
    // The ids of arrays whose tiles no source has, since the worker's queue was last empty.
    std::set<std::string, std::less<>> without_source = {};
  };
  // A tile whose repair may begin.
  struct Chosen {
    TileKey key;
    std::string identity;
    uint64_t attachment = 0;
    int64_t size_bytes = 0;
    int64_t running_bytes = 0;        // of other tiles of the worker
    std::vector<std::string> failed;  // the sources that failed in this round
  };
  using Tiles = std::map<TileKey, LostTile>;
  using Joined = std::map<std::string, uint64_t, std::less<>>;

  // The functions from here on run on the own thread, except Take and Cancel.
  void Look();
  // Returns the lost tiles that a search which is due will find, if they have a source.
  std::optional<ArrayRepair> FindDue(std::string_view array_id) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns those of the array's ranks `waiting`, whose tiles wait for their turn, that have a
  // source. Looks for the sources of a few of them; the others count as ranks that have one.
  std::vector<int64_t> WithSource(std::string_view array_id,
                                  absl::Span<const int64_t> waiting) const;
  // Returns the array with the same tiles, and sets the workers of its mesh, by rank.
  RepairTwin FindTwin(std::string_view array_id, const MembershipView& view,
                      std::vector<std::string>* workers) const;
  Tiles FindLost(const Joined& joined) const;
  void Merge(Tiles found, const std::set<std::string, std::less<>>& arrived)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Pump();
  // Takes the next tile out of a queue; nullopt if none may begin now.
  std::optional<Chosen> Choose() ABSL_LOCKS_EXCLUDED(mutex_);
  void Begin(const Chosen& chosen);
  absl::Status CheckMemory(const Chosen& chosen, const MembershipView& view,
                           const WorkerStatus& worker) const;
  // Begins the operation of the worker, unless it runs.
  void EnsureOperation(const std::string& identity);
  absl::Status Take(const Array& array, const Chosen& chosen, const WorkOutcome& outcome) const;
  void Ended(const TileKey& key, const std::string& transfer_id, const std::string& source,
             const absl::Status& status);
  // Ends the turn of a running tile. Returns the tile; null if there is no such tile.
  LostTile* EndTurn(const TileKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Forgets a tile that is no longer lost, or whose worker is gone.
  void Forget(const TileKey& key);
  // Records that no source is left, or that an obstacle keeps the tile from being read. A tile that
  // is not repairable, because it has no source at all, is no part of an operation.
  void Fail(const TileKey& key, std::optional<Failure> obstacle, bool is_repairable = true);
  void Cancel(const std::string& identity, const std::string& operation_id,
              const absl::Status& reason);
  void EndOperations();
  // Tells the operation of the worker how much there is to do.
  void UpdateTotal(const Worker& worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const RepairParts parts_;
  const Options options_;

  mutable absl::Mutex mutex_;
  // The attachment of each worker whose inventory was judged.
  Joined joined_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string, std::less<>> arrived_ ABSL_GUARDED_BY(mutex_);  // since the last Look
  // How many searches were asked for, and how many of these the last search has answered.
  int64_t asked_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t answered_ ABSL_GUARDED_BY(mutex_) = 0;
  Tiles tiles_ ABSL_GUARDED_BY(mutex_);
  // The tile of each running transfer.
  std::map<std::string, TileKey, std::less<>> by_transfer_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Worker, std::less<>> workers_ ABSL_GUARDED_BY(mutex_);  // by identity
  int64_t repaired_tiles_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t repaired_bytes_ ABSL_GUARDED_BY(mutex_) = 0;

  SearchThread thread_;  // the own thread, which calls Look; last: its tasks use the members above
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_REPAIR_REPAIRS_H_
