// Converts specs, meshes, profiles, rules and tiles between messages and the types of sharding/.
//
// Rules for all codecs: only decoders check for malformed values. An error of a decoder is
// INVALID_ARGUMENT and names the field. Its reason is BAD_FIELD, LIMIT_EXCEEDED, or that of the
// function in sharding/ which refused the value. Field paths (FieldViolationsOf) start at the
// decoded message; callers prepend their own path with WithField. Encoders cannot fail, and require
// an empty target.
#ifndef SHARDMESH_RPC_CODEC_SPEC_CODEC_H_
#define SHARDMESH_RPC_CODEC_SPEC_CODEC_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "google/protobuf/repeated_field.h"
#include "sharding/axis_value.h"
#include "sharding/compatibility.h"
#include "sharding/correction.h"
#include "sharding/explanation.h"
#include "sharding/layout/fixes.h"
#include "sharding/mesh.h"
#include "sharding/mesh_definition.h"
#include "sharding/mode.h"
#include "sharding/partition_axis.h"
#include "sharding/presets.h"
#include "sharding/rules/logical_rules.h"
#include "sharding/rules/rule_set.h"
#include "sharding/rules/rule_set_definition.h"
#include "sharding/shape.h"
#include "sharding/spec.h"
#include "sharding/tile.h"
#include "sharding/uneven.h"
#include "shardmesh/v1/array.pb.h"
#include "shardmesh/v1/error.pb.h"
#include "shardmesh/v1/mesh.pb.h"
#include "shardmesh/v1/resolve_service.pb.h"
#include "shardmesh/v1/spec.pb.h"
#include "status/reason.h"

