// Names of modes, and modes told from a shape.
#include "sharding/mode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using test::StatusIs;
using ::testing::HasSubstr;

TEST(ModeTest, ReadsItsOwnNames) {
  for (const RuntimeMode mode : {RuntimeMode::kTrain, RuntimeMode::kPrefill,
                                 RuntimeMode::kAutoregressive, RuntimeMode::kInsert}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const Mode parsed, Mode::Parse(RuntimeModeName(mode)));
    EXPECT_EQ(parsed, Mode(mode));
    EXPECT_EQ(parsed.ToString(), RuntimeModeName(mode));
  }
}

TEST(ModeTest, KnowsWhichModesGenerate) {
  EXPECT_FALSE(IsGeneration(RuntimeMode::kTrain));
  EXPECT_FALSE(IsGeneration(RuntimeMode::kPrefill));
  EXPECT_TRUE(IsGeneration(RuntimeMode::kAutoregressive));
  EXPECT_TRUE(IsGeneration(RuntimeMode::kInsert));
}

TEST(ModeTest, RefusesAnUnknownNameAndNamesTheNearest) {
  for (const std::string name : {"train", "__TRAIN__", "__trian__"}) {
    const absl::StatusOr<Mode> mode = Mode::Parse(name);
    EXPECT_THAT(mode.status(), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kUnknownMode))
        << name;
    EXPECT_EQ(PythonTypeOf(mode.status()), "ValueError") << name;
    EXPECT_THAT(ToStd(mode.status().message()), HasSubstr("did you mean \"__train__\"?")) << name;
  }
  EXPECT_THAT(ToStd(Mode::Parse("decode").status().message()), HasSubstr("__autoregressive__"));
  EXPECT_FALSE(Mode::Parse("").ok());
}

TEST(ModeTest, MakesTrainOfAnUnknownNameWhereTheOriginalIsFollowed) {
  for (const std::string name : {"train", "decode", "__TRAIN__", ""}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const Mode mode, Mode::Parse(name, Compatibility::kExact));
    EXPECT_EQ(mode, Mode(RuntimeMode::kTrain)) << name;
  }
}

TEST(ModeTest, TellsTheModeFromADimension) {
  const struct {
    int64_t dim;
    std::vector<int64_t> shape;
    RuntimeMode mode;
  } cases[] = {
      {1, {8, 1, 4}, RuntimeMode::kAutoregressive},  {1, {8, 2, 1}, RuntimeMode::kTrain},
      {0, {1}, RuntimeMode::kAutoregressive},        {0, {0}, RuntimeMode::kTrain},
      {-1, {8, 2, 1}, RuntimeMode::kAutoregressive}, {-3, {4, 1, 1}, RuntimeMode::kTrain},
  };
  for (const auto& c : cases) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuntimeMode mode,
                                   Mode::OfDimension(c.dim).Resolve(c.shape));
    EXPECT_EQ(mode, c.mode) << c.dim;
  }
}

TEST(ModeTest, NeedsAShapeThatHasTheDimension) {
  const absl::Status missing = Mode::OfDimension(1).Resolve(std::nullopt).status();
  EXPECT_THAT(missing, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kMissingArgument));
  EXPECT_EQ(PythonTypeOf(missing), "ValueError");
  for (const int64_t dim : {int64_t{2}, int64_t{-3}, INT64_MAX, INT64_MIN}) {
    const absl::Status outside =
        Mode::OfDimension(dim).Resolve(std::vector<int64_t>{4, 1}).status();
    EXPECT_THAT(outside, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kInvalidDimension))
        << dim;
    EXPECT_EQ(PythonTypeOf(outside), "IndexError") << dim;
  }
}

TEST(ModeTest, ARuntimeModeNeedsNoShape) {
  EXPECT_EQ(*Mode(RuntimeMode::kInsert).Resolve(std::nullopt), RuntimeMode::kInsert);
  EXPECT_EQ(Mode(RuntimeMode::kInsert).dimension(), std::nullopt);
  EXPECT_EQ(Mode::OfDimension(-2).dimension(), -2);
  EXPECT_EQ(Mode::OfDimension(-2).ToString(), "dimension -2");
}

}  // namespace
}  // namespace shardmesh
