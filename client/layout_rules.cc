// LayoutClient: questions about rules.
#include "client/layouts.h"

#include <algorithm>
#include <utility>

#include "client/client_core.h"
#include "client/remote/coordinator_connection.h"
#include "client/remote/tree_encoder.h"
#include "rpc/codec/lint_codec.h"
#include "rpc/codec/spec_codec.h"
#include "status/status_macros.h"

namespace shardmesh::client {
namespace {

absl::Status DecodeRules(const google::protobuf::RepeatedPtrField<v1::Rule>& from,
                         std::vector<Rule>* to) {
  for (const v1::Rule& wire : from) {
    SHARDMESH_ASSIGN_OR_RETURN(PartitionSpec spec, DecodeAnswer(wire.spec()));
    to->push_back({wire.pattern(), std::move(spec)});
  }
  return absl::OkStatus();
}

void EncodeHeader(const LintQuestion& from, v1::LintRulesHeader* to) {
  EncodeSelector(from.rules, to->mutable_rule_set());
  EncodeSelector(from.profile, to->mutable_profile());
  for (const MeshSelector& mesh : from.meshes) {
    EncodeSelector(mesh, to->add_meshes());
  }
  if (from.held_prefix.has_value()) {
    to->set_held_prefix(*from.held_prefix);
  }
  to->set_max_findings(static_cast<int32_t>(from.max_findings));
  to->mutable_stored_trees()->Add(from.stored_trees.begin(), from.stored_trees.end());
  to->set_all_stored_trees(from.all_stored_trees);
  for (const LintQuestion::GivenTree& tree : from.given_trees) {
    v1::LintGivenTree* const wire = to->add_given_trees();
    wire->set_name(tree.name);
    wire->set_tensors(tree.tensors);
  }
  to->set_compatibility(EncodeCompatibility(from.compatibility));
}

absl::StatusOr<LintedTree> DecodeTree(const v1::LintTree& from) {
  LintedTree tree;
  switch (from.source()) {
    case v1::LintTree::SOURCE_REQUEST:
      break;
    case v1::LintTree::SOURCE_CATALOG:
      tree.source = LintedTree::Source::kCatalog;
      break;
    case v1::LintTree::SOURCE_HELD:
      tree.source = LintedTree::Source::kHeld;
      break;
    default:
      return BadAnswer(absl::InvalidArgumentError("a tree is of no source that is known here"));
  }
  tree.name = from.name();
  tree.version = from.version();
  tree.own_specs = from.own_specs();
  tree.report = {.tensors = from.tensors(),
                 .dead_rules = from.dead_rules(),
                 .shadowed_rules = from.shadowed_rules(),
                 .unmatched_tensors = from.unmatched_tensors(),
                 .scalars = from.scalars()};
  return tree;
}

absl::StatusOr<LintAnswer> DecodeLint(const v1::LintRulesResponse& from) {
  LintAnswer answer;
  for (const v1::LintFinding& wire : from.findings()) {
    absl::StatusOr<Finding> finding = rpc::Decode(wire);
    if (!finding.ok()) {
      return BadAnswer(finding.status());
    }
    for (const Finding::InTree& in : finding->trees) {
      if (in.tree < 0 || in.tree >= from.trees_size()) {
        return BadAnswer(
            absl::InvalidArgumentError(StrCat("tree ", in.tree, " of ", from.trees_size())));
      }
    }
    answer.findings.push_back(*std::move(finding));
  }
  for (const v1::LintTree& wire : from.trees()) {
    SHARDMESH_ASSIGN_OR_RETURN(LintedTree tree, DecodeTree(wire));
    answer.trees.push_back(std::move(tree));
  }
  for (const v1::LintCount& wire : from.counts()) {
    const absl::StatusOr<Finding::Kind> kind = rpc::Decode(wire.kind());
    if (!kind.ok()) {
      return BadAnswer(kind.status());
    }
    answer.counts[static_cast<size_t>(*kind)] = wire.findings();
  }
  answer.tensors = from.tensors();
  answer.meshes = from.meshes();
  answer.revision = from.revision();
  return answer;
}

void Encode(const LayoutChoice& from, v1::LayoutChoice* to) {
  EncodeSelector(from.rules, to->mutable_rule_set());
  EncodeSelector(from.profile, to->mutable_profile());
  if (from.mode.has_value()) {
    rpc::Encode(*from.mode, to->mutable_mode());
  }
  EncodeSelector(from.mesh, to->mutable_mesh());
}

void EncodeHeader(const DiffQuestion& from, v1::DiffLayoutsHeader* to) {
  Encode(from.a, to->mutable_a());
  Encode(from.b, to->mutable_b());
  v1::LayoutBudget* const budget = to->mutable_budget();
  if (from.budget.max_bytes_per_device.has_value()) {
    budget->set_max_bytes_per_device(*from.budget.max_bytes_per_device);
  }
  if (from.budget.max_increase_bytes.has_value()) {
    budget->set_max_increase_bytes(*from.budget.max_increase_bytes);
  }
  if (from.budget.max_increase_ratio.has_value()) {
    budget->set_max_increase_ratio(*from.budget.max_increase_ratio);
  }
  to->set_compatibility(EncodeCompatibility(from.compatibility));
  to->set_stored_tree(from.stored_tree);
}

// Appends one message of the streamed answer to `to`. `specs` collects the specs of all messages,
// to which changes refer by index.
absl::Status Append(const v1::DiffLayoutsResponse& from, std::vector<PartitionSpec>* specs,
                    DiffAnswer* to) {
  SHARDMESH_RETURN_IF_ERROR(DecodeAnswers(from.specs(), specs));
  for (const v1::TensorChange& change : from.changes()) {
    if (change.a_spec() >= specs->size() || change.b_spec() >= specs->size()) {
      return BadAnswer(absl::InvalidArgumentError(
          StrCat("spec ", std::max(change.a_spec(), change.b_spec()), " of ", specs->size())));
    }
    to->changes.push_back({.name = change.name(),
                           .spec_a = (*specs)[change.a_spec()],
                           .spec_b = (*specs)[change.b_spec()],
                           .bytes_per_device_a = change.a_bytes_per_device(),
                           .bytes_per_device_b = change.b_bytes_per_device(),
                           .spec_differs = change.spec_changed(),
                           .tiles_differ = change.tiles_changed()});
  }
  if (from.has_a()) {
    SHARDMESH_ASSIGN_OR_RETURN(to->a, DecodeReport(from.a()));
    SHARDMESH_ASSIGN_OR_RETURN(to->b, DecodeReport(from.b()));
    to->within_budget = from.within_budget();
    to->budget_text = from.budget_message();
    to->revision = from.revision();
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PatternRulesAnswer> LayoutClient::ParsePatternRules(
    const PatternRulesQuestion& question, const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  compat::v1::ParsePatternRulesRequest request;
  request.set_text(question.text);
  if (question.name.has_value()) {
    request.set_name(*question.name);
  }
  rpc::Encode(question.default_spec, request.mutable_default_spec());
  request.set_compatibility(EncodeCompatibility(question.compatibility));
  if (question.mesh.has_value()) {
    EncodeSelector(*question.mesh, request.mutable_mesh());
  }
  compat::v1::ParsePatternRulesResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(connection.compat,
                                            &compat::v1::CompatService::Stub::ParsePatternRules,
                                            request, limit, &response));
  PatternRulesAnswer answer;
  SHARDMESH_RETURN_IF_ERROR(DecodeRules(response.rules(), &answer.rules));
  if (response.has_spec()) {
    SHARDMESH_ASSIGN_OR_RETURN(answer.spec, DecodeAnswer(response.spec()));
  }
  if (response.has_rule_index()) {
    answer.rule_index = response.rule_index();
  }
  return answer;
}

absl::StatusOr<PatternCheck> LayoutClient::CheckPattern(const std::string& pattern,
                                                        absl::Span<const std::string> names,
                                                        const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::CheckPatternRequest request;
  request.set_pattern(pattern);
  request.mutable_names()->Add(names.begin(), names.end());
  v1::CheckPatternResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(connection.rules, &v1::RuleService::Stub::CheckPattern,
                                            request, limit, &response));
  if (static_cast<size_t>(response.found_size()) != names.size()) {
    return BadAnswer(absl::InvalidArgumentError(
        StrCat(response.found_size(), " answers for ", names.size(), " names")));
  }
  return PatternCheck{.found = {response.found().begin(), response.found().end()},
                      .re2_pattern = response.re2_pattern()};
}

absl::StatusOr<RewriteAnswer> LayoutClient::RewriteRules(const RuleSetDefinition& rules,
                                                         const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::RewriteRulesRequest request;
  rpc::Encode(rules, request.mutable_rule_set());
  v1::RewriteRulesResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(connection.rules, &v1::RuleService::Stub::RewriteRules,
                                            request, limit, &response));
  SHARDMESH_ASSIGN_OR_RETURN(RuleSetDefinition rewritten, DecodeAnswer(response.rule_set()));
  return RewriteAnswer{.rules = std::move(rewritten),
                       .origins = {response.origins().begin(), response.origins().end()},
                       .changed = response.changed()};
}

absl::StatusOr<LintAnswer> LayoutClient::LintRules(const LintQuestion& question,
                                                   absl::Span<const TreeTensor> tensors,
                                                   const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::LintRulesResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Repeat(limit, [&](const CallLimit& attempt) {
    response.Clear();
    CallContext context(connection, attempt);
    const auto stream = connection.rules->LintRules(context.get(), &response);
    v1::LintRulesRequest request;
    EncodeHeader(question, request.mutable_header());
    WriteTree(stream.get(), &request, tensors);
    stream->WritesDone();
    return connection.StatusOf(stream->Finish());
  }));
  return DecodeLint(response);
}

