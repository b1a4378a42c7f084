// What the conformance runner makes of good, wrong, foreign and missing files.
#include "tests/conformance/runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/conformance/all_questions.h"
#include "tests/testing/golden.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::conformance {
namespace {

using ::shardmesh::test::IsOk;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

// A folder that is gone at the end, and what a run over it says.
class RunnerTest : public testing::Test {
 protected:
  RunnerTest() {
    std::string name = testing::TempDir() + "conformanceXXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~RunnerTest() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& file, std::string_view text) const {
    std::ofstream(folder_ / file) << text;
  }

  // Knows one function: `double` of a number is twice the number, of null is a TypeError, of true
  // is a pattern that is not supported.
  absl::StatusOr<RunResult> Run() {
    const Questions questions = {{"double", [](const Json& input) -> absl::StatusOr<Json> {
                                    const Json& x = input.at("x");
                                    if (x.is_null()) {
                                      return InvalidArgument(Reason::kBadField, "null cannot be",
                                                             "TypeError");
                                    }
                                    if (x == true) {
                                      return InvalidArgument(Reason::kUnsupportedPattern, "no");
                                    }
                                    return 2 * x.get<int64_t>();
                                  }}};
    return RunFolder(folder_, questions, failures_);
  }

  std::filesystem::path folder_;
  std::ostringstream failures_;
};

constexpr std::string_view kRight = R"({"id":"a/1","fn":"double","input":{"x":2},"expect":4})"
                                    "\n";

TEST_F(RunnerTest, PassesWhereValuesAndErrorClassesAreTheRecordedOnes) {
  Write("a.jsonl", StrCat(kRight, R"(
{"id":"a/2","fn":"double","input":{"x":null},"error":{"type":"TypeError","py_type":"TypeError"}}
)"));
  const auto result = Run();
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->Total().passed, 2);
  EXPECT_TRUE(result->Succeeded());
  EXPECT_THAT(failures_.str(), IsEmpty());
}

TEST_F(RunnerTest, PrintsAFailingLineWithBothAnswers) {
  Write("a.jsonl", StrCat(kRight, R"({"id":"a/2","fn":"double","input":{"x":3},"expect":7})"));
  const auto result = Run();
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->Total().passed, 1);
  EXPECT_EQ(result->Total().failed, 1);
  EXPECT_FALSE(result->Succeeded());
  EXPECT_THAT(failures_.str(), AllOf(HasSubstr("a.jsonl:2: a/2"), HasSubstr(R"("input":{"x":3})"),
                                     HasSubstr("expected 7"), HasSubstr("got      6")));
}

TEST_F(RunnerTest, FailsAnErrorOfAnotherClassAndAnAnswerInsteadOfAnError) {
  Write("a.jsonl", R"({"id":"1","fn":"double","input":{"x":null},"error":{"py_type":"KeyError"}}
{"id":"2","fn":"double","input":{"x":1},"error":{"py_type":"TypeError"}}
{"id":"3","fn":"double","input":{"x":null},"expect":1})");
  const auto result = Run();
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->Total().failed, 3);
  EXPECT_THAT(failures_.str(),
              AllOf(HasSubstr("expected error KeyError"), HasSubstr("got      error TypeError"),
                    HasSubstr("expected error TypeError"), HasSubstr("got      2")));
}

