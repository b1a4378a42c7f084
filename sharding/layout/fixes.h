// What could be asked for instead, where a requested spec had to be corrected.
#ifndef SHARDMESH_SHARDING_LAYOUT_FIXES_H_
#define SHARDMESH_SHARDING_LAYOUT_FIXES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "sharding/correction.h"
#include "sharding/mesh.h"
#include "sharding/shape.h"
#include "sharding/spec.h"

namespace shardmesh {

// A changed request that needs no correction.
struct Fix {
  enum class Kind {
    kAxesSubset,  // fewer axes along dimension `dim`
    kPaddedSize,  // a larger extent of dimension `dim`
    kAxisOrder,   // the same entries at other dimensions
  };
  Kind kind = Kind::kAxesSubset;
  // Index in CorrectionResult::corrections of the one that it is for. An order that does without
  // several corrections is given once, for the first.
  int64_t correction = 0;
  // The dimension that changes. For kAxisOrder the one that the corrected entry moves to.
  int64_t dim = 0;
  // kAxesSubset: what is left of the entry's axes, major to minor; empty: no axis is.
  std::vector<std::string> axes;
  // kPaddedSize: the new extent. Else 0.
  int64_t size = 0;
  // The whole request: Correct(spec, shape, mesh) has nothing to correct. Dimensions that were
  // corrected for other reasons stand in it as they do in CorrectionResult::effective.
  PartitionSpec spec;
  Shape shape;
  // For a person: `pad dimension 1 from 30 to 32`.
  std::string text;

  friend bool operator==(const Fix&, const Fix&) = default;
};

// Fixes for the corrections that `result`, which is Correct(requested, shape, mesh), has; those of
// a correction follow one another, of its kinds in this order and at most one each:
//   kAxesSubset  (any)  the entry's axes with the largest product that divides the extent, of
//                equal ones the fewest dropped, then the ones that stand first. Axes that the mesh
//                lacks, that the rest of the spec uses or that occur again are dropped. What is
//                left may be nothing: to ask for what was given.
//   kPaddedSize  (NOT_DIVISIBLE, and AXIS_NOT_IN_MESH for the axes that there are) the least larger
//                extent that all axes divide; none if the tensor would be larger than CheckShape
//                accepts.
//   kAxisOrder   (NOT_DIVISIBLE, RANK_TRUNCATED) the entries over other dimensions, such that every
//                one divides: with all entries that the mesh can serve if there is such an order,
//                else with this one and those that were not corrected. The fewest entries move,
//                then by the fewest dimensions, then those that stand first stay.
// Each was checked, and no two have the same spec and shape. BELOW_MIN_SIZE has no fixes: it is no
// correction of a layout. Nothing is suggested on an empty mesh.
//
// Example: P('dp', ('fsdp', 'tp')) on (8, 30), mesh dp=2,fsdp=2,tp=4: keep 'fsdp' alone; pad
// dimension 1 to 32; P(('fsdp', 'tp'), 'dp').
// Costs up to 2^16 steps for a correction: call it when somebody asks, not with each answer.
std::vector<Fix> SuggestFixes(const PartitionSpec& requested, absl::Span<const int64_t> shape,
                              const Mesh& mesh, const CorrectionResult& result);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_LAYOUT_FIXES_H_
