// Tests of how the command line's values are written.
#include "client/cli/grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "client/cli/command_line.h"
#include "client/cli/shared_options.h"
#include "client/cli/table.h"
#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::client {
namespace {

using test::IsOk;
using test::IsOkAndHolds;
using ::testing::HasSubstr;

TEST(GrammarTest, ReadsSlices) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const ArraySlice slice, ParseSlice("0:16,:,3:"));
  ASSERT_EQ(slice.size(), 3u);
  EXPECT_EQ(slice[0].stop, 16);
  EXPECT_EQ(slice[1].start, 0);
  EXPECT_EQ(slice[1].stop, std::nullopt);
  EXPECT_EQ(slice[2].start, 3);
  EXPECT_THAT(ParseSlice(""), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const ArraySlice spaced, ParseSlice(" 2 : 4 , : "));
  ASSERT_EQ(spaced.size(), 2u);
  EXPECT_EQ(spaced[0].start, 2);
  EXPECT_EQ(spaced[0].stop, 4);
  EXPECT_EQ(spaced[1].stop, std::nullopt);
}

TEST(GrammarTest, SaysWhatIsWrongWithASlice) {
  constexpr char kNoRange[] = "\" is no range; for each dimension write START:STOP, START:, :STOP,";
  const std::pair<std::string, std::string> kWrong[] = {
      {"3", "\"3\" is no slice: \"3\" is one index; write a range, 3:4, which keeps"},
      {":,3", "\":,3\" is no slice: \"3\" is one index"},
      {"9223372036854775807", "is one index; write a range, 9223372036854775807:, which"},
      {"0:1:2", "\"0:1:2\" has a step; a range START:STOP takes each index"},
      {"::2", "\"::2\" has a step"},
      {"-1:", "\"-1:\" has a number below 0; indexes count from 0"},
      {":-1", "\":-1\" has a number below 0"},
      {"-1", "\"-1\" has a number below 0"},
      {"a:", StrCat("\"a:", kNoRange)},
      {"0:4,", StrCat("\"", kNoRange)},
      {"...", StrCat("\"...", kNoRange)},
      {"+1:2", StrCat("\"+1:2", kNoRange)},
      {"0:99999999999999999999", StrCat("\"0:99999999999999999999", kNoRange)},
  };
  for (const auto& [text, message] : kWrong) {
    const absl::Status refused = ParseSlice(text).status();
    EXPECT_EQ(ExitCodeOf(refused), kExitWrongUse) << text;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(message)) << text;
  }
}

TEST(GrammarTest, ReadsPathsOfNpyFiles) {
  for (const char* right : {"w.npy", "a.b/w", "./-", "/dev/full", "../w", ".w"}) {
    EXPECT_THAT(ParseNpyPath(right, "get"), IsOkAndHolds(std::string(right)));
  }
  EXPECT_THAT(ParseNpyPath("-", "get", /*or_output=*/true), IsOkAndHolds(std::string("-")));
  EXPECT_EQ(ParseNpyPath("-", "matmul").status().message(),
            "this is not written to standard output; name a file, such as ./-");
  EXPECT_EQ(ParseNpyPath("a/w.safetensors", "get", /*or_output=*/true).status().message(),
            "get writes .npy and .safetensors files; name it a/w.npy or a/w.safetensors, or - for "
            "standard "
            "output");
  EXPECT_EQ(ParseNpyPath("w.txt", "matmul").status().message(),
            "matmul writes .npy files; name it w.npy");
}

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
  for (const char* text :
       {"8,", "8x", "x8", "8xx8", "8X8", "scalars", "-1", "9223372036854775807,2"}) {
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
  EXPECT_EQ(*ParseElementType("float8_e4m3fn"), Dtype::kF8E4M3Fn);
  EXPECT_FALSE(ParseElementType("float31").ok());
  EXPECT_THAT(std::string(ParseElementType("F31").status().message()),
              testing::HasSubstr("F32 (float32), "));
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

TEST(TableTest, LeavesOutHeadersAndWideColumnsAsTheStyleSays) {
  Table table({{"name"}, {"id", Table::Align::kLeft, Table::Shown::kWide}, {"size"}});
  table.AddRow({"a", "7", "10"});
  EXPECT_EQ(table.ToString({}), "name  size\na     10\n");
  EXPECT_EQ(table.ToString({.headers = true, .wide = true}), "name  id  size\na     7   10\n");
  EXPECT_EQ(table.ToString({.headers = false}), "a  10\n");
}

TEST(RoundTripTest, ShapesAreReadAsTheyArePrinted) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 1000; ++i) {
    Shape shape(random() % 6);
    for (int64_t& extent : shape) extent = static_cast<int64_t>(random() % 5000);
    EXPECT_THAT(ParseShape(FormatShape(shape)), IsOkAndHolds(shape)) << FormatShape(shape);
    EXPECT_THAT(ParseShape(StrJoin(shape, ",")), IsOkAndHolds(shape));
  }
}

