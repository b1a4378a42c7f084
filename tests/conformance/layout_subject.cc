// Decodes the questions about layouts, asks, and encodes the answers.
#include "tests/conformance/layout_subject.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>
#include <utility>

#include "absl/strings/str_split.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/dtype.h"
#include "tests/testing/golden.h"

namespace shardmesh::conformance {
namespace {

using ::shardmesh::test::ArrayMeans;
using ::shardmesh::test::DecodeAxisValue;
using ::shardmesh::test::DecodeMesh;
using ::shardmesh::test::DecodeShape;
using ::shardmesh::test::DecodeSpec;
using ::shardmesh::test::EncodeAxisValue;
using ::shardmesh::test::EncodeSpec;
using ::shardmesh::test::ThrowWrongForm;

absl::StatusOr<PartitionAxis> DecodeProfile(const Json& overrides) {
  std::vector<FieldValue> fields;
  for (const auto& [field, value] : overrides.items()) {
    fields.push_back({field, DecodeAxisValue(value)});
  }
  return PartitionAxis::Create(fields);
}

// One semantic axis. Python takes any object there and looks it up; a number or a boolean, which
// AxisValue cannot hold, is asked as the name that Python prints for it, just as unknown.
AxisValue DecodeAxis(const Json& axis) {
  if (axis.is_boolean()) return AxisValue::Name(axis.get<bool>() ? "True" : "False");
  if (axis.is_number()) return AxisValue::Name(axis.dump());
  return DecodeAxisValue(axis, ArrayMeans::kList);
}

// The sequence of axes. Of Python's other arguments a string is the sequence of its characters, an
// instance of dynamic axes that of its two fields, and None none at all: what is asked of a subject
// is a sequence, so that refusal is made here.
absl::StatusOr<std::vector<AxisValue>> DecodeAxes(const Json& axes) {
  std::vector<AxisValue> decoded;
  if (axes.is_null()) {
    return InvalidArgument(Reason::kInvalidAxisValue, "None is no sequence", "TypeError");
  }
  if (axes.is_string()) {
    for (const char character : axes.get<std::string>()) {
      decoded.push_back(AxisValue::Name(std::string(1, character)));
    }
    return decoded;
  }
  if (axes.is_object()) {
    const Json& instance = axes.at("instance");
    return std::vector<AxisValue>{DecodeAxis(instance.at("axes")), DecodeAxis(instance.at("mode"))};
  }
  if (!axes.is_array()) {
    ThrowWrongForm("axes are an array, a string, an instance or null");
  }
  for (const Json& axis : axes) decoded.push_back(DecodeAxis(axis));
  return decoded;
}

// The mode of a profile's own functions, which know no dimensions: there whatever is not a
// generation mode's name acts as train.
RuntimeMode DecodeRuntimeMode(const Json& mode) {
  if (!mode.is_string()) return RuntimeMode::kTrain;
  return *Mode::Parse(mode.get<std::string>(), Compatibility::kExact)->Resolve(std::nullopt);
}

// A partition manager's mode. A boolean is an integer in Python.
Mode DecodeMode(const Json& mode) {
  if (mode.is_boolean()) return Mode::OfDimension(mode.get<bool>() ? 1 : 0);
  if (mode.is_number_integer()) return Mode::OfDimension(mode.get<int64_t>());
  return DecodeRuntimeMode(mode);
}

// Arguments of a profile's own functions.
absl::StatusOr<LogicalArguments> DecodeProfileArguments(const Json& input) {
  LogicalArguments arguments;
  SHARDMESH_ASSIGN_OR_RETURN(arguments.profile, DecodeProfile(input.at("overrides")));
  SHARDMESH_ASSIGN_OR_RETURN(arguments.axes, DecodeAxes(input.at("axes")));
  arguments.mode = DecodeRuntimeMode(input.at("mode"));
  return arguments;
}

// Arguments of a partition manager's functions.
absl::StatusOr<LogicalArguments> DecodeManagerArguments(const Json& input) {
  LogicalArguments arguments;
  SHARDMESH_ASSIGN_OR_RETURN(arguments.profile, DecodeProfile(input.at("overrides")));
  if (input.contains("preset")) {
    arguments.preset = input.at("preset").get<std::string>();
  }
  if (input.contains("dynamic_axes")) {
    const Json& given = input.at("dynamic_axes");
    if (given.is_string()) {
      arguments.preset = given.get<std::string>();
    } else if (!given.is_null()) {
      DynamicAxes& dynamic_axes = arguments.dynamic_axes.emplace();
      SHARDMESH_ASSIGN_OR_RETURN(dynamic_axes.axes, DecodeAxes(given.at("axes")));
      dynamic_axes.mode = DecodeMode(given.at("mode"));
    }
  }
  if (input.contains("axes")) {
    const Json& given = input.at("axes");
    if (given.is_object() && given.contains("preset")) {
      // A preset in the place of axes is the dynamic axes, and no axes are given.
      arguments.preset = given.at("preset").get<std::string>();
      arguments.dynamic_axes.reset();
    } else {
      SHARDMESH_ASSIGN_OR_RETURN(arguments.axes, DecodeAxes(given));
    }
  }
  if (input.contains("mode")) arguments.mode = DecodeMode(input.at("mode"));
  if (input.contains("shape")) arguments.shape = DecodeShape(input.at("shape"));
  return arguments;
}

Json EncodeShape(absl::Span<const int64_t> shape) {
  Json encoded = Json::array();
  for (const int64_t extent : shape) encoded.push_back(extent);
  return encoded;
}

Json EncodeTiles(absl::Span<const client::DeviceTile> tiles) {
  Json encoded = Json::array();
  for (const client::DeviceTile& tile : tiles) {
    Json ranges = Json::array();
    for (const IndexRange& range : tile.tile.ranges) ranges.push_back({range.start, range.stop});
    encoded.push_back(std::move(ranges));
  }
  return encoded;
}

// Every device of a mesh. An answer that lists more tiles than this fits no line.
absl::StatusOr<std::vector<DeviceId>> AllDevices(const Mesh& mesh) {
  constexpr int64_t kMaxListed = int64_t{1} << 20;
  if (mesh.size() > kMaxListed) {
    return InvalidArgument(
        Reason::kLimitExceeded,
        StrCat("tiles of ", mesh.size(), " devices are asked for; at most ", kMaxListed));
  }
  std::vector<DeviceId> devices(static_cast<size_t>(mesh.size()));
  std::iota(devices.begin(), devices.end(), DeviceId{0});
  return devices;
}

// JAX on CPU does not constrain arrays without elements, so there an array's own spec afterwards,
// else always the constraint, is not recorded.
bool HasElements(const Shape& shape) {
  return std::find(shape.begin(), shape.end(), 0) == shape.end();
}

Json EncodeConstraint(const std::optional<PartitionSpec>& constraint) {
  return constraint.has_value() ? EncodeSpec(*constraint) : Json();
}

// NumPy's names of element types.
absl::StatusOr<Dtype> DecodeDtype(std::string_view name) {
  static constexpr std::array<std::pair<std::string_view, Dtype>, 15> kNames = {{
      {"bool", Dtype::kBool},
      {"int8", Dtype::kI8},
      {"uint8", Dtype::kU8},
      {"int16", Dtype::kI16},
      {"uint16", Dtype::kU16},
      {"int32", Dtype::kI32},
      {"uint32", Dtype::kU32},
      {"int64", Dtype::kI64},
      {"uint64", Dtype::kU64},
      {"float16", Dtype::kF16},
      {"bfloat16", Dtype::kBF16},
      {"float32", Dtype::kF32},
      {"float64", Dtype::kF64},
      {"float8_e4m3fn", Dtype::kF8E4M3Fn},
      {"float8_e5m2", Dtype::kF8E5M2},
  }};
  for (const auto& [known, dtype] : kNames) {
    if (known == name) return dtype;
  }
  return InvalidArgument(Reason::kUnknownDtype, StrCat("no element type ", PythonRepr(name)),
                         "TypeError");
}

absl::StatusOr<Json> ResolveCorrectPlace(const LayoutSubject& subject, const Json& input) {
  SHARDMESH_ASSIGN_OR_RETURN(const LogicalArguments arguments, DecodeManagerArguments(input));
  SHARDMESH_ASSIGN_OR_RETURN(const Mesh mesh, DecodeMesh(input.at("mesh")));
  const Shape shape = DecodeShape(input.at("shape"));
  SHARDMESH_ASSIGN_OR_RETURN(const client::SpecAnswer resolved,
                             subject.ResolveSpec(arguments, mesh));
  if (mesh.empty()) {  // nothing to correct against, which is an error here
    SHARDMESH_RETURN_IF_ERROR(subject.CorrectSpec(resolved.requested, shape, mesh).status());
  }
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<DeviceId> devices, AllDevices(mesh));
  SHARDMESH_ASSIGN_OR_RETURN(const client::TilingAnswer tiling,
                             subject.DescribeTiling(resolved.effective, shape, mesh, devices));
  return Json{{"resolved", EncodeSpec(resolved.requested)},
              {"corrected", EncodeSpec(resolved.effective)},
              {"shard_shape", EncodeShape(tiling.shard_shape)},
              {"tiles", EncodeTiles(tiling.tiles)}};
}

// A tree is flattened by the keys of its levels, in their order.
bool ComesFirst(const client::TreeTensor& a, const client::TreeTensor& b) {
  return std::vector<std::string>(absl::StrSplit(a.name, '/')) <
         std::vector<std::string>(absl::StrSplit(b.name, '/'));
}

// What a rule list makes of a model, tensor by tensor: the rule's spec, the corrected one, and what
// one device holds.
absl::StatusOr<Json> PlanModel(const LayoutSubject& subject, const Json& input) {
  SHARDMESH_ASSIGN_OR_RETURN(const Mesh mesh, DecodeMesh(input.at("mesh")));
  SHARDMESH_ASSIGN_OR_RETURN(const Dtype dtype, DecodeDtype(input.at("dtype").get<std::string>()));
  RuleSetOptions options;
  options.defer_pattern_errors = true;
  const Json& min_size = input.at("min_size");
  options.min_size = min_size.is_null() ? std::optional<int64_t>() : test::DecodeInteger(min_size);
  std::vector<Rule> decoded;
  for (const Json& rule : input.at("rules")) {
    SHARDMESH_ASSIGN_OR_RETURN(PartitionSpec spec, DecodeSpec(rule.at(1)));
    decoded.push_back({rule.at(0).get<std::string>(), std::move(spec)});
  }
  SHARDMESH_ASSIGN_OR_RETURN(const RuleSet rules, RuleSet::Create(std::move(decoded), options));
  std::vector<client::TreeTensor> tensors;
  for (const Json& param : input.at("params")) {
    tensors.push_back({.name = param.at(0).get<std::string>(),
                       .shape = DecodeShape(param.at(1)),
                       .dtype = dtype});
  }
  std::sort(tensors.begin(), tensors.end(), ComesFirst);

  SHARDMESH_ASSIGN_OR_RETURN(const client::TreeAnswer matched,
                             subject.ResolveTree(rules, tensors, std::nullopt));
  SHARDMESH_ASSIGN_OR_RETURN(const client::TreeAnswer placed,
                             subject.ResolveTree(rules, tensors, mesh));
  Json params = Json::array();
  int64_t elements = 0;
  int64_t elements_per_device = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const client::TreeTensor& tensor = tensors[i];
    const PartitionSpec& wanted = matched.specs.at(matched.placements.at(i).spec_index).effective;
    const PartitionSpec& effective = placed.specs.at(placed.placements.at(i).spec_index).effective;
    SHARDMESH_ASSIGN_OR_RETURN(const client::TilingAnswer tiling,
                               subject.DescribeTiling(effective, tensor.shape, mesh, {}));
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t whole, ElementCount(tensor.shape));
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t held, ElementCount(tiling.shard_shape));
    elements += whole;
    elements_per_device += held;
    params.push_back(
        {tensor.name, EncodeSpec(wanted), EncodeSpec(effective), EncodeShape(tiling.shard_shape)});
  }
  return Json{{"params", std::move(params)},
              {"elements_total", elements},
              {"elements_per_device", elements_per_device},
              {"bytes_per_device", placed.report.layout.most_device_bytes},
              {"bytes_total", placed.report.layout.bytes},
              {"devices", placed.report.devices}};
}

