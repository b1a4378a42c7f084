// Answers about patterns for regex.py: JSON lines in, JSON lines out.
//
// {"pattern", "name"} asks for a search: {"match": bool}, or why there is none: {"bad": the class
// of Python's exception}, {"unsupported": message}, {"limit": message}. {"rules": [pattern, ...]}
// asks for the rules without exclusions: {"rules": [[pattern, index of the original], ...]}, or
// {"refused": message}.
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "sharding/pattern/pattern.h"
#include "sharding/rules/exclusion.h"
#include "status/reason.h"

namespace shardmesh {
namespace {

using Json = nlohmann::json;

Json Search(const std::string& text, const std::string& name) {
  const absl::StatusOr<Pattern> pattern = Pattern::Create(text);
  const absl::StatusOr<bool> found = pattern.ok() ? pattern->Search(name) : pattern.status();
  if (found.ok()) {
    return {{"match", *found}};
  }
  switch (ReasonOf(found.status())) {
    case Reason::kBadPattern:
      return {{"bad", PythonTypeOf(found.status())}};
    case Reason::kUnsupportedPattern:
      return {{"unsupported", found.status().ToString()}};
    default:
      return {{"limit", found.status().ToString()}};
  }
}

Json Rewrite(const Json& patterns) {
  std::vector<Rule> rules;
  for (const Json& pattern : patterns) {
    rules.push_back({pattern.get<std::string>(), PartitionSpec()});
  }
  const absl::StatusOr<RewrittenRules> rewritten = RewriteExclusions(rules);
  if (!rewritten.ok()) {
    return {{"refused", rewritten.status().ToString()}};
  }
  Json out = Json::array();
  for (size_t i = 0; i < rewritten->rules.size(); ++i) {
    out.push_back({rewritten->rules[i].pattern, rewritten->origins[i]});
  }
  return {{"rules", std::move(out)}};
}

}  // namespace
}  // namespace shardmesh

int main() {
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    const nlohmann::json question = nlohmann::json::parse(line);
    const nlohmann::json answer = question.contains("rules")
                                      ? shardmesh::Rewrite(question.at("rules"))
                                      : shardmesh::Search(question.at("pattern").get<std::string>(),
                                                          question.at("name").get<std::string>());
    std::cout << answer.dump() << '\n';
  }
  return 0;
}
