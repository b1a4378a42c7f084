// Decides whether a worker may attach, judges its inventory, and passes its reports to the
// sequencer.
#include "server/attach/worker_session.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "process/failpoint.h"
#include "process/log.h"
#include "rpc/codec/field_check.h"
#include "rpc/codec/status.h"
#include "rpc/contract.h"
#include "server/attach/attach_codec.h"
#include "server/attach/endpoint_check.h"
#include "server/attach/inventory_judge.h"
#include "shardmesh/internal/v1/attach_service.pb.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// After this time, the next heartbeat makes the coordinator send its clock to the worker again.
constexpr absl::Duration kClockInterval = absl::Seconds(5);

}  // namespace

WorkerSession::WorkerSession(WorkerStreams* streams, Sequencer* sequencer, AttachWire* wire)
    : streams_(streams), sequencer_(sequencer), wire_(wire) {}

void WorkerSession::Begin() {
  streams_->ExpectWithin(this, streams_->options().hello_timeout, "hello");
}

void WorkerSession::End() {
  streams_->Leave(this);
  uint64_t attachment = 0;
  std::string reason;
  {
    absl::MutexLock lock(&mutex_);
    attachment = attachment_;
    reason = end_reason_;
  }
  // When the coordinator stops, it disconnects its workers. These workers are not lost: their tiles
  // remain, and callers get an error that names the coordinator's stop.
  if (attachment != 0 && !streams_->is_stopping()) {
    streams_->membership().Detach(attachment, std::move(reason));
  }
}

bool WorkerSession::HasFeature(std::string_view feature) const {
  return std::find(hello_.features.begin(), hello_.features.end(), feature) !=
         hello_.features.end();
}

void WorkerSession::Send(WorkerMessage message) { CutIfFull(wire_->Write(std::move(message))); }

void WorkerSession::SendParts(const WorkerMessage& head, const WorkerMessage& tail) {
  CutIfFull(wire_->WriteParts(head, tail));
}

void WorkerSession::CutIfFull(const absl::Status& written) {
  if (absl::IsResourceExhausted(written)) Cut(written);
}

void WorkerSession::Cut(const absl::Status& status) {
  Close(status);
  // A worker that does not read would receive neither the queued messages nor a status. Break makes
  // the current write fail. The wire then drops its queue, and the stream ends with the status of
  // Close.
  wire_->Break();
}

uint64_t WorkerSession::attachment() const {
  absl::MutexLock lock(&mutex_);
  return attachment_;
}

void WorkerSession::Close(absl::Status status) {
  {
    absl::MutexLock lock(&mutex_);
    if (closed_) return;
    closed_ = true;
    if (attachment_ != 0 && !absl::IsCancelled(status)) {
      end_reason_ = std::string(status.message());
    }
    if (holds_ > 0) {
      close_status_ = std::move(status);
      return;  // Release finishes.
    }
  }
  wire_->Finish(std::move(status));
}

absl::Status WorkerSession::Hold(std::string_view what) {
  absl::MutexLock lock(&mutex_);
  // Refuse: a closed session may be deleted once Take returns, and a hold would come too late to
  // prevent that.
  if (closed_) return absl::CancelledError(StrCat("it was closed before ", what));
  ++holds_;
  return absl::OkStatus();
}

void WorkerSession::Release() {
  std::optional<absl::Status> closed;
  {
    absl::MutexLock lock(&mutex_);
    if (--holds_ > 0) return;
    if (closed_) closed = std::move(close_status_);
  }
  // The hold kept Close from finishing the stream, so Release finishes the stream. Finish may
  // delete the session.
  if (closed.has_value()) wire_->Finish(*std::move(closed));
}

bool WorkerSession::is_closed() const {
  absl::MutexLock lock(&mutex_);
  return closed_;
}

void WorkerSession::LeftUndecided(std::set<std::string> mesh_ids) {
  absl::MutexLock lock(&mutex_);
  undecided_.merge(mesh_ids);
}

std::string WorkerSession::TakeDecidable(const MembershipView& view) {
  absl::MutexLock lock(&mutex_);
  for (const std::string& mesh_id : undecided_) {
    const MeshRanks* const ranks = view.FindMesh(mesh_id);
    if (ranks == nullptr || ranks->identities.empty()) continue;
    std::string found = mesh_id;
    undecided_.clear();  // the stream is about to end
    return found;
  }
  return "";
}