namespace shardmesh::rpc {

// Maximum number of levels of nested tuples and lists, and maximum number of values, within one
// field's value.
inline constexpr int kMaxAxisValueDepth = 8;
inline constexpr int64_t kMaxAxisValues = 256;
// Maximum number of user-defined semantic axes (logical axes such as `__BATCH__`) of a profile.
inline constexpr int64_t kMaxSemanticAxes = 256;

v1::Reason Encode(Reason reason);
// Returns kUnspecified for a reason that this build does not know.
Reason Decode(v1::Reason reason);

void Encode(const AxisValue& from, v1::AxisValue* to);
absl::StatusOr<AxisValue> Decode(const v1::AxisValue& from);

// Decodes the semantic axes of a question: at most kMaxRank axes. Errors name the axis as `[i]`.
absl::StatusOr<std::vector<AxisValue>> DecodeAxes(
    const google::protobuf::RepeatedPtrField<v1::AxisValue>& from);
// Like DecodeAxes, for axes that must all be names.
absl::StatusOr<std::vector<AxisValue>> DecodeAxisNames(
    const google::protobuf::RepeatedPtrField<std::string>& from);

void Encode(const PartitionSpec& from, v1::PartitionSpec* to);
// Requires at most kMaxRank dimensions and kMaxMeshAxes unreduced axes. Unreduced axes must be
// distinct from each other and from the axes of the dimensions.
absl::StatusOr<PartitionSpec> Decode(const v1::PartitionSpec& from);

v1::AxisType Encode(AxisType from);

void Encode(const Mesh& from, v1::Mesh* to);
// A message without axes means the empty mesh. A size of -1 needs `device_count`. kExact accepts
// every mesh that JAX accepts. An unset axis type means kAuto, and kAuto is encoded as unset.
absl::StatusOr<Mesh> Decode(const v1::Mesh& from,
                            std::optional<int64_t> device_count = std::nullopt,
                            Compatibility compatibility = Compatibility::kDefault);

void Encode(const MeshDefinition& from, v1::MeshDefinition* to);
// Workers must be distinct identities. Without workers, a size of -1 needs `device_count`.
absl::StatusOr<MeshDefinition> Decode(const v1::MeshDefinition& from,
                                      std::optional<int64_t> device_count = std::nullopt);

// Encodes the resolved profile: every field is set.
void Encode(const PartitionAxis& from, v1::PartitionAxis* to);
absl::StatusOr<PartitionAxis> Decode(const v1::PartitionAxis& from);
// Encodes a profile with only the given fields; the receiver fills in all other fields.
// INVALID_ARGUMENT (UNKNOWN_FIELD; in Python a TypeError) for an unknown or repeated field, as in
// PartitionAxis::Create.
absl::Status EncodeFields(absl::Span<const FieldValue> fields,
                          absl::Span<const SemanticAxis> semantic_axes, v1::PartitionAxis* to);

void Encode(const RuleSetDefinition& from, v1::RuleSet* to);
// `min_sharding_size`: the rule set's min_size if the message sets use_min_sharding_size. Calls
// `is_cancelled`, if given, before it compiles each pattern. If the callback returns true, the
// result is CANCELLED.
absl::StatusOr<RuleSetDefinition> Decode(const v1::RuleSet& from,
                                         Compatibility compatibility = Compatibility::kDefault,
                                         int64_t min_sharding_size = kDefaultMinSize,
                                         const std::function<bool()>& is_cancelled = {});

void Encode(const Mode& from, v1::ModeSelector* to);
// Returns nullopt if the message sets no case. Errors: those of Mode::Parse.
absl::StatusOr<std::optional<Mode>> Decode(const v1::ModeSelector& from,
                                           Compatibility compatibility = Compatibility::kDefault);

// The caller of these two functions adds the field's path to errors.
absl::StatusOr<Compatibility> Decode(v1::Compatibility from);

// Whether every correction is an error under this policy.
absl::StatusOr<bool> DecodeIsStrict(v1::CorrectionPolicy from);

void Encode(absl::Span<const int64_t> shape, google::protobuf::RepeatedField<int64_t>* to);
// Errors: those of CheckShape, to which the caller adds the field's path.
absl::StatusOr<Shape> DecodeShape(const google::protobuf::RepeatedField<int64_t>& from);

void Encode(const Correction& from, v1::Correction* to);
absl::StatusOr<Correction> Decode(const v1::Correction& from);

// In a message, a fix lies within the correction that it belongs to. Decode therefore leaves
// Fix::correction 0.
void Encode(const Fix& from, v1::Fix* to);
absl::StatusOr<Fix> Decode(const v1::Fix& from);

void Encode(absl::Span<const LogicalRule> from, v1::LogicalRules* to);
// Requires at most kMaxLogicalRules rules, with names of at most kMaxAxisNameBytes.
absl::StatusOr<LogicalRules> Decode(const v1::LogicalRules& from);

void Encode(const ExplanationStep& from, v1::ExplanationStep* to);
absl::StatusOr<ExplanationStep> Decode(const v1::ExplanationStep& from);

void Encode(const Preset& from, v1::AxisPreset* to);

void Encode(const Tile& from, v1::Tile* to);
// Requires at most kMaxRank ranges with 0 <= start <= stop. The caller checks that they fit a
// tensor.
absl::StatusOr<Tile> Decode(const v1::Tile& from);

v1::UnevenCuts Encode(UnevenCuts from);
// INVALID_ARGUMENT (BAD_FIELD) names the field `uneven`, `weights` or `cut_points`: the rule is
// unknown; the request has weights and another rule than BY_WEIGHTS; or it has cut points for all
// its arrays and another rule than EQUAL_ONLY.
absl::StatusOr<UnevenCuts> DecodeUnevenCuts(v1::UnevenCuts from, bool has_weights,
                                            bool has_cut_points = false);

// Encodes the cut points of a tensor. The message omits the first and last points (0 and the
// extent), and dimensions with equal parts.
void Encode(absl::Span<const CutPoints> from,
            google::protobuf::RepeatedPtrField<v1::CutPoints>* to);
// Returns one list of cut points for each dimension, or no lists if the message has none.
// INVALID_CUT_POINTS: a dimension that the shape lacks, a repeated dimension, or starts that are
// not rising or not between 0 and the dimension's extent.
absl::StatusOr<std::vector<CutPoints>> DecodeCutPoints(
    const google::protobuf::RepeatedPtrField<v1::CutPoints>& from, absl::Span<const int64_t> shape);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CODEC_SPEC_CODEC_H_
