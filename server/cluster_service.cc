// Version, status, flight records, links and the diagnosis on the wire.
#include "server/cluster_service.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rpc/field_check.h"
#include "rpc/flight_codec.h"
#include "rpc/link_codec.h"
#include "rpc/spec_codec.h"
#include "rpc/status.h"
#include "rpc/time_codec.h"
#include "server/quarantine_calls.h"
#include "sharding/reason.h"
#include "sharding/status_macros.h"
#include "sharding/str_cat.h"
#include "shardmesh/v1/cluster_service.grpc.pb.h"

namespace shardmesh::server {
namespace {

constexpr int kProtocolVersion = 1;
// Records of one worker in an answer, and bytes of those of all workers together.
constexpr size_t kDefaultFlightRecords = 64;
constexpr int32_t kMaxFlightRecords = static_cast<int32_t>(FlightLog::kMaxRecords);
constexpr int64_t kFlightBytes = int64_t{2} << 20;

v1::WorkerState StateOf(const WorkerStatus& worker, bool is_ready) {
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

class ClusterService final : public v1::ClusterService::CallbackService {
 public:
  ClusterService(const ArrayContext& context, ClusterServiceOptions options)
      : context_(context), options_(std::move(options)) {}

  grpc::ServerUnaryReactor* GetVersion(grpc::CallbackServerContext* context,
                                       const v1::GetVersionRequest*,
                                       v1::GetVersionResponse* response) override {
    response->mutable_build()->set_version(options_.build_version);
    response->mutable_protocol()->set_min(kProtocolVersion);
    response->mutable_protocol()->set_max(kProtocolVersion);
    response->set_cluster_id(options_.cluster_id);
    return Answer(context);
  }

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest*,
                                      v1::GetStatusResponse* response) override {
    const std::shared_ptr<const MembershipView> view = context_.membership->view();
    const ClusterState& state = context_.publisher->state();
    response->set_cluster_id(options_.cluster_id);
    response->set_epoch(view->epoch);
    response->set_term(context_.term);
    response->set_revision(context_.publisher->settled_revision());
    response->set_state(options_.is_draining()             ? v1::COORDINATOR_STATE_DRAINING
                        : options_.recovery->awaited() > 0 ? v1::COORDINATOR_STATE_RECOVERING
                                                           : v1::COORDINATOR_STATE_SERVING);
    response->set_pid(getpid());
    for (const auto& [name, definition] : state.all(DefinitionKind::kMesh)) {
      Describe(*definition, *view, response->add_meshes());
    }
    for (const auto& [identity, worker] : view->workers) {
      Describe(worker, response->add_workers());
    }
    const ArrayCounts arrays = context_.catalogue->CountArrays();
    response->set_arrays(arrays.total());
    response->set_degraded_arrays(arrays.degraded);
    response->set_sessions(context_.sessions->size());
    return Answer(context);
  }

  grpc::ServerUnaryReactor* ListFlightRecords(grpc::CallbackServerContext* context,
                                              const v1::ListFlightRecordsRequest* request,
                                              v1::ListFlightRecordsResponse* response) override {
    return Answer(context, ListFlights(*request, response));
  }

  grpc::ServerUnaryReactor* ListLinks(grpc::CallbackServerContext* context,
                                      const v1::ListLinksRequest* request,
                                      v1::ListLinksResponse* response) override {
    return Answer(context, ListLinks(*request, response));
  }

  grpc::ServerUnaryReactor* ListQuarantine(grpc::CallbackServerContext* context,
                                           const v1::ListQuarantineRequest* request,
                                           v1::ListQuarantineResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    server::ListQuarantine(context_, options_.hub, request, response, Finishing(reactor));
    return reactor;
  }

  grpc::ServerUnaryReactor* RestoreQuarantined(grpc::CallbackServerContext* context,
                                               const v1::RestoreQuarantinedRequest* request,
                                               v1::RestoreQuarantinedResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    server::RestoreQuarantined(context_, options_.hub, request, response, Finishing(reactor));
    return reactor;
  }

  grpc::ServerUnaryReactor* DropQuarantined(grpc::CallbackServerContext* context,
                                            const v1::DropQuarantinedRequest* request,
                                            v1::DropQuarantinedResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    server::DropQuarantined(context_, options_.hub, request, response, Finishing(reactor));
    return reactor;
  }

  grpc::ServerUnaryReactor* Diagnose(grpc::CallbackServerContext* context,
                                     const v1::DiagnoseRequest* request,
                                     v1::DiagnoseResponse* response) override {
    if (const absl::Status valid = CheckSequence(request->sequence()); !valid.ok()) {
      return Answer(context, valid);
    }
    const StepWatch::Verdict verdict =
        options_.step_watch->Judge(request->sequence(), options_.live(), DegradedArrays());
    response->set_healthy(verdict.findings.empty());
    response->set_verdict(verdict.sentence);
    for (const Finding& finding : verdict.findings) {
      Encode(finding, response->add_findings());
    }
    return Answer(context);
  }

 private:
  // While workers are still to bring their inventories, arrays lack tiles only because of that.
  int64_t DegradedArrays() const {
    return options_.recovery->awaited() > 0 ? 0 : context_.catalogue->CountArrays().degraded;
  }

  static grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                          const absl::Status& status = absl::OkStatus()) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(rpc::ToGrpc(status));
    return reactor;
  }

