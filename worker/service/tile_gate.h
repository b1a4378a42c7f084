// The gate for incoming and outgoing tiles. It verifies transfer tokens, which the coordinator
// signs as permissions, and tracks the current puts.
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
#include "process/file.h"
#include "rpc/transfer_token.h"
#include "sharding/mesh.h"
#include "sharding/tile.h"
#include "tensor/array_descriptor.h"
#include "worker/exchange/membership_view.h"
#include "worker/store/shard_store.h"

namespace shardmesh::worker {

// The data of an attach about the coordinator.
struct Attachment {
  int64_t term = 0;
  std::string token_key;  // the key with which the coordinator signs transfer tokens
};

// Report about a tile of a put. The tile is complete, verified and, with a data folder, on disk.
struct TileReport {
  std::string transfer_id;
  std::string array_id;
  DeviceId rank = 0;
  uint32_t crc32c = 0;
  int64_t size_bytes = 0;
  bool durable = false;
  absl::Duration transfer_time;  // from the arrival of the tile's header to that of its last byte
  int64_t term = 0;              // of the transfer token
};

// A client's description of a tile, sent before the bytes.
struct TileOffer {
  std::string_view token;
  std::string_view array_id;
  Tile tile;
  int64_t size_bytes = 0;
  DeviceId rank = 0;
  // The sealed memory that has the tile's bytes, which Open takes; null: the bytes come later.
  FileDescriptor* sealed = nullptr;
};

// The coordinator's order to fill a tile: the tile of a rank of an array. The texts outlive the
// call.
struct TileOrder {
  std::string_view transfer_id;
  int64_t term = 0;                   // of the coordinator, when the transfer began
  std::string_view array_descriptor;  // the bytes to store with the tile
  DeviceId rank = 0;
};

// The mesh in a transfer token, if the gate does not know it or knows only an older definition.
struct UnknownMesh {
  std::string mesh_id;
  int64_t revision = 0;
};

// A committed tile, and the part of it that the client wants.
struct RequestedTile {
  StoredTilePtr stored;  // as the store holds it: see StoredTile::form
  Tile range;            // within stored->description().tile
};

class TileGate;

// An incoming tile of a put. Its destruction before Finish drops the tile. Used by one thread at a
// time. Must not outlive the gate.
class IncomingTile {
 public:
  IncomingTile(const IncomingTile&) = delete;
  IncomingTile& operator=(const IncomingTile&) = delete;
  ~IncomingTile();

  int64_t size_bytes() const { return staged_->size_bytes(); }
  const TileDescription& description() const { return staged_->description(); }

  // Appends a piece: see StagedTile::AppendParts. UNAVAILABLE (NOT_SERVING) once the gate was
  // suspended.
  absl::Status Append(int64_t offset_bytes, absl::Span<const absl::Span<const char>> parts,
                      uint32_t crc32c);
  // Makes the tile staged and reports it. Call it once, at the end. With a data folder, waits for
  // the disk. Errors of StagedTile::Finish, or UNAVAILABLE (NOT_SERVING) instead of them once the
  // gate was suspended.
  absl::Status Finish(uint32_t tile_crc32c);

  // Like Finish, for a tile that was opened with sealed memory. Reads all bytes to compare them
  // with the checksum.
  absl::Status FinishSealed(uint32_t tile_crc32c);

  absl::Span<const char> bytes() const { return staged_->bytes(); }

  // A producer that fills the tile in place does not call Append. If the bytes come in order, it
  // calls Write: see StagedTile::Write. If is_unfilled(), that is faster than a write to the
  // memory, which MutableBytes then faults in first. MutableBytes returns all bytes of the tile, or
  // the error of StagedTile::FaultIn. Such a producer reports its progress with Advance.
  bool is_unfilled() const { return staged_->is_unfilled(); }
  absl::Status Write(int64_t offset_bytes, absl::Span<const char> bytes) {
    return staged_->Write(offset_bytes, bytes);
  }
  absl::StatusOr<absl::Span<char>> MutableBytes();
  // Like Finish, for a tile whose bytes were all written in place. `tile_crc32c` is the CRC-32C of
  // these bytes; nullopt: Finish computes it.
  absl::Status FinishInPlace(std::optional<uint32_t> tile_crc32c);
  // Records that `bytes` more of the tile are there. For the progress only: see TileGate::Arriving.
  void Advance(int64_t bytes);

