// The Python original's answers about profiles, semantic axes, presets and the layout of one array,
// line by line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "sharding/logical_sharding.h"
#include "sharding/mode.h"
#include "sharding/partition_axis.h"
#include "sharding/presets.h"
#include "sharding/reason.h"
#include "sharding/rule_set.h"
#include "sharding/semantic_axis.h"
#include "sharding/status_macros.h"
#include "tests/testing/golden.h"
#include "tests/testing/sharding_printers.h"

namespace shardmesh::test {
namespace {

using ::testing::UnorderedElementsAreArray;

constexpr Compatibility kExact = Compatibility::kExact;

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
// instance of dynamic axes that of its two fields, and None none at all: what our functions take is
// a sequence, so that refusal is made here.
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
  for (const Json& axis : axes) decoded.push_back(DecodeAxis(axis));
  return decoded;
}

// The mode of a profile's own functions, which know no dimensions: there whatever is not a
// generation mode's name acts as train.
RuntimeMode DecodeRuntimeMode(const Json& mode) {
  if (!mode.is_string()) return RuntimeMode::kTrain;
  return *Mode::Parse(mode.get<std::string>(), kExact)->Resolve(std::nullopt);
}

// A partition manager's mode. A boolean is an integer in Python.
Mode DecodeMode(const Json& mode) {
  if (mode.is_boolean()) return Mode::OfDimension(mode.get<bool>() ? 1 : 0);
  if (mode.is_number_integer()) return Mode::OfDimension(mode.get<int64_t>());
  return DecodeRuntimeMode(mode);
}

// Owns what a LogicalQuestion views.
struct ManagerArguments {
  std::vector<AxisValue> axes;
  DynamicAxes dynamic_axes;
  Shape shape;
  LogicalQuestion question;

