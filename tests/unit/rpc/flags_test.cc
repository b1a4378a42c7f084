// Command lines: what is read, and what the refusals say.
#include "rpc/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/status_matchers.h"

namespace shardmesh::rpc {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ParseByteSizeTest, ReadsNumbersWithAndWithoutUnits) {
  EXPECT_THAT(ParseByteSize("0"), IsOkAndHolds(0));
  EXPECT_THAT(ParseByteSize("1024"), IsOkAndHolds(1024));
  EXPECT_THAT(ParseByteSize("7B"), IsOkAndHolds(7));
  EXPECT_THAT(ParseByteSize("64KiB"), IsOkAndHolds(65536));
  EXPECT_THAT(ParseByteSize("4GiB"), IsOkAndHolds(int64_t{4} << 30));
  EXPECT_THAT(ParseByteSize("4gib"), IsOkAndHolds(int64_t{4} << 30));
  EXPECT_THAT(ParseByteSize("1.5MiB"), IsOkAndHolds(1572864));
  EXPECT_THAT(ParseByteSize("2TB"), IsOkAndHolds(2'000'000'000'000));
  EXPECT_THAT(ParseByteSize("9223372036854775807"), IsOkAndHolds(9223372036854775807));
}

TEST(ParseByteSizeTest, RefusesWhatIsNoNumberOfBytes) {
  for (const char* text : {"", "GiB", "4 GiB", "-1", "4XiB", "1e3", "inf", "1.2.3KiB", "0.3B",
                           "1.0001KiB", "8388608TiB", "99999999999999999999"}) {
    EXPECT_THAT(ParseByteSize(text), StatusIs(absl::StatusCode::kInvalidArgument)) << text;
  }
}

class FlagSetTest : public ::testing::Test {
 protected:
  FlagSetTest() : flags_("shardmesh-thing", "Does a thing.") {
    flags_.AddHostPort("listen", "where to listen", &listen_, /*may_be_empty=*/true);
    flags_.AddHostPorts("advertise", "where others reach it", &advertise_);
    flags_.AddAddress("coordinator", "whom to call", &coordinator_);
    flags_.AddInt("threads", "how many threads", 1, 64, &threads_);
    flags_.AddBytes("memory", "how much memory", &memory_, 16, 1 << 20);
    flags_.AddCheck([this] {
      return threads_ == 13 ? absl::InvalidArgumentError("13 is an odd number") : absl::OkStatus();
    });
    flags_.AddDuration("interval", "how often", &interval_);
    flags_.AddSwitch("insecure", "no encryption", &insecure_);
    flags_.AddTls(&tls_, &insecure_);
    flags_.AddLog(&log_);
  }

  absl::Status Parse(std::vector<const char*> arguments) { return flags_.Parse(arguments); }

  std::string listen_ = "127.0.0.1:0";
  std::vector<std::string> advertise_;
  std::string coordinator_ = "127.0.0.1:1";
  int64_t threads_ = 2;
  int64_t memory_ = 1024;
  absl::Duration interval_ = absl::Seconds(1);
  bool insecure_ = false;
  TlsFiles tls_;
  LogOptions log_;
  FlagSet flags_;
};

TEST_F(FlagSetTest, LeavesDefaultsWithoutArguments) {
  EXPECT_THAT(Parse({}), IsOk());
  EXPECT_EQ(listen_, "127.0.0.1:0");
  EXPECT_EQ(threads_, 2);
  EXPECT_FALSE(insecure_);
}

TEST_F(FlagSetTest, ReadsBothFormsOfEveryKind) {
  EXPECT_THAT(Parse({"--listen", "a:1", "--threads=3", "--memory", "4KiB", "--interval=250ms",
                     "--insecure", "--log-format=json", "--log-level", "debug", "--advertise=x:1",
                     "--advertise", "[::1]:2", "--coordinator=unix:/s"}),
              IsOk());
  EXPECT_EQ(listen_, "a:1");
  EXPECT_EQ(threads_, 3);
  EXPECT_EQ(memory_, 4096);
  EXPECT_EQ(interval_, absl::Milliseconds(250));
  EXPECT_TRUE(insecure_);
  EXPECT_EQ(log_.format, LogFormat::kJson);
  EXPECT_EQ(log_.level, LogLevel::kDebug);
  EXPECT_THAT(advertise_, ElementsAre("x:1", "[::1]:2"));
  EXPECT_EQ(coordinator_, "unix:/s");
}

TEST_F(FlagSetTest, TakesTheLastValueAndEmptyOnes) {
  EXPECT_THAT(Parse({"--insecure", "--insecure=false", "--listen=a:1", "--listen="}), IsOk());
  EXPECT_FALSE(insecure_);
  EXPECT_EQ(listen_, "");
}

TEST_F(FlagSetTest, NamesTheNearestFlagOfAnUnknownOne) {
  const absl::Status status = Parse({"--thread", "3"});
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("--thread"), HasSubstr("; did you mean --threads?")));
}

