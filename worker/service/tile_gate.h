// The gate for incoming and outgoing tiles: verifies tokens, and tracks the current puts.
#ifndef SHARDMESH_WORKER_SERVICE_TILE_GATE_H_
#define SHARDMESH_WORKER_SERVICE_TILE_GATE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "process/clock.h"
#include "rpc/transfer_token.h"
#include "sharding/mesh.h"
#include "sharding/tile.h"
#include "tensor/array_descriptor.h"
#include "worker/exchange/membership_view.h"
#include "worker/store/shard_store.h"

namespace shardmesh::worker {

// The coordinator's data for a worker that attaches.
struct Attachment {
  int64_t term = 0;
  std::string token_key;  // the key that signs transfer tokens
};

// Reports a tile of a put that is complete, verified and, with a data folder, on disk.
struct TileReport {
  std::string transfer_id;
  std::string array_id;
  DeviceId rank = 0;
  uint32_t crc32c = 0;
  int64_t size_bytes = 0;
  bool durable = false;
  absl::Duration transfer_time;  // from the tile's header to its last byte
  int64_t term = 0;              // of the token
};

// A client's description of a tile before it sends it.
struct TileOffer {
  std::string_view token;
  std::string_view array_id;
  Tile tile;
  int64_t size_bytes = 0;
  DeviceId rank = 0;
};

// A mesh definition that a transfer token names and the gate does not know.
struct UnknownMesh {
  std::string mesh_id;
  int64_t revision = 0;
};

// A committed tile, and the requested part of it.
struct RequestedTile {
  StoredTilePtr stored;
  Tile range;  // within stored->description().tile
};

class TileGate;

// An incoming tile of a put. Destruction before Finish drops it. For one thread at a time; must not
// outlive the gate.
class IncomingTile {
 public:
  IncomingTile(const IncomingTile&) = delete;
  IncomingTile& operator=(const IncomingTile&) = delete;
  ~IncomingTile();

  int64_t size_bytes() const { return staged_->size_bytes(); }

  // Like StagedTile::AppendParts. UNAVAILABLE (NOT_SERVING) once the gate was suspended.
  absl::Status Append(int64_t offset_bytes, absl::Span<const absl::Span<const char>> parts,
                      uint32_t crc32c);
  // Makes the tile staged and reports it. Call it once, at the end; with a data folder it waits for
  // the disk. Errors: those of StagedTile::Finish and of Append.
  absl::Status Finish(uint32_t tile_crc32c);

 private:
  friend class TileGate;
  IncomingTile(TileGate* gate, std::unique_ptr<StagedTile> staged, DeviceId rank, int64_t term,
               absl::Time start_time);

  // Returns the gate's suspension if it caused `status`, otherwise `status`.
  absl::Status Explain(absl::Status status) const;
  // Removes the tile from the gate's incoming tiles.
  void Leave();

  TileGate* const gate_;
  const DeviceId rank_;
  const int64_t term_;
  const absl::Time start_time_;
  std::unique_ptr<StagedTile> staged_;
  bool left_ = false;
};

// States: closed -> (Serve) <-> suspended (Suspend: refuses puts, serves gets) -> draining (Drain:
// refuses both). A refusal is UNAVAILABLE (NOT_SERVING) with a retry delay.
//
// Thread-safe. `store` and `clock` outlive the gate.
class TileGate {
 public:
  struct Options {
    std::string identity;  // of this worker
    ShardStore* store = nullptr;
    Clock* clock = nullptr;
    // Called with no lock held, on the thread that finishes the tile.
    std::function<void(const TileReport&)> staged;
  };

  explicit TileGate(Options options) : options_(std::move(options)) {}
  TileGate(const TileGate&) = delete;
  TileGate& operator=(const TileGate&) = delete;

  // Serves transfers of this coordinator from now on, for the meshes in `view`. The caller repeats
  // the call at each change of either.
  void Serve(Attachment attachment, std::shared_ptr<const MembershipView> view);
  // Sets the coordinator's clock to `now`. Tokens expire by that clock, which may differ from this
  // host's by any amount. Until the first call the gate assumes that both are equal.
  void SetCoordinatorTime(absl::Time now);
  // Records that the coordinator and all its transfers are gone. Drops incoming tiles; staged ones
  // wait for the coordinator's verdict at the next attach.
  void Suspend();
  void Drain();

  // Begins a tile. Checks in this order, and reserves memory last, before it allocates: UNAVAILABLE
  // (NOT_SERVING). VerifyToken's errors, and PERMISSION_DENIED (BAD_TOKEN) for another array's
  // token. ABORTED (STALE_TERM) for the token of an older coordinator or an ended transfer.
  // INVALID_ARGUMENT (BAD_TILE) unless rank, tile and size are this worker's part of the array on
  // the mesh that it now serves. Errors of ShardStore::Stage.
  //
  // A token may arrive before the membership update that defines its mesh. BAD_TILE for an unknown
  // mesh, or a newer definition of one, sets `unknown` (may be null).
  absl::StatusOr<std::unique_ptr<IncomingTile>> Open(const TileOffer& offer,
                                                     std::optional<UnknownMesh>* unknown = nullptr);
  // Blocks until the gate knows this definition or a newer one, refuses puts, or `deadline` passes.
  void AwaitMesh(const UnknownMesh& unknown, absl::Time deadline) const;

  // Returns the committed tiles of an array, or the part `range` of the tile that contains it.
  // UNAVAILABLE (NOT_SERVING); while suspended also for a token of another coordinator, which may
  // be the next one. Token errors as above. NOT_FOUND if this worker holds no tile of the array.
  // INVALID_ARGUMENT (BAD_TILE) for a range that is not within one of its tiles.
  absl::StatusOr<std::vector<RequestedTile>> Find(std::string_view token, std::string_view array_id,
                                                  const std::optional<Tile>& range) const;

  // Commits or aborts the tiles of a put. No effect on an unknown transfer. Errors of
  // ShardStore::Commit and Abort. With a data folder, waits for the disk.
  absl::Status EndTransfer(const std::string& transfer_id, bool commit);

 private:
  friend class IncomingTile;

  // Most ids of ended transfers, kept to refuse tokens that outlive them; tokens live for minutes.
  static constexpr size_t kEndedTransfers = 4096;

  absl::StatusOr<Attachment> PutAttachment() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckOffer(const TileOffer& offer, const ArrayDescriptor& array,
                          const MembershipView& view) const;
  void RememberEnded(const std::string& transfer_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool serving() const;
  // Returns the current time of the coordinator's clock.
  absl::Time CoordinatorNow() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return options_.clock->Now() + coordinator_ahead_;
  }
  void Left(const std::string& array_id);

  const Options options_;

  mutable absl::Mutex mutex_;
  Attachment attachment_ ABSL_GUARDED_BY(mutex_);                       // the last one
  std::shared_ptr<const MembershipView> view_ ABSL_GUARDED_BY(mutex_);  // null: never served
  // The coordinator's clock less this worker's.
  absl::Duration coordinator_ahead_ ABSL_GUARDED_BY(mutex_);
  bool suspended_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  std::multiset<std::string> receiving_ ABSL_GUARDED_BY(mutex_);  // arrays of incoming tiles
  // Arrays of live transfers that have tiles here.
  std::map<std::string, std::set<std::string>> transfers_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> ended_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::string> ended_order_ ABSL_GUARDED_BY(mutex_);  // the oldest first
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SERVICE_TILE_GATE_H_