absl::StatusOr<Json> PlaceNamedSharding(const LayoutSubject& subject, const Json& input) {
  SHARDMESH_ASSIGN_OR_RETURN(const Mesh mesh, DecodeMesh(input.at("mesh")));
  SHARDMESH_ASSIGN_OR_RETURN(const PartitionSpec spec, DecodeSpec(input.at("spec")));
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<DeviceId> devices, AllDevices(mesh));
  SHARDMESH_ASSIGN_OR_RETURN(
      const client::TilingAnswer tiling,
      subject.DescribeTiling(spec, DecodeShape(input.at("shape")), mesh, devices));
  Json replica_ids = Json::array();
  for (const client::DeviceTile& tile : tiling.tiles) replica_ids.push_back(tile.replica_id);
  return Json{{"shard_shape", EncodeShape(tiling.shard_shape)},
              {"fully_replicated", tiling.fully_replicated},
              {"distinct_tiles", tiling.distinct_tiles},
              {"tiles", EncodeTiles(tiling.tiles)},
              {"replica_ids", std::move(replica_ids)}};
}

absl::StatusOr<Json> GetCorrectedNamedSharding(const LayoutSubject& subject, const Json& input) {
  SHARDMESH_ASSIGN_OR_RETURN(const Mesh mesh, DecodeMesh(input.at("mesh")));
  SHARDMESH_ASSIGN_OR_RETURN(const PartitionSpec spec, DecodeSpec(input.at("spec")));
  const absl::StatusOr<PartitionSpec> corrected =
      subject.CorrectSpec(spec, DecodeShape(input.at("shape")), mesh);
  // A Python caller may have the missing mesh answered with P() on an empty one.
  if (!corrected.ok() && ReasonOf(corrected.status()) == Reason::kNoMesh &&
      !input.value("raise_mesh_error", true)) {
    return Json{{"spec", Json::array()}, {"mesh_empty", true}};
  }
  SHARDMESH_RETURN_IF_ERROR(corrected.status());
  return Json{{"spec", EncodeSpec(*corrected)}, {"mesh_empty", mesh.empty()}};
}

