// Layouts between wire and algebra: axis values, specs, meshes, profiles, rules, tiles.
//
// Decoding is the only judge of malformed input: every refusal is INVALID_ARGUMENT, names the field
// (FieldViolationsOf; paths start at the decoded message, callers put theirs in front by WithField)
// and has a reason: BAD_FIELD or LIMIT_EXCEEDED, or that of the algebra's own check.
// Encoding cannot fail; the target is expected to be empty.
#ifndef SHARDMESH_RPC_CODEC_SPEC_CODEC_H_
#define SHARDMESH_RPC_CODEC_SPEC_CODEC_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "google/protobuf/repeated_field.h"
#include "rpc/codec/definition.h"
#include "sharding/axis_value.h"
#include "sharding/compatibility.h"
#include "sharding/correction.h"
#include "sharding/explanation.h"
#include "sharding/layout/fixes.h"
#include "sharding/mesh.h"
#include "sharding/mode.h"
#include "sharding/partition_axis.h"
#include "sharding/presets.h"
#include "sharding/rules/logical_rules.h"
#include "sharding/rules/rule_set.h"
#include "sharding/shape.h"
#include "sharding/spec.h"
#include "sharding/tile.h"
#include "shardmesh/v1/array.pb.h"
#include "shardmesh/v1/error.pb.h"
#include "shardmesh/v1/mesh.pb.h"
#include "shardmesh/v1/resolve_service.pb.h"
#include "shardmesh/v1/spec.pb.h"
#include "status/reason.h"

namespace shardmesh::rpc {

// Deepest nesting of tuples and lists, and most values within one field's value.
inline constexpr int kMaxAxisValueDepth = 8;
inline constexpr int64_t kMaxAxisValues = 256;
// Most further semantic axes of a profile.
inline constexpr int64_t kMaxSemanticAxes = 256;

v1::Reason Encode(Reason reason);
// kUnspecified for one that this build does not know.
Reason Decode(v1::Reason reason);

void Encode(const AxisValue& from, v1::AxisValue* to);
absl::StatusOr<AxisValue> Decode(const v1::AxisValue& from);

// A question's semantic axes: at most kMaxRank. Errors name `[i]`.
absl::StatusOr<std::vector<AxisValue>> DecodeAxes(
    const google::protobuf::RepeatedPtrField<v1::AxisValue>& from);

void Encode(const PartitionSpec& from, v1::PartitionSpec* to);
// At most kMaxRank dimensions and kMaxMeshAxes unreduced axes, these distinct from each other and
// from the axes of the dimensions.
absl::StatusOr<PartitionSpec> Decode(const v1::PartitionSpec& from);

v1::AxisType Encode(AxisType from);

void Encode(const Mesh& from, v1::Mesh* to);
// No axes make the empty mesh. A size of -1 needs `device_count`; kExact accepts what JAX accepts.
// An axis type that is not set is kAuto, and kAuto is not set.
absl::StatusOr<Mesh> Decode(const v1::Mesh& from,
                            std::optional<int64_t> device_count = std::nullopt,
                            Compatibility compatibility = Compatibility::kDefault);

void Encode(const MeshDefinition& from, v1::MeshDefinition* to);
// Workers are distinct identities; without them a size of -1 needs `device_count`.
absl::StatusOr<MeshDefinition> Decode(const v1::MeshDefinition& from,
                                      std::optional<int64_t> device_count = std::nullopt);

// Encodes the resolved profile: every field is set.
void Encode(const PartitionAxis& from, v1::PartitionAxis* to);
absl::StatusOr<PartitionAxis> Decode(const v1::PartitionAxis& from);
// A profile as it was given, for the other side to resolve. INVALID_ARGUMENT (UNKNOWN_FIELD;
// TypeError), as PartitionAxis::Create, for a field that there is not or that occurs twice.
absl::Status EncodeFields(absl::Span<const FieldValue> fields,
                          absl::Span<const SemanticAxis> semantic_axes, v1::PartitionAxis* to);

void Encode(const RuleSetDefinition& from, v1::RuleSet* to);
// `min_sharding_size` is the least size where the wire asks for the configured one. `is_cancelled`,
// if given, is asked before each pattern is compiled; true ends it with CANCELLED.
absl::StatusOr<RuleSetDefinition> Decode(const v1::RuleSet& from,
                                         Compatibility compatibility = Compatibility::kDefault,
                                         int64_t min_sharding_size = kDefaultMinSize,
                                         const std::function<bool()>& is_cancelled = {});

// Adds to the error of a pattern that is not supported how to go on, if all that stands in the way
// of these rules is that they exclude names; other statuses stay.
absl::Status WithRewriteHint(absl::Status status, absl::Span<const Rule> rules);

void Encode(const Mode& from, v1::ModeSelector* to);
// Nullopt where nothing is set. Errors: Mode::Parse's.
absl::StatusOr<std::optional<Mode>> Decode(const v1::ModeSelector& from,
                                           Compatibility compatibility = Compatibility::kDefault);

// Field paths of these two are left to the caller.
absl::StatusOr<Compatibility> Decode(v1::Compatibility from);

// Whether the first correction is to be an error.
absl::StatusOr<bool> DecodeIsStrict(v1::CorrectionPolicy from);

void Encode(absl::Span<const int64_t> shape, google::protobuf::RepeatedField<int64_t>* to);
// Errors: CheckShape's; field paths are left to the caller.
absl::StatusOr<Shape> DecodeShape(const google::protobuf::RepeatedField<int64_t>& from);

void Encode(const Correction& from, v1::Correction* to);
absl::StatusOr<Correction> Decode(const v1::Correction& from);

// Which correction a fix is for is told by where it stands: Fix::correction is left 0.
void Encode(const Fix& from, v1::Fix* to);
absl::StatusOr<Fix> Decode(const v1::Fix& from);

void Encode(absl::Span<const LogicalRule> from, v1::LogicalRules* to);
// At most kMaxLogicalRules, names of at most kMaxAxisNameBytes.
absl::StatusOr<LogicalRules> Decode(const v1::LogicalRules& from);

void Encode(const ExplanationStep& from, v1::ExplanationStep* to);
absl::StatusOr<ExplanationStep> Decode(const v1::ExplanationStep& from);

void Encode(const Preset& from, v1::AxisPreset* to);

void Encode(const Tile& from, v1::Tile* to);
// Ranges of 0 <= start <= stop, at most kMaxRank. Whether they fit a tensor is the caller's to ask.
absl::StatusOr<Tile> Decode(const v1::Tile& from);

// Of a tensor of `shape`; the wire leaves out the 0 and the extent at the ends, and dimensions of
// equal parts.
void Encode(absl::Span<const CutPoints> from,
            google::protobuf::RepeatedPtrField<v1::CutPoints>* to);
// One list per dimension, or none at all where the wire has none. INVALID_CUT_POINTS for a
// dimension that is not of the shape or occurs twice, and for starts that do not rise between 0 and
// its extent.
absl::StatusOr<std::vector<CutPoints>> DecodeCutPoints(
    const google::protobuf::RepeatedPtrField<v1::CutPoints>& from, absl::Span<const int64_t> shape);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CODEC_SPEC_CODEC_H_
