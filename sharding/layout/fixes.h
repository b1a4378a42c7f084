// Suggests specs or shapes that need no correction, in place of a request that was corrected.
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
  // Index, in CorrectionResult::corrections, of the correction that this fix makes unnecessary. An
  // order that fixes several corrections is listed once, for the first.
  int64_t correction = 0;
  // The dimension that changes. For kAxisOrder, the dimension that the corrected entry moves to.
  int64_t dim = 0;
  // Only for kAxesSubset: the remaining axes of the entry, major to minor; empty if none remains.
  std::vector<std::string> axes;
  // The new extent for kPaddedSize, else 0.
  int64_t size = 0;
  // The whole changed request, `spec` on `shape`: Correct(spec, shape, mesh) makes no corrections.
  // Dimensions of other corrections have their entry of CorrectionResult::effective.
  PartitionSpec spec;
  Shape shape;
  // A text for people, such as `pad dimension 1 from 30 to 32`.
  std::string text;

  friend bool operator==(const Fix&, const Fix&) = default;
};

// Returns fixes for the corrections in `result`, which must be Correct(requested, shape, mesh). The
// fixes of a correction are adjacent, at most one of each kind, in this order:
// clang-format off
//   kAxesSubset  (any)  The entry's axes with the largest product that divides the extent. Of equal
//                products, the fewest dropped axes win, then the axes that stand first. A misspelt
//                axis counts as the one that Correction::ToString(mesh) names. Axes that the mesh
//                lacks, that the rest of the spec uses or that occur again are dropped. The
//                remaining set may be empty: the request then equals the given layout.
//   kPaddedSize  (NOT_DIVISIBLE, and AXIS_NOT_IN_MESH for the axes that exist)  The least larger
//                extent that all axes divide. None if CheckShape would refuse the larger tensor.
//   kAxisOrder   (NOT_DIVISIBLE, RANK_TRUNCATED)  The entries at other dimensions, such that every
//                entry divides its dimension: all entries that the mesh can serve if possible, else
//                this entry and the uncorrected ones. The fewest entries move, then by the fewest
//                dimensions, then the entries that stand first stay.
// clang-format on
// The function checks each fix by Correct. No two fixes have the same spec and shape.
// BELOW_MIN_SIZE has no fixes, because it corrects no layout. An empty mesh gives no fixes.
//
// Example: P('dp', ('fsdp', 'tp')) on (8, 30), mesh dp=2,fsdp=2,tp=4: keep only 'fsdp'; pad
// dimension 1 to 32; P(('fsdp', 'tp'), 'dp'). A correction costs up to 2^16 steps: call this only
// on request, not for each answer.
std::vector<Fix> SuggestFixes(const PartitionSpec& requested, absl::Span<const int64_t> shape,
                              const Mesh& mesh, const CorrectionResult& result);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_LAYOUT_FIXES_H_
