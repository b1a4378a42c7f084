// A real bash completes commands, options and values.
#include "client/cli/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "client/cli/commands/command_guide.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

using ::testing::HasSubstr;

std::string OutputOf(const std::string& command) {
  std::string text;
  FILE* const pipe = popen(command.c_str(), "r");
  std::array<char, 4096> buffer = {};
  while (const size_t size = fread(buffer.data(), 1, buffer.size(), pipe)) {
    text.append(buffer.data(), size);
  }
  EXPECT_EQ(pclose(pipe), 0) << command;
  return text;
}

// Writes the script; returns its path.
std::string Script(std::string (*completion)(const CLI::App&), const std::string& name) {
  CommandLine line;
  AddAllCommands(&line);
  std::string path = ::testing::TempDir() + name;
  std::ofstream(path) << completion(line.app());
  return path;
}

TEST(CompletionTest, BashCompletesCommandsOptionsAndValues) {
  const struct Case {
    std::string words;  // as bash cuts them; the last is completed
    std::string completed;
  } kCases[] = {
      {"sta", "status"},
      {"cata", "catalog"},
      {"catalog g", "get"},
      {"--address x : 1 catalog hi", "history"},
      {"catalog get r", "rules"},
      {"catalog get rules ''", ""},
      {"status --out", "--output"},
      {"status --output y", "yaml"},
      {"status --output = y", "yaml"},
      {"status -o js", "json"},
      {"-o js", "json"},
      {"up --transport ''", "auto stream shm"},
      {"up --mesh dp = 4,tp = 8 --transport sh", "shm"},
      {"collective all-r", "all-reduce"},
      {"collective all-reduce x --reduction m", "min max mean"},
      {"linear --activation gelu-", "gelu-tanh"},
      {"completion ''", "bash zsh"},
      {"config use", "use-context"},
      {"nonsense ''", ""},
  };
  const std::string script = Script(BashCompletion, "completion.bash");
  for (const Case& c : kCases) {
    const std::string run =
        StrCat("bash --norc -uc '. ", script, "; t() { COMP_WORDS=(shardmesh \"$@\"); ",
               "COMP_CWORD=$#; _shardmesh; echo \"${COMPREPLY[*]}\"; }; t ");
    std::string words;
    for (const char letter : c.words) words += letter == '\'' ? "\"" : std::string(1, letter);
    // `''` is an empty word within the quotes of -c.
    EXPECT_EQ(OutputOf(StrCat(run, words, "'")), c.completed + "\n") << c.words;
  }
}

TEST(CompletionTest, BashAsksTheProgramForOperations) {
  const std::string script = Script(BashCompletion, "operations.bash");
  // A program that lists two operations, and shows what it was asked.
  const std::string program = ::testing::TempDir() + "listing";
  std::ofstream(program) << "#!/bin/sh\necho \"$*\" > " << program
                         << ".asked\necho 0a1b\necho 0c2d\n";
  ASSERT_EQ(std::system(StrCat("chmod +x ", program).c_str()), 0);
  const struct Case {
    std::string words;
    std::string completed;
    std::string asked;
  } kCases[] = {
      {"ops show \"\"", "0a1b 0c2d", "ops ls --output=name --deadline=2s"},
      {"ops watch 0a", "0a1b", "ops ls --output=name --deadline=2s --state=running"},
      {"ops cancel 0a1b 0c", "0c2d", "ops ls --output=name --deadline=2s --state=running"},
  };
  for (const Case& c : kCases) {
    EXPECT_EQ(
        OutputOf(StrCat("bash --norc -uc '. ", script, "; t() { COMP_WORDS=(", program,
                        " \"$@\"); COMP_CWORD=$#; _shardmesh; echo \"${COMPREPLY[*]}\"; }; t ",
                        c.words, "'")),
        c.completed + "\n")
        << c.words;
    EXPECT_EQ(OutputOf(StrCat("cat ", program, ".asked")), c.asked + "\n") << c.words;
  }
}

TEST(CompletionTest, BashKnowsTheFunctionOfTheProgram) {
  const std::string script = Script(BashCompletion, "registered.bash");
  EXPECT_THAT(OutputOf(StrCat("bash --norc -c '. ", script, "; complete -p shardmesh'")),
              HasSubstr("-F _shardmesh shardmesh"));
}

TEST(CompletionTest, ZshReadsItsScript) {
  const std::string script = Script(ZshCompletion, "_shardmesh");
  if (std::system("command -v zsh > /dev/null") != 0) {
    GTEST_SKIP() << "NO ZSH HERE: its completion is not tested";
  }
  EXPECT_EQ(OutputOf(StrCat("zsh -n ", script, " 2>&1")), "");
}

}  // namespace
}  // namespace shardmesh::client
