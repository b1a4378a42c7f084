// Encodes messages, and decodes untrusted ones with all necessary checks.
#include "rpc/codec/spec_codec.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "rpc/codec/field_check.h"
#include "rpc/codec/status.h"
#include "status/fact_keys.h"
#include "status/python_repr.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

// The fields of a profile, in the order of AxisField and of their field numbers in the message.
#define SHARDMESH_PROFILE_FIELDS(X)   \
  X(data_parallel_axis)               \
  X(fully_sharded_data_parallel_axis) \
  X(tensor_parallel_axis)             \
  X(sequence_parallel_axis)           \
  X(expert_parallel_axis)             \
  X(batch_axis)                       \
  X(sequence_axis)                    \
  X(query_sequence_axis)              \
  X(head_axis)                        \
  X(kv_head_axis)                     \
  X(key_sequence_axis)                \
  X(hidden_state_axis)                \
  X(mlp_intermediate_axis)            \
  X(vocab_axis)                       \
  X(expert_axis)                      \
  X(expert_gate_axis)                 \
  X(attention_dim_axis)               \
  X(attention_kv_dim_axis)            \
  X(bias_head_sequence_axis)          \
  X(bias_key_sequence_axis)           \
  X(decode_batch_axis)                \
  X(decode_query_sequence_axis)       \
  X(decode_head_axis)                 \
  X(decode_kv_head_axis)              \
  X(decode_key_sequence_axis)         \
  X(decode_attention_dim_axis)        \
  X(decode_attention_kv_dim_axis)

