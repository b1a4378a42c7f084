// CatalogClient: encodes definitions and decodes entries.
#include "client/catalog.h"

#include <iterator>
#include <optional>
#include <utility>
#include <variant>

#include "client/client_core.h"
#include "client/remote/coordinator_connection.h"
#include "client/remote/tree_encoder.h"
#include "client/remote/wire_enums.h"
#include "process/steady_deadline.h"
#include "rpc/codec/status.h"
#include "status/reason.h"
#include "status/status_macros.h"

namespace shardmesh::client {
namespace {
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

// Encodes a definition. Checks the size of a stored tree here: a tree above the coordinator's limit
// might also exceed gRPC's message limit, and gRPC's error says less.
absl::Status EncodeValue(const EntryValue& from, v1::EntryValue* to) {
  struct Encoder {
    v1::EntryValue* to;
    absl::Status operator()(const MeshDefinition& mesh) {
      rpc::Encode(mesh, to->mutable_mesh());
      return absl::OkStatus();
    }
    absl::Status operator()(const PartitionAxis& profile) {
      rpc::Encode(profile, to->mutable_profile());
      return absl::OkStatus();
    }
    absl::Status operator()(const RuleSetDefinition& rules) {
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

}  // namespace

absl::StatusOr<Entry> CatalogClient::CreateEntry(const std::string& name, const EntryValue& value,
                                                 bool validate_only, const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::CreateEntryRequest request;
  request.set_request_id(NewRequestId());
  request.set_validate_only(validate_only);
  request.set_name(name);
  SHARDMESH_RETURN_IF_ERROR(EncodeValue(value, request.mutable_value()));
  v1::CreateEntryResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(
      connection.catalog, &v1::CatalogService::Stub::CreateEntry, request, limit, &response));
  return DecodeEntry(response.entry());
}

absl::StatusOr<Entry> CatalogClient::GetEntry(EntryKind kind, const std::string& name,
                                              const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::GetEntryRequest request;
  request.set_kind(EncodeKind(kind));
  request.set_name(name);
  v1::GetEntryResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(connection.catalog, &v1::CatalogService::Stub::GetEntry,
                                            request, limit, &response));
  return DecodeEntry(response.entry());
}

absl::StatusOr<std::vector<EntryVersion>> CatalogClient::ListEntryVersions(
    EntryKind kind, const std::string& name, const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::ListEntryVersionsRequest request;
  request.set_kind(EncodeKind(kind));
  request.set_name(name);
  v1::ListEntryVersionsResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(
      connection.catalog, &v1::CatalogService::Stub::ListEntryVersions, request, limit, &response));
  std::vector<EntryVersion> versions;
  for (const v1::EntryVersion& from : response.versions()) {
    EntryVersion& version = versions.emplace_back();
    version.version = from.version();
    version.revision = from.revision();
    SHARDMESH_ASSIGN_OR_RETURN(version.update_time, DecodeAnswer(from.update_time()));
    version.size_bytes = from.size_bytes();
  }
  return versions;
}

absl::StatusOr<std::vector<Entry>> CatalogClient::ListEntries(EntryKind kind,
                                                              const std::string& prefix,
                                                              const CallOptions& options) {
  const SteadyDeadline deadline = core_->Deadline(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::ListEntriesRequest request;
  request.set_kind(EncodeKind(kind));
  request.set_prefix(prefix);
  std::vector<Entry> entries;
  do {
    v1::ListEntriesResponse response;
    SHARDMESH_RETURN_IF_ERROR(connection.Call(connection.catalog,
                                              &v1::CatalogService::Stub::ListEntries, request,
                                              ClientCore::LimitAt(deadline, options), &response));
    for (const v1::Entry& entry : response.entries()) {
      SHARDMESH_ASSIGN_OR_RETURN(entries.emplace_back(), DecodeEntry(entry));
    }
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return entries;
}

absl::StatusOr<Entry> CatalogClient::UpdateEntry(const std::string& name, const EntryValue& value,
                                                 std::optional<int64_t> expected_version,
                                                 bool validate_only, const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::UpdateEntryRequest request;
  request.set_request_id(NewRequestId());
  request.set_validate_only(validate_only);
  request.set_name(name);
  SHARDMESH_RETURN_IF_ERROR(EncodeValue(value, request.mutable_value()));
  SetPrecondition(expected_version, request.mutable_precondition());
  v1::UpdateEntryResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(
      connection.catalog, &v1::CatalogService::Stub::UpdateEntry, request, limit, &response));
  return DecodeEntry(response.entry());
}

absl::StatusOr<int64_t> CatalogClient::DeleteEntry(EntryKind kind, const std::string& name,
                                                   std::optional<int64_t> expected_version,
                                                   bool validate_only, const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::DeleteEntryRequest request;
  request.set_request_id(NewRequestId());
  request.set_validate_only(validate_only);
  request.set_kind(EncodeKind(kind));
  request.set_name(name);
  SetPrecondition(expected_version, request.mutable_precondition());
  v1::DeleteEntryResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(
      connection.catalog, &v1::CatalogService::Stub::DeleteEntry, request, limit, &response));
  return response.revision();
}

absl::Status CatalogClient::Watch(absl::Span<const EntryKind> kinds,
                                  std::optional<int64_t> start_revision, absl::Time until,
                                  const std::function<bool(const CatalogChanges&)>& on_changes,
                                  const CallOptions& options) {
  const auto end = SteadyDeadline::At(until);
  const auto timeout = SteadyDeadline::After(options.timeout.value_or(absl::InfiniteDuration()));
  const bool is_limited = timeout.left() < end.left();
  const CallLimit limit = ClientCore::LimitAt(is_limited ? timeout : end, options);
  const CoordinatorConnection& connection = core_->connection();
  v1::WatchRequest request;
  for (const EntryKind kind : kinds) {
    request.add_kinds(EncodeKind(kind));
  }
  if (start_revision.has_value()) request.set_start_revision(*start_revision);
  CallContext context(connection, limit);
  const auto stream = connection.catalog->Watch(context.get(), request);
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
    stream->Finish();  // returns CANCELLED, as requested
    return unreadable;
  }
  const absl::Status status = connection.StatusOf(stream->Finish());
  if (!status.ok() && limit.is_cancelled()) return CancelledByCaller();
  // If no timeout of the options ends before `until`, DEADLINE_EXCEEDED of gRPC, which has no
  // reason, means that the watch reached `until`. gRPC measures the time of a call with the steady
  // clock.
  return !is_limited && absl::IsDeadlineExceeded(status) && ReasonOf(status) == Reason::kUnspecified
             ? absl::OkStatus()
             : status;
}

}  // namespace shardmesh::client
