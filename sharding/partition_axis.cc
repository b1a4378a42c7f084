// Resolves a profile's fields, and semantic axes through the profile.
#include "sharding/partition_axis.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "sharding/mesh.h"
#include "sharding/presets.h"
#include "sharding/semantic_axis.h"
#include "status/fact_keys.h"
#include "status/name_table.h"
#include "status/nearest_name.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

constexpr size_t kFieldCount = static_cast<size_t>(kAxisFieldCount);

constexpr size_t IndexOf(AxisField field) { return static_cast<size_t>(field); }

constexpr std::array<std::string_view, kFieldCount> kFieldNames = {
    "data_parallel_axis",
    "fully_sharded_data_parallel_axis",
    "tensor_parallel_axis",
    "sequence_parallel_axis",
    "expert_parallel_axis",
    "batch_axis",
    "sequence_axis",
    "query_sequence_axis",
    "head_axis",
    "kv_head_axis",
    "key_sequence_axis",
    "hidden_state_axis",
    "mlp_intermediate_axis",
    "vocab_axis",
    "expert_axis",
    "expert_gate_axis",
    "attention_dim_axis",
    "attention_kv_dim_axis",
    "bias_head_sequence_axis",
    "bias_key_sequence_axis",
    "decode_batch_axis",
    "decode_query_sequence_axis",
    "decode_head_axis",
    "decode_kv_head_axis",
    "decode_key_sequence_axis",
    "decode_attention_dim_axis",
    "decode_attention_kv_dim_axis",
};

constexpr std::array<SemanticName, 21> kSemanticNames = {{
    {semantic::kBatch, AxisField::kBatch},
    {semantic::kLength, AxisField::kSequence},
    {semantic::kQueryLength, AxisField::kQuerySequence},
    {semantic::kKvLength, AxisField::kKeySequence},
    {semantic::kEmbed, AxisField::kHiddenState},
    {semantic::kHead, AxisField::kHead},
    {semantic::kKvHead, AxisField::kKvHead},
    {semantic::kMlpIntermediate, AxisField::kMlpIntermediate},
    {semantic::kVocab, AxisField::kVocab},
    {semantic::kExpert, AxisField::kExpert},
    {semantic::kExpertGate, AxisField::kExpertGate},
    {semantic::kHeadDim, AxisField::kAttentionDim},
    {semantic::kKvHeadDim, AxisField::kAttentionKvDim},
    {semantic::kBiasHeadSeq, AxisField::kBiasHeadSequence},
    {semantic::kBiasKvSeq, AxisField::kBiasKeySequence},
    {semantic::kEmpty, std::nullopt},
    {semantic::kDataParallel, AxisField::kDataParallel},
    {semantic::kFullyShardedDataParallel, AxisField::kFullyShardedDataParallel},
    {semantic::kTensorParallel, AxisField::kTensorParallel},
    {semantic::kSequenceParallel, AxisField::kSequenceParallel},
    {semantic::kExpertParallel, AxisField::kExpertParallel},
}};

bool IsSequence(const AxisValue& value) { return value.is_tuple() || value.is_list(); }

bool IsEmptyAxis(const AxisValue& axis) {
  return axis.is_none() || (axis.is_name() && axis.name() == semantic::kEmpty);
}

// Returns whether a name has the form that only semantic names have: double underscores around it.
bool LooksSemantic(std::string_view name) { return name.starts_with("__") && name.ends_with("__"); }

// Returns whether the value is or contains a list. Such a value is unhashable in Python, so the
// original cannot look it up.
bool HoldsList(const AxisValue& value) {
  if (value.is_list()) return true;
  for (const AxisValue& entry : value.entries()) {
    if (HoldsList(entry)) return true;
  }
  return false;
}

// Appends `value`, with its tuples and lists replaced by their entries.
void AppendFlat(const AxisValue& value, std::vector<AxisValue>& out) {
  if (!IsSequence(value)) {
    out.push_back(value);
    return;
  }
  for (const AxisValue& entry : value.entries()) AppendFlat(entry, out);
}

AxisValue Flattened(const AxisValue& value) {
  if (!IsSequence(value)) return value;
  std::vector<AxisValue> entries;
  AppendFlat(value, entries);
  return value.is_tuple() ? AxisValue::Tuple(std::move(entries))
                          : AxisValue::List(std::move(entries));
}

