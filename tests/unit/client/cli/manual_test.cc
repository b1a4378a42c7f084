// The pages of the manual are right for the programs that show them.
#include "client/cli/manual.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "client/cli/commands/command_guide.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ManualTest, APageHasOptionsAndExamples) {
  CommandLine line;
  AddAllCommands(&line);
  for (const CLI::App* app : ManualSubjects(line)) {
    if (ManualPageName(app) != "shardmesh-catalog-get") continue;
    EXPECT_THAT(ManualPage(line, app),
                AllOf(HasSubstr(".TH SHARDMESH\\-CATALOG\\-GET 1"),
                      HasSubstr(".SH SYNOPSIS\n\\fBshardmesh catalog get\\fR"),
                      HasSubstr(".SH COMMON OPTIONS"), HasSubstr("\\-\\-address"),
                      HasSubstr(".SH EXAMPLES\n.nf\nshardmesh catalog get rules bert@2\n.fi")));
    return;
  }
  FAIL() << "no page of `catalog get`";
}

TEST(ManualTest, FormattersFindNoFault) {
  CommandLine line;
  AddAllCommands(&line);
  std::string checker;
  if (std::system("command -v mandoc > /dev/null") == 0) {
    checker = "mandoc -Tlint -Wwarning";
  } else if (std::system("command -v groff > /dev/null") == 0) {
    checker = "groff -man -Tutf8 -ww";
  } else {
    GTEST_SKIP() << "NEITHER MANDOC NOR GROFF HERE: the pages of the manual are not checked";
  }
  const std::string path = ::testing::TempDir() + "page.1";
  for (const CLI::App* app : ManualSubjects(line)) {
    std::ofstream(path) << ManualPage(line, app);
    // Faults go to standard error of groff, to standard output of mandoc.
    const std::string faults = checker.starts_with("groff") ? " 2>&1 > /dev/null" : " 2>&1";
    EXPECT_EQ(std::system(StrCat("test -z \"$(", checker, " ", path, faults, ")\"").c_str()), 0)
        << ManualPageName(app);
  }
}

}  // namespace
}  // namespace shardmesh::client
