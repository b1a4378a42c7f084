// A profile: the mesh axes that partition each logical axis of a model, per mode.
#ifndef SHARDMESH_SHARDING_PARTITION_AXIS_H_
#define SHARDMESH_SHARDING_PARTITION_AXIS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/axis_value.h"
#include "sharding/compatibility.h"
#include "sharding/explanation.h"
#include "sharding/mode.h"
#include "sharding/spec.h"

namespace shardmesh {

// The fields of a profile: five mesh dimensions, then 22 logical axes.
enum class AxisField {
  kDataParallel,
  kFullyShardedDataParallel,
  kTensorParallel,
  kSequenceParallel,
  kExpertParallel,
  kBatch,
  kSequence,
  kQuerySequence,
  kHead,
  kKvHead,
  kKeySequence,
  kHiddenState,
  kMlpIntermediate,
  kVocab,
  kExpert,
  kExpertGate,
  kAttentionDim,
  kAttentionKvDim,
  kBiasHeadSequence,
  kBiasKeySequence,
  kDecodeBatch,
  kDecodeQuerySequence,
  kDecodeHead,
  kDecodeKvHead,
  kDecodeKeySequence,
  kDecodeAttentionDim,
  kDecodeAttentionKvDim,
};
inline constexpr int64_t kAxisFieldCount = 27;

// Returns the field's name as users write it, such as "decode_batch_axis".
std::string_view AxisFieldName(AxisField field);
std::optional<AxisField> FindAxisField(std::string_view name);
// Returns the names of all fields, in the enum's order.
absl::Span<const std::string_view> AxisFieldNames();

// Returns the variant of a field for generation modes, such as kDecodeBatch for kBatch. It replaces
// `field` in these modes, unless the variant's value is none. Returns nullopt for a field without a
// variant.
std::optional<AxisField> GenerationVariant(AxisField field);

// A built-in semantic axis: its name and the field that it reads; kEmpty reads no field.
struct SemanticName {
  std::string_view name;
  std::optional<AxisField> field;
};
absl::Span<const SemanticName> BuiltInSemanticNames();

// A field's name and its value; kNotGiven selects the field's rule (see PartitionAxis::Create).
struct FieldValue {
  std::string field;
  AxisValue value;
};

// Upper bound on the mesh axes of one semantic axis, including repeats. Without a bound, axes that
// refer to several other axes could expand beyond any memory.
inline constexpr size_t kMaxSemanticAxisEntries = 256;

// Upper bound on the names in the explanation of one axis. Explain leaves out further names.
inline constexpr size_t kMaxExplainedNames = 64;

// A user-defined semantic axis.
struct SemanticAxis {
  // 1 to kMaxAxisNameBytes bytes; not the name of a built-in axis or of a field.
  std::string name;
  // None, a name, or names in a tuple or list, major to minor. A name means the semantic axis of
  // that name if one exists, built in or not, and else a mesh axis. Names between double
  // underscores are always semantic.
  AxisValue value;
  // The value for generation modes; none means not partitioned. If nullopt, `value` applies, and
  // its semantic names are resolved for generation.
  std::optional<AxisValue> generation_value;

  friend bool operator==(const SemanticAxis&, const SemanticAxis&) = default;
};

// A resolved profile: every field has a value.
//
// Example: in training, the default profile answers [__BATCH__, __LENGTH__, __EMBED__] with
// P(('fsdp', 'dp'), 'sp', 'tp').
// Immutable, and safe to share between threads. A copy shares the representation and is cheap.
class PartitionAxis {
 public:
  // A profile without given fields and without user-defined axes.
  PartitionAxis();

