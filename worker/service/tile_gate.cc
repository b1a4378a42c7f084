// TileGate: checks puts and gets against the state that the coordinator sent last.
#include "worker/service/tile_gate.h"

#include <utility>

#include "process/failpoint.h"
#include "process/sealed/sealed_memory.h"
#include "rpc/codec/status.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::worker {
namespace {

// Delay after which refused clients try again. A worker that lost its coordinator attaches again
// within a second or two after the coordinator serves again.
constexpr absl::Duration kRetryDelay = absl::Milliseconds(500);

// Returns UNAVAILABLE (NOT_SERVING) with the delay kRetryDelay. `identity` is the identity of this
// worker.
absl::Status NotServing(std::string_view why, std::string_view identity) {
  return WithRetryDelay(
      WithReason(absl::UnavailableError(StrCat("this worker ", why, "; try again shortly")),
                 Reason::kNotServing, {{fact::kIdentity, identity}}),
      kRetryDelay);
}

absl::Status BadTile(std::string_view array_id, std::string_view message) {
  return InvalidArgument(Reason::kBadTile, StrCat("array ", array_id, ": ", message),
                         {{fact::kArray, array_id}});
}

absl::StatusOr<rpc::VerifiedToken> VerifyArrayToken(std::string_view token,
                                                    std::string_view array_id,
                                                    rpc::TransferDirection direction,
                                                    const Attachment& attachment, absl::Time now) {
  SHARDMESH_ASSIGN_OR_RETURN(rpc::VerifiedToken verified,
                             rpc::VerifyToken(token, attachment.token_key, direction, now));
  if (verified.array.array_id != array_id) {
    return WithReason(
        absl::PermissionDeniedError(StrCat("the transfer token is for array ",
                                           verified.array.array_id, ", not for ", array_id)),
        Reason::kBadToken, {{fact::kArray, array_id}});
  }
  return verified;
}

bool Contains(const Tile& outer, const Tile& inner) {
  if (outer.ranges.size() != inner.ranges.size()) {
    return false;
  }
  for (size_t i = 0; i < outer.ranges.size(); ++i) {
    if (inner.ranges[i].start < outer.ranges[i].start ||
        inner.ranges[i].stop > outer.ranges[i].stop) {
      return false;
    }
  }
  return true;
}

}  // namespace

IncomingTile::IncomingTile(TileGate* gate, std::unique_ptr<StagedTile> staged, DeviceId rank,
                           int64_t term, absl::Time start_time)
    : gate_(gate), rank_(rank), term_(term), start_time_(start_time), staged_(std::move(staged)) {}

IncomingTile::~IncomingTile() { Leave(); }

void IncomingTile::Leave() {
  if (!std::exchange(left_, true)) {
    gate_->Left(staged_->description().array_id);
    gate_->Advance(staged_->description().transfer_id, -arrived_bytes_);
  }
}

absl::Status IncomingTile::Append(int64_t offset_bytes,
                                  absl::Span<const absl::Span<const char>> parts, uint32_t crc32c) {
  SHARDMESH_PASSES("put.append");
  absl::Status appended = staged_->AppendParts(offset_bytes, parts, crc32c);
  if (!appended.ok()) return Explain(std::move(appended));
  int64_t bytes = 0;
  for (const absl::Span<const char> part : parts) bytes += static_cast<int64_t>(part.size());
  Advance(bytes);
  return absl::OkStatus();
}

void IncomingTile::Advance(int64_t bytes) {
  // A holder that failed within a region sends it again.
  bytes = std::min(bytes, size_bytes() - arrived_bytes_);
  if (bytes <= 0 || left_) return;
  arrived_bytes_ += bytes;
  gate_->Advance(staged_->description().transfer_id, bytes);
}

absl::Status IncomingTile::Finish(uint32_t tile_crc32c) {
  SHARDMESH_PASSES("put.finish");
  const absl::Duration transfer_time = gate_->options_.clock->Now() - start_time_;
  return Report(staged_->Finish(tile_crc32c), transfer_time);
}

absl::Status IncomingTile::FinishSealed(uint32_t tile_crc32c) {
  SHARDMESH_PASSES("put.finish");
  const absl::Duration transfer_time = gate_->options_.clock->Now() - start_time_;
  Advance(size_bytes());
  return Report(staged_->FinishFilled(tile_crc32c), transfer_time);
}

absl::StatusOr<absl::Span<char>> IncomingTile::MutableBytes() {
  SHARDMESH_RETURN_IF_ERROR(staged_->FaultIn());
  return staged_->mutable_bytes();
}

