// The tree of commands: sections, examples, and common options in both places.
#include "client/cli/commands/command_guide.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "client/cli/manual.h"
#include "client/cli/shell_words.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::client {
namespace {

using ::shardmesh::test::IsOk;
using ::testing::IsEmpty;
using ::testing::Not;

absl::Status Check(const std::vector<std::string>& arguments) {
  CommandLine line;
  AddAllCommands(&line);
  return line.Check(arguments);
}

TEST(CommandGuideTest, EachCommandIsInOneSectionOfTheHelp) {
  CommandLine line;
  AddAllCommands(&line);
  std::multiset<std::string> in_sections;
  for (const auto& [title, names] : CommandSections()) {
    in_sections.insert(names.begin(), names.end());
  }
  std::multiset<std::string> commands;
  for (const CLI::App* command : line.app().get_subcommands({})) {
    commands.insert(command->get_name());
  }
  EXPECT_EQ(in_sections, commands);
  const std::string help = line.app().help();
  for (const auto& [title, names] : CommandSections()) {
    EXPECT_THAT(help, ::testing::HasSubstr("\n" + title + ":\n"));
  }
}

TEST(CommandGuideTest, TheHelpOfEachCommandEndsWithAnExample) {
  CommandLine line;
  AddAllCommands(&line);
  for (const CLI::App* app : ManualSubjects(line)) {
    if (!app->get_subcommands({}).empty()) continue;
    EXPECT_THAT(line.ExamplesOf(app), Not(IsEmpty())) << ManualPageName(app);
    if (line.ExamplesOf(app).empty()) continue;
    const std::string end = "  " + line.ExamplesOf(app).back() + "\n";
    EXPECT_TRUE(app->help().ends_with(end)) << app->help();
  }
}

TEST(CommandGuideTest, EachExampleIsACommandLine) {
  for (const CommandExample& example : CommandExamples()) {
    std::vector<std::string> words = ShellWords(example.text);
    ASSERT_EQ(words.front(), "shardmesh");
    words.erase(words.begin());
    EXPECT_THAT(Check(words), IsOk()) << example.text;
  }
}

TEST(CommandGuideTest, HelpIsAnotherSpellingOfTheOption) {
  const auto output_of = [](std::vector<const char*> words) {
    words.insert(words.begin(), "shardmesh");
    CommandLine line;
    AddAllCommands(&line);
    ::testing::internal::CaptureStdout();
    EXPECT_EQ(line.Run(static_cast<int>(words.size()), words.data()), 0);
    return ::testing::internal::GetCapturedStdout();
  };
  EXPECT_EQ(output_of({"help"}), output_of({"--help"}));
  EXPECT_EQ(output_of({"help", "help"}), output_of({"--help"}));
  EXPECT_EQ(output_of({"help", "help", "load"}), output_of({"load", "--help"}));
  EXPECT_EQ(output_of({"help", "load"}), output_of({"load", "--help"}));
  EXPECT_EQ(output_of({"help", "catalog"}), output_of({"catalog", "--help"}));
  EXPECT_EQ(output_of({"help", "catalog", "put"}), output_of({"catalog", "put", "--help"}));
  EXPECT_THAT(output_of({"help"}), ::testing::HasSubstr("`shardmesh help COMMAND`"));
}

TEST(CommandGuideTest, ALimitOfThreadsIsNamed) {
  CommandLine line;
  AddAllCommands(&line);
  line.AddCommand("lonely", "starts a thread", [](const Invocation&) -> absl::Status {
    throw std::system_error(EAGAIN, std::system_category());
  });
  const char* const words[] = {"shardmesh", "lonely"};
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(line.Run(2, words), 1);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), ::testing::HasSubstr("ulimit -u"));
}

TEST(CommandGuideTest, CommonOptionsStandBeforeOrAfterTheCommand) {
  CommandLine line;
  AddAllCommands(&line);
  const std::vector<std::vector<std::string>> kOptions = {
      {"--address", "x:1"},
      {"--address=x:1"},
      {"--cluster", "a"},
      {"--context", "a"},
      {"--deadline", "1s"},
      {"-o", "json"},
      {"-oyaml"},
      {"--output=wide"},
      {"--output", "name"},
      {"--no-headers"},
      {"-q"},
      {"--quiet"},
      {"-w"},
      {"--watch"},
      {"--interval", "1s"},
      {"--tls-cert", "f"},
      {"--tls-key", "f"},
      {"--tls-ca=f"},
  };
  std::set<std::string> tested;
  for (const std::vector<std::string>& option : kOptions) {
    tested.insert(option.front().substr(0, option.front().find('=')));
    for (const std::vector<std::string>& command :
         std::vector<std::vector<std::string>>{{"ls"}, {"catalog", "ls"}}) {
      for (size_t place = 0; place <= command.size(); ++place) {
        std::vector<std::string> arguments = command;
        arguments.insert(arguments.begin() + static_cast<std::ptrdiff_t>(place), option.begin(),
                         option.end());
        EXPECT_THAT(Check(arguments), IsOk()) << ::testing::PrintToString(arguments);
      }
    }
  }
  for (const CLI::Option* option : line.app().get_options()) {
    if (option->get_group() != kCommonOptions) continue;
    EXPECT_EQ(tested.count("--" + option->get_lnames().front()), 1U) << option->get_name();
  }
}

TEST(CommandGuideTest, NoCommandHasAnOptionOfTheNameOfACommonOne) {
  CommandLine line;
  AddAllCommands(&line);
  for (const CLI::App* app : ManualSubjects(line)) {
    if (app == &line.app()) continue;
    for (const CLI::Option* option : line.app().get_options()) {
      if (option->get_group() != kCommonOptions) continue;
      EXPECT_EQ(app->get_option_no_throw("--" + option->get_lnames().front()), nullptr)
          << ManualPageName(app);
    }
  }
}

TEST(CommandGuideTest, RefusesCommonOptionsThatDoNotGoWithTheCommand) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"down", "-w"},
                                             {"version", "-o", "name"},
                                             {"ls", "--context=a", "--address=x:1"},
                                             {"ls", "--context=a", "--cluster=b"},
                                             {"--adress", "x:1", "ls"},
                                             {"ls", "--version"},
                                             {"get", "a", "--out", "f", "--version", "3"},
                                             {"--address"},
                                             {"--address", "ls"}}) {
    EXPECT_EQ(ExitCodeOf(Check(arguments)), kExitWrongUse) << ::testing::PrintToString(arguments);
  }
}

}  // namespace
}  // namespace shardmesh::client
