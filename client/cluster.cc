// ClusterClient: decodes the coordinator's reports on the cluster, and calls operations.
#include "client/cluster.h"

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/client_core.h"
#include "client/remote/coordinator_connection.h"
#include "client/remote/operation_calls.h"
#include "client/remote/wire_enums.h"
#include "process/steady_deadline.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/flight_codec.h"
#include "rpc/codec/time_codec.h"
#include "status/reason.h"
#include "status/status_macros.h"

namespace shardmesh::client {
namespace {

BuildVersion DecodeBuild(const v1::BuildVersion& from) { return {from.version(), from.revision()}; }

absl::StatusOr<WorkerStatus> DecodeWorker(const v1::WorkerStatus& from) {
  WorkerStatus worker;
  worker.identity = from.identity();
  worker.incarnation = from.incarnation();
  worker.state = StateOf(from.state());
  for (const v1::Endpoint& endpoint : from.endpoints()) {
    worker.addresses.push_back(endpoint.address());
  }
  if (from.has_exchange_port()) worker.exchange_port = from.exchange_port();
  worker.pid = from.pid();
  worker.capacity_bytes = from.capacity_bytes();
  worker.used_bytes = from.used_bytes();
  worker.quarantined_arrays = from.quarantined_arrays();
  worker.quarantined_bytes = from.quarantined_bytes();
  worker.cached_bytes = from.cached_bytes();
  SHARDMESH_ASSIGN_OR_RETURN(worker.heartbeat_age, DecodeAnswer(from.heartbeat_age()));
  worker.lost_reason = from.lost_reason();
  SHARDMESH_ASSIGN_OR_RETURN(worker.lost_age, DecodeAnswer(from.lost_age()));
  worker.losses = from.losses();
  worker.failed_attaches = from.failed_attaches();
  worker.attach_error = from.attach_error();
  SHARDMESH_ASSIGN_OR_RETURN(worker.attach_error_age, DecodeAnswer(from.attach_error_age()));
  worker.build = DecodeBuild(from.build());
  return worker;
}

absl::StatusOr<QuarantinedArray> DecodeQuarantined(const v1::QuarantinedArray& from) {
  QuarantinedArray array;
  array.identity = from.identity();
  array.array_id = from.array().array_id();
  if (const auto descriptor = rpc::Decode(from.array()); descriptor.ok()) {
    array.mesh_id = descriptor->mesh_id;
    array.dtype = DtypeName(descriptor->dtype);
    array.shape = descriptor->shape;
  }
  for (const v1::QuarantinedTile& tile : from.tiles()) array.size_bytes += tile.size_bytes();
  array.reason = from.reason();
  SHARDMESH_ASSIGN_OR_RETURN(array.since, DecodeAnswer(from.quarantine_time()));
  array.committed = from.committed();
  array.on_disk = from.durability() == v1::DURABILITY_DISK;
  array.array_lives = from.array_lives();
  return array;
}

// Decodes how long an array is held without a name; InfiniteDuration if the field is unset.
absl::StatusOr<absl::Duration> HeldFor(bool is_said, const google::protobuf::Duration& from) {
  if (!is_said) return absl::InfiniteDuration();
  return DecodeAnswer(from);
}

absl::StatusOr<UnnamedArray> DecodeUnnamed(const v1::UnnamedArray& from) {
  UnnamedArray array;
  SHARDMESH_ASSIGN_OR_RETURN(const ArrayDescriptor descriptor, DecodeAnswer(from.array()));
  array.array_id = descriptor.array_id;
  array.mesh_id = descriptor.mesh_id;
  array.dtype = DtypeName(descriptor.dtype);
  array.shape = descriptor.shape;
  array.size_bytes = descriptor.SizeBytes().value_or(0);
  array.on_disk = from.durability() == v1::DURABILITY_DISK;
  array.missing_ranks.assign(from.missing_ranks().begin(), from.missing_ranks().end());
  SHARDMESH_ASSIGN_OR_RETURN(array.held_for, HeldFor(from.has_held_for(), from.held_for()));
  return array;
}

UnreachedWorker DecodeUnreached(const v1::UnreachedWorker& from) {
  return {
      .identity = from.identity(), .reason = from.reason(), .expected_back = from.expected_back()};
}

absl::StatusOr<MeshStatus> DecodeMesh(const v1::MeshStatus& from) {
  MeshStatus mesh;
  mesh.mesh_id = from.mesh_id();
  mesh.revision = from.revision();
  SHARDMESH_ASSIGN_OR_RETURN(mesh.mesh, DecodeAnswer(from.mesh()));
  for (const v1::RankStatus& rank : from.ranks()) {
    mesh.workers.push_back(rank.identity());
  }
  mesh.complete = from.complete();
  return mesh;
}

v1::ClusterSubject Encode(ClusterSubject subject) {
  switch (subject) {
    case ClusterSubject::kWorkers:
      return v1::CLUSTER_SUBJECT_WORKERS;
    case ClusterSubject::kArrays:
      return v1::CLUSTER_SUBJECT_ARRAYS;
    case ClusterSubject::kNames:
      return v1::CLUSTER_SUBJECT_NAMES;
  }
  return v1::CLUSTER_SUBJECT_UNSPECIFIED;
}

WorkerChange::Kind KindOf(v1::WorkerChangeKind kind) {
  switch (kind) {
    case v1::WORKER_CHANGE_KIND_ATTACHED:
      return WorkerChange::Kind::kAttached;
    case v1::WORKER_CHANGE_KIND_LOST:
      return WorkerChange::Kind::kLost;
    case v1::WORKER_CHANGE_KIND_DRAINING:
      return WorkerChange::Kind::kDraining;
    case v1::WORKER_CHANGE_KIND_RESUMED:
      return WorkerChange::Kind::kResumed;
    case v1::WORKER_CHANGE_KIND_FORGOTTEN:
      return WorkerChange::Kind::kForgotten;
    default:
      return WorkerChange::Kind::kUnknown;
  }
}

// Decodes an event of a watch. Returns nullopt for an event or a kind of change that this build
// does not know, because the coordinator is newer.
absl::StatusOr<std::optional<ClusterChange>> DecodeChange(const v1::WatchClusterResponse& from) {
  ClusterChange change;
  if (from.has_time()) {
    SHARDMESH_ASSIGN_OR_RETURN(change.time, DecodeAnswer(from.time()));
  }
  switch (from.event_case()) {
    case v1::WatchClusterResponse::kStarted:
      change.event = WatchStarted{.term = from.started().term(),
                                  .epoch = from.started().epoch(),
                                  .revision = from.started().revision()};
      break;
    case v1::WatchClusterResponse::kWorker:
      change.event = WorkerChange{.kind = KindOf(from.worker().kind()),
                                  .identity = from.worker().identity(),
                                  .incarnation = from.worker().incarnation(),
                                  .epoch = from.worker().epoch(),
                                  .reason = from.worker().reason()};
      break;
    case v1::WatchClusterResponse::kArray:
      if (from.array().kind() != v1::ARRAY_CHANGE_KIND_CREATED &&
          from.array().kind() != v1::ARRAY_CHANGE_KIND_DELETED) {
        return std::optional<ClusterChange>();
      }
      change.event =
          ArrayChange{.array_id = from.array().array_id(),
                      .mesh_id = from.array().mesh_id(),
                      .is_deleted = from.array().kind() == v1::ARRAY_CHANGE_KIND_DELETED};
      break;
    case v1::WatchClusterResponse::kName:
      if (from.name().kind() != v1::NAME_CHANGE_KIND_SET &&
          from.name().kind() != v1::NAME_CHANGE_KIND_DELETED) {
        return std::optional<ClusterChange>();
      }
      change.event = NameChange{.name = from.name().name(),
                                .array_id = from.name().array_id(),
                                .version = from.name().version(),
                                .is_deleted = from.name().kind() == v1::NAME_CHANGE_KIND_DELETED};
      break;
    case v1::WatchClusterResponse::EVENT_NOT_SET:
      return std::optional<ClusterChange>();
  }
  return std::optional<ClusterChange>(std::move(change));
}

template <typename Response>
std::vector<ServedRank> RanksOf(const Response& from) {
  std::vector<ServedRank> ranks;
  for (const v1::ServedRank& rank : from.ranks()) {
    ranks.push_back({.mesh_id = rank.mesh_id(), .rank = rank.rank()});
  }
  return ranks;
}

}  // namespace

absl::StatusOr<ServerVersion> ClusterClient::GetVersion(const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::GetVersionResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(connection.cluster,
                                            &v1::ClusterService::Stub::GetVersion,
                                            v1::GetVersionRequest(), limit, &response));
  ServerVersion version;
  version.build = DecodeBuild(response.build());
  version.min_protocol = response.protocol().min();
  version.max_protocol = response.protocol().max();
  version.features.assign(response.features().begin(), response.features().end());
  version.cluster_id = response.cluster_id();
  return version;
}

