// The definitions that users name and store: the decoded contents of a catalog's entry or a file.
#ifndef SHARDMESH_RPC_CODEC_DEFINITION_H_
#define SHARDMESH_RPC_CODEC_DEFINITION_H_

#include <string>
#include <string_view>
#include <vector>

#include "sharding/mesh.h"
#include "sharding/rules/rule_set.h"

namespace shardmesh::rpc {

// Axes over workers.
struct MeshDefinition {
  Mesh mesh;
  // Identities by rank; empty, or one per device.
  std::vector<std::string> workers;

  friend bool operator==(const MeshDefinition&, const MeshDefinition&) = default;
};

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

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CODEC_DEFINITION_H_