  absl::Status Decode(const Json& input) {
    question.compatibility = kExact;
    const auto use_preset = [&](const std::string& name) -> absl::Status {
      SHARDMESH_ASSIGN_OR_RETURN(const Preset* preset, FindPreset(name));
      question.dynamic_axes = &preset->dynamic_axes;
      return absl::OkStatus();
    };
    if (input.contains("dynamic_axes")) {
      const Json& given = input.at("dynamic_axes");
      if (given.is_string()) {
        SHARDMESH_RETURN_IF_ERROR(use_preset(given));
      } else {
        SHARDMESH_ASSIGN_OR_RETURN(dynamic_axes.axes, DecodeAxes(given.at("axes")));
        dynamic_axes.mode = DecodeMode(given.at("mode"));
        question.dynamic_axes = &dynamic_axes;
      }
    }
    if (input.contains("axes")) {
      const Json& given = input.at("axes");
      if (given.is_object() && given.contains("preset")) {
        // A preset in the place of axes is the dynamic axes, and no axes are given.
        SHARDMESH_RETURN_IF_ERROR(use_preset(given.at("preset")));
      } else {
        SHARDMESH_ASSIGN_OR_RETURN(axes, DecodeAxes(given));
        question.axes = axes;
      }
    }
    if (input.contains("mode")) question.mode = DecodeMode(input.at("mode"));
    if (input.contains("shape")) {
      shape = DecodeShape(input.at("shape"));
      question.shape = shape;
    }
    return absl::OkStatus();
  }
};

// Every function of a file is asked, or left out for a reason.
void ExpectFunctions(std::string_view file, const std::vector<std::string>& asked,
                     const std::map<std::string, std::string>& left_out) {
  std::map<std::string, int64_t> found;
  for (const Golden& golden : LoadGoldens(file)) ++found[golden.fn];
  std::vector<std::string> functions;
  for (const auto& [function, count] : found) functions.push_back(function);
  std::vector<std::string> expected = asked;
  for (const auto& [function, reason] : left_out) {
    expected.push_back(function);
    std::cout << "left out: " << found[function] << " lines of " << function << " (" << reason
              << ")\n";
  }
  EXPECT_THAT(functions, UnorderedElementsAreArray(expected));
}

TEST(ProfileGoldenTest, AsksEveryFunctionOrSaysWhyNot) {
  ExpectFunctions("resolve.jsonl", {"resolve_axis", "resolve_spec"}, {});
  const std::string conformance = "asked by the conformance runner";
  ExpectFunctions("manager.jsonl", {"resolve", "shard", "apply_logical_sharding"},
                  {{"partition_manager", conformance}, {"partition_manager_repr", conformance}});
}

TEST(ProfileGoldenTest, ResolvesAxes) {
  ExpectGoldens(
      "resolve.jsonl", "resolve_axis", 469, [](const Json& input) -> absl::StatusOr<Json> {
        SHARDMESH_ASSIGN_OR_RETURN(const PartitionAxis profile,
                                   DecodeProfile(input.at("overrides")));
        SHARDMESH_ASSIGN_OR_RETURN(const std::vector<AxisValue> axes, DecodeAxes(input.at("axes")));
        SHARDMESH_ASSIGN_OR_RETURN(
            const std::vector<AxisValue> values,
            profile.ResolveAxis(axes, DecodeRuntimeMode(input.at("mode")), kExact));
        return EncodeAxisValue(AxisValue::List(values));
      });
}

TEST(ProfileGoldenTest, ResolvesSpecs) {
  ExpectGoldens(
      "resolve.jsonl", "resolve_spec", 765, [](const Json& input) -> absl::StatusOr<Json> {
        SHARDMESH_ASSIGN_OR_RETURN(const PartitionAxis profile,
                                   DecodeProfile(input.at("overrides")));
        SHARDMESH_ASSIGN_OR_RETURN(const std::vector<AxisValue> axes, DecodeAxes(input.at("axes")));
        SHARDMESH_ASSIGN_OR_RETURN(
            const PartitionSpec spec,
            profile.ResolveSpec(axes, DecodeRuntimeMode(input.at("mode")), kExact));
        return EncodeSpec(spec);
      });
}

TEST(ProfileGoldenTest, ResolvesAsAManagerDoes) {
  ExpectGoldens("manager.jsonl", "resolve", 480, [](const Json& input) -> absl::StatusOr<Json> {
    SHARDMESH_ASSIGN_OR_RETURN(const PartitionAxis profile, DecodeProfile(input.at("overrides")));
    ManagerArguments arguments;
    SHARDMESH_RETURN_IF_ERROR(arguments.Decode(input));
    SHARDMESH_ASSIGN_OR_RETURN(const PartitionSpec spec, ResolveSpec(profile, arguments.question));
    return EncodeSpec(spec);
  });
}

// What a manager does to an array: `constraint` is the spec that the array is constrained to.
absl::StatusOr<Json> Shard(const Json& input) {
  SHARDMESH_ASSIGN_OR_RETURN(const PartitionAxis profile, DecodeProfile(input.at("overrides")));
  SHARDMESH_ASSIGN_OR_RETURN(const Mesh mesh, DecodeMesh(input.at("mesh")));
  ManagerArguments arguments;
  SHARDMESH_RETURN_IF_ERROR(arguments.Decode(input));
  SHARDMESH_ASSIGN_OR_RETURN(const LogicalSharding sharding,
                             ApplyLogicalSharding(profile, arguments.question, mesh,
                                                  input.at("auto_correct").get<bool>()));
  Json answer{{"resolved", EncodeSpec(sharding.requested)}, {"constraint", nullptr}};
  if (sharding.constraint.has_value()) answer["constraint"] = EncodeSpec(*sharding.constraint);
  // JAX on CPU does not constrain arrays without elements, so there the array's own spec
  // afterwards, else always the constraint, is not recorded.
  bool has_elements = true;
  for (const int64_t extent : arguments.shape) has_elements = has_elements && extent != 0;
  if (has_elements) answer["result_spec"] = answer["constraint"];
  return answer;
}

TEST(ProfileGoldenTest, LaysOutAnArrayAsAManagerDoes) {
  ExpectGoldens("manager.jsonl", "shard", 268, Shard);
  ExpectGoldens("manager.jsonl", "apply_logical_sharding", 15, Shard);
}

TEST(PresetGoldenTest, HasEveryPresetOfTheOriginal) {
  const Json document = LoadGoldenDocument("presets.json");
  Json presets = Json::array();
  for (const Preset& preset : Presets()) {
    const Mode& mode = preset.dynamic_axes.mode;
    Json entry{{"name", std::string(preset.name)},
               {"axes", EncodeAxisValue(AxisValue::List(preset.dynamic_axes.axes))}};
    if (const std::optional<int64_t> dimension = mode.dimension()) {
      entry["mode"] = *dimension;
      entry["mode_type"] = "int";
    } else {
      entry["mode"] = mode.ToString();
      entry["mode_type"] = "str";
    }
    presets.push_back(entry);
  }
  EXPECT_EQ(presets, document.at("presets"));
  for (const Json& preset : document.at("presets")) {
    EXPECT_TRUE(FindPreset(preset.at("name").get<std::string>()).ok()) << preset;
  }
}

TEST(PresetGoldenTest, HasTheNamesAndModesOfTheOriginal) {
  Json document = LoadGoldenDocument("presets.json");

  std::vector<std::string> semantic_names;
  for (const SemanticName& name : BuiltInSemanticNames()) semantic_names.emplace_back(name.name);
  std::vector<std::string> expected_names;
  for (const Json& name : document.at("semantic_axes")) expected_names.push_back(name);
  EXPECT_THAT(semantic_names, UnorderedElementsAreArray(expected_names));
  for (const Json& aliased : document.at("aliases")) {
    EXPECT_THAT(semantic_names, ::testing::Contains(aliased.get<std::string>()));
  }

  const std::map<std::string, RuntimeMode> modes = {{"MODE_DECODE", RuntimeMode::kAutoregressive},
                                                    {"MODE_PREFILL", RuntimeMode::kPrefill},
                                                    {"MODE_TRAIN", RuntimeMode::kTrain},
                                                    {"MODE_INSERT", RuntimeMode::kInsert}};
  std::vector<std::string> mode_names;
  std::vector<std::string> generation_names;
  for (const auto& [constant, mode] : modes) {
    const std::string name(RuntimeModeName(mode));
    EXPECT_EQ(document.at("modes").at(constant), name);
    mode_names.push_back(name);
    if (IsGeneration(mode)) generation_names.push_back(name);
  }
  EXPECT_EQ(document.at("modes").size(), modes.size());
  EXPECT_THAT(document.at("runtime_modes").get<std::vector<std::string>>(),
              UnorderedElementsAreArray(mode_names));
  EXPECT_THAT(document.at("generation_modes").get<std::vector<std::string>>(),
              UnorderedElementsAreArray(generation_names));

  EXPECT_EQ(document.at("min_sharding_size_default"), RuleSet::kDefaultMinSize);

  // Left out: the value that attention masks are filled with, which belongs to models' code.
  for (const char* asked :
       {"presets", "semantic_axes", "aliases", "modes", "runtime_modes", "generation_modes",
        "min_sharding_size_default", "default_mask_value", "default_mask_value_repr"}) {
    EXPECT_EQ(document.erase(asked), 1U) << asked;
  }
  EXPECT_TRUE(document.empty()) << document;
}

}  // namespace
}  // namespace shardmesh::test
