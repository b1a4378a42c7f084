// LayoutClient: questions about plans.
#include "client/layouts.h"

#include <utility>

#include "client/client_core.h"
#include "client/remote/coordinator_connection.h"
#include "client/remote/tree_encoder.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/layout_codec.h"
#include "rpc/codec/spec_codec.h"
#include "status/status_macros.h"

namespace shardmesh::client {
namespace {

absl::StatusOr<ReshardTransfer> DecodeTransfer(const v1::ReshardLink& from) {
  ReshardTransfer to;
  to.source = from.source();
  to.destination = from.destination();
  to.bytes = from.bytes();
  SHARDMESH_ASSIGN_OR_RETURN(to.tile, DecodeAnswer(from.tile()));
  return to;
}

absl::Status DecodeTransfers(const google::protobuf::RepeatedPtrField<v1::ReshardLink>& from,
                             std::vector<ReshardTransfer>* to) {
  to->reserve(static_cast<size_t>(from.size()));
  for (const v1::ReshardLink& wire : from) {
    SHARDMESH_ASSIGN_OR_RETURN(ReshardTransfer transfer, DecodeTransfer(wire));
    to->push_back(std::move(transfer));
  }
  return absl::OkStatus();
}

absl::StatusOr<ReshardDevice> DecodeDevice(const v1::ReshardDevice& from) {
  ReshardDevice to;
  to.device = from.device();
  if (from.has_source_tile()) {
    SHARDMESH_ASSIGN_OR_RETURN(to.part.src, DecodeAnswer(from.source_tile()));
  }
  SHARDMESH_ASSIGN_OR_RETURN(to.part.dst, DecodeAnswer(from.destination_tile()));
  to.part.kept = from.kept_elements();
  to.part.need = from.needed_elements();
  to.part.region_count = from.regions_size();
  to.needed_bytes = from.needed_bytes();
  SHARDMESH_RETURN_IF_ERROR(DecodeTransfers(from.regions(), &to.regions));
  return to;
}

compat::v1::ListShardingsRequest::Question EncodeQuestion(ShardingsQuestion::Kind kind) {
  switch (kind) {
    case ShardingsQuestion::Kind::kLayouts:
      break;
    case ShardingsQuestion::Kind::kLayoutsOnMesh:
      return compat::v1::ListShardingsRequest::QUESTION_LAYOUTS_ON_MESH;
    case ShardingsQuestion::Kind::kSpecs:
      return compat::v1::ListShardingsRequest::QUESTION_SPECS;
  }
  return compat::v1::ListShardingsRequest::QUESTION_LAYOUTS;
}

absl::StatusOr<ShardingsEntry> DecodeEntry(const compat::v1::LeafSharding& from) {
  ShardingsEntry to;
  to.name = from.name();
  if (from.has_spec()) {
    SHARDMESH_ASSIGN_OR_RETURN(to.spec, DecodeAnswer(from.spec()));
  }
  if (from.has_mesh()) {
    // Decode with kExact, which accepts any mesh, even if the request was not exact: the server has
    // already validated the mesh.
    absl::StatusOr<Mesh> mesh = rpc::Decode(from.mesh(), std::nullopt, Compatibility::kExact);
    if (!mesh.ok()) {
      return BadAnswer(mesh.status());
    }
    to.mesh = *std::move(mesh);
  }
  return to;
}

}  // namespace

absl::StatusOr<ReshardAnswer> LayoutClient::PlanReshard(const ReshardQuestion& question,
                                                        const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::PlanReshardRequest request;
  EncodeSelector(question.from_mesh, request.mutable_source()->mutable_mesh());
  rpc::Encode(question.from, request.mutable_source()->mutable_spec());
  EncodeSelector(question.to_mesh, request.mutable_destination()->mutable_mesh());
  rpc::Encode(question.to, request.mutable_destination()->mutable_spec());
  rpc::Encode(question.shape, request.mutable_shape()->mutable_sizes());
  request.set_dtype(rpc::Encode(question.dtype));
  request.mutable_devices()->Add(question.devices.begin(), question.devices.end());
  request.mutable_sources()->Add(question.sources.begin(), question.sources.end());
  request.set_omit_regions(question.omit_regions);
  request.set_compatibility(EncodeCompatibility(question.compatibility));
  v1::PlanReshardResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(
      connection.reshards, &v1::ReshardService::Stub::PlanReshard, request, limit, &response));
  ReshardAnswer answer;
  answer.pattern = rpc::Decode(response.pattern());
  for (const v1::ReshardStep& step : response.steps()) {
    answer.steps.push_back(rpc::Decode(step));
  }
  answer.elements = response.elements();
  answer.totals.noop = response.noop();
  answer.totals.kept = response.total_kept_elements();
  answer.totals.need = response.total_needed_elements();
  answer.totals.max_need = response.max_needed_elements();
  answer.totals.receivers = response.receivers();
  answer.totals.links = response.links();
  answer.total_needed_bytes = response.total_needed_bytes();
  answer.max_needed_bytes = response.max_needed_bytes();
  answer.max_link_bytes = response.max_link_bytes();
  answer.mean_sent_bytes = response.mean_sent_bytes();
  if (response.has_max_sent_bytes()) {
    answer.max_sent_bytes = response.max_sent_bytes();
  }
  for (const v1::ReshardDevice& wire : response.devices()) {
    SHARDMESH_ASSIGN_OR_RETURN(ReshardDevice device, DecodeDevice(wire));
    answer.devices.push_back(std::move(device));
  }
  SHARDMESH_RETURN_IF_ERROR(DecodeTransfers(response.sent(), &answer.sent));
  answer.revision = response.revision();
  return answer;
}

