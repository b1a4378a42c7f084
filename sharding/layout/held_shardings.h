// What the leaves of a tree say about how they are placed, and how a whole tree is placed and
// gathered.
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

// A leaf of a tree of values, as far as its placement goes.
struct HeldLeaf {
  enum class Kind {
    kNone,       // nothing is there
    kSharded,    // an array with a mesh and a spec
    kSpecOnly,   // something whose placement is a bare spec, without a mesh
    kSingle,     // an array on one device, without a spec
    kHostArray,  // an array outside any device
    kNumber,     // a boolean, an integer or a floating-point number
    kOther,      // any other value, such as a text
  };

  std::string name;
  Kind kind = Kind::kNone;
  Mesh mesh = {};           // kSharded
  PartitionSpec spec = {};  // kSharded, kSpecOnly
};

// eformer's extract_sharding_structure and get_shardings_with_structure: per leaf the layout of a
// sharded array, nullopt for anything else.
std::vector<std::optional<NamedSharding>> ExtractShardingStructure(
    absl::Span<const HeldLeaf> leaves);

// extract_shardings: the same, and a bare spec is one on `mesh`. FAILED_PRECONDITION (NO_MESH;
// AssertionError) if `mesh` is empty, whatever the leaves are.
absl::StatusOr<std::vector<std::optional<NamedSharding>>> ExtractShardings(
    absl::Span<const HeldLeaf> leaves, const Mesh& mesh);

// get_partition_spec: the spec of a sharded array, P() for a number, nullopt for nothing.
// INVALID_ARGUMENT (INVALID_SPEC), with the leaf's name, for the first leaf of another kind:
// AttributeError for an array on one device, ValueError for the rest.
absl::StatusOr<std::vector<std::optional<PartitionSpec>>> GetPartitionSpecs(
    absl::Span<const HeldLeaf> leaves);

// A leaf that is to be placed.
struct LeafToShard {
  std::string name;
  Shape shape;
  PartitionSpec spec;
};

// What placing one leaf does. Gathering it again replicates it: P() on the same mesh.
struct LeafPlacement {
  std::string name;
  std::optional<CorrectionResult> shard;  // nullopt: P() was asked for, the leaf stays as it is
  PartitionSpec gather;
};

// make_shard_and_gather_fns, and the call of its functions, for a whole tree: per leaf what
// CorrectConstraint says. FAILED_PRECONDITION (NO_MESH; AssertionError) on an empty mesh.
// INVALID_ARGUMENT with the leaf's name: every spec must first of all be one of the mesh
// (DUPLICATE_AXIS; DuplicateSpecError, then AXIS_NOT_IN_MESH; ValueError), though correction would
// drop such axes; then INVALID_SHAPE.
absl::StatusOr<std::vector<LeafPlacement>> PlanShardAndGather(absl::Span<const LeafToShard> leaves,
                                                              const Mesh& mesh);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_LAYOUT_HELD_SHARDINGS_H_
