// What the client library promises, with real processes behind it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "rpc/definitions.h"
#include "sharding/rule_set.h"
#include "sharding/status_macros.h"
#include "tensor/view.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

class ClientTest : public ::testing::Test {
 protected:
  void SetUp() override { SHARDMESH_ASSERT_OK_AND_ASSIGN(cluster_, TestCluster::Start({})); }

  // Puts four numbers and returns the array's id.
  absl::StatusOr<std::string> Put(const std::string& name) {
    const client::PutTensor tensor{
        .name = name,
        .view = *TensorView::Create(
            Dtype::kF32, {4}, {reinterpret_cast<const char*>(values_.data()), 4 * sizeof(float)}),
        .spec = PartitionSpec({SpecEntry::Axis("tp")}),
        .cut_points = {}};
    SHARDMESH_ASSIGN_OR_RETURN(const client::PutResult result, client().PutTensors({&tensor, 1}));
    return result.arrays[0].descriptor.array_id;
  }
  client::MeshClient& client() { return cluster_->client(); }

  const std::vector<float> values_ = {1, 2, 3, 4};
  std::unique_ptr<TestCluster> cluster_;
};

TEST_F(ClientTest, AnArrayThatWasReadGoesWithItsName) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string first, Put("w"));
  EXPECT_THAT(client().Gather(client::ArraySelector::ByName("w")), IsOk());
  EXPECT_THAT(client().Gather(client::ArraySelector::ById(first)), IsOk());
  ASSERT_THAT(Put("w"), IsOk());
  EXPECT_THAT(client().DescribeArray(client::ArraySelector::ById(first)),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(ClientTest, PutsByRulesThatTakeLongToCompile) {
  const auto options_of = [](std::vector<Rule> rules) {
    return client::PutOptions{.rules = rpc::RuleSetDefinition{.rules = *RuleSet::Create(rules)}};
  };
  const std::vector<Rule> rules = {{R"(\w{60}\b)", PartitionSpec()},
                                   {R"(\w{60}\b)", PartitionSpec()},
                                   {"^w$", PartitionSpec({SpecEntry::Axis("tp")})}};
  const client::PutTensor tensor{
      .name = "w",
      .view = *TensorView::Create(
          Dtype::kF32, {4}, {reinterpret_cast<const char*>(values_.data()), 4 * sizeof(float)}),
      .spec = {},
      .cut_points = {}};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::PutResult result,
                                 client().PutTensors({&tensor, 1}, options_of(rules)));
  EXPECT_EQ(result.arrays[0].descriptor.spec, rules[2].spec);
  EXPECT_THAT(client().PutTensors({&tensor, 1}, options_of({rules[0], rules[1]})),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(ClientTest, ReadingDoesNotEndWhatTheSessionKeeps) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string unnamed, Put(""));
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(client().Gather(client::ArraySelector::ById(unnamed)), IsOk());
  }
}

TEST_F(ClientTest, KeepsTreesAndAnswersQuestionsThatNameThem) {
  using client::EntryKind;
  const std::vector<client::TreeTensor> tensors = {
      {.name = "layers.0.wq", .shape = {8, 4}, .dtype = Dtype::kBF16},
      {.name = "layers.0.wk",
       .shape = {8},
       .dtype = Dtype::kF32,
       .axes = std::vector<AxisValue>{AxisValue::Name("__HEAD__")}},
      {.name = "scale", .shape = {}, .spec = PartitionSpec()}};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      client::Entry entry, client().CreateEntry("model", client::StoredTree{.tensors = tensors}));
  EXPECT_EQ(std::get<client::StoredTree>(entry.value).tensor_count, 3);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(entry, client().GetEntry(EntryKind::kTree, "model"));
  const auto& tree = std::get<client::StoredTree>(entry.value);
  ASSERT_EQ(tree.tensors.size(), 3u);
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(tree.tensors[i].name, tensors[i].name);
    EXPECT_EQ(tree.tensors[i].shape, tensors[i].shape);
    EXPECT_EQ(tree.tensors[i].dtype, tensors[i].dtype);
    EXPECT_EQ(tree.tensors[i].axes, tensors[i].axes);
    EXPECT_EQ(tree.tensors[i].spec, tensors[i].spec);
  }
  EXPECT_EQ(tree.parameters, 32 + 8 + 1);
  EXPECT_EQ(tree.bytes, 64 + 32);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<client::Entry> listed,
                                 client().ListEntries(EntryKind::kTree));
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_TRUE(std::get<client::StoredTree>(listed[0].value).tensors.empty());

  const rpc::RuleSetDefinition rules = {
      .rules = *RuleSet::Create({{"wq", PartitionSpec({SpecEntry::Axis("tp")})}, {"bias", {}}})};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::TreeAnswer streamed,
                                 client().ResolveTree({.rules = rules}, tensors));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const client::TreeAnswer stored,
      client().ResolveTree({.rules = rules, .stored_tree = "model"}, {}));
  ASSERT_EQ(stored.placements.size(), 3u);
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(stored.specs[stored.placements[i].spec_index].effective,
              streamed.specs[streamed.placements[i].spec_index].effective);
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const client::LintAnswer lint,
      client().LintRules({.rules = rules, .all_stored_trees = true}, {}));
  ASSERT_EQ(lint.trees.size(), 1u);
  EXPECT_EQ(lint.trees[0].source, client::LintedTree::Source::kCatalog);
  EXPECT_EQ(lint.trees[0].name, "model");
  EXPECT_EQ(lint.trees[0].own_specs, 1);
  EXPECT_EQ(lint.trees[0].report.dead_rules, 1);
  EXPECT_EQ(lint.trees[0].report.unmatched_tensors, 0) << "wk goes by its axes, and not by rules";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const client::DiffAnswer diff,
      client().DiffLayouts({.a = {.rules = rules}, .b = {.rules = rules}, .stored_tree = "model"},
                           {}));
  EXPECT_EQ(diff.a.layout.tensors, 3);
  EXPECT_THAT(client().AnalyzeLayout({.stored_tree = "model"}, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kMissingArgument))
      << "not every tensor brings its spec";
  EXPECT_THAT(
      client().SearchMeshes(
          {.devices = 4, .axes = {{.name = "tp"}}, .rules = rules, .stored_tree = "modle"}, {}),
      StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  ASSERT_THAT(client().DeleteEntry(EntryKind::kTree, "model"), IsOk());
  EXPECT_THAT(client().GetEntry(EntryKind::kTree, "model"),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
}

}  // namespace
}  // namespace shardmesh::test
