// The calls of LayoutClient, over the transport and the session of ClientCore.
#include "client/layouts.h"

#include "client/client_core.h"

namespace shardmesh::client {

absl::StatusOr<SpecAnswer> LayoutClient::ResolveSpec(const ResolveSpecQuestion& question) {
  return core_->coordinator().ResolveSpec(question, core_->CallDeadline());
}

absl::StatusOr<std::vector<absl::StatusOr<SpecAnswer>>> LayoutClient::BatchResolveSpecs(
    absl::Span<const ResolveSpecQuestion> questions) {
  return core_->coordinator().BatchResolveSpecs(questions, core_->CallDeadline());
}

absl::StatusOr<SpecAnswer> LayoutClient::CorrectSpec(const CorrectSpecQuestion& question) {
  return core_->coordinator().CorrectSpec(question, core_->CallDeadline());
}

absl::StatusOr<std::vector<AxisValue>> LayoutClient::ResolveAxes(
    const ResolveAxesQuestion& question) {
  return core_->coordinator().ResolveAxes(question, core_->CallDeadline());
}

absl::StatusOr<ConstraintAnswer> LayoutClient::ConstrainArray(const ConstrainQuestion& question) {
  return core_->coordinator().ConstrainArray(question, core_->CallDeadline());
}

absl::StatusOr<std::vector<absl::StatusOr<ConstraintAnswer>>> LayoutClient::BatchConstrainArrays(
    absl::Span<const ConstrainQuestion> questions) {
  return core_->coordinator().BatchConstrainArrays(questions, core_->CallDeadline());
}

absl::StatusOr<Comparison> LayoutClient::CompareSpecs(const CompareQuestion& question) {
  return core_->coordinator().CompareSpecs(question, core_->CallDeadline());
}

absl::StatusOr<TensorExplanation> LayoutClient::ExplainTensor(const ExplainQuestion& question) {
  return core_->coordinator().ExplainTensor(question, core_->CallDeadline());
}

absl::StatusOr<TilingAnswer> LayoutClient::DescribeTiling(const TilingQuestion& question) {
  return core_->coordinator().DescribeTiling(question, core_->CallDeadline());
}

absl::StatusOr<std::vector<NamedPreset>> LayoutClient::ListPresets() {
  return core_->coordinator().ListPresets(core_->CallDeadline());
}

absl::StatusOr<ProfileAnswer> LayoutClient::DescribeProfile(const ProfileQuestion& question) {
  return core_->coordinator().DescribeProfile(question, core_->CallDeadline());
}

absl::StatusOr<PythonHash> LayoutClient::ComputeHash(const HashQuestion& question) {
  return core_->coordinator().ComputeHash(question, core_->CallDeadline());
}

absl::StatusOr<MeshAnswer> LayoutClient::DescribeMesh(const MeshQuestion& question) {
  return core_->coordinator().DescribeMesh(question, core_->CallDeadline());
}

absl::StatusOr<MeshAxesAnswer> LayoutClient::QueryMesh(const MeshAxesQuestion& question) {
  return core_->coordinator().QueryMesh(question, core_->CallDeadline());
}

absl::StatusOr<std::vector<std::string>> LayoutClient::ListSpecAxes(
    absl::Span<const PartitionSpec> specs) {
  return core_->coordinator().ListSpecAxes(specs, core_->CallDeadline());
}

absl::StatusOr<std::optional<PartitionSpec>> LayoutClient::ResolveOutputSpec(
    const OutputSpecQuestion& question) {
  return core_->coordinator().ResolveOutputSpec(question, core_->CallDeadline());
}

absl::StatusOr<TensorParallelConfig> LayoutClient::CheckTensorParallel(
    const TensorParallelQuestion& question) {
  return core_->coordinator().CheckTensorParallel(question, core_->CallDeadline());
}

absl::StatusOr<LinearLayer> LayoutClient::DescribeLinearLayer(const LinearLayerQuestion& question) {
  return core_->coordinator().DescribeLinearLayer(question, core_->CallDeadline());
}

absl::StatusOr<Dtype> LayoutClient::PromoteDtypes(absl::Span<const Dtype> dtypes,
                                                  std::optional<Dtype> dtype) {
  return core_->coordinator().PromoteDtypes(dtypes, dtype, core_->CallDeadline());
}

absl::StatusOr<TreeAnswer> LayoutClient::ResolveTree(const TreeQuestion& question,
                                                     absl::Span<const TreeTensor> tensors) {
  return core_->coordinator().ResolveTree(question, tensors, core_->CallDeadline());
}

absl::StatusOr<PatternRulesAnswer> LayoutClient::ParsePatternRules(
    const PatternRulesQuestion& question) {
  return core_->coordinator().ParsePatternRules(question, core_->CallDeadline());
}

absl::StatusOr<PatternCheck> LayoutClient::CheckPattern(const std::string& pattern,
                                                        absl::Span<const std::string> names) {
  return core_->coordinator().CheckPattern(pattern, names, core_->CallDeadline());
}

absl::StatusOr<RewriteAnswer> LayoutClient::RewriteRules(const rpc::RuleSetDefinition& rules) {
  return core_->coordinator().RewriteRules(rules, core_->CallDeadline());
}

absl::StatusOr<LintAnswer> LayoutClient::LintRules(const LintQuestion& question,
                                                   absl::Span<const TreeTensor> tensors) {
  return core_->coordinator().LintRules(question, tensors, core_->CallDeadline());
}

absl::StatusOr<DiffAnswer> LayoutClient::DiffLayouts(const DiffQuestion& question,
                                                     absl::Span<const TreeTensor> tensors) {
  return core_->coordinator().DiffLayouts(question, tensors, core_->CallDeadline());
}

absl::StatusOr<LogicalRules> LayoutClient::ComposeLogicalRules(const LogicalRulesSelector& first,
                                                               const LogicalRulesSelector& second) {
  return core_->coordinator().ComposeLogicalRules(first, second, core_->CallDeadline());
}

absl::StatusOr<SpmdAnswer> LayoutClient::ResolveSpmdAxes(const SpmdQuestion& question) {
  return core_->coordinator().ResolveSpmdAxes(question, core_->CallDeadline());
}

absl::StatusOr<std::optional<PartitionSpec>> LayoutClient::ResolveLinenAxes(
    const LinenQuestion& question) {
  return core_->coordinator().ResolveLinenAxes(question, core_->CallDeadline());
}

absl::StatusOr<ReshardAnswer> LayoutClient::PlanReshard(const ReshardQuestion& question) {
  return core_->coordinator().PlanReshard(question, core_->CallDeadline());
}

absl::StatusOr<AnalyzeAnswer> LayoutClient::AnalyzeLayout(const AnalyzeQuestion& question,
                                                          absl::Span<const TreeTensor> tensors) {
  return core_->coordinator().AnalyzeLayout(question, tensors, core_->CallDeadline());
}

absl::StatusOr<SearchAnswer> LayoutClient::SearchMeshes(const SearchQuestion& question,
                                                        absl::Span<const TreeTensor> tensors) {
  return core_->coordinator().SearchMeshes(question, tensors, core_->CallDeadline());
}

absl::StatusOr<std::vector<ShardingsEntry>> LayoutClient::ListShardings(
    const ShardingsQuestion& question) {
  return core_->coordinator().ListShardings(question, core_->CallDeadline());
}

}  // namespace shardmesh::client
