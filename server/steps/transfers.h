// Current puts (uploads of arrays), and puts that ended recently.
#ifndef SHARDMESH_SERVER_STEPS_TRANSFERS_H_
#define SHARDMESH_SERVER_STEPS_TRANSFERS_H_

#include <algorithm>
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
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "process/clock.h"
#include "server/state/array_registry.h"
#include "server/state/operation_table.h"
#include "server/state/session.h"
#include "server/steps/pinned_array.h"
#include "server/steps/sequencer.h"

namespace shardmesh::server {

// An array that a put will make.
struct PutItem {
  ArrayDefinition definition;
  // Empty: the array gets no name, and the session pins the array.
  std::string name;
  std::optional<int64_t> expected_version;  // expected version of the name; see NameMove
  OtherMoves other_moves = nullptr;         // null: none
  std::string superseded = {};              // an id for CommitRequest::superseded; empty: none
  // The put asks for one replica, so that an array with two is not the array that it makes.
  bool wants_one_replica = false;
  // An array that has the elements already; null: there is none.
  std::shared_ptr<const PinnedArray> reused = nullptr;
  int64_t moved_bytes = 0;  // bytes that workers send to one another to copy from `reused`
  // The ranks whose tiles the client sends although `reused` is set, because that array lacks some
  // of their elements; rising. Empty if `reused` has all elements.
  std::vector<int64_t> sent_ranks = {};

  // An item is at most one of kept, copied, read and zeros. Of a copied item, the client sends the
  // tiles of `sent_ranks`. Of an item that is none of them, the client sends all tiles.

  // `reused` was cached, so that its second replica, which the put wants, is yet to be made. Set
  // for kept items only, and for one of several that keep the same array.
  bool lacks_second_copy = false;

  // The item's array is `reused` itself: it only gets the name.
  bool is_kept() const {
    return reused != nullptr &&
           reused->array().definition.descriptor.array_id == definition.descriptor.array_id;
  }
  // The put makes an array, or keeps one, that gets its second replica after the commit.
  bool will_be_replicated() const {
    return definition.replicas > 1 && (!is_kept() || lacks_second_copy);
  }
  // The workers of all ranks but `sent_ranks` copy their tiles from `reused`. That array may lie in
  // the same layout or in another one, and may be on another mesh.
  bool is_copied() const { return reused != nullptr && !is_kept(); }
  // Whether the client sends the rank's tile of a tensor that is copied.
  bool is_sent_to(int64_t rank) const {
    return std::binary_search(sent_ranks.begin(), sent_ranks.end(), rank);
  }
  // The workers read the elements from a file.
  bool is_read() const { return reused == nullptr && definition.source.file != nullptr; }
  // All elements are zero, and the workers make them.
  bool is_zeros = false;
  // The workers make all tiles from a file or from nothing.
  bool is_filled() const { return is_read() || is_zeros; }
};

// The progress of a put.
struct TransferProgress {
  std::string transfer_id;
  int64_t number = 0;  // OperationTable::NextNumber
  std::string session_id;
  int64_t session_number = 0;  // SessionInfo::number
  std::string description;
  bool is_load = false;  // see Transfers::SetCheckpoint
  // Whether the put has ended; if so, `status` is its result. CANCELLED: the owner of the put ended
  // it.
  bool ended = false;
  absl::Status status;
  int64_t staged_tiles = 0;
  int64_t total_tiles = 0;
  int64_t staged_bytes = 0;
  int64_t total_bytes = 0;   // of all tiles, including replicas
  bool is_filled = false;    // whether the workers read or copy tiles themselves
  int64_t reused_bytes = 0;  // of total_bytes: tiles of arrays that have the elements already
  int64_t moved_bytes = 0;   // bytes that workers send to one another for the copies of such tiles
  absl::Time started;
  absl::Time finished = absl::InfiniteFuture();
  int64_t bytes_per_second = 0;  // see OperationProgress
};

// Returns the progress of a put as that of an operation.
OperationProgress AsOperation(const TransferProgress& put);

// The result of a put.
struct TransferResult {
  std::vector<std::string> array_ids;  // in the order of the put's items
  Revision revision = 0;
  Durability durability = Durability::kMemory;
};

// States of a put: Begin -> tiles are staged -> Commit -> committed. Until it is committed, a put
// can be aborted: by Abort, the loss of a worker, the end of its session, or a timeout. An aborted
// put leaves nothing behind.
//
// Thread-safe. Callbacks run without a lock. All arguments of the constructor outlive this object,
// except the sequencer. Stop the clock first. Then destroy the sequencer, which ends the live puts,
// and then this object.
class Transfers {
 public:
  using CommitCallback = absl::AnyInvocable<void(absl::StatusOr<TransferResult>) &&>;

