// Makes a requested spec fit a shape and a mesh, and reports each change with its reason.
#ifndef SHARDMESH_SHARDING_CORRECTION_H_
#define SHARDMESH_SHARDING_CORRECTION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/mesh.h"
#include "sharding/spec.h"
#include "status/reason.h"

namespace shardmesh {

// One dimension whose request was dropped, and why. A dimension without a request never has a
// correction.
struct Correction {
  // Dimension of the spec; -1 for the whole tensor (kBelowMinSize).
  int64_t dim = 0;
  SpecEntry requested;
  // kNotDivisible, kAxisNotInMesh, kRankTruncated, kUnconstrained or kBelowMinSize.
  Reason reason = Reason::kUnspecified;
  // The actual value (`have`) and the value that the request needs (`need`), by reason:
  // clang-format off
  //   kNotDivisible   the dimension's extent; the product of the sizes of the entry's axes
  //   kAxisNotInMesh  how many of the entry's axes the mesh has; how many the entry names
  //   kRankTruncated  the tensor's rank; the spec's length
  //   kBelowMinSize   the number of the tensor's elements; the least number that is sharded
  //   kUnconstrained  0; 0
  // clang-format on
  int64_t have = 0;
  int64_t need = 0;
  // Only for kAxisNotInMesh: the axes of the entry that the mesh lacks. A None within a tuple is
  // not listed.
  std::vector<std::string> absent_axes = {};

  // Returns a text such as `dimension 1: 'tp' dropped, 30 is not divisible by 4`.
  std::string ToString() const;
  // Like ToString() above, and suggests the nearest axis of the mesh for an unknown name.
  std::string ToString(const Mesh& mesh) const;

  friend bool operator==(const Correction&, const Correction&) = default;
};

// Sizes that the parts of a partitioned dimension may have.
enum class PartSizes {
  kEqual,  // the product of a dimension's axes must divide its extent
  kAny,    // cut points or a rule (sharding/uneven.h) cut a dimension that is not divided
};

struct CorrectionResult {
  PartitionSpec effective;
  std::vector<Correction> corrections;  // by rising dimension
};

// Returns the effective spec of a tensor of this shape on this mesh:
//   - P() stays P(); any other spec is cut to the rank, or filled up with none.
//   - A dimension becomes none if the mesh lacks one of its axes. A none within a tuple counts as
//     an axis that the mesh lacks.
//   - A dimension becomes none if it is unconstrained, or if the product of its axes' sizes does
//     not divide its extent. With kAny, the product need not divide the extent.
//   - Axes of size 1 stay, and any axes divide an extent of 0.
//   - If no entry remains, the result is P().
// Unreduced axes stay as they are. Correct(Correct(x)) is Correct(x).
//
// Errors: FAILED_PRECONDITION (NO_MESH; Python: AssertionError) on an empty mesh. INVALID_ARGUMENT
// (DUPLICATE_AXIS; Python: DuplicateSpecError) if an axis still occurs twice after these changes.
// Correct never drops a repeated axis, because it could only guess which occurrence to drop.
// Requires a `shape` that satisfies CheckShape. Takes O(rank * axes).
absl::StatusOr<CorrectionResult> Correct(const PartitionSpec& spec, absl::Span<const int64_t> shape,
                                         const Mesh& mesh, PartSizes sizes = PartSizes::kEqual);

// Returns the layout for a request to constrain an existing array to `spec`. Returns nullopt if the
// array stays unchanged (the mesh is empty, or `spec` is P()), else Correct(spec, shape, mesh).
// P(None), unlike P(), replicates the array.
absl::StatusOr<std::optional<CorrectionResult>> CorrectConstraint(const PartitionSpec& spec,
                                                                  absl::Span<const int64_t> shape,
                                                                  const Mesh& mesh);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_CORRECTION_H_