absl::Status IncomingTile::FinishInPlace(std::optional<uint32_t> tile_crc32c) {
  const absl::Duration transfer_time = gate_->options_.clock->Now() - start_time_;
  return Report(tile_crc32c.has_value() ? staged_->FinishInPlace(*tile_crc32c)
                                        : staged_->Finish(std::nullopt),
                transfer_time);
}

absl::Status IncomingTile::Report(const absl::StatusOr<StoredTilePtr>& stored,
                                  absl::Duration transfer_time) {
  if (!stored.ok()) {
    return Explain(stored.status());
  }
  const TileDescription& description = (*stored)->description();
  // Take the tile off the list of incoming tiles before the report. Suspend drops all tiles on this
  // list, but only the coordinator may decide about a reported tile.
  Leave();
  gate_->options_.staged({.transfer_id = description.transfer_id,
                          .array_id = description.array_id,
                          .rank = rank_,
                          .crc32c = (*stored)->crc32c(),
                          .size_bytes = staged_->size_bytes(),
                          .durable = (*stored)->durable(),
                          .transfer_time = transfer_time,
                          .term = term_});
  return absl::OkStatus();
}

absl::Status IncomingTile::Explain(absl::Status status) const {
  return status.ok() || gate_->serving()
             ? status
             : NotServing("lost its coordinator", gate_->options_.identity);
}

void TileGate::Serve(Attachment attachment, std::shared_ptr<const MembershipView> view) {
  absl::MutexLock lock(&mutex_);
  attachment_ = std::move(attachment);
  view_ = std::move(view);
  suspended_ = false;
}

void TileGate::SetCoordinatorTime(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  coordinator_ahead_ = now - options_.clock->Now();
}

void TileGate::Suspend() {
  std::vector<std::string> dropped;
  {
    absl::MutexLock lock(&mutex_);
    suspended_ = true;
    dropped.assign(receiving_.begin(), receiving_.end());
    for (const auto& [transfer_id, array_ids] : transfers_) {
      RememberEnded(transfer_id);
    }
    transfers_.clear();
  }
  DropUncommitted(dropped);
}

void TileGate::Drain() {
  absl::MutexLock lock(&mutex_);
  draining_ = true;
}

absl::StatusOr<Attachment> TileGate::PutAttachment() const {
  if (draining_) {
    return NotServing("is draining", options_.identity);
  }
  if (view_ == nullptr) {
    return NotServing("is not attached to a coordinator yet", options_.identity);
  }
  if (suspended_) {
    return NotServing("lost its coordinator", options_.identity);
  }
  return attachment_;
}

void TileGate::AwaitMesh(const UnknownMesh& unknown, absl::Time deadline) const {
  const auto is_over = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!PutAttachment().ok()) {
      return true;
    }
    const MeshMembers* mesh = view_->Find(unknown.mesh_id);
    return mesh != nullptr && mesh->revision >= unknown.revision;
  };
  absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithDeadline(absl::Condition(&is_over), deadline);
}

absl::StatusOr<TileGate::Standing> TileGate::GetStanding() const {
  absl::MutexLock lock(&mutex_);
  SHARDMESH_ASSIGN_OR_RETURN(Attachment attachment, PutAttachment());
  return Standing{
      .attachment = std::move(attachment), .view = view_, .coordinator_now = CoordinatorNow()};
}

absl::StatusOr<std::unique_ptr<IncomingTile>> TileGate::Open(const TileOffer& offer,
                                                             std::optional<UnknownMesh>* unknown) {
  SHARDMESH_PASSES("put.open");
  SHARDMESH_ASSIGN_OR_RETURN(const Standing standing, GetStanding());
  SHARDMESH_ASSIGN_OR_RETURN(
      const rpc::VerifiedToken verified,
      VerifyArrayToken(offer.token, offer.array_id, rpc::TransferDirection::kPut,
                       standing.attachment, standing.coordinator_now));
  const rpc::TransferClaims& claims = verified.claims;
  const int64_t term = standing.attachment.term;
  if (claims.term < term) {
    return WithReason(absl::AbortedError(StrCat("the transfer token is of term ", claims.term,
                                                ", the coordinator is in ", term,
                                                ": its transfer has ended; put again")),
                      Reason::kStaleTerm, {{fact::kHave, claims.term}, {fact::kNeed, term}});
  }
  return Admit({.transfer_id = claims.transfer_id,
                .term = claims.term,
                .array_descriptor = claims.array_descriptor,
                .rank = offer.rank},
               offer, verified.array, standing, unknown);
}