void WorkerSession::Take(const internal::v1::AttachRequest& request) {
  // The session reads no message while the worker's endpoints are verified. Welcome reads the next
  // message, perhaps already now on another thread.
  const bool is_hello = phase_ == Phase::kHello;
  if (const absl::Status taken = Dispatch(request); !taken.ok()) return Close(taken);
  if (!is_hello) wire_->Read();
}

absl::Status WorkerSession::Dispatch(const internal::v1::AttachRequest& request) {
  using Message = internal::v1::AttachRequest;
  if (phase_ == Phase::kHello) {
    if (request.message_case() != Message::kHello) {
      return rpc::BadField("hello", "is missing; it must be the first message");
    }
    return TakeHello(request.hello());
  }
  const uint64_t attachment = this->attachment();
  switch (request.message_case()) {
    case Message::kHello:
      return rpc::BadField("hello", "comes a second time");
    case Message::kInventory:
      if (phase_ == Phase::kInventory) return TakeInventory(attachment, request.inventory());
      if (phase_ == Phase::kTaking) {
        return rpc::BadField("inventory", "comes after its last page, and before the verdict");
      }
      return TakeRestored(attachment, request.inventory());
    case Message::kHeartbeat:
      return TakeHeartbeat(attachment, request.heartbeat());
    case Message::kTileStaged:
      SHARDMESH_FAILPOINT("attach.tile_staged");
      TakeTileStaged(request.tile_staged());
      break;
    case Message::kTilesArriving: {
      const internal::v1::TilesArriving& arriving = request.tiles_arriving();
      const WorkerStreamsOptions& options = streams_->options();
      if (options.tiles_arriving) {
        options.tiles_arriving(arriving.transfer_id(), identity(), arriving.arrived_bytes());
      }
      break;
    }
    case Message::kStepReport:
      SHARDMESH_FAILPOINT("attach.step_report");
      TakeStepReport(request.step_report());
      break;
    case Message::kPeers: {
      const auto& unreached = request.peers().unreached();
      streams_->PeersReported(this, request.peers().epoch(), {unreached.begin(), unreached.end()});
      break;
    }
    case Message::kTilesDropped: {
      const auto& array_ids = request.tiles_dropped().array_ids();
      streams_->TilesDropped(identity(), {array_ids.begin(), array_ids.end()});
      break;
    }
    case Message::kTileDamaged:
      TakeTileDamaged(request.tile_damaged());
      break;
    case Message::kQuarantineAnswer:
      streams_->orders().Answer(this, request.quarantine_answer());
      break;
    case Message::kFillFailed:
      SHARDMESH_FAILPOINT("attach.fill_failed");
      TakeFillFailed(request.fill_failed());
      break;
    case Message::kFilesChecked:
      streams_->file_checks().Answer(this, request.files_checked().order_id(),
                                     DecodeVerdict(request.files_checked()));
      break;
    case Message::kTilesDigested:
      streams_->digest_orders().Answer(this, request.tiles_digested().order_id(),
                                       DecodeDigests(request.tiles_digested()));
      break;
    case Message::kMemoryRequest:
      return TakeMemoryRequest(request.memory_request());
    case Message::kSaveProgress:
      streams_->saves().Progress(this, request.save_progress());
      break;
    case Message::kSaveAnswer:
      SHARDMESH_FAILPOINT("attach.save_answer");
      streams_->saves().Answer(this, request.save_answer());
      break;
    case Message::kLeaving:
      return TakeLeaving(request.leaving());
    case Message::MESSAGE_NOT_SET:
      break;  // a message of a newer protocol: ignored
  }
  return absl::OkStatus();
}

absl::Status WorkerSession::TakeHello(const internal::v1::Hello& message) {
  SHARDMESH_FAILPOINT("attach.hello");
  const WorkerStreamsOptions& options = streams_->options();
  SHARDMESH_RETURN_IF_ERROR(rpc::CheckIdentity(message.identity(), "hello.identity"));
  if (const absl::Status caller = wire_->CheckCaller(message.identity()); !caller.ok()) {
    LogWarning("attach refused", {{"identity", message.identity()}, {"error", caller}});
    return caller;
  }
  WorkerHello hello = DecodeHello(message);
  if (const absl::Status checked = CheckHello(hello, options.cluster_id, options.term);
      !checked.ok()) {
    streams_->AttachFailed(hello.identity, checked);
    return checked;
  }
  hello_ = std::move(hello);
  phase_ = Phase::kVerifying;
  streams_->ExpectNothing(this);  // the check of the endpoints has its own time limit
  SHARDMESH_RETURN_IF_ERROR(Hold("its endpoints were asked"));
  EndpointCheck::Start(hello_, options.clock, options.ask_endpoint, options.verify_timeout,
                       [this](std::vector<std::string> endpoints, std::string failures) {
                         Verified(std::move(endpoints), std::move(failures));
                       });
  return absl::OkStatus();
}