// Returns the value that a missing field derives from earlier fields; kNotGiven if no rule applies.
AxisValue RuleOf(AxisField field, const std::array<AxisValue, kFieldCount>& resolved) {
  const auto value = [&](AxisField from) { return resolved[IndexOf(from)]; };
  switch (field) {
    case AxisField::kBatch:
      return AxisValue::Tuple(
          {value(AxisField::kFullyShardedDataParallel), value(AxisField::kDataParallel)});
    case AxisField::kSequence:
    case AxisField::kQuerySequence:
    case AxisField::kKeySequence:
      return value(AxisField::kSequenceParallel);
    case AxisField::kHead:
    case AxisField::kKvHead:
    case AxisField::kHiddenState:
    case AxisField::kMlpIntermediate:
    case AxisField::kVocab:
      return value(AxisField::kTensorParallel);
    case AxisField::kExpert:
      return value(AxisField::kExpertParallel);
    case AxisField::kDecodeBatch:
      return value(AxisField::kBatch);
    case AxisField::kDecodeHead:
      return value(AxisField::kHead);
    case AxisField::kDecodeKvHead:
      return value(AxisField::kKvHead);
    case AxisField::kDecodeKeySequence:
      return value(AxisField::kKeySequence);
    default:
      return AxisValue::NotGiven();
  }
}

// Returns the default of a field that the profile leaves out. NotGiven: RuleOf derives the value
// from other fields.
AxisValue DefaultOf(AxisField field) {
  switch (field) {
    case AxisField::kDataParallel:
      return AxisValue::Name("dp");
    case AxisField::kFullyShardedDataParallel:
      return AxisValue::Name("fsdp");
    case AxisField::kTensorParallel:
      return AxisValue::Name("tp");
    case AxisField::kSequenceParallel:
      return AxisValue::Name("sp");
    case AxisField::kExpertParallel:
      return AxisValue::Name("ep");
    case AxisField::kExpertGate:
    case AxisField::kAttentionDim:
    case AxisField::kAttentionKvDim:
    case AxisField::kBiasHeadSequence:
    case AxisField::kBiasKeySequence:
    case AxisField::kDecodeQuerySequence:
    case AxisField::kDecodeAttentionDim:
    case AxisField::kDecodeAttentionKvDim:
      return AxisValue::None();
    default:
      return AxisValue::NotGiven();
  }
}

absl::StatusOr<std::array<AxisValue, kFieldCount>> ResolveFields(
    absl::Span<const FieldValue> given) {
  std::array<const AxisValue*, kFieldCount> by_field{};
  for (const FieldValue& field_value : given) {
    const std::optional<AxisField> field = FindAxisField(field_value.field);
    if (!field.has_value()) {
      return InvalidArgument(
          Reason::kUnknownField,
          StrCat("\"", field_value.field, "\" is not a field of a profile",
                 DidYouMean(field_value.field, kFieldNames)),
          {{fact::kName, field_value.field},
           {fact::kNearest, NearestName(field_value.field, kFieldNames).value_or("")}},
          "TypeError");
    }
    if (std::exchange(by_field[IndexOf(*field)], &field_value.value) != nullptr) {
      return InvalidArgument(Reason::kUnknownField,
                             StrCat("field ", field_value.field, " is given twice"),
                             {{fact::kName, field_value.field}}, "TypeError");
    }
  }
  std::array<AxisValue, kFieldCount> resolved;
  for (size_t i = 0; i < kFieldCount; ++i) {
    const auto field = static_cast<AxisField>(i);
    resolved[i] = by_field[i] != nullptr ? *by_field[i] : DefaultOf(field);
    if (!resolved[i].is_given()) resolved[i] = RuleOf(field, resolved);
    if (!resolved[i].is_given()) {
      return InvalidArgument(Reason::kUnresolvedField,
                             StrCat("field ", kFieldNames[i],
                                    " is given as \"not given\", and no rule resolves it; "
                                    "leave it out or give it a value"),
                             {{fact::kName, kFieldNames[i]}});
    }
  }
  return resolved;
}

}  // namespace

std::string_view AxisFieldName(AxisField field) { return kFieldNames[IndexOf(field)]; }