  // Time limit of a put. All its tiles must arrive within this time. The put's transfer tokens are
  // valid for the same time.
  static constexpr absl::Duration kTimeout = absl::Hours(1);
  // Time for which the outcome of a put is remembered.
  static constexpr absl::Duration kRememberFor = absl::Minutes(10);
  // Maximum number of outcomes of puts that are remembered; the oldest outcomes are dropped first.
  // One outcome takes about 100 bytes.
  static constexpr size_t kMaxEnded = 10'000;

  // `operations` gives the puts their numbers.
  Transfers(Clock* clock, ArrayRegistry* registry, SessionTable* sessions, Sequencer* sequencer,
            OperationTable* operations);

  // Stages the arrays and returns the transfer's id. From then on the transfer waits for tiles from
  // every rank, except those of arrays that are kept. `identities`: the workers of the ranks, by
  // rank. Keeps `items` until the transfer has ended. `operation_id`: the operation that the
  // transfer is a part of, which shows its progress in place of a put; empty: the transfer is a
  // put. `sources`: the workers from which those of the ranks fetch tiles; null: none. Errors:
  // those of ArrayRegistry::Stage, SessionTable and Sequencer::BeginTransfer. ABORTED
  // (VERSION_MISMATCH): a name is already at another version than the expected one.
  absl::StatusOr<std::string> Begin(const std::string& session_id, const std::string& mesh_id,
                                    const std::vector<std::string>& identities,
                                    std::shared_ptr<const std::vector<PutItem>> items,
                                    std::string operation_id = {}, IdentitiesPtr sources = nullptr);

  // Before Commit aborts a transfer because tiles are missing at `give_up`, by the time `before`,
  // calls `ask` with the workers of the transfer's operation. Call it before the first transfer.
  void SetAsk(absl::Duration before, std::function<void(const OperationWorkers&)> ask);

  // Makes a put a load of `checkpoint`, for people who see it as an operation. No effect if
  // `checkpoint` is empty or the put has ended.
  void SetCheckpoint(std::string_view transfer_id, std::string_view checkpoint);

  // Returns the error that Begin would return now for these items, which lie on one mesh. Covers
  // the errors of the names, the session and the mesh. Changes nothing.
  absl::Status Check(const std::string& session_id, absl::Span<const PutItem> items) const;

  // Called when the client has sent all tiles. Commits the transfer when workers have reported the
  // last tile. Aborts the transfer if tiles are missing at `give_up`; InfiniteFuture: only the
  // transfer's own time limit counts.
  //
  // Calls `callback` when the transfer has ended; now if it has ended already. `request_key` is the
  // key under which RequestMemory keeps the answer. A repeated request with the same key waits for
  // the same transfer; if the first request has its answer, the repeated one gets that answer.
  // NOT_FOUND: no such transfer, or the arrays of a remembered answer are gone. FAILED_PRECONDITION
  // (REQUEST_ID_REUSED): the transfer is committed, but its arrays are no longer known.
  void Commit(std::string_view transfer_id, std::string request_key, absl::Time give_up,
              CommitCallback callback);

  // Checks the owner of a transfer. PERMISSION_DENIED (NOT_OWNER) if the transfer belongs to
  // another session. OK if the transfer is not known.
  absl::Status CheckOwner(std::string_view transfer_id, std::string_view session_id) const;

  // Aborts a transfer; no effect if it has ended or never existed. FAILED_PRECONDITION: the
  // transfer is being committed.
  absl::Status Abort(std::string_view transfer_id, absl::Status reason);

  // Whether Commit was called for a transfer that is live or ended recently. After that call of
  // Commit, the transfer no longer needs its client.
  bool IsCommitAskedFor(std::string_view transfer_id) const;
  // Aborts the transfer unless Commit was called before. A later Commit of this transfer ends with
  // `reason`.
  void Abandon(std::string_view transfer_id, absl::Status reason);

  // Calls `ended` when the transfer has ended; at once if it has ended or never existed.
  void OnEnd(std::string_view transfer_id, absl::AnyInvocable<void() &&> ended);

  // The number of live puts, and the bytes that they stage on each rank on average. For other code,
  // which must share the workers' memory with the puts.
  struct Live {
    int64_t puts = 0;
    int64_t bytes_per_rank = 0;
  };
  Live LivePuts() const;

  // Sums over the puts that were committed.
  struct Totals {
    int64_t put_bytes = 0;     // bytes of all tiles, including replicas
    int64_t reused_bytes = 0;  // of these, TransferProgress::reused_bytes
    int64_t moved_bytes = 0;   // TransferProgress::moved_bytes
  };
  Totals totals() const;

  // Records that the worker has reported a staged tile of this size.
  void TileStaged(std::string_view transfer_id, std::string_view identity, int64_t size_bytes);
  // Records how much has arrived of the tiles that the worker has not staged yet. For the progress
  // only.
  void TilesArriving(std::string_view transfer_id, std::string_view identity, int64_t bytes);

  // See Sequencer::WorkersOf. The operation of a put is its transfer. Do not call it once the
  // sequencer is destroyed.
  OperationWorkers WorkersOf(std::string_view operation_id) const;

