// The definitions that users name and keep: what a catalog's entry or a file says, decoded.
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

// Rules, and how tensors' names are written before they are matched.
struct RuleSetDefinition {
  RuleSet rules;
  // Dots of names become slashes, as flax trees have them.
  bool slashes = false;
  // The least size of `rules` was left to the coordinator's configuration.
  bool default_min_size = false;
};

// `name` as the rules of `definition` see it.
std::string NameForRules(const RuleSetDefinition& definition, std::string_view name);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CODEC_DEFINITION_H_
