// A profile: which mesh axes partition each logical axis of a model, per mode.
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

// The field's name as users write it, such as "decode_batch_axis".
std::string_view AxisFieldName(AxisField field);
std::optional<AxisField> FindAxisField(std::string_view name);
// All of them, in the enum's order.
absl::Span<const std::string_view> AxisFieldNames();

// The field that replaces `field` in generation modes where it is not none, such as
// kDecodeBatch for kBatch; nullopt for a field without one.
std::optional<AxisField> GenerationVariant(AxisField field);

// A built-in semantic axis: its name, and the field that it reads; kEmpty reads none.
struct SemanticName {
  std::string_view name;
  std::optional<AxisField> field;
};
absl::Span<const SemanticName> BuiltInSemanticNames();

// A field's name and its value; kNotGiven asks for the field's rule (see PartitionAxis::Create).
struct FieldValue {
  std::string field;
  AxisValue value;
};

// Most mesh axes, repeated ones counted, that one semantic axis may stand for. Axes that stand for
// several others could otherwise stand for more than any memory holds.
inline constexpr size_t kMaxSemanticAxisEntries = 256;

// Most names that the explanation of one axis follows.
inline constexpr size_t kMaxExplainedNames = 64;

// A user's own semantic axis.
struct SemanticAxis {
  // 1 to kMaxAxisNameBytes bytes; not the name of a built-in axis or of a field.
  std::string name;
  // None, a name, or names in a tuple or list, major to minor. A name stands for the semantic axis
  // of that name if there is one, built in or not, and else for a mesh axis. Names between double
  // underscores are always semantic.
  AxisValue value;
  // The same for generation modes. Nullopt: `value`, whose semantic names are then resolved for
  // generation; none: not partitioned.
  std::optional<AxisValue> generation_value;

  friend bool operator==(const SemanticAxis&, const SemanticAxis&) = default;
};

// A resolved profile: every field has a value.
//
// Example: the default profile answers [__BATCH__, __LENGTH__, __EMBED__] in training with
// P(('fsdp', 'dp'), 'sp', 'tp').
// Immutable, hence safe to share between threads; a copy shares the representation and is cheap.
class PartitionAxis {
 public:
  // No field given, no further axes.
  PartitionAxis();

  // Resolves what is not given, in this order:
  //   - mesh dimensions that do not occur in `fields`: dp, fsdp, tp, sp, ep;
  //   - batch: (fsdp, dp); sequence, query and key sequence: sp; head, kv head, hidden state, mlp
  //     intermediate and vocab: tp; expert: ep, each the value of that mesh dimension's field;
  //   - decode batch, head, kv head and key sequence: the resolved field without decode;
  //   - any other that does not occur in `fields`: none.
  // Values are otherwise not checked.
  //
  // Errors are INVALID_ARGUMENT: UNKNOWN_FIELD (TypeError) for a field that there is not or that
  // occurs twice, UNRESOLVED_FIELD for one given as kNotGiven that no rule resolves (the first in
  // order), INVALID_AXIS_VALUE, UNKNOWN_AXIS, CYCLIC_AXIS and LIMIT_EXCEEDED for semantic axes.
  static absl::StatusOr<PartitionAxis> Create(absl::Span<const FieldValue> fields,
                                              absl::Span<const SemanticAxis> semantic_axes = {});

  // Never kNotGiven. Valid as long as a copy of this profile lives.
  const AxisValue& field(AxisField field) const;
  absl::Span<const SemanticAxis> semantic_axes() const;

  // One value per axis: none for none and `_`; a semantic axis' field, or in a generation mode its
  // decode variant unless that is none; for a list of semantic or field names, the list of values.
  //
  // Errors are INVALID_ARGUMENT, of the first axis that fails: UNKNOWN_AXIS for a name that is not
  // semantic (LookupError within a list, ValueError elsewhere) and for a tuple, INVALID_AXIS_VALUE
  // (TypeError) for a value that no axis can be; in kExact that includes any list in a generation
  // mode, and a list within a list.
  absl::StatusOr<std::vector<AxisValue>> ResolveAxis(
      absl::Span<const AxisValue> axes, RuntimeMode mode,
      Compatibility compatibility = Compatibility::kDefault) const;

  // The spec of ResolveAxis' values. Further errors: SpecEntry::Create's, which in kExact include
  // INVALID_SPEC for a tuple within a tuple. Repeated axes pass; correction judges them.
  // O(axes); beside the result itself nothing is allocated but for lists.
  absl::StatusOr<PartitionSpec> ResolveSpec(
      absl::Span<const AxisValue> axes, RuntimeMode mode,
      Compatibility compatibility = Compatibility::kDefault) const;

  // ResolveSpec of a preset's axes; `preset` is an index of Presets(). Answers are remembered: from
  // the second on they cost a copy of the spec.
  absl::StatusOr<PartitionSpec> ResolvePreset(
      size_t preset, RuntimeMode mode, Compatibility compatibility = Compatibility::kDefault) const;

  // The steps from each axis to its mesh axes: semantic name, in generation modes the variant, mesh
  // axes; a list has those of its members first, and an axis of the user's own those of the names
  // that it stands for, each once and kMaxExplainedNames at most. Same errors as ResolveAxis.
  absl::StatusOr<std::vector<ExplanationStep>> Explain(
      absl::Span<const AxisValue> axes, RuntimeMode mode,
      Compatibility compatibility = Compatibility::kDefault) const;

  // The fields as Python's repr writes them: `PartitionAxis(data_parallel_axis='dp', ...)`.
  std::string ToString() const;

  // Same values of all fields, same further axes.
  friend bool operator==(const PartitionAxis& a, const PartitionAxis& b);

 private:
  struct Rep;
  class Builder;
  explicit PartitionAxis(std::shared_ptr<const Rep> rep) : rep_(std::move(rep)) {}

  std::shared_ptr<const Rep> rep_;
};

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_PARTITION_AXIS_H_
