// The presets, semantic names and modes that the Python original has.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sharding/mode.h"
#include "sharding/partition_axis.h"
#include "sharding/presets.h"
#include "sharding/rules/rule_set.h"
#include "sharding/semantic_axis.h"
#include "tests/testing/golden.h"

namespace shardmesh::test {
namespace {

using ::testing::UnorderedElementsAreArray;

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