absl::StatusOr<ClusterStatus> ClusterClient::GetStatus(const std::string& mesh_id,
                                                       const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::GetStatusRequest request;
  request.set_mesh_id(mesh_id);
  ClusterStatus status;
  do {
    v1::GetStatusResponse response;
    SHARDMESH_RETURN_IF_ERROR(connection.Call(
        connection.cluster, &v1::ClusterService::Stub::GetStatus, request, limit, &response));
    status.cluster_id = response.cluster_id();
    status.epoch = response.epoch();
    status.term = response.term();
    status.revision = response.revision();
    status.state = StateOf(response.state());
    for (const v1::MeshStatus& from : response.meshes()) {
      SHARDMESH_ASSIGN_OR_RETURN(MeshStatus mesh, DecodeMesh(from));
      if (!status.meshes.empty() && status.meshes.back().mesh_id == mesh.mesh_id) {
        // This page continues the ranks of the last mesh of the previous page.
        std::vector<std::string>& workers = status.meshes.back().workers;
        workers.insert(workers.end(), mesh.workers.begin(), mesh.workers.end());
      } else {
        status.meshes.push_back(std::move(mesh));
      }
    }
    for (const v1::WorkerStatus& worker : response.workers()) {
      SHARDMESH_ASSIGN_OR_RETURN(status.workers.emplace_back(), DecodeWorker(worker));
    }
    status.pid = response.pid();
    status.arrays = response.arrays();
    status.degraded_arrays = response.degraded_arrays();
    status.cached_arrays = response.cached_arrays();
    status.cached_bytes = response.cached_bytes();
    status.repairs.reset();
    if (response.has_repairs()) {
      const v1::RepairStatus& from = response.repairs();
      status.repairs = {.operations = from.operations(),
                        .done_bytes = from.done_bytes(),
                        .total_bytes = from.total_bytes(),
                        .bytes_per_second = from.bytes_per_second(),
                        .time_left = std::nullopt,
                        .tiles = from.tiles(),
                        .failed_tiles = from.failed_tiles()};
      if (from.has_time_left()) {
        SHARDMESH_ASSIGN_OR_RETURN(status.repairs->time_left, DecodeAnswer(from.time_left()));
      }
    }
    status.replicas.reset();
    if (response.has_replicas()) {
      status.replicas = {.waiting = response.replicas().waiting(),
                         .failed = response.replicas().failed()};
    }
    status.unnamed_arrays = response.unnamed_arrays();
    SHARDMESH_ASSIGN_OR_RETURN(status.unnamed_held_for, HeldFor(response.has_unnamed_held_for(),
                                                                response.unnamed_held_for()));
    status.sessions = response.sessions();
    status.unreadable_records = response.unreadable_records();
    status.unreadable_keys.assign(response.unreadable_keys().begin(),
                                  response.unreadable_keys().end());
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return status;
}

absl::StatusOr<std::vector<WorkerFlight>> ClusterClient::ListFlightRecords(
    const FlightQuestion& question, const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::ListFlightRecordsRequest request;
  request.set_identity(question.identity);
  if (question.step.has_value()) request.set_sequence(*question.step);
  request.set_max_records(question.max_records);
  v1::ListFlightRecordsResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(
      connection.cluster, &v1::ClusterService::Stub::ListFlightRecords, request, limit, &response));
  std::vector<WorkerFlight> flights;
  for (const v1::WorkerFlight& from : response.workers()) {
    WorkerFlight& flight = flights.emplace_back();
    flight.identity = from.identity();
    flight.incarnation = from.incarnation();
    flight.state = StateOf(from.state());
    flight.omitted_records = from.omitted_records();
    SHARDMESH_ASSIGN_OR_RETURN(flight.heartbeat_age, DecodeAnswer(from.heartbeat_age()));
    if (from.has_progress()) {
      SHARDMESH_ASSIGN_OR_RETURN(flight.progress, DecodeAnswer(from.progress()));
    }
    for (const v1::FlightRecord& record : from.records()) {
      SHARDMESH_ASSIGN_OR_RETURN(flight.records.emplace_back(), DecodeAnswer(record));
    }
  }
  return flights;
}

