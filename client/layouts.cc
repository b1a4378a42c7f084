// LayoutClient: questions about the specs of arrays and trees.
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

void EncodeAxes(absl::Span<const AxisValue> from,
                google::protobuf::RepeatedPtrField<v1::AxisValue>* to) {
  for (const AxisValue& axis : from) {
    rpc::Encode(axis, to->Add());
  }
}

// Decodes corrections with their nested fixes.
absl::Status DecodeCorrections(const google::protobuf::RepeatedPtrField<v1::Correction>& from,
                               std::vector<Correction>* corrections, std::vector<Fix>* fixes) {
  SHARDMESH_RETURN_IF_ERROR(DecodeAnswers(from, corrections));
  for (int i = 0; i < from.size(); ++i) {
    for (const v1::Fix& wire : from[i].fixes()) {
      SHARDMESH_ASSIGN_OR_RETURN(Fix fix, DecodeAnswer(wire));
      fix.correction = i;
      fixes->push_back(std::move(fix));
    }
  }
  return absl::OkStatus();
}

// Decodes the fields that the answers of ResolveSpec and CorrectSpec have in common.
template <typename Response>
absl::Status DecodeFit(const Response& from, SpecAnswer* to) {
  SHARDMESH_ASSIGN_OR_RETURN(to->effective, DecodeAnswer(from.effective()));
  SHARDMESH_RETURN_IF_ERROR(DecodeCorrections(from.corrections(), &to->corrections, &to->fixes));
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
  to->set_suggest_fixes(from.suggest_fixes);
  to->set_own_specs_must_suit_mesh(from.own_specs_must_suit_mesh);
  to->set_stored_tree(from.stored_tree);
}

absl::Status Append(const v1::TreeSpec& from, std::vector<TreeSpec>* to) {
  TreeSpec& spec = to->emplace_back();
  SHARDMESH_ASSIGN_OR_RETURN(spec.requested, DecodeAnswer(from.requested()));
  SHARDMESH_ASSIGN_OR_RETURN(spec.effective, DecodeAnswer(from.effective()));
  spec.fixes_left_out = from.fixes_left_out();
  return DecodeCorrections(from.corrections(), &spec.corrections, &spec.fixes);
}

// Returns whether a column of the answer, which has `have` entries, is empty or has an entry for
// each of `count` tensors.
bool IsColumn(int have, int count) { return have == 0 || have == count; }

absl::Status Append(const v1::TreePlacements& from, TreeAnswer* to) {
  const int count = from.spec_indexes_size();
  if (!IsColumn(from.rules_size(), count) || !IsColumn(from.bytes_per_device_size(), count)) {
    return BadAnswer(absl::InvalidArgumentError("columns of placements differ in length"));
  }
  const size_t first = to->placements.size();
  to->placements.resize(first + static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    TreePlacement& placement = to->placements[first + static_cast<size_t>(i)];
    placement.spec_index = from.spec_indexes(i);
    if (placement.spec_index >= to->specs.size()) {
      return BadAnswer(absl::InvalidArgumentError(
          StrCat("spec ", placement.spec_index, " of ", to->specs.size())));
    }
    if (from.rules_size() != 0 && from.rules(i) != 0) {
      placement.rule_index = static_cast<int64_t>(from.rules(i)) - 1;
    }
    if (from.bytes_per_device_size() != 0) {
      placement.bytes_per_device = from.bytes_per_device(i);
    }
  }
  for (const uint32_t i : from.unmatched()) {
    if (i >= static_cast<uint32_t>(count)) {
      return BadAnswer(absl::InvalidArgumentError(StrCat("placement ", i, " of ", count)));
    }
    to->placements[first + i].unmatched = true;
  }
  return absl::OkStatus();
}

