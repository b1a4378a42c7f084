// Operations as messages.
#include "server/codec/operation_codec.h"

#include <optional>

#include "absl/time/time.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"

namespace shardmesh::server {
namespace {

v1::OperationKind EncodeKind(OperationKind kind) {
  switch (kind) {
    case OperationKind::kPut:
      return v1::OPERATION_KIND_PUT;
    case OperationKind::kLoad:
      return v1::OPERATION_KIND_LOAD;
    case OperationKind::kSave:
      return v1::OPERATION_KIND_SAVE;
    case OperationKind::kReshard:
      return v1::OPERATION_KIND_RESHARD;
    case OperationKind::kRepair:
      return v1::OPERATION_KIND_REPAIR;
    case OperationKind::kResize:
      return v1::OPERATION_KIND_RESIZE;
    case OperationKind::kReplicate:
      return v1::OPERATION_KIND_REPLICATE;
    case OperationKind::kGet:
      return v1::OPERATION_KIND_GET;
  }
  return v1::OPERATION_KIND_UNSPECIFIED;
}

}  // namespace

v1::OperationState EncodeState(const OperationProgress& progress) {
  if (!progress.ended) return v1::OPERATION_STATE_RUNNING;
  if (progress.status.ok()) return v1::OPERATION_STATE_DONE;
  return absl::IsCancelled(progress.status) ? v1::OPERATION_STATE_CANCELLED
                                            : v1::OPERATION_STATE_FAILED;
}

void Encode(const OperationProgress& from, v1::Operation* to) {
  to->set_operation_id(from.id);
  to->set_number(from.number);
  to->set_kind(EncodeKind(from.kind));
  to->set_session_number(from.session_number);
  to->set_description(from.description);
  to->set_done(from.done);
  to->set_total(from.total);
  to->set_done_bytes(from.done_bytes);
  to->set_total_bytes(from.total_bytes);
  to->set_bytes_per_second(from.bytes_per_second);
  if (const std::optional<absl::Duration> left = from.TimeLeft(); left.has_value()) {
    rpc::Encode(*left, to->mutable_time_left());
  }
  rpc::Encode(from.started, to->mutable_start_time());
  to->set_state(EncodeState(from));
  if (from.ended) rpc::Encode(from.finished, to->mutable_end_time());
  if (!from.status.ok()) rpc::Encode(from.status, to->mutable_error());
}

}  // namespace shardmesh::server
