// The gate through which tiles come in and go out: judges tokens, and knows the puts under way.
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
#include "worker/exchange/membership_view.h"
#include "worker/store/shard_store.h"

namespace shardmesh::worker {

// What the coordinator says to a worker that attaches.
struct Attachment {
  int64_t term = 0;
  std::string token_key;  // under which transfer tokens are signed
};

// A tile of a put that is complete, verified and, with a data folder, on disk.
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

// What a client says of a tile before it sends it.
struct TileOffer {
  std::string_view token;
  std::string_view array_id;
  Tile tile;
  int64_t size_bytes = 0;
  DeviceId rank = 0;
};

// A definition of a mesh that a transfer token names, and the gate does not know.
struct UnknownMesh {
  std::string mesh_id;
  int64_t revision = 0;
};

// A committed tile, and the part of it that was asked for.
struct RequestedTile {
  StoredTilePtr stored;
  Tile range;  // within stored->description().tile
};

class TileGate;

// A tile of a put on its way in. Destroyed before Finish, it is dropped. For one thread at a time;
// must not outlive the gate.
class IncomingTile {
 public:
  IncomingTile(const IncomingTile&) = delete;
  IncomingTile& operator=(const IncomingTile&) = delete;
  ~IncomingTile();

  int64_t size_bytes() const { return staged_->size_bytes(); }

  // See StagedTile::AppendParts. UNAVAILABLE (NOT_SERVING) once the gate was suspended.
  absl::Status Append(int64_t offset_bytes, absl::Span<const absl::Span<const char>> parts,
                      uint32_t crc32c);
  // Makes the tile staged and reports it. To be called once, at the end; with a data folder it
  // waits for the disk. Errors: as StagedTile::Finish, and as Append.
  absl::Status Finish(uint32_t tile_crc32c);

 private:
  friend class TileGate;
  IncomingTile(TileGate* gate, std::unique_ptr<StagedTile> staged, DeviceId rank, int64_t term,
               absl::Time start_time);

  // What happened, if the gate's suspension is behind it.
  absl::Status Explain(absl::Status status) const;
  // It is no longer on its way in.
  void Leave();

  TileGate* const gate_;
  const DeviceId rank_;
  const int64_t term_;
  const absl::Time start_time_;
  std::unique_ptr<StagedTile> staged_;
  bool left_ = false;
};

// States: closed -> (Serve) <-> suspended (Suspend: puts are refused, gets go on) -> draining
// (Drain: both are refused). A refusal of the kind is UNAVAILABLE (NOT_SERVING) and says when to
// come back.
//
// Thread-safe. `store` and `clock` outlive the gate.
class TileGate {
 public:
  struct Options {
    std::string identity;  // of this worker
    ShardStore* store = nullptr;
    rpc::Clock* clock = nullptr;
    // Called with no lock held, on whatever thread finishes the tile.
    std::function<void(const TileReport&)> staged;
  };

  explicit TileGate(Options options) : options_(std::move(options)) {}
  TileGate(const TileGate&) = delete;
  TileGate& operator=(const TileGate&) = delete;

  // From now on transfers of this coordinator are served, for the meshes in `view`. Called again at
  // each change of either.
  void Serve(Attachment attachment, std::shared_ptr<const MembershipView> view);
  // The coordinator's clock shows `now`. Tokens expire by that clock: it may be any time apart from
  // this host's. Until the first call both are taken to show the same.
  void SetCoordinatorTime(absl::Time now);
  // The coordinator is gone, and with it all its transfers: tiles on their way in are dropped,
  // staged ones wait for the coordinator's word at the next attach.
  void Suspend();
  void Drain();

  // Begins a tile. Checked in this order, the memory last and before anything is allocated:
  // UNAVAILABLE (NOT_SERVING); VerifyToken's errors and PERMISSION_DENIED (BAD_TOKEN) for another
  // array's token; ABORTED (STALE_TERM) for an older coordinator's, or of a transfer that has
  // ended; INVALID_ARGUMENT (BAD_TILE) unless rank, tile and size are this worker's part of the
  // array on the mesh that it now serves; errors of ShardStore::Stage.
  //
  // A token may be here before the coordinator's word of its mesh: BAD_TILE because of a mesh, or a
  // newer definition of one, that the gate does not know fills in `unknown` (may be null).
  absl::StatusOr<std::unique_ptr<IncomingTile>> Open(const TileOffer& offer,
                                                     std::optional<UnknownMesh>* unknown = nullptr);
  // Blocks until this definition or a newer one is known, puts are refused, or it is `deadline`.
  void AwaitMesh(const UnknownMesh& unknown, absl::Time deadline) const;

  // The committed tiles of an array, or the part `range` of the tile that holds it.
  // UNAVAILABLE (NOT_SERVING), while suspended also for a token of another coordinator, which may
  // be the one that follows; token errors as above; NOT_FOUND if this worker holds no tile of the
  // array; INVALID_ARGUMENT (BAD_TILE) for a range that is not within one of its tiles.
  absl::StatusOr<std::vector<RequestedTile>> Find(std::string_view token, std::string_view array_id,
                                                  const std::optional<Tile>& range) const;

  // The tiles of a put become arrays, or go. No effect on a transfer that is not known. Errors of
  // ShardStore::Commit and Abort. Waits for the disk, where there is one.
  absl::Status EndTransfer(const std::string& transfer_id, bool commit);

 private:
  friend class IncomingTile;

  // Ids of ended transfers, kept against tokens that outlive them; tokens live for minutes.
  static constexpr size_t kEndedTransfers = 4096;

  absl::StatusOr<Attachment> PutAttachment() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckOffer(const TileOffer& offer, const rpc::TransferClaims& claims,
                          const MembershipView& view) const;
  void RememberEnded(const std::string& transfer_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool serving() const;
  // What the coordinator's clock shows now.
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
  std::multiset<std::string> receiving_ ABSL_GUARDED_BY(mutex_);  // arrays of tiles on their way
  // Arrays of live transfers that have tiles here.
  std::map<std::string, std::set<std::string>> transfers_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> ended_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::string> ended_order_ ABSL_GUARDED_BY(mutex_);  // the oldest first
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SERVICE_TILE_GATE_H_