absl::Status Append(const v1::ResolveTreeResponse& from, TreeAnswer* to) {
  for (const v1::TreeSpec& wire : from.specs()) {
    SHARDMESH_RETURN_IF_ERROR(Append(wire, &to->specs));
  }
  SHARDMESH_RETURN_IF_ERROR(Append(from.placements(), to));
  if (from.has_report()) {
    SHARDMESH_ASSIGN_OR_RETURN(to->report, DecodeReport(from.report()));
    to->revision = from.revision();
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TreeReport> DecodeReport(const v1::LayoutReport& from) {
  TreeReport report;
  absl::StatusOr<LayoutReport> layout = rpc::Decode(from);
  if (!layout.ok()) {
    return BadAnswer(layout.status());
  }
  report.layout = *std::move(layout);
  report.devices = from.devices();
  report.corrected_tensors = from.corrected_tensors();
  report.replicated_tensors = from.replicated_tensors();
  report.unmatched_tensors = from.unmatched_tensors();
  return report;
}

namespace {

void Encode(const ResolveSpecQuestion& question, v1::ResolveSpecRequest* request) {
  EncodeAxes(question.axes, request->mutable_axes());
  request->set_preset(question.preset);
  if (question.mode.has_value()) {
    rpc::Encode(*question.mode, request->mutable_mode());
  }
  EncodeSelector(question.profile, request->mutable_profile());
  if (question.shape.has_value()) {
    rpc::Encode(*question.shape, request->mutable_shape()->mutable_sizes());
    EncodeSelector(question.mesh, request->mutable_mesh());
  }
  request->set_policy(EncodePolicy(question.strict));
  request->set_compatibility(EncodeCompatibility(question.compatibility));
  request->set_explain(question.explain);
  request->set_suggest_fixes(question.suggest_fixes);
}

absl::StatusOr<SpecAnswer> DecodeSpec(const ResolveSpecQuestion& question,
                                      const v1::ResolveSpecResponse& response) {
  SpecAnswer answer;
  SHARDMESH_ASSIGN_OR_RETURN(answer.requested, DecodeAnswer(response.requested()));
  SHARDMESH_RETURN_IF_ERROR(DecodeFit(response, &answer));
  SHARDMESH_RETURN_IF_ERROR(DecodeAnswers(response.explanation(), &answer.explanation));
  const Mesh* const mesh = std::get_if<Mesh>(&question.mesh);
  if (question.shape.has_value() && (mesh == nullptr || !mesh->empty())) {
    answer.shard_shape = ShapeOf(response.shard_shape());
  }
  return answer;
}

// Decodes the answers of a batch, one for each question. `decode` makes an answer from a question
// and its response.
template <typename Answer, typename Question, typename Response, typename Decode>
absl::StatusOr<std::vector<absl::StatusOr<Answer>>> DecodeBatch(
    absl::Span<const Question> questions, const Response& response, const Decode& decode) {
  if (response.results_size() != std::ssize(questions)) {
    return absl::InternalError(StrCat("the coordinator answered ", response.results_size(), " of ",
                                      questions.size(), " questions"));
  }
  std::vector<absl::StatusOr<Answer>> answers;
  answers.reserve(questions.size());
  for (size_t i = 0; i < questions.size(); ++i) {
    const auto& result = response.results(static_cast<int>(i));
    if (result.has_error()) {
      const absl::Status error = rpc::Decode(result.error());
      answers.emplace_back(error.ok() ? BadAnswer(absl::InvalidArgumentError(
                                            StrCat("the error of question ", i, " is OK")))
                                      : error);
    } else if (!result.has_response()) {
      answers.emplace_back(BadAnswer(absl::InvalidArgumentError(
          StrCat("question ", i, " has neither an answer nor an error"))));
    } else {
      answers.push_back(decode(questions[i], result.response()));
    }
  }
  return answers;
}

}  // namespace

absl::StatusOr<SpecAnswer> LayoutClient::ResolveSpec(const ResolveSpecQuestion& question,
                                                     const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::ResolveSpecRequest request;
  Encode(question, &request);
  v1::ResolveSpecResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(
      connection.resolve, &v1::ResolveService::Stub::ResolveSpec, request, limit, &response));
  return DecodeSpec(question, response);
}

absl::StatusOr<EffectiveSpec> LayoutClient::ResolveEffectiveSpec(
    const EffectiveSpecQuestion& question, const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::ResolveEffectiveSpecRequest request;
  request.mutable_axes()->Add(question.axes.begin(), question.axes.end());
  request.set_preset(question.preset);
  if (!question.mode.empty()) request.set_mode(question.mode);
  request.mutable_shape()->Add(question.shape.begin(), question.shape.end());
  if (!question.profile.empty()) request.set_profile(question.profile);
  if (!question.mesh.empty()) request.set_mesh(question.mesh);
  request.set_policy(EncodePolicy(question.strict));
  v1::ResolveEffectiveSpecResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(connection.resolve,
                                            &v1::ResolveService::Stub::ResolveEffectiveSpec,
                                            request, limit, &response));
  EffectiveSpec answer;
  std::vector<SpecEntry> entries;
  int next = 0;
  for (const int32_t count : response.axis_counts()) {
    if (count < 0 || count > response.axes_size() - next) {
      return BadAnswer(absl::InvalidArgumentError(
          StrCat("a dimension has ", count, " of ", response.axes_size() - next, " axes")));
    }
    std::vector<AxisName> axes(response.axes().begin() + next,
                               response.axes().begin() + next + count);
    next += count;
    entries.push_back(SpecEntry::Axes(std::move(axes)));
  }
  answer.spec = PartitionSpec(std::move(entries));
  answer.corrected_dimensions.assign(response.corrected_dimensions().begin(),
                                     response.corrected_dimensions().end());
  answer.shard_shape = ShapeOf(response.shard_shape());
  answer.revision = response.revision();
  return answer;
}

