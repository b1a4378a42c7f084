// Questions about flax's logical names and their answers, in the client's form.
#ifndef SHARDMESH_CLIENT_TYPES_LOGICAL_QUESTIONS_H_
#define SHARDMESH_CLIENT_TYPES_LOGICAL_QUESTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "client/types/layout_questions.h"
#include "sharding/axis_value.h"
#include "sharding/compatibility.h"
#include "sharding/rules/logical_rules.h"
#include "sharding/spec.h"

namespace shardmesh::client {

// By name in the catalog, or by value; the default is no rules.
using LogicalRulesSelector = std::variant<std::monostate, std::string, LogicalRules>;

// Asks for the meaning of logical names by the rules of flax.core.spmd.
struct SpmdQuestion {
  std::vector<AxisValue> names;  // one a dimension, at most 16
  LogicalRulesSelector rules = {};
  // The rules of the array's context; merged with its own.
  LogicalRulesSelector context_rules = {};
  // The array's mesh; nullopt: the answer has no action. With a mesh, an empty list of names means
  // an array without names.
  std::optional<MeshSelector> mesh = std::nullopt;
  // Returns only the values, also if they form no legal spec. Excludes a mesh.
  bool values_only = false;
  Compatibility compatibility = Compatibility::kDefault;
};

struct SpmdAnswer {
  std::vector<AxisValue> values;  // one a dimension; empty for an array that stays unchanged
  // Nullopt with values_only, and for an array that stays unchanged.
  std::optional<PartitionSpec> spec;
  // Only with a mesh.
  std::optional<ShardValueAction> action;
  int64_t revision = 0;
};

// Asks for the meaning of logical names by the rules of flax.linen.
struct LinenQuestion {
  std::vector<AxisValue> names;  // one a dimension, at most 16
  LogicalRulesSelector rules = {};
  RulesFallback fallback = RulesFallback::kAxisIsUnsharded;
  // Like with_logical_constraint: without any rules the array stays unchanged.
  bool constrain = false;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_TYPES_LOGICAL_QUESTIONS_H_
