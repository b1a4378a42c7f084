// Pages of the manual, made from the tree of commands.
#include "client/cli/manual.h"

#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/str_replace.h"
#include "client/cli/help_formatter.h"
#include "process/version.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

// Escapes a line of text so that roff does not interpret it as a request.
std::string Text(const std::string& text) {
  std::string escaped = absl::StrReplaceAll(text, {{"\\", "\\e"}, {"-", "\\-"}, {"\n", " "}});
  return escaped.starts_with('.') || escaped.starts_with('\'') ? "\\&" + escaped : escaped;
}

std::string FullName(const CLI::App* app) {
  return app->get_parent() == nullptr ? app->get_name()
                                      : StrCat(FullName(app->get_parent()), " ", app->get_name());
}

std::string Item(const std::string& name, const std::string& arguments,
                 const std::string& description) {
  return StrCat(".TP\n\\fB", Text(name), "\\fR", Text(arguments), "\n",
                Text(description.empty() ? "no further effect" : description), "\n");
}

std::string ItemsOf(const HelpFormatter& formatter, const std::vector<const CLI::Option*>& options,
                    bool is_operand) {
  std::string text;
  for (const CLI::Option* option : options) {
    const std::string name = is_operand ? option->get_name(true) : option->get_name(false, true);
    text += Item(name, formatter.make_option_opts(option), option->get_description());
  }
  return text;
}

std::string Section(std::string_view title, const std::string& text) {
  return text.empty() ? "" : StrCat(".SH ", title, "\n", text);
}

std::string ReferenceTo(const CLI::App* app) {
  return StrCat("\\fB", Text(ManualPageName(app)), "\\fR(1)");
}

}  // namespace

std::string ManualPageName(const CLI::App* app) {
  return absl::StrReplaceAll(FullName(app), {{" ", "-"}});
}

std::string ManualPage(const CommandLine& line, const CLI::App* app) {
  const HelpFormatter formatter;
  const CLI::App* const program = &line.app();
  const std::string name = ManualPageName(app);
  const std::vector<const CLI::App*> commands = app->get_subcommands({});
  const auto options = [](const CLI::App* of) {
    return of->get_options([](const CLI::Option* option) { return option->nonpositional(); });
  };
  const std::vector<const CLI::Option*> operands =
      app->get_options([](const CLI::Option* option) { return option->get_positional(); });

  std::string text = StrCat(".TH ", absl::AsciiStrToUpper(Text(name)), " 1 \"\" \"shardmesh ",
                            shardmesh::BuildVersion(), "\" \"shardmesh\"\n");
  text += Section("NAME", StrCat(Text(name), " \\- ", Text(app->get_description()), "\n"));
  std::string synopsis = StrCat("\\fB", Text(FullName(app)), "\\fR [\\fIOPTIONS\\fR]");
  for (const CLI::Option* operand : operands) {
    StrAppend(&synopsis, " \\fI", Text(formatter.make_option_usage(operand)), "\\fR");
  }
  if (!commands.empty()) synopsis += " \\fICOMMAND\\fR";
  text += Section("SYNOPSIS", synopsis + "\n");
  std::string list;
  for (const CLI::App* command : commands) {
    StrAppend(&list, ".TP\n", ReferenceTo(command), "\n", Text(command->get_description()), "\n");
  }
  text += Section("COMMANDS", list);
  text += Section("OPERANDS", ItemsOf(formatter, operands, /*is_operand=*/true));
  text += Section("OPTIONS", ItemsOf(formatter, options(app), /*is_operand=*/false));
  if (app != program) {
    const auto common = program->get_options(
        [](const CLI::Option* option) { return option->get_group() == kCommonOptions; });
    text += Section("COMMON OPTIONS", ItemsOf(formatter, common, /*is_operand=*/false));
  }
  std::string examples;
  for (const std::string& example : line.ExamplesOf(app)) {
    StrAppend(&examples, Text(example), "\n");
  }
  if (!examples.empty()) text += Section("EXAMPLES", StrCat(".nf\n", examples, ".fi\n"));
  text +=
      Section("EXIT STATUS",
              "0 done, 1 the operation failed, 2 wrong use, 3 the cluster cannot be reached.\n");
  if (app != program) text += Section("SEE ALSO", ReferenceTo(app->get_parent()) + "\n");
  return text;
}

std::vector<const CLI::App*> ManualSubjects(const CommandLine& line) {
  std::vector<const CLI::App*> subjects = {&line.app()};
  for (size_t i = 0; i < subjects.size(); ++i) {
    const std::vector<const CLI::App*> below = subjects[i]->get_subcommands({});
    subjects.insert(subjects.end(), below.begin(), below.end());
  }
  return subjects;
}

}  // namespace shardmesh::client