TEST_F(RunnerTest, CutsALongLine) {
  Write("a.jsonl", StrCat(R"({"id":"1","fn":"double","expect":1,"input":{"x":1,"y":")",
                          std::string(1 << 20, 'y'), R"("}})"));
  ASSERT_THAT(Run(), IsOk());
  EXPECT_LT(failures_.str().size(), size_t{20'000});
  EXPECT_THAT(failures_.str(), HasSubstr("bytes)"));
}

TEST_F(RunnerTest, FailsWhatIsNoCaseAndGoesOn) {
  const std::string deep(100'000, '[');
  Write("a.jsonl",
        StrCat("{\n", "5\n", "\xff\xfe\n", R"({"id":"1"})", "\n",
               R"({"id":"2","fn":"double","input":{"x":1}})", "\n",
               R"({"id":"3","fn":"double","input":{"x":1},"expect":2,"error":{"py_type":"E"}})",
               "\n", R"({"id":"4","fn":"double","input":{"x":"text"},"expect":2})", "\n",
               R"({"id":"5","fn":"double","input":7,"expect":2})", "\n",
               R"({"id":"6","fn":"double","expect":2,"input":)", deep, "\n",
               R"({"id":"7","fn":"double","expect":2,"input":)", deep,
               std::string(deep.size(), ']'), "}\n", kRight));
  const auto result = Run();
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->Total().failed, 10);
  EXPECT_EQ(result->Total().passed, 1);
  EXPECT_THAT(failures_.str(), AllOf(HasSubstr("a.jsonl:1: malformed"),
                                     HasSubstr("a.jsonl:10: malformed"), HasSubstr("deeper")));
}

TEST_F(RunnerTest, CountsUnknownFunctionsAndUnsupportedPatternsApart) {
  Write("b.jsonl", R"({"id":"b/1","fn":"double","input":{"x":true},"expect":2}
{"id":"b/2","fn":"matmul","input":{},"expect":2}
{"id":"b/3","fn":"matmul","input":{},"expect":2})");
  Write("a.jsonl", kRight);
  Write("notes.txt", "no case");
  const auto result = Run();
  ASSERT_THAT(result, IsOk());
  ASSERT_EQ(result->files.size(), 2U);
  EXPECT_EQ(result->files[0].file, "a.jsonl");
  EXPECT_EQ(result->files[1].unsupported_pattern, 1);
  EXPECT_EQ(result->files[1].unknown_function, 2);
  EXPECT_THAT(result->unknown_functions, ElementsAre(Pair("matmul", 2)));
  EXPECT_THAT(result->unsupported_patterns, ElementsAre("b/1"));
  EXPECT_TRUE(result->Succeeded());

  std::ostringstream counts;
  PrintCounts(*result, counts);
  EXPECT_THAT(counts.str(), AllOf(HasSubstr("b.jsonl            0            0            3"),
                                  HasSubstr("total              1            0            3"),
                                  HasSubstr("matmul (2)")));
  std::ostringstream listed;
  PrintUnsupported(*result, listed);
  EXPECT_EQ(listed.str(), "function matmul: 2 lines\npattern b/1\n");
}

TEST_F(RunnerTest, TakesAnUnsupportedPatternForAFailureWhereTheOriginalRaises) {
  Write("a.jsonl", R"({"id":"1","fn":"double","input":{"x":true},"error":{"py_type":"error"}})");
  const auto result = Run();
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->Total().failed, 1);
  EXPECT_EQ(result->Total().unsupported(), 0);
}

TEST_F(RunnerTest, DoesNotSucceedWhereNothingPasses) {
  Write("a.jsonl", "");
  const auto result = Run();
  ASSERT_THAT(result, IsOk());
  EXPECT_FALSE(result->Succeeded());
}

TEST_F(RunnerTest, FailsAFileThatCannotBeRead) {
  std::filesystem::create_directory(folder_ / "a.jsonl");
  const auto result = Run();
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->Total().failed, 1);
  EXPECT_THAT(failures_.str(), HasSubstr("cannot be read"));
}

TEST_F(RunnerTest, NamesAFolderThatHasNothingToAsk) {
  EXPECT_THAT(std::string(Run().status().message()), HasSubstr("has no *.jsonl file"));
  Write("file", "");
  folder_ /= "file";
  EXPECT_THAT(std::string(Run().status().message()), HasSubstr("is no folder"));
  folder_ = folder_.parent_path() / "missing";
  EXPECT_THAT(std::string(Run().status().message()), HasSubstr("no such folder"));
  folder_ = folder_.parent_path();
}

// The recorded cases with each of their fields replaced or left out: each gets an answer, an error,
// or Json::exception, which the runner reports.
TEST_F(RunnerTest, SurvivesInputsOfWrongForms) {
  const std::vector<Json> values = {nullptr,
                                    true,
                                    5,
                                    -3,
                                    1e300,
                                    "text",
                                    Json::array(),
                                    {5},
                                    {{"a", 5}},
                                    Json::object(),
                                    {{"x", 1}},
                                    {{"axes", {{"dp", -7}}}},
                                    {{"axes", {{"dp", int64_t{1} << 40}}}}};
  constexpr int kCasesOfAFunction = 3;
  const Questions questions = LibraryQuestions();
  std::map<std::string, int> cases;
  for (const auto& file :
       std::filesystem::directory_iterator(StrCat(SHARDMESH_SOURCE_DIR, "/tests/data/goldens"))) {
    if (file.path().extension() != ".jsonl") continue;
    for (const test::Golden& golden : test::LoadGoldens(file.path().filename().string())) {
      const auto ask = questions.find(golden.fn);
      if (ask == questions.end() || ++cases[golden.fn] > kCasesOfAFunction) continue;
      for (const auto& [field, unused] : golden.input.items()) {
        std::vector<Json> inputs(values.size() + 1, golden.input);
        inputs.back().erase(field);
        for (size_t i = 0; i < values.size(); ++i) inputs[i][field] = values[i];
        for (const Json& input : inputs) {
          try {
            ask->second(input).status().IgnoreError();
          } catch (const Json::exception&) {
            continue;
          }
        }
      }
    }
  }
  EXPECT_EQ(cases.size(), questions.size());
}

}  // namespace
}  // namespace shardmesh::conformance