absl::StatusOr<QuarantineList> ClusterClient::ListQuarantine(const std::string& identity,
                                                             const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  constexpr int kPage = 1000;
  QuarantineList list;
  v1::ListQuarantineRequest request;
  request.set_identity(identity);
  request.set_page_size(kPage);
  do {
    v1::ListQuarantineResponse response;
    SHARDMESH_RETURN_IF_ERROR(connection.Call(
        connection.cluster, &v1::ClusterService::Stub::ListQuarantine, request, limit, &response));
    for (const v1::QuarantinedArray& array : response.arrays()) {
      SHARDMESH_ASSIGN_OR_RETURN(list.arrays.emplace_back(), DecodeQuarantined(array));
    }
    for (const v1::UnnamedArray& array : response.unnamed_arrays()) {
      SHARDMESH_ASSIGN_OR_RETURN(list.unnamed.emplace_back(), DecodeUnnamed(array));
    }
    for (const v1::UnreachedWorker& worker : response.unreached()) {
      list.unreached.push_back(DecodeUnreached(worker));
    }
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return list;
}

absl::StatusOr<RestoredArray> ClusterClient::RestoreQuarantined(const std::string& array_id,
                                                                const std::string& name,
                                                                bool validate_only,
                                                                const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::RestoreQuarantinedRequest request;
  request.set_array_id(array_id);
  request.set_name(name);
  request.set_validate_only(validate_only);
  v1::RestoreQuarantinedResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(connection.cluster,
                                            &v1::ClusterService::Stub::RestoreQuarantined, request,
                                            limit, &response));
  return RestoredArray{response.name(),
                       {response.identities().begin(), response.identities().end()}};
}

