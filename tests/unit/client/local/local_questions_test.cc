// Questions answered in this process: single ones, streams, definitions in memory, and what needs a
// cluster.
#include "client/local/local_questions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "rpc/codec/status.h"
#include "sharding/mesh.h"
#include "sharding/rules/rule_set.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/sharding_printers.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::client {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

PartitionSpec Spec(const std::string& axis) { return PartitionSpec({SpecEntry::Axis(axis)}); }

class LocalQuestionsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto local = LocalQuestions::Start();
    ASSERT_TRUE(local.ok()) << local.status();
    local_ = *std::move(local);
  }
  MeshClient& client() { return local_->client(); }

  const Mesh mesh_ = *Mesh::Create({{"fsdp", 2}, {"tp", 4}});
  std::unique_ptr<LocalQuestions> local_;
};

TEST_F(LocalQuestionsTest, AnswersOneQuestion) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const SpecAnswer answer,
      client().layouts().CorrectSpec({.spec = Spec("tp"), .shape = {6}, .mesh = mesh_}));
  EXPECT_EQ(answer.requested, Spec("tp"));
  EXPECT_NE(answer.effective, answer.requested);
  ASSERT_EQ(answer.corrections.size(), 1u);
  EXPECT_EQ(answer.corrections[0].reason, Reason::kNotDivisible);
}

TEST_F(LocalQuestionsTest, KeepsErrorsWhole) {
  const auto answer = client().layouts().CorrectSpec(
      {.spec = Spec("tp"), .shape = {6}, .mesh = mesh_, .strict = true});
  EXPECT_THAT(answer, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kNotDivisible));
}

// More than one message each way.
TEST_F(LocalQuestionsTest, AnswersAStreamInBothDirections) {
  constexpr int64_t kTensors = 50'000;
  std::vector<TreeTensor> tensors;
  for (int64_t i = 0; i < kTensors; ++i) {
    tensors.push_back(
        {.name = StrCat("a.layer.with.a.long.name.", i, i % 2 == 0 ? ".w" : ".b"), .shape = {64}});
  }
  const RuleSetDefinition rules = {.rules = *RuleSet::Create({{"w$", Spec("tp")}, {"b$", {}}})};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const TreeAnswer answer,
      client().layouts().ResolveTree({.rules = rules, .mesh = mesh_}, tensors));
  ASSERT_EQ(answer.placements.size(), tensors.size());
  EXPECT_EQ(answer.specs[answer.placements[kTensors - 2].spec_index].effective, Spec("tp"));
  EXPECT_EQ(answer.specs[answer.placements[kTensors - 1].spec_index].effective, PartitionSpec());
}

TEST_F(LocalQuestionsTest, KeepsDefinitionsWhileItLives) {
  EXPECT_THAT(client().layouts().CorrectSpec({.spec = Spec("tp"), .shape = {8}, .mesh = "default"}),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound))
      << "no mesh is defined at the start";
  ASSERT_THAT(
      client().catalog().CreateEntry("default", MeshDefinition{.mesh = mesh_, .workers = {}}),
      IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const SpecAnswer answer,
      client().layouts().CorrectSpec({.spec = Spec("tp"), .shape = {8}, .mesh = "default"}));
  EXPECT_EQ(answer.effective, Spec("tp"));
  int64_t changes = 0;
  EXPECT_THAT(client().catalog().Watch({}, 1, absl::Now() + absl::Seconds(10),
                                       [&changes](const CatalogChanges& each) {
                                         changes += std::ssize(each.changes);
                                         return changes == 0;
                                       }),
              IsOk());
  EXPECT_EQ(changes, 1);

  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<LocalQuestions> other,
                                 LocalQuestions::Start());
  EXPECT_THAT(other->client().catalog().GetEntry(EntryKind::kMesh, "default"),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound))
      << "definitions are of one instance";
}

