// Questions about flax's logical names and their answers, as types of the client library.
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

// Selects logical rules by name in the catalog, or by value. The default is no rules.
using LogicalRulesSelector = std::variant<std::monostate, std::string, LogicalRules>;

// Asks to which mesh axes logical names resolve, as flax.core.spmd resolves them.
struct SpmdQuestion {
  std::vector<AxisValue> names;  // one per dimension, at most 16
  LogicalRulesSelector rules = {};
  // The rules of the array's context, which are merged with `rules`.
  LogicalRulesSelector context_rules = {};
  // The array's mesh. Nullopt: the answer has no `action`. With a mesh, an empty `names` means that
  // the array has no logical names.
  std::optional<MeshSelector> mesh = std::nullopt;
  // Whether to return only `values`, even if they form no legal spec. A question with a mesh must
  // not set this member.
  bool values_only = false;
  Compatibility compatibility = Compatibility::kDefault;
};

struct SpmdAnswer {
  std::vector<AxisValue> values;  // one per dimension; empty for an array that stays unchanged
  // Nullopt if the question set `values_only`, or if the array stays unchanged.
  std::optional<PartitionSpec> spec;
  // Set only if the question has a mesh.
  std::optional<ShardValueAction> action;
  int64_t revision = 0;
};

// Asks to which mesh axes logical names resolve, as flax.linen resolves them.
struct LinenQuestion {
  std::vector<AxisValue> names;  // one per dimension, at most 16
  LogicalRulesSelector rules = {};
  RulesFallback fallback = RulesFallback::kAxisIsUnsharded;
  // Whether to act like flax's with_logical_constraint, which leaves the array unchanged if there
  // are no rules at all.
  bool constrain = false;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_TYPES_LOGICAL_QUESTIONS_H_
