// Partition specs: which mesh axes partition which dimension of a tensor.
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
#include "status/fact_keys.h"

namespace shardmesh {

// One element of a dimension's axis list: the name of a mesh axis, or none. None occurs only in a
// spec that is not corrected yet. Correction makes a dimension with such an element none;
// Tiling::Create refuses a spec with such an element.
using AxisName = std::optional<std::string>;

// The partitioning of one dimension: none, left open, or along axes, major to minor.
class SpecEntry {
 public:
  // Not partitioned.
  SpecEntry() = default;
  static SpecEntry None() { return SpecEntry(); }
  static SpecEntry Unconstrained();
  // Returns the entry along these axes. An empty list and a list of one none give None.
  static SpecEntry Axes(std::vector<AxisName> axes);
  static SpecEntry Axis(std::string name);

  // Returns the entry of a value, normalised as JAX's PartitionSpec does: `("a",)` is `"a"`; `()`,
  // `(None,)` and `""` are none; lists count as tuples. INVALID_ARGUMENT (INVALID_SPEC; Python:
  // ValueError) for a tuple within a tuple, for an unconstrained or not given entry of a longer
  // tuple, and for a value that is not given.
  static absl::StatusOr<SpecEntry> Create(const AxisValue& value);

  bool is_none() const { return !unconstrained_ && axes_.empty(); }
  bool is_unconstrained() const { return unconstrained_; }
  // Returns the axes, major to minor; empty for none and unconstrained. Valid while this entry is
  // unchanged.
  absl::Span<const AxisName> axes() const { return axes_; }

  // Returns the entry as a value of kind none, name, tuple or unconstrained.
  AxisValue ToAxisValue() const;
  // Returns a text such as `None`, `'tp'`, `('fsdp', 'dp')` or `UNCONSTRAINED`.
  std::string ToString() const { return ToAxisValue().ToString(); }
  // Returns the axes joined by commas, the form of the fact `axis` of errors.
  std::string AxisNames() const;

  friend bool operator==(const SpecEntry&, const SpecEntry&) = default;

 private:
  absl::InlinedVector<AxisName, 2> axes_;
  bool unconstrained_ = false;
};

// One entry per leading dimension of a tensor; dimensions beyond the last entry are not
// partitioned. Along an unreduced axis, each device holds a partial sum of its tile.
//
// A spec has no mesh and no shape: Correct() and Tiling::Create() check it against a mesh and a
// shape. Two specs are equal if their entries and their unreduced axes are equal. P() and P(None)
// are therefore different; Equivalent() compares their placements. Immutable except for assignment;
// safe to read from several threads. A copy is cheap: it shares the entries.
class PartitionSpec {
 public:
  // P().
  PartitionSpec() = default;
  // `unreduced` is a set: the constructor sorts it and removes repeats.
  explicit PartitionSpec(std::vector<SpecEntry> entries, std::vector<std::string> unreduced = {});

  // Returns the spec of one AxisValue per dimension, each normalised by SpecEntry::Create. Errors
  // as SpecEntry::Create, with the dimension.
  static absl::StatusOr<PartitionSpec> Create(absl::Span<const AxisValue> entries,
                                              std::vector<std::string> unreduced = {});

  int64_t size() const { return rep_ == nullptr ? 0 : static_cast<int64_t>(rep_->entries.size()); }
  // Returns whether the spec has no entries; it may have unreduced axes.
  bool empty() const { return rep_ == nullptr || rep_->entries.empty(); }
  // Returns the entries. Valid while a copy of this spec exists.
  absl::Span<const SpecEntry> entries() const {
    return rep_ == nullptr ? absl::Span<const SpecEntry>() : absl::MakeConstSpan(rep_->entries);
  }
  // Returns the entry of dimension `dim`; None beyond the last entry. Requires dim >= 0.
  const SpecEntry& entry(int64_t dim) const;
  // Returns the unreduced axes, sorted and distinct. Valid while a copy of this spec exists.
  absl::Span<const std::string> unreduced() const {
    return rep_ == nullptr ? absl::Span<const std::string>() : absl::MakeConstSpan(rep_->unreduced);
  }

  // Returns mesh axis names in order of first appearance, each once, without unreduced axes.
  std::vector<std::string> AxisNames() const;
  // Returns the names that occur more than once in entries and unreduced axes together, each once,
  // in order of first appearance.
  std::vector<std::string> DuplicateAxes() const;

  // Returns a text such as `P('dp', ('fsdp', 'tp'), None)`, `P()` or `P('dp', unreduced={'tp'})`.
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

// Returns OK unless an axis occurs twice. INVALID_ARGUMENT (DUPLICATE_AXIS; Python:
// DuplicateSpecError) names the axis. None among the axes of a dimension counts as an axis, as in
// JAX.
absl::Status CheckDistinctAxes(const PartitionSpec& spec);

// Returns OK if all axes of the spec are axes of the mesh. INVALID_ARGUMENT (AXIS_NOT_IN_MESH;
// Python: ValueError) names the first absent axis. None among the axes of a dimension counts as
// absent.
absl::Status CheckAxesInMesh(const PartitionSpec& spec, const Mesh& mesh);

// Returns whether both specs give every device of `mesh` the same tile, for every shape of rank
// `rank`. This holds if the specs are equal once axes of size 1 are dropped and missing entries are
// filled in with none. Unconstrained counts as none. Requires specs that Tiling::Create would
// accept for some shape of that rank.
bool Equivalent(const PartitionSpec& a, const PartitionSpec& b, const Mesh& mesh, int64_t rank);

// Returns whether every device holds the whole tensor: no axis of more than one device partitions
// the tensor or is unreduced.
bool FullyReplicated(const PartitionSpec& spec, const Mesh& mesh);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_SPEC_H_