 private:
  friend class TileGate;
  IncomingTile(TileGate* gate, std::unique_ptr<StagedTile> staged, DeviceId rank, int64_t term,
               absl::Time start_time);

  absl::Status Report(const absl::StatusOr<StoredTilePtr>& stored, absl::Duration transfer_time);
  // Returns `status`; if it is an error and the gate was suspended, returns UNAVAILABLE
  // (NOT_SERVING) instead.
  absl::Status Explain(absl::Status status) const;
  // Removes the tile from the gate's list of incoming tiles.
  void Leave();

  TileGate* const gate_;
  const DeviceId rank_;
  const int64_t term_;
  const absl::Time start_time_;
  std::unique_ptr<StagedTile> staged_;
  int64_t arrived_bytes_ = 0;
  bool left_ = false;
};

// States: closed (refuses puts and gets) -> serving (Serve) <-> suspended (Suspend: refuses puts,
// serves gets). Drain leads from every state to draining, which refuses puts and gets. Every
// refusal is UNAVAILABLE (NOT_SERVING) with a retry delay.
//
// Thread-safe. `store` and `clock` outlive the gate.
class TileGate {
 public:
  struct Options {
    std::string identity;  // of this worker
    ShardStore* store = nullptr;
    Clock* clock = nullptr;
    // Called when a tile is staged, on the thread that finishes the tile, with no lock held.
    std::function<void(const TileReport&)> staged;
  };

  explicit TileGate(Options options) : options_(std::move(options)) {}
  TileGate(const TileGate&) = delete;
  TileGate& operator=(const TileGate&) = delete;

  // From now on, serves transfers of the coordinator in `attachment`, for the meshes in `view`. The
  // caller repeats the call whenever the attachment or the view changes.
  void Serve(Attachment attachment, std::shared_ptr<const MembershipView> view);
  // Records that the coordinator's clock shows `now` at this moment. Tokens expire by the
  // coordinator's clock, which may differ from this host's clock by any amount. Until the first
  // call, the gate assumes that both clocks are equal.
  void SetCoordinatorTime(absl::Time now);
  // Records that the stream to the coordinator is lost. Ends all transfers in progress, and drops
  // incoming tiles. Staged tiles stay until the coordinator's verdict at the next attach.
  void Suspend();
  void Drain();

  // Opens an incoming tile after these checks, in this order. ShardStore::Stage allocates the
  // memory for the tile's bytes; earlier checks allocate none.
  // - UNAVAILABLE (NOT_SERVING): the gate refuses puts.
  // - Errors of rpc::VerifyToken. PERMISSION_DENIED (BAD_TOKEN): the token is for another array.
  // - ABORTED (STALE_TERM): the token is from an older term of the coordinator.
  // - INVALID_ARGUMENT (BAD_TILE): rank, tile and size are not this worker's part of the array, on
  //   the mesh that the worker serves now.
  // - INVALID_ARGUMENT (BAD_TILE): the tile's sealed memory is not as CheckSealed requires.
  // - ABORTED (STALE_TERM): the token's transfer has ended.
  // - Errors of ShardStore::Stage.
  // - UNAVAILABLE (NOT_SERVING): the transfer has ended or the gate was suspended since these
  //   checks.
  //
  // A token may arrive before the membership update that defines its mesh. If BAD_TILE is due to a
  // mesh that the gate does not know, or knows only in an older definition, sets `unknown`, unless
  // `unknown` is null.
  absl::StatusOr<std::unique_ptr<IncomingTile>> Open(const TileOffer& offer,
                                                     std::optional<UnknownMesh>* unknown = nullptr);
  // Opens a tile that the coordinator orders this worker to fill. Makes the checks of Open, except
  // those of a token: the order came on the coordinator's own stream. `array` is the decoded
  // order.array_descriptor. ALREADY_EXISTS: the tile is here already or on its way.
  absl::StatusOr<std::unique_ptr<IncomingTile>> OpenOrdered(const TileOrder& order,
                                                            const ArrayDescriptor& array,
                                                            std::optional<UnknownMesh>* unknown);
  // Waits until the gate knows the mesh in the definition that `unknown` names, or in a newer
  // definition. Returns earlier if the gate refuses puts, and at `deadline` at the latest.
  void AwaitMesh(const UnknownMesh& unknown, absl::Time deadline) const;

