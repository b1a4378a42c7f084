// Pages of the manual, made from the tree of commands.
#ifndef SHARDMESH_CLIENT_CLI_MANUAL_H_
#define SHARDMESH_CLIENT_CLI_MANUAL_H_

#include <string>
#include <vector>

#include "client/cli/command_line.h"

namespace shardmesh::client {

// `shardmesh-catalog-get`; `shardmesh` for the program.
std::string ManualPageName(const CLI::App* app);
// The page of the program, a group or a command, for man(1).
std::string ManualPage(const CommandLine& line, const CLI::App* app);
// The program, its groups and its commands.
std::vector<const CLI::App*> ManualSubjects(const CommandLine& line);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_MANUAL_H_