  // Returns the progress of a transfer. NOT_FOUND: no such transfer, or it ended more than
  // kRememberFor ago.
  absl::StatusOr<TransferProgress> Progress(std::string_view transfer_id) const;

  // A page of the puts that run or are remembered. Transfers that are parts of operations are not
  // listed.
  struct Listed {
    std::vector<TransferProgress> puts;  // by rising number
    // The number of the last put on this page, after which the next page starts; 0 on the last
    // page.
    int64_t next_after = 0;
  };
  // Returns the puts with numbers above `after` for which `is_wanted` is true, at most `limit`.
  // Examines a bounded number of puts, so a page may have fewer puts, or none, although more
  // follow. `is_wanted` runs under the lock.
  Listed List(int64_t after, int64_t limit,
              const std::function<bool(const TransferProgress&)>& is_wanted) const;

 private:
  struct Transfer {
    TransferProgress progress;
    ProgressRate rate;
    std::string request_key;  // key of the first Commit, until it is passed to RequestMemory
    std::string commit_key;   // the same key afterwards: finds the answer in RequestMemory
    // Null once the transfer has ended. From then on, `request_key` is empty as well.
    std::shared_ptr<const std::vector<PutItem>> items;
    bool is_commit_asked_for = false;
    std::vector<absl::Time> give_up = {};  // its times in give_up_ and to_ask_
    absl::Status abandoned;                // the reason of Abandon; from then on Commit is refused
    bool committing = false;
    TransferResult result;
    std::vector<CommitCallback> waiting;
    std::vector<absl::AnyInvocable<void() &&>> on_end;
    int64_t ranks = 0;
    std::string operation_id;  // see Begin
    // Bytes of incomplete tiles by worker, and the most bytes that a reader was shown.
    std::map<std::string, int64_t, std::less<>> arriving;
    int64_t arrived_bytes = 0;
    int64_t kept_bytes = 0;  // of the tiles of arrays that are kept, which are not staged
  };
  using TransferPtr = std::shared_ptr<Transfer>;

  absl::Status CheckVersion(const PutItem& item) const;
  // Returns the error for an id that no transfer has, and says if a start of the coordinator is the
  // reason.
  absl::Status NoTransfer(std::string_view transfer_id) const;
  // Whether the put ended more than kRememberFor ago.
  bool IsForgotten(const TransferProgress& progress) const;
  // UNAVAILABLE (WORKER_LOST): the array that the item keeps has lost a tile since the put began.
  // The client may be the only one that still has the elements.
  absl::Status CheckKept(const PutItem& item, const WorkOutcome& outcome) const;
  void CommitToRegistry(const TransferPtr& transfer, const WorkOutcome& outcome,
                        absl::AnyInvocable<void(absl::Status) &&> decided);
  // Reports for all ranks of a transfer without tiles that they are done.
  void ReportNothingToDo(std::string_view transfer_id, const std::vector<std::string>& identities);
  void End(const TransferPtr& transfer, const absl::Status& status);
  void AbortOverdue();
  // Asks, in one question, the workers of all transfers that end soon; at most twice in
  // `ask_before_`.
  void AskLate();
  // Returns the remembered answer to a commit. NOT_FOUND if its arrays no longer exist.
  absl::StatusOr<TransferResult> Answer(std::string_view transfer_id,
                                        const RememberedAnswer& remembered) const;
  void Forget() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Updates `arrived_bytes`, and returns it.
  int64_t Arrived(Transfer* transfer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  TransferProgress ProgressOf(const Transfer& transfer) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  TransferPtr Find(std::string_view transfer_id) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  Clock* const clock_;
  const absl::Time started_;
  ArrayRegistry* const registry_;
  SessionTable* const sessions_;
  Sequencer* const sequencer_;
  OperationTable* const operations_;

  mutable absl::Mutex mutex_;
  // The mutex also guards the objects that these maps point to.
  std::map<std::string, TransferPtr, std::less<>> transfers_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, TransferPtr> by_number_ ABSL_GUARDED_BY(mutex_);
  std::deque<TransferPtr> ended_ ABSL_GUARDED_BY(mutex_);  // oldest first
  // By time, the live transfers that end then. None for an infinite time.
  std::set<std::pair<absl::Time, std::string>> give_up_ ABSL_GUARDED_BY(mutex_);
  // The entries of give_up_ for which AskLate has not asked the workers yet.
  std::set<std::pair<absl::Time, std::string>> to_ask_ ABSL_GUARDED_BY(mutex_);
  absl::Time last_asked_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  Totals totals_ ABSL_GUARDED_BY(mutex_);

  // Constant after SetAsk.
  absl::Duration ask_before_;
  std::function<void(const OperationWorkers&)> ask_;

  // Last: their destructors wait for AskLate and AbortOverdue.
  Alarm ask_alarm_;
  Alarm give_up_alarm_;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_TRANSFERS_H_