void WorkerSession::Verified(std::vector<std::string> endpoints, std::string failures) {
  if (endpoints.empty()) {  // Admit refuses the worker, which needs no turn
    Admit({}, failures);
    return Release();
  }
  streams_->inventories().AwaitTurn(
      this, [this, endpoints = std::move(endpoints), failures = std::move(failures)]() mutable {
        Admit(std::move(endpoints), failures);
        Release();
      });
}

void WorkerSession::Admit(std::vector<std::string> endpoints, const std::string& failures) {
  SHARDMESH_PASSES("attach.admit");
  if (is_closed()) return;
  if (endpoints.empty()) {
    const absl::Status unverified = WithReason(
        absl::FailedPreconditionError(
            StrCat("no endpoint of worker \"", hello_.identity,
                   "\" leads back to it; advertise an address that the coordinator reaches (",
                   failures, ")")),
        Reason::kEndpointUnverified,
        {{fact::kIdentity, hello_.identity}, {fact::kValue, StrJoin(hello_.endpoints, ",")}});
    streams_->AttachFailed(hello_.identity, unverified);
    return Close(unverified);
  }
  WorkerInfo info;
  info.identity = hello_.identity;
  info.incarnation = hello_.incarnation;
  info.build_version = hello_.build_version;
  info.endpoints = std::move(endpoints);
  info.exchange_port = hello_.exchange_port;
  info.pid = hello_.pid;
  info.host = hello_.boot_id;
  info.capacity_bytes = hello_.memory_bytes;
  info.durable = hello_.durable;
  info.cache_bytes = hello_.cache_bytes;
  info.kernels = hello_.kernels;
  info.answers_clock = HasFeature(rpc::kClockAnswersFeature);
  info.multiplies_batches = HasFeature(rpc::kBatchesFeature);
  info.runs_tensor_ops = HasFeature(rpc::kTensorOpsFeature);
  info.multiplies_short_types = HasFeature(rpc::kShortProductsFeature);
  info.overlaps_exchanges = HasFeature(rpc::kOverlapFeature);
  info.overlaps_parts = HasFeature(rpc::kOverlapPartsFeature);
  info.runs_fused_ops = HasFeature(rpc::kFusedComputeFeature);
  const absl::StatusOr<uint64_t> attachment = streams_->membership().Attach(std::move(info));
  if (!attachment.ok()) {
    streams_->AttachFailed(hello_.identity, attachment.status());
    return Close(attachment.status());
  }
  {
    absl::MutexLock lock(&mutex_);
    attachment_ = *attachment;
  }
  LogInfo("worker attached", {{"identity", hello_.identity}, {"pid", hello_.pid}});
  Welcome();
  SHARDMESH_PASSES("attach.admitted");
}

void WorkerSession::Welcome() {
  const WorkerStreamsOptions& options = streams_->options();
  const MembershipOptions& timing = streams_->membership().options();
  clock_told_ = options.clock->Now();
  Send(EncodeWelcome({.cluster_id = options.cluster_id,
                      .term = options.term,
                      // CheckHello has made sure that a common protocol exists.
                      .protocol = rpc::CommonProtocol(hello_.min_protocol, hello_.max_protocol)
                                      .value_or(rpc::kNewestProtocol),
                      .heartbeat_interval = timing.heartbeat_interval,
                      .lost_after = timing.lost_after,
                      .token_key = options.token_key,
                      .build_version = options.build_version,
                      .now = clock_told_}));
  streams_->ExpectWithin(this, options.inventory_timeout, "whole inventory");
  phase_ = Phase::kInventory;
  wire_->Read();
}

