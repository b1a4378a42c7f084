// Questions about flax's logical names and their answers, as a client asks and gets them.
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

// By name in the catalog, or by value; nothing given means no rules.
using LogicalRulesSelector = std::variant<std::monostate, std::string, LogicalRules>;

// What do logical names stand for by the rules of flax.core.spmd?
struct SpmdQuestion {
  std::vector<AxisValue> names;  // one a dimension, at most 16
  LogicalRulesSelector rules = {};
  // The rules that hold around the array; joined with its own.
  LogicalRulesSelector context_rules = {};
  // The mesh on which the array is to lie; nullopt: what becomes of it is not asked. Then names
  // that are empty stand for an array without names.
  std::optional<MeshSelector> mesh = std::nullopt;
  // The values alone are wanted, also where no spec can be made of them. Not with a mesh.
  bool values_only = false;
  Compatibility compatibility = Compatibility::kDefault;
};

struct SpmdAnswer {
  std::vector<AxisValue> values;  // one a dimension; none for an array that stays as it is
  // Nullopt where the values alone were asked for, and for an array that stays as it is.
  std::optional<PartitionSpec> spec;
  // With a mesh.
  std::optional<ShardValueAction> action;
  int64_t revision = 0;
};

// What do logical names stand for by the rules of flax.linen?
struct LinenQuestion {
  std::vector<AxisValue> names;  // one a dimension, at most 16
  LogicalRulesSelector rules = {};
  RulesFallback fallback = RulesFallback::kAxisIsUnsharded;
  // As with_logical_constraint: without any rules the array stays as it is.
  bool constrain = false;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_TYPES_LOGICAL_QUESTIONS_H_
