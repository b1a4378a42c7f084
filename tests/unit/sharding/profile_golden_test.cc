// The Python original's answers about profiles, semantic axes and presets, line by line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
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

absl::StatusOr<PartitionAxis> DecodeProfile(const Json& overrides) {
  std::vector<FieldValue> fields;
  for (const auto& [field, value] : overrides.items()) {
    fields.push_back({field, DecodeAxisValue(value)});
  }
  return PartitionAxis::Create(fields);
}

TEST(ProfileGoldenTest, ResolvesFields) {
  int64_t asked = 0;
  for (const Golden& golden : LoadGoldens("partition_axis.jsonl")) {
    if (golden.fn != "partition_axis") continue;
    ++asked;
    const absl::StatusOr<PartitionAxis> profile = DecodeProfile(golden.input.at("overrides"));
    if (!golden.expect.has_value()) {
      EXPECT_EQ(PythonTypeOf(profile.status()), golden.py_type) << golden.id << golden.input;
      continue;
    }
    ASSERT_TRUE(profile.ok()) << golden.id << golden.input << profile.status();
    // Beside the fields there are hashes.
    const Json& fields = golden.expect->at("fields");
    EXPECT_EQ(fields.size(), AxisFieldNames().size()) << golden.id;
    for (const auto& [name, value] : fields.items()) {
      const std::optional<AxisField> field = FindAxisField(name);
      ASSERT_TRUE(field.has_value()) << golden.id << name;
      EXPECT_EQ(profile->field(*field), DecodeAxisValue(value))
          << golden.id << golden.input << name;
    }
  }
  EXPECT_EQ(asked, 347);
}

TEST(ProfileGoldenTest, WritesAProfileAsText) {
  ExpectGoldens("partition_axis.jsonl", "partition_axis_repr", 11,
                [](const Json& input) -> absl::StatusOr<Json> {
                  SHARDMESH_ASSIGN_OR_RETURN(const PartitionAxis profile,
                                             DecodeProfile(input.at("overrides")));
                  return profile.ToString();
                });
}

TEST(ProfileGoldenTest, HasTheSameTables) {
  ExpectGoldens(
      "partition_axis.jsonl", "semantic_map", 1, [](const Json& input) -> absl::StatusOr<Json> {
        Json semantic = Json::array();
        Json generation = Json::array();
        for (const SemanticName& name : BuiltInSemanticNames()) {
          Json field;
          if (name.field.has_value()) {
            field = std::string(AxisFieldName(*name.field));
            if (const auto variant = GenerationVariant(*name.field)) {
              generation.push_back({field, std::string(AxisFieldName(*variant))});
            }
          }
          semantic.push_back({std::string(name.name), field});
        }
        Json fields = Json::array();
        for (const std::string_view name : AxisFieldNames()) {
          fields.push_back(std::string(name));
        }
        return Json{{"semantic", semantic}, {"generation", generation}, {"fields", fields}};
      });
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