TEST_F(LocalQuestionsTest, AnswersWithTheEffectiveSpecAlone) {
  ASSERT_THAT(client().catalog().CreateEntry("pod", MeshDefinition{.mesh = mesh_, .workers = {}}),
              IsOk());
  for (const Shape& shape : {Shape{8, 8}, Shape{8, 7}, Shape{8}, Shape{7, 7}}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        const SpecAnswer full,
        client().layouts().ResolveSpec(
            {.axes = {AxisValue::Name("__BATCH__"), AxisValue::Name("__EMBED__")},
             .shape = shape,
             .mesh = "pod"}));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        const EffectiveSpec answer,
        client().layouts().ResolveEffectiveSpec(
            {.axes = {"__BATCH__", "__EMBED__"}, .shape = shape, .mesh = "pod"}));
    EXPECT_EQ(answer.spec, full.effective);
    EXPECT_EQ(answer.shard_shape, full.shard_shape);
    EXPECT_EQ(answer.corrected_dimensions.size(), full.corrections.size());
    EXPECT_EQ(answer.revision, full.revision);
  }
  EXPECT_THAT(client().layouts().ResolveEffectiveSpec({.axes = {"__EMBED__"}, .shape = {8}}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kMissingArgument));
}

TEST_F(LocalQuestionsTest, ACancelledWatchEnds) {
  Cancellation cancellation;
  bool is_started = false;
  EXPECT_THAT(client().catalog().Watch({}, std::nullopt, absl::Now() + absl::Minutes(1),
                                       [&](const CatalogChanges&) {
                                         is_started = true;
                                         cancellation.Cancel();
                                         return true;
                                       },
                                       {.cancellation = &cancellation}),
              StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
  EXPECT_TRUE(is_started);
}

TEST_F(LocalQuestionsTest, AnswersBatchesWithAStatusForEachItem) {
  const AxisValue embed = AxisValue::Name("__EMBED__");
  std::vector<ResolveSpecQuestion> questions(3);
  questions[0] = {.axes = {embed}, .shape = {{8}}, .mesh = mesh_};
  questions[1] = {.axes = {AxisValue::Name("__EMBDE__")}, .shape = {{8}}, .mesh = mesh_};
  questions[2] = {.axes = {embed}, .shape = {{7}}, .mesh = mesh_, .strict = true};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto specs, client().layouts().BatchResolveSpecs(questions));
  ASSERT_EQ(specs.size(), questions.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    const auto alone = client().layouts().ResolveSpec(questions[i]);
    EXPECT_EQ(specs[i].status().code(), alone.status().code()) << i;
    EXPECT_EQ(specs[i].status().message(), alone.status().message()) << i;
    EXPECT_EQ(ReasonOf(specs[i].status()), ReasonOf(alone.status())) << i;
    if (alone.ok()) {
      EXPECT_EQ(specs[i]->effective, alone->effective);
    }
  }
  EXPECT_TRUE(specs[0].ok());
  EXPECT_FALSE(specs[1].ok());
  EXPECT_FALSE(specs[2].ok());

  const std::vector<ConstrainQuestion> arrays = {
      {.layout = Spec("tp"), .shape = {8}, .mesh = mesh_},
      {.layout = Spec("tp"), .shape = {8}, .mesh = "none"}};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto constraints,
                                 client().layouts().BatchConstrainArrays(arrays));
  ASSERT_EQ(constraints.size(), 2u);
  ASSERT_TRUE(constraints[0].ok()) << constraints[0].status();
  EXPECT_EQ(constraints[0]->constraint, Spec("tp"));
  EXPECT_THAT(constraints[1].status(), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
}

TEST_F(LocalQuestionsTest, BatchesHaveALimitAndMayBeEmpty) {
  EXPECT_TRUE(client().layouts().BatchResolveSpecs({}).ok());
  const ResolveSpecQuestion question = {.axes = {AxisValue::Name("__EMBED__")}};
  std::vector<ResolveSpecQuestion> questions(10'000, question);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto answers,
                                 client().layouts().BatchResolveSpecs(questions));
  EXPECT_TRUE(answers.back().ok()) << answers.back().status();
  questions.push_back(question);
  EXPECT_THAT(client().layouts().BatchResolveSpecs(questions),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded));
}

