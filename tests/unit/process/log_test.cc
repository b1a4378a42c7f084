// The two formats of log lines, levels, and that nothing breaks a line.
#include "process/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::StatusIs;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class LogTest : public ::testing::Test {
 protected:
  ~LogTest() override { ConfigureLog({}); }

  template <typename Function>
  static std::string Captured(Function function) {
    ::testing::internal::CaptureStderr();
    function();
    return ::testing::internal::GetCapturedStderr();
  }
};

TEST_F(LogTest, WritesKeysAndValuesAsText) {
  ConfigureLog({.format = LogFormat::kText});
  EXPECT_THAT(Captured([] {
                LogInfo("worker attached", {{"identity", "worker-0"},
                                            {"rank", 3},
                                            {"alive", true},
                                            {"after", absl::Milliseconds(1500)},
                                            {"note", "two words"}});
              }),
              EndsWith("Z INFO worker attached identity=worker-0 rank=3 alive=true after=1.5s "
                       "note=\"two words\"\n"));
}

TEST_F(LogTest, WritesJsonThatParses) {
  ConfigureLog({.format = LogFormat::kJson});
  const std::string line = Captured([] {
    LogError("it \"failed\"\n", {{"error", absl::NotFoundError("no array")},
                                 {"ratio", 0.5},
                                 {"nan", std::numeric_limits<double>::quiet_NaN()},
                                 {"bytes", std::string("\x01\xff\xc3\xa9", 4)}});
  });
  const nlohmann::json parsed = nlohmann::json::parse(line);
  EXPECT_EQ(parsed["level"], "error");
  EXPECT_EQ(parsed["message"], "it \"failed\"\n");
  EXPECT_EQ(parsed["error"], "NOT_FOUND: no array");
  EXPECT_EQ(parsed["ratio"], 0.5);
  EXPECT_EQ(parsed["nan"], "nan");
  EXPECT_EQ(parsed["bytes"], "\x01\xef\xbf\xbd\xc3\xa9");
}

TEST_F(LogTest, KeepsOneLineWhateverItIsGiven) {
  const std::string line = Captured([] {
    LogInfo("a\nb", {{"value", "forged\n2026 INFO admin logged in\r"}});
  });
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
  EXPECT_THAT(line, HasSubstr("value=\"forged\\n2026 INFO admin logged in\\u000d\""));
}

TEST_F(LogTest, WritesNothingBelowTheLevel) {
  ConfigureLog({.level = LogLevel::kWarning});
  EXPECT_FALSE(LogEnabled(LogLevel::kInfo));
  EXPECT_THAT(Captured([] {
                LogDebug("no");
                LogInfo("no");
              }),
              IsEmpty());
  EXPECT_THAT(Captured([] { LogWarning("yes"); }), HasSubstr("WARNING yes"));
  ConfigureLog({.level = LogLevel::kOff});
  EXPECT_THAT(Captured([] { LogError("no"); }), IsEmpty());
}

TEST_F(LogTest, ReadsLevels) {
  EXPECT_THAT(ParseLogLevel("debug"), IsOkAndHolds(LogLevel::kDebug));
  EXPECT_THAT(ParseLogLevel("off"), IsOkAndHolds(LogLevel::kOff));
  EXPECT_THAT(ParseLogLevel("INFO"),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
}

}  // namespace
}  // namespace shardmesh