absl::StatusOr<DiffAnswer> LayoutClient::DiffLayouts(const DiffQuestion& question,
                                                     absl::Span<const TreeTensor> tensors,
                                                     const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  DiffAnswer answer;
  SHARDMESH_RETURN_IF_ERROR(connection.Repeat(limit, [&](const CallLimit& attempt) {
    answer = DiffAnswer();
    std::vector<PartitionSpec> specs;
    CallContext context(connection, attempt);
    const auto stream = connection.layouts->DiffLayouts(context.get());
    absl::Status unreadable;
    const absl::Status exchanged = WriteWhileReading(
        [&] {
          v1::DiffLayoutsRequest request;
          EncodeHeader(question, request.mutable_header());
          WriteTree(stream.get(), &request, tensors);
          stream->WritesDone();
        },
        [&] {
          v1::DiffLayoutsResponse response;
          while (unreadable.ok() && stream->Read(&response)) {
            unreadable = Append(response, &specs, &answer);
          }
          if (!unreadable.ok()) {
            context.TryCancel();
          }
        });
    if (!exchanged.ok()) context.TryCancel();
    const absl::Status status = connection.StatusOf(stream->Finish());
    if (!exchanged.ok()) return exchanged;
    return unreadable.ok() ? status : unreadable;
  }));
  return answer;
}

}  // namespace shardmesh::client
