// All commands of the program, with the sections of the program's help and an example for each
// command.
#ifndef SHARDMESH_CLIENT_CLI_COMMANDS_COMMAND_GUIDE_H_
#define SHARDMESH_CLIENT_CLI_COMMANDS_COMMAND_GUIDE_H_

#include <string>
#include <utility>
#include <vector>

#include "client/cli/command_line.h"

namespace shardmesh::client {

// Adds every command, section and example.
void AddAllCommands(CommandLine* line);

// The titles of the sections of the program's help, each with the commands of the section. In the
// order of the help.
const std::vector<std::pair<std::string, std::vector<std::string>>>& CommandSections();

struct CommandExample {
  std::string text;
  // Whether the example runs without a cluster, in a folder with the files of docs/examples and
  // model.safetensors.
  bool runs_alone = false;
};
const std::vector<CommandExample>& CommandExamples();

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_COMMANDS_COMMAND_GUIDE_H_
