// Questions about layouts and their answers, as types of the client library.
#ifndef SHARDMESH_CLIENT_TYPES_LAYOUT_QUESTIONS_H_
#define SHARDMESH_CLIENT_TYPES_LAYOUT_QUESTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "sharding/axis_value.h"
#include "sharding/compatibility.h"
#include "sharding/correction.h"
#include "sharding/explanation.h"
#include "sharding/layout/analysis.h"
#include "sharding/layout/fixes.h"
#include "sharding/mesh.h"
#include "sharding/mode.h"
#include "sharding/partition_axis.h"
#include "sharding/rules/rule_set_definition.h"
#include "sharding/shape.h"
#include "sharding/spec.h"
#include "sharding/tile.h"
#include "sharding/uneven.h"
#include "tensor/dtype.h"

namespace shardmesh::client {

// Select a mesh, a profile or rules: by name in the catalog, or by value. The default (monostate)
// selects no mesh, the profile without given fields, or no rules. A question that needs a mesh, but
// selects none, fails with MISSING_ARGUMENT.
using MeshSelector = std::variant<std::monostate, std::string, Mesh>;
using ProfileSelector = std::variant<std::monostate, std::string, PartitionAxis>;
using RuleSetSelector = std::variant<std::monostate, std::string, RuleSetDefinition>;

// Asks for the spec that logical axes resolve to.
struct ResolveSpecQuestion {
  // Semantic axes, one per dimension; or the name of a preset, which supplies axes and mode. Set
  // only one of `axes` and `preset`; kExact allows both.
  std::vector<AxisValue> axes = {};
  std::string preset = {};
  // Nullopt means the preset's mode; for `axes`, training. With `preset`, a mode is an error,
  // unless the question has kExact. With kExact and a preset, `axes` and `mode` replace the preset
  // if both are set; a mode without axes is ignored.
  std::optional<Mode> mode = std::nullopt;
  // The array's shape. Without a shape, the spec is not corrected, and no mesh is needed.
  std::optional<Shape> shape = std::nullopt;
  ProfileSelector profile = {};
  MeshSelector mesh = {};
  // Whether the call fails if the spec needs a correction. If false, the spec is corrected.
  bool strict = false;
  Compatibility compatibility = Compatibility::kDefault;
  // Whether to return the chain of reasons for the spec.
  bool explain = false;
  // Whether to return fixes (alternative requests that need no correction).
  bool suggest_fixes = false;
};

// Asks for the effective spec of an array. Refers to axes, profile and mesh by name only, which is
// cheaper than ResolveSpecQuestion.
struct EffectiveSpecQuestion {
  // Semantic axes by name, one per dimension (`_`: not partitioned); or the name of a preset, which
  // supplies axes and mode.
  std::vector<std::string> axes = {};
  std::string preset = {};
  // Empty means the preset's mode; for `axes`, training. Must be empty with `preset`.
  std::string mode = {};
  Shape shape = {};
  // Names in the catalog, or NAME@VERSION. An empty profile means the default profile. The mesh is
  // required.
  std::string profile = {};
  std::string mesh = {};
  // Whether the call fails if the spec needs a correction. If false, the spec is corrected.
  bool strict = false;
};

// The spec after correction: it fits shape and mesh.
struct EffectiveSpec {
  PartitionSpec spec;
  // The dimensions that lost axes, because these axes do not fit. In ascending order.
  std::vector<int64_t> corrected_dimensions;
  Shape shard_shape;     // extents of each device's tile, in elements
  int64_t revision = 0;  // revision of the catalog
};

// Asks to which mesh axes each of `axes`, which are logical axes, resolves.
struct ResolveAxesQuestion {
  std::vector<AxisValue> axes;
  // Nullopt means training. A mode that is a dimension's number is not allowed.
  std::optional<Mode> mode = std::nullopt;
  ProfileSelector profile = {};
  Compatibility compatibility = Compatibility::kDefault;
};

// Asks whether a spec fits a shape and a mesh. If the spec does not fit, asks for the corrected
// spec.
struct CorrectSpecQuestion {
  PartitionSpec spec;
  Shape shape;
  MeshSelector mesh = {};
  bool strict = false;
  Compatibility compatibility = Compatibility::kDefault;
  // Whether to return fixes (alternative requests that need no correction).
  bool suggest_fixes = false;
  // Whether an empty mesh gives P() instead of an error.
  bool allow_empty_mesh = false;
};

struct SpecAnswer {
  PartitionSpec requested;
  // The spec after correction; equal to `requested` if the question has no shape.
  PartitionSpec effective;
  // The corrections, sorted by dimension.
  std::vector<Correction> corrections;
  // Empty unless the question asks for fixes; see SuggestFixes.
  std::vector<Fix> fixes;
  // The chain of reasons; empty unless the question sets `explain`.
  std::vector<ExplanationStep> explanation;
  // The extent of a device's tile in each dimension; nullopt if the question has no shape.
  std::optional<Shape> shard_shape;
  // The revision of the catalog on which the answer is based.
  int64_t revision = 0;
};

// Asks to which spec, if any, a layout constrains an existing array of this shape.
struct ConstrainQuestion {
  // The layout: a spec; or semantic axes or the name of a preset, with a mode and a profile.
  std::variant<PartitionSpec, std::vector<AxisValue>, std::string> layout;
  std::optional<Mode> mode = std::nullopt;
  ProfileSelector profile = {};
  Shape shape;
  MeshSelector mesh = {};
  // Whether to correct the spec before it constrains the array; only for a layout of axes or a
  // preset. If true, an empty mesh is an error, and a spec that correction makes P() constrains
  // nothing. See ApplyLogicalSharding.
  bool auto_correct = false;
  bool strict = false;
  Compatibility compatibility = Compatibility::kDefault;
};

struct ConstraintAnswer {
  PartitionSpec requested;
  // The spec to which the array is constrained; nullopt if the array stays unchanged.
  std::optional<PartitionSpec> constraint;
  std::vector<Correction> corrections;
  int64_t revision = 0;
};

// Asks whether two specs are equivalent for tensors with `rank` dimensions.
struct CompareQuestion {
  PartitionSpec a;
  PartitionSpec b;
  MeshSelector mesh = {};
  int64_t rank = 0;
  Compatibility compatibility = Compatibility::kDefault;
};

struct Comparison {
  bool equal = false;       // P() and P(None) are not equal
  bool equivalent = false;  // both specs place every tensor of this rank in the same way
  bool a_fully_replicated = false;
  bool b_fully_replicated = false;
};

// Asks why a tensor has its spec.
struct ExplainQuestion {
  std::string name;  // 1 to 1,024 bytes
  Shape shape;
  RuleSetSelector rules = {};
  // If set, the tensor gets its spec from these semantic axes and not from the rules. The axes are
  // resolved with `profile` and `mode`.
  std::optional<std::vector<AxisValue>> axes = std::nullopt;
  ProfileSelector profile = {};
  std::optional<Mode> mode = std::nullopt;
  MeshSelector mesh = {};
  Compatibility compatibility = Compatibility::kDefault;
};

struct TensorExplanation {
  SpecAnswer spec;  // includes fixes and the chain of reasons
  std::optional<int64_t> rule_index;
};

// Asks for the tiles of a tensor on a mesh.
struct TilingQuestion {
  MeshSelector mesh;
  PartitionSpec spec;  // must fit the mesh and the shape without correction
  Shape shape;
  // Positions, in the mesh, of the devices for which to return tiles. At most 65,536.
  std::vector<DeviceId> devices = {};
  Compatibility compatibility = Compatibility::kDefault;
  // A part of the tensor. If set, the answer says which devices hold this part.
  std::optional<Tile> range = std::nullopt;
  // Positions, in the mesh, of the devices for which to return replica groups. At most 65,536.
  std::vector<DeviceId> replica_groups_of = {};
  // Cut points as in Tiling::Create, or a rule that makes them. kByMemory and kBySpeed are refused:
  // only a put knows the workers of a mesh. `weights`: as in PutOptions.
  std::vector<CutPoints> cut_points = {};
  UnevenCuts uneven = UnevenCuts::kEqualOnly;
  std::vector<int64_t> weights = {};
};

struct DeviceTile {
  DeviceId device = 0;
  Tile tile;
  // The index of this device among the devices that hold the tile, from 0 in mesh order.
  int64_t replica_id = 0;
};

struct TilingAnswer {
  Shape shard_shape;
  int64_t distinct_tiles = 0;
  bool fully_replicated = false;
  // The tiles of the requested devices, in the order of the question.
  std::vector<DeviceTile> tiles;
  // The pieces of TilingQuestion::range, each with the devices that hold it, in row-major order.
  std::vector<OwnedTile> owners;
  // For each device of TilingQuestion::replica_groups_of, all devices that hold the same tile as
  // that device.
  std::vector<std::vector<DeviceId>> replica_groups;
  // The cut points of each dimension; empty lists where parts are equal, and no lists if all are.
  std::vector<CutPoints> cut_points;
  int64_t revision = 0;
};

// A preset: a name for a list of semantic axes and the mode in which they resolve.
struct NamedPreset {
  std::string name;
  std::vector<AxisValue> axes;
  Mode mode = RuntimeMode::kTrain;
};

// Asks for the layouts of a whole tree of tensors.
struct TreeQuestion {
  // The rules for tensors that have neither axes nor a spec of their own.
  RuleSetSelector rules = {};
  // The profile with which the axes of tensors are resolved.
  ProfileSelector profile = {};
  std::optional<Mode> mode = std::nullopt;
  MeshSelector mesh = {};
  bool strict = false;
  Compatibility compatibility = Compatibility::kDefault;
  // Whether to return only the specs that the rules give. If true, the answer has no corrections
  // and no bytes, and the question needs no mesh.
  bool match_only = false;
  // Whether the answer reports tensors that no rule matches. If false, such a tensor ends the call
  // with UNMATCHED_TENSOR.
  bool keep_unmatched = false;
  // Whether to return fixes (alternative requests that need no correction).
  bool suggest_fixes = false;
  // Whether a tensor's own spec is an error if the spec names an axis that the mesh lacks, or names
  // an axis twice. If false, correction drops such axes.
  bool own_specs_must_suit_mesh = false;
  // The name of a tree of the catalog. If this name is set, the request must have no tensors.
  std::string stored_tree = {};
};

struct TreeTensor {
  std::string name;  // unique in the tree, 1 to 1,024 bytes
  Shape shape;
  std::optional<Dtype> dtype = std::nullopt;  // nullopt: the tensor's bytes are not counted
  // The tensor's own semantic axes or spec, which replace the rules.
  std::optional<std::vector<AxisValue>> axes = std::nullopt;
  std::optional<PartitionSpec> spec = std::nullopt;
};

struct TreeSpec {
  PartitionSpec requested;
  PartitionSpec effective;
  std::vector<Correction> corrections;
  // Empty unless the question asks for fixes; see SuggestFixes.
  std::vector<Fix> fixes;
  // Whether some of the requested fixes are missing, because the fixes of the whole answer reached
  // their size limit.
  bool fixes_left_out = false;
};

struct TreePlacement {
  // Index into TreeAnswer::specs.
  size_t spec_index = 0;
  // The index of the rule that matched, from 0; nullopt if the tensor needed no rule, or if no rule
  // matched.
  std::optional<int64_t> rule_index;
  // Whether no rule matched, so that the tensor counts as replicated; see
  // TreeQuestion::keep_unmatched.
  bool unmatched = false;
  int64_t bytes_per_device = 0;
};

// The totals of a layout, and numbers of corrected, replicated and unmatched tensors. Only tensors
// with a dtype count in bytes.
struct TreeReport {
  LayoutReport layout;
  int64_t devices = 0;             // 0 without a mesh
  int64_t corrected_tensors = 0;   // tensors whose spec was corrected
  int64_t replicated_tensors = 0;  // tensors that each device holds whole
  int64_t unmatched_tensors = 0;   // tensors without a matching rule
};

struct TreeAnswer {
  // The distinct specs of the tensors.
  std::vector<TreeSpec> specs;
  // One placement for each tensor, in the order of the question or of the stored tree.
  std::vector<TreePlacement> placements;
  TreeReport report;
  int64_t revision = 0;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_TYPES_LAYOUT_QUESTIONS_H_