absl::StatusOr<std::vector<absl::StatusOr<SpecAnswer>>> LayoutClient::BatchResolveSpecs(
    absl::Span<const ResolveSpecQuestion> questions, const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::BatchResolveSpecsRequest request;
  for (const ResolveSpecQuestion& question : questions) Encode(question, request.add_requests());
  v1::BatchResolveSpecsResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(
      connection.resolve, &v1::ResolveService::Stub::BatchResolveSpecs, request, limit, &response));
  return DecodeBatch<SpecAnswer>(questions, response, DecodeSpec);
}

absl::StatusOr<std::vector<AxisValue>> LayoutClient::ResolveAxes(
    const ResolveAxesQuestion& question, const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::ResolveAxesRequest request;
  EncodeAxes(question.axes, request.mutable_axes());
  if (question.mode.has_value()) {
    rpc::Encode(*question.mode, request.mutable_mode());
  }
  EncodeSelector(question.profile, request.mutable_profile());
  request.set_compatibility(EncodeCompatibility(question.compatibility));
  v1::ResolveAxesResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(
      connection.resolve, &v1::ResolveService::Stub::ResolveAxes, request, limit, &response));
  std::vector<AxisValue> values;
  SHARDMESH_RETURN_IF_ERROR(DecodeAnswers(response.values(), &values));
  return values;
}

absl::StatusOr<SpecAnswer> LayoutClient::CorrectSpec(const CorrectSpecQuestion& question,
                                                     const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::CorrectSpecRequest request;
  rpc::Encode(question.spec, request.mutable_spec());
  rpc::Encode(question.shape, request.mutable_shape()->mutable_sizes());
  EncodeSelector(question.mesh, request.mutable_mesh());
  request.set_policy(EncodePolicy(question.strict));
  request.set_compatibility(EncodeCompatibility(question.compatibility));
  request.set_suggest_fixes(question.suggest_fixes);
  request.set_allow_empty_mesh(question.allow_empty_mesh);
  v1::CorrectSpecResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(
      connection.resolve, &v1::ResolveService::Stub::CorrectSpec, request, limit, &response));
  SpecAnswer answer;
  answer.requested = question.spec;
  SHARDMESH_RETURN_IF_ERROR(DecodeFit(response, &answer));
  answer.shard_shape = ShapeOf(response.shard_shape());
  return answer;
}

