// Reads the placement of each leaf, and plans the placement of whole trees.
#include "sharding/layout/held_shardings.h"

#include <utility>

#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

absl::Status NoMesh(std::string_view what) {
  return WithPythonType(WithReason(absl::FailedPreconditionError(ToAbsl(what)), Reason::kNoMesh),
                        "AssertionError");
}

std::optional<NamedSharding> ShardingOf(const HeldLeaf& leaf) {
  if (leaf.kind != HeldLeaf::Kind::kSharded) {
    return std::nullopt;
  }
  return NamedSharding{leaf.mesh, leaf.spec};
}

// Returns OK if the spec is valid on the mesh for some shape.
absl::Status CheckSpecOnMesh(const PartitionSpec& spec, const Mesh& mesh) {
  SHARDMESH_RETURN_IF_ERROR(CheckDistinctAxes(spec));
  return CheckAxesInMesh(spec, mesh);
}

}  // namespace

std::vector<std::optional<NamedSharding>> ExtractShardingStructure(
    absl::Span<const HeldLeaf> leaves) {
  std::vector<std::optional<NamedSharding>> shardings;
  shardings.reserve(leaves.size());
  for (const HeldLeaf& leaf : leaves) {
    shardings.push_back(ShardingOf(leaf));
  }
  return shardings;
}

absl::StatusOr<std::vector<std::optional<NamedSharding>>> ExtractShardings(
    absl::Span<const HeldLeaf> leaves, const Mesh& mesh) {
  if (mesh.empty()) {
    return NoMesh("shardings are extracted on a mesh, and there is none; name one");
  }
  std::vector<std::optional<NamedSharding>> shardings;
  shardings.reserve(leaves.size());
  for (const HeldLeaf& leaf : leaves) {
    if (leaf.kind == HeldLeaf::Kind::kSpecOnly) {
      shardings.push_back(NamedSharding{mesh, leaf.spec});
    } else {
      shardings.push_back(ShardingOf(leaf));
    }
  }
  return shardings;
}

absl::StatusOr<std::vector<std::optional<PartitionSpec>>> GetPartitionSpecs(
    absl::Span<const HeldLeaf> leaves) {
  std::vector<std::optional<PartitionSpec>> specs;
  specs.reserve(leaves.size());
  for (const HeldLeaf& leaf : leaves) {
    switch (leaf.kind) {
      case HeldLeaf::Kind::kNone:
        specs.push_back(std::nullopt);
        break;
      case HeldLeaf::Kind::kSharded:
        specs.push_back(leaf.spec);
        break;
      case HeldLeaf::Kind::kNumber:
        specs.push_back(PartitionSpec());
        break;
      case HeldLeaf::Kind::kSingle:
        return InvalidArgument(Reason::kInvalidSpec,
                               StrCat(leaf.name, " is an array on one device and has no spec; put",
                                      " it on a mesh first"),
                               {{fact::kValue, leaf.name}}, "AttributeError");
      case HeldLeaf::Kind::kSpecOnly:
      case HeldLeaf::Kind::kHostArray:
      case HeldLeaf::Kind::kOther:
        return InvalidArgument(Reason::kInvalidSpec,
                               StrCat(leaf.name, " is neither an array on a mesh nor a number"),
                               {{fact::kValue, leaf.name}});
    }
  }
  return specs;
}

absl::StatusOr<std::vector<LeafPlacement>> PlanShardAndGather(absl::Span<const LeafToShard> leaves,
                                                              const Mesh& mesh) {
  if (mesh.empty()) {
    return NoMesh("a tree is placed on a mesh, and there is none; name one");
  }
  for (const LeafToShard& leaf : leaves) {
    SHARDMESH_RETURN_IF_ERROR(WithContext(CheckSpecOnMesh(leaf.spec, mesh), leaf.name));
  }
  std::vector<LeafPlacement> placements;
  placements.reserve(leaves.size());
  for (const LeafToShard& leaf : leaves) {
    SHARDMESH_RETURN_IF_ERROR(WithContext(CheckShape(leaf.shape), leaf.name));
    absl::StatusOr<std::optional<CorrectionResult>> shard =
        CorrectConstraint(leaf.spec, leaf.shape, mesh);
    if (!shard.ok()) {
      return WithContext(shard.status(), leaf.name);
    }
    placements.push_back({leaf.name, *std::move(shard), PartitionSpec()});
  }
  return placements;
}

}  // namespace shardmesh
