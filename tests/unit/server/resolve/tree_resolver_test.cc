// Trees of tensors: specs once, tensors by index, totals, and errors that name the tensor.
#include "server/resolve/tree_resolver.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "status/reason.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using test::StatusIs;
using ::testing::HasSubstr;

PartitionSpec Spec(std::vector<std::string> axes) {
  std::vector<SpecEntry> entries;
  for (std::string& axis : axes) {
    entries.push_back(axis.empty() ? SpecEntry::None() : SpecEntry::Axis(std::move(axis)));
  }
  return PartitionSpec(std::move(entries));
}

TreeQuestion Question(std::vector<Rule> rules, RuleSetOptions options = {}) {
  TreeQuestion question;
  question.rules = RuleSetDefinition{.rules = *RuleSet::Create(std::move(rules), options)};
  question.mesh = *Mesh::Parse("fsdp=2,tp=4");
  return question;
}

// `shape` outlives the use of the tensor: all are literals within one statement, or variables.
TreeTensor Tensor(std::string_view name, absl::Span<const int64_t> shape) {
  return {.name = name, .shape = shape, .dtype = Dtype::kF32};
}

std::unique_ptr<TreeResolver> Resolver(TreeQuestion question) {
  return *TreeResolver::Create(std::move(question));
}

TEST(TreeResolverTest, AnswersDistinctSpecsOnceAndTensorsByIndex) {
  const auto resolver =
      Resolver(Question({{"kernel", Spec({"fsdp", "tp"})}, {"bias", Spec({"tp"})}}));
  const auto placements = resolver->Add(
      {Tensor("a.kernel", {8, 8}), Tensor("a.bias", {8}), Tensor("b.kernel", {8, 8})});
  ASSERT_TRUE(placements.ok()) << placements.status();
  ASSERT_EQ(resolver->specs().size(), 2u);
  EXPECT_EQ((*placements)[0].spec_index, (*placements)[2].spec_index);
  EXPECT_EQ((*placements)[0].rule, 0);
  EXPECT_EQ((*placements)[1].rule, 1);
  EXPECT_EQ((*placements)[0].bytes_per_device, 8 * 8 * 4 / 8);
}

TEST(TreeResolverTest, CountsWhatEachDeviceHolds) {
  const auto resolver =
      Resolver(Question({{"kernel", Spec({"fsdp", "tp"})}, {".*", PartitionSpec()}}));
  ASSERT_TRUE(resolver->Add({Tensor("kernel", {8, 8}), Tensor("scale", {16})}).ok());
  const absl::StatusOr<LayoutReport> report = resolver->analysis()->Report();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->bytes, 256 + 64);
  EXPECT_EQ(report->most_device_bytes, 32 + 64);
  EXPECT_EQ(report->wasted_bytes, 7 * 64);
  EXPECT_EQ(resolver->counts().tensors, 2);
  EXPECT_EQ(resolver->counts().parameters, 64 + 16);
  EXPECT_EQ(resolver->counts().sharded_parameters, 64);
  EXPECT_EQ(resolver->counts().replicated, 1);
  EXPECT_EQ(resolver->counts().corrected, 0);
}

TEST(TreeResolverTest, KeepsTheRequestBesideTheCorrectedSpec) {
  const auto resolver = Resolver(Question({{".*", Spec({"fsdp", "tp"})}}));
  ASSERT_TRUE(resolver->Add({Tensor("odd", {8, 6})}).ok());
  const TreeSpec& spec = resolver->specs()[0];
  EXPECT_EQ(spec.requested, Spec({"fsdp", "tp"}));
  EXPECT_EQ(spec.effective, Spec({"fsdp", ""}));
  ASSERT_EQ(spec.corrections.size(), 1u);
  EXPECT_EQ(spec.corrections[0].reason, Reason::kNotDivisible);
  EXPECT_EQ(spec.corrections[0].have, 6);
  EXPECT_EQ(spec.corrections[0].need, 4);
}

TEST(TreeResolverTest, ShowsTheRulesSpecForATensorThatIsTooSmall) {
  const auto resolver = Resolver(Question({{".*", Spec({"fsdp"})}}, {.min_size = 100}));
  ASSERT_TRUE(resolver->Add({Tensor("small", {8})}).ok());
  EXPECT_EQ(resolver->specs()[0].requested, Spec({"fsdp"}));
  EXPECT_EQ(resolver->specs()[0].effective, PartitionSpec());
}

