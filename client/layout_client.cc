// The calls of CoordinatorClient about layouts.
#include <utility>

#include "client/coordinator_client.h"
#include "client/coordinator_connection.h"
#include "rpc/array_codec.h"
#include "rpc/spec_codec.h"
#include "sharding/status_macros.h"

namespace shardmesh::client {
namespace {

void EncodeAxes(absl::Span<const AxisValue> from,
                google::protobuf::RepeatedPtrField<v1::AxisValue>* to) {
  for (const AxisValue& axis : from) {
    rpc::Encode(axis, to->Add());
  }
}

// Fields that the answers to both questions about one spec have.
template <typename Response>
absl::Status DecodeFit(const Response& from, SpecAnswer* to) {
  SHARDMESH_ASSIGN_OR_RETURN(to->effective, DecodeAnswer(from.effective()));
  SHARDMESH_RETURN_IF_ERROR(DecodeAnswers(from.corrections(), &to->corrections));
  to->revision = from.revision();
  return absl::OkStatus();
}

Shape ShapeOf(const google::protobuf::RepeatedField<int64_t>& sizes) {
  return Shape(sizes.begin(), sizes.end());
}

void EncodeHeader(const TreeQuestion& from, v1::ResolveTreeHeader* to) {
  if (from.rules.index() != 0) {
    EncodeSelector(from.rules, to->mutable_rule_set());
  }
  EncodeSelector(from.profile, to->mutable_profile());
  if (from.mode.has_value()) {
    rpc::Encode(*from.mode, to->mutable_mode());
  }
  if (!from.match_only) {
    EncodeSelector(from.mesh, to->mutable_mesh());
  }
  to->set_policy(EncodePolicy(from.strict));
  to->set_compatibility(EncodeCompatibility(from.compatibility));
  to->set_match_only(from.match_only);
  to->set_keep_unmatched(from.keep_unmatched);
}

void EncodeTensor(const TreeTensor& from, v1::TreeTensor* to) {
  to->set_name(from.name);
  rpc::Encode(from.shape, to->mutable_shape());
  if (from.dtype.has_value()) {
    to->set_dtype(rpc::Encode(*from.dtype));
  }
  EncodeAxes(from.axes, to->mutable_axes());
}

absl::Status Append(const v1::ResolveTreeResponse& from, TreeAnswer* to) {
  for (const v1::TreeSpec& wire : from.specs()) {
    TreeSpec& spec = to->specs.emplace_back();
    SHARDMESH_ASSIGN_OR_RETURN(spec.requested, DecodeAnswer(wire.requested()));
    SHARDMESH_ASSIGN_OR_RETURN(spec.effective, DecodeAnswer(wire.effective()));
    SHARDMESH_RETURN_IF_ERROR(DecodeAnswers(wire.corrections(), &spec.corrections));
  }
  for (const v1::TreePlacement& wire : from.placements()) {
    if (wire.spec_index() >= to->specs.size()) {
      return BadAnswer(
          absl::InvalidArgumentError(StrCat("spec ", wire.spec_index(), " of ", to->specs.size())));
    }
    TreePlacement& placement = to->placements.emplace_back();
    placement.spec_index = wire.spec_index();
    if (wire.rule_index() >= 0) {
      placement.rule_index = wire.rule_index();
    }
    placement.unmatched = wire.unmatched();
    placement.bytes_per_device = wire.bytes_per_device();
  }
  if (from.has_summary()) {
    const v1::LayoutSummary& wire = from.summary();
    to->summary = {.tensors = wire.tensors(),
                   .total_bytes = wire.total_bytes(),
                   .min_bytes_per_device = wire.min_bytes_per_device(),
                   .max_bytes_per_device = wire.max_bytes_per_device(),
                   .replicated_bytes = wire.replicated_bytes(),
                   .replicated_tensors = wire.replicated_tensors(),
                   .corrected_tensors = wire.corrected_tensors(),
                   .devices = wire.devices()};
    to->revision = from.revision();
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SpecAnswer> CoordinatorClient::ResolveSpec(const ResolveSpecQuestion& question,
                                                          const Options& options) {
  v1::ResolveSpecRequest request;
  EncodeAxes(question.axes, request.mutable_axes());
  request.set_preset(question.preset);
  if (question.mode.has_value()) {
    rpc::Encode(*question.mode, request.mutable_mode());
  }
  EncodeSelector(question.profile, request.mutable_profile());
  if (question.shape.has_value()) {
    rpc::Encode(*question.shape, request.mutable_shape()->mutable_sizes());
    EncodeSelector(question.mesh, request.mutable_mesh());
  }
  request.set_policy(EncodePolicy(question.strict));
  request.set_compatibility(EncodeCompatibility(question.compatibility));
  request.set_explain(question.explain);
  v1::ResolveSpecResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection_->Call(
      connection_->layouts, &v1::ResolveService::Stub::ResolveSpec, request, options, &response));
  SpecAnswer answer;
  SHARDMESH_ASSIGN_OR_RETURN(answer.requested, DecodeAnswer(response.requested()));
  SHARDMESH_RETURN_IF_ERROR(DecodeFit(response, &answer));
  SHARDMESH_RETURN_IF_ERROR(DecodeAnswers(response.explanation(), &answer.explanation));
  if (question.shape.has_value()) {
    answer.shard_shape = ShapeOf(response.shard_shape());
  }
  return answer;
}

absl::StatusOr<SpecAnswer> CoordinatorClient::CorrectSpec(const CorrectSpecQuestion& question,
                                                          const Options& options) {
  v1::CorrectSpecRequest request;
  rpc::Encode(question.spec, request.mutable_spec());
  rpc::Encode(question.shape, request.mutable_shape()->mutable_sizes());
  EncodeSelector(question.mesh, request.mutable_mesh());
  request.set_policy(EncodePolicy(question.strict));
  request.set_compatibility(EncodeCompatibility(question.compatibility));
  v1::CorrectSpecResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection_->Call(
      connection_->layouts, &v1::ResolveService::Stub::CorrectSpec, request, options, &response));
  SpecAnswer answer;
  answer.requested = question.spec;
  SHARDMESH_RETURN_IF_ERROR(DecodeFit(response, &answer));
  answer.shard_shape = ShapeOf(response.shard_shape());
  return answer;
}

absl::StatusOr<TilingAnswer> CoordinatorClient::DescribeTiling(const TilingQuestion& question,
                                                               const Options& options) {
  v1::DescribeTilingRequest request;
  EncodeSelector(question.mesh, request.mutable_mesh());
  rpc::Encode(question.spec, request.mutable_spec());
  rpc::Encode(question.shape, request.mutable_shape()->mutable_sizes());
  request.mutable_devices()->Add(question.devices.begin(), question.devices.end());
  request.set_compatibility(EncodeCompatibility(question.compatibility));
  v1::DescribeTilingResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection_->Call(connection_->layouts,
                                              &v1::ResolveService::Stub::DescribeTiling, request,
                                              options, &response));
  TilingAnswer answer;
  answer.shard_shape = ShapeOf(response.shard_shape());
  answer.distinct_tiles = response.distinct_tiles();
  answer.fully_replicated = response.fully_replicated();
  for (const v1::DeviceTile& wire : response.tiles()) {
    DeviceTile& tile = answer.tiles.emplace_back();
    tile.device = wire.device();
    SHARDMESH_ASSIGN_OR_RETURN(tile.tile, DecodeAnswer(wire.tile()));
    tile.replica_id = wire.replica_id();
  }
  answer.revision = response.revision();
  return answer;
}

absl::StatusOr<std::vector<NamedPreset>> CoordinatorClient::ListPresets(const Options& options) {
  v1::ListPresetsResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection_->Call(connection_->layouts,
                                              &v1::ResolveService::Stub::ListPresets,
                                              v1::ListPresetsRequest(), options, &response));
  std::vector<NamedPreset> presets;
  for (const v1::AxisPreset& wire : response.presets()) {
    NamedPreset& preset = presets.emplace_back();
    preset.name = wire.name();
    SHARDMESH_RETURN_IF_ERROR(DecodeAnswers(wire.axes(), &preset.axes));
    SHARDMESH_ASSIGN_OR_RETURN(const std::optional<Mode> mode, DecodeAnswer(wire.mode()));
    preset.mode = mode.value_or(RuntimeMode::kTrain);
  }
  return presets;
}