  // Returns the profile with these fields. Resolves missing fields, in this order:
  //   - Mesh dimensions that do not occur in `fields`: dp, fsdp, tp, sp, ep.
  //   - Fields that take the values of mesh dimensions. Batch: (fsdp, dp). Sequence, query and key
  //     sequence: sp. Head, kv head, hidden state, mlp intermediate and vocab: tp. Expert: ep.
  //   - Decode batch, head, kv head and key sequence: the resolved value of batch, head, kv head
  //     and key sequence.
  //   - Any other field that does not occur in `fields`: none.
  // Create makes no further checks of the values of fields.
  //
  // Errors are INVALID_ARGUMENT. For fields: UNKNOWN_FIELD (Python: TypeError) for an unknown or
  // repeated field; UNRESOLVED_FIELD for the first field, in order, that is given as kNotGiven and
  // that no rule resolves. For user-defined semantic axes: INVALID_AXIS_VALUE for an illegal or
  // repeated name or an illegal value; UNKNOWN_AXIS for a name between double underscores that is
  // no semantic axis; CYCLIC_AXIS for axes that refer to one another in a cycle; LIMIT_EXCEEDED for
  // more than kMaxSemanticAxisEntries mesh axes.
  static absl::StatusOr<PartitionAxis> Create(absl::Span<const FieldValue> fields,
                                              absl::Span<const SemanticAxis> semantic_axes = {});

  // Returns a field's value, which is never kNotGiven. Valid while a copy of this profile exists.
  const AxisValue& field(AxisField field) const;
  absl::Span<const SemanticAxis> semantic_axes() const;

  // Returns one value per axis. None and `_` give none. A semantic axis gives the value of its
  // field. In a generation mode, it gives the value of the field's decode variant instead, unless
  // that value is none. A list of semantic or field names gives the list of their values.
  //
  // Returns the error of the first axis that fails. Errors are INVALID_ARGUMENT: UNKNOWN_AXIS for a
  // tuple, and for a name that is not semantic (Python: LookupError in a list, else ValueError);
  // INVALID_AXIS_VALUE (Python: TypeError) for a value that no axis can have. Under kExact, such
  // values include any list in a generation mode, and a list within a list.
  absl::StatusOr<std::vector<AxisValue>> ResolveAxis(
      absl::Span<const AxisValue> axes, RuntimeMode mode,
      Compatibility compatibility = Compatibility::kDefault) const;

  // Returns the spec whose entries are the values of ResolveAxis. Returns the errors of ResolveAxis
  // first, then those of SpecEntry::Create. Under kExact, a tuple within a tuple is also
  // INVALID_SPEC. Accepts repeated axes, which correction checks. Takes O(axes). Apart from the
  // result, only lists allocate memory.
  absl::StatusOr<PartitionSpec> ResolveSpec(
      absl::Span<const AxisValue> axes, RuntimeMode mode,
      Compatibility compatibility = Compatibility::kDefault) const;

  // Like ResolveSpec, for the axes of a preset; `preset` is an index of Presets(). Answers are
  // cached: from the second call on, an answer costs a copy of the spec.
  absl::StatusOr<PartitionSpec> ResolvePreset(
      size_t preset, RuntimeMode mode, Compatibility compatibility = Compatibility::kDefault) const;

  // Returns the steps from each axis to its mesh axes: the semantic name, the variant (only in
  // generation modes), the mesh axes. For a list, the steps of its members come first. For a
  // user-defined axis, the steps of the names in its value come first: each name once, for at most
  // kMaxExplainedNames names. Errors as ResolveAxis.
  absl::StatusOr<std::vector<ExplanationStep>> Explain(
      absl::Span<const AxisValue> axes, RuntimeMode mode,
      Compatibility compatibility = Compatibility::kDefault) const;

  // Returns the fields as Python's repr writes them: `PartitionAxis(data_parallel_axis='dp', ...)`.
  std::string ToString() const;

  // Equal profiles have the same values of all fields and the same user-defined axes.
  friend bool operator==(const PartitionAxis& a, const PartitionAxis& b);

 private:
  struct Rep;
  class Builder;
  explicit PartitionAxis(std::shared_ptr<const Rep> rep) : rep_(std::move(rep)) {}

  std::shared_ptr<const Rep> rep_;
};

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_PARTITION_AXIS_H_
