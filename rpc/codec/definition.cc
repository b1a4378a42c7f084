// The spelling of names for rules.
#include "rpc/codec/definition.h"

#include <algorithm>

namespace shardmesh::rpc {

std::string NameForRules(const RuleSetDefinition& definition, std::string_view name) {
  std::string result(name);
  if (definition.slashes) {
    std::replace(result.begin(), result.end(), '.', '/');
  }
  return result;
}

}  // namespace shardmesh::rpc