TEST(RoundTripTest, SpecsAreReadAsTheyArePrinted) {
  std::mt19937_64 random(2);
  const std::vector<std::string> axes = {"dp", "fsdp", "tp", "sp", "ep_2"};
  for (int i = 0; i < 1000; ++i) {
    std::vector<SpecEntry> entries(random() % 5);
    for (SpecEntry& entry : entries) {
      const auto kind = random() % 4;
      if (kind == 0) entry = SpecEntry::Unconstrained();
      if (kind == 1) entry = SpecEntry::Axis(axes[random() % axes.size()]);
      if (kind == 2) {
        std::vector<AxisName> names(2 + random() % 3);
        for (AxisName& name : names) name = axes[random() % axes.size()];
        entry = SpecEntry::Axes(std::move(names));
      }
    }
    std::vector<std::string> unreduced(random() % 3);
    for (std::string& axis : unreduced) axis = axes[random() % axes.size()];
    const PartitionSpec spec(std::move(entries), std::move(unreduced));
    EXPECT_THAT(ParseSpec(FormatSpec(spec)), IsOkAndHolds(spec)) << FormatSpec(spec);
  }
}

TEST(RoundTripTest, SizesAreReadAsTheyArePrinted) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 10'000; ++i) {
    const auto bytes = static_cast<int64_t>(random() >> (2 + random() % 61));
    const std::string text = FormatBytes(bytes);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const int64_t read, ParseSize(text));
    EXPECT_EQ(FormatBytes(read), text) << bytes;
    EXPECT_NEAR(static_cast<double>(read), static_cast<double>(bytes),
                static_cast<double>(bytes) * 0.006);
    EXPECT_THAT(ParseSize(StrCat(bytes)), IsOkAndHolds(bytes));
  }
  EXPECT_THAT(ParseSize("1.5MB"), IsOkAndHolds(1'500'000));
  EXPECT_THAT(ParseSize("4 GiB"), IsOkAndHolds(int64_t{4} << 30));
  for (const char* const text : {"", "MiB", "1.5", "1 XiB", "9EiB", "-1KiB", "1 2KiB"}) {
    EXPECT_FALSE(ParseSize(text).ok()) << text;
  }
}

TEST(GrammarTest, ReadsTheVersionOfAnArrayName) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(ArraySelector array, ParseArrayName("wq"));
  EXPECT_EQ(array.name, "wq");
  EXPECT_EQ(array.version, 0);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(array, ParseArrayName("a@b@3"));
  EXPECT_EQ(array.name, "a@b");
  EXPECT_EQ(array.version, 3);
  for (const char* const text : {"wq@", "wq@0", "wq@-1", "wq@x", "@3", "@"}) {
    EXPECT_EQ(ExitCodeOf(ParseArrayName(text).status()), kExitWrongUse) << text;
  }
}

TEST(GrammarTest, RefusesNamesThatCouldNotBeWrittenLater) {
  for (const char* const good : {"a", "model/layer.0", "größe"}) {
    EXPECT_EQ(RefuseNameWithAt(good), "") << good;
  }
  for (const char* const bad : {"a@1", "@x", "a@", "a@b"}) {
    EXPECT_THAT(RefuseNameWithAt(bad), HasSubstr("choose a name without @")) << bad;
  }
  EXPECT_THAT(RefuseNameWithAt("@" + std::string(32, '0')), HasSubstr("is the id of an array"));
}

