// Questions about plans: what moves between layouts, what a layout amounts to, which mesh suits a
// model, and how arrays lie that there are.
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

// What must move to turn one layout of an array into another? Devices of the two meshes are the
// same where their ids are.
struct ReshardQuestion {
  MeshSelector from_mesh = {};
  PartitionSpec from = {};  // must fit, as the other one
  MeshSelector to_mesh = {};
  PartitionSpec to = {};
  Shape shape = {};
  Dtype dtype = Dtype::kF32;
  // Positions in the destination's mesh of which to tell what they need and from whom, and in the
  // source's of which to tell what they send; at most 65,536 each. The answer must fit 4 MiB
  // (RESOURCE_EXHAUSTED, LIMIT_EXCEEDED), and has at most 65,536 regions of either kind.
  std::vector<DeviceId> devices = {};
  std::vector<DeviceId> sources = {};
  // Leave out who sends what to `devices`.
  bool omit_regions = false;
  Compatibility compatibility = Compatibility::kDefault;
};

// A region that one device sends another.
struct ReshardTransfer {
  DeviceId source = 0;       // of the source's mesh
  DeviceId destination = 0;  // of the destination's mesh
  Tile tile;
  int64_t bytes = 0;
};

struct ReshardDevice {
  DeviceId device = 0;
  DeviceReshard part;
  int64_t needed_bytes = 0;
  // In row-major order; empty if they were left out.
  std::vector<ReshardTransfer> regions;
};

struct ReshardAnswer {
  ReshardPattern pattern = ReshardPattern::kGeneral;
  std::vector<ReshardStep> steps;
  int64_t elements = 0;  // of the array
  // As sharding/reshard/plan.h has them: elements, where not said otherwise. `mean_sent`,
  // `max_link` and `max_sent` are not there; the bytes below are.
  ReshardTotals totals;
  int64_t total_needed_bytes = 0;
  int64_t max_needed_bytes = 0;  // of one device
  int64_t max_link_bytes = 0;    // the most that one device sends another
  double mean_sent_bytes = 0;    // by a device of the source
  // The most that one device sends; nullopt where it would take too long to tell.
  std::optional<int64_t> max_sent_bytes;
  std::vector<ReshardDevice> devices;  // in the order of the question
  std::vector<ReshardTransfer> sent;   // by source as asked for, then by destination
  int64_t revision = 0;
};

// What does a tree come to whose tensors bring their specs, which must fit?
struct AnalyzeQuestion {
  MeshSelector mesh = {};
  // EXACT: parameters alone are counted, as the original does.
  Compatibility compatibility = Compatibility::kDefault;
  // The name of a tree of the catalog. No tensors are given then.
  std::string stored_tree = {};
};

struct AnalyzeAnswer {
  TreeReport report;
  // What the original returns, under EXACT.
  ExactAnalysis exact;
  int64_t revision = 0;
};

// On which mesh of that many devices does a tree lie best?
struct SearchQuestion {
  int64_t devices = 0;  // 1 to 2^31
  // At most 16.
  std::vector<SearchAxis> axes;
  // What a device may hold; nullopt: anything.
  std::optional<int64_t> device_memory_bytes = std::nullopt;
  // For tensors without axes and spec.
  RuleSetSelector rules = {};
  // For tensors with axes.
  ProfileSelector profile = {};
  std::optional<Mode> mode = std::nullopt;
  int64_t keep = 20;  // 1 to 1,000
  // The first that differs decides; none means all, in their order.
  std::vector<MeshCriterion> ranking = {};
  // The name of a tree of the catalog. No tensors are given then.
  std::string stored_tree = {};
};

struct SearchAnswer {
  MeshSearchResult result;
  int64_t revision = 0;
};

// How do arrays lie that there are?
struct ShardingsQuestion {
  enum class Kind {
    kLayouts,        // mesh and spec, nothing where a leaf has none
    kLayoutsOnMesh,  // the same, and a bare spec is one on `mesh`, which must not be empty
    kSpecs,          // its spec, an error where it has none; numbers have P()
  };
  Kind kind = Kind::kLayouts;
  // At most 100,000, in messages of 4 MiB.
  std::vector<HeldLeaf> leaves = {};
  // The cluster's arrays whose names begin with this too; nullopt: none of them. Their list is not
  // of one moment: names that come or go meanwhile may be in it or not.
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