absl::StatusOr<std::unique_ptr<IncomingTile>> TileGate::OpenOrdered(
    const TileOrder& order, const ArrayDescriptor& array, std::optional<UnknownMesh>* unknown) {
  SHARDMESH_PASSES("put.open");
  SHARDMESH_ASSIGN_OR_RETURN(const Standing standing, GetStanding());
  const int64_t term = standing.attachment.term;
  if (order.term != term) {
    return WithReason(absl::AbortedError(StrCat("the order to fill a tile is of term ", order.term,
                                                ", the coordinator is in ", term,
                                                ": its transfer has ended; put again")),
                      Reason::kStaleTerm, {{fact::kHave, order.term}, {fact::kNeed, term}});
  }
  SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, array.Tiling());
  if (order.rank < 0 || order.rank >= array.mesh.size()) {
    return BadTile(array.array_id, StrCat("rank ", order.rank, " is not a rank of mesh \"",
                                          array.mesh_id, "\", which has ", array.mesh.size()));
  }
  const Tile tile = tiling.TileOf(order.rank);
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t size_bytes, array.TileSizeBytes(tile));
  return Admit(order,
               {.token = {},
                .array_id = array.array_id,
                .tile = tile,
                .size_bytes = size_bytes,
                .rank = order.rank},
               array, standing, unknown);
}

absl::StatusOr<std::unique_ptr<IncomingTile>> TileGate::Admit(const TileOrder& order,
                                                              const TileOffer& offer,
                                                              const ArrayDescriptor& array,
                                                              const Standing& standing,
                                                              std::optional<UnknownMesh>* unknown) {
  const absl::Time now = options_.clock->Now();
  if (absl::Status fits = CheckOffer(offer, array, *standing.view); !fits.ok()) {
    const MeshMembers* mesh = standing.view->Find(array.mesh_id);
    if (unknown != nullptr && (mesh == nullptr || mesh->revision < array.mesh_revision)) {
      *unknown = {.mesh_id = array.mesh_id, .revision = array.mesh_revision};
    }
    return fits;
  }

  const std::string& array_id = array.array_id;
  if (offer.sealed != nullptr) {
    const absl::Status sealed = CheckSealed(*offer.sealed, offer.size_bytes);
    if (!sealed.ok()) {
      return WithFacts(WithContext(sealed, StrCat("array ", array_id)), {{fact::kArray, array_id}});
    }
  }
  const std::string transfer_id(order.transfer_id);
  {
    absl::MutexLock lock(&mutex_);
    if (ended_.contains(transfer_id)) {
      return WithReason(
          absl::AbortedError(StrCat("the put of array ", array_id, " has ended; begin a new one")),
          Reason::kStaleTerm, {{fact::kHave, order.term}});
    }
    transfers_[transfer_id].insert(array_id);
    receiving_.insert(array_id);
  }
  TileDescription description = {.array_id = array_id,
                                 .dtype = array.dtype,
                                 .array_shape = array.shape,
                                 .tile = offer.tile,
                                 .array_descriptor = std::string(order.array_descriptor),
                                 .transfer_id = transfer_id};
  const bool durable = options_.store->has_data_dir();
  absl::StatusOr<std::unique_ptr<StagedTile>> staged =
      offer.sealed != nullptr
          ? options_.store->StageSealed(std::move(description), durable, std::move(*offer.sealed))
          : options_.store->StageUnfilled(std::move(description), durable);
  if (!staged.ok()) {
    Left(array_id);
    return staged.status();
  }
  std::unique_ptr<IncomingTile> tile(
      new IncomingTile(this, *std::move(staged), offer.rank, order.term, now));
  // If the transfer ended or the gate was suspended after the checks above, EndTransfer or Suspend
  // did not see this tile and did not abort it. Check again.
  bool is_late = false;
  {
    absl::MutexLock lock(&mutex_);
    is_late = suspended_ || ended_.contains(transfer_id);
  }
  if (is_late) {
    return NotServing("lost its coordinator, or its put has ended", options_.identity);
  }
  return tile;
}

