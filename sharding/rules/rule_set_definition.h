// Rules as users define and store them: the decoded contents of a catalog's entry or a file.
#ifndef SHARDMESH_SHARDING_RULES_RULE_SET_DEFINITION_H_
#define SHARDMESH_SHARDING_RULES_RULE_SET_DEFINITION_H_

#include <string>
#include <string_view>

#include "sharding/rules/rule_set.h"

namespace shardmesh {

// Rules, and the spelling of tensors' names before they are matched.
struct RuleSetDefinition {
  RuleSet rules;
  // Dots of names become slashes, as flax trees have them.
  bool slashes = false;
  // The configuration of the coordinator supplies the least size of `rules`.
  bool default_min_size = false;
};

// Returns `name` as the rules of `definition` see it.
std::string NameForRules(const RuleSetDefinition& definition, std::string_view name);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_RULES_RULE_SET_DEFINITION_H_