// What a manager does to an array: `constraint` is the spec that the array is constrained to.
absl::StatusOr<Json> Shard(const LayoutSubject& subject, const Json& input) {
  SHARDMESH_ASSIGN_OR_RETURN(const LogicalArguments arguments, DecodeManagerArguments(input));
  SHARDMESH_ASSIGN_OR_RETURN(const Mesh mesh, DecodeMesh(input.at("mesh")));
  SHARDMESH_ASSIGN_OR_RETURN(
      const client::ConstraintAnswer sharding,
      subject.ApplyLogicalSharding(arguments, mesh, input.at("auto_correct").get<bool>()));
  Json answer{{"resolved", EncodeSpec(sharding.requested)},
              {"constraint", EncodeConstraint(sharding.constraint)}};
  if (HasElements(DecodeShape(input.at("shape")))) answer["result_spec"] = answer["constraint"];
  return answer;
}

absl::StatusOr<Json> WithShardingConstraint(const LayoutSubject& subject, const Json& input) {
  if (input.contains("sharding_python_type")) {
    // A subject takes a spec alone; another Python object is refused here.
    return InvalidArgument(Reason::kBadField, "not a partition spec", "TypeError");
  }
  SHARDMESH_ASSIGN_OR_RETURN(const Mesh mesh, DecodeMesh(input.at("mesh")));
  SHARDMESH_ASSIGN_OR_RETURN(const PartitionSpec spec, DecodeSpec(input.at("spec")));
  const Shape shape = DecodeShape(input.at("shape"));
  SHARDMESH_ASSIGN_OR_RETURN(const client::ConstraintAnswer answer,
                             subject.Constrain(spec, shape, mesh));
  Json encoded{{"constraint", EncodeConstraint(answer.constraint)},
               {"unchanged", !answer.constraint.has_value()}};
  if (!answer.constraint.has_value() || HasElements(shape)) {
    encoded["result_spec"] = encoded["constraint"];
  }
  return encoded;
}

