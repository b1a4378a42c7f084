// Questions about the layout of single arrays and of whole models.
#ifndef SHARDMESH_TESTS_CONFORMANCE_LAYOUT_SUBJECT_H_
#define SHARDMESH_TESTS_CONFORMANCE_LAYOUT_SUBJECT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/mesh_client.h"
#include "client/types/layout_questions.h"
#include "sharding/axis_value.h"
#include "sharding/mesh.h"
#include "sharding/mode.h"
#include "sharding/partition_axis.h"
#include "sharding/presets.h"
#include "sharding/rules/rule_set.h"
#include "sharding/shape.h"
#include "sharding/spec.h"
#include "tests/conformance/question.h"

namespace shardmesh::conformance {

// What a partition manager is given beside the profile. `axes` and `mode`, where both are there,
// win over the preset or the dynamic axes, of which at most one is given.
struct LogicalArguments {
  PartitionAxis profile;
  std::optional<std::vector<AxisValue>> axes;
  std::optional<Mode> mode;
  std::string preset;
  std::optional<DynamicAxes> dynamic_axes;
  std::optional<Shape> shape;
};

// Everything is asked to the letter (Compatibility::kExact). An empty mesh means that there is
// none. Thread-safe.
class LayoutSubject {
 public:
  virtual ~LayoutSubject() = default;

  // The spec that the axes resolve to and, unless the mesh is empty, its correction; then the shape
  // is needed.
  virtual absl::StatusOr<client::SpecAnswer> ResolveSpec(const LogicalArguments& arguments,
                                                         const Mesh& mesh) const = 0;
  // The spec corrected.
  virtual absl::StatusOr<PartitionSpec> CorrectSpec(const PartitionSpec& spec, const Shape& shape,
                                                    const Mesh& mesh) const = 0;
  // With the tiles of `devices`.
  virtual absl::StatusOr<client::TilingAnswer> DescribeTiling(
      const PartitionSpec& spec, const Shape& shape, const Mesh& mesh,
      absl::Span<const DeviceId> devices) const = 0;
  // The effective specs by rule; without a mesh those of the rules, cut to the tensors' ranks.
  virtual absl::StatusOr<client::TreeAnswer> ResolveTree(
      const RuleSet& rules, absl::Span<const client::TreeTensor> tensors,
      const std::optional<Mesh>& mesh) const = 0;
  // One value per axis.
  virtual absl::StatusOr<std::vector<AxisValue>> ResolveAxes(const PartitionAxis& profile,
                                                             absl::Span<const AxisValue> axes,
                                                             const Mode& mode) const = 0;
  // Resolves, then constrains; see shardmesh::ApplyLogicalSharding about `auto_correct`.
  virtual absl::StatusOr<client::ConstraintAnswer> ApplyLogicalSharding(
      const LogicalArguments& arguments, const Mesh& mesh, bool auto_correct) const = 0;
  virtual absl::StatusOr<client::ConstraintAnswer> Constrain(const PartitionSpec& spec,
                                                             const Shape& shape,
                                                             const Mesh& mesh) const = 0;
  // For arrays of this rank.
  virtual absl::StatusOr<client::Comparison> CompareSpecs(const PartitionSpec& a,
                                                          const PartitionSpec& b, const Mesh& mesh,
                                                          int64_t rank) const = 0;
};

std::shared_ptr<const LayoutSubject> LibraryLayout();
// `client` outlives the subject.
std::shared_ptr<const LayoutSubject> WireLayout(client::MeshClient& client);

// resolve_axis, resolve_spec, resolve, shard, apply_logical_sharding, get_corrected_named_sharding,
// with_sharding_constraint, with_sharding_constraint_tree, named_sharding, is_equivalent_to,
// resolve_correct_place, model_plan.
void AddLayoutQuestions(std::shared_ptr<const LayoutSubject> subject, Questions* questions);

}  // namespace shardmesh::conformance

#endif  // SHARDMESH_TESTS_CONFORMANCE_LAYOUT_SUBJECT_H_
