// Answers about profiles and hashes.
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rpc/call.h"
#include "rpc/codec/python_codec.h"
#include "server/resolve/resolve_answers.h"
#include "sharding/digest.h"
#include "sharding/profile_hash.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

absl::Status TooLong(std::string_view field, size_t size, size_t limit) {
  return rpc::WithField(
      InvalidArgument(Reason::kLimitExceeded, StrCat(size, " bytes are over the limit of ", limit),
                      {{fact::kHave, size}, {fact::kLimit, limit}}),
      field);
}

// Encodes the mesh axes for which a semantic name stands in a mode.
absl::Status EncodeValue(const PartitionAxis& profile, std::string_view name, RuntimeMode mode,
                         v1::AxisValue* to) {
  const AxisValue axis = AxisValue::Name(std::string(name));
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<AxisValue> values,
                             profile.ResolveAxis(absl::MakeConstSpan(&axis, 1), mode));
  rpc::Encode(values.front(), to);
  return absl::OkStatus();
}

absl::Status EncodeName(const PartitionAxis& profile, std::string_view name,
                        std::optional<AxisField> field, v1::SemanticName* to) {
  to->set_name(std::string(name));
  if (field.has_value()) {
    to->set_field(std::string(AxisFieldName(*field)));
    if (const auto variant = GenerationVariant(*field); variant.has_value()) {
      to->set_generation_field(std::string(AxisFieldName(*variant)));
    }
  }
  SHARDMESH_RETURN_IF_ERROR(EncodeValue(profile, name, RuntimeMode::kTrain, to->mutable_value()));
  return EncodeValue(profile, name, RuntimeMode::kAutoregressive, to->mutable_generation_value());
}

// Encodes the hash of an object. `field`: the request's field with the object.
absl::Status EncodeHash(std::string_view field, bool has_algorithm, PythonHash hash,
                        compat::v1::ComputeHashResponse* to) {
  if (has_algorithm) {
    return rpc::BadField("algorithm",
                         StrCat("is for texts alone; the original hashes ", field, " with md5"));
  }
  constexpr auto kMaxBytes = static_cast<size_t>(rpc::kMaxHashedBytes);
  if (hash.text.size() > kMaxBytes) return TooLong(field, hash.text.size(), kMaxBytes);
  to->set_hash(std::move(hash.digest));
  to->set_text(std::move(hash.text));
  to->set_python_hash_value(hash.value);
  return absl::OkStatus();
}

}  // namespace

absl::Status Answer(const AnswerContext& context, const v1::DescribeProfileRequest& request,
                    v1::DescribeProfileResponse* response) {
  SHARDMESH_DECODE(profile, "profile", SelectProfile(context.state, request.profile()));
  rpc::Encode(profile, response->mutable_profile());
  response->set_text(profile.ToString());
  response->set_fingerprint(Fingerprint(profile));
  for (const SemanticName& name : BuiltInSemanticNames()) {
    SHARDMESH_RETURN_IF_ERROR(
        EncodeName(profile, name.name, name.field, response->add_semantic_names()));
  }
  for (const SemanticAxis& axis : profile.semantic_axes()) {
    SHARDMESH_RETURN_IF_ERROR(
        EncodeName(profile, axis.name, std::nullopt, response->add_semantic_names()));
  }
  response->set_revision(context.state.revision());
  // An axis that stands for other axes is written out, so the answer can become many times larger
  // than the request.
  if (const size_t size = response->ByteSizeLong();
      static_cast<int64_t>(size) > rpc::kMaxControlMessageBytes) {
    return TooLong("profile.value.semantic_axes", size,
                   static_cast<size_t>(rpc::kMaxControlMessageBytes));
  }
  return absl::OkStatus();
}

absl::Status Answer(const AnswerContext& context, const compat::v1::ComputeHashRequest& request,
                    compat::v1::ComputeHashResponse* response) {
  constexpr auto kMaxBytes = static_cast<size_t>(rpc::kMaxHashedBytes);
  SHARDMESH_DECODE(compatibility, "compatibility", rpc::Decode(request.compatibility()));
  switch (request.subject_case()) {
    case compat::v1::ComputeHashRequest::kText: {
      if (request.text().size() > kMaxBytes) {
        return TooLong("text", request.text().size(), kMaxBytes);
      }
      if (request.algorithm().size() > kMaxAxisNameBytes) {
        return TooLong("algorithm", request.algorithm().size(), kMaxAxisNameBytes);
      }
      const std::string algorithm = request.has_algorithm() ? request.algorithm() : "md5";
      SHARDMESH_DECODE(hash, "algorithm", SafeHashInt(request.text(), algorithm, compatibility));
      response->set_hash(std::move(hash));
      return absl::OkStatus();
    }
    case compat::v1::ComputeHashRequest::kAttributes: {
      SHARDMESH_DECODE(attributes, "attributes", rpc::Decode(request.attributes()));
      SHARDMESH_ASSIGN_OR_RETURN(PythonHash hash, HashFn(attributes));
      return EncodeHash("attributes", request.has_algorithm(), std::move(hash), response);
    }
    case compat::v1::ComputeHashRequest::kProfile: {
      SHARDMESH_DECODE(profile, "profile", SelectProfile(context.state, request.profile()));
      SHARDMESH_ASSIGN_OR_RETURN(PythonHash hash, HashProfile(profile));
      return EncodeHash("profile", request.has_algorithm(), std::move(hash), response);
    }
    case compat::v1::ComputeHashRequest::SUBJECT_NOT_SET:
      break;
  }
  return rpc::BadField("subject", "is not set; give a text, attributes or a profile");
}

}  // namespace shardmesh::server