  static QuarantineDone Finishing(grpc::ServerUnaryReactor* reactor) {
    return [reactor](const absl::Status& status) { reactor->Finish(rpc::ToGrpc(status)); };
  }

  static absl::Status CheckSequence(int64_t sequence) {
    if (sequence >= 0) return absl::OkStatus();
    return rpc::BadField("sequence", StrCat("is ", sequence,
                                            "; steps are counted from 1, and 0 "
                                            "means all"));
  }

  absl::Status ListFlights(const v1::ListFlightRecordsRequest& request,
                           v1::ListFlightRecordsResponse* response) const {
    SHARDMESH_RETURN_IF_ERROR(CheckSequence(request.sequence()));
    if (request.max_records() < 0 || request.max_records() > kMaxFlightRecords) {
      return rpc::BadField("max_records", StrCat("is ", request.max_records(),
                                                 "; it must be between 0 and ", kMaxFlightRecords));
    }
    const size_t max_records = request.max_records() == 0
                                   ? kDefaultFlightRecords
                                   : static_cast<size_t>(request.max_records());
    const std::vector<std::string> identities = request.identity().empty()
                                                    ? options_.flight_log->Identities()
                                                    : std::vector{request.identity()};
    const std::shared_ptr<const MembershipView> view = context_.membership->view();
    for (const std::string& identity : identities) {
      const std::optional<WorkerFlight> flight =
          options_.flight_log->Find(identity, request.sequence(), max_records);
      if (!flight.has_value()) {
        if (request.identity().empty()) continue;  // forgotten this moment
        return WithReason(absl::NotFoundError(StrCat("nothing is known of a worker \"", identity,
                                                     "\"; `shardmesh status` lists the workers")),
                          Reason::kNotFound);
      }
      v1::WorkerFlight* to = response->add_workers();
      to->set_identity(identity);
      to->set_incarnation(flight->incarnation);
      if (const WorkerStatus* worker = view->FindWorker(identity); worker != nullptr) {
        to->set_state(StateOf(*worker, context_.hub->IsReady(identity)));
        rpc::Encode(context_.clock->Now() - worker->last_heartbeat, to->mutable_heartbeat_age());
      }
      if (flight->progress.has_value()) rpc::Encode(*flight->progress, to->mutable_progress());
      EncodeLast(*flight, kFlightBytes / std::ssize(identities), to);
    }
    return absl::OkStatus();
  }

