// Encodes the worker's messages, and decodes the coordinator's orders to run steps.
#include "worker/service/attach_message_codec.h"

#include <cstddef>
#include <utility>

#include "process/version.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/flight_codec.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/time_codec.h"
#include "rpc/codec/worker_error_codec.h"
#include "rpc/contract.h"
#include "status/status_macros.h"

namespace shardmesh::worker {
namespace {

internal::v1::StepReport::Outcome EncodeOutcome(StepOutcome outcome) {
  switch (outcome) {
    case StepOutcome::kDone:
      return internal::v1::StepReport::OUTCOME_DONE;
    case StepOutcome::kFailed:
      return internal::v1::StepReport::OUTCOME_FAILED;
    case StepOutcome::kNeedPlan:
      return internal::v1::StepReport::OUTCOME_NEED_PLAN;
  }
  return internal::v1::StepReport::OUTCOME_FAILED;
}

void Encode(const MeasuredKernels& from, internal::v1::WorkerCapacity* to) {
  to->set_f32_flops_per_second(from.f32_flops_per_second);
  // The kinds have the order of ProductKind and then of KernelCost, from 1 on.
  const auto add = [to](size_t kind, double seconds, int64_t rows) {
    if (seconds == 0) return;
    internal::v1::KernelCost* const cost = to->add_kernel_costs();
    cost->set_kind(static_cast<internal::v1::KernelCost::Kind>(kind + 1));
    cost->set_seconds(seconds);
    cost->set_rows(static_cast<int32_t>(rows));
  };
  for (size_t kind = 0; kind < kProductKinds; ++kind) {
    for (size_t i = 0; i < kProductRows.size(); ++i) {
      add(kind, from.costs.products[kind][i], kProductRows[i]);
    }
  }
  for (size_t i = 0; i < kKernelCosts; ++i) add(kProductKinds + i, from.costs.seconds[i], 0);
}

}  // namespace

internal::v1::AttachRequest Encode(const WorkerHello& from) {
  internal::v1::AttachRequest request;
  internal::v1::Hello* hello = request.mutable_hello();
  hello->set_cluster_id(from.cluster_id);
  hello->set_identity(from.self.identity);
  hello->set_data_identity(from.data_identity);
  hello->set_incarnation(from.self.incarnation);
  hello->mutable_build()->set_version(std::string(BuildVersion()));
  hello->mutable_protocol()->set_min(rpc::kOldestProtocol);
  hello->mutable_protocol()->set_max(rpc::kNewestProtocol);
  hello->add_features(std::string(rpc::kFillFeature));
  hello->add_features(std::string(rpc::kFillConversionsFeature));
  hello->add_features(std::string(rpc::kDigestFeature));
  hello->add_features(std::string(rpc::kClockAnswersFeature));
  hello->add_features(std::string(rpc::kBatchesFeature));
  hello->add_features(std::string(rpc::kTensorOpsFeature));
  hello->add_features(std::string(rpc::kShortProductsFeature));
  hello->add_features(std::string(rpc::kFusedComputeFeature));
  if (from.overlaps_exchanges) hello->add_features(std::string(rpc::kOverlapFeature));
  if (from.overlaps_parts) hello->add_features(std::string(rpc::kOverlapPartsFeature));
  for (const std::string& endpoint : from.endpoints) {
    hello->add_endpoints()->set_address(endpoint);
  }
  if (from.exchange_port.has_value()) hello->set_exchange_port(*from.exchange_port);
  hello->set_nonce(from.nonce);
  hello->mutable_capacity()->set_memory_bytes(from.memory_bytes);
  hello->mutable_capacity()->set_threads(from.threads);
  hello->mutable_capacity()->set_durable(from.durable);
  hello->mutable_capacity()->set_cache_bytes(from.cache_bytes);
  Encode(from.kernels, hello->mutable_capacity());
  hello->set_pid(from.pid);
  hello->set_boot_id(from.self.boot_id);
  hello->set_term(from.term);
  return request;
}

internal::v1::AttachRequest Encode(const TileReport& from) {
  internal::v1::AttachRequest request;
  internal::v1::TileStaged* staged = request.mutable_tile_staged();
  staged->set_transfer_id(from.transfer_id);
  staged->set_array_id(from.array_id);
  staged->set_rank(static_cast<int32_t>(from.rank));
  staged->set_crc32c(from.crc32c);
  staged->set_size_bytes(from.size_bytes);
  staged->set_durability(from.durable ? v1::DURABILITY_DISK : v1::DURABILITY_MEMORY);
  rpc::Encode(from.transfer_time, staged->mutable_transfer_time());
  staged->set_term(from.term);
  return request;
}

internal::v1::AttachRequest Encode(StepResult from) {
  internal::v1::AttachRequest request;
  internal::v1::StepReport* report = request.mutable_step_report();
  report->set_sequence(from.sequence);
  report->set_epoch(from.epoch);
  report->set_term(from.term);
  report->set_rank(static_cast<int32_t>(from.rank));
  report->set_outcome(EncodeOutcome(from.outcome));
  for (StepResult::Output& output : from.outputs) {
    internal::v1::StagedOutput* added = report->add_outputs();
    added->set_array_id(output.array_id);
    added->set_crc32c(output.crc32c);
    added->set_size_bytes(output.size_bytes);
    added->set_data(std::move(output.data));
  }
  if (from.outcome == StepOutcome::kFailed) {
    rpc::Encode(from.status, report->mutable_error());
    report->set_blamed_identity(from.blamed_identity);
  }
  rpc::Encode(from.kernel_time, report->mutable_kernel_time());
  rpc::Encode(from.collective_time, report->mutable_collective_time());
  report->set_sent_bytes(from.sent_bytes);
  rpc::Encode(from.queue_time, report->mutable_queue_time());
  if (from.trace.has_value()) rpc::Encode(*from.trace, report->mutable_trace());
  return request;
}

internal::v1::HeldTile Encode(const ShardStore::HeldTile& from) {
  internal::v1::HeldTile to;
  const TileDescription& description = from.tile->description();
  to.set_array_id(description.array_id);
  to.set_array_descriptor(description.array_descriptor);
  rpc::Encode(description.tile, to.mutable_tile());
  if (from.tile->is_state()) {
    to.set_state_step(from.tile->state_step());
  } else {
    to.set_crc32c(from.tile->crc32c());
  }
  to.set_durability(from.tile->durable() ? v1::DURABILITY_DISK : v1::DURABILITY_MEMORY);
  to.set_committed(from.state == TileState::kCommitted);
  if (!to.committed()) {
    to.set_transfer_id(description.transfer_id);
    to.set_of_step(description.transfer_id.starts_with(kStepTransferPrefix));
  }
  return to;
}

void EncodeRecords(const std::vector<FlightRecord>& from, internal::v1::Heartbeat* to) {
  std::vector<v1::FlightRecord> encoded;
  int64_t size_bytes = 0;
  for (auto record = from.rbegin(); record != from.rend(); ++record) {
    v1::FlightRecord& added = encoded.emplace_back();
    rpc::Encode(*record, &added);
    size_bytes += static_cast<int64_t>(added.ByteSizeLong());
    if (size_bytes > kMaxHeartbeatRecordBytes) {
      encoded.pop_back();
      break;
    }
  }
  for (auto record = encoded.rbegin(); record != encoded.rend(); ++record) {
    *to->add_records() = std::move(*record);
  }
}

v1::QuarantinedArray Encode(const QuarantinedArray& from, const std::string& identity) {
  v1::QuarantinedArray to;
  to.set_identity(identity);
  if (from.tiles.empty() ||
      !to.mutable_array()->ParseFromString(from.tiles.front().description.array_descriptor)) {
    to.mutable_array()->Clear();
  }
  to.mutable_array()->set_array_id(from.array_id);
  for (const QuarantinedTile& tile : from.tiles) {
    v1::QuarantinedTile* added = to.add_tiles();
    rpc::Encode(tile.description.tile, added->mutable_tile());
    added->set_crc32c(tile.crc32c);
    added->set_size_bytes(tile.size_bytes);
  }
  to.set_reason(from.reason);
  rpc::Encode(from.since, to.mutable_quarantine_time());
  to.set_committed(from.committed);
  to.set_durability(from.on_disk ? v1::DURABILITY_DISK : v1::DURABILITY_MEMORY);
  to.set_array_lives(from.array_lives);
  return to;
}

absl::StatusOr<StepOrder> Decode(internal::v1::RunStep& from) {
  StepOrder order;
  order.sequence = from.sequence();
  order.epoch = from.epoch();
  order.term = from.term();
  order.plan_hash = from.plan_hash();
  order.plan_bytes = std::move(*from.mutable_plan());
  order.return_literals = from.return_literals();
  order.max_trace_spans = from.max_trace_spans();
  if (from.has_timeout()) {
    SHARDMESH_ASSIGN_OR_RETURN(order.timeout, rpc::Decode(from.timeout()));
  }
  for (internal::v1::StepOperand& operand : *from.mutable_operands()) {
    StepOperand& added = order.operands.emplace_back();
    added.donate = operand.donate();
    if (operand.has_literal()) {
      SHARDMESH_ASSIGN_OR_RETURN(added.value, rpc::Decode(std::move(*operand.mutable_literal())));
    } else {
      added.value = operand.array_id();
    }
  }
  for (const std::string& output : from.outputs()) {
    SHARDMESH_ASSIGN_OR_RETURN(ArrayDescriptor array, rpc::ParseArrayDescriptorBytes(output));
    order.outputs.push_back({.array = std::move(array), .encoded = {}});
  }
  for (size_t i = 0; i < order.outputs.size(); ++i) {
    order.outputs[i].encoded = std::move(*from.mutable_outputs(static_cast<int>(i)));
  }
  return order;
}

std::string MeshIdOf(const StepOrder& order) {
  return order.outputs.empty() ? "" : order.outputs[0].array.mesh_id;
}

std::string MeshIdOf(const internal::v1::RunStep& step) {
  v1::ArrayDescriptor first;
  return step.outputs_size() > 0 && first.ParseFromString(step.outputs(0)) ? first.mesh_id() : "";
}

}  // namespace shardmesh::worker
