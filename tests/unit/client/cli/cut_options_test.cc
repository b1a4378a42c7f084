// Tests of client/cli/cut_options.h: the notation of cuts, and options that contradict one another.
#include "client/cli/cut_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/cli/command_line.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::client {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::IsOkAndHolds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(CutOptionsTest, ReadsADimensionAndItsStarts) {
  EXPECT_THAT(ParseCuts("0:100,300"), IsOkAndHolds(DimensionCuts{0, {100, 300}}));
  EXPECT_THAT(ParseCuts("12:0,0,7,7"), IsOkAndHolds(DimensionCuts{12, {0, 0, 7, 7}}));
  for (const std::string_view text :
       {"", ":", "0", "0:", "0:,", "0:1,", ":1", "-1:2", "0:-2", "x:1", "0:1;2", "0: 1", "0:+1",
        "0:1:2", "0:5,4", "0:99999999999999999999"}) {
    EXPECT_EQ(ExitCodeOf(ParseCuts(text).status()), kExitWrongUse) << text;
  }
  EXPECT_THAT(std::string(ParseCuts("0:5,4").status().message()),
              HasSubstr("the start 4 follows 5; starts must not fall"));
}

TEST(CutOptionsTest, LeaveAFileThatFollowsToTheCommand) {
  CLI::App app;
  std::vector<std::string> files;
  app.add_option("file", files)->required();
  CutOptions options;
  AddCutsOption(&app, &options);
  app.add_flag("--strict");
  app.parse("--cuts 0:1 x.npy --cuts 1:2 y.npy --strict");
  EXPECT_THAT(files, ElementsAre("x.npy", "y.npy"));
  EXPECT_THAT(options.cuts, ElementsAre(DimensionCuts{0, {1}}, DimensionCuts{1, {2}}));
}

TEST(CutOptionsTest, ReadsRulesAndWeights) {
  EXPECT_THAT(ParseUnevenCuts("ceil"), IsOkAndHolds(UnevenCuts::kCeilChunks));
  EXPECT_THAT(ParseUnevenCuts("memory"), IsOkAndHolds(UnevenCuts::kByMemory));
  EXPECT_THAT(ParseUnevenCuts("speed"), IsOkAndHolds(UnevenCuts::kBySpeed));
  EXPECT_THAT(ParseUnevenCuts("equal"), IsOkAndHolds(UnevenCuts::kEqualOnly));
  EXPECT_THAT(std::string(ParseUnevenCuts("ciel").status().message()),
              HasSubstr("\"ciel\" is none of equal, ceil, memory, speed"));
  EXPECT_THAT(std::string(ParseUnevenCuts("weights").status().message()),
              HasSubstr("--weights 1,2,1"));
  EXPECT_THAT(ParseWeights("1,0,7"), IsOkAndHolds(ElementsAre(1, 0, 7)));
  for (const std::string_view text : {"", ",", "1,", "1;2", "-1", "1.5", "a"}) {
    EXPECT_EQ(ExitCodeOf(ParseWeights(text).status()), kExitWrongUse) << text;
  }
}

TEST(CutOptionsTest, NamesTheRanksThatHoldNothing) {
  ArrayDescriptor array = {.array_id = "a",
                           .dtype = Dtype::kF32,
                           .shape = {6, 2},
                           .spec = PartitionSpec({SpecEntry::Axis("x")}),
                           .mesh_id = "m",
                           .mesh_revision = 1,
                           .mesh = *Mesh::Parse("x=4"),
                           .cut_points = {{0, 2, 2, 4, 6}, {}}};
  EXPECT_THAT(EmptyRanks(array), ElementsAre(1));
  EXPECT_EQ(NoteOnEmptyRanks(EmptyRanks(array), "w"),
            "Rank 1 holds nothing of w: its part is empty");
  array.cut_points = {{0, 3, 6, 6, 6}, {}};
  EXPECT_EQ(NoteOnEmptyRanks(EmptyRanks(array), "2 tensors"),
            "Ranks 2, 3 hold nothing of 2 tensors: their parts are empty");
  array.cut_points = {{0, 1, 2, 3, 6}, {}};
  EXPECT_THAT(EmptyRanks(array), IsEmpty());
  EXPECT_EQ(NoteOnEmptyRanks({}, "w"), "");
  // An array without elements has no rank that another one is better off than.
  array.shape = {0, 2};
  array.cut_points = {{0, 0, 0, 0, 0}, {}};
  EXPECT_THAT(EmptyRanks(array), IsEmpty());
}

