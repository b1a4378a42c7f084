// The layout of help texts: commands in sections, common options and examples last.
#include "client/cli/help_formatter.h"

#include <sstream>

#include "absl/strings/str_split.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

const CLI::App* RootOf(const CLI::App* app) {
  return app->get_parent() == nullptr ? app : RootOf(app->get_parent());
}

}  // namespace

std::string HelpFormatter::make_help(const CLI::App* app, std::string name,
                                     CLI::AppFormatMode mode) const {
  if (mode == CLI::AppFormatMode::Sub) return make_expanded(app);
  std::string text = StrCat(make_description(app), make_usage(app, std::move(name)),
                            make_positionals(app), make_subcommands(app, mode));
  // make_groups ends each group with a blank line, if another group follows.
  const std::string own = make_groups(app, mode);
  StrAppend(&text, own);
  if (const CLI::App* const root = RootOf(app); root != app && app->get_subcommands({}).empty()) {
    StrAppend(&text,
              make_group(kCommonOptions, false, root->get_options([](const CLI::Option* option) {
                return option->get_group() == kCommonOptions;
              })));
  }
  StrAppend(&text, "\n", make_footer(app));
  return text;
}

std::string HelpFormatter::make_usage(const CLI::App* app, std::string name) const {
  // CLI11 passes either the last word or all words of a command's name. Therefore build the full
  // name here.
  if (app->get_parent() != nullptr) {
    name = app->get_name();
    for (const CLI::App* above = app->get_parent(); above != nullptr; above = above->get_parent()) {
      name = StrCat(above->get_name(), " ", name);
    }
  }
  return CLI::Formatter::make_usage(app, std::move(name));
}

std::string HelpFormatter::make_subcommands(const CLI::App* app, CLI::AppFormatMode mode) const {
  if (app->get_parent() != nullptr || sections_.empty()) {
    return CLI::Formatter::make_subcommands(app, mode);
  }
  std::ostringstream out;
  for (const auto& [title, names] : sections_) {
    out << "\n" << title << ":\n";
    for (const std::string& name : names) {
      for (const CLI::App* command : app->get_subcommands(
               [&name](const CLI::App* each) { return each->get_name() == name; })) {
        out << make_subcommand(command);
      }
    }
  }
  return out.str();
}

std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
  std::string text = CLI::Formatter::make_option_opts(option);
  for (const char* const type : {" TEXT:{", " TEXT {"}) {
    if (const size_t at = text.find(type); at != std::string::npos) {
      text.replace(at, std::string_view(type).size(), " {");
    }
  }
  return text;
}

std::vector<std::string> ValuesOf(const CLI::Option* option) {
  const std::string type = option->get_type_name();
  const size_t begin = type.find('{');
  const size_t end = type.find('}', begin == std::string::npos ? 0 : begin);
  if (begin == std::string::npos || end == std::string::npos) return {};
  return absl::StrSplit(type.substr(begin + 1, end - begin - 1), ',');
}

}  // namespace shardmesh::client