std::optional<AxisField> FindAxisField(std::string_view name) {
  for (size_t i = 0; i < kFieldCount; ++i) {
    if (kFieldNames[i] == name) return static_cast<AxisField>(i);
  }
  return std::nullopt;
}

absl::Span<const std::string_view> AxisFieldNames() { return kFieldNames; }

std::optional<AxisField> GenerationVariant(AxisField field) {
  switch (field) {
    case AxisField::kBatch:
      return AxisField::kDecodeBatch;
    case AxisField::kQuerySequence:
      return AxisField::kDecodeQuerySequence;
    case AxisField::kKeySequence:
      return AxisField::kDecodeKeySequence;
    case AxisField::kHead:
      return AxisField::kDecodeHead;
    case AxisField::kKvHead:
      return AxisField::kDecodeKvHead;
    case AxisField::kAttentionDim:
      return AxisField::kDecodeAttentionDim;
    case AxisField::kAttentionKvDim:
      return AxisField::kDecodeAttentionKvDim;
    default:
      return std::nullopt;
  }
}

absl::Span<const SemanticName> BuiltInSemanticNames() { return kSemanticNames; }

// The resolved profile, with every answer that a lookup can give, computed once.
struct PartitionAxis::Rep {
  // The answer for one name: under kExact and under kDefault (`flat`), as a value and as an entry
  // of a spec.
  struct Answer {
    explicit Answer(const AxisValue& exact_value)
        : exact(exact_value),
          flat(Flattened(exact_value)),
          exact_entry(SpecEntry::Create(exact)),
          flat_entry(SpecEntry::Create(flat)) {}

    const AxisValue& value(Compatibility compatibility) const {
      return compatibility == Compatibility::kExact ? exact : flat;
    }
    const absl::StatusOr<SpecEntry>& entry(Compatibility compatibility) const {
      return compatibility == Compatibility::kExact ? exact_entry : flat_entry;
    }

    AxisValue exact;
    AxisValue flat;
    absl::StatusOr<SpecEntry> exact_entry;
    absl::StatusOr<SpecEntry> flat_entry;
  };

  // The indices in `answers` of a semantic name's two answers.
  struct Places {
    size_t train;
    size_t generation;
    size_t in(RuntimeMode mode) const { return IsGeneration(mode) ? generation : train; }
  };

  // Returns the indices of a field's two answers.
  Places PlacesOf(AxisField field) const {
    const std::optional<AxisField> variant = GenerationVariant(field);
    const bool use_variant = variant.has_value() && !fields[IndexOf(*variant)].is_none();
    return {IndexOf(field), IndexOf(use_variant ? *variant : field)};
  }

  const Answer* FindName(std::string_view name, RuntimeMode mode) const {
    const Places* found = places.Find(name);
    return found == nullptr ? nullptr : &answers[found->in(mode)];
  }

  // Returns `UNKNOWN_AXIS`, with the nearest known name.
  absl::Status UnknownAxis(std::string_view what, std::string_view python_type) const;

  // Resolves the members of a list, and returns their values as a list.
  absl::StatusOr<AxisValue> ResolveList(const AxisValue& list, RuntimeMode mode,
                                        Compatibility compatibility) const;
  absl::Status AppendMembers(const AxisValue& list, RuntimeMode mode, Compatibility compatibility,
                             std::vector<AxisValue>& out) const;

  // The value of one axis: in `answer` if it is one of `answers`, else in `made`.
  struct Resolved {
    const Answer* answer = nullptr;
    AxisValue made;
  };
  absl::StatusOr<Resolved> Resolve(const AxisValue& axis, RuntimeMode mode,
                                   Compatibility compatibility) const;

  // Appends the steps that resolve a name: an axis, or a member of a list.
  void ExplainName(int64_t dim, std::string_view name, RuntimeMode mode,
                   std::vector<ExplanationStep>& steps) const;
  void ExplainMembers(int64_t dim, const AxisValue& list, RuntimeMode mode,
                      std::vector<ExplanationStep>& steps) const;
  // Appends the semantic names in the value of a user-defined axis that are not in `seen` yet.
  void AppendReferred(const AxisValue& value, absl::flat_hash_set<std::string>& seen,
                      std::vector<std::string>& out) const;