absl::Status WorkerSession::TakeInventory(uint64_t attachment,
                                          const internal::v1::InventoryPage& page) {
  SHARDMESH_FAILPOINT("attach.inventory");
  // A page counts as a sign of life: heartbeats can be delayed behind many pages.
  SHARDMESH_RETURN_IF_ERROR(Beat(attachment));
  const int64_t all_tiles = std::ssize(inventory_) + page.tiles_size() + std::ssize(quarantined_) +
                            page.quarantined_array_ids_size();
  const int64_t max_tiles = streams_->options().max_inventory_tiles;
  if (all_tiles > max_tiles) {
    return WithReason(
        absl::ResourceExhaustedError(
            StrCat("worker \"", hello_.identity, "\" brings ", all_tiles,
                   " tiles and more, the limit is ", max_tiles,
                   "; release arrays, or start the coordinator with more --max-inventory-tiles")),
        Reason::kLimitExceeded, {{fact::kHave, all_tiles}, {fact::kLimit, max_tiles}});
  }
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<InventoryTile> tiles, TilesOf(page));
  SHARDMESH_RETURN_IF_ERROR(
      streams_->inventories().Keep(this, InventoryBytes(tiles, page.quarantined_array_ids_size())));
  inventory_.insert(inventory_.end(), std::make_move_iterator(tiles.begin()),
                    std::make_move_iterator(tiles.end()));
  quarantined_.insert(quarantined_.end(), page.quarantined_array_ids().begin(),
                      page.quarantined_array_ids().end());
  if (!page.last()) return absl::OkStatus();
  SHARDMESH_RETURN_IF_ERROR(Hold("its inventory was taken in"));
  phase_ = Phase::kTaking;
  streams_->AwaitInventory(this);
  return absl::OkStatus();
}

void WorkerSession::TakeWholeInventory() {
  if (!is_closed()) {
    streams_->Arrive(this);
    const uint64_t attachment = this->attachment();
    JudgedInventory judged = streams_->judge().JudgeWhole(
        identity(), attachment, std::exchange(inventory_, {}), std::exchange(quarantined_, {}));
    LeftUndecided(std::move(judged.undecided));
    // A worker that was lost while its inventory was judged gets no verdict: the registry did not
    // count its tiles.
    if (const absl::Status alive = Beat(attachment); !alive.ok()) {
      Close(alive);
    } else if (!is_closed()) {
      phase_ = Phase::kJudged;
      SendVerdict(judged.verdict, /*last=*/true);
      streams_->Join(this);
      phase_ = Phase::kMember;
      if (streams_->options().joined) streams_->options().joined(identity(), attachment);
    }
  }
  Release();
}

