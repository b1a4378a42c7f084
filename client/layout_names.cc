// LayoutClient: questions about flax's logical names.
#include "client/layouts.h"

#include <utility>

#include "client/client_core.h"
#include "client/remote/coordinator_connection.h"
#include "rpc/codec/spec_codec.h"
#include "status/status_macros.h"

namespace shardmesh::client {
namespace {

using Request = v1::ResolveLogicalAxesRequest;
using Response = v1::ResolveLogicalAxesResponse;

void EncodeNames(absl::Span<const AxisValue> from, Request* to) {
  for (const AxisValue& name : from) {
    rpc::Encode(name, to->add_names());
  }
}

Request::Fallback EncodeFallback(RulesFallback from) {
  switch (from) {
    case RulesFallback::kAxisIsUnsharded:
      return Request::FALLBACK_AXIS_IS_UNSHARDED;
    case RulesFallback::kRaiseError:
      return Request::FALLBACK_RAISE_ERROR;
    case RulesFallback::kNoConstraint:
      return Request::FALLBACK_NO_CONSTRAINT;
  }
  return Request::FALLBACK_UNSPECIFIED;
}

absl::StatusOr<std::optional<ShardValueAction>> DecodeAction(Response::Action from) {
  switch (from) {
    case Response::ACTION_UNSPECIFIED:
      return std::nullopt;
    case Response::ACTION_NONE:
      return ShardValueAction::kNone;
    case Response::ACTION_CONSTRAIN:
      return ShardValueAction::kConstrain;
    case Response::ACTION_RESHARD:
      return ShardValueAction::kReshard;
    default:
      return BadAnswer(absl::InvalidArgumentError(StrCat("action ", from, " is not known")));
  }
}

}  // namespace

absl::StatusOr<LogicalRules> LayoutClient::ComposeLogicalRules(const LogicalRulesSelector& first,
                                                               const LogicalRulesSelector& second,
                                                               const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::ComposeLogicalRulesRequest request;
  EncodeSelector(first, request.mutable_first());
  EncodeSelector(second, request.mutable_second());
  v1::ComposeLogicalRulesResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(
      connection.rules, &v1::RuleService::Stub::ComposeLogicalRules, request, limit, &response));
  return DecodeAnswer(response.rules());
}

absl::StatusOr<SpmdAnswer> LayoutClient::ResolveSpmdAxes(const SpmdQuestion& question,
                                                         const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  Request request;
  request.set_flavor(Request::FLAVOR_SPMD);
  EncodeNames(question.names, &request);
  EncodeSelector(question.rules, request.mutable_rules());
  EncodeSelector(question.context_rules, request.mutable_context_rules());
  if (question.mesh.has_value()) {
    EncodeSelector(*question.mesh, request.mutable_mesh());
  }
  request.set_values_only(question.values_only);
  request.set_compatibility(EncodeCompatibility(question.compatibility));
  Response response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(
      connection.rules, &v1::RuleService::Stub::ResolveLogicalAxes, request, limit, &response));
  SpmdAnswer answer;
  SHARDMESH_RETURN_IF_ERROR(DecodeAnswers(response.values(), &answer.values));
  if (response.has_spec()) {
    SHARDMESH_ASSIGN_OR_RETURN(answer.spec, DecodeAnswer(response.spec()));
  }
  SHARDMESH_ASSIGN_OR_RETURN(answer.action, DecodeAction(response.action()));
  answer.revision = response.revision();
  return answer;
}

absl::StatusOr<std::optional<PartitionSpec>> LayoutClient::ResolveLinenAxes(
    const LinenQuestion& question, const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  Request request;
  request.set_flavor(Request::FLAVOR_LINEN);
  EncodeNames(question.names, &request);
  EncodeSelector(question.rules, request.mutable_rules());
  request.set_fallback(EncodeFallback(question.fallback));
  request.set_constrain(question.constrain);
  Response response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(
      connection.rules, &v1::RuleService::Stub::ResolveLogicalAxes, request, limit, &response));
  if (!response.has_spec()) {
    return std::nullopt;
  }
  SHARDMESH_ASSIGN_OR_RETURN(PartitionSpec spec, DecodeAnswer(response.spec()));
  return spec;
}

}  // namespace shardmesh::client