absl::StatusOr<QuarantineDrop> ClusterClient::DropQuarantined(
    const std::vector<std::string>& array_ids, bool even_partly, bool validate_only,
    const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::DropQuarantinedRequest request;
  request.set_even_partly(even_partly);
  request.set_validate_only(validate_only);
  for (const std::string& id : array_ids) request.add_array_ids(id);
  v1::DropQuarantinedResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(
      connection.cluster, &v1::ClusterService::Stub::DropQuarantined, request, limit, &response));
  QuarantineDrop dropped;
  for (const v1::QuarantinedArray& array : response.arrays()) {
    SHARDMESH_ASSIGN_OR_RETURN(dropped.arrays.emplace_back(), DecodeQuarantined(array));
  }
  for (const v1::UnreachedWorker& worker : response.unreached()) {
    dropped.unreached.push_back(DecodeUnreached(worker));
  }
  return dropped;
}

absl::StatusOr<ClusterLinks> ClusterClient::ListLinks(const std::string& mesh_id,
                                                      const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::ListLinksRequest request;
  request.set_mesh_id(mesh_id);
  ClusterLinks links;
  do {
    v1::ListLinksResponse response;
    SHARDMESH_RETURN_IF_ERROR(connection.Call(
        connection.cluster, &v1::ClusterService::Stub::ListLinks, request, limit, &response));
    for (const v1::LinkedWorker& from : response.workers()) {
      ClusterLinks::Worker& worker = links.workers.emplace_back();
      worker.identity = from.identity();
      if (from.has_rank()) worker.rank = from.rank();
    }
    for (const v1::WorkerLink& from : response.links()) {
      ClusterLinks::Link& link = links.links.emplace_back();
      link.identity = from.identity();
      SHARDMESH_ASSIGN_OR_RETURN(link.measured, DecodeAnswer(from.measured()));
    }
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return links;
}

absl::StatusOr<Diagnosis> ClusterClient::Diagnose(std::optional<int64_t> step,
                                                  const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::DiagnoseRequest request;
  if (step.has_value()) request.set_sequence(*step);
  v1::DiagnoseResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(connection.cluster, &v1::ClusterService::Stub::Diagnose,
                                            request, limit, &response));
  Diagnosis diagnosis;
  diagnosis.healthy = response.healthy();
  diagnosis.verdict = response.verdict();
  for (const v1::Finding& from : response.findings()) {
    ClusterFinding& finding = diagnosis.findings.emplace_back();
    finding.kind = KindOf(from.kind());
    finding.summary = from.summary();
    if (from.has_sequence()) finding.step = from.sequence();
    finding.op = from.op();
    finding.mesh_id = from.mesh_id();
    if (from.has_instruction()) {
      finding.instruction = from.instruction();
    }
    finding.label = from.label();
    finding.waiting_ranks.assign(from.waiting_ranks().begin(), from.waiting_ranks().end());
    for (const v1::Culprit& culprit : from.culprits()) {
      ClusterFinding::Culprit& added = finding.culprits.emplace_back();
      if (culprit.has_rank()) added.rank = culprit.rank();
      added.identity = culprit.identity();
      added.reason = culprit.reason();
    }
    SHARDMESH_ASSIGN_OR_RETURN(finding.time, DecodeAnswer(from.time()));
  }
  return diagnosis;
}

