// Encodes statuses. Cuts long lists so that each message stays below its size limit.
#include "server/codec/status_codec.h"

#include <string>
#include <utility>
#include <vector>

#include "rpc/codec/flight_codec.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"

namespace shardmesh::server {
namespace {

constexpr int kMaxCulprits = 256;  // of one finding

v1::FindingKind KindOf(FindingKind kind) {
  switch (kind) {
    case FindingKind::kStuck:
      return v1::FINDING_KIND_STUCK;
    case FindingKind::kDeadlock:
      return v1::FINDING_KIND_DEADLOCK;
    case FindingKind::kCutOff:
      return v1::FINDING_KIND_CUT_OFF;
    case FindingKind::kFailed:
      return v1::FINDING_KIND_FAILED;
    case FindingKind::kWorker:
      return v1::FINDING_KIND_WORKER;
    case FindingKind::kDegraded:
      return v1::FINDING_KIND_DEGRADED;
    case FindingKind::kQuarantined:
      return v1::FINDING_KIND_QUARANTINED;
    case FindingKind::kUnreadable:
      return v1::FINDING_KIND_UNREADABLE;
  }
  return v1::FINDING_KIND_UNSPECIFIED;
}

}  // namespace

v1::WorkerState EncodeState(const WorkerStatus& worker, bool is_ready) {
  switch (worker.state) {
    case WorkerState::kAttached:
      return is_ready ? v1::WORKER_STATE_READY : v1::WORKER_STATE_JOINING;
    case WorkerState::kDraining:
      return v1::WORKER_STATE_DRAINING;
    case WorkerState::kLost:
      return v1::WORKER_STATE_LOST;
  }
  return v1::WORKER_STATE_UNSPECIFIED;
}

void Encode(const WorkerStatus& from, bool is_ready, const AttachFailures::Failures& failed,
            absl::Time now, v1::WorkerStatus* to) {
  to->set_identity(from.info.identity);
  to->set_incarnation(from.info.incarnation);
  to->set_state(EncodeState(from, is_ready));
  for (const std::string& address : from.info.endpoints) {
    to->add_endpoints()->set_address(address);
  }
  if (const auto port = from.info.exchange_port; port.has_value()) to->set_exchange_port(*port);
  to->set_pid(from.info.pid);
  to->set_capacity_bytes(from.info.capacity_bytes);
  to->set_used_bytes(from.used_bytes());
  to->set_quarantined_arrays(from.quarantine().arrays);
  to->set_quarantined_bytes(from.quarantine().size_bytes);
  rpc::Encode(now - from.last_heartbeat(), to->mutable_heartbeat_age());
  to->set_lost_reason(from.lost_because);
  if (from.state == WorkerState::kLost) rpc::Encode(now - from.lost, to->mutable_lost_age());
  to->set_losses(from.losses);
  if (failed.count > 0) {
    to->set_failed_attaches(failed.count);
    to->set_attach_error(rpc::WireMessage(failed.last));
    rpc::Encode(now - failed.last_time, to->mutable_attach_error_age());
  }
  to->mutable_build()->set_version(from.info.build_version);
}

void Encode(const Finding& from, v1::Finding* to) {
  to->set_kind(KindOf(from.kind));
  to->set_summary(from.summary);
  if (from.sequence != 0) to->set_sequence(from.sequence);
  to->set_op(from.op);
  to->set_mesh_id(from.mesh_id);
  if (from.instruction.has_value()) {
    to->set_instruction(static_cast<uint32_t>(*from.instruction));
  }
  to->set_label(from.label);
  for (const int64_t rank : from.waiting) {
    to->add_waiting_ranks(static_cast<int32_t>(rank));
  }
  for (const Culprit& culprit : from.culprits) {
    if (to->culprits_size() == kMaxCulprits) break;
    v1::Culprit* added = to->add_culprits();
    if (culprit.rank >= 0) added->set_rank(static_cast<int32_t>(culprit.rank));
    added->set_identity(culprit.identity);
    added->set_reason(culprit.reason);
  }
  rpc::Encode(from.since, to->mutable_time());
}

void EncodeLast(const WorkerFlight& flight, int64_t max_bytes, v1::WorkerFlight* to) {
  std::vector<v1::FlightRecord> encoded;
  for (auto record = flight.records.rbegin(); record != flight.records.rend(); ++record) {
    v1::FlightRecord& added = encoded.emplace_back();
    rpc::Encode(*record, &added);
    max_bytes -= static_cast<int64_t>(added.ByteSizeLong());
    if (max_bytes < 0) {
      encoded.pop_back();
      break;
    }
  }
  to->set_omitted_records(encoded.empty() ? flight.omitted : encoded.back().number());
  for (auto record = encoded.rbegin(); record != encoded.rend(); ++record) {
    *to->add_records() = std::move(*record);
  }
}

void EncodeRepairs(const RepairTotals& from, v1::GetStatusResponse* to) {
  if (from.operations == 0 && from.tiles == 0 && from.failed_tiles == 0) return;
  v1::RepairStatus* const repairs = to->mutable_repairs();
  repairs->set_operations(from.operations);
  repairs->set_done_bytes(from.done_bytes);
  repairs->set_total_bytes(from.total_bytes);
  repairs->set_bytes_per_second(from.bytes_per_second);
  if (from.time_left.has_value()) rpc::Encode(*from.time_left, repairs->mutable_time_left());
  repairs->set_tiles(from.tiles);
  repairs->set_failed_tiles(from.failed_tiles);
}

void EncodeReplicas(const ReplicaTotals& from, v1::GetStatusResponse* to) {
  if (from.waiting == 0 && from.failed == 0) return;
  to->mutable_replicas()->set_waiting(from.waiting);
  to->mutable_replicas()->set_failed(from.failed);
}

}  // namespace shardmesh::server