  // The last records that have room.
  static void EncodeLast(const WorkerFlight& flight, int64_t max_bytes, v1::WorkerFlight* to) {
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

  absl::Status ListLinks(const v1::ListLinksRequest& request,
                         v1::ListLinksResponse* response) const {
    const std::shared_ptr<const MembershipView> view = context_.membership->view();
    std::vector<std::string> identities;
    if (request.mesh_id().empty()) {
      for (const auto& [identity, worker] : view->workers) {
        if (view->IsAlive(identity)) identities.push_back(identity);
      }
      if (identities.empty()) {
        return WithReason(absl::FailedPreconditionError(
                              "no worker is attached, hence there are no links; start workers"),
                          Reason::kMeshIncomplete);
      }
    } else {
      SHARDMESH_RETURN_IF_ERROR(view->CheckComplete(request.mesh_id()));
      identities = view->FindMesh(request.mesh_id())->identities;
    }
    for (size_t i = 0; i < identities.size(); ++i) {
      v1::LinkedWorker* const worker = response->add_workers();
      worker->set_identity(identities[i]);
      if (!request.mesh_id().empty()) worker->set_rank(static_cast<int32_t>(i));
    }
    for (const WorkerLink& link : context_.links->Between(*view, identities)) {
      v1::WorkerLink* const to = response->add_links();
      to->set_identity(link.identity);
      rpc::Encode(link.measured, to->mutable_measured());
    }
    return absl::OkStatus();
  }

  static v1::FindingKind KindOf(FindingKind kind) {
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
    }
    return v1::FINDING_KIND_UNSPECIFIED;
  }

  static void Encode(const Finding& from, v1::Finding* to) {
    to->set_kind(KindOf(from.kind));
    to->set_summary(from.summary);
    to->set_sequence(from.sequence);
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
      v1::Culprit* added = to->add_culprits();
      added->set_rank(static_cast<int32_t>(culprit.rank));
      added->set_identity(culprit.identity);
      added->set_reason(culprit.reason);
    }
    rpc::Encode(from.since, to->mutable_time());
  }

  void Describe(const Definition& definition, const MembershipView& view,
                v1::MeshStatus* to) const {
    to->set_mesh_id(definition.name);
    to->set_revision(definition.revision);
    const Mesh& mesh = std::get<rpc::MeshDefinition>(definition.value).mesh;
    rpc::Encode(mesh, to->mutable_mesh());
    const MeshRanks* ranks = view.FindMesh(definition.name);
    to->set_rank_count(mesh.size());
    const int64_t given = ranks == nullptr ? 0 : std::ssize(ranks->identities);
    for (int64_t rank = 0; rank < given; ++rank) {
      v1::RankStatus* status = to->add_ranks();
      status->set_rank(static_cast<int32_t>(rank));
      status->set_identity(ranks->identities[static_cast<size_t>(rank)]);
    }
    to->set_complete(context_.hub->CheckReady(definition.name).ok());
  }

  void Describe(const WorkerStatus& worker, v1::WorkerStatus* to) const {
    to->set_identity(worker.info.identity);
    to->set_incarnation(worker.info.incarnation);
    to->set_state(StateOf(worker, context_.hub->IsReady(worker.info.identity)));
    for (const std::string& address : worker.info.endpoints) {
      to->add_endpoints()->set_address(address);
    }
    to->set_exchange_port(worker.info.exchange_port);
    to->set_pid(worker.info.pid);
    to->set_capacity_bytes(worker.info.capacity_bytes);
    to->set_used_bytes(worker.used_bytes);
    to->set_quarantined_arrays(worker.quarantine.arrays);
    to->set_quarantined_bytes(worker.quarantine.size_bytes);
    rpc::Encode(context_.clock->Now() - worker.last_heartbeat, to->mutable_heartbeat_age());
    to->set_lost_reason(worker.lost_because);
    const absl::Time now = context_.clock->Now();
    if (worker.state == WorkerState::kLost) rpc::Encode(now - worker.lost, to->mutable_lost_age());
    to->set_losses(worker.losses);
    if (const AttachHub::FailedAttaches failed =
            context_.hub->FailedAttachesOf(worker.info.identity);
        failed.count > 0) {
      to->set_failed_attaches(failed.count);
      to->set_attach_error(rpc::ToGrpc(failed.last).error_message());
      rpc::Encode(now - failed.last_time, to->mutable_attach_error_age());
    }
    to->mutable_build()->set_version(worker.info.build_version);
  }

  const ArrayContext context_;
  const ClusterServiceOptions options_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeClusterService(const ArrayContext& context,
                                                  ClusterServiceOptions options) {
  return std::make_unique<ClusterService>(context, std::move(options));
}

}  // namespace shardmesh::server
