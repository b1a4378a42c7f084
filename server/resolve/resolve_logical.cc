// Answers about logical names and flax's rules for them.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "server/resolve/resolve_answers.h"
#include "sharding/compatibility.h"
#include "sharding/rules/logical_rules.h"
#include "status/status_macros.h"

namespace shardmesh::server {
namespace {

using Request = v1::ResolveLogicalAxesRequest;
using Response = v1::ResolveLogicalAxesResponse;

struct LogicalQuestion {
  Compatibility compatibility = Compatibility::kDefault;
  std::vector<AxisValue> names;
  LogicalRules rules;
  LogicalRules context;
};

absl::StatusOr<RulesFallback> DecodeFallback(Request::Fallback from) {
  switch (from) {
    case Request::FALLBACK_UNSPECIFIED:
    case Request::FALLBACK_AXIS_IS_UNSHARDED:
      return RulesFallback::kAxisIsUnsharded;
    case Request::FALLBACK_RAISE_ERROR:
      return RulesFallback::kRaiseError;
    case Request::FALLBACK_NO_CONSTRAINT:
      return RulesFallback::kNoConstraint;
    default:
      return rpc::BadField("fallback", "is no fallback that this server knows");
  }
}

Response::Action Encode(ShardValueAction from) {
  switch (from) {
    case ShardValueAction::kNone:
      return Response::ACTION_NONE;
    case ShardValueAction::kConstrain:
      return Response::ACTION_CONSTRAIN;
    case ShardValueAction::kReshard:
      return Response::ACTION_RESHARD;
  }
  return Response::ACTION_UNSPECIFIED;
}

absl::Status AnswerLinen(const LogicalQuestion& question, const Request& request,
                         Response* response) {
  if (request.has_context_rules()) {
    return rpc::BadField("context_rules", "linen knows none; give all rules in order in `rules`");
  }
  if (request.has_mesh()) {
    return rpc::BadField("mesh", "linen's answer depends on none; leave it out");
  }
  if (request.values_only()) {
    return rpc::BadField("values_only", "is about flax.core.spmd; linen's answer is a spec");
  }
  SHARDMESH_ASSIGN_OR_RETURN(const RulesFallback fallback, DecodeFallback(request.fallback()));
  const auto resolve = request.constrain() ? ResolveLogicalConstraint : ResolveLogicalAxes;
  SHARDMESH_DECODE(spec, "names", resolve(question.names, question.rules, fallback));
  if (spec.has_value()) {
    rpc::Encode(*spec, response->mutable_spec());
  }
  return absl::OkStatus();
}

// Adds the field at fault to an error of flax.core.spmd: `rules` if the rules contradict those of
// the context, otherwise `names`.
absl::Status About(absl::Status status, const LogicalQuestion& question) {
  const bool rules_agree = CompositeRules(question.context, question.rules).ok();
  return rpc::WithField(std::move(status), rules_agree ? "names" : "rules");
}

absl::Status AnswerSpmd(const AnswerContext& context, const LogicalQuestion& question,
                        const Request& request, Response* response) {
  if (request.fallback() != Request::FALLBACK_UNSPECIFIED) {
    return rpc::BadField("fallback", "is about linen; names without a rule stay here");
  }
  if (request.constrain()) {
    return rpc::BadField("constrain", "is about linen; give a mesh to see the layout of an array");
  }
  if (request.has_mesh() && request.values_only()) {
    return rpc::BadField(
        "values_only",
        "asks for values without a spec, but a mesh is only used for a spec; leave one out");
  }
  std::optional<PartitionSpec> spec;
  if (request.has_mesh()) {
    SHARDMESH_DECODE(mesh, "mesh",
                     SelectMesh(context.state, request.mesh(), question.compatibility));
    absl::StatusOr<ShardValueDecision> decision =
        ResolveShardValue(question.names, question.rules, mesh, question.context);
    if (!decision.ok()) {
      return About(std::move(decision).status(), question);
    }
    response->set_action(Encode(decision->action));
    if (decision->action == ShardValueAction::kNone) {
      return absl::OkStatus();
    }
    spec = std::move(decision->spec);
  } else if (!request.values_only()) {
    auto resolved = ResolveLogicalSpec(question.names, question.rules, question.context);
    if (!resolved.ok()) {
      return About(std::move(resolved).status(), question);
    }
    spec = *std::move(resolved);
  }
  SHARDMESH_DECODE(rules, "rules", CompositeRules(question.context, question.rules));
  for (const AxisValue& value : ApplyLogicalRules(question.names, rules)) {
    rpc::Encode(value, response->add_values());
  }
  if (spec.has_value()) {
    rpc::Encode(*spec, response->mutable_spec());
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Answer(const AnswerContext& context, const v1::ComposeLogicalRulesRequest& request,
                    v1::ComposeLogicalRulesResponse* response) {
  SHARDMESH_DECODE(first, "first", SelectLogicalRules(context.state, request.first()));
  SHARDMESH_DECODE(second, "second", SelectLogicalRules(context.state, request.second()));
  SHARDMESH_DECODE(rules, "second", CompositeRules(first, second));
  rpc::Encode(rules, response->mutable_rules());
  return absl::OkStatus();
}

absl::Status Answer(const AnswerContext& context, const Request& request, Response* response) {
  SHARDMESH_DECODE(compatibility, "compatibility", rpc::Decode(request.compatibility()));
  SHARDMESH_DECODE(names, "names", rpc::DecodeAxes(request.names()));
  SHARDMESH_DECODE(rules, "rules", SelectLogicalRules(context.state, request.rules()));
  SHARDMESH_DECODE(context_rules, "context_rules",
                   SelectLogicalRules(context.state, request.context_rules()));
  const LogicalQuestion question{compatibility, std::move(names), std::move(rules),
                                 std::move(context_rules)};
  response->set_revision(context.state.revision());
  switch (request.flavor()) {
    case Request::FLAVOR_UNSPECIFIED:
    case Request::FLAVOR_SPMD:
      return AnswerSpmd(context, question, request, response);
    case Request::FLAVOR_LINEN:
      return AnswerLinen(question, request, response);
    default:
      return rpc::BadField("flavor", "is none that this server knows");
  }
}

}  // namespace shardmesh::server
