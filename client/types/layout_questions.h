// Questions about layouts and their answers, in the client's form.
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

// By name in the catalog, or by value. The default is no mesh, which is an error if the question
// needs one (MISSING_ARGUMENT); the profile without given fields; and no rules.
using MeshSelector = std::variant<std::monostate, std::string, Mesh>;
using ProfileSelector = std::variant<std::monostate, std::string, PartitionAxis>;
using RuleSetSelector = std::variant<std::monostate, std::string, rpc::RuleSetDefinition>;

// Asks for the spec that logical axes resolve to.
struct ResolveSpecQuestion {
  // Semantic axes, one a dimension; or the name of a preset, which supplies axes and mode.
  std::vector<AxisValue> axes = {};
  std::string preset = {};
  // Nullopt: the preset's mode, or training.
  std::optional<Mode> mode = std::nullopt;
  // Without a shape there is no correction, and no mesh is needed.
  std::optional<Shape> shape = std::nullopt;
  ProfileSelector profile = {};
  MeshSelector mesh = {};
  // Turns the first correction into an error.
  bool strict = false;
  Compatibility compatibility = Compatibility::kDefault;
  // Return the chain of reasons.
  bool explain = false;
  // Return fixes of the corrections.
  bool suggest_fixes = false;
};

// Asks for the effective spec of an array, by names only: cheaper than ResolveSpecQuestion.
struct EffectiveSpecQuestion {
  // Semantic axes by name, one a dimension (`_`: not partitioned); or the name of a preset, which
  // supplies axes and mode.
  std::vector<std::string> axes = {};
  std::string preset = {};
  // Empty: the preset's mode, or training.
  std::string mode = {};
  Shape shape = {};
  // Names in the catalog, or NAME@VERSION. Empty profile: defaults. The mesh is required.
  std::string profile = {};
  std::string mesh = {};
  // Turns the first correction into an error.
  bool strict = false;
};

// The spec that fits.
struct EffectiveSpec {
  PartitionSpec spec;
  // Dimensions whose axes were dropped because they do not fit, rising.
  std::vector<int64_t> corrected_dimensions;
  Shape shard_shape;     // of each device's tile, in elements
  int64_t revision = 0;  // of the catalog
};

// Asks for the mesh axes of each of these logical axes.
struct ResolveAxesQuestion {
  std::vector<AxisValue> axes;
  // Nullopt: training. A dimension is not allowed.
  std::optional<Mode> mode = std::nullopt;
  ProfileSelector profile = {};
  Compatibility compatibility = Compatibility::kDefault;
};

// Asks whether a spec fits shape and mesh.
struct CorrectSpecQuestion {
  PartitionSpec spec;
  Shape shape;
  MeshSelector mesh = {};
  bool strict = false;
  Compatibility compatibility = Compatibility::kDefault;
  // Return fixes of the corrections.
  bool suggest_fixes = false;
  // An empty mesh gives P() instead of an error.
  bool allow_empty_mesh = false;
};

struct SpecAnswer {
  PartitionSpec requested;
  // After correction; equal to `requested` without a shape.
  PartitionSpec effective;
  // By rising dimension.
  std::vector<Correction> corrections;
  // Empty unless requested; see SuggestFixes.
  std::vector<Fix> fixes;
  // Empty unless requested.
  std::vector<ExplanationStep> explanation;
  // The tile's extent in each dimension; nullopt without a shape.
  std::optional<Shape> shard_shape;
  // The catalog's revision that the answer is based on.
  int64_t revision = 0;
};

// Asks for the constraint on an existing array of this shape.
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
  // Nullopt: the array stays unchanged.
  std::optional<PartitionSpec> constraint;
  std::vector<Correction> corrections;
  int64_t revision = 0;
};

// Asks whether two specs are equivalent for tensors of this rank.
struct CompareQuestion {
  PartitionSpec a;
  PartitionSpec b;
  MeshSelector mesh = {};
  int64_t rank = 0;
  Compatibility compatibility = Compatibility::kDefault;
};

struct Comparison {
  bool equal = false;       // P() and P(None) are not equal
  bool equivalent = false;  // every tensor of that rank has the same placement
  bool a_fully_replicated = false;
  bool b_fully_replicated = false;
};

