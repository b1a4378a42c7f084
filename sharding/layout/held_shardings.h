// The placements that the leaves of a tree have now, and plans to place and gather a whole tree.
#ifndef SHARDMESH_SHARDING_LAYOUT_HELD_SHARDINGS_H_
#define SHARDMESH_SHARDING_LAYOUT_HELD_SHARDINGS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/correction.h"
#include "sharding/mesh.h"
#include "sharding/shape.h"
#include "sharding/spec.h"

namespace shardmesh {

// A layout: a spec on a mesh.
struct NamedSharding {
  Mesh mesh;
  PartitionSpec spec;

  friend bool operator==(const NamedSharding&, const NamedSharding&) = default;
};

// The placement of one leaf of a tree of values.
struct HeldLeaf {
  enum class Kind {
    kNone,       // no value
    kSharded,    // an array with a mesh and a spec
    kSpecOnly,   // a value whose placement is a bare spec, without a mesh
    kSingle,     // an array on one device, without a spec
    kHostArray,  // an array in host memory, not on a device
    kNumber,     // a boolean, an integer or a floating-point number
    kOther,      // any other value, such as text
  };

  std::string name;
  Kind kind = Kind::kNone;
  Mesh mesh = {};           // kSharded
  PartitionSpec spec = {};  // kSharded, kSpecOnly
};

// eformer's extract_sharding_structure and get_shardings_with_structure. Returns, for each leaf,
// the layout of a sharded array, and nullopt for any other kind.
std::vector<std::optional<NamedSharding>> ExtractShardingStructure(
    absl::Span<const HeldLeaf> leaves);

// eformer's extract_shardings. Like ExtractShardingStructure, but a bare spec gives a layout on
// `mesh`. FAILED_PRECONDITION (NO_MESH; Python: AssertionError) if `mesh` is empty, for any leaves.
absl::StatusOr<std::vector<std::optional<NamedSharding>>> ExtractShardings(
    absl::Span<const HeldLeaf> leaves, const Mesh& mesh);

// eformer's get_partition_spec. Returns, for each leaf, the spec of a sharded array, P() for a
// number, nullopt for kNone. INVALID_ARGUMENT (INVALID_SPEC), with the leaf's name, for the first
// leaf of any other kind. The Python class is AttributeError for kSingle, and ValueError for
// kSpecOnly, kHostArray and kOther.
absl::StatusOr<std::vector<std::optional<PartitionSpec>>> GetPartitionSpecs(
    absl::Span<const HeldLeaf> leaves);

// A leaf to be placed.
struct LeafToShard {
  std::string name;
  Shape shape;
  PartitionSpec spec;
};

// The effect of placing one leaf. To gather the leaf means to replicate it: P() on the same mesh.
struct LeafPlacement {
  std::string name;
  std::optional<CorrectionResult> shard;  // nullopt if the request is P(): the leaf stays unchanged
  PartitionSpec gather;
};

// Plans for a whole tree the work of eformer's make_shard_and_gather_fns and of the functions that
// it returns. LeafPlacement::shard of a leaf is the result of CorrectConstraint.
//
// FAILED_PRECONDITION (NO_MESH; Python: AssertionError) on an empty mesh. INVALID_ARGUMENT with the
// leaf's name for a spec that is not valid on the mesh, even if CorrectConstraint would drop the
// absent axes. In the order of the checks: DUPLICATE_AXIS (Python: DuplicateSpecError),
// AXIS_NOT_IN_MESH (Python: ValueError), INVALID_SHAPE for the shape.
absl::StatusOr<std::vector<LeafPlacement>> PlanShardAndGather(absl::Span<const LeafToShard> leaves,
                                                              const Mesh& mesh);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_LAYOUT_HELD_SHARDINGS_H_