  std::array<AxisValue, kFieldCount> fields;
  std::vector<SemanticAxis> semantic_axes;
  // The answers of the fields, in their order; then two answers for each user-defined axis: first
  // the answer in train, then the answer in generation modes.
  std::vector<Answer> answers;
  NameTable<Places> places;  // keys: all semantic names except kEmpty

  // Returns the index of a spec in preset_specs. The specs are ordered by preset, then train before
  // generation, then kDefault before kExact. ResolvePreset computes a spec at its first use. Until
  // then, and for presets that do not resolve, the element of preset_specs is null.
  static size_t PresetSlot(size_t preset, RuntimeMode mode, Compatibility compatibility) {
    return preset * 4 + (IsGeneration(mode) ? 2 : 0) +
           (compatibility == Compatibility::kExact ? 1 : 0);
  }
  mutable std::vector<std::atomic<const PartitionSpec*>> preset_specs =
      std::vector<std::atomic<const PartitionSpec*>>(Presets().size() * 4);

  Rep() = default;
  Rep(const Rep&) = delete;
  Rep& operator=(const Rep&) = delete;
  ~Rep() {
    for (const auto& spec : preset_specs) delete spec.load(std::memory_order_relaxed);
  }
};

// Resolves a profile's user-defined semantic axes, depth first.
class PartitionAxis::Builder {
 public:
  Builder(Rep& rep, absl::Span<const SemanticAxis> axes) : rep_(rep), axes_(axes) {}

  absl::Status Build() {
    rep_.answers.reserve(kFieldCount + 2 * axes_.size());
    for (const AxisValue& value : rep_.fields) rep_.answers.emplace_back(value);
    for (const SemanticName& name : kSemanticNames) {
      if (name.field.has_value())
        rep_.places.Insert(std::string(name.name), rep_.PlacesOf(*name.field));
    }
    SHARDMESH_RETURN_IF_ERROR(CheckNames());
    rep_.semantic_axes.assign(axes_.begin(), axes_.end());
    for (size_t i = 0; i < axes_.size(); ++i) {
      for (const bool generation : {false, true}) {
        SHARDMESH_ASSIGN_OR_RETURN(const AxisValue* value, Resolve({i, generation}));
        rep_.answers.emplace_back(*value);
      }
      rep_.places.Insert(axes_[i].name, Rep::Places{kFieldCount + 2 * i, kFieldCount + 2 * i + 1});
    }
    return absl::OkStatus();
  }

 private:
  // One of the two values of a user-defined axis: for train or for generation modes.
  struct Node {
    size_t axis;
    bool generation;
    size_t index() const { return 2 * axis + (generation ? 1 : 0); }
  };

  absl::Status CheckNames() {
    for (size_t i = 0; i < axes_.size(); ++i) {
      const std::string& name = axes_[i].name;
      if (name.empty() || name.size() > kMaxAxisNameBytes) {
        return InvalidArgument(Reason::kInvalidAxisValue,
                               StrCat("semantic axis ", i, " has a name of ", name.size(),
                                      " bytes; 1 to ", kMaxAxisNameBytes, " are allowed"),
                               {{fact::kName, name}});
      }
      if (name == semantic::kEmpty || rep_.places.Find(name) != nullptr || FindAxisField(name)) {
        return InvalidArgument(
            Reason::kInvalidAxisValue,
            StrCat("semantic axis \"", name,
                   "\" bears the name of a built-in axis or field; choose another"),
            {{fact::kName, name}});
      }
      if (!axis_of_name_.Insert(name, i)) {
        return InvalidArgument(Reason::kInvalidAxisValue,
                               StrCat("semantic axis \"", name, "\" is given twice"),
                               {{fact::kName, name}});
      }
    }
    values_.resize(2 * axes_.size());
    return absl::OkStatus();
  }

