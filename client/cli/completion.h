// Scripts that let shells complete the program's commands, options and values.
#ifndef SHARDMESH_CLIENT_CLI_COMPLETION_H_
#define SHARDMESH_CLIENT_CLI_COMPLETION_H_

#include <CLI/CLI.hpp>
#include <string>

namespace shardmesh::client {

// Returns a script for the shell, made from the tree of commands below `app`, the program.
std::string BashCompletion(const CLI::App& app);
std::string ZshCompletion(const CLI::App& app);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_COMPLETION_H_