absl::Status WorkerSession::TakeRestored(uint64_t attachment,
                                         const internal::v1::InventoryPage& page) {
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<InventoryTile> tiles, TilesOf(page));
  JudgedInventory judged = streams_->judge().JudgeRestored(identity(), attachment, std::move(tiles),
                                                           DecodeMeshIds(page));
  SendVerdict(judged.verdict, /*last=*/false);
  if (!judged.undecided.empty()) {
    LeftUndecided(std::move(judged.undecided));
    streams_->MembershipChanged();  // a mesh may have got its ranks during the judgement
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<InventoryTile>> WorkerSession::TilesOf(
    const internal::v1::InventoryPage& page) const {
  return DecodeTiles(page, [this](const std::vector<InventoryTile>& tiles) {
    return streams_->registry().FindUnknown(tiles);
  });
}

absl::Status WorkerSession::Beat(uint64_t attachment) {
  int64_t used_bytes = 0;
  QuarantineCount quarantine;
  {
    absl::MutexLock lock(&mutex_);
    used_bytes = used_bytes_;
    quarantine = quarantine_;
  }
  return streams_->membership().Heartbeat(attachment, used_bytes, quarantine);
}

void WorkerSession::SendVerdict(const InventoryVerdict& verdict, bool last) {
  for (WorkerMessage& message : EncodeVerdict(verdict, last)) Send(std::move(message));
}

absl::Status WorkerSession::TakeHeartbeat(uint64_t attachment,
                                          const internal::v1::Heartbeat& heartbeat) {
  SHARDMESH_FAILPOINT("attach.heartbeat");
  {
    absl::MutexLock lock(&mutex_);
    used_bytes_ = heartbeat.used_bytes();
    quarantine_ = {.arrays = heartbeat.quarantined_arrays(),
                   .size_bytes = heartbeat.quarantined_bytes()};
  }
  SHARDMESH_RETURN_IF_ERROR(Beat(attachment));
  const WorkerStreamsOptions& options = streams_->options();
  const absl::Time now = options.clock->Now();
  if (now - clock_told_ >= kClockInterval) {
    clock_told_ = now;
    Send(EncodeClock(now));
  }
  SHARDMESH_ASSIGN_OR_RETURN(FlightLog::Heartbeat flight, DecodeFlight(heartbeat, now));
  if (heartbeat.has_links()) {
    SHARDMESH_ASSIGN_OR_RETURN(std::vector<MeasuredLink> links,
                               DecodeLinks(heartbeat, now - flight.sent));
    options.link_table->Reported(hello_.identity, hello_.incarnation, std::move(links));
  }
  for (const StepProgress& running : flight.progress) {
    if (!running.instruction.has_value() || running.instruction->received_bytes == 0) continue;
    sequencer_->StepReceived(running.step, identity(), running.instruction->received_bytes);
  }
  options.flight_log->Heard(hello_.identity, hello_.incarnation, std::move(flight), now);
  return absl::OkStatus();
}

void WorkerSession::TakeTileStaged(const internal::v1::TileStaged& staged) {
  const WorkerStreamsOptions& options = streams_->options();
  if (options.tile_staged) {
    options.tile_staged(staged.transfer_id(), identity(), staged.size_bytes());
  }
  const absl::Status reported = sequencer_->ReportTransfer(staged.transfer_id(), staged.term(),
                                                           DecodeStaged(identity(), staged));
  // The tile came too late for its transfer. The message makes the worker drop this tile, and the
  // tiles of the transfer that were staged in time.
  if (!reported.ok()) Send(EncodeEndTransfer(staged.transfer_id(), reported));
}

void WorkerSession::TakeTileDamaged(const internal::v1::TileDamaged& damaged) {
  LogWarning(
      "a worker has found a damaged tile",
      {{"identity", identity()}, {"array", damaged.array_id()}, {"reason", damaged.reason()}});
  streams_->TileDamaged(identity(), damaged.array_id());
}

void WorkerSession::TakeFillFailed(const internal::v1::FillFailed& failed) {
  const absl::Status reported = sequencer_->ReportTransfer(failed.transfer_id(), failed.term(),
                                                           DecodeFillFailed(identity(), failed));
  // The transfer has ended. The message makes the worker drop what it has staged of the transfer.
  if (!reported.ok()) Send(EncodeEndTransfer(failed.transfer_id(), reported));
}

absl::Status WorkerSession::TakeMemoryRequest(const internal::v1::MemoryRequest& asked) {
  SHARDMESH_RETURN_IF_ERROR(Hold("its request for memory was answered"));
  const int64_t order_id = asked.order_id();
  const bool taken = streams_->memory_requests().Run(
      identity(), [this, order_id, need_bytes = asked.need_bytes(), on_disk = asked.on_disk()] {
        const auto& free = streams_->options().free_memory;
        const bool is_wanted = free != nullptr && !is_closed();
        Send(EncodeMemoryAnswer(order_id, is_wanted ? free(identity(), need_bytes, on_disk) : 0));
        Release();
      });
  if (!taken) {
    Send(EncodeMemoryAnswer(order_id, 0));
    Release();
  }
  return absl::OkStatus();
}

void WorkerSession::TakeStepReport(const internal::v1::StepReport& report) {
  if (report.outcome() == internal::v1::StepReport::OUTCOME_NEED_PLAN) {
    return streams_->SendPlan(this, report.sequence());
  }
  const absl::Status reported = sequencer_->ReportStep(
      report.sequence(), report.epoch(), report.term(), DecodeReport(identity(), report));
  if (!reported.ok()) {
    LogDebug("report of a step that has ended",
             {{"identity", identity()}, {"sequence", report.sequence()}});
  }
}

absl::Status WorkerSession::TakeLeaving(const internal::v1::Leaving& leaving) {
  {
    absl::MutexLock lock(&mutex_);
    end_reason_ = StrCat("it left: ", leaving.reason());
  }
  if (phase_ != Phase::kMember) return absl::CancelledError("it left before it took part");
  // The worker gets no more work from now on. CloseDrained closes the worker's stream when its
  // current work is done.
  streams_->membership().Leave(identity()).IgnoreError();  // the worker may be lost already
  sequencer_->WorkerLeaves(identity(), [streams = streams_, identity = identity(), stream = this] {
    streams->CloseDrained(identity, stream);
  });
  return absl::OkStatus();
}

}  // namespace shardmesh::server
