// Which mesh axes partition which dimension of a tensor.
#ifndef SHARDMESH_SHARDING_SPEC_H_
#define SHARDMESH_SHARDING_SPEC_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/axis_value.h"
#include "sharding/mesh.h"

namespace shardmesh {

// A place in a dimension's axis list: a mesh axis name, or none. None occurs there only in what
// resolution made and nobody corrected yet; correction drops such a dimension, placement refuses
// it.
using AxisName = std::optional<std::string>;

// How one dimension is partitioned: not at all, in a way left open, or along axes, major to minor.
class SpecEntry {
 public:
  // Not partitioned.
  SpecEntry() = default;
  static SpecEntry None() { return SpecEntry(); }
  static SpecEntry Unconstrained();
  // An empty list is None; a list of one none too.
  static SpecEntry Axes(std::vector<AxisName> axes);
  static SpecEntry Axis(std::string name);

  // Normalises as JAX's PartitionSpec does: `("a",)` is `"a"`; `()`, `(None,)` and `""` are none;
  // lists read as tuples. INVALID_ARGUMENT (INVALID_SPEC; ValueError) for a tuple within a tuple,
  // for an entry of a longer tuple that is unconstrained or not given, and for a value that is not
  // given.
  static absl::StatusOr<SpecEntry> Create(const AxisValue& value);

  bool is_none() const { return !unconstrained_ && axes_.empty(); }
  bool is_unconstrained() const { return unconstrained_; }
  // Major to minor; empty for none and unconstrained. Valid as long as this entry is unchanged.
  absl::Span<const AxisName> axes() const { return axes_; }

  // None, Name, Tuple or Unconstrained.
  AxisValue ToAxisValue() const;
  // `None`, `'tp'`, `('fsdp', 'dp')`, `UNCONSTRAINED`.
  std::string ToString() const { return ToAxisValue().ToString(); }

  friend bool operator==(const SpecEntry&, const SpecEntry&) = default;

 private:
  absl::InlinedVector<AxisName, 2> axes_;
  bool unconstrained_ = false;
};

// One entry per leading dimension of a tensor; dimensions beyond the last entry are not
// partitioned. Unreduced axes are those along which each device holds a partial sum of its tile.
//
// A spec knows no mesh and no shape: Correct() and Tiling::Create() judge it against them.
// Equality is by entries: P() and P(None) are not equal. Equivalent() asks whether they place
// alike. Immutable but for assignment; safe to read from several threads. A copy is cheap: it
// shares the entries.
class PartitionSpec {
 public:
  // P().
  PartitionSpec() = default;
  // `unreduced` is a set: sorted and freed of repeats here.
  explicit PartitionSpec(std::vector<SpecEntry> entries, std::vector<std::string> unreduced = {});

  // One AxisValue per dimension, each normalised by SpecEntry::Create; its errors name the
  // dimension.
  static absl::StatusOr<PartitionSpec> Create(absl::Span<const AxisValue> entries,
                                              std::vector<std::string> unreduced = {});

  int64_t size() const { return rep_ == nullptr ? 0 : static_cast<int64_t>(rep_->entries.size()); }
  // P(), whatever is unreduced.
  bool empty() const { return rep_ == nullptr || rep_->entries.empty(); }
  // Valid as long as a copy of this spec lives.
  absl::Span<const SpecEntry> entries() const {
    return rep_ == nullptr ? absl::Span<const SpecEntry>() : absl::MakeConstSpan(rep_->entries);
  }
  // The entry of dimension `dim`; None beyond the last. Requires dim >= 0.
  const SpecEntry& entry(int64_t dim) const;
  // Sorted, distinct.
  absl::Span<const std::string> unreduced() const {
    return rep_ == nullptr ? absl::Span<const std::string>() : absl::MakeConstSpan(rep_->unreduced);
  }

  // Mesh axis names in order of first appearance, each once; unreduced axes not among them.
  std::vector<std::string> AxisNames() const;
  // The names that occur more than once, entries and unreduced axes taken together, each once, in
  // order of first appearance.
  std::vector<std::string> DuplicateAxes() const;

  // `P('dp', ('fsdp', 'tp'), None)`, `P()`, `P('dp', unreduced={'tp'})`.
  std::string ToString() const;

  friend bool operator==(const PartitionSpec& a, const PartitionSpec& b) {
    return a.rep_ == b.rep_ || (a.entries() == b.entries() && a.unreduced() == b.unreduced());
  }

 private:
  struct Rep {
    std::vector<SpecEntry> entries;
    std::vector<std::string> unreduced;
  };
  std::shared_ptr<const Rep> rep_;  // shared by copies; null for P() without unreduced axes
};

// OK unless an axis occurs twice: INVALID_ARGUMENT (DUPLICATE_AXIS; DuplicateSpecError) names it.
// None among the axes of a dimension counts as an axis, as in JAX.
absl::Status CheckDistinctAxes(const PartitionSpec& spec);

// OK unless the spec names what is no axis of the mesh: INVALID_ARGUMENT (AXIS_NOT_IN_MESH;
// ValueError) names it. None among the axes of a dimension is none.
absl::Status CheckAxesInMesh(const PartitionSpec& spec, const Mesh& mesh);

// Whether both specs give every device of `mesh` the same tile, for every shape of rank `rank`:
// equal after axes of size 1 are dropped and missing entries filled in. Unconstrained counts as
// none. Requires specs that Tiling::Create would accept for some shape of that rank.
bool Equivalent(const PartitionSpec& a, const PartitionSpec& b, const Mesh& mesh, int64_t rank);

// Whether every device holds the whole tensor: no axis of more than one device partitions it or
// leaves it unreduced.
bool FullyReplicated(const PartitionSpec& spec, const Mesh& mesh);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_SPEC_H_
