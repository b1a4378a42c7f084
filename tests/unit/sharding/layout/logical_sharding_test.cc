// Questions about one tensor: what supplies axes and mode, and what is said about the answer. The
// original's answers are in profile_golden_test.cc.
#include "sharding/layout/logical_sharding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sharding/semantic_axis.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/sharding_printers.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using test::StatusIs;
using ::testing::ElementsAre;
using ::testing::FieldsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using Kind = ExplanationStep::Kind;

AxisValue Name(std::string_view name) { return AxisValue::Name(std::string(name)); }

Mesh MakeMesh(std::string_view text) {
  absl::StatusOr<Mesh> mesh = Mesh::Parse(text);
  EXPECT_TRUE(mesh.ok()) << mesh.status();
  return mesh.ok() ? *mesh : Mesh();
}

TEST(LogicalShardingTest, TakesAxesAndModeBeforeDynamicAxes) {
  const DynamicAxes dynamic = {{Name(semantic::kVocab)}, RuntimeMode::kTrain};
  const std::vector<AxisValue> axes = {Name(semantic::kExpert)};
  LogicalQuestion question;
  EXPECT_THAT(ResolveSpec(PartitionAxis(), question).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kMissingArgument));
  question.axes = axes;
  EXPECT_THAT(ResolveSpec(PartitionAxis(), question).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kMissingArgument));
  question.dynamic_axes = &dynamic;
  EXPECT_EQ(ResolveSpec(PartitionAxis(), question)->ToString(), "P('tp')");
  question.mode = RuntimeMode::kTrain;
  EXPECT_EQ(ResolveSpec(PartitionAxis(), question)->ToString(), "P('ep')");
}

TEST(LogicalShardingTest, ResolvesAPresetWithListsWhileDecoding) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Preset* const preset, FindPreset("ColumnWise"));
  LogicalQuestion question;
  question.axes = preset->dynamic_axes.axes;
  question.mode = Mode::OfDimension(0);
  const std::vector<int64_t> shape = {1, 16};
  question.shape = shape;
  EXPECT_EQ(ResolveSpec(PartitionAxis(), question)->ToString(), "P(('fsdp', 'sp'), 'tp')");
  question.compatibility = Compatibility::kExact;
  EXPECT_EQ(PythonTypeOf(ResolveSpec(PartitionAxis(), question).status()), "TypeError");
}

TEST(LogicalShardingTest, NeedsAShapeToCorrect) {
  LogicalQuestion question;
  const std::vector<AxisValue> axes = {Name(semantic::kExpert)};
  question.axes = axes;
  question.mode = RuntimeMode::kTrain;
  const absl::Status status =
      ApplyLogicalSharding(PartitionAxis(), question, MakeMesh("tp=2")).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kMissingArgument));
}

TEST(LogicalShardingTest, ReportsWhatItCorrected) {
  const std::vector<AxisValue> axes = {Name(semantic::kBatch), Name(semantic::kLength),
                                       Name(semantic::kEmbed)};
  const std::vector<int64_t> shape = {30, 128, 384};
  LogicalQuestion question;
  question.axes = axes;
  question.mode = RuntimeMode::kTrain;
  question.shape = shape;
  for (const bool auto_correct : {true, false}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        const LogicalSharding sharding,
        ApplyLogicalSharding(PartitionAxis(), question, MakeMesh("dp=2,fsdp=2,tp=2"),
                             auto_correct));
    EXPECT_EQ(sharding.requested.ToString(), "P(('fsdp', 'dp'), 'sp', 'tp')");
    ASSERT_TRUE(sharding.constraint.has_value());
    EXPECT_EQ(sharding.constraint->ToString(), "P(None, None, 'tp')");
    ASSERT_THAT(sharding.corrections, SizeIs(2));
    EXPECT_EQ(sharding.corrections[0].reason, Reason::kNotDivisible);
    EXPECT_EQ(sharding.corrections[1].reason, Reason::kAxisNotInMesh);
  }
}

