// The connection, and the calls about the cluster: versions, sessions, definitions, operations.
#include "client/remote/coordinator_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "client/remote/coordinator_connection.h"
#include "client/remote/tree_encoder.h"
#include "client/remote/wire_enums.h"
#include "process/random_bytes.h"
#include "process/steady_deadline.h"
#include "rpc/call_memory.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/flight_codec.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "rpc/connect.h"
#include "status/detail.h"
#include "status/status_macros.h"

namespace shardmesh::client {
namespace {

BuildVersion DecodeBuild(const v1::BuildVersion& from) { return {from.version(), from.revision()}; }

v1::EntryKind EncodeKind(EntryKind kind) {
  static_assert(static_cast<int>(EntryKind::kMesh) + 1 == v1::ENTRY_KIND_MESH);
  static_assert(static_cast<int>(EntryKind::kTree) + 1 == v1::ENTRY_KIND_TREE);
  return static_cast<v1::EntryKind>(static_cast<int>(kind) + 1);
}

absl::StatusOr<EntryKind> DecodeKind(v1::EntryKind from) {
  if (from == v1::ENTRY_KIND_UNSPECIFIED || !v1::EntryKind_IsValid(from)) {
    return BadAnswer(absl::InvalidArgumentError(
        StrCat("kind ", static_cast<int>(from), " of a catalog's entry is not known")));
  }
  return static_cast<EntryKind>(static_cast<int>(from) - 1);
}

// A tree that the coordinator would refuse may not fit a message, so the size is checked here.
absl::Status EncodeValue(const EntryValue& from, v1::EntryValue* to) {
  struct Encoder {
    v1::EntryValue* to;
    absl::Status operator()(const rpc::MeshDefinition& mesh) {
      rpc::Encode(mesh, to->mutable_mesh());
      return absl::OkStatus();
    }
    absl::Status operator()(const PartitionAxis& profile) {
      rpc::Encode(profile, to->mutable_profile());
      return absl::OkStatus();
    }
    absl::Status operator()(const rpc::RuleSetDefinition& rules) {
      rpc::Encode(rules, to->mutable_rule_set());
      return absl::OkStatus();
    }
    absl::Status operator()(const LogicalRules& rules) {
      rpc::Encode(rules, to->mutable_logical_rules());
      return absl::OkStatus();
    }
    absl::Status operator()(const StoredTree& tree) {
      return rpc::WithField(rpc::WithField(Encode(tree, to->mutable_tree()), "tree"), "value");
    }
  };
  return std::visit(Encoder{to}, from);
}

absl::StatusOr<EntryValue> DecodeValue(const v1::EntryValue& from) {
  switch (from.value_case()) {
    case v1::EntryValue::kMesh:
      return DecodeAnswer(from.mesh());
    case v1::EntryValue::kProfile:
      return DecodeAnswer(from.profile());
    case v1::EntryValue::kRuleSet:
      return DecodeAnswer(from.rule_set());
    case v1::EntryValue::kLogicalRules:
      return DecodeAnswer(from.logical_rules());
    case v1::EntryValue::kTree: {
      absl::StatusOr<StoredTree> tree = Decode(from.tree());
      if (!tree.ok()) {
        return BadAnswer(tree.status());
      }
      return *std::move(tree);
    }
    case v1::EntryValue::VALUE_NOT_SET:
      break;
  }
  return BadAnswer(absl::InvalidArgumentError("a catalog's entry has no value"));
}

absl::StatusOr<Entry> DecodeEntry(const v1::Entry& from) {
  Entry entry;
  entry.name = from.name();
  SHARDMESH_ASSIGN_OR_RETURN(entry.value, DecodeValue(from.value()));
  entry.version = from.version();
  entry.revision = from.revision();
  entry.uid = from.uid();
  entry.workers.assign(from.mesh_assignment().workers().begin(),
                       from.mesh_assignment().workers().end());
  SHARDMESH_ASSIGN_OR_RETURN(entry.update_time, DecodeAnswer(from.update_time()));
  return entry;
}

absl::StatusOr<CatalogChanges> DecodeChanges(const v1::WatchResponse& from) {
  CatalogChanges changes;
  changes.revision = from.revision();
  for (const v1::EntryChange& wire : from.changes()) {
    EntryChange& change = changes.changes.emplace_back();
    SHARDMESH_ASSIGN_OR_RETURN(change.kind, DecodeKind(wire.kind()));
    change.name = wire.name();
    if (wire.has_entry()) {
      SHARDMESH_ASSIGN_OR_RETURN(change.entry, DecodeEntry(wire.entry()));
    }
  }
  return changes;
}

absl::StatusOr<WorkerStatus> DecodeWorker(const v1::WorkerStatus& from) {
  WorkerStatus worker;
  worker.identity = from.identity();
  worker.incarnation = from.incarnation();
  worker.state = StateOf(from.state());
  for (const v1::Endpoint& endpoint : from.endpoints()) {
    worker.addresses.push_back(endpoint.address());
  }
  worker.exchange_port = from.exchange_port();
  worker.pid = from.pid();
  worker.capacity_bytes = from.capacity_bytes();
  worker.used_bytes = from.used_bytes();
  worker.quarantined_arrays = from.quarantined_arrays();
  worker.quarantined_bytes = from.quarantined_bytes();
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

// Returns InfiniteDuration if the field is unset.
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

absl::StatusOr<Operation> DecodeOperation(const v1::Operation& from) {
  Operation operation;
  operation.operation_id = from.operation_id();
  operation.number = from.number();
  operation.session_number = from.session_number();
  operation.description = from.description();
  operation.state = StateOf(from.state());
  operation.done = from.done();
  operation.total = from.total();
  operation.done_bytes = from.done_bytes();
  operation.total_bytes = from.total_bytes();
  SHARDMESH_ASSIGN_OR_RETURN(operation.start_time, DecodeAnswer(from.start_time()));
  if (from.has_end_time()) {
    SHARDMESH_ASSIGN_OR_RETURN(operation.end_time, DecodeAnswer(from.end_time()));
  }
  if (operation.state == OperationState::kFailed) {
    operation.error = rpc::Decode(from.error());
    if (operation.error.ok()) operation.error = absl::UnknownError("the error is not known");
  }
  return operation;
}

}  // namespace

std::string NewRequestId() { return absl::BytesToHexString(rpc::RandomBytes(16)); }

void EncodeSelector(const ArraySelector& from, v1::ArraySelector* to) {
  if (!from.name.empty()) {
    to->set_name(from.name);
  } else {
    to->set_array_id(from.array_id);
  }
  to->set_version(from.version);
}

v1::CorrectionPolicy EncodePolicy(bool strict) {
  return strict ? v1::CORRECTION_POLICY_STRICT : v1::CORRECTION_POLICY_REPORT;
}

v1::Compatibility EncodeCompatibility(Compatibility compatibility) {
  return compatibility == Compatibility::kExact ? v1::COMPATIBILITY_EXACT
                                                : v1::COMPATIBILITY_UNSPECIFIED;
}

absl::Status BadAnswer(const absl::Status& status) {
  return absl::InternalError(
      StrCat("the coordinator's answer cannot be read: ", ToStd(status.message())));
}

absl::StatusOr<Array> DecodeArray(const v1::Array& from) {
  Array array;
  SHARDMESH_ASSIGN_OR_RETURN(array.descriptor, DecodeAnswer(from.array_descriptor()));
  array.state = StateOf(from.state());
  array.missing_ranks.assign(from.missing_ranks().begin(), from.missing_ranks().end());
  array.name = from.name();
  array.name_version = from.name_version();
  array.durability = DurabilityOf(from.durability());
  SHARDMESH_ASSIGN_OR_RETURN(array.create_time, DecodeAnswer(from.create_time()));
  array.size_bytes = from.size_bytes();
  if (from.has_requested_spec()) {
    SHARDMESH_ASSIGN_OR_RETURN(array.requested_spec, DecodeAnswer(from.requested_spec()));
  }
  SHARDMESH_RETURN_IF_ERROR(DecodeAnswers(from.corrections(), &array.corrections));
  return array;
}

CoordinatorClient::CoordinatorClient(std::unique_ptr<Connection> connection)
    : connection_(std::move(connection)) {}
CoordinatorClient::~CoordinatorClient() = default;

absl::StatusOr<std::unique_ptr<CoordinatorClient>> CoordinatorClient::Connect(
    const std::string& address, const rpc::Credentials& credentials, absl::Duration timeout,
    const RetryOptions& retries) {
  const rpc::ChannelOptions options{.credentials = credentials,
                                    .peer = rpc::ExpectedPeer::Coordinator()};
  SHARDMESH_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel,
                             rpc::CreateChannel(address, options));
  SHARDMESH_RETURN_IF_ERROR(
      rpc::WaitForConnected(*channel, address,
                            rpc::ConnectOptions{.timeout = std::min(timeout, rpc::kConnectTimeout),
                                                .limit = timeout,
                                                .on_wait = retries.on_wait},
                            options));
  return std::unique_ptr<CoordinatorClient>(
      new CoordinatorClient(std::make_unique<Connection>(address, channel, retries)));
}

std::unique_ptr<CoordinatorClient> CoordinatorClient::InProcess(
    const std::shared_ptr<grpc::Channel>& channel, const RetryOptions& retries) {
  return std::unique_ptr<CoordinatorClient>(
      new CoordinatorClient(std::make_unique<Connection>("", channel, retries)));
}

absl::Status CoordinatorClient::Connection::Repeat(
    const rpc::CallOptions& options,
    const std::function<absl::Status(const rpc::CallOptions& attempt)>& call) const {
  constexpr int kMaxAttempts = 5;  // attempts without an answer
  rpc::Backoff backoff({.max_delay = absl::Milliseconds(500)});
  const auto deadline = rpc::SteadyDeadline::At(options.deadline);
  absl::Status last;  // why the call is repeated
  for (int attempt = 1;; ++attempt) {
    absl::Status status = call({deadline.wall(), options.traceparent});
    const Reason reason = ReasonOf(status);
    if (absl::IsDeadlineExceeded(status) && reason == Reason::kUnspecified && !last.ok()) {
      return last;
    }
    const bool is_asked_to = RetryDelayOf(status).has_value() &&
                             (absl::IsUnavailable(status) || absl::IsAborted(status));
    const bool is_away = absl::IsUnavailable(status) &&
                         (reason == Reason::kUnspecified || reason == Reason::kNotServing);
    const bool is_short = rpc::IsShortOfCallMemory(status);
    if (!is_asked_to && !is_short &&
        !(is_away && (retries.await_coordinator || attempt < kMaxAttempts))) {
      return status;
    }
    const absl::Duration delay = backoff.NextDelay(status);
    if (delay >= deadline.left()) {
      return status;
    }
    if (retries.on_wait) {
      retries.on_wait(status);
    }
    absl::SleepFor(delay);
    last = std::move(status);
  }
}

absl::StatusOr<ServerVersion> CoordinatorClient::GetVersion(const Options& options) {
  v1::GetVersionResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection_->Call(connection_->cluster,
                                              &v1::ClusterService::Stub::GetVersion,
                                              v1::GetVersionRequest(), options, &response));
  ServerVersion version;
  version.build = DecodeBuild(response.build());
  version.min_protocol = response.protocol().min();
  version.max_protocol = response.protocol().max();
  version.features.assign(response.features().begin(), response.features().end());
  version.cluster_id = response.cluster_id();
  return version;
}