absl::StatusOr<TreeAnswer> CoordinatorClient::ResolveTree(const TreeQuestion& question,
                                                          absl::Span<const TreeTensor> tensors,
                                                          const Options& options) {
  TreeAnswer answer;
  SHARDMESH_RETURN_IF_ERROR(Connection::Repeat(options, [&] {
    answer = TreeAnswer();
    grpc::ClientContext context;
    rpc::Apply(options, &context);
    const auto stream = connection_->layouts->ResolveTree(&context);
    absl::Status unreadable;
    WriteWhileReading(
        [&] {
          v1::ResolveTreeRequest request;
          EncodeHeader(question, request.mutable_header());
          bool is_open = stream->Write(request);
          for (size_t i = 0; i < tensors.size() && is_open;) {
            request.Clear();
            for (size_t bytes = 0; i < tensors.size() && bytes < kBatchBytes; ++i) {
              v1::TreeTensor& tensor = *request.mutable_tensors()->add_tensors();
              EncodeTensor(tensors[i], &tensor);
              bytes += tensor.ByteSizeLong();
            }
            is_open = stream->Write(request);
          }
          stream->WritesDone();
        },
        [&] {
          v1::ResolveTreeResponse response;
          while (unreadable.ok() && stream->Read(&response)) {
            unreadable = Append(response, &answer);
          }
          if (!unreadable.ok()) {
            context.TryCancel();
          }
        });
    const absl::Status status = connection_->StatusOf(stream->Finish());
    return unreadable.ok() ? status : unreadable;
  }));
  if (answer.placements.size() != tensors.size()) {
    return BadAnswer(absl::InvalidArgumentError(
        StrCat(answer.placements.size(), " placements of ", tensors.size(), " tensors")));
  }
  return answer;
}

}  // namespace shardmesh::client
