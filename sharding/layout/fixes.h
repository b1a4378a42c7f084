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
  // Index, in CorrectionResult::corrections, of the correction that this fix makes unnecessary. A
  // kAxisOrder fix for several corrections is listed once, for the first of them.
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
  // A text for people, such as `pad dimension 1 from 30 to 32`. It has no spec in the notation of a
  // language, because users of the command line and of all clients read it.
  std::string text;

  friend bool operator==(const Fix&, const Fix&) = default;
};

// Returns fixes for the corrections in `result`, which must be Correct(requested, shape, mesh). The
// fixes of a correction are adjacent, at most one of each kind, in this order:
// clang-format off
//   kAxesSubset  (any reason)  The entry's axes with the largest product that divides the extent.
//                Of subsets with equal products, the one that drops the fewest axes; of these, the
//                one with the earliest axes. A misspelt axis counts as the axis that
//                Correction::ToString(mesh) suggests. Axes that the mesh lacks, that the rest of
//                the spec uses or that occur again are dropped. The remaining set may be empty: the
//                fix's spec is then CorrectionResult::effective.
//   kPaddedSize  (NOT_DIVISIBLE; also AXIS_NOT_IN_MESH, with the axes that the mesh has)  The least
//                larger extent that the product of the axes divides. No such fix if CheckShape
//                would refuse the larger tensor.
//   kAxisOrder   (NOT_DIVISIBLE, RANK_TRUNCATED)  The entries at other dimensions, such that every
//                entry divides its dimension. If possible, keeps all entries whose axes the mesh
//                has; else keeps this entry and the uncorrected entries. Of several such orders,
//                the one that moves the fewest entries; of these, the one with the least total
//                distance; of these, the one in which the first entries stay.
// clang-format on
// The function checks each fix by Correct. No two fixes have the same spec and shape.
// BELOW_MIN_SIZE has no fixes, because it corrects no layout. An empty mesh gives no fixes.
//
// Example: P('dp', ('fsdp', 'tp')) on (8, 30), mesh dp=2,fsdp=2,tp=4: keep only 'fsdp'; pad
// dimension 1 to 32; P(('fsdp', 'tp'), 'dp'). A correction costs up to 2^16 steps: call this only
// on request, not for each answer.
std::vector<Fix> SuggestFixes(const PartitionSpec& requested, absl::Span<const int64_t> shape,
                              const Mesh& mesh, const CorrectionResult& result);

// Returns the axes of a spec in words: `'fsdp', 'tp' along dimension 0 and 'dp' along dimension 1`.
// Leaves out dimensions without axes; `no axis` if no dimension has one.
std::string DescribeAxes(const PartitionSpec& spec);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_LAYOUT_FIXES_H_
