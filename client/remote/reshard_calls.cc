// Encodes the request to move arrays, and reads the stream of its answer.
#include "client/remote/reshard_calls.h"

#include <utility>

#include "client/remote/wire_enums.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/spec_codec.h"
#include "status/status_macros.h"

namespace shardmesh::client {
namespace {

v1::ReshardRequest EncodeReshard(const std::string& session_id, const ReshardSource& source,
                                 const ReshardOptions& from) {
  v1::ReshardRequest to;
  to.set_request_id(NewRequestId());
  to.set_session_id(session_id);
  if (const auto* const array = std::get_if<ArraySelector>(&source); array != nullptr) {
    EncodeSelector(*array, to.mutable_array());
  } else {
    to.set_prefix(std::get<std::string>(source));
  }
  if (!from.mesh.empty()) to.mutable_mesh()->set_name(from.mesh);
  if (from.spec.has_value()) {
    rpc::Encode(*from.spec, to.mutable_spec());
  } else if (from.axes.has_value()) {
    v1::LogicalAxes& axes = *to.mutable_axes();  // created even for a scalar, which has no axes
    for (const AxisValue& axis : *from.axes) rpc::Encode(axis, axes.add_axes());
  } else if (!from.preset.empty()) {
    to.set_preset(from.preset);
  } else if (from.rules.index() != 0) {
    EncodeSelector(from.rules, to.mutable_rule_set());
  }
  rpc::Encode(from.cut_points, to.mutable_cut_points());
  to.set_uneven(rpc::Encode(from.uneven));
  to.mutable_weights()->Add(from.weights.begin(), from.weights.end());
  EncodeSelector(from.profile, to.mutable_profile());
  if (from.mode.has_value()) rpc::Encode(*from.mode, to.mutable_mode());
  to.set_compatibility(EncodeCompatibility(from.compatibility));
  to.set_policy(EncodePolicy(from.strict));
  to.set_name(from.name);
  SetPrecondition(from.precondition, to.mutable_precondition());
  to.set_release_source(from.release_source);
  to.set_validate_only(from.validate_only);
  return to;
}

absl::StatusOr<ReshardedArray> DecodeResharded(const v1::ReshardedArray& from) {
  ReshardedArray array{.name = from.name(),
                       .name_version = from.name_version(),
                       .source_array_id = from.source_array_id(),
                       .moved_bytes = from.moved_bytes(),
                       .summed_bytes = from.summed_bytes(),
                       .is_skipped = from.skipped()};
  SHARDMESH_ASSIGN_OR_RETURN(array.descriptor, DecodeAnswer(from.array_descriptor()));
  SHARDMESH_RETURN_IF_ERROR(DecodeAnswers(from.corrections(), &array.corrections));
  if (from.has_sums_spec()) {
    SHARDMESH_ASSIGN_OR_RETURN(array.sums_spec, DecodeAnswer(from.sums_spec()));
  }
  return array;
}

absl::Status Append(const v1::ReshardResponse& from, ReshardResult* to) {
  if (from.array_count() > 0) {
    to->operation_id = from.operation_id();
    to->total_bytes = from.total_bytes();
  }
  for (const v1::ReshardMemory& memory : from.memory()) {
    to->memory.push_back({.mesh_id = memory.mesh_id(),
                          .rank = memory.rank(),
                          .identity = memory.identity(),
                          .have_bytes = memory.have_bytes(),
                          .need_bytes = memory.need_bytes()});
  }
  for (const v1::ReshardedArray& array : from.arrays()) {
    SHARDMESH_ASSIGN_OR_RETURN(to->arrays.emplace_back(), DecodeResharded(array));
  }
  to->revision = from.revision();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ReshardResult> Reshard(const CoordinatorConnection& connection,
                                      const std::string& session_id, const ReshardSource& source,
                                      const ReshardOptions& reshard_options,
                                      const CallLimit& limit) {
  const v1::ReshardRequest request = EncodeReshard(session_id, source, reshard_options);
  ReshardResult result;
  const absl::Status ended = connection.Repeat(limit, [&](const CallLimit& attempt) {
    result = {};
    CallContext context(connection, attempt);
    const auto stream = connection.arrays->Reshard(context.get(), request);
    v1::ReshardResponse response;
    absl::Status decoded;
    while (decoded.ok() && stream->Read(&response)) {
      decoded = Append(response, &result);
      if (response.array_count() > 0 && !result.operation_id.empty() && reshard_options.on_begun) {
        reshard_options.on_begun(result.operation_id);
      }
      if (reshard_options.progress) {
        reshard_options.progress(response.done_bytes(), result.total_bytes);
      }
    }
    if (!decoded.ok()) context.TryCancel();
    const absl::Status status = connection.StatusOf(stream->Finish());
    return decoded.ok() ? status : decoded;
  });
  SHARDMESH_RETURN_IF_ERROR(ended);
  return result;
}

}  // namespace shardmesh::client