absl::StatusOr<ClusterStatus> CoordinatorClient::GetStatus(const std::string& mesh_id,
                                                           const Options& options) {
  v1::GetStatusRequest request;
  request.set_mesh_id(mesh_id);
  ClusterStatus status;
  do {
    v1::GetStatusResponse response;
    SHARDMESH_RETURN_IF_ERROR(connection_->Call(
        connection_->cluster, &v1::ClusterService::Stub::GetStatus, request, options, &response));
    status.cluster_id = response.cluster_id();
    status.epoch = response.epoch();
    status.term = response.term();
    status.revision = response.revision();
    status.state = StateOf(response.state());
    for (const v1::MeshStatus& from : response.meshes()) {
      SHARDMESH_ASSIGN_OR_RETURN(MeshStatus mesh, DecodeMesh(from));
      if (!status.meshes.empty() && status.meshes.back().mesh_id == mesh.mesh_id) {
        // Continues the mesh's ranks from the previous page.
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

absl::StatusOr<std::vector<WorkerFlight>> CoordinatorClient::ListFlightRecords(
    const FlightQuestion& question, const Options& options) {
  v1::ListFlightRecordsRequest request;
  request.set_identity(question.identity);
  request.set_sequence(question.step);
  request.set_max_records(question.max_records);
  v1::ListFlightRecordsResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection_->Call(connection_->cluster,
                                              &v1::ClusterService::Stub::ListFlightRecords, request,
                                              options, &response));
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

absl::StatusOr<QuarantineList> CoordinatorClient::ListQuarantine(const std::string& identity,
                                                                 const Options& options) {
  constexpr int kPage = 1000;
  QuarantineList list;
  v1::ListQuarantineRequest request;
  request.set_identity(identity);
  request.set_page_size(kPage);
  do {
    v1::ListQuarantineResponse response;
    SHARDMESH_RETURN_IF_ERROR(connection_->Call(connection_->cluster,
                                                &v1::ClusterService::Stub::ListQuarantine, request,
                                                options, &response));
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

absl::StatusOr<RestoredArray> CoordinatorClient::RestoreQuarantined(const std::string& array_id,
                                                                    const std::string& name,
                                                                    const Options& options) {
  v1::RestoreQuarantinedRequest request;
  request.set_array_id(array_id);
  request.set_name(name);
  v1::RestoreQuarantinedResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection_->Call(connection_->cluster,
                                              &v1::ClusterService::Stub::RestoreQuarantined,
                                              request, options, &response));
  return RestoredArray{response.name(),
                       {response.identities().begin(), response.identities().end()}};
}

absl::StatusOr<QuarantineDrop> CoordinatorClient::DropQuarantined(
    const std::vector<std::string>& array_ids, bool even_partly, const Options& options) {
  v1::DropQuarantinedRequest request;
  request.set_even_partly(even_partly);
  for (const std::string& id : array_ids) request.add_array_ids(id);
  v1::DropQuarantinedResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection_->Call(connection_->cluster,
                                              &v1::ClusterService::Stub::DropQuarantined, request,
                                              options, &response));
  QuarantineDrop dropped;
  for (const v1::QuarantinedArray& array : response.arrays()) {
    SHARDMESH_ASSIGN_OR_RETURN(dropped.arrays.emplace_back(), DecodeQuarantined(array));
  }
  for (const v1::UnreachedWorker& worker : response.unreached()) {
    dropped.unreached.push_back(DecodeUnreached(worker));
  }
  return dropped;
}

absl::StatusOr<ClusterLinks> CoordinatorClient::ListLinks(const std::string& mesh_id,
                                                          const Options& options) {
  v1::ListLinksRequest request;
  request.set_mesh_id(mesh_id);
  ClusterLinks links;
  do {
    v1::ListLinksResponse response;
    SHARDMESH_RETURN_IF_ERROR(connection_->Call(
        connection_->cluster, &v1::ClusterService::Stub::ListLinks, request, options, &response));
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

absl::StatusOr<Diagnosis> CoordinatorClient::Diagnose(int64_t step, const Options& options) {
  v1::DiagnoseRequest request;
  request.set_sequence(step);
  v1::DiagnoseResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection_->Call(
      connection_->cluster, &v1::ClusterService::Stub::Diagnose, request, options, &response));
  Diagnosis diagnosis;
  diagnosis.healthy = response.healthy();
  diagnosis.verdict = response.verdict();
  for (const v1::Finding& from : response.findings()) {
    ClusterFinding& finding = diagnosis.findings.emplace_back();
    finding.kind = KindOf(from.kind());
    finding.summary = from.summary();
    finding.step = from.sequence();
    finding.op = from.op();
    finding.mesh_id = from.mesh_id();
    if (from.has_instruction()) {
      finding.instruction = from.instruction();
    }
    finding.label = from.label();
    finding.waiting_ranks.assign(from.waiting_ranks().begin(), from.waiting_ranks().end());
    for (const v1::Culprit& culprit : from.culprits()) {
      finding.culprits.push_back({culprit.rank(), culprit.identity(), culprit.reason()});
    }
    SHARDMESH_ASSIGN_OR_RETURN(finding.time, DecodeAnswer(from.time()));
  }
  return diagnosis;
}

absl::StatusOr<OpenedSession> CoordinatorClient::OpenSession(absl::Duration ttl,
                                                             const std::string& client_name,
                                                             const Options& options) {
  v1::OpenSessionRequest request;
  request.set_request_id(NewRequestId());
  rpc::Encode(ttl, request.mutable_ttl());
  request.set_client_name(client_name);
  v1::OpenSessionResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection_->Call(
      connection_->sessions, &v1::SessionService::Stub::OpenSession, request, options, &response));
  OpenedSession session;
  session.session_id = response.session_id();
  SHARDMESH_ASSIGN_OR_RETURN(session.ttl, DecodeAnswer(response.ttl()));
  return session;
}

absl::StatusOr<absl::Duration> CoordinatorClient::RenewSession(const std::string& session_id,
                                                               const Options& options) {
  v1::RenewSessionRequest request;
  request.set_session_id(session_id);
  v1::RenewSessionResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection_->Call(
      connection_->sessions, &v1::SessionService::Stub::RenewSession, request, options, &response));
  return DecodeAnswer(response.ttl());
}

absl::Status CoordinatorClient::CloseSession(const std::string& session_id,
                                             const Options& options) {
  v1::CloseSessionRequest request;
  request.set_session_id(session_id);
  v1::CloseSessionResponse response;
  return connection_->Call(connection_->sessions, &v1::SessionService::Stub::CloseSession, request,
                           options, &response);
}

absl::StatusOr<std::vector<OpenSessionInfo>> CoordinatorClient::ListSessions(
    const Options& options) {
  constexpr int kPage = 1000;
  std::vector<OpenSessionInfo> sessions;
  v1::ListSessionsRequest request;
  request.set_page_size(kPage);
  do {
    v1::ListSessionsResponse response;
    SHARDMESH_RETURN_IF_ERROR(connection_->Call(connection_->sessions,
                                                &v1::SessionService::Stub::ListSessions, request,
                                                options, &response));
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

absl::StatusOr<Entry> CoordinatorClient::CreateEntry(const std::string& name,
                                                     const EntryValue& value, bool validate_only,
                                                     const Options& options) {
  v1::CreateEntryRequest request;
  request.set_request_id(NewRequestId());
  request.set_validate_only(validate_only);
  request.set_name(name);
  SHARDMESH_RETURN_IF_ERROR(EncodeValue(value, request.mutable_value()));
  v1::CreateEntryResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection_->Call(
      connection_->catalog, &v1::CatalogService::Stub::CreateEntry, request, options, &response));
  return DecodeEntry(response.entry());
}

absl::StatusOr<Entry> CoordinatorClient::GetEntry(EntryKind kind, const std::string& name,
                                                  const Options& options) {
  v1::GetEntryRequest request;
  request.set_kind(EncodeKind(kind));
  request.set_name(name);
  v1::GetEntryResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection_->Call(
      connection_->catalog, &v1::CatalogService::Stub::GetEntry, request, options, &response));
  return DecodeEntry(response.entry());
}

absl::StatusOr<std::vector<EntryVersion>> CoordinatorClient::ListEntryVersions(
    EntryKind kind, const std::string& name, const Options& options) {
  v1::ListEntryVersionsRequest request;
  request.set_kind(EncodeKind(kind));
  request.set_name(name);
  v1::ListEntryVersionsResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection_->Call(connection_->catalog,
                                              &v1::CatalogService::Stub::ListEntryVersions, request,
                                              options, &response));
  std::vector<EntryVersion> versions;
  for (const v1::EntryVersion& from : response.versions()) {
    EntryVersion& version = versions.emplace_back();
    version.version = from.version();
    version.revision = from.revision();
    SHARDMESH_ASSIGN_OR_RETURN(version.update_time, rpc::Decode(from.update_time()));
    version.size_bytes = from.size_bytes();
  }
  return versions;
}

absl::StatusOr<EntryPage> CoordinatorClient::ListEntries(EntryKind kind, const std::string& prefix,
                                                         const std::string& page_token,
                                                         const Options& options) {
  v1::ListEntriesRequest request;
  request.set_kind(EncodeKind(kind));
  request.set_prefix(prefix);
  request.set_page_token(page_token);
  v1::ListEntriesResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection_->Call(
      connection_->catalog, &v1::CatalogService::Stub::ListEntries, request, options, &response));
  EntryPage page;
  for (const v1::Entry& entry : response.entries()) {
    SHARDMESH_ASSIGN_OR_RETURN(page.entries.emplace_back(), DecodeEntry(entry));
  }
  page.next_page_token = response.next_page_token();
  return page;
}

absl::StatusOr<Entry> CoordinatorClient::UpdateEntry(const std::string& name,
                                                     const EntryValue& value,
                                                     int64_t expected_version, bool validate_only,
                                                     const Options& options) {
  v1::UpdateEntryRequest request;
  request.set_request_id(NewRequestId());
  request.set_validate_only(validate_only);
  request.set_name(name);
  SHARDMESH_RETURN_IF_ERROR(EncodeValue(value, request.mutable_value()));
  SetPrecondition(expected_version, request.mutable_precondition());
  v1::UpdateEntryResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection_->Call(
      connection_->catalog, &v1::CatalogService::Stub::UpdateEntry, request, options, &response));
  return DecodeEntry(response.entry());
}

