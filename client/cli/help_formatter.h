// The layout of help texts: commands in sections, common options and examples last.
#ifndef SHARDMESH_CLIENT_CLI_HELP_FORMATTER_H_
#define SHARDMESH_CLIENT_CLI_HELP_FORMATTER_H_

#include <CLI/CLI.hpp>
#include <string>
#include <utility>
#include <vector>

namespace shardmesh::client {

// The group of the options that every command takes.
inline constexpr char kCommonOptions[] = "Common options";

class HelpFormatter : public CLI::Formatter {
 public:
  // Adds a section to the help of the program. Sections appear in the order of these calls, and the
  // commands of a section in the order of `commands`.
  void AddSection(std::string title, std::vector<std::string> commands) {
    sections_.emplace_back(std::move(title), std::move(commands));
  }

  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override;
  std::string make_usage(const CLI::App* app, std::string name) const override;
  std::string make_subcommands(const CLI::App* app, CLI::AppFormatMode mode) const override;
  // Like the function of CLI::Formatter, but omits the type of an option if the possible values are
  // listed.
  std::string make_option_opts(const CLI::Option* option) const override;

 private:
  std::vector<std::pair<std::string, std::vector<std::string>>> sections_;
};

// Returns the possible values of an option or operand, in the order in which CLI11 has them; empty
// if CLI11 has no list of the values.
std::vector<std::string> ValuesOf(const CLI::Option* option);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_HELP_FORMATTER_H_