  absl::StatusOr<const AxisValue*> Resolve(Node node) {
    AxisValue& value = values_[node.index()];
    if (value.is_given()) return &value;
    for (size_t i = 0; i < path_.size(); ++i) {
      if (path_[i].index() == node.index()) return Circle(i);
    }
    path_.push_back(node);
    const SemanticAxis& axis = axes_[node.axis];
    const bool own = node.generation && axis.generation_value.has_value();
    std::vector<AxisValue> entries;
    SHARDMESH_RETURN_IF_ERROR(Append(node, own ? *axis.generation_value : axis.value, entries));
    path_.pop_back();
    if (entries.size() > kMaxSemanticAxisEntries) {
      return InvalidArgument(
          Reason::kLimitExceeded,
          StrCat("semantic axis \"", axis.name, "\" stands for ", entries.size(),
                 " mesh axes; at most ", kMaxSemanticAxisEntries, " are allowed"),
          {{fact::kHave, entries.size()}, {fact::kLimit, kMaxSemanticAxisEntries}});
    }
    if (entries.empty()) {
      value = AxisValue::None();
    } else {
      value = entries.size() == 1 ? std::move(entries[0]) : AxisValue::Tuple(std::move(entries));
    }
    return &value;
  }

  // Appends the mesh axes of `value`, which is part of the value of `node`.
  absl::Status Append(Node node, const AxisValue& value, std::vector<AxisValue>& out) {
    if (IsSequence(value)) {
      for (const AxisValue& entry : value.entries()) {
        SHARDMESH_RETURN_IF_ERROR(Append(node, entry, out));
      }
      return absl::OkStatus();
    }
    if (IsEmptyAxis(value)) {
      out.push_back(AxisValue::None());
      return absl::OkStatus();
    }
    const std::string& name = value.name();
    if (!value.is_name() || name.empty()) {
      return InvalidArgument(
          Reason::kInvalidAxisValue,
          StrCat("semantic axis \"", axes_[node.axis].name, "\" stands for ", value.ToString(),
                 "; it may stand for none, names, and tuples of them"),
          {{fact::kName, axes_[node.axis].name}, {fact::kValue, value.ToString()}});
    }
    if (const size_t* axis = axis_of_name_.Find(name); axis != nullptr) {
      SHARDMESH_ASSIGN_OR_RETURN(const AxisValue* referred, Resolve({*axis, node.generation}));
      AppendFlat(*referred, out);
      return absl::OkStatus();
    }
    const RuntimeMode mode = node.generation ? RuntimeMode::kAutoregressive : RuntimeMode::kTrain;
    if (const Rep::Answer* answer = rep_.FindName(name, mode); answer != nullptr) {
      AppendFlat(answer->flat, out);
      return absl::OkStatus();
    }
    // The name of a field stands for the field's own value in every mode, not for its decode
    // variant.
    if (const std::optional<AxisField> field = FindAxisField(name); field.has_value()) {
      AppendFlat(rep_.answers[static_cast<size_t>(*field)].flat, out);
      return absl::OkStatus();
    }
    if (LooksSemantic(name)) return rep_.UnknownAxis(name, "ValueError");
    out.push_back(value);
    return absl::OkStatus();
  }

  absl::Status Circle(size_t from) const {
    std::vector<std::string_view> names;
    for (size_t i = from; i < path_.size(); ++i) names.push_back(axes_[path_[i].axis].name);
    names.push_back(names.front());
    return InvalidArgument(
        Reason::kCyclicAxis,
        StrCat("semantic axes stand for one another in a circle: ", StrJoin(names, " -> "),
               "; let one of them stand for mesh axes of another name"),
        {{fact::kName, StrJoin(names, ",")}});
  }

  Rep& rep_;
  const absl::Span<const SemanticAxis> axes_;
  NameTable<size_t> axis_of_name_;
  std::vector<AxisValue> values_;  // indexed by Node::index(); kNotGiven before resolution
  std::vector<Node> path_;         // nodes being resolved, outermost first
};

PartitionAxis::PartitionAxis() {
  static const std::shared_ptr<const Rep>& rep =
      *new std::shared_ptr<const Rep>(Create({})->rep_);  // cannot fail without fields
  rep_ = rep;
}

absl::StatusOr<PartitionAxis> PartitionAxis::Create(absl::Span<const FieldValue> fields,
                                                    absl::Span<const SemanticAxis> semantic_axes) {
  auto rep = std::make_shared<Rep>();
  SHARDMESH_ASSIGN_OR_RETURN(rep->fields, ResolveFields(fields));
  SHARDMESH_RETURN_IF_ERROR(Builder(*rep, semantic_axes).Build());
  return PartitionAxis(std::move(rep));
}

const AxisValue& PartitionAxis::field(AxisField field) const {
  return rep_->fields[IndexOf(field)];
}