absl::StatusOr<int64_t> CoordinatorClient::DeleteEntry(EntryKind kind, const std::string& name,
                                                       int64_t expected_version, bool validate_only,
                                                       const Options& options) {
  v1::DeleteEntryRequest request;
  request.set_request_id(NewRequestId());
  request.set_validate_only(validate_only);
  request.set_kind(EncodeKind(kind));
  request.set_name(name);
  SetPrecondition(expected_version, request.mutable_precondition());
  v1::DeleteEntryResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection_->Call(
      connection_->catalog, &v1::CatalogService::Stub::DeleteEntry, request, options, &response));
  return response.revision();
}

absl::Status CoordinatorClient::Watch(absl::Span<const EntryKind> kinds, int64_t start_revision,
                                      const std::function<bool(const CatalogChanges&)>& on_changes,
                                      const Options& options) {
  v1::WatchRequest request;
  for (const EntryKind kind : kinds) {
    request.add_kinds(EncodeKind(kind));
  }
  if (start_revision != 0) request.set_start_revision(start_revision);
  grpc::ClientContext context;
  connection_->Prepare(options, &context);
  const auto stream = connection_->catalog->Watch(&context, request);
  v1::WatchResponse response;
  absl::Status unreadable;
  bool is_wanted = true;
  while (is_wanted && stream->Read(&response)) {
    const absl::StatusOr<CatalogChanges> changes = DecodeChanges(response);
    unreadable = changes.status();
    is_wanted = changes.ok() && on_changes(*changes);
  }
  if (!is_wanted) {
    context.TryCancel();
    stream->Finish();  // CANCELLED, as it was asked to be.
    return unreadable;
  }
  return connection_->StatusOf(stream->Finish());
}