TEST(LogicalShardingTest, ExplainsFromTheSemanticNameToTheCorrection) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Preset* const preset, FindPreset("AttnQSharding"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const PartitionAxis profile,
      PartitionAxis::Create({{"decode_batch_axis", Name("dp")}, {"decode_head_axis", Name("ep")}}));
  const std::vector<int64_t> shape = {3, 1};
  LogicalQuestion question;
  question.dynamic_axes = &preset->dynamic_axes;
  question.shape = shape;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Explanation explanation,
                                 Explain(profile, question, MakeMesh("dp=2,ep=2,sp=1")));
  EXPECT_EQ(explanation.mode, RuntimeMode::kAutoregressive);
  EXPECT_EQ(explanation.requested.ToString(), "P('dp', 'sp', 'ep', None)");
  EXPECT_EQ(explanation.effective.ToString(), "P(None, 'sp')");
  EXPECT_THAT(
      explanation.steps,
      ElementsAre(FieldsAre(Kind::kSemanticName, 0, "__BATCH__", "batch_axis"),
                  FieldsAre(Kind::kModeVariant, 0, "batch_axis", "decode_batch_axis"),
                  FieldsAre(Kind::kMeshAxes, 0, "decode_batch_axis", "'dp'"),
                  FieldsAre(Kind::kCorrection, 0, "'dp'", "None"),
                  FieldsAre(Kind::kSemanticName, 1, "__QUERY_LENGTH__", "query_sequence_axis"),
                  FieldsAre(Kind::kModeVariant, 1, "query_sequence_axis", "query_sequence_axis"),
                  FieldsAre(Kind::kMeshAxes, 1, "query_sequence_axis", "'sp'"),
                  FieldsAre(Kind::kSemanticName, 2, "__HEAD__", "head_axis"),
                  FieldsAre(Kind::kModeVariant, 2, "head_axis", "decode_head_axis"),
                  FieldsAre(Kind::kMeshAxes, 2, "decode_head_axis", "'ep'"),
                  FieldsAre(Kind::kCorrection, 2, "'ep'", "None"),
                  FieldsAre(Kind::kSemanticName, 3, "__HEAD_DIM__", "attention_dim_axis"),
                  FieldsAre(Kind::kModeVariant, 3, "attention_dim_axis", "attention_dim_axis"),
                  FieldsAre(Kind::kMeshAxes, 3, "attention_dim_axis", "None")));
}

TEST(LogicalShardingTest, ExplainsWithoutCorrectionWhereThereIsNothingToCorrectAgainst) {
  const std::vector<AxisValue> axes = {Name(semantic::kHead)};
  const std::vector<int64_t> shape = {3};
  LogicalQuestion question;
  question.axes = axes;
  question.mode = RuntimeMode::kTrain;
  for (const bool with_mesh : {true, false}) {
    question.shape.reset();
    if (!with_mesh) question.shape = shape;
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        const Explanation explanation,
        Explain(PartitionAxis(), question, with_mesh ? MakeMesh("tp=2") : Mesh()));
    EXPECT_EQ(explanation.effective, explanation.requested);
    EXPECT_THAT(explanation.corrections, SizeIs(0));
  }
}

TEST(LogicalShardingTest, RefusesAnUnknownPreset) {
  const absl::Status status = FindPreset("ColumnWse").status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kUnknownPreset));
  EXPECT_THAT(ToStd(status.message()), HasSubstr("did you mean \"ColumnWise\"?"));
  // All of them where none is near.
  const absl::Status far = FindPreset("activationn").status();
  EXPECT_THAT(far, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kUnknownPreset));
  for (const Preset& preset : Presets()) {
    EXPECT_THAT(ToStd(far.message()), HasSubstr(preset.name));
  }
}

}  // namespace
}  // namespace shardmesh