absl::StatusOr<AnalyzeAnswer> LayoutClient::AnalyzeLayout(const AnalyzeQuestion& question,
                                                          absl::Span<const TreeTensor> tensors,
                                                          const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::AnalyzeLayoutResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Repeat(limit, [&](const CallLimit& attempt) {
    response.Clear();
    CallContext context(connection, attempt);
    const auto stream = connection.layouts->AnalyzeLayout(context.get(), &response);
    v1::AnalyzeLayoutRequest request;
    EncodeSelector(question.mesh, request.mutable_header()->mutable_mesh());
    request.mutable_header()->set_stored_tree(question.stored_tree);
    WriteTree(stream.get(), &request, tensors);
    stream->WritesDone();
    return connection.StatusOf(stream->Finish());
  }));
  AnalyzeAnswer answer;
  SHARDMESH_ASSIGN_OR_RETURN(answer.report, DecodeReport(response.report()));
  answer.revision = response.revision();
  return answer;
}

absl::StatusOr<ShardingStrategyAnswer> LayoutClient::AnalyzeShardingStrategy(
    const AnalyzeQuestion& question, absl::Span<const TreeTensor> tensors,
    const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  compat::v1::AnalyzeShardingStrategyResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Repeat(limit, [&](const CallLimit& attempt) {
    response.Clear();
    CallContext context(connection, attempt);
    const auto stream = connection.compat->AnalyzeShardingStrategy(context.get(), &response);
    compat::v1::AnalyzeShardingStrategyRequest request;
    EncodeSelector(question.mesh, request.mutable_header()->mutable_mesh());
    request.mutable_header()->set_stored_tree(question.stored_tree);
    WriteTree(stream.get(), &request, tensors);
    stream->WritesDone();
    return connection.StatusOf(stream->Finish());
  }));
  const auto decode = [](const compat::v1::PythonCount& from) {
    return PythonCount{from.value(), from.is_float()};
  };
  return ShardingStrategyAnswer{
      .analysis = {.total_parameters = decode(response.total_parameters()),
                   .sharded_parameters = decode(response.sharded_parameters()),
                   .balance_score = response.balance_score()},
      .revision = response.revision()};
}