TEST(CutOptionsTest, RefusesOptionsThatContradictOneAnother) {
  EXPECT_THAT(CheckCutOptions({}), IsOk());
  EXPECT_THAT(
      CheckCutOptions({.cuts = {{0, {1}}}, .uneven = UnevenCuts::kEqualOnly, .weights = {}}),
      IsOk());
  const std::vector<CutOptions> wrong = {
      {.cuts = {{0, {1}}}, .uneven = UnevenCuts::kCeilChunks, .weights = {}},
      {.cuts = {{0, {1}}}, .uneven = {}, .weights = {{1, 2}}},
      {.cuts = {}, .uneven = UnevenCuts::kByMemory, .weights = {{1, 2}}},
      {.cuts = {}, .uneven = UnevenCuts::kEqualOnly, .weights = {{1, 2}}}};
  for (const CutOptions& options : wrong) {
    EXPECT_EQ(ExitCodeOf(CheckCutOptions(options)), kExitWrongUse);
  }
  EXPECT_EQ(CutOptions().rule(), UnevenCuts::kEqualOnly);
  EXPECT_EQ((CutOptions{.cuts = {}, .uneven = {}, .weights = {{1}}}).rule(),
            UnevenCuts::kByWeights);
}

TEST(CutOptionsTest, CompletesStartsToCutPoints) {
  const CutOptions options = {.cuts = {{1, {3, 3, 5}}}, .uneven = {}, .weights = {}};
  EXPECT_THAT(CutPointsFor(options, {4, 9}),
              IsOkAndHolds(ElementsAre(IsEmpty(), ElementsAre(0, 3, 3, 5, 9))));
  EXPECT_THAT(CutPointsFor({}, {4, 9}), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(std::string(CutPointsFor(options, {4}).status().message()),
              HasSubstr("--cuts 1:3,3,5: the tensor 4 has 1 dimension, counted from 0"));
  EXPECT_THAT(std::string(CutPointsFor(options, {4, 4}).status().message()),
              HasSubstr("a part cannot start at 5; dimension 1 of the tensor 4x4 ends at 4"));
  const CutOptions twice = {.cuts = {{0, {1}}, {0, {2}}}, .uneven = {}, .weights = {}};
  EXPECT_THAT(std::string(CutPointsFor(twice, {4}).status().message()),
              HasSubstr("--cuts names dimension 0 twice"));
}

TEST(CutOptionsTest, CutPointsOfArraysOfAllShapesEndWhereTheArraysEnd) {
  const CutOptions options = {.cuts = {{2, {3, 3, 5}}, {0, {1}}}, .uneven = {}, .weights = {}};
  EXPECT_TRUE(options.is_given());
  EXPECT_FALSE(CutOptions().is_given());
  // The last point stands for the end.
  EXPECT_THAT(CutPointsForAll(options), IsOkAndHolds(ElementsAre(ElementsAre(0, 1, 1), IsEmpty(),
                                                                 ElementsAre(0, 3, 3, 5, 5))));
  EXPECT_THAT(CutPointsForAll({}), IsOkAndHolds(IsEmpty()));
  const CutOptions far = {.cuts = {{16, {1}}}, .uneven = {}, .weights = {}};
  EXPECT_THAT(std::string(CutPointsForAll(far).status().message()),
              HasSubstr("--cuts 16:1: an array has at most 16 dimensions, counted from 0"));
  const CutOptions twice = {.cuts = {{0, {1}}, {0, {2}}}, .uneven = {}, .weights = {}};
  EXPECT_THAT(std::string(CutPointsForAll(twice).status().message()),
              HasSubstr("--cuts names dimension 0 twice"));
}

TEST(CutOptionsTest, WritesCutPointsAsItReadsThem) {
  const std::vector<CutPoints> points = {{0, 3, 3, 9}, {}, {0, 5, 6}};
  EXPECT_EQ(FormatCutPoints(points), "0:3,3 2:5");
  EXPECT_EQ(FormatCutPoints({}), "-");
  EXPECT_EQ(CutPointsJson(points).dump(), "[[0,3,3,9],[],[0,5,6]]");
  EXPECT_EQ(CutPointsJson({}).dump(), "[]");
}

}  // namespace
}  // namespace shardmesh::client