// Each leaf for itself. Leaves that are no arrays of the library's, such as numbers and NumPy's
// arrays, are left alone.
absl::StatusOr<Json> ConstrainTree(const LayoutSubject& subject, const Json& input) {
  SHARDMESH_ASSIGN_OR_RETURN(const Mesh mesh, DecodeMesh(input.at("mesh")));
  SHARDMESH_ASSIGN_OR_RETURN(const PartitionSpec spec, DecodeSpec(input.at("spec")));
  Json answer = Json::object();
  for (const auto& [name, leaf] : input.at("tree").items()) {
    if (leaf.at("kind") != "jax") {
      answer[name] = "unchanged";
      continue;
    }
    SHARDMESH_ASSIGN_OR_RETURN(const client::ConstraintAnswer constrained,
                               subject.Constrain(spec, DecodeShape(leaf.at("shape")), mesh));
    answer[name] = EncodeConstraint(constrained.constraint);
  }
  return answer;
}

absl::StatusOr<Json> IsEquivalentTo(const LayoutSubject& subject, const Json& input) {
  SHARDMESH_ASSIGN_OR_RETURN(const Mesh mesh, DecodeMesh(input.at("mesh")));
  SHARDMESH_ASSIGN_OR_RETURN(const PartitionSpec a, DecodeSpec(input.at("a")));
  SHARDMESH_ASSIGN_OR_RETURN(const PartitionSpec b, DecodeSpec(input.at("b")));
  SHARDMESH_ASSIGN_OR_RETURN(
      const client::Comparison comparison,
      subject.CompareSpecs(a, b, mesh, test::DecodeInteger(input.at("ndim"))));
  // On one mesh two shardings are equal exactly if their specs are.
  return Json{{"equal", comparison.equal},
              {"spec_equal", comparison.equal},
              {"equivalent", comparison.equivalent},
              {"replicated", {comparison.a_fully_replicated, comparison.b_fully_replicated}}};
}

}  // namespace