namespace {

void Encode(const ConstrainQuestion& question, v1::ConstrainArrayRequest* request) {
  if (const auto* spec = std::get_if<PartitionSpec>(&question.layout)) {
    rpc::Encode(*spec, request->mutable_spec());
  } else {
    if (const auto* axes = std::get_if<std::vector<AxisValue>>(&question.layout)) {
      EncodeAxes(*axes, request->mutable_axes()->mutable_axes());
    } else {
      request->set_preset(std::get<std::string>(question.layout));
    }
    if (question.mode.has_value()) {
      rpc::Encode(*question.mode, request->mutable_mode());
    }
    EncodeSelector(question.profile, request->mutable_profile());
  }
  rpc::Encode(question.shape, request->mutable_shape()->mutable_sizes());
  EncodeSelector(question.mesh, request->mutable_mesh());
  request->set_auto_correct(question.auto_correct);
  request->set_policy(EncodePolicy(question.strict));
  request->set_compatibility(EncodeCompatibility(question.compatibility));
}

absl::StatusOr<ConstraintAnswer> DecodeConstraint(const ConstrainQuestion& /*question*/,
                                                  const v1::ConstrainArrayResponse& response) {
  ConstraintAnswer answer;
  SHARDMESH_ASSIGN_OR_RETURN(answer.requested, DecodeAnswer(response.requested()));
  if (response.has_constraint()) {
    SHARDMESH_ASSIGN_OR_RETURN(answer.constraint, DecodeAnswer(response.constraint()));
  }
  SHARDMESH_RETURN_IF_ERROR(DecodeAnswers(response.corrections(), &answer.corrections));
  answer.revision = response.revision();
  return answer;
}

}  // namespace

absl::StatusOr<ConstraintAnswer> LayoutClient::ConstrainArray(const ConstrainQuestion& question,
                                                              const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::ConstrainArrayRequest request;
  Encode(question, &request);
  v1::ConstrainArrayResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(
      connection.resolve, &v1::ResolveService::Stub::ConstrainArray, request, limit, &response));
  return DecodeConstraint(question, response);
}

absl::StatusOr<std::vector<absl::StatusOr<ConstraintAnswer>>> LayoutClient::BatchConstrainArrays(
    absl::Span<const ConstrainQuestion> questions, const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::BatchConstrainArraysRequest request;
  for (const ConstrainQuestion& question : questions) Encode(question, request.add_requests());
  v1::BatchConstrainArraysResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(connection.resolve,
                                            &v1::ResolveService::Stub::BatchConstrainArrays,
                                            request, limit, &response));
  return DecodeBatch<ConstraintAnswer>(questions, response, DecodeConstraint);
}

absl::StatusOr<Comparison> LayoutClient::CompareSpecs(const CompareQuestion& question,
                                                      const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::CompareSpecsRequest request;
  rpc::Encode(question.a, request.mutable_a());
  rpc::Encode(question.b, request.mutable_b());
  EncodeSelector(question.mesh, request.mutable_mesh());
  request.set_rank(static_cast<int32_t>(question.rank));
  request.set_compatibility(EncodeCompatibility(question.compatibility));
  v1::CompareSpecsResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(
      connection.resolve, &v1::ResolveService::Stub::CompareSpecs, request, limit, &response));
  return Comparison{.equal = response.equal(),
                    .equivalent = response.equivalent(),
                    .a_fully_replicated = response.a_fully_replicated(),
                    .b_fully_replicated = response.b_fully_replicated()};
}

absl::StatusOr<TensorExplanation> LayoutClient::ExplainTensor(const ExplainQuestion& question,
                                                              const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::ExplainTensorRequest request;
  request.set_name(question.name);
  rpc::Encode(question.shape, request.mutable_shape()->mutable_sizes());
  if (question.axes.has_value()) {
    EncodeAxes(*question.axes, request.mutable_axes()->mutable_axes());
    EncodeSelector(question.profile, request.mutable_profile());
    if (question.mode.has_value()) {
      rpc::Encode(*question.mode, request.mutable_mode());
    }
  } else {
    EncodeSelector(question.rules, request.mutable_rule_set());
  }
  EncodeSelector(question.mesh, request.mutable_mesh());
  request.set_compatibility(EncodeCompatibility(question.compatibility));
  v1::ExplainTensorResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(
      connection.resolve, &v1::ResolveService::Stub::ExplainTensor, request, limit, &response));
  TensorExplanation answer;
  SHARDMESH_ASSIGN_OR_RETURN(answer.spec.requested, DecodeAnswer(response.spec().requested()));
  SHARDMESH_ASSIGN_OR_RETURN(answer.spec.effective, DecodeAnswer(response.spec().effective()));
  SHARDMESH_RETURN_IF_ERROR(DecodeCorrections(response.spec().corrections(),
                                              &answer.spec.corrections, &answer.spec.fixes));
  SHARDMESH_RETURN_IF_ERROR(DecodeAnswers(response.steps(), &answer.spec.explanation));
  answer.spec.shard_shape = ShapeOf(response.shard_shape());
  answer.spec.revision = response.revision();
  if (response.has_rule_index()) {
    answer.rule_index = response.rule_index();
  }
  return answer;
}