absl::Span<const SemanticAxis> PartitionAxis::semantic_axes() const { return rep_->semantic_axes; }

absl::Status PartitionAxis::Rep::UnknownAxis(std::string_view what,
                                             std::string_view python_type) const {
  for (const SemanticName& name : kSemanticNames) {
    if (!name.field.has_value()) continue;
    const AxisValue& value = fields[IndexOf(*name.field)];
    const bool is_mesh_axis = IndexOf(*name.field) < IndexOf(AxisField::kBatch) &&
                              value.is_name() && value.name() == what;
    if (is_mesh_axis || AxisFieldName(*name.field) == what) {
      return InvalidArgument(
          Reason::kUnknownAxis,
          StrCat("\"", what, "\" is a ", is_mesh_axis ? "mesh axis" : "field of the profile",
                 ", not a logical axis; write \"", name.name, "\""),
          {{fact::kName, what}, {fact::kNearest, name.name}}, python_type);
    }
  }
  std::vector<std::string_view> known;
  for (const SemanticName& name : kSemanticNames) known.push_back(name.name);
  for (const SemanticAxis& axis : semantic_axes) known.push_back(axis.name);
  const std::string framed = StrCat("__", what, "__");
  std::string hint = DidYouMean(what, known);
  if (hint.empty()) hint = DidYouMean(framed, known);
  const std::string_view nearest =
      NearestName(what, known).value_or(NearestName(framed, known).value_or(""));
  if (hint.empty()) hint = "; those of a profile are such as __BATCH__, __LENGTH__ and __EMBED__";
  return InvalidArgument(Reason::kUnknownAxis, StrCat("\"", what, "\" is not a logical axis", hint),
                         {{fact::kName, what}, {fact::kNearest, nearest}}, python_type);
}