namespace shardmesh::rpc {
namespace {

absl::Status LimitExceeded(std::string_view field, std::string_view what, int64_t have,
                           int64_t limit) {
  return WithField(InvalidArgument(Reason::kLimitExceeded,
                                   StrCat(have, " ", what, "; at most ", limit, " are allowed"),
                                   {{fact::kHave, have}, {fact::kLimit, limit}}),
                   field);
}

struct ProfileField {
  std::string_view name;
  bool (v1::PartitionAxis::*has)() const;
  const v1::AxisValue& (v1::PartitionAxis::*get)() const;
  v1::AxisValue* (v1::PartitionAxis::*mutable_value)();
};

constexpr std::array kProfileFields = {
#define SHARDMESH_PROFILE_FIELD(name)                                           \
  ProfileField{#name, &v1::PartitionAxis::has_##name, &v1::PartitionAxis::name, \
               &v1::PartitionAxis::mutable_##name},
    SHARDMESH_PROFILE_FIELDS(SHARDMESH_PROFILE_FIELD)
#undef SHARDMESH_PROFILE_FIELD
};
static_assert(kProfileFields.size() == kAxisFieldCount);

// `budget`: how many more values the decoder accepts.
absl::StatusOr<AxisValue> DecodeValue(const v1::AxisValue& from, int depth, int64_t& budget);

absl::StatusOr<std::vector<AxisValue>> DecodeEntries(const v1::AxisValueList& from, int depth,
                                                     std::string_view field, int64_t& budget) {
  if (depth >= kMaxAxisValueDepth) {
    return LimitExceeded(field, "levels of tuples and lists", depth + 1, kMaxAxisValueDepth);
  }
  if (from.values_size() > budget) {
    return LimitExceeded(field, "entries or more in one value", kMaxAxisValues + 1, kMaxAxisValues);
  }
  budget -= from.values_size();
  std::vector<AxisValue> entries;
  entries.reserve(static_cast<size_t>(from.values_size()));
  for (int i = 0; i < from.values_size(); ++i) {
    auto entry = DecodeValue(from.values(i), depth + 1, budget);
    if (!entry.ok()) {
      return WithField(WithField(std::move(entry).status(), "values", static_cast<size_t>(i)),
                       field);
    }
    entries.push_back(*std::move(entry));
  }
  return entries;
}

// Checks the limits of DecodeValue for a value that was not decoded, but derived from other values.
absl::Status CheckLimits(const AxisValue& value, int depth, std::string_view field,
                         int64_t& budget) {
  if (!value.is_tuple() && !value.is_list()) {
    return absl::OkStatus();
  }
  if (depth >= kMaxAxisValueDepth) {
    return LimitExceeded(field, "levels of tuples and lists", depth + 1, kMaxAxisValueDepth);
  }
  budget -= static_cast<int64_t>(value.entries().size());
  if (budget < 0) {
    return LimitExceeded(field, "entries or more in one value", kMaxAxisValues + 1, kMaxAxisValues);
  }
  for (const AxisValue& entry : value.entries()) {
    SHARDMESH_RETURN_IF_ERROR(CheckLimits(entry, depth + 1, field, budget));
  }
  return absl::OkStatus();
}

absl::Status CheckAxisName(const std::string& name) {
  if (name.size() <= kMaxAxisNameBytes) return absl::OkStatus();
  const auto have = static_cast<int64_t>(name.size());
  const auto limit = static_cast<int64_t>(kMaxAxisNameBytes);
  return InvalidArgument(Reason::kLimitExceeded,
                         StrCat(have, " bytes in an axis name; at most ", limit, " are allowed"),
                         {{fact::kHave, have}, {fact::kLimit, limit}});
}

absl::StatusOr<AxisValue> DecodeConstant(v1::AxisConstant from) {
  switch (from) {
    case v1::AXIS_CONSTANT_NOT_GIVEN:
      return AxisValue::NotGiven();
    case v1::AXIS_CONSTANT_NONE:
      return AxisValue::None();
    case v1::AXIS_CONSTANT_UNCONSTRAINED:
      return AxisValue::Unconstrained();
    default:
      return BadField("constant", StrCat("axis constant ", static_cast<int>(from),
                                         " is not known; use NOT_GIVEN, NONE or UNCONSTRAINED"));
  }
}

absl::StatusOr<AxisValue> DecodeValue(const v1::AxisValue& from, int depth, int64_t& budget) {
  switch (from.kind_case()) {
    case v1::AxisValue::kConstant:
      return DecodeConstant(from.constant());
    case v1::AxisValue::kName:
      SHARDMESH_RETURN_IF_ERROR(WithField(CheckAxisName(from.name()), "name"));
      return AxisValue::Name(from.name());
    case v1::AxisValue::kTuple: {
      SHARDMESH_ASSIGN_OR_RETURN(auto entries, DecodeEntries(from.tuple(), depth, "tuple", budget));
      return AxisValue::Tuple(std::move(entries));
    }
    case v1::AxisValue::kList: {
      SHARDMESH_ASSIGN_OR_RETURN(auto entries, DecodeEntries(from.list(), depth, "list", budget));
      return AxisValue::List(std::move(entries));
    }
    case v1::AxisValue::KIND_NOT_SET:
      break;
  }
  return BadField("kind", "an axis value is empty; set constant, name, tuple or list");
}

void Encode(const AxisName& from, v1::AxisValue* to) {
  if (from.has_value()) {
    to->set_name(*from);
  } else {
    to->set_constant(v1::AXIS_CONSTANT_NONE);
  }
}

// Does not use AxisValue, for speed: every answer contains specs. A single empty name would be
// decoded as none, as in JAX. It is therefore encoded as a tuple of one name, in which it stays an
// axis.
void Encode(const SpecEntry& from, v1::AxisValue* to) {
  if (from.is_unconstrained()) {
    to->set_constant(v1::AXIS_CONSTANT_UNCONSTRAINED);
  } else if (from.is_none()) {
    to->set_constant(v1::AXIS_CONSTANT_NONE);
  } else if (from.axes().size() == 1 && from.axes()[0] != "") {
    Encode(from.axes()[0], to);
  } else {
    for (const AxisName& axis : from.axes()) {
      Encode(axis, to->mutable_tuple()->add_values());
    }
  }
}

absl::StatusOr<SpecEntry> DecodeSpecEntry(const v1::AxisValue& from) {
  if (from.kind_case() == v1::AxisValue::kName && from.name().size() <= kMaxAxisNameBytes &&
      !from.name().empty()) {
    return SpecEntry::Axis(from.name());
  }
  SHARDMESH_ASSIGN_OR_RETURN(const AxisValue value, Decode(from));
  return SpecEntry::Create(value);
}

absl::Status CheckUnreduced(const v1::PartitionSpec& from) {
  const int count = from.unreduced_axes_size();
  if (count > kMaxMeshAxes) {
    return LimitExceeded("unreduced_axes", "unreduced axes", count, kMaxMeshAxes);
  }
  absl::flat_hash_set<std::string_view> seen;
  for (int i = 0; i < count; ++i) {
    const std::string& axis = from.unreduced_axes(i);
    if (axis.empty() || axis.size() > kMaxAxisNameBytes) {
      return WithField(InvalidArgument(Reason::kInvalidSpec,
                                       StrCat("an unreduced axis has a name of ", axis.size(),
                                              " bytes; it needs 1 to ", kMaxAxisNameBytes),
                                       {{fact::kAxis, axis}}),
                       "unreduced_axes", static_cast<size_t>(i));
    }
    if (!seen.insert(axis).second) {
      return WithField(InvalidArgument(Reason::kDuplicateAxis,
                                       StrCat("unreduced axis ", PythonRepr(axis), " occurs twice"),
                                       {{fact::kAxis, axis}}, "DuplicateSpecError"),
                       "unreduced_axes", static_cast<size_t>(i));
    }
  }
  return absl::OkStatus();
}

// Converts reasons between the wire's enum and this process's enum. A reason has the same name in
// both enums, but not the same number.
struct ReasonTable {
  static constexpr int kSize = static_cast<int>(Reason::kLast) + 1;
  std::array<v1::Reason, kSize> to_wire;
  ReasonTable() {
    for (int i = 0; i < kSize; ++i) {
      const auto name = StrCat("REASON_", ReasonName(static_cast<Reason>(i)));
      v1::Reason value = v1::REASON_UNSPECIFIED;
      v1::Reason_Parse(name, &value);
      to_wire[static_cast<size_t>(i)] = value;
    }
  }
};

const ReasonTable& Reasons() {
  static const ReasonTable* const table = new ReasonTable();
  return *table;
}

absl::Status CheckAxisCount(int count) {
  if (count <= kMaxRank) return absl::OkStatus();
  return InvalidArgument(Reason::kLimitExceeded,
                         StrCat(count, " axes; a tensor has at most ", kMaxRank, " dimensions"),
                         {{fact::kHave, count}, {fact::kLimit, kMaxRank}});
}

}  // namespace

v1::Reason Encode(Reason reason) { return Reasons().to_wire[static_cast<size_t>(reason)]; }

Reason Decode(v1::Reason reason) {
  const auto& to_wire = Reasons().to_wire;
  for (size_t i = 0; i < to_wire.size(); ++i) {
    if (to_wire[i] == reason) {
      return static_cast<Reason>(i);
    }
  }
  return Reason::kUnspecified;
}

void Encode(const AxisValue& from, v1::AxisValue* to) {
  switch (from.kind()) {
    case AxisValue::Kind::kNotGiven:
      to->set_constant(v1::AXIS_CONSTANT_NOT_GIVEN);
      return;
    case AxisValue::Kind::kNone:
      to->set_constant(v1::AXIS_CONSTANT_NONE);
      return;
    case AxisValue::Kind::kUnconstrained:
      to->set_constant(v1::AXIS_CONSTANT_UNCONSTRAINED);
      return;
    case AxisValue::Kind::kName:
      to->set_name(from.name());
      return;
    case AxisValue::Kind::kTuple:
    case AxisValue::Kind::kList: {
      v1::AxisValueList* list = from.is_tuple() ? to->mutable_tuple() : to->mutable_list();
      for (const AxisValue& entry : from.entries()) {
        Encode(entry, list->add_values());
      }
      return;
    }
  }
}

absl::StatusOr<AxisValue> Decode(const v1::AxisValue& from) {
  int64_t budget = kMaxAxisValues;
  return DecodeValue(from, /*depth=*/0, budget);
}

absl::StatusOr<std::vector<AxisValue>> DecodeAxes(
    const google::protobuf::RepeatedPtrField<v1::AxisValue>& from) {
  SHARDMESH_RETURN_IF_ERROR(CheckAxisCount(from.size()));
  std::vector<AxisValue> axes;
  axes.reserve(static_cast<size_t>(from.size()));
  for (int i = 0; i < from.size(); ++i) {
    auto axis = Decode(from[i]);
    if (!axis.ok()) {
      return WithField(std::move(axis).status(), "", static_cast<size_t>(i));
    }
    axes.push_back(*std::move(axis));
  }
  return axes;
}

absl::StatusOr<std::vector<AxisValue>> DecodeAxisNames(
    const google::protobuf::RepeatedPtrField<std::string>& from) {
  SHARDMESH_RETURN_IF_ERROR(CheckAxisCount(from.size()));
  std::vector<AxisValue> axes;
  axes.reserve(static_cast<size_t>(from.size()));
  for (int i = 0; i < from.size(); ++i) {
    SHARDMESH_RETURN_IF_ERROR(WithField(CheckAxisName(from[i]), "", static_cast<size_t>(i)));
    axes.push_back(AxisValue::Name(from[i]));
  }
  return axes;
}

void Encode(const PartitionSpec& from, v1::PartitionSpec* to) {
  to->mutable_dimensions()->Reserve(static_cast<int>(from.size()));
  for (const SpecEntry& entry : from.entries()) {
    Encode(entry, to->add_dimensions());
  }
  for (const std::string& axis : from.unreduced()) {
    to->add_unreduced_axes(axis);
  }
}

absl::StatusOr<PartitionSpec> Decode(const v1::PartitionSpec& from) {
  if (from.dimensions_size() > kMaxRank) {
    return LimitExceeded("dimensions", "dimensions in a spec", from.dimensions_size(), kMaxRank);
  }
  std::vector<SpecEntry> entries;
  entries.reserve(static_cast<size_t>(from.dimensions_size()));
  for (int i = 0; i < from.dimensions_size(); ++i) {
    auto entry = DecodeSpecEntry(from.dimensions(i));
    if (!entry.ok()) {
      return WithField(std::move(entry).status(), "dimensions", static_cast<size_t>(i));
    }
    entries.push_back(*std::move(entry));
  }
  if (from.unreduced_axes().empty()) {
    return PartitionSpec(std::move(entries));
  }
  SHARDMESH_RETURN_IF_ERROR(CheckUnreduced(from));
  PartitionSpec spec(std::move(entries),
                     {from.unreduced_axes().begin(), from.unreduced_axes().end()});
  for (int i = 0; i < from.unreduced_axes_size(); ++i) {
    for (const SpecEntry& entry : spec.entries()) {
      for (const AxisName& axis : entry.axes()) {
        if (axis == from.unreduced_axes(i)) {
          return WithField(
              InvalidArgument(Reason::kDuplicateAxis,
                              StrCat("axis ", PythonRepr(*axis),
                                     " partitions a dimension and is unreduced too; drop it from "
                                     "one of them"),
                              {{fact::kAxis, *axis}}, "DuplicateSpecError"),
              "unreduced_axes", static_cast<size_t>(i));
        }
      }
    }
  }
  return spec;
}

v1::AxisType Encode(AxisType from) {
  // The wire's enum has the same types in the same order; its 0 means "not set".
  static_assert(static_cast<int>(AxisType::kManual) + 1 == v1::AXIS_TYPE_MANUAL);
  return static_cast<v1::AxisType>(static_cast<int>(from) + 1);
}

namespace {

absl::StatusOr<AxisType> Decode(v1::AxisType from) {
  if (!v1::AxisType_IsValid(from)) {
    return BadField("type", StrCat("axis type ", static_cast<int>(from),
                                   " is not known; leave it unset, or use AUTO, EXPLICIT or "
                                   "MANUAL"));
  }
  return from == v1::AXIS_TYPE_UNSPECIFIED ? AxisType::kAuto
                                           : static_cast<AxisType>(static_cast<int>(from) - 1);
}

}  // namespace

void Encode(const Mesh& from, v1::Mesh* to) {
  for (const MeshAxis& axis : from.axes()) {
    v1::MeshAxis* added = to->add_axes();
    added->set_name(axis.name);
    added->set_size(axis.size);
    if (axis.type != AxisType::kAuto) {
      added->set_type(Encode(axis.type));
    }
  }
  // Omit the global ids if each of them equals the device's position. The comparison with a mesh
  // without ids finds that out without a loop over all devices.
  MeshOptions options;
  options.allow_degenerate = true;
  const auto plain = Mesh::Create({from.axes().begin(), from.axes().end()}, options);
  if (plain.ok() && *plain == from) {
    return;
  }
  for (DeviceId device = 0; device < from.size(); ++device) {
    to->add_device_ids(from.GlobalIdOf(device));
  }
}

absl::StatusOr<Mesh> Decode(const v1::Mesh& from, std::optional<int64_t> device_count,
                            Compatibility compatibility) {
  if (from.axes_size() == 0 && from.device_ids_size() == 0 && !device_count.has_value()) {
    return Mesh();
  }
  if (from.axes_size() > kMaxMeshAxes) {
    return LimitExceeded("axes", "axes of a mesh", from.axes_size(), kMaxMeshAxes);
  }
  std::vector<MeshAxis> axes;
  axes.reserve(static_cast<size_t>(from.axes_size()));
  for (int i = 0; i < from.axes_size(); ++i) {
    const v1::MeshAxis& axis = from.axes(i);
    const auto type = Decode(axis.type());
    if (!type.ok()) {
      return WithField(type.status(), "axes", static_cast<size_t>(i));
    }
    axes.push_back({axis.name(), axis.size(), *type});
  }
  MeshOptions options;
  options.device_count = device_count;
  options.global_ids.assign(from.device_ids().begin(), from.device_ids().end());
  options.allow_degenerate = compatibility == Compatibility::kExact;
  auto mesh = Mesh::Create(std::move(axes), std::move(options));
  if (!mesh.ok()) {
    return WithField(std::move(mesh).status(), "axes");
  }
  return mesh;
}

void Encode(const MeshDefinition& from, v1::MeshDefinition* to) {
  Encode(from.mesh, to->mutable_mesh());
  for (const std::string& worker : from.workers) {
    to->add_workers(worker);
  }
}

absl::StatusOr<MeshDefinition> Decode(const v1::MeshDefinition& from,
                                      std::optional<int64_t> device_count) {
  MeshDefinition definition;
  absl::flat_hash_set<std::string_view> seen;
  for (int i = 0; i < from.workers_size(); ++i) {
    const std::string& worker = from.workers(i);
    SHARDMESH_RETURN_IF_ERROR(CheckIdentity(worker, StrCat("workers[", i, "]")));
    if (!seen.insert(worker).second) {
      return WithField(InvalidArgument(Reason::kInvalidMesh,
                                       StrCat("worker ", PythonRepr(worker),
                                              " serves two ranks; each worker serves one"),
                                       {{fact::kIdentity, worker}}),
                       "workers", static_cast<size_t>(i));
    }
    definition.workers.push_back(worker);
  }
  if (from.workers_size() > 0) {
    device_count = from.workers_size();
  }
  auto mesh = Decode(from.mesh(), device_count);
  if (!mesh.ok()) {
    return WithField(std::move(mesh).status(), "mesh");
  }
  if (mesh->empty()) {
    return WithField(InvalidArgument(Reason::kInvalidMesh, "a mesh definition needs axes"), "mesh");
  }
  definition.mesh = *std::move(mesh);
  return definition;
}

namespace {

void EncodeSemanticAxes(absl::Span<const SemanticAxis> from, v1::PartitionAxis* to) {
  for (const SemanticAxis& axis : from) {
    v1::SemanticAxis* added = to->add_semantic_axes();
    added->set_name(axis.name);
    rpc::Encode(axis.value, added->mutable_value());
    if (axis.generation_value.has_value()) {
      rpc::Encode(*axis.generation_value, added->mutable_generation_value());
    }
  }
}

}  // namespace

void Encode(const PartitionAxis& from, v1::PartitionAxis* to) {
  for (size_t i = 0; i < kProfileFields.size(); ++i) {
    Encode(from.field(static_cast<AxisField>(i)), (to->*kProfileFields[i].mutable_value)());
  }
  EncodeSemanticAxes(from.semantic_axes(), to);
}

absl::Status EncodeFields(absl::Span<const FieldValue> fields,
                          absl::Span<const SemanticAxis> semantic_axes, v1::PartitionAxis* to) {
  for (const FieldValue& given : fields) {
    const std::optional<AxisField> known = FindAxisField(given.field);
    const FieldValue once{given.field, AxisValue::None()};
    if (!known.has_value()) {
      return PartitionAxis::Create({once}).status();
    }
    const ProfileField& field = kProfileFields[static_cast<size_t>(*known)];
    if ((to->*field.has)()) {
      return PartitionAxis::Create({once, once}).status();
    }
    Encode(given.value, (to->*field.mutable_value)());
  }
  EncodeSemanticAxes(semantic_axes, to);
  return absl::OkStatus();
}

absl::StatusOr<PartitionAxis> Decode(const v1::PartitionAxis& from) {
  std::vector<FieldValue> fields;
  for (const ProfileField& field : kProfileFields) {
    if (!(from.*field.has)()) {
      continue;
    }
    auto value = Decode((from.*field.get)());
    if (!value.ok()) {
      return WithField(std::move(value).status(), field.name);
    }
    fields.push_back({std::string(field.name), *std::move(value)});
  }
  if (from.semantic_axes_size() > kMaxSemanticAxes) {
    return LimitExceeded("semantic_axes", "semantic axes", from.semantic_axes_size(),
                         kMaxSemanticAxes);
  }
  std::vector<SemanticAxis> axes;
  for (int i = 0; i < from.semantic_axes_size(); ++i) {
    const v1::SemanticAxis& axis = from.semantic_axes(i);
    auto value = Decode(axis.value());
    if (!value.ok()) {
      return WithField(WithField(std::move(value).status(), "value"), "semantic_axes",
                       static_cast<size_t>(i));
    }
    axes.push_back({axis.name(), *std::move(value), std::nullopt});
    if (axis.has_generation_value()) {
      auto generation_value = Decode(axis.generation_value());
      if (!generation_value.ok()) {
        return WithField(WithField(std::move(generation_value).status(), "generation_value"),
                         "semantic_axes", static_cast<size_t>(i));
      }
      axes.back().generation_value = *std::move(generation_value);
    }
  }
  auto profile = PartitionAxis::Create(fields, axes);
  if (!profile.ok()) {
    return WithField(std::move(profile).status(), axes.empty() ? "fields" : "semantic_axes");
  }
  // A field that the message lacks takes its value from other fields, and may exceed the limits:
  // the batch axis combines two fields.
  for (size_t i = 0; i < kProfileFields.size(); ++i) {
    int64_t budget = kMaxAxisValues;
    SHARDMESH_RETURN_IF_ERROR(CheckLimits(profile->field(static_cast<AxisField>(i)), /*depth=*/0,
                                          kProfileFields[i].name, budget));
  }
  return profile;
}

void Encode(const RuleSetDefinition& from, v1::RuleSet* to) {
  for (const Rule& rule : from.rules.rules()) {
    v1::Rule* added = to->add_rules();
    added->set_pattern(rule.pattern);
    Encode(rule.spec, added->mutable_spec());
  }
  if (from.default_min_size) {
    to->set_use_min_sharding_size(true);
  } else {
    to->set_min_size(from.rules.min_size());
  }
  to->set_strict(from.rules.strict());
  to->set_separator(from.slashes ? "/" : ".");
}

absl::StatusOr<RuleSetDefinition> Decode(const v1::RuleSet& from, Compatibility compatibility,
                                         int64_t min_sharding_size,
                                         const std::function<bool()>& is_cancelled) {
  if (from.rules_size() > RuleSet::kMaxRules) {
    return LimitExceeded("rules", "rules", from.rules_size(), RuleSet::kMaxRules);
  }
  // The original libraries accept a negative size, which acts as 0. By default it is an error here.
  if (from.min_size() < 0 && compatibility == Compatibility::kDefault) {
    return BadField("min_size", StrCat("min_size is ", from.min_size(), "; it must be at least 0"));
  }
  if (from.has_min_size() && from.use_min_sharding_size()) {
    return BadField("use_min_sharding_size", "is set, and so is min_size; set one of them");
  }
  if (!from.separator().empty() && from.separator() != "." && from.separator() != "/") {
    return BadField("separator", StrCat("separator ", PythonRepr(from.separator()),
                                        " is not known; use \".\" or \"/\""));
  }
  std::vector<Rule> rules;
  rules.reserve(static_cast<size_t>(from.rules_size()));
  for (int i = 0; i < from.rules_size(); ++i) {
    auto spec = Decode(from.rules(i).spec());
    if (!spec.ok()) {
      return WithField(WithField(std::move(spec).status(), "spec"), "rules",
                       static_cast<size_t>(i));
    }
    rules.push_back({from.rules(i).pattern(), *std::move(spec)});
  }
  RuleSetOptions options;
  options.min_size = from.use_min_sharding_size() ? min_sharding_size : from.min_size();
  options.strict = !from.has_strict() || from.strict();
  options.defer_pattern_errors = compatibility == Compatibility::kExact;
  options.is_cancelled = is_cancelled;
  auto rule_set = RuleSet::Create(std::move(rules), options);
  if (!rule_set.ok()) {
    return WithField(std::move(rule_set).status(), "rules");
  }
  return RuleSetDefinition{*std::move(rule_set), from.separator() == "/",
                           from.use_min_sharding_size()};
}

void Encode(const Mode& from, v1::ModeSelector* to) {
  if (const auto dimension = from.dimension(); dimension.has_value()) {
    // No tensor has a dimension beyond these bounds, so the receiver refuses the clamped value just
    // as it would refuse the original one.
    to->set_dimension(static_cast<int32_t>(std::clamp<int64_t>(
        *dimension, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max())));
  } else {
    to->set_name(from.ToString());
  }
}

absl::StatusOr<std::optional<Mode>> Decode(const v1::ModeSelector& from,
                                           Compatibility compatibility) {
  switch (from.mode_case()) {
    case v1::ModeSelector::kName: {
      auto mode = Mode::Parse(from.name(), compatibility);
      if (!mode.ok()) {
        return WithField(std::move(mode).status(), "name");
      }
      return *mode;
    }
    case v1::ModeSelector::kDimension:
      return Mode::OfDimension(from.dimension());
    case v1::ModeSelector::MODE_NOT_SET:
      break;
  }
  return std::nullopt;
}

absl::StatusOr<Compatibility> Decode(v1::Compatibility from) {
  switch (from) {
    case v1::COMPATIBILITY_UNSPECIFIED:
      return Compatibility::kDefault;
    case v1::COMPATIBILITY_EXACT:
      return Compatibility::kExact;
    default:
      return InvalidArgument(Reason::kBadField,
                             StrCat("compatibility ", static_cast<int>(from),
                                    " is not known; leave it unset, or use EXACT"),
                             {{fact::kValue, static_cast<int>(from)}});
  }
}

absl::StatusOr<bool> DecodeIsStrict(v1::CorrectionPolicy from) {
  switch (from) {
    case v1::CORRECTION_POLICY_UNSPECIFIED:
    case v1::CORRECTION_POLICY_REPORT:
      return false;
    case v1::CORRECTION_POLICY_STRICT:
      return true;
    default:
      return InvalidArgument(Reason::kBadField,
                             StrCat("correction policy ", static_cast<int>(from),
                                    " is not known; use REPORT or STRICT"),
                             {{fact::kValue, static_cast<int>(from)}});
  }
}

void Encode(absl::Span<const int64_t> shape, google::protobuf::RepeatedField<int64_t>* to) {
  to->Add(shape.begin(), shape.end());
}

absl::StatusOr<Shape> DecodeShape(const google::protobuf::RepeatedField<int64_t>& from) {
  const absl::Span<const int64_t> sizes(from.data(), static_cast<size_t>(from.size()));
  SHARDMESH_RETURN_IF_ERROR(CheckShape(sizes));
  return Shape(sizes.begin(), sizes.end());
}

namespace {

// Returns the dimension; -1 if it is unset, which means the whole spec.
template <typename Wire>
absl::StatusOr<int64_t> DecodeDimension(const Wire& from) {
  if (!from.has_dimension()) return -1;
  if (from.dimension() >= 0 && from.dimension() < kMaxRank) return from.dimension();
  return BadField("dimension",
                  StrCat("dimension ", from.dimension(), " is not from 0 to ", kMaxRank - 1));
}

// Whether corrections of this reason have an actual and a required number (have and need).
bool HasFigures(Reason reason) {
  return reason == Reason::kNotDivisible || reason == Reason::kAxisNotInMesh ||
         reason == Reason::kRankTruncated || reason == Reason::kBelowMinSize;
}

}  // namespace

void Encode(const Correction& from, v1::Correction* to) {
  if (from.dim >= 0) to->set_dimension(static_cast<int32_t>(from.dim));
  Encode(from.requested, to->mutable_requested());
  to->set_reason(Encode(from.reason));
  // Also pass on have and need if this build does not know the reason.
  if (HasFigures(from.reason) || from.have != 0 || from.need != 0) {
    to->set_have(from.have);
    to->set_need(from.need);
  }
  to->set_message(from.ToString());
  to->mutable_absent_axes()->Add(from.absent_axes.begin(), from.absent_axes.end());
}

absl::StatusOr<Correction> Decode(const v1::Correction& from) {
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t dim, DecodeDimension(from));
  auto requested = DecodeSpecEntry(from.requested());
  if (!requested.ok()) {
    return WithField(std::move(requested).status(), "requested");
  }
  return Correction{
      dim,         *std::move(requested), Decode(from.reason()),
      from.have(), from.need(),           {from.absent_axes().begin(), from.absent_axes().end()}};
}

void Encode(const Fix& from, v1::Fix* to) {
  // The wire's enum has the same kinds in the same order; its 0 means "not set".
  static_assert(static_cast<int>(Fix::Kind::kAxisOrder) + 1 == v1::Fix::KIND_AXIS_ORDER);
  to->set_kind(static_cast<v1::Fix::Kind>(static_cast<int>(from.kind) + 1));
  if (from.dim >= 0) to->set_dimension(static_cast<int32_t>(from.dim));
  Encode(from.spec, to->mutable_spec());
  Encode(from.shape, to->mutable_shape());
  to->set_message(from.text);
  to->mutable_axes()->Add(from.axes.begin(), from.axes.end());
  to->set_size(from.size);
}

absl::StatusOr<Fix> Decode(const v1::Fix& from) {
  if (from.kind() == v1::Fix::KIND_UNSPECIFIED || !v1::Fix::Kind_IsValid(from.kind())) {
    return BadField("kind", StrCat("fix of unknown kind ", static_cast<int>(from.kind())));
  }
  Fix fix;
  fix.kind = static_cast<Fix::Kind>(static_cast<int>(from.kind()) - 1);
  SHARDMESH_ASSIGN_OR_RETURN(fix.dim, DecodeDimension(from));
  auto spec = Decode(from.spec());
  if (!spec.ok()) {
    return WithField(std::move(spec).status(), "spec");
  }
  fix.spec = *std::move(spec);
  auto shape = DecodeShape(from.shape());
  if (!shape.ok()) {
    return WithField(std::move(shape).status(), "shape");
  }
  fix.shape = *std::move(shape);
  fix.text = from.message();
  fix.axes.assign(from.axes().begin(), from.axes().end());
  fix.size = from.size();
  return fix;
}

void Encode(absl::Span<const LogicalRule> from, v1::LogicalRules* to) {
  for (const LogicalRule& rule : from) {
    v1::LogicalRule* added = to->add_rules();
    added->set_name(rule.name);
    Encode(rule.mesh_axes, added->mutable_value());
  }
}

absl::StatusOr<LogicalRules> Decode(const v1::LogicalRules& from) {
  if (from.rules_size() > kMaxLogicalRules) {
    return LimitExceeded("rules", "rules", from.rules_size(), kMaxLogicalRules);
  }
  LogicalRules rules;
  rules.reserve(static_cast<size_t>(from.rules_size()));
  for (int i = 0; i < from.rules_size(); ++i) {
    const v1::LogicalRule& rule = from.rules(i);
    const auto place = static_cast<size_t>(i);
    if (rule.name().size() > kMaxAxisNameBytes) {
      return WithField(LimitExceeded("name", "bytes", static_cast<int64_t>(rule.name().size()),
                                     static_cast<int64_t>(kMaxAxisNameBytes)),
                       "rules", place);
    }
    auto value = Decode(rule.value());
    if (!value.ok()) {
      return WithField(WithField(std::move(value).status(), "value"), "rules", place);
    }
    rules.push_back({rule.name(), *std::move(value)});
  }
  return rules;
}

void Encode(const ExplanationStep& from, v1::ExplanationStep* to) {
  // The wire's enum has the same kinds in the same order; its 0 means "not set".
  static_assert(static_cast<int>(ExplanationStep::Kind::kNearMiss) + 1 ==
                v1::ExplanationStep::KIND_NEAR_MISS);
  to->set_kind(static_cast<v1::ExplanationStep::Kind>(static_cast<int>(from.kind) + 1));
  if (from.dim >= 0) to->set_dimension(static_cast<int32_t>(from.dim));
  to->set_subject(from.subject);
  to->set_result(from.result);
}

absl::StatusOr<ExplanationStep> Decode(const v1::ExplanationStep& from) {
  if (from.kind() == v1::ExplanationStep::KIND_UNSPECIFIED ||
      !v1::ExplanationStep::Kind_IsValid(from.kind())) {
    return BadField("kind",
                    StrCat("explanation step of unknown kind ", static_cast<int>(from.kind())));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t dim, DecodeDimension(from));
  return ExplanationStep{static_cast<ExplanationStep::Kind>(static_cast<int>(from.kind()) - 1), dim,
                         from.subject(), from.result()};
}

void Encode(const Preset& from, v1::AxisPreset* to) {
  to->set_name(std::string(from.name));
  for (const AxisValue& axis : from.dynamic_axes.axes) {
    Encode(axis, to->add_axes());
  }
  Encode(from.dynamic_axes.mode, to->mutable_mode());
}

void Encode(const Tile& from, v1::Tile* to) {
  for (const IndexRange& range : from.ranges) {
    v1::IndexRange* added = to->add_ranges();
    added->set_start(range.start);
    added->set_stop(range.stop);
  }
}

absl::StatusOr<Tile> Decode(const v1::Tile& from) {
  if (from.ranges_size() > kMaxRank) {
    return LimitExceeded("ranges", "ranges in a tile", from.ranges_size(), kMaxRank);
  }
  Tile tile;
  for (int i = 0; i < from.ranges_size(); ++i) {
    const IndexRange range{from.ranges(i).start(), from.ranges(i).stop()};
    if (range.start < 0 || range.stop < range.start) {
      return WithField(
          WithReason(absl::InvalidArgumentError(StrCat("index range [", range.start, ", ",
                                                       range.stop, ") needs 0 <= start <= stop")),
                     Reason::kBadTile, {{fact::kHave, StrCat(range.start, ":", range.stop)}}),
          "ranges", static_cast<size_t>(i));
    }
    tile.ranges.push_back(range);
  }
  return tile;
}

v1::UnevenCuts Encode(UnevenCuts from) {
  switch (from) {
    case UnevenCuts::kEqualOnly:
      return v1::UNEVEN_CUTS_EQUAL_ONLY;
    case UnevenCuts::kCeilChunks:
      return v1::UNEVEN_CUTS_CEIL_CHUNKS;
    case UnevenCuts::kByWeights:
      return v1::UNEVEN_CUTS_BY_WEIGHTS;
    case UnevenCuts::kByMemory:
      return v1::UNEVEN_CUTS_BY_MEMORY;
    case UnevenCuts::kBySpeed:
      return v1::UNEVEN_CUTS_BY_SPEED;
  }
  return v1::UNEVEN_CUTS_UNSPECIFIED;
}

absl::StatusOr<UnevenCuts> DecodeUnevenCuts(v1::UnevenCuts from, bool has_weights,
                                            bool has_cut_points) {
  if (has_weights && from != v1::UNEVEN_CUTS_BY_WEIGHTS) {
    return BadField("weights",
                    "are set, and `uneven` is another rule than BY_WEIGHTS; set it to BY_WEIGHTS, "
                    "or leave the weights out");
  }
  if (has_cut_points && from != v1::UNEVEN_CUTS_UNSPECIFIED && from != v1::UNEVEN_CUTS_EQUAL_ONLY) {
    return BadField("cut_points", "are given beside a rule in `uneven`; give one of them");
  }
  switch (from) {
    case v1::UNEVEN_CUTS_UNSPECIFIED:
    case v1::UNEVEN_CUTS_EQUAL_ONLY:
      return UnevenCuts::kEqualOnly;
    case v1::UNEVEN_CUTS_CEIL_CHUNKS:
      return UnevenCuts::kCeilChunks;
    case v1::UNEVEN_CUTS_BY_WEIGHTS:
      return UnevenCuts::kByWeights;
    case v1::UNEVEN_CUTS_BY_MEMORY:
      return UnevenCuts::kByMemory;
    case v1::UNEVEN_CUTS_BY_SPEED:
      return UnevenCuts::kBySpeed;
    default:
      return BadField("uneven", StrCat(static_cast<int>(from), " is no rule for uneven cuts"));
  }
}

void Encode(absl::Span<const CutPoints> from,
            google::protobuf::RepeatedPtrField<v1::CutPoints>* to) {
  for (size_t dim = 0; dim < from.size(); ++dim) {
    if (from[dim].empty()) {
      continue;
    }
    v1::CutPoints* added = to->Add();
    added->set_dimension(static_cast<int32_t>(dim));
    // The message omits the first and last points, which are 0 and the extent.
    for (size_t i = 1; i + 1 < from[dim].size(); ++i) {
      added->add_starts(from[dim][i]);
    }
  }
}

absl::StatusOr<std::vector<CutPoints>> DecodeCutPoints(
    const google::protobuf::RepeatedPtrField<v1::CutPoints>& from,
    absl::Span<const int64_t> shape) {
  std::vector<CutPoints> cut_points;
  if (from.empty()) {
    return cut_points;
  }
  const auto invalid = [&from](int index, std::string_view message) {
    return WithField(InvalidArgument(Reason::kInvalidCutPoints, message,
                                     {{fact::kDimension, from[index].dimension()},
                                      {fact::kValue, StrJoin(from[index].starts(), ",")}}),
                     "cut_points", static_cast<size_t>(index));
  };
  cut_points.resize(shape.size());
  for (int i = 0; i < from.size(); ++i) {
    const int32_t dim = from[i].dimension();
    if (dim < 0 || static_cast<size_t>(dim) >= shape.size()) {
      return invalid(i, StrCat("cut points of dimension ", dim, "; the tensor has ", shape.size(),
                               " dimensions"));
    }
    CutPoints& points = cut_points[static_cast<size_t>(dim)];
    if (!points.empty()) {
      return invalid(i, StrCat("dimension ", dim, " has cut points twice"));
    }
    const int64_t extent = shape[static_cast<size_t>(dim)];
    points.reserve(static_cast<size_t>(from[i].starts_size()) + 2);
    points.push_back(0);
    for (const int64_t start : from[i].starts()) {
      if (start < points.back() || start > extent) {
        return invalid(
            i, StrCat("cut point ", start, " of dimension ", dim, " is below ", points.back(),
                      ", the point before it, or beyond the extent, ", extent));
      }
      points.push_back(start);
    }
    points.push_back(extent);
  }
  return cut_points;
}

}  // namespace shardmesh::rpc