absl::Status TileGate::CheckOffer(const TileOffer& offer, const ArrayDescriptor& array,
                                  const MembershipView& view) const {
  const MeshMembers* mesh = view.Find(array.mesh_id);
  if (mesh == nullptr) {
    return BadTile(array.array_id, StrCat("this worker serves no rank of mesh \"", array.mesh_id,
                                          "\"; send the tile to the worker of its rank"));
  }
  if (mesh->revision != array.mesh_revision) {
    return BadTile(array.array_id,
                   StrCat("it lies on revision ", array.mesh_revision, " of mesh \"", array.mesh_id,
                          "\", this worker serves revision ", mesh->revision, "; put again"));
  }
  bool is_own = false;
  for (const MeshDevice& device : mesh->devices) {
    is_own |= device.rank == offer.rank && device.identity == options_.identity;
  }
  if (!is_own) {
    return BadTile(array.array_id,
                   StrCat("rank ", offer.rank, " of mesh \"", array.mesh_id,
                          "\" is not served by this worker, which is \"", options_.identity,
                          "\"; send the tile to the worker of its rank"));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, array.Tiling());
  if (const Tile own = tiling.TileOf(offer.rank); own != offer.tile) {
    return WithFacts(BadTile(array.array_id, StrCat("rank ", offer.rank, " holds ", own.ToString(),
                                                    ", not ", offer.tile.ToString())),
                     {{fact::kHave, offer.tile.ToString()}, {fact::kNeed, own.ToString()}});
  }
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t size_bytes, array.TileSizeBytes(offer.tile));
  if (offer.size_bytes != size_bytes) {
    return WithFacts(BadTile(array.array_id, StrCat("tile ", offer.tile.ToString(), " has ",
                                                    size_bytes, " bytes, not ", offer.size_bytes)),
                     {{fact::kHave, offer.size_bytes}, {fact::kNeed, size_bytes}});
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<RequestedTile>> TileGate::Find(std::string_view token,
                                                          std::string_view array_id,
                                                          const std::optional<Tile>& range) const {
  SHARDMESH_PASSES("get.find");
  Attachment attachment;
  absl::Time coordinator_now;
  bool suspended = false;
  {
    absl::MutexLock lock(&mutex_);
    if (draining_) {
      return NotServing("is draining", options_.identity);
    }
    if (view_ == nullptr) {
      return NotServing("is not attached to a coordinator yet", options_.identity);
    }
    attachment = attachment_;
    suspended = suspended_;
    coordinator_now = CoordinatorNow();
  }
  const absl::Status verified =
      VerifyArrayToken(token, array_id, rpc::TransferDirection::kGet, attachment, coordinator_now)
          .status();
  if (suspended && absl::IsUnauthenticated(verified)) {
    return NotServing("lost its coordinator, and the token is not of that one", options_.identity);
  }
  SHARDMESH_RETURN_IF_ERROR(verified);
  // The coordinator signs a get token only for a committed array. The client's call may arrive
  // before the coordinator's commit message, so staged tiles count as committed here.
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<StoredTilePtr> stored,
                             options_.store->FindAllHeld(array_id, /*staged_too=*/true));
  std::vector<RequestedTile> tiles;
  for (StoredTilePtr& each : stored) {
    const Tile& held = each->description().tile;
    if (!range.has_value()) {
      tiles.push_back({.stored = each, .range = held});
    } else if (Contains(held, *range)) {
      return std::vector<RequestedTile>{{.stored = each, .range = *range}};
    }
  }
  if (tiles.empty()) {
    return BadTile(array_id, StrCat(range->ToString(), " is not within a tile that this worker, \"",
                                    options_.identity, "\", holds: it has ",
                                    stored.front()->description().tile.ToString()));
  }
  return tiles;
}

absl::Status TileGate::EndTransfer(const std::string& transfer_id, bool commit) {
  SHARDMESH_FAILPOINT("put.end_transfer");
  std::vector<std::string> array_ids;
  {
    absl::MutexLock lock(&mutex_);
    RememberEnded(transfer_id);
    const auto found = transfers_.find(transfer_id);
    if (found == transfers_.end()) {
      return absl::OkStatus();
    }
    array_ids.assign(found->second.begin(), found->second.end());
    transfers_.erase(found);
  }
  if (commit) return options_.store->Commit(array_ids);
  DropUncommitted(array_ids);
  return absl::OkStatus();
}

void TileGate::DropUncommitted(const std::vector<std::string>& array_ids) {
  for (const std::string& array_id : array_ids) {
    // Abort fails only if the array is committed. In this case there is nothing to abort.
    options_.store->Abort({array_id}).IgnoreError();
  }
}

void TileGate::RememberEnded(const std::string& transfer_id) {
  if (!ended_.insert(transfer_id).second) {
    return;
  }
  ended_order_.push_back(transfer_id);
  if (ended_order_.size() > kEndedTransfers) {
    ended_.erase(ended_order_.front());
    ended_order_.pop_front();
  }
}

bool TileGate::serving() const {
  absl::MutexLock lock(&mutex_);
  return !suspended_;
}

void TileGate::Advance(const std::string& transfer_id, int64_t bytes) {
  if (bytes == 0) return;
  absl::MutexLock lock(&mutex_);
  const auto found = arriving_.try_emplace(transfer_id, 0).first;
  found->second += bytes;
  if (found->second <= 0) arriving_.erase(found);
}

std::map<std::string, int64_t> TileGate::Arriving() const {
  absl::MutexLock lock(&mutex_);
  return arriving_;
}

void TileGate::Left(const std::string& array_id) {
  absl::MutexLock lock(&mutex_);
  if (const auto found = receiving_.find(array_id); found != receiving_.end()) {
    receiving_.erase(found);
  }
}

}  // namespace shardmesh::worker