TEST(GrammarTest, ReadsTheIdOfAnArrayAndPrintsItTheSameWay) {
  const std::string id = "24218fd54f1307227f6c2aeed67b36a6";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(ArraySelector array, ParseArrayName("@" + id));
  EXPECT_EQ(array.array_id, id);
  EXPECT_EQ(array.name, "");
  EXPECT_EQ(FormatArray(array), "@" + id);
  // A name may look like an id, and then needs its version.
  SHARDMESH_ASSERT_OK_AND_ASSIGN(array, ParseArrayName("@" + id + "@3"));
  EXPECT_EQ(array.name, "@" + id);
  EXPECT_EQ(array.version, 3);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(array, ParseArrayName(id));
  EXPECT_EQ(array.name, id);
  EXPECT_EQ(FormatArray(array), id);
  for (const std::string& text : {"@" + id + "0", "@" + id.substr(1), "@X" + id.substr(1)}) {
    EXPECT_THAT(std::string(ParseArrayName(text).status().message()), HasSubstr("and no @ID"))
        << text;
  }
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

TEST(TableTest, EscapesCharactersThatATerminalObeysOrThatReorderText) {
  EXPECT_EQ(EscapeForTerminal("a\x1b[31m\x7f\r\t\n"), "a\\x1b[31m\\x7f\\x0d\\t\\n");
  EXPECT_EQ(EscapeForTerminal("a\nb", /*keep_lines=*/true), "a\nb");
  // CSI of eight bits, a mark that turns the direction of text, and a separator of lines.
  EXPECT_EQ(EscapeForTerminal("\u009b31m \u202e \u2066 \u2028"),
            "\\u009b31m \\u202e \\u2066 \\u2028");
  for (const char* const plain : {"", "wq é ß 漢字 😀 \u00a0", "\xc2", "\xe2\x80", "\x9b"}) {
    EXPECT_EQ(EscapeForTerminal(plain), plain);
  }
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
  fix.text = "move the axes: ask for 'tp' along dimension 0";
  EXPECT_EQ(FormatFix(fix), "move the axes: spec tp,-");
}

TEST(GrammarTest, ChecksWholeNumbers) {
  for (const char* number : {"1", "7", "9223372036854775807"}) {
    EXPECT_EQ(WholeNumberFrom(1)(number), "") << number;
  }
  EXPECT_EQ(WholeNumberFrom(0)("0"), "");
  for (const char* wrong : {"0", "-1", "9223372036854775808", "1.5", "1e3", "+1", " 1", "x", ""}) {
    EXPECT_EQ(WholeNumberFrom(1)(wrong),
              "\"" + std::string(wrong) + "\" is not a whole number from 1");
  }
}

TEST(TableTest, CountsOneInTheSingular) {
  EXPECT_EQ(FormatCount(0, "tensor"), "0 tensors");
  EXPECT_EQ(FormatCount(1, "tensor"), "1 tensor");
  EXPECT_EQ(FormatCount(2, "tensor"), "2 tensors");
}

TEST(TableTest, WritesBytesAndTimesWithThreeDigits) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(999), "999 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1024), "1.00 KiB");
  EXPECT_EQ(FormatBytes(1536), "1.50 KiB");
  EXPECT_EQ(FormatBytes(1'048'575), "1.00 MiB");
  EXPECT_EQ(FormatBytes(90'868'376), "86.7 MiB");
  EXPECT_EQ(FormatBytes(std::numeric_limits<int64_t>::max()), "8.00 EiB");
  EXPECT_EQ(FormatTime(absl::Microseconds(12)), "12.0 us");
  EXPECT_EQ(FormatTime(absl::Milliseconds(141)), "141 ms");
  EXPECT_EQ(FormatTime(absl::Seconds(2.5)), "2.50 s");
}

}  // namespace
}  // namespace shardmesh::client
