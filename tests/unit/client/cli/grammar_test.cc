// Tests of how the command line's values are written.
#include "client/cli/grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <variant>

#include "client/cli/command_line.h"
#include "client/cli/shared_options.h"
#include "client/cli/table.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::client {
namespace {

using test::IsOk;
using ::testing::HasSubstr;

TEST(GrammarTest, ReadsSpecs) {
  struct Case {
    std::string text;
    std::string spec;
  };
  const Case kCases[] = {
      {"fsdp,tp", "P('fsdp', 'tp')"},
      {" fsdp , tp ", "P('fsdp', 'tp')"},
      {"fsdp+dp,-", "P(('fsdp', 'dp'), None)"},
      {"(fsdp,dp),_,tp", "P(('fsdp', 'dp'), None, 'tp')"},
      {"(tp),none", "P('tp', None)"},
      {"(tp,),()", "P('tp', None)"},
      {"?,tp", "P(UNCONSTRAINED, 'tp')"},
      {"tp,", "P('tp')"},
      {"", "P()"},
      {"()", "P()"},
  };
  for (const Case& c : kCases) {
    const absl::StatusOr<PartitionSpec> spec = ParseSpec(c.text);
    ASSERT_THAT(spec, IsOk()) << c.text;
    EXPECT_EQ(spec->ToString(), c.spec) << c.text;
  }
}

TEST(GrammarTest, RefusesSpecsAsWrongUse) {
  struct Case {
    std::string text;
    std::string error;
  };
  const Case kCases[] = {
      {"(fsdp,tp", "lacks a closing \")\""},
      {"fsdp),tp", "closes a \")\" that is not open"},
      {"fsdp,,tp", "a dimension is empty"},
      {"fsdp tp", "is no axis"},
      {"tp=2", "is no axis"},
      {"((a,b),c)", "tuple"},
      {"((((((a))))))", "nests too deep"},
      {"fsdp+,tp", "\"fsdp+\" ends in a + without an axis"},
  };
  for (const Case& c : kCases) {
    const absl::StatusOr<PartitionSpec> spec = ParseSpec(c.text);
    EXPECT_EQ(ExitCodeOf(spec.status()), kExitWrongUse) << c.text;
    EXPECT_THAT(std::string(spec.status().message()), HasSubstr(c.error)) << c.text;
  }
}

TEST(GrammarTest, TablesShowSpecsAsTheyAreWritten) {
  for (const char* text : {"()", "fsdp,tp", "(fsdp,dp),-,tp", "-,tp", "?,tp"}) {
    EXPECT_EQ(FormatSpec(*ParseSpec(text)), text);
  }
}

TEST(GrammarTest, ReadsShapes) {
  EXPECT_EQ(*ParseShape("30522,384"), (Shape{30522, 384}));
  EXPECT_EQ(*ParseShape(" 8 , 0 "), (Shape{8, 0}));
  EXPECT_EQ(*ParseShape(""), Shape());
  for (const char* text : {"8,", "8x8", "-1", "9223372036854775807,2"}) {
    EXPECT_EQ(ExitCodeOf(ParseShape(text).status()), kExitWrongUse) << text;
  }
}

TEST(GrammarTest, ReadsModes) {
  EXPECT_EQ(*ParseMode("train"), Mode(RuntimeMode::kTrain));
  EXPECT_EQ(*ParseMode("__insert__"), Mode(RuntimeMode::kInsert));
  EXPECT_EQ(*ParseMode("1"), Mode::OfDimension(1));
  EXPECT_EQ(ExitCodeOf(ParseMode("trian").status()), kExitWrongUse);
  EXPECT_THAT(std::string(ParseMode("trian").status().message()),
              testing::StartsWith("unknown mode \"trian\""));
}

TEST(GrammarTest, TakesAnyTextForAModeWhereTheOriginalDoes) {
  EXPECT_EQ(*ParseMode("trian", Compatibility::kExact), Mode(RuntimeMode::kTrain));
  EXPECT_EQ(*ParseMode("insert", Compatibility::kExact), Mode(RuntimeMode::kInsert));
}

TEST(GrammarTest, ReadsElementTypesByEitherName) {
  EXPECT_EQ(*ParseElementType("F32"), Dtype::kF32);
  EXPECT_EQ(*ParseElementType("float32"), Dtype::kF32);
  EXPECT_EQ(*ParseElementType("float8_e4m3fn"), Dtype::kF8E4M3);
  EXPECT_FALSE(ParseElementType("float31").ok());
}

TEST(SharedOptionsTest, InfersASizeOfAMeshFromTheDevices) {
  const absl::StatusOr<MeshSelector> mesh = SelectMesh(MeshOption{"dp=-1,tp=8", 32});
  ASSERT_THAT(mesh, IsOk());
  EXPECT_EQ(std::get<Mesh>(*mesh).ToString(), "dp=4,tp=8");
  for (const MeshOption& option : {MeshOption{"dp=-1,tp=8"}, MeshOption{"dp=-1,tp=8", 12},
                                   MeshOption{"default", 8}, MeshOption{"", 8}}) {
    EXPECT_EQ(ExitCodeOf(SelectMesh(option).status()), kExitWrongUse) << option.text;
  }
}

TEST(SharedOptionsTest, TakesMeshesThatOnlyJaxTakesUnderExact) {
  const MeshOption option = {"a=2,a=4"};
  EXPECT_EQ(ExitCodeOf(SelectMesh(option).status()), kExitWrongUse);
  EXPECT_THAT(SelectMesh(option, Compatibility::kExact), IsOk());
}

TEST(SharedOptionsTest, KnowsTheModeByWhichAxesAreRead) {
  EXPECT_EQ(ModeOf(std::nullopt, "", std::nullopt), RuntimeMode::kTrain);
  EXPECT_EQ(ModeOf(Mode::OfDimension(1), "", Shape{8, 1}), RuntimeMode::kAutoregressive);
  EXPECT_EQ(ModeOf(Mode::OfDimension(1), "", std::nullopt), std::nullopt);
  EXPECT_EQ(ModeOf(std::nullopt, "no such preset", std::nullopt), std::nullopt);
}

TEST(GrammarTest, NamesTheNearestValue) {
  EXPECT_THAT(std::string(ParseActivation("gelo").status().message()),
              HasSubstr("did you mean \"gelu\"?"));
}

TEST(GrammarTest, NamesOfCollectivesAreThoseOfPrograms) {
  for (const CollectiveKind kind : AllCollectiveKinds()) {
    EXPECT_EQ(*ParseCollectiveKind(CollectiveKindName(kind)), kind);
  }
  EXPECT_EQ(*ParseCollectiveKind("send"), CollectiveKind::kPermute);
  for (const CollectiveAlgorithm algorithm : AllCollectiveAlgorithms()) {
    EXPECT_EQ(*ParseCollectiveAlgorithm(CollectiveAlgorithmName(algorithm)), algorithm);
  }
  EXPECT_EQ(*ParseCollectiveOrder("fastest"), CollectiveOrder::kFastest);
  EXPECT_EQ(*ParsePermutePair("3:0"), (PermutePair{3, 0}));
  for (const char* text : {"", "1", ":", "1:", ":1", "1:2:3", "a:b", "-1:0", "0:-1"}) {
    EXPECT_EQ(ExitCodeOf(ParsePermutePair(text).status()), kExitWrongUse) << text;
  }
}

TEST(ExitCodeTest, FollowsFromTheStatus) {
  EXPECT_EQ(ExitCodeOf(absl::OkStatus()), kExitDone);
  EXPECT_EQ(ExitCodeOf(absl::InvalidArgumentError("")), kExitFailed);
  EXPECT_EQ(ExitCodeOf(WrongUse("")), kExitWrongUse);
  EXPECT_EQ(ExitCodeOf(absl::UnavailableError("")), kExitUnreachable);
  EXPECT_EQ(ExitCodeOf(WithReason(absl::UnavailableError(""), Reason::kWorkerLost)), kExitFailed);
}

TEST(TableTest, AlignsColumnsByCharacters) {
  Table table({{"name"}, {"size", Table::Align::kRight}, {"remark"}});
  table.AddRow({"é", "10", ""});
  table.AddRow({"longer", "2", "x"});
  EXPECT_EQ(table.ToString(),
            "name    size  remark\n"
            "é         10\n"
            "longer     2  x\n");
}

TEST(TableTest, KeepsARowOnItsLine) {
  Table table({{"name"}});
  table.AddRow({"a\nb\tc\x07"});
  EXPECT_EQ(table.ToString(), "name\na\\nb\\tc\\x07\n");
}

TEST(TableTest, LeavesTheNumbersOfNamesOpen) {
  EXPECT_EQ(NamePattern("layers.12.w2"), "layers.*.w2");
  EXPECT_EQ(NamePattern("h_3/b"), "h_*/b");
}

TEST(TableTest, WritesTheWholeRequestOfAFix) {
  Fix fix;
  fix.kind = Fix::Kind::kAxesSubset;
  fix.spec = *ParseSpec("-,tp");
  fix.shape = {30, 8};
  fix.text = "ask for no axis along dimension 0";
  EXPECT_EQ(FormatFix(fix), "ask for no axis along dimension 0: spec -,tp");
  fix.kind = Fix::Kind::kPaddedSize;
  fix.spec = *ParseSpec("(dp,fsdp),tp");
  fix.shape = {32, 8};
  fix.text = "pad dimension 0 from 30 to 32";
  EXPECT_EQ(FormatFix(fix), "pad dimension 0 from 30 to 32: spec (dp,fsdp),tp, shape 32,8");
  fix.kind = Fix::Kind::kAxisOrder;
  fix.spec = *ParseSpec("tp,-");
  fix.text = "move the axes: ask for P('tp', None)";
  EXPECT_EQ(FormatFix(fix), "move the axes: spec tp,-");
}

TEST(TableTest, CountsOneInTheSingular) {
  EXPECT_EQ(FormatCount(0, "tensor"), "0 tensors");
  EXPECT_EQ(FormatCount(1, "tensor"), "1 tensor");
  EXPECT_EQ(FormatCount(2, "tensor"), "2 tensors");
}

TEST(TableTest, WritesBytesAndTimesWithThreeDigits) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(999), "999 B");
  EXPECT_EQ(FormatBytes(1536), "1.54 kB");
  EXPECT_EQ(FormatBytes(999'999), "1.00 MB");
  EXPECT_EQ(FormatBytes(90'868'376), "90.9 MB");
  EXPECT_EQ(FormatTime(absl::Microseconds(12)), "12.0 us");
  EXPECT_EQ(FormatTime(absl::Milliseconds(141)), "141 ms");
  EXPECT_EQ(FormatTime(absl::Seconds(2.5)), "2.50 s");
}

}  // namespace
}  // namespace shardmesh::client
