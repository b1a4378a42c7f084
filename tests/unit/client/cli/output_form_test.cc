// YAML is read as the same values as JSON.
#include "client/cli/output_form.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <cstdint>
#include <limits>
#include <random>
#include <string>

namespace shardmesh::client {
namespace {

// The values of a YAML document: a quoted scalar is a text, a plain one what JSON reads in it.
Json ToTree(const YAML::Node& node) {
  if (node.IsMap()) {
    Json tree = Json::object();
    for (const auto& item : node) tree[item.first.Scalar()] = ToTree(item.second);
    return tree;
  }
  if (node.IsSequence()) {
    Json tree = Json::array();
    for (const YAML::Node& item : node) tree.push_back(ToTree(item));
    return tree;
  }
  if (node.IsNull()) return nullptr;
  if (node.Tag() == "!") return node.Scalar();
  Json value = Json::parse(node.Scalar(), nullptr, /*allow_exceptions=*/false);
  return value.is_discarded() ? Json(node.Scalar()) : value;
}

Json RandomTree(std::mt19937_64* random, int depth) {
  static const std::string kTexts[] = {"",       "a",        "true",     "No",    "null",  "~",
                                       "1.5",    "0x10",     "a: b",     "- a",   "#x",    "é\n\"",
                                       "*",      "layers.0", "y",        "1e3",   ".inf",  "{a",
                                       "'quote", "a b",      "2026-1-1", "a\tb ", "!!str", "@x"};
  const auto text = [&] { return kTexts[(*random)() % std::size(kTexts)]; };
  switch ((*random)() % (depth > 3 ? 5 : 7)) {
    case 0:
      return nullptr;
    case 1:
      return (*random)() % 2 == 0;
    case 2:
      return static_cast<int64_t>((*random)());
    case 3:
      return static_cast<double>((*random)() % 1000) / 8;
    case 4:
      return text();
    case 5: {
      Json list = Json::array();
      for (auto i = (*random)() % 4; i > 0; --i) list.push_back(RandomTree(random, depth + 1));
      return list;
    }
    default: {
      Json object = Json::object();
      for (auto i = (*random)() % 4; i > 0; --i) object[text()] = RandomTree(random, depth + 1);
      return object;
    }
  }
}

TEST(OutputFormTest, YamlHoldsTheValuesOfTheTree) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000; ++i) {
    const Json tree = RandomTree(&random, 0);
    const std::string yaml = ToYaml(tree);
    EXPECT_EQ(ToTree(YAML::Load(yaml)), tree) << yaml;
  }
}

TEST(OutputFormTest, YamlIsReadable) {
  EXPECT_EQ(ToYaml({{"name", "wq"}, {"shape", {8, 16}}, {"rules", {{{"min", nullptr}}}}}),
            "name: wq\nshape: [8, 16]\nrules:\n  - min: null\n");
}

TEST(OutputFormTest, NumbersKeepAllTheirDigits) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  const Json tree = {{"least", kLeast}, {"most", kMost}, {"odd", (int64_t{1} << 53) + 1}};
  EXPECT_EQ(TreeLine(tree, OutputForm::kJson),
            "{\"least\":-9223372036854775808,\"most\":18446744073709551615,"
            "\"odd\":9007199254740993}\n");
  EXPECT_EQ(ToYaml(tree),
            "least: -9223372036854775808\nmost: 18446744073709551615\nodd: 9007199254740993\n");
}

TEST(OutputFormTest, FindsFormsByTheirNames) {
  for (const std::string& name : OutputFormNames()) EXPECT_TRUE(FindOutputForm(name).has_value());
  EXPECT_EQ(FindOutputForm("xml"), std::nullopt);
  EXPECT_TRUE(IsTree(OutputForm::kYaml));
  EXPECT_FALSE(IsTree(OutputForm::kWide));
}

}  // namespace
}  // namespace shardmesh::client