absl::StatusOr<Operation> CoordinatorClient::GetOperation(const std::string& operation_id,
                                                          const Options& options) {
  v1::GetOperationRequest request;
  request.set_operation_id(operation_id);
  v1::GetOperationResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection_->Call(connection_->operations,
                                              &v1::OperationService::Stub::GetOperation, request,
                                              options, &response));
  return DecodeOperation(response.operation());
}

absl::StatusOr<std::vector<Operation>> CoordinatorClient::ListOperations(
    const std::vector<OperationState>& states, const Options& options) {
  constexpr int kPage = 1000;
  std::vector<Operation> operations;
  v1::ListOperationsRequest request;
  request.set_page_size(kPage);
  for (const OperationState state : states) request.add_states(Encode(state));
  do {
    v1::ListOperationsResponse response;
    SHARDMESH_RETURN_IF_ERROR(connection_->Call(connection_->operations,
                                                &v1::OperationService::Stub::ListOperations,
                                                request, options, &response));
    for (const v1::Operation& from : response.operations()) {
      SHARDMESH_ASSIGN_OR_RETURN(Operation operation, DecodeOperation(from));
      operations.push_back(std::move(operation));
    }
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return operations;
}

absl::StatusOr<Operation> CoordinatorClient::WatchOperation(
    const std::string& operation_id, const std::function<bool(const Operation&)>& on_progress,
    Cancellation* cancellation, const Options& options) {
  v1::WatchOperationRequest request;
  request.set_operation_id(operation_id);
  grpc::ClientContext context;
  connection_->Prepare(options, &context);
  Cancellation never;
  const Cancellation::Registration registration(cancellation == nullptr ? &never : cancellation,
                                                [&context] { context.TryCancel(); });
  const auto stream = connection_->operations->WatchOperation(&context, request);
  v1::WatchOperationResponse response;
  absl::StatusOr<Operation> last = absl::InternalError("the coordinator reported nothing");
  bool is_wanted = true;
  while (is_wanted && stream->Read(&response)) {
    last = DecodeOperation(response.operation());
    is_wanted = last.ok() && on_progress(*last);
  }
  if (!is_wanted) {
    context.TryCancel();
    stream->Finish();  // CANCELLED, as it was asked to be.
    return last;
  }
  SHARDMESH_RETURN_IF_ERROR(connection_->StatusOf(stream->Finish()));
  return last;
}

absl::StatusOr<Operation> CoordinatorClient::CancelOperation(const std::string& session_id,
                                                             const std::string& operation_id,
                                                             const Options& options) {
  v1::CancelOperationRequest request;
  request.set_session_id(session_id);
  request.set_operation_id(operation_id);
  v1::CancelOperationResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection_->Call(connection_->operations,
                                              &v1::OperationService::Stub::CancelOperation, request,
                                              options, &response));
  return DecodeOperation(response.operation());
}

}  // namespace shardmesh::client
