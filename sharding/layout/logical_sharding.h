// From a question about one tensor to its layout: axes and mode, profile, shape and mesh in; spec,
// corrections and explanation out.
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

// What is asked of a profile. Views only: what they point to must outlive the call.
struct LogicalQuestion {
  // One semantic axis per dimension. Both `axes` and `mode` are needed, else `dynamic_axes` stands
  // in for both.
  std::optional<absl::Span<const AxisValue>> axes;
  std::optional<Mode> mode;
  const DynamicAxes* dynamic_axes = nullptr;
  // Of the tensor; must satisfy CheckShape. Needed where the mode is a dimension, and to correct.
  std::optional<absl::Span<const int64_t>> shape;
  Compatibility compatibility = Compatibility::kDefault;
};

// The requested spec, uncorrected. Errors are INVALID_ARGUMENT: MISSING_ARGUMENT where nothing
// supplies axes and mode, Mode::Resolve's, and PartitionAxis::ResolveSpec's.
absl::StatusOr<PartitionSpec> ResolveSpec(const PartitionAxis& profile,
                                          const LogicalQuestion& question);

struct LogicalSharding {
  // As the profile answers.
  PartitionSpec requested;
  // What the array is constrained to; nullopt: it stays as it is.
  std::optional<PartitionSpec> constraint;
  std::vector<Correction> corrections;
};

// The layout that an array of `question.shape` on `mesh` gets, corrected to fit.
//
// `auto_correct` settles two corners: with it an empty mesh is FAILED_PRECONDITION (NO_MESH;
// AssertionError), and a spec that correction leaves as P() constrains nothing; without it an empty
// mesh constrains nothing, and such a spec replicates the array.
// Errors: as ResolveSpec and Correct; MISSING_ARGUMENT without a shape.
absl::StatusOr<LogicalSharding> ApplyLogicalSharding(const PartitionAxis& profile,
                                                     const LogicalQuestion& question,
                                                     const Mesh& mesh, bool auto_correct = true);

// An answer with the whole chain that led to it.
struct Explanation {
  RuntimeMode mode = RuntimeMode::kTrain;
  PartitionSpec requested;
  // `requested` corrected; the same where there was nothing to correct against.
  PartitionSpec effective;
  std::vector<Correction> corrections;
  // By dimension: semantic name, field, mode variant, mesh axes, correction.
  std::vector<ExplanationStep> steps;
};

// Explains ResolveSpec, and its correction where the question has a shape and `mesh` is not empty.
// Errors: as ResolveSpec and Correct.
absl::StatusOr<Explanation> Explain(const PartitionAxis& profile, const LogicalQuestion& question,
                                    const Mesh& mesh);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_LAYOUT_LOGICAL_SHARDING_H_
