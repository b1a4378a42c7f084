// Splits a command into words as a shell does.
#include "client/cli/shell_words.h"

#include <optional>
#include <utility>

namespace shardmesh::client {

std::vector<std::string> ShellWords(std::string_view command) {
  std::vector<std::string> words;
  std::optional<std::string> word;
  char quote = '\0';
  for (const char c : command) {
    if (quote != '\0' ? c == quote : c == '\'' || c == '"') {
      quote = quote == '\0' ? c : '\0';
      word = word.value_or("");
    } else if (c == ' ' && quote == '\0') {
      if (word.has_value()) words.push_back(*std::exchange(word, std::nullopt));
    } else {
      word = word.value_or("") + c;
    }
  }
  if (word.has_value()) words.push_back(*std::move(word));
  return words;
}

}  // namespace shardmesh::client
