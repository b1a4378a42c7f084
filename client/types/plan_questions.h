// Questions about plans: data movement between layouts, totals of a layout, the best mesh for a
// model, and the layouts of existing arrays.
#ifndef SHARDMESH_CLIENT_TYPES_PLAN_QUESTIONS_H_
#define SHARDMESH_CLIENT_TYPES_PLAN_QUESTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/types/layout_questions.h"
#include "sharding/compatibility.h"
#include "sharding/layout/held_shardings.h"
#include "sharding/layout/mesh_search.h"
#include "sharding/mesh.h"
#include "sharding/mode.h"
#include "sharding/reshard/plan.h"
#include "sharding/shape.h"
#include "sharding/spec.h"
#include "sharding/tile.h"
#include "tensor/dtype.h"

namespace shardmesh::client {

// Asks for the data movement from one layout of an array to another. A device of one mesh and a
// device of the other mesh are the same device if their ids are equal.
struct ReshardQuestion {
  MeshSelector from_mesh = {};
  PartitionSpec from = {};  // must fit the array's shape, like `to`
  MeshSelector to_mesh = {};
  PartitionSpec to = {};
  Shape shape = {};
  Dtype dtype = Dtype::kF32;
  // `devices` are positions in `to_mesh`: the answer lists what each of these devices needs, and
  // which devices send these regions. `sources` are positions in `from_mesh`: the answer lists what
  // each of these devices sends. At most 65,536 positions in each list. The answer must fit 4 MiB
  // (RESOURCE_EXHAUSTED, LIMIT_EXCEEDED). The answer has at most 65,536 received regions and 65,536
  // sent regions.
  std::vector<DeviceId> devices = {};
  std::vector<DeviceId> sources = {};
  // Whether to leave out the regions that `devices` receive.
  bool omit_regions = false;
  Compatibility compatibility = Compatibility::kDefault;
};

// A region that one device sends to another.
struct ReshardTransfer {
  DeviceId source = 0;       // position in the mesh of the source layout
  DeviceId destination = 0;  // position in the mesh of the destination layout
  Tile tile;
  int64_t bytes = 0;
};

struct ReshardDevice {
  DeviceId device = 0;
  DeviceReshard part;
  int64_t needed_bytes = 0;
  // The regions that the device receives, in row-major order; empty with omit_regions.
  std::vector<ReshardTransfer> regions;
};

struct ReshardAnswer {
  ReshardPattern pattern = ReshardPattern::kGeneral;
  std::vector<ReshardStep> steps;
  int64_t elements = 0;  // number of elements of the array
  // Totals, in elements except where sharding/reshard/plan.h states another unit. `mean_sent`,
  // `max_link` and `max_sent` are unset: the members below have their values in bytes.
  ReshardTotals totals;
  int64_t total_needed_bytes = 0;
  int64_t max_needed_bytes = 0;  // the most bytes that one device needs
  int64_t max_link_bytes = 0;    // the most bytes that one device sends to another
  double mean_sent_bytes = 0;    // average over the devices of the source layout's mesh
  // The most bytes that one device sends in all; nullopt if the computation would take too long.
  std::optional<int64_t> max_sent_bytes;
  std::vector<ReshardDevice> devices;  // in the order of the question
  std::vector<ReshardTransfer> sent;   // sent by `sources`, in their order; then by destination
  int64_t revision = 0;
};

// Asks for the totals of a tree. Each tensor has its own spec, which must fit without correction.
struct AnalyzeQuestion {
  MeshSelector mesh = {};
  // The name of a tree of the catalog. If this name is set, the request must have no tensors.
  std::string stored_tree = {};
};

struct AnalyzeAnswer {
  TreeReport report;
  int64_t revision = 0;
};

// The counts that eformer's analyze_sharding_strategy gives for the tree of an AnalyzeQuestion.
struct ShardingStrategyAnswer {
  ExactAnalysis analysis;
  int64_t revision = 0;
};

// Asks which meshes of `devices` devices are the best for a tree.
struct SearchQuestion {
  int64_t devices = 0;  // 1 to 2^31
  // The axes of the meshes to try; at most 16.
  std::vector<SearchAxis> axes;
  // The memory of a device; nullopt means unlimited.
  std::optional<int64_t> device_memory_bytes = std::nullopt;
  // The rules for tensors that have neither axes nor a spec of their own.
  RuleSetSelector rules = {};
  // The profile with which the axes of tensors are resolved.
  ProfileSelector profile = {};
  std::optional<Mode> mode = std::nullopt;
  int64_t keep = 20;  // limit on the number of meshes in the answer, 1 to 1,000
  // Criteria by which meshes are ranked: the first criterion in which two meshes differ decides.
  // Empty means all criteria, in the order of the enum.
  std::vector<MeshCriterion> ranking = {};
  // The name of a tree of the catalog. If this name is set, the request must have no tensors.
  std::string stored_tree = {};
};

struct SearchAnswer {
  MeshSearchResult result;
  int64_t revision = 0;
};

// Asks for the layouts of existing arrays.
struct ShardingsQuestion {
  enum class Kind {
    kLayouts,        // mesh and spec; nullopt for a leaf without them
    kLayoutsOnMesh,  // as kLayouts; a leaf with only a spec lies on `mesh`, which must not be empty
    kSpecs,          // the spec; P() for a number; an error for another leaf without a spec
  };
  Kind kind = Kind::kLayouts;
  // At most 100,000 leaves, in messages of at most 4 MiB.
  std::vector<HeldLeaf> leaves = {};
  // If set, the answer also has the cluster's arrays whose names have this prefix. The list is not
  // a snapshot: a name that is added or deleted during the call may be missing or present.
  std::optional<std::string> prefix = std::nullopt;
  MeshSelector mesh = {};
  Compatibility compatibility = Compatibility::kDefault;
};

struct ShardingsEntry {
  std::string name;
  std::optional<PartitionSpec> spec;
  std::optional<Mesh> mesh;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_TYPES_PLAN_QUESTIONS_H_
