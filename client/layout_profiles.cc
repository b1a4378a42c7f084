// LayoutClient: questions about profiles and hashes.
#include "client/layouts.h"

#include <utility>

#include "client/client_core.h"
#include "client/remote/coordinator_connection.h"
#include "rpc/codec/python_codec.h"
#include "rpc/codec/spec_codec.h"
#include "status/status_macros.h"

namespace shardmesh::client {
namespace {

// Returns the field of that name; nullopt for an empty name.
absl::StatusOr<std::optional<AxisField>> DecodeField(const std::string& name) {
  if (name.empty()) {
    return std::nullopt;
  }
  const std::optional<AxisField> field = FindAxisField(name);
  if (!field.has_value()) {
    return BadAnswer(absl::InvalidArgumentError(StrCat("\"", name, "\" is no field")));
  }
  return field;
}

absl::StatusOr<ResolvedName> DecodeName(const v1::SemanticName& from) {
  ResolvedName name;
  name.name = from.name();
  SHARDMESH_ASSIGN_OR_RETURN(name.field, DecodeField(from.field()));
  SHARDMESH_ASSIGN_OR_RETURN(name.generation_field, DecodeField(from.generation_field()));
  SHARDMESH_ASSIGN_OR_RETURN(name.value, DecodeAnswer(from.value()));
  SHARDMESH_ASSIGN_OR_RETURN(name.generation_value, DecodeAnswer(from.generation_value()));
  return name;
}

// Encodes a profile. UNKNOWN_FIELD if `from` gives a value to a field that profiles do not have.
absl::Status EncodeProfile(const ProfileQuestion& from, v1::ProfileSelector* to) {
  if (const auto* name = std::get_if<std::string>(&from.profile)) {
    to->set_name(*name);
  } else if (const auto* resolved = std::get_if<PartitionAxis>(&from.profile)) {
    rpc::Encode(*resolved, to->mutable_value());
  } else if (const auto* given = std::get_if<ProfileFields>(&from.profile)) {
    return rpc::EncodeFields(given->fields, given->semantic_axes, to->mutable_value());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ProfileAnswer> LayoutClient::DescribeProfile(const ProfileQuestion& question,
                                                            const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::DescribeProfileRequest request;
  SHARDMESH_RETURN_IF_ERROR(EncodeProfile(question, request.mutable_profile()));
  v1::DescribeProfileResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(
      connection.resolve, &v1::ResolveService::Stub::DescribeProfile, request, limit, &response));
  ProfileAnswer answer;
  SHARDMESH_ASSIGN_OR_RETURN(answer.profile, DecodeAnswer(response.profile()));
  answer.text = response.text();
  answer.fingerprint = response.fingerprint();
  for (const v1::SemanticName& wire : response.semantic_names()) {
    SHARDMESH_ASSIGN_OR_RETURN(ResolvedName name, DecodeName(wire));
    answer.semantic_names.push_back(std::move(name));
  }
  answer.revision = response.revision();
  return answer;
}

absl::StatusOr<PythonHash> LayoutClient::ComputeHash(const HashQuestion& question,
                                                     const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  compat::v1::ComputeHashRequest request;
  const auto* const text = std::get_if<std::string>(&question.subject);
  if (text != nullptr) {
    request.set_text(*text);
  } else if (const auto* profile = std::get_if<ProfileQuestion>(&question.subject)) {
    SHARDMESH_RETURN_IF_ERROR(EncodeProfile(*profile, request.mutable_profile()));
  } else {
    rpc::Encode(std::get<std::vector<PythonValue>>(question.subject), request.mutable_attributes());
  }
  if (question.algorithm.has_value()) {
    request.set_algorithm(*question.algorithm);
  }
  request.set_compatibility(EncodeCompatibility(question.compatibility));
  compat::v1::ComputeHashResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(
      connection.compat, &compat::v1::CompatService::Stub::ComputeHash, request, limit, &response));
  return PythonHash{text != nullptr ? *text : response.text(), response.hash(),
                    response.python_hash_value()};
}

}  // namespace shardmesh::client
