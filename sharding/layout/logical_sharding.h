// Turns a question about one tensor into its layout. Input: axes and mode, profile, shape and mesh.
// Output: spec, corrections and explanation.
#ifndef SHARDMESH_SHARDING_LAYOUT_LOGICAL_SHARDING_H_
#define SHARDMESH_SHARDING_LAYOUT_LOGICAL_SHARDING_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/compatibility.h"
#include "sharding/correction.h"
#include "sharding/explanation.h"
#include "sharding/mesh.h"
#include "sharding/mode.h"
#include "sharding/partition_axis.h"
#include "sharding/presets.h"
#include "sharding/spec.h"

namespace shardmesh {

// A question to a profile. It holds only views: their targets must outlive the call.
struct LogicalQuestion {
  // One semantic axis per dimension. If `axes` or `mode` is missing, both come from `dynamic_axes`.
  std::optional<absl::Span<const AxisValue>> axes;
  std::optional<Mode> mode;
  const DynamicAxes* dynamic_axes = nullptr;
  // Shape of the tensor; must satisfy CheckShape. Required for a mode that is a dimension, and for
  // correction of the spec.
  std::optional<absl::Span<const int64_t>> shape;
  Compatibility compatibility = Compatibility::kDefault;
};

// Returns the requested spec, uncorrected.
// Errors are INVALID_ARGUMENT: MISSING_ARGUMENT if axes or mode are missing; errors of
// Mode::Resolve and PartitionAxis::ResolveSpec.
absl::StatusOr<PartitionSpec> ResolveSpec(const PartitionAxis& profile,
                                          const LogicalQuestion& question);

struct LogicalSharding {
  // The spec that the profile resolves, before correction.
  PartitionSpec requested;
  // The spec that constrains the array; nullopt if the array stays unchanged.
  std::optional<PartitionSpec> constraint;
  std::vector<Correction> corrections;
};

// Returns the layout of an array of `question.shape` on `mesh`, corrected to fit.
//
// `auto_correct` decides two special cases. If true, an empty mesh is FAILED_PRECONDITION (NO_MESH;
// Python: AssertionError), and a spec that correction reduces to P() constrains nothing. If false,
// an empty mesh constrains nothing, and a spec that correction reduces to P() replicates the array.
// Errors: as ResolveSpec and Correct; MISSING_ARGUMENT without a shape.
absl::StatusOr<LogicalSharding> ApplyLogicalSharding(const PartitionAxis& profile,
                                                     const LogicalQuestion& question,
                                                     const Mesh& mesh, bool auto_correct = true);

// An answer with the whole chain of steps that led to it.
struct Explanation {
  RuntimeMode mode = RuntimeMode::kTrain;
  PartitionSpec requested;
  // `requested` after correction; equal to `requested` without a shape or mesh.
  PartitionSpec effective;
  std::vector<Correction> corrections;
  // Steps by dimension: semantic name, field, mode variant, mesh axes, correction.
  std::vector<ExplanationStep> steps;
};

// Explains ResolveSpec. Includes the correction if the question has a shape and `mesh` is not
// empty.
// Errors: as ResolveSpec and Correct.
absl::StatusOr<Explanation> Explain(const PartitionAxis& profile, const LogicalQuestion& question,
                                    const Mesh& mesh);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_LAYOUT_LOGICAL_SHARDING_H_