absl::StatusOr<SearchAnswer> LayoutClient::SearchMeshes(const SearchQuestion& question,
                                                        absl::Span<const TreeTensor> tensors,
                                                        const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::SearchMeshesResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Repeat(limit, [&](const CallLimit& attempt) {
    response.Clear();
    CallContext context(connection, attempt);
    const auto stream = connection.layouts->SearchMeshes(context.get(), &response);
    v1::SearchMeshesRequest request;
    v1::SearchMeshesHeader* header = request.mutable_header();
    header->set_devices(question.devices);
    for (const SearchAxis& axis : question.axes) {
      v1::SearchAxis* wire = header->add_axes();
      wire->set_name(axis.name);
      wire->set_min_size(axis.min_size);
      if (axis.max_size.has_value()) wire->set_max_size(*axis.max_size);
    }
    if (question.device_memory_bytes.has_value()) {
      header->set_device_memory_bytes(*question.device_memory_bytes);
    }
    if (question.rules.index() != 0) {
      EncodeSelector(question.rules, header->mutable_rule_set());
    }
    EncodeSelector(question.profile, header->mutable_profile());
    if (question.mode.has_value()) {
      rpc::Encode(*question.mode, header->mutable_mode());
    }
    header->set_max_results(static_cast<int32_t>(question.keep));
    for (const MeshCriterion criterion : question.ranking) {
      header->add_ranking(rpc::Encode(criterion));
    }
    header->set_stored_tree(question.stored_tree);
    WriteTree(stream.get(), &request, tensors);
    stream->WritesDone();
    return connection.StatusOf(stream->Finish());
  }));
  SearchAnswer answer;
  answer.result.evaluated = response.evaluated();
  answer.result.fitting = response.fitting();
  for (const v1::MeshCandidate& wire : response.meshes()) {
    MeshCandidate& candidate = answer.result.best.emplace_back();
    for (const v1::MeshAxis& axis : wire.mesh().axes()) {
      candidate.sizes.push_back(axis.size());
    }
    if (candidate.sizes.size() != question.axes.size()) {
      return BadAnswer(absl::InvalidArgumentError("a mesh of other axes"));
    }
    candidate.fits = wire.fits();
    candidate.device_bytes = wire.device_bytes();
    candidate.wasted_bytes = wire.wasted_bytes();
    candidate.sharded_bytes = wire.sharded_bytes();
    candidate.corrected_tensors = wire.corrected_tensors();
    candidate.unplaceable_tensors = wire.unplaceable_tensors();
  }
  answer.revision = response.revision();
  return answer;
}

absl::StatusOr<std::vector<ShardingsEntry>> LayoutClient::ListShardings(
    const ShardingsQuestion& question, const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  compat::v1::ListShardingsRequest request;
  request.set_question(EncodeQuestion(question.kind));
  for (const HeldLeaf& leaf : question.leaves) {
    rpc::Encode(leaf, request.add_leaves());
  }
  if (question.prefix.has_value()) {
    request.set_prefix(*question.prefix);
  }
  EncodeSelector(question.mesh, request.mutable_mesh());
  request.set_compatibility(EncodeCompatibility(question.compatibility));
  std::vector<ShardingsEntry> entries;
  SHARDMESH_RETURN_IF_ERROR(connection.Repeat(limit, [&](const CallLimit& attempt) -> absl::Status {
    entries.clear();
    CallContext context(connection, attempt);
    const auto stream = connection.compat->ListShardings(context.get(), request);
    compat::v1::ListShardingsResponse response;
    while (stream->Read(&response)) {
      for (const compat::v1::LeafSharding& wire : response.shardings()) {
        absl::StatusOr<ShardingsEntry> entry = DecodeEntry(wire);
        if (!entry.ok()) {
          context.TryCancel();
          stream->Finish();
          return entry.status();
        }
        entries.push_back(*std::move(entry));
      }
    }
    return connection.StatusOf(stream->Finish());
  }));
  return entries;
}

}  // namespace shardmesh::client