absl::StatusOr<Operation> ClusterClient::GetOperation(const std::string& operation_id,
                                                      const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::GetOperationRequest request;
  request.set_operation_id(operation_id);
  v1::GetOperationResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(
      connection.operations, &v1::OperationService::Stub::GetOperation, request, limit, &response));
  return DecodeOperation(response.operation());
}

absl::StatusOr<DrainedWorker> ClusterClient::DrainWorker(const std::string& identity, bool resume,
                                                         bool validate_only,
                                                         const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::DrainWorkerRequest request;
  request.set_identity(identity);
  request.set_resume(resume);
  request.set_validate_only(validate_only);
  v1::DrainWorkerResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(
      connection.cluster, &v1::ClusterService::Stub::DrainWorker, request, limit, &response));
  return DrainedWorker{.ranks = RanksOf(response),
                       .rank_count = response.rank_count(),
                       .work = response.work(),
                       .arrays = response.arrays(),
                       .used_bytes = response.used_bytes()};
}

absl::Status ClusterClient::ForgetWorker(const std::string& identity, bool validate_only,
                                         const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::ForgetWorkerRequest request;
  request.set_identity(identity);
  request.set_validate_only(validate_only);
  bool may_be_forgotten = false;  // an attempt whose answer was lost may have succeeded
  return connection.Repeat(limit, [&](const CallLimit& attempt) {
    CallContext context(connection, attempt);
    v1::ForgetWorkerResponse response;
    const absl::Status status =
        connection.StatusOf(connection.cluster->ForgetWorker(context.get(), request, &response));
    if (may_be_forgotten && absl::IsNotFound(status)) return absl::OkStatus();
    may_be_forgotten |=
        !validate_only && absl::IsUnavailable(status) && ReasonOf(status) == Reason::kUnspecified;
    return status;
  });
}

absl::StatusOr<DroppedCache> ClusterClient::DropCache(const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::DropCacheResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(connection.cluster,
                                            &v1::ClusterService::Stub::DropCache,
                                            v1::DropCacheRequest(), limit, &response));
  return DroppedCache{.arrays = response.arrays(), .bytes = response.bytes()};
}

absl::StatusOr<ReplacedWorker> ClusterClient::ReplaceWorker(const std::string& identity,
                                                            const std::string& replacement,
                                                            bool validate_only,
                                                            const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::ReplaceWorkerRequest request;
  request.set_identity(identity);
  request.set_replacement(replacement);
  request.set_validate_only(validate_only);
  v1::ReplaceWorkerResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(
      connection.cluster, &v1::ClusterService::Stub::ReplaceWorker, request, limit, &response));
  return ReplacedWorker{.ranks = RanksOf(response), .rank_count = response.rank_count()};
}