absl::Status PartitionAxis::Rep::AppendMembers(const AxisValue& list, RuntimeMode mode,
                                               Compatibility compatibility,
                                               std::vector<AxisValue>& out) const {
  for (const AxisValue& member : list.entries()) {
    if (member.is_list()) {
      SHARDMESH_RETURN_IF_ERROR(AppendMembers(member, mode, compatibility, out));
      continue;
    }
    if (!member.is_name()) {
      return InvalidArgument(Reason::kInvalidAxisValue,
                             StrCat("the list of axes ", list.ToString(), " holds ",
                                    member.ToString(), "; it may hold only names"),
                             {{fact::kValue, list.ToString()}}, "TypeError");
    }
    const Answer* answer = FindName(member.name(), mode);
    if (answer == nullptr) {
      const std::optional<AxisField> field = FindAxisField(member.name());
      if (!field.has_value()) return UnknownAxis(member.name(), "LookupError");
      answer = &answers[PlacesOf(*field).in(mode)];
    }
    if (compatibility == Compatibility::kExact) {
      out.push_back(answer->exact);
    } else {
      AppendFlat(answer->flat, out);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<AxisValue> PartitionAxis::Rep::ResolveList(const AxisValue& list, RuntimeMode mode,
                                                          Compatibility compatibility) const {
  if (compatibility == Compatibility::kExact) {
    for (const AxisValue& member : list.entries()) {
      if (HoldsList(member)) {
        return InvalidArgument(Reason::kInvalidAxisValue,
                               StrCat("the list of axes ", list.ToString(),
                                      " holds a list, which the original cannot look up"),
                               {{fact::kValue, list.ToString()}}, "TypeError");
      }
    }
    if (IsGeneration(mode)) {
      return InvalidArgument(
          Reason::kInvalidAxisValue,
          StrCat("the original resolves no list of axes in mode ", RuntimeModeName(mode), ", here ",
                 list.ToString(), "; the default compatibility does"),
          {{fact::kValue, list.ToString()}}, "TypeError");
    }
  }
  std::vector<AxisValue> values;
  values.reserve(list.entries().size());
  SHARDMESH_RETURN_IF_ERROR(AppendMembers(list, mode, compatibility, values));
  return AxisValue::List(std::move(values));
}

absl::StatusOr<PartitionAxis::Rep::Resolved> PartitionAxis::Rep::Resolve(
    const AxisValue& axis, RuntimeMode mode, Compatibility compatibility) const {
  if (axis.is_name()) {
    if (const Answer* answer = FindName(axis.name(), mode); answer != nullptr) {
      return Resolved{answer, {}};
    }
    return UnknownAxis(axis.name(), "ValueError");
  }
  if (axis.is_list()) {
    SHARDMESH_ASSIGN_OR_RETURN(AxisValue value, ResolveList(axis, mode, compatibility));
    return Resolved{nullptr, std::move(value)};
  }
  if (HoldsList(axis)) {
    return InvalidArgument(Reason::kInvalidAxisValue,
                           StrCat(axis.ToString(),
                                  " is not a logical axis; write several axes of a dimension "
                                  "as one list of names"),
                           {{fact::kValue, axis.ToString()}}, "TypeError");
  }
  return InvalidArgument(
      Reason::kUnknownAxis,
      StrCat(axis.ToString(), " is not a logical axis",
             axis.is_tuple() ? "; write several axes of a dimension as a list" : ""),
      {{fact::kName, axis.ToString()}});
}

absl::StatusOr<std::vector<AxisValue>> PartitionAxis::ResolveAxis(
    absl::Span<const AxisValue> axes, RuntimeMode mode, Compatibility compatibility) const {
  std::vector<AxisValue> values;
  values.reserve(axes.size());
  for (const AxisValue& axis : axes) {
    if (IsEmptyAxis(axis)) {
      values.push_back(AxisValue::None());
      continue;
    }
    SHARDMESH_ASSIGN_OR_RETURN(Rep::Resolved resolved, rep_->Resolve(axis, mode, compatibility));
    values.push_back(resolved.answer != nullptr ? resolved.answer->value(compatibility)
                                                : std::move(resolved.made));
  }
  return values;
}

absl::StatusOr<PartitionSpec> PartitionAxis::ResolveSpec(absl::Span<const AxisValue> axes,
                                                         RuntimeMode mode,
                                                         Compatibility compatibility) const {
  std::vector<SpecEntry> entries;
  entries.reserve(axes.size());
  // The first error of a value that is not a legal entry. It is returned only if every axis
  // resolves: errors of resolution come first.
  absl::Status unfit;
  for (const AxisValue& axis : axes) {
    if (IsEmptyAxis(axis)) {
      entries.emplace_back();
      continue;
    }
    if (axis.is_name()) {
      // The usual case: copies only the prepared entry.
      const Rep::Answer* answer = rep_->FindName(axis.name(), mode);
      if (answer != nullptr && answer->entry(compatibility).ok()) {
        entries.push_back(*answer->entry(compatibility));
        continue;
      }
    }
    SHARDMESH_ASSIGN_OR_RETURN(const Rep::Resolved resolved,
                               rep_->Resolve(axis, mode, compatibility));
    absl::StatusOr<SpecEntry> entry = resolved.answer != nullptr
                                          ? resolved.answer->entry(compatibility)
                                          : SpecEntry::Create(resolved.made);
    if (!entry.ok()) {
      unfit.Update(WithContext(entry.status(), StrCat("axis ", axis.ToString())));
      continue;
    }
    entries.push_back(*std::move(entry));
  }
  if (!unfit.ok()) return unfit;
  return PartitionSpec(std::move(entries));
}

absl::StatusOr<PartitionSpec> PartitionAxis::ResolvePreset(size_t preset, RuntimeMode mode,
                                                           Compatibility compatibility) const {
  std::atomic<const PartitionSpec*>& slot =
      rep_->preset_specs[Rep::PresetSlot(preset, mode, compatibility)];
  if (const PartitionSpec* known = slot.load(std::memory_order_acquire); known != nullptr) {
    return *known;
  }
  SHARDMESH_ASSIGN_OR_RETURN(PartitionSpec spec,
                             ResolveSpec(Presets()[preset].dynamic_axes.axes, mode, compatibility));
  auto made = std::make_unique<const PartitionSpec>(spec);
  const PartitionSpec* expected = nullptr;
  if (slot.compare_exchange_strong(expected, made.get(), std::memory_order_acq_rel)) {
    made.release();  // ~Rep deletes it
  }
  return spec;
}

void PartitionAxis::Rep::ExplainName(int64_t dim, std::string_view name, RuntimeMode mode,
                                     std::vector<ExplanationStep>& steps) const {
  using Kind = ExplanationStep::Kind;
  // A user-defined axis may refer to other names. `names` is the stack of names to explain. The
  // loop explains its last name next.
  std::vector<std::string> names = {std::string(name)};
  absl::flat_hash_set<std::string> seen = {names.front()};
  while (!names.empty()) {
    std::string read = std::move(names.back());
    names.pop_back();
    const Places* semantic_places = places.Find(read);
    const std::optional<AxisField> named_field = FindAxisField(read);
    const Places found = semantic_places != nullptr ? *semantic_places : PlacesOf(*named_field);
    if (found.train < kFieldCount) {
      const std::string_view field = kFieldNames[found.train];
      if (!named_field.has_value()) {
        steps.push_back({Kind::kSemanticName, dim, read, std::string(field)});
      }
      read = kFieldNames[found.in(mode)];
      if (IsGeneration(mode) && GenerationVariant(static_cast<AxisField>(found.train))) {
        steps.push_back({Kind::kModeVariant, dim, std::string(field), read});
      }
    } else {
      const SemanticAxis& axis = semantic_axes[(found.train - kFieldCount) / 2];
      steps.push_back({Kind::kSemanticName, dim, read, axis.value.ToString()});
      const bool own = IsGeneration(mode) && axis.generation_value.has_value();
      if (own) {
        steps.push_back({Kind::kModeVariant, dim, read, axis.generation_value->ToString()});
      }
      std::vector<std::string> referred;
      AppendReferred(own ? *axis.generation_value : axis.value, seen, referred);
      if (!referred.empty()) {
        names.insert(names.end(), referred.rbegin(), referred.rend());
        continue;
      }
    }
    steps.push_back({Kind::kMeshAxes, dim, read, answers[found.in(mode)].exact.ToString()});
  }
  if (seen.size() > 1) {
    steps.push_back(
        {Kind::kMeshAxes, dim, std::string(name), FindName(name, mode)->exact.ToString()});
  }
}

void PartitionAxis::Rep::AppendReferred(const AxisValue& value,
                                        absl::flat_hash_set<std::string>& seen,
                                        std::vector<std::string>& out) const {
  if (IsSequence(value)) {
    for (const AxisValue& entry : value.entries()) {
      AppendReferred(entry, seen, out);
    }
  } else if (value.is_name() && places.Find(value.name()) != nullptr &&
             seen.size() < kMaxExplainedNames && seen.insert(value.name()).second) {
    out.push_back(value.name());
  }
}

void PartitionAxis::Rep::ExplainMembers(int64_t dim, const AxisValue& list, RuntimeMode mode,
                                        std::vector<ExplanationStep>& steps) const {
  for (const AxisValue& member : list.entries()) {
    if (member.is_list()) {
      ExplainMembers(dim, member, mode, steps);
    } else {
      ExplainName(dim, member.name(), mode, steps);
    }
  }
}

absl::StatusOr<std::vector<ExplanationStep>> PartitionAxis::Explain(
    absl::Span<const AxisValue> axes, RuntimeMode mode, Compatibility compatibility) const {
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<AxisValue> values,
                             ResolveAxis(axes, mode, compatibility));
  std::vector<ExplanationStep> steps;
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto dim = static_cast<int64_t>(i);
    const AxisValue& axis = axes[i];
    if (axis.is_name() && !IsEmptyAxis(axis)) {
      rep_->ExplainName(dim, axis.name(), mode, steps);
      continue;
    }
    // A resolved axis is none, `_` or a list of names.
    rep_->ExplainMembers(dim, axis, mode, steps);
    steps.push_back({ExplanationStep::Kind::kMeshAxes, dim,
                     axis.is_name() ? axis.name() : axis.ToString(), values[i].ToString()});
  }
  return steps;
}

std::string PartitionAxis::ToString() const {
  std::vector<std::string> fields;
  fields.reserve(kFieldCount);
  for (size_t i = 0; i < kFieldCount; ++i) {
    fields.push_back(StrCat(kFieldNames[i], "=", rep_->fields[i].ToString()));
  }
  return StrCat("PartitionAxis(", StrJoin(fields, ", "), ")");
}

bool operator==(const PartitionAxis& a, const PartitionAxis& b) {
  return a.rep_->fields == b.rep_->fields && a.rep_->semantic_axes == b.rep_->semantic_axes;
}

}  // namespace shardmesh