// Asks why a tensor has its spec.
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

// Asks for the tiles of a tensor on a mesh.
struct TilingQuestion {
  MeshSelector mesh;
  PartitionSpec spec;  // must fit
  Shape shape;
  // Positions to return tiles for, at most 65,536.
  std::vector<DeviceId> devices = {};
  Compatibility compatibility = Compatibility::kDefault;
  // A range of the tensor to return owners for.
  std::optional<Tile> range = std::nullopt;
  // Positions to return replica groups for, at most 65,536.
  std::vector<DeviceId> replica_groups_of = {};
};

struct DeviceTile {
  DeviceId device = 0;
  Tile tile;
  // The number of this copy of the tile, from 0 in mesh order.
  int64_t replica_id = 0;
};

struct TilingAnswer {
  Shape shard_shape;
  int64_t distinct_tiles = 0;
  bool fully_replicated = false;
  // For the requested devices, in their order.
  std::vector<DeviceTile> tiles;
  // The pieces of the requested range, in row-major order.
  std::vector<OwnedTile> owners;
  // For each requested position, all devices that hold its tile.
  std::vector<std::vector<DeviceId>> replica_groups;
  int64_t revision = 0;
};

// A preset always has a mode.
struct NamedPreset {
  std::string name;
  std::vector<AxisValue> axes;
  Mode mode = RuntimeMode::kTrain;
};

// Settings for a whole tree of tensors.
struct TreeQuestion {
  // For tensors without axes of their own.
  RuleSetSelector rules = {};
  // For tensors with axes.
  ProfileSelector profile = {};
  std::optional<Mode> mode = std::nullopt;
  MeshSelector mesh = {};
  bool strict = false;
  Compatibility compatibility = Compatibility::kDefault;
  // Returns the specs of the rules only: without a mesh, corrections or bytes.
  bool match_only = false;
  // Reports a tensor without a matching rule in the answer; otherwise it ends the call with
  // UNMATCHED_TENSOR.
  bool keep_unmatched = false;
  // Return fixes of the corrections.
  bool suggest_fixes = false;
  // Specs of the tensors themselves may name only axes of the mesh, each once, although correction
  // would drop the others.
  bool own_specs_must_suit_mesh = false;
  // The name of a tree of the catalog; excludes tensors in the request.
  std::string stored_tree = {};
};

struct TreeTensor {
  std::string name;  // unique in the tree, 1 to 1,024 bytes
  Shape shape;
  std::optional<Dtype> dtype = std::nullopt;  // nullopt: bytes are not counted
  // Instead of rules: semantic axes, or the tensor's own spec.
  std::optional<std::vector<AxisValue>> axes = std::nullopt;
  std::optional<PartitionSpec> spec = std::nullopt;
};

struct TreeSpec {
  PartitionSpec requested;
  PartitionSpec effective;
  std::vector<Correction> corrections;
  // Empty unless requested; see SuggestFixes.
  std::vector<Fix> fixes;
  // Fixes were requested but left out, because the answer's fixes reached their size limit.
  bool fixes_left_out = false;
};

struct TreePlacement {
  // Index into TreeAnswer::specs.
  size_t spec_index = 0;
  // The rule that matched, from 0; nullopt if none was needed, or none matched.
  std::optional<int64_t> rule_index;
  // No rule matched, and the tensor counts as replicated; see TreeQuestion::keep_unmatched.
  bool unmatched = false;
  int64_t bytes_per_device = 0;
};

// A report, with the number of tensors of some kinds. Bytes count only tensors with a dtype.
struct TreeReport {
  LayoutReport layout;
  int64_t devices = 0;             // 0 without a mesh
  int64_t corrected_tensors = 0;   // tensors whose spec was corrected
  int64_t replicated_tensors = 0;  // tensors that each device holds whole
  int64_t unmatched_tensors = 0;   // tensors without a matching rule
};

struct TreeAnswer {
  // The distinct specs.
  std::vector<TreeSpec> specs;
  // One for each tensor, in the order of the question or of the stored tree.
  std::vector<TreePlacement> placements;
  TreeReport report;
  int64_t revision = 0;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_TYPES_LAYOUT_QUESTIONS_H_
