// Reads the YAML files that users write: rules, profiles, meshes and maps of checkpoints;
// docs/formats.md has their schema.
#ifndef SHARDMESH_RPC_CONFIG_H_
#define SHARDMESH_RPC_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "sharding/compatibility.h"
#include "sharding/mesh_definition.h"
#include "sharding/partition_axis.h"
#include "sharding/rules/logical_rules.h"
#include "sharding/rules/rule_set_definition.h"
#include "tensor/checkpoint/tensor_map.h"

namespace shardmesh::rpc {

// Maximum size, in bytes, of a YAML file.
inline constexpr int64_t kMaxConfigBytes = int64_t{4} << 20;

// Parse the text of a file; `name` names the file in errors. Errors are INVALID_ARGUMENT:
// - BAD_FILE for text that is not YAML, an unknown or repeated key, or a value of the wrong kind,
//   such as `bert.yaml:3:7: unknown key "patern"; did you mean "pattern"?`;
// - LIMIT_EXCEEDED for a text that is too long;
// - for any other faulty value, the reason of the function of sharding/ that refuses it. The
//   message is the position, followed by that function's message.
//
// With kExact, a rule with a faulty pattern is kept, as in RuleSet::Create.
absl::StatusOr<RuleSetDefinition> ParseRules(std::string_view text, std::string_view name,
                                             Compatibility compatibility = Compatibility::kDefault);
absl::StatusOr<PartitionAxis> ParseProfile(std::string_view text, std::string_view name);
// An axis size of -1 is computed from the number of devices. That requires workers in the file, or
// a `device_count`.
absl::StatusOr<MeshDefinition> ParseMesh(std::string_view text, std::string_view name,
                                         std::optional<int64_t> device_count = std::nullopt);

absl::StatusOr<LogicalRules> ParseLogicalRules(std::string_view text, std::string_view name);

// Parses a map of a checkpoint's names. TensorMapRule::place is the position of each rule.
absl::StatusOr<TensorMap> ParseTensorMap(std::string_view text, std::string_view name);

// Read the file at `path`. Further errors, with the path: NOT_FOUND, PERMISSION_DENIED, or
// FAILED_PRECONDITION if `path` is not a regular file.
absl::StatusOr<RuleSetDefinition> LoadRules(const std::string& path,
                                            Compatibility compatibility = Compatibility::kDefault);
absl::StatusOr<PartitionAxis> LoadProfile(const std::string& path);
absl::StatusOr<LogicalRules> LoadLogicalRules(const std::string& path);
absl::StatusOr<TensorMap> LoadTensorMap(const std::string& path);
absl::StatusOr<MeshDefinition> LoadMesh(const std::string& path,
                                        std::optional<int64_t> device_count = std::nullopt);

// Returns the text of a file that ParseRules reads as `rules`, including faulty patterns. Requires
// specs that such a file can express: no unconstrained dimension and no unreduced axes.
std::string FormatRules(const RuleSetDefinition& rules);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CONFIG_H_
