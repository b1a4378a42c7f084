// Determines axes and mode of a question, resolves and corrects its spec, and explains the steps.
#include "sharding/layout/logical_sharding.h"

#include <utility>

#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"

namespace shardmesh {
namespace {

// A question with its axes and its mode determined.
struct SettledQuestion {
  absl::Span<const AxisValue> axes;
  RuntimeMode mode;
  // Index of the preset if the axes come from a preset.
  std::optional<size_t> preset = std::nullopt;
};

std::optional<size_t> IndexOfPreset(const DynamicAxes& dynamic) {
  const absl::Span<const Preset> presets = Presets();
  for (size_t i = 0; i < presets.size(); ++i) {
    if (&presets[i].dynamic_axes == &dynamic) return i;
  }
  return std::nullopt;
}

absl::StatusOr<SettledQuestion> Settle(const LogicalQuestion& question) {
  if (question.axes.has_value() && question.mode.has_value()) {
    SHARDMESH_ASSIGN_OR_RETURN(const RuntimeMode mode, question.mode->Resolve(question.shape));
    return SettledQuestion{*question.axes, mode};
  }
  if (question.dynamic_axes == nullptr) {
    return InvalidArgument(Reason::kMissingArgument,
                           "axes and mode are not both given; give both, or a preset or other "
                           "dynamic axes that supply them",
                           {{fact::kField, "mode"}});
  }
  const DynamicAxes& dynamic = *question.dynamic_axes;
  SHARDMESH_ASSIGN_OR_RETURN(const RuntimeMode mode, dynamic.mode.Resolve(question.shape));
  return SettledQuestion{dynamic.axes, mode, IndexOfPreset(dynamic)};
}

}  // namespace

absl::StatusOr<PartitionSpec> ResolveSpec(const PartitionAxis& profile,
                                          const LogicalQuestion& question) {
  SHARDMESH_ASSIGN_OR_RETURN(const SettledQuestion settled, Settle(question));
  return settled.preset.has_value()
             ? profile.ResolvePreset(*settled.preset, settled.mode, question.compatibility)
             : profile.ResolveSpec(settled.axes, settled.mode, question.compatibility);
}

absl::StatusOr<LogicalSharding> ApplyLogicalSharding(const PartitionAxis& profile,
                                                     const LogicalQuestion& question,
                                                     const Mesh& mesh, bool auto_correct) {
  if (!question.shape.has_value()) {
    return InvalidArgument(Reason::kMissingArgument,
                           "an array's layout cannot be corrected without its shape; give it",
                           {{fact::kField, "shape"}});
  }
  LogicalSharding sharding;
  SHARDMESH_ASSIGN_OR_RETURN(sharding.requested, ResolveSpec(profile, question));
  if (auto_correct) {
    SHARDMESH_ASSIGN_OR_RETURN(CorrectionResult corrected,
                               Correct(sharding.requested, *question.shape, mesh));
    sharding.corrections = std::move(corrected.corrections);
    if (!corrected.effective.empty()) sharding.constraint = std::move(corrected.effective);
    return sharding;
  }
  SHARDMESH_ASSIGN_OR_RETURN(std::optional<CorrectionResult> corrected,
                             CorrectConstraint(sharding.requested, *question.shape, mesh));
  if (corrected.has_value()) {
    sharding.corrections = std::move(corrected->corrections);
    sharding.constraint = std::move(corrected->effective);
  }
  return sharding;
}

absl::StatusOr<Explanation> Explain(const PartitionAxis& profile, const LogicalQuestion& question,
                                    const Mesh& mesh) {
  SHARDMESH_ASSIGN_OR_RETURN(const SettledQuestion settled, Settle(question));
  Explanation explanation;
  explanation.mode = settled.mode;
  SHARDMESH_ASSIGN_OR_RETURN(explanation.requested, profile.ResolveSpec(settled.axes, settled.mode,
                                                                        question.compatibility));
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<ExplanationStep> resolution,
                             profile.Explain(settled.axes, settled.mode, question.compatibility));
  if (question.shape.has_value() && !mesh.empty()) {
    SHARDMESH_ASSIGN_OR_RETURN(CorrectionResult corrected,
                               Correct(explanation.requested, *question.shape, mesh));
    explanation.effective = std::move(corrected.effective);
    explanation.corrections = std::move(corrected.corrections);
  } else {
    explanation.effective = explanation.requested;
  }
  // Merge the steps and the corrections, both in rising order of dimension. A correction is the
  // last step of its dimension.
  auto correction = explanation.corrections.begin();
  const auto add_corrections_before = [&](int64_t dim) {
    for (; correction != explanation.corrections.end() && correction->dim < dim; ++correction) {
      explanation.steps.push_back({ExplanationStep::Kind::kCorrection, correction->dim,
                                   correction->requested.ToString(), SpecEntry::None().ToString()});
    }
  };
  for (ExplanationStep& step : resolution) {
    add_corrections_before(step.dim);
    explanation.steps.push_back(std::move(step));
  }
  add_corrections_before(explanation.requested.size());
  return explanation;
}

}  // namespace shardmesh