TEST_F(FlagSetTest, RefusesWhatDoesNotReadAndNamesTheFlag) {
  const std::vector<std::vector<const char*>> cases = {
      {"--threads", "0"},      {"--threads", "many"},  {"--threads"},        {"--memory=0"},
      {"--memory", "a lot"},   {"--interval", "5"},    {"--interval=-1s"},   {"--insecure=perhaps"},
      {"--log-format", "xml"}, {"--log-level", "all"}, {"--memory=15"},      {"--listen", "nohost"},
      {"--listen=unix:/s"},    {"--listen=::1:5"},     {"--advertise=x"},    {"--advertise="},
      {"--coordinator", "a"},  {"--coordinator="},     {"--listen=a:65536"}, {"--tls-cert="},
      {"--tls-key", ""},       {"--memory=2MiB"},
  };
  for (const std::vector<const char*>& arguments : cases) {
    const absl::Status status = Parse(arguments);
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument)) << arguments[0];
    const std::string flag =
        std::string(arguments[0]).substr(0, std::string(arguments[0]).find('='));
    EXPECT_THAT(std::string(status.message()), HasSubstr(flag));
  }
}

TEST_F(FlagSetTest, ChecksFlagsTogetherOnceAllAreRead) {
  EXPECT_THAT(Parse({"--threads=13"}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Parse({"--threads=13", "--threads=12"}), IsOk());
}

TEST_F(FlagSetTest, RefusesArgumentsThatAreNoFlags) {
  for (const char* argument : {"listen", "-l", "--", ""}) {
    EXPECT_THAT(Parse({argument}), StatusIs(absl::StatusCode::kInvalidArgument)) << argument;
  }
}

TEST_F(FlagSetTest, TakesAnyArgumentAfterAFlagForItsValue) {
  EXPECT_THAT(Parse({"--tls-cert", "--threads", "--tls-key", "-h", "--tls-ca", "[a,b]"}), IsOk());
  EXPECT_EQ(tls_, (TlsFiles{"--threads", "-h", "[a,b]"}));
  EXPECT_EQ(threads_, 2);
}

TEST_F(FlagSetTest, ReportsTheFirstErrorOfTheCommandLine) {
  const struct Case {
    std::vector<const char*> arguments;
    absl::StatusCode code;
    std::string message;
  } kCases[] = {
      {{"--threads=0", "--treads=1"}, absl::StatusCode::kInvalidArgument, "from 1 to 64"},
      {{"--treads=1", "--threads=0"}, absl::StatusCode::kInvalidArgument, "no flag --treads;"},
      {{"--treads", "--help"}, absl::StatusCode::kInvalidArgument, "no flag --treads;"},
      {{"--help", "--threads=0"}, absl::StatusCode::kCancelled, ""},
      {{"--threads=0", "--help"}, absl::StatusCode::kInvalidArgument, "from 1 to 64"},
      {{"a", "--threads"}, absl::StatusCode::kInvalidArgument, "\"a\" is no flag"},
      {{"--insecure", "--threads"},
       absl::StatusCode::kInvalidArgument,
       "--threads needs a value: --threads N"},
      {{"--insecure", "true"}, absl::StatusCode::kInvalidArgument, "\"true\" is no flag"},
      {{"--threads", "--", "--threads"},
       absl::StatusCode::kInvalidArgument,
       "--threads: \"--\" is not a whole number from 1 to 64"},
  };
  for (const Case& c : kCases) {
    const absl::Status status = Parse(c.arguments);
    EXPECT_THAT(status, StatusIs(c.code)) << c.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
  }
}

TEST_F(FlagSetTest, ParsesAgainAfterAnError) {
  EXPECT_THAT(Parse({"--threads=0"}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Parse({"--threads=3", "--advertise=x:1"}), IsOk());
  EXPECT_EQ(threads_, 3);
  EXPECT_THAT(advertise_, ElementsAre("x:1"));
}

TEST_F(FlagSetTest, TakesTheFilesOfTlsTogetherAndWithoutPlaintext) {
  EXPECT_THAT(Parse({"--tls-cert=c", "--tls-key=k", "--tls-ca=a"}), IsOk());
  EXPECT_EQ(tls_, (TlsFiles{"c", "k", "a"}));
  const absl::Status plaintext = Parse({"--insecure"});
  EXPECT_THAT(plaintext, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_THAT(std::string(plaintext.message()), HasSubstr("--http-plaintext"));
  insecure_ = false;
  tls_ = {};
  const absl::Status partial = Parse({"--tls-cert=c", "--tls-ca=a"});
  EXPECT_THAT(partial, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_THAT(std::string(partial.message()), HasSubstr("--tls-key is missing"));
}

TEST_F(FlagSetTest, ReportsThatHelpIsAskedFor) {
  EXPECT_THAT(Parse({"--help"}), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(Parse({"-h"}), StatusIs(absl::StatusCode::kCancelled));
}

TEST_F(FlagSetTest, ListsFlagsWithTheirDefaultsInTheHelpText) {
  EXPECT_THAT(
      flags_.Help(),
      AllOf(HasSubstr("usage: shardmesh-thing [FLAG...]"), HasSubstr("Does a thing."),
            HasSubstr("--listen HOST:PORT"), HasSubstr("where to listen (default 127.0.0.1:0)"),
            HasSubstr("--insecure  "), HasSubstr("(default 1s)"), HasSubstr("--help")));
}

TEST_F(FlagSetTest, ExitsWithWrongUseOnlyWhereTheCommandLineIsWrong) {
  const char* good[] = {"thing", "--threads", "4"};
  EXPECT_EQ(flags_.ParseMain(3, good), std::nullopt);
  const char* bad[] = {"thing", "--treads", "4"};
  EXPECT_EQ(flags_.ParseMain(3, bad), FlagSet::kWrongUse);
  const char* help[] = {"thing", "--help"};
  EXPECT_EQ(flags_.ParseMain(2, help), FlagSet::kDone);
}

}  // namespace
}  // namespace shardmesh::rpc
