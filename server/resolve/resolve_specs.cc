// Answers about the spec of one array: resolve, correct, constrain, compare, explain, lay out.
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>

#include "rpc/codec/array_codec.h"
#include "rpc/codec/field_check.h"
#include "server/resolve/resolve_answers.h"
#include "sharding/layout/logical_sharding.h"
#include "sharding/presets.h"
#include "sharding/rules/rule_explanation.h"
#include "sharding/spec.h"
#include "sharding/tile.h"
#include "sharding/uneven.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

constexpr int64_t kMaxListedPieces = 65'536;

// A question about logical axes, with the data to which its views point.
struct HeldQuestion {
  std::vector<AxisValue> axes;
  Shape shape;
  LogicalQuestion question;

  HeldQuestion() = default;
  HeldQuestion(const HeldQuestion&) = delete;
  HeldQuestion& operator=(const HeldQuestion&) = delete;
};

// Works like SHARDMESH_ASSIGN_OR_RETURN for a layout. Also adds to an error the field that caused
// the error (WithLayoutField).
#define SHARDMESH_LAY_OUT(lhs, field, layout)                    \
  auto lhs##_or = (layout);                                      \
  if (!lhs##_or.ok()) {                                          \
    return WithLayoutField(std::move(lhs##_or).status(), field); \
  }                                                              \
  auto lhs = *std::move(lhs##_or)

// Sets the axes and their mode. The request may set either `axes` or `preset`; under EXACT it may
// set both.
absl::Status SetAxes(std::vector<AxisValue> axes, const std::string& preset_name,
                     std::optional<Mode> mode, Compatibility compatibility, HeldQuestion* to) {
  to->axes = std::move(axes);
  to->question.mode = mode;
  to->question.compatibility = compatibility;
  const bool exact = compatibility == Compatibility::kExact;
  if (preset_name.empty()) {
    to->question.axes = absl::MakeConstSpan(to->axes);
    if (!mode.has_value() && !exact) {
      to->question.mode = RuntimeMode::kTrain;
    }
    return absl::OkStatus();
  }
  SHARDMESH_DECODE(preset, "preset", FindPreset(preset_name));
  if (!to->axes.empty() && !exact) {
    return rpc::BadField("axes", "must be empty where a preset is given");
  }
  if (!to->axes.empty()) {
    to->question.axes = absl::MakeConstSpan(to->axes);
    to->question.dynamic_axes = &preset->dynamic_axes;
  } else if (mode.has_value() && !exact) {
    // The original library silently ignores the given mode and uses the preset's. Here that is an
    // error.
    return rpc::BadField(
        "mode", StrCat("must not be set where a preset is given, which has its own (", preset_name,
                       " goes by ", preset->dynamic_axes.mode.ToString(),
                       "); leave it out, or name the preset's axes instead"));
  } else {
    to->question.mode.reset();
    to->question.dynamic_axes = &preset->dynamic_axes;
  }
  return absl::OkStatus();
}

absl::Status SetShape(const v1::TensorShape& from, HeldQuestion* to) {
  SHARDMESH_DECODE(sizes, "shape.sizes", rpc::DecodeShape(from.sizes()));
  to->shape = std::move(sizes);
  to->question.shape = absl::MakeConstSpan(to->shape);
  return absl::OkStatus();
}

// Encodes the shape of a shard. `spec` was corrected to `mesh` and `shape`: its axes are in the
// mesh and divide the extents.
absl::Status EncodeShardShape(const Mesh& mesh, const PartitionSpec& spec, const Shape& shape,
                              google::protobuf::RepeatedField<int64_t>* to) {
  if (!mesh.empty() && spec.unreduced().empty()) {
    for (int64_t dim = 0; dim < std::ssize(shape); ++dim) {
      int64_t parts = 1;
      for (const AxisName& axis : spec.entry(dim).axes()) {
        parts *= mesh.axes()[static_cast<size_t>(*mesh.FindAxis(*axis))].size;
      }
      to->Add(shape[static_cast<size_t>(dim)] / parts);
    }
    return absl::OkStatus();
  }
  SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, Tiling::Create(mesh, spec, shape));
  rpc::Encode(tiling.ShardShape(), to);
  return absl::OkStatus();
}

// Returns the mesh of a question. A question of a batch that names no mesh has the batch's mesh.
// The mesh of any other question is stored in `*own`. ProfileOf does the same for profiles.
absl::StatusOr<const Mesh*> MeshOf(const AnswerContext& context, const v1::MeshSelector& selector,
                                   Compatibility compatibility, absl::StatusOr<Mesh>* own) {
  const bool is_shared = context.shared != nullptr && selector.ByteSizeLong() == 0;
  if (!is_shared) *own = SelectMesh(context.state, selector, compatibility);
  const absl::StatusOr<Mesh>& mesh = is_shared ? context.shared->mesh(compatibility) : *own;
  if (!mesh.ok()) return mesh.status();
  return &*mesh;
}

absl::StatusOr<const PartitionAxis*> ProfileOf(const AnswerContext& context,
                                               const v1::ProfileSelector& selector,
                                               absl::StatusOr<PartitionAxis>* own) {
  const bool is_shared = context.shared != nullptr && selector.ByteSizeLong() == 0;
  if (!is_shared) *own = SelectProfile(context.state, selector);
  const absl::StatusOr<PartitionAxis>& profile = is_shared ? context.shared->profile() : *own;
  if (!profile.ok()) return profile.status();
  return &*profile;
}

}  // namespace

absl::Status Answer(const AnswerContext& context, const v1::ResolveSpecRequest& request,
                    v1::ResolveSpecResponse* response) {
  SHARDMESH_DECODE(compatibility, "compatibility", rpc::Decode(request.compatibility()));
  SHARDMESH_DECODE(strict, "policy", rpc::DecodeIsStrict(request.policy()));
  SHARDMESH_DECODE(axes, "axes", rpc::DecodeAxes(request.axes()));
  SHARDMESH_DECODE(mode, "mode", rpc::Decode(request.mode(), compatibility));
  absl::StatusOr<PartitionAxis> own_profile;
  SHARDMESH_DECODE(profile, "profile", ProfileOf(context, request.profile(), &own_profile));

  HeldQuestion held;
  SHARDMESH_RETURN_IF_ERROR(SetAxes(std::move(axes), request.preset(), mode, compatibility, &held));
  absl::StatusOr<Mesh> own_mesh = Mesh();
  const Mesh* selected = &*own_mesh;
  if (request.has_shape()) {
    SHARDMESH_RETURN_IF_ERROR(SetShape(request.shape(), &held));
    SHARDMESH_DECODE(found, "mesh", MeshOf(context, request.mesh(), compatibility, &own_mesh));
    selected = found;
  }
  const Mesh& mesh = *selected;
  // An empty mesh counts as no mesh, so nothing is corrected. Without a correction, the shape only
  // determines the mode.
  const bool corrects = request.has_shape() && !mesh.empty();

  const std::string_view asked = request.axes().empty() && !request.preset().empty()
                                     ? std::string_view("preset")
                                     : std::string_view("axes");
  PartitionSpec requested;
  CorrectionResult corrected;
  if (request.explain()) {
    SHARDMESH_LAY_OUT(explanation, asked, Explain(*profile, held.question, mesh));
    for (const ExplanationStep& step : explanation.steps) {
      rpc::Encode(step, response->add_explanation());
    }
    requested = std::move(explanation.requested);
    corrected = {.effective = std::move(explanation.effective),
                 .corrections = std::move(explanation.corrections)};
  } else {
    SHARDMESH_LAY_OUT(resolved, asked, ResolveSpec(*profile, held.question));
    requested = std::move(resolved);
    if (corrects) {
      SHARDMESH_LAY_OUT(result, asked, Correct(requested, held.shape, mesh));
      corrected = std::move(result);
    } else {
      corrected.effective = requested;
    }
  }
  context.corrections.Add(corrected.corrections);
  if (strict && !corrected.corrections.empty()) {
    return WithLayoutField(RefuseCorrections(requested, held.shape, mesh, corrected), asked);
  }
  rpc::Encode(requested, response->mutable_requested());
  rpc::Encode(corrected.effective, response->mutable_effective());
  EncodeCorrections(requested, held.shape, mesh, corrected, request.suggest_fixes(),
                    response->mutable_corrections());
  if (corrects) {
    SHARDMESH_RETURN_IF_ERROR(
        EncodeShardShape(mesh, corrected.effective, held.shape, response->mutable_shard_shape()));
  }
  response->set_revision(context.state.revision());
  return absl::OkStatus();
}

absl::Status Answer(const AnswerContext& context, const v1::ResolveAxesRequest& request,
                    v1::ResolveAxesResponse* response) {
  SHARDMESH_DECODE(compatibility, "compatibility", rpc::Decode(request.compatibility()));
  SHARDMESH_DECODE(axes, "axes", rpc::DecodeAxes(request.axes()));
  SHARDMESH_DECODE(mode, "mode", rpc::Decode(request.mode(), compatibility));
  SHARDMESH_DECODE(profile, "profile", SelectProfile(context.state, request.profile()));
  if (mode.has_value() && mode->dimension().has_value()) {
    return rpc::BadField("mode.dimension",
                         "is about a shape, and axes are resolved without one; name the mode");
  }
  RuntimeMode runtime_mode = RuntimeMode::kTrain;
  if (mode.has_value()) {
    SHARDMESH_DECODE(named, "mode", mode->Resolve(std::nullopt));
    runtime_mode = named;
  }
  SHARDMESH_DECODE(values, "axes", profile.ResolveAxis(axes, runtime_mode, compatibility));
  for (const AxisValue& value : values) {
    rpc::Encode(value, response->add_values());
  }
  response->set_revision(context.state.revision());
  return absl::OkStatus();
}

absl::Status Answer(const AnswerContext& context, const v1::ResolveEffectiveSpecRequest& request,
                    v1::ResolveEffectiveSpecResponse* response) {
  SHARDMESH_DECODE(strict, "policy", rpc::DecodeIsStrict(request.policy()));
  SHARDMESH_DECODE(axes, "axes", rpc::DecodeAxisNames(request.axes()));
  std::optional<Mode> mode;
  if (request.has_mode()) {
    SHARDMESH_DECODE(parsed, "mode", Mode::Parse(request.mode()));
    mode = parsed;
  }
  PartitionAxis profile;
  if (request.has_profile()) {
    SHARDMESH_DECODE(found, "profile", context.state.FindProfile(request.profile()));
    profile = *found;
  }
  HeldQuestion held;
  SHARDMESH_RETURN_IF_ERROR(
      SetAxes(std::move(axes), request.preset(), mode, Compatibility::kDefault, &held));
  SHARDMESH_DECODE(shape, "shape", rpc::DecodeShape(request.shape()));
  held.shape = std::move(shape);
  held.question.shape = absl::MakeConstSpan(held.shape);
  if (!request.has_mesh()) return rpc::WithField(NoMeshGiven(), "mesh");
  SHARDMESH_DECODE(found, "mesh", context.state.FindMesh(request.mesh()));
  const Mesh& mesh = found->mesh;

  const std::string_view asked = held.axes.empty() && !request.preset().empty() ? "preset" : "axes";
  SHARDMESH_LAY_OUT(requested, asked, ResolveSpec(profile, held.question));
  SHARDMESH_LAY_OUT(corrected, asked, Correct(requested, held.shape, mesh));
  context.corrections.Add(corrected.corrections);
  if (strict && !corrected.corrections.empty()) {
    return WithLayoutField(RefuseCorrections(requested, held.shape, mesh, corrected), asked);
  }
  for (const SpecEntry& entry : corrected.effective.entries()) {
    response->add_axis_counts(static_cast<int32_t>(entry.axes().size()));
    for (const AxisName& axis : entry.axes()) response->add_axes(*axis);
  }
  for (const Correction& correction : corrected.corrections) {
    response->add_corrected_dimensions(static_cast<int32_t>(correction.dim));
  }
  SHARDMESH_RETURN_IF_ERROR(
      EncodeShardShape(mesh, corrected.effective, held.shape, response->mutable_shard_shape()));
  response->set_revision(context.state.revision());
  return absl::OkStatus();
}

absl::Status Answer(const AnswerContext& context, const v1::CorrectSpecRequest& request,
                    v1::CorrectSpecResponse* response) {
  SHARDMESH_DECODE(compatibility, "compatibility", rpc::Decode(request.compatibility()));
  SHARDMESH_DECODE(strict, "policy", rpc::DecodeIsStrict(request.policy()));
  SHARDMESH_DECODE(spec, "spec", rpc::Decode(request.spec()));
  if (!request.has_shape()) {
    return rpc::BadField("shape", "is not set; a spec is corrected against a shape");
  }
  SHARDMESH_DECODE(shape, "shape.sizes", rpc::DecodeShape(request.shape().sizes()));
  SHARDMESH_DECODE(mesh, "mesh", SelectMesh(context.state, request.mesh(), compatibility));
  response->set_revision(context.state.revision());
  if (mesh.empty() && request.allow_empty_mesh()) {
    rpc::Encode(PartitionSpec(), response->mutable_effective());
    rpc::Encode(shape, response->mutable_shard_shape());
    return absl::OkStatus();
  }
  SHARDMESH_LAY_OUT(corrected, "spec", Correct(spec, shape, mesh));
  context.corrections.Add(corrected.corrections);
  if (strict && !corrected.corrections.empty()) {
    return WithLayoutField(RefuseCorrections(spec, shape, mesh, corrected), "spec");
  }
  rpc::Encode(corrected.effective, response->mutable_effective());
  EncodeCorrections(spec, shape, mesh, corrected, request.suggest_fixes(),
                    response->mutable_corrections());
  return EncodeShardShape(mesh, corrected.effective, shape, response->mutable_shard_shape());
}

absl::Status Answer(const AnswerContext& context, const v1::ConstrainArrayRequest& request,
                    v1::ConstrainArrayResponse* response) {
  SHARDMESH_DECODE(compatibility, "compatibility", rpc::Decode(request.compatibility()));
  SHARDMESH_DECODE(strict, "policy", rpc::DecodeIsStrict(request.policy()));
  if (!request.has_shape()) {
    return rpc::BadField("shape", "is not set; an array has one");
  }
  HeldQuestion held;
  SHARDMESH_RETURN_IF_ERROR(SetShape(request.shape(), &held));
  absl::StatusOr<Mesh> own_mesh;
  SHARDMESH_DECODE(selected, "mesh", MeshOf(context, request.mesh(), compatibility, &own_mesh));
  const Mesh& mesh = *selected;

  LogicalSharding sharding;
  if (request.layout_case() == v1::ConstrainArrayRequest::kSpec) {
    if (request.has_mode() || request.has_profile() || request.auto_correct()) {
      return rpc::BadField("spec",
                           "needs neither mode nor profile nor auto_correct; leave them out");
    }
    SHARDMESH_DECODE(spec, "spec", rpc::Decode(request.spec()));
    sharding.requested = std::move(spec);
    SHARDMESH_LAY_OUT(corrected, "spec", CorrectConstraint(sharding.requested, held.shape, mesh));
    if (corrected.has_value()) {
      sharding.constraint = std::move(corrected->effective);
      sharding.corrections = std::move(corrected->corrections);
    }
  } else {
    SHARDMESH_DECODE(mode, "mode", rpc::Decode(request.mode(), compatibility));
    absl::StatusOr<PartitionAxis> own_profile;
    SHARDMESH_DECODE(profile, "profile", ProfileOf(context, request.profile(), &own_profile));
    std::vector<AxisValue> axes;
    switch (request.layout_case()) {
      case v1::ConstrainArrayRequest::kAxes: {
        SHARDMESH_DECODE(decoded, "axes.axes", rpc::DecodeAxes(request.axes().axes()));
        axes = std::move(decoded);
        break;
      }
      case v1::ConstrainArrayRequest::kPreset:
        if (request.preset().empty()) {
          return rpc::BadField("preset", "is empty; ListPresets has their names");
        }
        break;
      default:
        return rpc::BadField("layout", "is not set; give a spec, axes or a preset");
    }
    SHARDMESH_RETURN_IF_ERROR(SetAxes(std::move(axes),
                                      request.layout_case() == v1::ConstrainArrayRequest::kPreset
                                          ? request.preset()
                                          : std::string(),
                                      mode, compatibility, &held));
    SHARDMESH_LAY_OUT(applied, request.has_axes() ? "axes" : "preset",
                      ApplyLogicalSharding(*profile, held.question, mesh, request.auto_correct()));
    sharding = std::move(applied);
  }
  context.corrections.Add(sharding.corrections);
  if (strict && !sharding.corrections.empty()) {
    return WithLayoutField(
        RefuseCorrections(sharding.requested, held.shape, mesh,
                          {.effective = sharding.constraint.value_or(PartitionSpec()),
                           .corrections = sharding.corrections}),
        request.has_spec()   ? "spec"
        : request.has_axes() ? "axes"
                             : "preset");
  }
  rpc::Encode(sharding.requested, response->mutable_requested());
  if (sharding.constraint.has_value()) {
    rpc::Encode(*sharding.constraint, response->mutable_constraint());
  }
  EncodeCorrections(sharding.requested, held.shape, mesh,
                    {.effective = sharding.constraint.value_or(PartitionSpec()),
                     .corrections = sharding.corrections},
                    /*suggest_fixes=*/false, response->mutable_corrections());
  response->set_revision(context.state.revision());
  return absl::OkStatus();
}

absl::Status Answer(const AnswerContext& context, const v1::CompareSpecsRequest& request,
                    v1::CompareSpecsResponse* response) {
  SHARDMESH_DECODE(compatibility, "compatibility", rpc::Decode(request.compatibility()));
  SHARDMESH_DECODE(a, "a", rpc::Decode(request.a()));
  SHARDMESH_DECODE(b, "b", rpc::Decode(request.b()));
  SHARDMESH_DECODE(mesh, "mesh", SelectMesh(context.state, request.mesh(), compatibility));
  if (request.rank() < 0 || request.rank() > kMaxRank) {
    return rpc::BadField("rank",
                         StrCat("is ", request.rank(), "; it must be from 0 to ", kMaxRank));
  }
  // Every axis divides an extent of 0, so this check finds only errors that no shape of this rank
  // avoids.
  const Shape shape(static_cast<size_t>(request.rank()), 0);
  for (const auto& [spec, field] : {std::pair(&a, "a"), std::pair(&b, "b")}) {
    const absl::Status fits = Tiling::Create(mesh, *spec, shape).status();
    if (!fits.ok()) {
      return rpc::WithField(fits, field);
    }
  }
  response->set_equal(a == b);
  response->set_equivalent(Equivalent(a, b, mesh, request.rank()));
  response->set_a_fully_replicated(FullyReplicated(a, mesh));
  response->set_b_fully_replicated(FullyReplicated(b, mesh));
  return absl::OkStatus();
}

absl::Status Answer(const AnswerContext& context, const v1::ExplainTensorRequest& request,
                    v1::ExplainTensorResponse* response,
                    const std::function<bool()>& is_cancelled) {
  SHARDMESH_DECODE(compatibility, "compatibility", rpc::Decode(request.compatibility()));
  SHARDMESH_RETURN_IF_ERROR(rpc::CheckArrayName(request.name(), "name"));
  if (!request.has_shape()) {
    return rpc::BadField("shape", "is not set; the reasons depend on it");
  }
  HeldQuestion held;
  SHARDMESH_RETURN_IF_ERROR(SetShape(request.shape(), &held));
  SHARDMESH_DECODE(mesh, "mesh", SelectMesh(context.state, request.mesh(), compatibility));
  response->set_revision(context.state.revision());

  PartitionSpec requested;
  std::vector<ExplanationStep> steps;
  CorrectionResult corrected;
  if (request.has_axes()) {
    SHARDMESH_DECODE(axes, "axes.axes", rpc::DecodeAxes(request.axes().axes()));
    SHARDMESH_DECODE(mode, "mode", rpc::Decode(request.mode(), compatibility));
    SHARDMESH_DECODE(profile, "profile", SelectProfile(context.state, request.profile()));
    SHARDMESH_RETURN_IF_ERROR(SetAxes(std::move(axes), "", mode, compatibility, &held));
    SHARDMESH_LAY_OUT(explanation, "axes", Explain(profile, held.question, mesh));
    requested = std::move(explanation.requested);
    steps = std::move(explanation.steps);
    corrected = {.effective = std::move(explanation.effective),
                 .corrections = std::move(explanation.corrections)};
  } else {
    SHARDMESH_DECODE(rules, "rule_set",
                     SelectRules(context.state, request.rule_set(), compatibility, is_cancelled));
    if (!rules.has_value()) {
      return rpc::BadField("rule_set", "is not set; give rules or logical axes");
    }
    const std::string name = NameForRules(*rules, request.name());
    SHARDMESH_DECODE(
        explanation, "rule_set",
        ExplainRules(rules->rules, name, absl::MakeConstSpan(held.shape), is_cancelled));
    if (explanation.match.unmatched) {
      return rpc::WithField(rules->rules.UnmatchedError(name), "name");
    }
    const RuleMatch& match = explanation.match;
    requested = match.rule.has_value() ? rules->rules.rules()[static_cast<size_t>(*match.rule)].spec
                                       : match.spec;
    if (match.rule.has_value()) response->set_rule_index(static_cast<int32_t>(*match.rule));
    steps = std::move(explanation.steps);
    SHARDMESH_LAY_OUT(result, "rule_set", Correct(match.spec, held.shape, mesh));
    corrected = std::move(result);
    for (const Correction& correction : corrected.corrections) {
      steps.push_back({ExplanationStep::Kind::kCorrection, correction.dim,
                       correction.requested.ToString(), correction.ToString(mesh)});
    }
    corrected.corrections.insert(corrected.corrections.begin(), match.corrections.begin(),
                                 match.corrections.end());
  }
  v1::TreeSpec* spec = response->mutable_spec();
  rpc::Encode(requested, spec->mutable_requested());
  rpc::Encode(corrected.effective, spec->mutable_effective());
  EncodeCorrections(requested, held.shape, mesh, corrected, /*suggest_fixes=*/true,
                    spec->mutable_corrections());
  for (const ExplanationStep& step : steps) {
    rpc::Encode(step, response->add_steps());
  }
  return EncodeShardShape(mesh, corrected.effective, held.shape, response->mutable_shard_shape());
}

// Returns the cut points that the request gives, or those that its rule makes.
absl::StatusOr<std::vector<CutPoints>> CutsOf(const v1::DescribeTilingRequest& request,
                                              const Shape& shape, const Mesh& mesh,
                                              const PartitionSpec& spec) {
  SHARDMESH_ASSIGN_OR_RETURN(const UnevenCuts rule,
                             rpc::DecodeUnevenCuts(request.uneven(), !request.weights().empty(),
                                                   !request.cut_points().empty()));
  if (rule == UnevenCuts::kByMemory || rule == UnevenCuts::kBySpeed) {
    return rpc::BadField("uneven",
                         "is a rule by the workers of a mesh, and a question is about a mesh "
                         "without workers; give weights");
  }
  if (rule == UnevenCuts::kEqualOnly) {
    return rpc::DecodeCutPoints(request.cut_points(), shape);
  }
  // The tiling reports a spec that does not fit the mesh or the shape.
  if (mesh.empty() || !CheckDistinctAxes(spec).ok() || !CheckAxesInMesh(spec, mesh).ok() ||
      spec.size() > static_cast<int64_t>(shape.size())) {
    return std::vector<CutPoints>();
  }
  auto cuts = CutByRule(rule, request.weights(), mesh, spec, shape);
  return cuts.ok() ? std::move(cuts) : rpc::WithField(cuts.status(), "weights");
}

absl::Status Answer(const AnswerContext& context, const v1::DescribeTilingRequest& request,
                    v1::DescribeTilingResponse* response) {
  SHARDMESH_DECODE(compatibility, "compatibility", rpc::Decode(request.compatibility()));
  SHARDMESH_DECODE(spec, "spec", rpc::Decode(request.spec()));
  SHARDMESH_DECODE(shape, "shape.sizes", rpc::DecodeShape(request.shape().sizes()));
  SHARDMESH_DECODE(mesh, "mesh", SelectMesh(context.state, request.mesh(), compatibility));
  SHARDMESH_RETURN_IF_ERROR(
      CheckCount(request.devices_size(), kMaxListedDevices, "devices", "devices"));
  SHARDMESH_RETURN_IF_ERROR(CheckCount(request.replica_groups_of_size(), kMaxListedDevices,
                                       "devices", "replica_groups_of"));
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<CutPoints> cuts, CutsOf(request, shape, mesh, spec));
  SHARDMESH_LAY_OUT(tiling, "spec", Tiling::Create(mesh, spec, shape, std::move(cuts)));
  for (int i = 0; i < request.devices_size(); ++i) {
    const DeviceId device = request.devices(i);
    SHARDMESH_RETURN_IF_ERROR(CheckDevice(device, mesh, "devices", i));
    v1::DeviceTile* tile = response->add_tiles();
    tile->set_device(device);
    rpc::Encode(tiling.TileOf(device), tile->mutable_tile());
    tile->set_replica_id(tiling.ReplicaIdOf(device));
  }
  int64_t listed = 0;
  for (int i = 0; i < request.replica_groups_of_size(); ++i) {
    const DeviceId device = request.replica_groups_of(i);
    SHARDMESH_RETURN_IF_ERROR(CheckDevice(device, mesh, "replica_groups_of", i));
    if ((listed += tiling.replica_count()) > kMaxListedPieces) {
      return rpc::WithField(
          InvalidArgument(Reason::kLimitExceeded,
                          StrCat("the groups asked for have more than ", kMaxListedPieces,
                                 " devices; ask for fewer of them"),
                          {{fact::kHave, listed}, {fact::kLimit, kMaxListedPieces}}),
          "replica_groups_of");
    }
    const std::vector<DeviceId> group = tiling.ReplicaGroup(tiling.TileNumberOf(device)).devices;
    response->add_replica_groups()->mutable_devices()->Add(group.begin(), group.end());
  }
  if (request.has_range()) {
    SHARDMESH_DECODE(range, "range", rpc::Decode(request.range()));
    if (static_cast<int64_t>(range.ranges.size()) != tiling.rank()) {
      return rpc::BadField("range", StrCat("has a range for each of ", range.ranges.size(),
                                           " dimensions, and the tensor has ", tiling.rank()));
    }
    const auto check_pieces = [](int64_t pieces) {
      return pieces <= kMaxListedPieces
                 ? absl::OkStatus()
                 : rpc::WithField(
                       InvalidArgument(Reason::kLimitExceeded,
                                       StrCat("the range has more than ", kMaxListedPieces,
                                              " pieces and holders; ask for a smaller one"),
                                       {{fact::kHave, pieces}, {fact::kLimit, kMaxListedPieces}}),
                       "range");
    };
    int64_t pieces = tiling.replica_count();
    SHARDMESH_RETURN_IF_ERROR(check_pieces(pieces));
    for (int64_t dim = 0; dim < tiling.rank(); ++dim) {
      const IndexRange& asked = range.ranges[static_cast<size_t>(dim)];
      if (asked.stop > shape[static_cast<size_t>(dim)]) {
        return rpc::BadField("range", StrCat("ends at ", asked.stop, " in dimension ", dim,
                                             ", which has ", shape[static_cast<size_t>(dim)]));
      }
      pieces *= std::min(tiling.PartCount(dim), std::max<int64_t>(asked.size(), 1));
      SHARDMESH_RETURN_IF_ERROR(check_pieces(pieces));
    }
    for (const OwnedTile& piece : tiling.OwnersOf(range)) {
      v1::OwnedTile* owners = response->add_owners();
      rpc::Encode(piece.tile, owners->mutable_tile());
      owners->mutable_devices()->Add(piece.devices.begin(), piece.devices.end());
    }
  }
  rpc::Encode(tiling.ShardShape(), response->mutable_shard_shape());
  if (!tiling.has_equal_tiles()) {
    std::vector<CutPoints> points;
    for (int64_t dim = 0; dim < tiling.rank(); ++dim) {
      points.push_back(tiling.cut_points(dim));
    }
    rpc::Encode(points, response->mutable_cut_points());
  }
  response->set_distinct_tiles(tiling.DistinctTileCount());
  response->set_fully_replicated(tiling.FullyReplicated());
  response->set_revision(context.state.revision());
  return absl::OkStatus();
}

absl::Status Answer(const AnswerContext&, const v1::ListPresetsRequest&,
                    v1::ListPresetsResponse* response) {
  for (const Preset& preset : Presets()) {
    rpc::Encode(preset, response->add_presets());
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::server