absl::StatusOr<TilingAnswer> LayoutClient::DescribeTiling(const TilingQuestion& question,
                                                          const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::DescribeTilingRequest request;
  EncodeSelector(question.mesh, request.mutable_mesh());
  rpc::Encode(question.spec, request.mutable_spec());
  rpc::Encode(question.shape, request.mutable_shape()->mutable_sizes());
  request.mutable_devices()->Add(question.devices.begin(), question.devices.end());
  if (question.range.has_value()) {
    rpc::Encode(*question.range, request.mutable_range());
  }
  request.mutable_replica_groups_of()->Add(question.replica_groups_of.begin(),
                                           question.replica_groups_of.end());
  rpc::Encode(question.cut_points, request.mutable_cut_points());
  request.set_uneven(rpc::Encode(question.uneven));
  request.mutable_weights()->Add(question.weights.begin(), question.weights.end());
  request.set_compatibility(EncodeCompatibility(question.compatibility));
  v1::DescribeTilingResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(
      connection.layouts, &v1::LayoutService::Stub::DescribeTiling, request, limit, &response));
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
  for (const v1::OwnedTile& wire : response.owners()) {
    OwnedTile& owned = answer.owners.emplace_back();
    SHARDMESH_ASSIGN_OR_RETURN(owned.tile, DecodeAnswer(wire.tile()));
    owned.devices.assign(wire.devices().begin(), wire.devices().end());
  }
  for (const v1::DeviceGroup& wire : response.replica_groups()) {
    answer.replica_groups.emplace_back(wire.devices().begin(), wire.devices().end());
  }
  SHARDMESH_ASSIGN_OR_RETURN(answer.cut_points,
                             rpc::DecodeCutPoints(response.cut_points(), question.shape));
  answer.revision = response.revision();
  return answer;
}

absl::StatusOr<std::vector<NamedPreset>> LayoutClient::ListPresets(const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::ListPresetsResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(connection.resolve,
                                            &v1::ResolveService::Stub::ListPresets,
                                            v1::ListPresetsRequest(), limit, &response));
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

absl::StatusOr<TreeAnswer> LayoutClient::ResolveTree(const TreeQuestion& question,
                                                     absl::Span<const TreeTensor> tensors,
                                                     const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  TreeAnswer answer;
  SHARDMESH_RETURN_IF_ERROR(connection.Repeat(limit, [&](const CallLimit& attempt) {
    answer = TreeAnswer();
    CallContext context(connection, attempt);
    const auto stream = connection.layouts->ResolveTree(context.get());
    absl::Status unreadable;
    const absl::Status exchanged = WriteWhileReading(
        [&] {
          v1::ResolveTreeRequest request;
          EncodeHeader(question, request.mutable_header());
          WriteTree(stream.get(), &request, tensors);
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
    if (!exchanged.ok()) context.TryCancel();
    const absl::Status status = connection.StatusOf(stream->Finish());
    if (!exchanged.ok()) return exchanged;
    return unreadable.ok() ? status : unreadable;
  }));
  if (question.stored_tree.empty() && answer.placements.size() != tensors.size()) {
    return BadAnswer(absl::InvalidArgumentError(
        StrCat(answer.placements.size(), " placements of ", tensors.size(), " tensors")));
  }
  return answer;
}

}  // namespace shardmesh::client