TEST_F(LocalQuestionsTest, ABatchWhoseResultsAreTooLongSaysHowManyFit) {
  const ResolveSpecQuestion question = {
      .axes = {AxisValue::Name("__BATCH__"), AxisValue::Name("__EMBED__")},
      .shape = Shape{7, 7},
      .mesh = mesh_,
      .explain = true,
      .suggest_fixes = true};
  const std::vector<ResolveSpecQuestion> questions(10'000, question);
  const auto answers = client().layouts().BatchResolveSpecs(questions);
  EXPECT_THAT(answers, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded));
  EXPECT_THAT(std::string(answers.status().message()),
              AllOf(HasSubstr("of 10000 questions have "), HasSubstr("the limit is 3145728")));
}

TEST_F(LocalQuestionsTest, SaysWhatNeedsACluster) {
  for (const absl::Status& status :
       {client().cluster().GetStatus().status(), client().arrays().ListArrays().status(),
        client().arrays().Gather(ArraySelector::ByName("w")).status()}) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnimplemented));
    EXPECT_THAT(std::string(status.message()), HasSubstr("needs a cluster"));
  }
}

TEST_F(LocalQuestionsTest, AnswersManyThreads) {
  std::atomic<int> failures = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 1; i <= 50; ++i) {
        const auto answer = client().layouts().CorrectSpec(
            {.spec = Spec("tp"), .shape = {int64_t{4} * i * (thread + 1)}, .mesh = mesh_});
        if (!answer.ok() || !answer->corrections.empty()) ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
}

TEST_F(LocalQuestionsTest, StartsAndEndsManyTimes) {
  for (int i = 0; i < 20; ++i) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<LocalQuestions> local,
                                   LocalQuestions::Start());
    if (i % 2 == 0) {
      EXPECT_THAT(local->client().layouts().ListPresets(), IsOk());
    }
  }
}

TEST_F(LocalQuestionsTest, EndsACallAtItsDeadline) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<LocalQuestions> local,
                                 LocalQuestions::Start({.timeout = absl::Nanoseconds(1)}));
  EXPECT_THAT(local->client().layouts().ListPresets(),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST(ExplainMissingDefinitionTest, AddsWhatToGiveAndKeepsTheRest) {
  const absl::Status missing = rpc::WithField(
      WithReason(absl::NotFoundError("there is no mesh named \"m\""), Reason::kNotFound), "mesh");
  const absl::Status explained = ExplainMissingDefinition(missing);
  EXPECT_THAT(explained, StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_THAT(std::string(explained.message()),
              HasSubstr("there is no mesh named \"m\"; there is no cluster, so no stored "
                        "definition: give --mesh fsdp=2,tp=2, a YAML file, or --address"));
  EXPECT_EQ(rpc::FieldViolationsOf(explained).size(), rpc::FieldViolationsOf(missing).size());
}

TEST(ExplainMissingDefinitionTest, NamesWhatToGiveForEachKind) {
  const auto explained = [](std::string_view kind) {
    return std::string(
        ExplainMissingDefinition(
            WithReason(absl::NotFoundError(StrCat("there is no ", kind, " named \"bert\"")),
                       Reason::kNotFound))
            .message());
  };
  const std::string no_cluster = "; there is no cluster, so no stored definition: ";
  EXPECT_EQ(explained("rule set"), StrCat("there is no rule set named \"bert\"", no_cluster,
                                          "give a YAML file, or --address"));
  EXPECT_EQ(explained("tree"), StrCat("there is no tree named \"bert\"", no_cluster,
                                      "give --tree FILE, or --address"));
  EXPECT_EQ(explained("profile"), StrCat("there is no profile named \"bert\"", no_cluster,
                                         "give a YAML file, or --address"));
}

TEST(ExplainMissingDefinitionTest, LeavesOtherStatusesAlone) {
  for (const absl::Status& status :
       {absl::OkStatus(), absl::NotFoundError("no such file"),
        WithReason(absl::InvalidArgumentError("bad"), Reason::kNotFound)}) {
    EXPECT_EQ(ExplainMissingDefinition(status), status);
  }
}

}  // namespace
}  // namespace shardmesh::client