absl::StatusOr<std::vector<OpenSessionInfo>> ClusterClient::ListSessions(
    const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  constexpr int kPage = 1000;
  std::vector<OpenSessionInfo> sessions;
  v1::ListSessionsRequest request;
  request.set_page_size(kPage);
  do {
    v1::ListSessionsResponse response;
    SHARDMESH_RETURN_IF_ERROR(connection.Call(
        connection.sessions, &v1::SessionService::Stub::ListSessions, request, limit, &response));
    for (const v1::OpenSessionInfo& from : response.sessions()) {
      OpenSessionInfo& session = sessions.emplace_back();
      session.number = from.number();
      session.id_prefix = from.id_prefix();
      session.caller = from.caller();
      session.client_name = from.client_name();
      SHARDMESH_ASSIGN_OR_RETURN(session.opened, DecodeAnswer(from.open_time()));
      SHARDMESH_ASSIGN_OR_RETURN(session.renewed, DecodeAnswer(from.renew_time()));
      SHARDMESH_ASSIGN_OR_RETURN(session.expires, DecodeAnswer(from.expire_time()));
      session.pinned_arrays = from.pinned_arrays();
      session.transfers = from.transfers();
      session.steps = from.steps();
    }
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return sessions;
}

absl::StatusOr<std::vector<Operation>> ClusterClient::ListOperations(
    const std::vector<OperationState>& states, const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  constexpr int kPage = 1000;
  std::vector<Operation> operations;
  v1::ListOperationsRequest request;
  request.set_page_size(kPage);
  for (const OperationState state : states) request.add_states(Encode(state));
  do {
    v1::ListOperationsResponse response;
    SHARDMESH_RETURN_IF_ERROR(connection.Call(connection.operations,
                                              &v1::OperationService::Stub::ListOperations, request,
                                              limit, &response));
    for (const v1::Operation& from : response.operations()) {
      SHARDMESH_ASSIGN_OR_RETURN(Operation operation, DecodeOperation(from));
      operations.push_back(std::move(operation));
    }
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return operations;
}

absl::Status ClusterClient::WatchChanges(const std::vector<ClusterSubject>& subjects,
                                         const std::function<bool(const ClusterChange&)>& on_change,
                                         const CallOptions& options) {
  const CoordinatorConnection& connection = core_->connection();
  const CallLimit limit = ClientCore::LimitAt(
      SteadyDeadline::After(options.timeout.value_or(absl::InfiniteDuration())), options);
  v1::WatchClusterRequest request;
  for (const ClusterSubject subject : subjects) request.add_subjects(Encode(subject));
  CallContext context(connection, limit);
  const auto stream = connection.cluster->WatchCluster(context.get(), request);
  v1::WatchClusterResponse response;
  absl::Status status;
  bool is_wanted = true;
  while (is_wanted && stream->Read(&response)) {
    absl::StatusOr<std::optional<ClusterChange>> change = DecodeChange(response);
    status = change.status();
    is_wanted = status.ok() && (!change->has_value() || on_change(**change));
  }
  if (!is_wanted) {
    context.TryCancel();
    stream->Finish();  // returns CANCELLED, as requested
    return status;
  }
  status = connection.StatusOf(stream->Finish());
  return limit.is_cancelled() ? CancelledByCaller() : status;
}

absl::StatusOr<Operation> ClusterClient::WatchOperation(
    const std::string& operation_id, const std::function<bool(const Operation&)>& on_progress,
    const CallOptions& options) {
  return client::WatchOperation(core_->connection(), operation_id, on_progress,
                                ClientCore::LimitAt(core_->TransferDeadline(options), options));
}

absl::StatusOr<Operation> ClusterClient::CancelOperation(const std::string& operation_id,
                                                         const CallOptions& options) {
  return core_->InSession(
      core_->Deadline(options), options,
      [&](const std::string& session_id, const CallLimit& limit) -> absl::StatusOr<Operation> {
        v1::CancelOperationRequest request;
        request.set_session_id(session_id);
        request.set_operation_id(operation_id);
        v1::CancelOperationResponse response;
        const CoordinatorConnection& connection = core_->connection();
        SHARDMESH_RETURN_IF_ERROR(connection.Call(connection.operations,
                                                  &v1::OperationService::Stub::CancelOperation,
                                                  request, limit, &response));
        return DecodeOperation(response.operation());
      });
}

absl::StatusOr<Operation> ClusterClient::ForceCancelOperation(const std::string& operation_id,
                                                              const CallOptions& options) {
  v1::ForceCancelOperationRequest request;
  request.set_operation_id(operation_id);
  v1::ForceCancelOperationResponse response;
  const CoordinatorConnection& connection = core_->connection();
  SHARDMESH_RETURN_IF_ERROR(connection.Call(connection.admin,
                                            &v1::AdminService::Stub::ForceCancelOperation, request,
                                            core_->LimitOf(options), &response));
  return DecodeOperation(response.operation());
}

}  // namespace shardmesh::client
