// Only the decoders check input for malformed values. Every refusal is INVALID_ARGUMENT, names the
// field, and has a reason: BAD_FIELD, LIMIT_EXCEEDED, or the reason of the algebra's own check.
// Field paths (FieldViolationsOf) start at the decoded message; callers prepend their own path with
// WithField. Encoding cannot fail; it requires an empty target.
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

// Upper bounds on the nesting of tuples and lists, and on the values within one field's value.
inline constexpr int kMaxAxisValueDepth = 8;
inline constexpr int64_t kMaxAxisValues = 256;
// Upper bound on the user-defined semantic axes of a profile.
inline constexpr int64_t kMaxSemanticAxes = 256;

v1::Reason Encode(Reason reason);
// Returns kUnspecified for a reason that this build does not know.
Reason Decode(v1::Reason reason);

void Encode(const AxisValue& from, v1::AxisValue* to);
absl::StatusOr<AxisValue> Decode(const v1::AxisValue& from);

// Decodes a question's semantic axes: at most kMaxRank. Errors name `[i]`.
absl::StatusOr<std::vector<AxisValue>> DecodeAxes(
    const google::protobuf::RepeatedPtrField<v1::AxisValue>& from);
// Like DecodeAxes, for axes that are all names.
absl::StatusOr<std::vector<AxisValue>> DecodeAxisNames(
    const google::protobuf::RepeatedPtrField<std::string>& from);

void Encode(const PartitionSpec& from, v1::PartitionSpec* to);
// Accepts at most kMaxRank dimensions and kMaxMeshAxes unreduced axes. Unreduced axes are distinct
// from each other and from the axes of the dimensions.
absl::StatusOr<PartitionSpec> Decode(const v1::PartitionSpec& from);

v1::AxisType Encode(AxisType from);

void Encode(const Mesh& from, v1::Mesh* to);
// A message without axes gives the empty mesh. A size of -1 needs `device_count`. kExact accepts
// all that JAX accepts. An unset axis type means kAuto, and kAuto is encoded as unset.
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
// Encodes a profile as given, which the receiver resolves. INVALID_ARGUMENT (UNKNOWN_FIELD;
// TypeError), as PartitionAxis::Create, for an unknown or repeated field.
absl::Status EncodeFields(absl::Span<const FieldValue> fields,
                          absl::Span<const SemanticAxis> semantic_axes, v1::PartitionAxis* to);

void Encode(const RuleSetDefinition& from, v1::RuleSet* to);
// `min_sharding_size` is the least size if the message leaves it to the configuration.
// `is_cancelled`, if given, is polled before each pattern is compiled; true ends the call with
// CANCELLED.
absl::StatusOr<RuleSetDefinition> Decode(const v1::RuleSet& from,
                                         Compatibility compatibility = Compatibility::kDefault,
                                         int64_t min_sharding_size = kDefaultMinSize,
                                         const std::function<bool()>& is_cancelled = {});

// If these rules are unsupported only because they exclude names, adds advice to the error of the
// pattern. Returns other statuses unchanged.
absl::Status WithRewriteHint(absl::Status status, absl::Span<const Rule> rules);

void Encode(const Mode& from, v1::ModeSelector* to);
// Returns nullopt if no case is set.
// Errors: Mode::Parse's.
absl::StatusOr<std::optional<Mode>> Decode(const v1::ModeSelector& from,
                                           Compatibility compatibility = Compatibility::kDefault);

// For these two, the caller adds the field's path.
absl::StatusOr<Compatibility> Decode(v1::Compatibility from);

// Returns whether the first correction is an error.
absl::StatusOr<bool> DecodeIsStrict(v1::CorrectionPolicy from);

void Encode(absl::Span<const int64_t> shape, google::protobuf::RepeatedField<int64_t>* to);
// Errors: CheckShape's; the caller adds the field's path.
absl::StatusOr<Shape> DecodeShape(const google::protobuf::RepeatedField<int64_t>& from);

void Encode(const Correction& from, v1::Correction* to);
absl::StatusOr<Correction> Decode(const v1::Correction& from);

// The position of a fix in its message identifies its correction: Decode leaves Fix::correction 0.
void Encode(const Fix& from, v1::Fix* to);
absl::StatusOr<Fix> Decode(const v1::Fix& from);

void Encode(absl::Span<const LogicalRule> from, v1::LogicalRules* to);
// Accepts at most kMaxLogicalRules, with names of at most kMaxAxisNameBytes.
absl::StatusOr<LogicalRules> Decode(const v1::LogicalRules& from);

void Encode(const ExplanationStep& from, v1::ExplanationStep* to);
absl::StatusOr<ExplanationStep> Decode(const v1::ExplanationStep& from);

void Encode(const Preset& from, v1::AxisPreset* to);

void Encode(const Tile& from, v1::Tile* to);
// Accepts at most kMaxRank ranges of 0 <= start <= stop. The caller checks that they fit a tensor.
absl::StatusOr<Tile> Decode(const v1::Tile& from);

// Encodes the cut points of a tensor. The wire leaves out the first and last points (0 and the
// extent) and dimensions of equal parts.
void Encode(absl::Span<const CutPoints> from,
            google::protobuf::RepeatedPtrField<v1::CutPoints>* to);
// Returns one list per dimension, or no lists if the message has none. INVALID_CUT_POINTS for a
// dimension that the shape lacks or that occurs twice, and for starts that do not rise between 0
// and its extent.
absl::StatusOr<std::vector<CutPoints>> DecodeCutPoints(
    const google::protobuf::RepeatedPtrField<v1::CutPoints>& from, absl::Span<const int64_t> shape);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CODEC_SPEC_CODEC_H_
