// Sends each report only at a stage of the attach at which the coordinator can use it.
#include "worker/service/attach_reports.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "rpc/codec/flight_codec.h"
#include "rpc/codec/link_codec.h"
#include "rpc/codec/time_codec.h"
#include "worker/service/attach_message_codec.h"

namespace shardmesh::worker {
namespace {

// The maximum number of instruction records in one heartbeat.
constexpr size_t kMaxRecords = 64;
// If at least this many dropped arrays wait, the confirmation is sent at once. Otherwise the
// confirmation is sent with the next heartbeat.
constexpr size_t kMaxUnconfirmed = 1024;
constexpr size_t kMaxDroppedIds = 4096;

}  // namespace

AttachReports::AttachReports(Options options)
    : options_(std::move(options)), alarm_(options_.clock, [this] { Beat(); }) {}

void AttachReports::Attached(AttachSinkPtr stream, absl::Duration heartbeat_interval) {
  absl::MutexLock lock(&mutex_);
  stream_ = std::move(stream);
  damaged_.clear();  // the inventory of this attach lacks these tiles
  // The coordinator may have restarted, so send all records and measurements again.
  next_record_ = 0;
  told_links_ = 0;
  pace_.Begin(heartbeat_interval, options_.clock->Now());
  alarm_.SetNoLaterThan(pace_.next());
}

void AttachReports::Judged() {
  {
    absl::MutexLock lock(&mutex_);
    judged_ = true;
    SendRestored();
    SendDamaged();
    // The inventory is complete now. A heartbeat at once makes the coordinator's metrics show the
    // tiles.
    pace_.MakeDue(options_.clock->Now());
  }
  Beat();
}

void AttachReports::MemberAt(int64_t epoch) {
  absl::MutexLock lock(&mutex_);
  member_ = true;
  epoch_ = epoch;
  SendPeers();  // the links may have reported the peers of this epoch before this call
}

bool AttachReports::Detached() {
  absl::MutexLock lock(&mutex_);
  const bool was_attached = std::exchange(stream_, nullptr) != nullptr;
  judged_ = false;
  member_ = false;
  UpdateReady();
  return was_attached;
}

AttachReports::State AttachReports::state() const {
  absl::MutexLock lock(&mutex_);
  return {.attached = stream_ != nullptr, .ready = ready_, .epoch = epoch_};
}

void AttachReports::ReportTile(const TileReport& report) {
  internal::v1::AttachRequest request = Encode(report);
  AttachSinkPtr stream;
  {
    absl::MutexLock lock(&mutex_);
    stream = stream_;
  }
  if (stream != nullptr) {
    stream->Send(std::move(request));
  }
}

void AttachReports::ReportPeers(int64_t epoch, const std::vector<std::string>& unreached) {
  absl::MutexLock lock(&mutex_);
  peers_epoch_ = epoch;
  unreached_ = unreached;
  SendPeers();
}

void AttachReports::ReportDropped(absl::Span<const std::string> array_ids) {
  absl::MutexLock lock(&mutex_);
  dropped_.insert(dropped_.end(), array_ids.begin(), array_ids.end());
  if (dropped_.size() >= kMaxUnconfirmed) {
    SendDropped();
  }
}

void AttachReports::ReportRestored(const std::string& array_id) {
  absl::MutexLock lock(&mutex_);
  restored_.push_back(array_id);
  SendRestored();
}

void AttachReports::ReportDamaged(const std::string& array_id, const std::string& reason) {
  absl::MutexLock lock(&mutex_);
  if (stream_ == nullptr) return;  // the inventory of the next attach will lack the tile
  damaged_.emplace_back(array_id, reason);
  SendDamaged();
}

void AttachReports::BeatNow() {
  {
    absl::MutexLock lock(&mutex_);
    if (stream_ == nullptr) return;
    pace_.MakeDue(options_.clock->Now());
  }
  Beat();
}

void AttachReports::StepBegins() {
  absl::MutexLock lock(&mutex_);
  alarm_.SetNoLaterThan(options_.clock->Now() + HeartbeatPace::kSlowAfter);
}

void AttachReports::Beat() {
  const std::vector<StepProgress> progress = options_.progress();
  const int64_t used_bytes = options_.store->used_bytes();
  const std::map<std::string, int64_t> arriving =
      options_.arriving ? options_.arriving() : std::map<std::string, int64_t>();
  absl::MutexLock lock(&mutex_);
  if (stream_ == nullptr) {
    return;  // Attached sets the alarm again
  }
  const absl::Time now = options_.clock->Now();
  if (const std::optional<absl::Time> due = pace_.NotDueUntil(progress, now); due.has_value()) {
    return alarm_.SetNoLaterThan(*due);
  }
  SendDropped();
  // Only after the verdict does the worker know which arrays live and must be kept.
  if (judged_) options_.store->ExpireQuarantine(now);
  SendArriving(arriving);
  SendHeartbeat(progress, used_bytes, now);
  alarm_.SetNoLaterThan(pace_.Sent(progress, now));
}

void AttachReports::SendHeartbeat(const std::vector<StepProgress>& progress, int64_t used_bytes,
                                  absl::Time now) {
  const QuarantineTotals quarantine = options_.store->quarantine_totals();
  internal::v1::AttachRequest request;
  internal::v1::Heartbeat* heartbeat = request.mutable_heartbeat();
  // Quarantined tiles whose arrays do not live count as free memory: new tiles may replace them.
  heartbeat->set_used_bytes(std::max<int64_t>(0, used_bytes - quarantine.droppable_memory_bytes));
  heartbeat->set_quarantined_arrays(quarantine.arrays);
  heartbeat->set_quarantined_bytes(quarantine.disk_bytes + quarantine.memory_bytes);
  heartbeat->set_epoch(epoch_);
  rpc::Encode(now, heartbeat->mutable_send_time());
  for (const StepProgress& step : progress) {
    rpc::Encode(step, heartbeat->add_progress());
    heartbeat->add_received_bytes(step.instruction.has_value() ? step.instruction->received_bytes
                                                               : 0);
  }
  if (options_.recorder != nullptr) {
    const FlightRecorder::Tail tail = options_.recorder->EndedSince(next_record_, kMaxRecords);
    EncodeRecords(tail.records, heartbeat);
    next_record_ = tail.next;
  }
  if (const MeasuredLinks measured = options_.measured_links(); measured.revision != told_links_) {
    // Sent even if the list is empty: the change may be that no link is left.
    internal::v1::MeasuredLinks* links = heartbeat->mutable_links();
    for (const MeasuredLink& link : measured.links) rpc::Encode(link, links->add_links());
    told_links_ = measured.revision;
  }
  stream_->Send(std::move(request));
}

void AttachReports::SendArriving(const std::map<std::string, int64_t>& arriving) {
  for (const auto& [transfer_id, bytes] : arriving) {
    const auto told = told_arriving_.find(transfer_id);
    if (told != told_arriving_.end() && told->second == bytes) continue;
    internal::v1::AttachRequest request;
    request.mutable_tiles_arriving()->set_transfer_id(transfer_id);
    request.mutable_tiles_arriving()->set_arrived_bytes(bytes);
    stream_->Send(std::move(request));
  }
  told_arriving_ = arriving;
}

void AttachReports::SendDropped() {
  if (stream_ == nullptr) {
    dropped_.clear();  // the next inventory tells the coordinator that these arrays are gone
  }
  for (size_t first = 0; first < dropped_.size(); first += kMaxDroppedIds) {
    internal::v1::AttachRequest request;
    for (size_t i = first; i < std::min(dropped_.size(), first + kMaxDroppedIds); ++i) {
      request.mutable_tiles_dropped()->add_array_ids(std::move(dropped_[i]));
    }
    stream_->Send(std::move(request));
  }
  dropped_.clear();
}

void AttachReports::SendRestored() {
  if (!judged_) {
    return;
  }
  for (const std::string& array_id : std::exchange(restored_, {})) {
    const absl::StatusOr<std::vector<StoredTilePtr>> tiles =
        options_.store->FindAllHeld(array_id, /*staged_too=*/false);
    if (!tiles.ok()) {
      continue;  // the array was dropped after its restore
    }
    internal::v1::AttachRequest request;
    for (const StoredTilePtr& tile : *tiles) {
      *request.mutable_inventory()->add_tiles() =
          Encode(ShardStore::HeldTile{tile, TileState::kCommitted});
    }
    request.mutable_inventory()->set_last(true);
    stream_->Send(std::move(request));
  }
}

void AttachReports::SendDamaged() {
  if (!judged_ || stream_ == nullptr) return;
  for (auto& [array_id, reason] : std::exchange(damaged_, {})) {
    internal::v1::AttachRequest request;
    request.mutable_tile_damaged()->set_array_id(std::move(array_id));
    request.mutable_tile_damaged()->set_reason(std::move(reason));
    stream_->Send(std::move(request));
  }
}

void AttachReports::SendPeers() {
  UpdateReady();
  if (!member_ || peers_epoch_ != epoch_) {
    return;
  }
  internal::v1::AttachRequest request;
  request.mutable_peers()->set_epoch(peers_epoch_);
  for (const std::string& identity : unreached_) {
    request.mutable_peers()->add_unreached(identity);
  }
  stream_->Send(std::move(request));
}

void AttachReports::UpdateReady() {
  const bool ready = member_ && peers_epoch_ == epoch_ && unreached_.empty();
  if (ready != ready_) {
    ready_ = ready;
    options_.ready_changed(ready);
  }
}

}  // namespace shardmesh::worker
