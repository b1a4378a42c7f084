// Passes the coordinator's messages to the store, the tile gate, the links and the executor.
#include "worker/service/attach_handler.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "process/failpoint.h"
#include "process/log.h"
#include "rpc/codec/time_codec.h"
#include "rpc/codec/worker_error_codec.h"
#include "rpc/contract.h"
#include "rpc/transfer_token.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "worker/service/attach_fill_codec.h"
#include "worker/service/attach_inventory.h"
#include "worker/service/attach_message_codec.h"

namespace shardmesh::worker {

AttachHandler::~AttachHandler() {
  // Before AwaitFiles returns, the store's thread may still call `reports` about dropped files.
  options_.store->AwaitFiles();
}

absl::Status AttachHandler::Take(internal::v1::AttachResponse message,
                                 const AttachSinkPtr& stream) {
  using Message = internal::v1::AttachResponse;
  if (message.message_case() != Message::kWelcome && !options_.reports->state().attached) {
    return absl::InternalError("the coordinator's first message is no welcome");
  }
  switch (message.message_case()) {
    case Message::kWelcome:
      return TakeWelcome(message.welcome(), stream);
    case Message::kInventoryVerdict:
      return TakeVerdict(message.inventory_verdict());
    case Message::kMembership:
      return TakeMembership(message.membership());
    case Message::kRunStep:
      TakeRunStep(std::move(*message.mutable_run_step()), stream);
      return absl::OkStatus();
    case Message::kEndStep:
      return TakeEndStep(message.end_step());
    case Message::kEndTransfer:
      return TakeEndTransfer(message.end_transfer());
    case Message::kDropArrays:
      Drop(message.drop_arrays().array_ids());
      return absl::OkStatus();
    case Message::kMemoryAnswer:
      if (options_.memory != nullptr) {
        options_.memory->Answered(message.memory_answer().order_id(),
                                  message.memory_answer().freed_bytes());
      }
      return absl::OkStatus();
    case Message::kQuarantineOrder:
      TakeQuarantineOrder(std::move(*message.mutable_quarantine_order()), stream);
      return absl::OkStatus();
    case Message::kSave:
      TakeSaveOrder(std::move(*message.mutable_save()), stream);
      return absl::OkStatus();
    case Message::kDetach:
      return TakeDetach(message.detach());
    case Message::kClock:
      SHARDMESH_RETURN_IF_ERROR(options_.terms->Keep());
      SHARDMESH_RETURN_IF_ERROR(TakeCoordinatorTime(message.clock().time()));
      options_.reports->BeatNow();
      return absl::OkStatus();
    case Message::kFillTiles:
      TakeFillTiles(std::move(*message.mutable_fill_tiles()), stream);
      return absl::OkStatus();
    case Message::kCheckFiles:
      TakeCheckFiles(message.check_files(), stream);
      return absl::OkStatus();
    case Message::kDigestTiles:
      digests_.Take(std::move(*message.mutable_digest_tiles()), stream);
      return absl::OkStatus();
    case Message::MESSAGE_NOT_SET:
      break;  // ignore a message type of a newer coordinator
  }
  return absl::OkStatus();
}

bool AttachHandler::TakeAtOnce(internal::v1::AttachResponse* message, const AttachSinkPtr& stream) {
  if (!message->has_run_step() || !options_.reports->state().attached) return false;
  TakeRunStep(std::move(*message->mutable_run_step()), stream);
  return true;
}

absl::Status AttachHandler::TakeWelcome(const internal::v1::Welcome& welcome,
                                        const AttachSinkPtr& stream) {
  SHARDMESH_FAILPOINT("link.welcome");
  SHARDMESH_ASSIGN_OR_RETURN(const absl::Duration interval,
                             rpc::Decode(welcome.heartbeat_interval()));
  if (!rpc::CommonProtocol(welcome.protocol(), welcome.protocol()).has_value()) {
    return WithReason(absl::FailedPreconditionError(StrCat(
                          "the coordinator speaks protocol ", welcome.protocol(), ", this worker ",
                          rpc::kOldestProtocol, " to ", rpc::kNewestProtocol)),
                      Reason::kProtocolMismatch,
                      {{fact::kHave, welcome.protocol()}, {fact::kNeed, rpc::kNewestProtocol}});
  }
  SHARDMESH_RETURN_IF_ERROR(options_.terms->Follow(
      {.number = welcome.term(), .token_key_digest = rpc::TokenKeyDigest(welcome.token_key())},
      stream->peer()));
  SHARDMESH_RETURN_IF_ERROR(options_.store->SetClusterId(welcome.cluster_id()));
  SHARDMESH_RETURN_IF_ERROR(options_.store->SetIdentity(options_.identity));
  SHARDMESH_RETURN_IF_ERROR(options_.terms->Keep());
  options_.links->SetClusterId(welcome.cluster_id());
  if (welcome.has_coordinator_time()) {
    SHARDMESH_RETURN_IF_ERROR(TakeCoordinatorTime(welcome.coordinator_time()));
  }
  digests_.ForgetAll();
  book_ = {};
  attachment_ = {.term = welcome.term(), .token_key = welcome.token_key()};
  options_.reports->Attached(stream, interval);
  if (options_.memory != nullptr) options_.memory->Attached(stream);
  LogInfo("attached", {{"coordinator", options_.coordinator}, {"term", welcome.term()}});
  SendInventory(*options_.store, *stream);
  return absl::OkStatus();
}

absl::Status AttachHandler::TakeCoordinatorTime(const google::protobuf::Timestamp& time) {
  SHARDMESH_ASSIGN_OR_RETURN(const absl::Time now, rpc::Decode(time));
  options_.gate->SetCoordinatorTime(now);
  return absl::OkStatus();
}

absl::Status AttachHandler::TakeVerdict(const internal::v1::InventoryVerdict& verdict) {
  SHARDMESH_FAILPOINT("link.verdict");
  SHARDMESH_RETURN_IF_ERROR(ApplyVerdict(verdict, *options_.store, *options_.clock));
  if (verdict.drop_array_ids_size() > 0) {
    LogInfo("dropping arrays that were released while this worker was away",
            {{"arrays", verdict.drop_array_ids_size()}, {"first", verdict.drop_array_ids(0)}});
  }
  Drop(verdict.drop_array_ids());
  if (verdict.last()) {
    options_.executor->KeepStaged();
    options_.reports->Judged();
  }
  return absl::OkStatus();
}

absl::Status AttachHandler::TakeMembership(const internal::v1::Membership& membership) {
  SHARDMESH_FAILPOINT("link.membership");
  SHARDMESH_ASSIGN_OR_RETURN(std::optional<MembershipView> view, book_.Take(membership));
  if (!view.has_value()) {
    return absl::OkStatus();
  }
  view_ = std::make_shared<const MembershipView>(*std::move(view));
  options_.gate->Serve(attachment_, view_);
  options_.links->SetMembership(*view_);
  options_.reports->MemberAt(view_->epoch);
  return absl::OkStatus();
}

void AttachHandler::TakeRunStep(internal::v1::RunStep step, const AttachSinkPtr& stream) {
  absl::StatusOr<StepOrder> order = Decode(step);
  // This worker's rank in the step's mesh; nullopt if this worker does not know the mesh.
  std::optional<DeviceId> rank;
  if (view_ != nullptr) {
    const std::string mesh_id = order.ok() ? MeshIdOf(*order) : MeshIdOf(step);
    if (const MeshMembers* mesh = view_->Find(mesh_id); mesh != nullptr) {
      rank = mesh->RankOf(options_.identity);
    }
  }
  if (!order.ok()) {
    StepResult refused;
    refused.sequence = step.sequence();
    refused.epoch = step.epoch();
    refused.term = step.term();
    refused.rank = rank.value_or(0);
    refused.outcome = StepOutcome::kFailed;
    refused.status = WithContext(order.status(), StrCat("step ", refused.sequence));
    return stream->Send(Encode(std::move(refused)));
  }
  options_.reports->StepBegins();
  options_.executor->Run(*std::move(order), [stream, rank](StepResult result) {
    result.rank = rank.value_or(result.rank);
    stream->Send(Encode(std::move(result)));
  });
}

absl::Status AttachHandler::TakeEndStep(const internal::v1::EndStep& end) {
  SHARDMESH_FAILPOINT("link.end_step");
  absl::Status ended;
  if (end.commit()) {
    ended = options_.executor->Commit(end.sequence());
    if (absl::IsNotFound(ended)) {
      // The step was aborted when an earlier stream ended. The coordinator's verdict on the
      // inventory has already decided about the step's outputs.
      LogWarning("commit of a step that this worker has left", {{"step", end.sequence()}});
      ended = absl::OkStatus();
    }
  } else {
    const absl::Status error = rpc::Decode(end.error());
    options_.executor->Abort(
        end.sequence(), error.ok() ? absl::AbortedError("the coordinator ended the step") : error);
  }
  return WithContext(ended, StrCat("cannot commit step ", end.sequence()));
}

absl::Status AttachHandler::TakeEndTransfer(const internal::v1::EndTransfer& end) {
  SHARDMESH_FAILPOINT("link.end_transfer");
  options_.filler->EndTransfer(end.transfer_id());
  return WithContext(options_.gate->EndTransfer(end.transfer_id(), end.commit()),
                     StrCat("cannot end transfer ", end.transfer_id()));
}

absl::Status AttachHandler::TakeDetach(const internal::v1::Detach& detach) {
  absl::Status reason = rpc::Decode(detach.reason());
  if (reason.ok()) {
    reason = absl::UnavailableError("it gives no reason");
  }
  reason = WithContext(reason, "the coordinator detached this worker");
  detached_for_good_ = !detach.has_retry_time();
  if (detached_for_good_) {
    return reason;
  }
  SHARDMESH_ASSIGN_OR_RETURN(const absl::Time retry_time, rpc::Decode(detach.retry_time()));
  return WithRetryDelay(std::move(reason),
                        std::max(retry_time - absl::Now(), absl::ZeroDuration()));
}

void AttachHandler::Drop(const google::protobuf::RepeatedPtrField<std::string>& array_ids) {
  SHARDMESH_PASSES("link.drop");
  std::vector<std::string> ids(array_ids.begin(), array_ids.end());
  if (ids.empty()) {
    return;
  }
  options_.executor->Forget(ids);
  const absl::Span<const std::string> dropped = ids;
  options_.store->Drop(dropped, [reports = options_.reports,
                                 ids = std::vector<std::string>(ids)](const absl::Status& status) {
    // If files could not be removed, do not confirm that the arrays are dropped. The verdict at the
    // next attach then orders this worker to drop these arrays again.
    if (status.ok()) reports->ReportDropped(ids);
  });
}

void AttachHandler::TakeSaveOrder(internal::v1::SaveOrder order, const AttachSinkPtr& stream) {
  if (options_.saves == nullptr) {
    internal::v1::AttachRequest request;
    request.mutable_save_answer()->set_order_id(order.order_id());
    rpc::Encode(absl::UnimplementedError("this worker takes part in no save"),
                request.mutable_save_answer()->mutable_error());
    return stream->Send(std::move(request));
  }
  options_.saves->Take(std::move(order), {.answer =
                                              [stream](internal::v1::SaveAnswer answer) {
                                                internal::v1::AttachRequest request;
                                                *request.mutable_save_answer() = std::move(answer);
                                                stream->Send(std::move(request));
                                              },
                                          .progress =
                                              [stream](internal::v1::SaveProgress progress) {
                                                internal::v1::AttachRequest request;
                                                *request.mutable_save_progress() =
                                                    std::move(progress);
                                                stream->Send(std::move(request));
                                              }});
}

void AttachHandler::TakeQuarantineOrder(internal::v1::QuarantineOrder order,
                                        const AttachSinkPtr& stream) {
  orders_.Push([this, stream, order = std::move(order)] {
    internal::v1::AttachRequest request;
    *request.mutable_quarantine_answer() =
        CarryOut(order, options_.identity, *options_.store,
                 [this](const std::string& id) { options_.reports->ReportRestored(id); });
    stream->Send(std::move(request));
  });
}

void AttachHandler::TakeFillTiles(internal::v1::FillTiles order, const AttachSinkPtr& stream) {
  SHARDMESH_PASSES("link.fill_tiles");
  std::variant<FillOrder, FillFailure> decoded = Decode(std::move(order));
  if (const auto* const failure = std::get_if<FillFailure>(&decoded); failure != nullptr) {
    options_.filler->EndTransfer(failure->transfer_id);
    return stream->Send(Encode(*failure));
  }
  options_.filler->Fill(std::get<FillOrder>(std::move(decoded)),
                        [stream](const FillFailure& failure) { stream->Send(Encode(failure)); });
}

void AttachHandler::TakeCheckFiles(const internal::v1::CheckFiles& order,
                                   const AttachSinkPtr& stream) {
  const auto answer = [stream, order_id = order.order_id()](const absl::Status& status,
                                                            size_t file) {
    stream->Send(EncodeFilesChecked(order_id, status, file));
  };
  size_t file = 0;
  auto files = Decode(order.files(), /*needs_time=*/true, &file);
  if (!files.ok()) {
    return answer(files.status(), file);
  }
  options_.filler->Check(*std::move(files), answer);
}

}  // namespace shardmesh::worker
