// Commands completion, man: scripts for shells and pages of the manual.
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "client/cli/command_line.h"
#include "client/cli/commands/commands.h"
#include "client/cli/completion.h"
#include "client/cli/manual.h"
#include "process/file.h"
#include "status/nearest_name.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

struct ManualFlags {
  std::vector<std::string> command;
  std::string folder;
};

// Returns the group or command that these words name; no words name the program.
absl::StatusOr<const CLI::App*> FindSubject(const CLI::App& program,
                                            const std::vector<std::string>& words) {
  const CLI::App* app = &program;
  for (const std::string& word : words) {
    const std::vector<const CLI::App*> below = app->get_subcommands({});
    std::vector<std::string_view> names;
    const CLI::App* found = nullptr;
    for (const CLI::App* each : below) {
      names.push_back(each->get_name());
      if (each->get_name() == word) found = each;
    }
    if (found == nullptr) {
      return WrongUse(StrCat("unknown command \"", word, "\"", DidYouMean(word, names)));
    }
    app = found;
  }
  return app;
}

absl::Status WriteManual(const CommandLine& line, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return FileError("make", folder, error.value());
  for (const CLI::App* subject : ManualSubjects(line)) {
    SHARDMESH_ASSIGN_OR_RETURN(
        AtomicFileWriter file,
        AtomicFileWriter::Create(StrCat(folder, "/", ManualPageName(subject), ".1")));
    const std::string page = ManualPage(line, subject);
    SHARDMESH_RETURN_IF_ERROR(file.Append(page));
    SHARDMESH_RETURN_IF_ERROR(file.Finish());
  }
  return absl::OkStatus();
}

absl::Status RunManual(const CommandLine& line, const ManualFlags& flags) {
  if (!flags.folder.empty()) {
    if (!flags.command.empty()) return WrongUse("--dir writes all pages: name no command");
    return WriteManual(line, flags.folder);
  }
  SHARDMESH_ASSIGN_OR_RETURN(const CLI::App* const subject, FindSubject(line.app(), flags.command));
  std::cout << ManualPage(line, subject);
  return absl::OkStatus();
}

}  // namespace

void AddManualCommands(CommandLine* line) {
  auto shell = std::make_shared<std::string>();
  line->AddCommand("completion",
                   "Print the script with which a shell completes commands, options and values",
                   [=](const Invocation&) {
                     std::cout << (*shell == "bash" ? BashCompletion(line->app())
                                                    : ZshCompletion(line->app()));
                     return absl::OkStatus();
                   })
      ->add_option("SHELL", *shell, "bash: for ~/.bashrc; zsh: for a file _shardmesh in $fpath")
      ->required()
      ->check(CLI::IsMember(std::vector<std::string>{"bash", "zsh"}));

  auto flags = std::make_shared<ManualFlags>();
  CLI::App* const man =
      line->AddCommand("man", "Print a page of the manual, for `man -l -`",
                       [=](const Invocation&) { return RunManual(*line, *flags); });
  man->add_option("COMMAND", flags->command, "the words of a command (default: the program)");
  man->add_option("--dir", flags->folder, "write the pages of all commands into this folder");
}

}  // namespace shardmesh::client