void AddLayoutQuestions(std::shared_ptr<const LayoutSubject> subject, Questions* questions) {
  const auto add = [&](std::string_view name, const auto& ask) {
    (*questions)[std::string(name)] = [subject, ask](const Json& input) {
      return ask(*subject, input);
    };
  };
  add("resolve_spec", [](const LayoutSubject& asked, const Json& input) -> absl::StatusOr<Json> {
    SHARDMESH_ASSIGN_OR_RETURN(const LogicalArguments arguments, DecodeProfileArguments(input));
    SHARDMESH_ASSIGN_OR_RETURN(const client::SpecAnswer answer,
                               asked.ResolveSpec(arguments, Mesh()));
    return EncodeSpec(answer.requested);
  });
  add("resolve", [](const LayoutSubject& asked, const Json& input) -> absl::StatusOr<Json> {
    SHARDMESH_ASSIGN_OR_RETURN(const LogicalArguments arguments, DecodeManagerArguments(input));
    SHARDMESH_ASSIGN_OR_RETURN(const client::SpecAnswer answer,
                               asked.ResolveSpec(arguments, Mesh()));
    return EncodeSpec(answer.requested);
  });
  add("get_corrected_named_sharding", GetCorrectedNamedSharding);
  add("named_sharding", PlaceNamedSharding);
  add("resolve_correct_place", ResolveCorrectPlace);
  add("model_plan", PlanModel);
  add("resolve_axis", [](const LayoutSubject& asked, const Json& input) -> absl::StatusOr<Json> {
    SHARDMESH_ASSIGN_OR_RETURN(const LogicalArguments arguments, DecodeProfileArguments(input));
    SHARDMESH_ASSIGN_OR_RETURN(
        std::vector<AxisValue> values,
        asked.ResolveAxes(arguments.profile, *arguments.axes, *arguments.mode));
    return EncodeAxisValue(AxisValue::List(std::move(values)));
  });
  add("shard", Shard);
  add("apply_logical_sharding", Shard);
  add("with_sharding_constraint", WithShardingConstraint);
  add("with_sharding_constraint_tree", ConstrainTree);
  add("is_equivalent_to", IsEquivalentTo);
}

}  // namespace shardmesh::conformance