TEST(TreeResolverTest, StopsAtTheFirstCorrectionWhenStrict) {
  TreeQuestion question = Question({{".*", Spec({"fsdp", "tp"})}});
  question.strict = true;
  const auto resolver = Resolver(std::move(question));
  const auto refused = resolver->Add({Tensor("fits", {8, 8}), Tensor("odd", {8, 6})});
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kNotDivisible));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("tensor 'odd'"));
}

TEST(TreeResolverTest, TheErrorOfStrictHasAllCorrectionsOfTheTensorInWords) {
  TreeQuestion question = Question({{".*", Spec({"fsdp", "tp"})}});
  question.strict = true;
  const auto resolver = Resolver(std::move(question));
  const std::string message(resolver->Add({Tensor("odd", {7, 7})}).status().message());
  EXPECT_THAT(message, HasSubstr("dimension 0: 'fsdp' dropped, 7 is not divisible by 2; "
                                 "dimension 1: 'tp' dropped, 7 is not divisible by 4; "
                                 "to mend them, ask for no axis, or pad dimension 0 from 7 to 8 "
                                 "and ask for 'fsdp' along dimension 0"));
  EXPECT_THAT(message, testing::Not(HasSubstr("P("))) << "not every client is a Python program";
}

TEST(TreeResolverTest, RefusesARuleThatNamesAnAxisTwiceWithoutAMeshToo) {
  TreeQuestion matching = Question({{"w", Spec({"tp", "tp"})}});
  matching.mesh.reset();
  const absl::Status refused = Resolver(matching)->Add({Tensor("w", {8, 8})}).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kDuplicateAxis));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("tensor 'w'"));
  // The original notices only when an array is placed.
  matching.compatibility = Compatibility::kExact;
  EXPECT_TRUE(Resolver(matching)->Add({Tensor("w", {8, 8})}).ok());
}

TEST(TreeResolverTest, NamesTheTensorThatNoRuleMatches) {
  const auto resolver = Resolver(Question({{"kernel", Spec({"fsdp"})}}));
  const auto refused = resolver->Add({Tensor("a.bias", {8})});
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kUnmatchedTensor));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("a.bias"));
}

TEST(TreeResolverTest, CountsATensorThatNoRuleMatchesAsReplicatedWhereItIsKept) {
  TreeQuestion question = Question({{"kernel", Spec({"fsdp"})}});
  question.keep_unmatched = true;
  const auto resolver = Resolver(std::move(question));
  const auto placements = resolver->Add({Tensor("a.bias", {8}), Tensor("a.kernel", {8})});
  ASSERT_TRUE(placements.ok()) << placements.status();
  EXPECT_TRUE((*placements)[0].unmatched);
  EXPECT_EQ((*placements)[0].bytes_per_device, 32);
  EXPECT_FALSE((*placements)[1].unmatched);
  EXPECT_EQ(resolver->counts().replicated, 1);
}

TEST(TreeResolverTest, FillsUpTheLastByteOfElementsThatAreSmallerThanOne) {
  const auto resolver = Resolver(Question({{".*", PartitionSpec()}}));
  const Shape shape = {3};
  TreeTensor tensor = Tensor("small", shape);
  tensor.dtype = Dtype::kF4;
  const auto placements = resolver->Add({tensor});
  ASSERT_TRUE(placements.ok()) << placements.status();
  EXPECT_EQ((*placements)[0].bytes_per_device, 2);
}

TEST(TreeResolverTest, RefusesATensorThatIsListedTwice) {
  const auto resolver = Resolver(Question({{".*", PartitionSpec()}}));
  ASSERT_TRUE(resolver->Add({Tensor("a", {8})}).ok());
  EXPECT_THAT(resolver->Add({Tensor("a", {8})}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
}

TEST(TreeResolverTest, ResolvesTensorsThatBringTheirOwnAxes) {
  TreeQuestion question;
  question.mesh = *Mesh::Parse("fsdp=2,tp=4");
  const auto resolver = Resolver(std::move(question));
  const Shape shape = {8, 8};
  TreeTensor tensor = Tensor("h", shape);
  const std::vector<AxisValue> axes = {AxisValue::None(), AxisValue::Name("__HEAD__")};
  tensor.axes = &axes;
  ASSERT_TRUE(resolver->Add({tensor}).ok());
  EXPECT_EQ(resolver->specs()[0].effective, Spec({"", "tp"}));
  EXPECT_THAT(resolver->Add({Tensor("neither", {8})}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kMissingArgument));
}

}  // namespace
}  // namespace shardmesh::server
