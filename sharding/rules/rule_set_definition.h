// A rule set as users define and store it: the decoded contents of a catalog entry or a file.
#ifndef SHARDMESH_SHARDING_RULES_RULE_SET_DEFINITION_H_
#define SHARDMESH_SHARDING_RULES_RULE_SET_DEFINITION_H_

#include <string>
#include <string_view>

#include "sharding/rules/rule_set.h"

namespace shardmesh {

// A rule set, and how to spell tensors' names before the rules match them.
struct RuleSetDefinition {
  RuleSet rules;
  // Whether to replace dots in names by slashes, as in flax trees.
  bool slashes = false;
  // Whether min_size of `rules` comes from the coordinator's configuration.
  bool default_min_size = false;
};

// Returns `name` in the spelling that the rules of `definition` match.
std::string NameForRules(const RuleSetDefinition& definition, std::string_view name);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_RULES_RULE_SET_DEFINITION_H_
