// Splits a command into words as a shell does.
#ifndef SHARDMESH_CLIENT_CLI_SHELL_WORDS_H_
#define SHARDMESH_CLIENT_CLI_SHELL_WORDS_H_

#include <string>
#include <string_view>
#include <vector>

namespace shardmesh::client {

// Blanks separate words; `'...'` and `"..."` keep blanks in a word. Nothing else is special.
std::vector<std::string> ShellWords(std::string_view command);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_SHELL_WORDS_H_
