// Spells names as a rule set expects them.
#include "sharding/rules/rule_set_definition.h"

#include <algorithm>

namespace shardmesh {

std::string NameForRules(const RuleSetDefinition& definition, std::string_view name) {
  std::string result(name);
  if (definition.slashes) {
    std::replace(result.begin(), result.end(), '.', '/');
  }
  return result;
}

}  // namespace shardmesh