  // Returns the committed tiles of an array. If `range` is given, returns only this range of the
  // tile that contains it.
  // - UNAVAILABLE (NOT_SERVING): the gate refuses gets. Also if the gate is suspended and the token
  //   is from another coordinator, which may be the next coordinator.
  // - Errors of rpc::VerifyToken. PERMISSION_DENIED (BAD_TOKEN): the token is for another array.
  // - NOT_FOUND: this worker holds no tile of the array.
  // - INVALID_ARGUMENT (BAD_TILE): `range` is not within one of the tiles that this worker holds.
  absl::StatusOr<std::vector<RequestedTile>> Find(std::string_view token, std::string_view array_id,
                                                  const std::optional<Tile>& range) const;

  // Commits or aborts the tiles of a put. If no tile of the transfer has come, only records that
  // the transfer has ended, so Open refuses its tokens. An abort leaves committed arrays alone: a
  // repair may have been ordered for a tile that came back from the quarantine before. Errors of
  // ShardStore::Commit. Does not wait for the disk.
  absl::Status EndTransfer(const std::string& transfer_id, bool commit);

  // Returns the bytes that have arrived of the incoming tiles, without staged ones, by transfer.
  std::map<std::string, int64_t> Arriving() const;

 private:
  friend class IncomingTile;

  // The maximum number of ids of ended transfers that the gate keeps, to refuse their tokens.
  // Tokens are valid only for minutes.
  static constexpr size_t kEndedTransfers = 4096;

  absl::StatusOr<Attachment> PutAttachment() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The state by which the gate judges a tile.
  struct Standing {
    Attachment attachment;
    std::shared_ptr<const MembershipView> view;
    absl::Time coordinator_now;
  };
  absl::StatusOr<Standing> GetStanding() const;
  // Opens a tile after the checks of Open that follow those of the token. `order` has the transfer
  // and the array's bytes, `offer` the tile.
  absl::StatusOr<std::unique_ptr<IncomingTile>> Admit(const TileOrder& order,
                                                      const TileOffer& offer,
                                                      const ArrayDescriptor& array,
                                                      const Standing& standing,
                                                      std::optional<UnknownMesh>* unknown);
  absl::Status CheckOffer(const TileOffer& offer, const ArrayDescriptor& array,
                          const MembershipView& view) const;
  // Aborts those of the arrays that are not committed.
  void DropUncommitted(const std::vector<std::string>& array_ids);
  void RememberEnded(const std::string& transfer_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool serving() const;
  // Returns the current time of the coordinator's clock.
  absl::Time CoordinatorNow() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return options_.clock->Now() + coordinator_ahead_;
  }
  void Left(const std::string& array_id);
  // Adds to arriving_. `bytes` is negative when a tile leaves.
  void Advance(const std::string& transfer_id, int64_t bytes);

  const Options options_;

  mutable absl::Mutex mutex_;
  Attachment attachment_ ABSL_GUARDED_BY(mutex_);                       // of the last attach
  std::shared_ptr<const MembershipView> view_ ABSL_GUARDED_BY(mutex_);  // null: never served
  // How far the coordinator's clock is ahead of this worker's.
  absl::Duration coordinator_ahead_ ABSL_GUARDED_BY(mutex_);
  bool suspended_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  std::multiset<std::string> receiving_ ABSL_GUARDED_BY(mutex_);  // array ids of the incoming tiles
  // For each transfer in progress: the ids of the arrays of which the transfer has brought tiles.
  std::map<std::string, std::set<std::string>> transfers_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int64_t> arriving_ ABSL_GUARDED_BY(mutex_);  // see Arriving
  std::set<std::string> ended_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::string> ended_order_ ABSL_GUARDED_BY(mutex_);  // ids in ended_, the oldest first
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SERVICE_TILE_GATE_H_
