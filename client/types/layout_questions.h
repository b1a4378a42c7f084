// Questions about layouts and their answers, as a client asks and gets them.
#ifndef SHARDMESH_CLIENT_TYPES_LAYOUT_QUESTIONS_H_
#define SHARDMESH_CLIENT_TYPES_LAYOUT_QUESTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "rpc/codec/definition.h"
#include "sharding/axis_value.h"
#include "sharding/compatibility.h"
#include "sharding/correction.h"
#include "sharding/explanation.h"
#include "sharding/layout/analysis.h"
#include "sharding/layout/fixes.h"
#include "sharding/mesh.h"
#include "sharding/mode.h"
#include "sharding/partition_axis.h"
#include "sharding/shape.h"
#include "sharding/spec.h"
#include "sharding/tile.h"
#include "tensor/dtype.h"

namespace shardmesh::client {

// By name in the catalog, or by value. Nothing given means the mesh "default", the profile in which
// no field is given, and no rules at all.
using MeshSelector = std::variant<std::monostate, std::string, Mesh>;
using ProfileSelector = std::variant<std::monostate, std::string, PartitionAxis>;
using RuleSetSelector = std::variant<std::monostate, std::string, rpc::RuleSetDefinition>;

// Which spec do these logical axes resolve to?
struct ResolveSpecQuestion {
  // Semantic axes, one a dimension; or the name of a preset, which brings axes and mode.
  std::vector<AxisValue> axes = {};
  std::string preset = {};
  // Nullopt: the preset decides, or training.
  std::optional<Mode> mode = std::nullopt;
  // Without a shape nothing is corrected, and no mesh is needed.
  std::optional<Shape> shape = std::nullopt;
  ProfileSelector profile = {};
  MeshSelector mesh = {};
  // The first correction is an error.
  bool strict = false;
  Compatibility compatibility = Compatibility::kDefault;
  // Return the chain of reasons.
  bool explain = false;
  // Return fixes of the corrections.
  bool suggest_fixes = false;
};

// Which mesh axes do these logical axes stand for, each for itself?
struct ResolveAxesQuestion {
  std::vector<AxisValue> axes;
  // Nullopt: training. No dimension.
  std::optional<Mode> mode = std::nullopt;
  ProfileSelector profile = {};
  Compatibility compatibility = Compatibility::kDefault;
};

// Does this spec fit shape and mesh?
struct CorrectSpecQuestion {
  PartitionSpec spec;
  Shape shape;
  MeshSelector mesh = {};
  bool strict = false;
  Compatibility compatibility = Compatibility::kDefault;
  // Return fixes of the corrections.
  bool suggest_fixes = false;
  // An empty mesh leaves P(), instead of being an error.
  bool allow_empty_mesh = false;
};

struct SpecAnswer {
  PartitionSpec requested;
  // After correction; `requested` where no shape was given.
  PartitionSpec effective;
  // By rising dimension.
  std::vector<Correction> corrections;
  // Empty unless asked for; see SuggestFixes.
  std::vector<Fix> fixes;
  // Empty unless asked for.
  std::vector<ExplanationStep> explanation;
  // The tile's extent in each dimension; nullopt where no shape was given.
  std::optional<Shape> shard_shape;
  // The catalog's revision that the answer holds for.
  int64_t revision = 0;
};

// What is an existing array of this shape constrained to?
struct ConstrainQuestion {
  // A spec; or semantic axes or the name of a preset, with a mode and a profile.
  std::variant<PartitionSpec, std::vector<AxisValue>, std::string> layout;
  std::optional<Mode> mode = std::nullopt;
  ProfileSelector profile = {};
  Shape shape;
  MeshSelector mesh = {};
  // With axes or a preset: see ApplyLogicalSharding.
  bool auto_correct = false;
  bool strict = false;
  Compatibility compatibility = Compatibility::kDefault;
};

struct ConstraintAnswer {
  PartitionSpec requested;
  // Nullopt: the array stays as it is.
  std::optional<PartitionSpec> constraint;
  std::vector<Correction> corrections;
  int64_t revision = 0;
};

// Do two specs mean the same for tensors of this rank?
struct CompareQuestion {
  PartitionSpec a;
  PartitionSpec b;
  MeshSelector mesh = {};
  int64_t rank = 0;
  Compatibility compatibility = Compatibility::kDefault;
};

struct Comparison {
  bool equal = false;       // P() and P(None) are not
  bool equivalent = false;  // every tensor of that rank lies alike
  bool a_fully_replicated = false;
  bool b_fully_replicated = false;
};

// Why does a tensor have its spec?
struct ExplainQuestion {
  std::string name;  // 1 to 1,024 bytes
  Shape shape;
  RuleSetSelector rules = {};
  // Instead of rules: semantic axes, with a profile and a mode.
  std::optional<std::vector<AxisValue>> axes = std::nullopt;
  ProfileSelector profile = {};
  std::optional<Mode> mode = std::nullopt;
  MeshSelector mesh = {};
  Compatibility compatibility = Compatibility::kDefault;
};

struct TensorExplanation {
  SpecAnswer spec;  // with fixes and the chain of reasons
  std::optional<int64_t> rule_index;
};

// How does a tensor lie on a mesh?
struct TilingQuestion {
  MeshSelector mesh;
  PartitionSpec spec;  // must fit
  Shape shape;
  // Positions whose tiles are wanted, at most 65,536.
  std::vector<DeviceId> devices = {};
  Compatibility compatibility = Compatibility::kDefault;
  // A range of the tensor whose owners are wanted.
  std::optional<Tile> range = std::nullopt;
  // Positions whose replica groups are wanted, at most 65,536.
  std::vector<DeviceId> replica_groups_of = {};
};

struct DeviceTile {
  DeviceId device = 0;
  Tile tile;
  // Which copy of the tile this is, from 0 in mesh order.
  int64_t replica_id = 0;
};

struct TilingAnswer {
  Shape shard_shape;
  int64_t distinct_tiles = 0;
  bool fully_replicated = false;
  // Of the devices asked for, in that order.
  std::vector<DeviceTile> tiles;
  // The pieces of the range asked for, in row-major order.
  std::vector<OwnedTile> owners;
  // For each position asked for, all devices that hold its tile.
  std::vector<std::vector<DeviceId>> replica_groups;
  int64_t revision = 0;
};

// The mode of a preset is never missing.
struct NamedPreset {
  std::string name;
  std::vector<AxisValue> axes;
  Mode mode = RuntimeMode::kTrain;
};

// What holds for a whole tree of tensors.
struct TreeQuestion {
  // For tensors without axes of their own.
  RuleSetSelector rules = {};
  // For tensors with axes.
  ProfileSelector profile = {};
  std::optional<Mode> mode = std::nullopt;
  MeshSelector mesh = {};
  bool strict = false;
  Compatibility compatibility = Compatibility::kDefault;
  // Specs are those of the rules: no mesh is asked, nothing is corrected, no bytes are counted.
  bool match_only = false;
  // A tensor that no rule matches is answered as such; otherwise it ends the call with
  // UNMATCHED_TENSOR.
  bool keep_unmatched = false;
  // Return fixes of the corrections.
  bool suggest_fixes = false;
  // Specs that tensors bring must name axes of the mesh alone, each once, though correction would
  // drop the others.
  bool own_specs_must_suit_mesh = false;
  // The name of a tree of the catalog. No tensors are given then.
  std::string stored_tree = {};
};

struct TreeTensor {
  std::string name;  // unique in the tree, 1 to 1,024 bytes
  Shape shape;
  std::optional<Dtype> dtype = std::nullopt;  // nullopt counts no bytes
  // Instead of rules: semantic axes, or a spec of the tensor's own.
  std::optional<std::vector<AxisValue>> axes = std::nullopt;
  std::optional<PartitionSpec> spec = std::nullopt;
};

struct TreeSpec {
  PartitionSpec requested;
  PartitionSpec effective;
  std::vector<Correction> corrections;
  // Empty unless asked for; see SuggestFixes.
  std::vector<Fix> fixes;
  // They were asked for and left out, as those of the answer take too much already.
  bool fixes_left_out = false;
};

struct TreePlacement {
  // Index into TreeAnswer::specs.
  size_t spec_index = 0;
  // The rule that matched, from 0; nullopt if none was needed, or none matched.
  std::optional<int64_t> rule_index;
  // No rule matched, and the tensor is counted as replicated; see TreeQuestion::keep_unmatched.
  bool unmatched = false;
  int64_t bytes_per_device = 0;
};

// A report, and how many tensors are of some kinds. Bytes count tensors whose dtype was given.
struct TreeReport {
  LayoutReport layout;
  int64_t devices = 0;             // 0 without a mesh
  int64_t corrected_tensors = 0;   // whose spec was corrected
  int64_t replicated_tensors = 0;  // of which each device holds all
  int64_t unmatched_tensors = 0;   // that no rule matches
};

struct TreeAnswer {
  // The distinct specs.
  std::vector<TreeSpec> specs;
  // One for each tensor, in the order asked, or in that of the stored tree.
  std::vector<TreePlacement> placements;
  TreeReport report;
  int64_t revision = 0;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_TYPES_LAYOUT_QUESTIONS_H_
