// Pages of the manual, made from the tree of commands.
#ifndef SHARDMESH_CLIENT_CLI_MANUAL_H_
#define SHARDMESH_CLIENT_CLI_MANUAL_H_

#include <string>
#include <vector>

#include "client/cli/command_line.h"

namespace shardmesh::client {

// The name of a command's or group's manual page, such as `shardmesh-catalog-get`. For the program,
// it is `shardmesh`.
std::string ManualPageName(const CLI::App* app);
// The manual page of the program, a group or a command, in roff for man(1).
std::string ManualPage(const CommandLine& line, const CLI::App* app);
// All subjects of manual pages: the program, its groups and its commands.
std::vector<const CLI::App*> ManualSubjects(const CommandLine& line);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_MANUAL_H_
