// LayoutClient: questions about layouts, rules, meshes, tiles and plans.
#ifndef SHARDMESH_CLIENT_LAYOUTS_H_
#define SHARDMESH_CLIENT_LAYOUTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/types/call_options.h"
#include "client/types/layer_questions.h"
#include "client/types/layout_questions.h"
#include "client/types/logical_questions.h"
#include "client/types/mesh_questions.h"
#include "client/types/plan_questions.h"
#include "client/types/profile_questions.h"
#include "client/types/rule_questions.h"

namespace shardmesh::client {

class ClientCore;

// Questions about layouts. Their answers need no worker, and change nothing. A coordinator and
// LocalQuestions, which needs no cluster, give the same answers. Shapes and tiles are in elements;
// a tile is half-open. Sizes are in bytes.
//
// Example:
//   auto answer = client->layouts().ResolveSpec({.axes = axes, .mesh = mesh, .shape = shape});
//
// Errors, retries and time limits are those of MeshClient, which owns this object. Thread-safe.
class LayoutClient {
 public:
  // `core` outlives this object.
  explicit LayoutClient(ClientCore* core) : core_(core) {}
  LayoutClient(const LayoutClient&) = delete;
  LayoutClient& operator=(const LayoutClient&) = delete;

  absl::StatusOr<SpecAnswer> ResolveSpec(const ResolveSpecQuestion& question,
                                         const CallOptions& options = {});
  // Returns the effective spec, which is the same as that of ResolveSpec. A call costs less than a
  // call of ResolveSpec.
  absl::StatusOr<EffectiveSpec> ResolveEffectiveSpec(const EffectiveSpecQuestion& question,
                                                     const CallOptions& options = {});
  // Answers at most 10,000 questions in one call. Each question has its own answer or error.
  absl::StatusOr<std::vector<absl::StatusOr<SpecAnswer>>> BatchResolveSpecs(
      absl::Span<const ResolveSpecQuestion> questions, const CallOptions& options = {});
  absl::StatusOr<SpecAnswer> CorrectSpec(const CorrectSpecQuestion& question,
                                         const CallOptions& options = {});
  absl::StatusOr<std::vector<AxisValue>> ResolveAxes(const ResolveAxesQuestion& question,
                                                     const CallOptions& options = {});
  absl::StatusOr<ConstraintAnswer> ConstrainArray(const ConstrainQuestion& question,
                                                  const CallOptions& options = {});
  // Answers at most 10,000 questions in one call. Each question has its own answer or error.
  absl::StatusOr<std::vector<absl::StatusOr<ConstraintAnswer>>> BatchConstrainArrays(
      absl::Span<const ConstrainQuestion> questions, const CallOptions& options = {});
  absl::StatusOr<Comparison> CompareSpecs(const CompareQuestion& question,
                                          const CallOptions& options = {});
  absl::StatusOr<TensorExplanation> ExplainTensor(const ExplainQuestion& question,
                                                  const CallOptions& options = {});
  absl::StatusOr<TilingAnswer> DescribeTiling(const TilingQuestion& question,
                                              const CallOptions& options = {});
  absl::StatusOr<std::vector<NamedPreset>> ListPresets(const CallOptions& options = {});
  // UNKNOWN_FIELD (TypeError in Python): the profile has an unknown field. The client returns this
  // error without a call to the coordinator.
  absl::StatusOr<ProfileAnswer> DescribeProfile(const ProfileQuestion& question,
                                                const CallOptions& options = {});
  // Returns the digest, in decimal, of a text, of an object's attributes or of a profile. For a
  // text, the answer does not include the value of Python's hash().
  absl::StatusOr<PythonHash> ComputeHash(const HashQuestion& question,
                                         const CallOptions& options = {});
  absl::StatusOr<MeshAnswer> DescribeMesh(const MeshQuestion& question,
                                          const CallOptions& options = {});
  absl::StatusOr<MeshAxesAnswer> QueryMesh(const MeshAxesQuestion& question,
                                           const CallOptions& options = {});
  // Returns the distinct axes that the specs name, sorted. At most 10,000 specs.
  absl::StatusOr<std::vector<std::string>> ListSpecAxes(absl::Span<const PartitionSpec> specs,
                                                        const CallOptions& options = {});
  // Returns the spec of a layer's result; nullopt if the result has no spec, because an operand is
  // not placed.
  absl::StatusOr<std::optional<PartitionSpec>> ResolveOutputSpec(const OutputSpecQuestion& question,
                                                                 const CallOptions& options = {});
  absl::StatusOr<TensorParallelConfig> CheckTensorParallel(const TensorParallelQuestion& question,
                                                           const CallOptions& options = {});
  absl::StatusOr<LinearLayer> DescribeLinearLayer(const LinearLayerQuestion& question,
                                                  const CallOptions& options = {});
  // Returns the type to which a layer casts arrays of these types, like promote_dtype of flax.nnx;
  // see PromoteDtype. At most 10,000 types.
  absl::StatusOr<Dtype> PromoteDtypes(absl::Span<const Dtype> dtypes,
                                      std::optional<Dtype> dtype = std::nullopt,
                                      const CallOptions& options = {});
  // Resolves the layouts of at most 1,000,000 tensors. In this call and the calls below, `tensors`
  // must be empty if the question names a stored tree.
  absl::StatusOr<TreeAnswer> ResolveTree(const TreeQuestion& question,
                                         absl::Span<const TreeTensor> tensors,
                                         const CallOptions& options = {});

  // Parses rules from one line of text. INVALID_ARGUMENT names the faulty part of a bad or
  // unsupported pattern.
  absl::StatusOr<PatternRulesAnswer> ParsePatternRules(const PatternRulesQuestion& question,
                                                       const CallOptions& options = {});
  // Returns, for each name, whether the pattern is found in the name. At most 10,000 names of at
  // most 1,024 bytes each.
  absl::StatusOr<PatternCheck> CheckPattern(const std::string& pattern,
                                            absl::Span<const std::string> names,
                                            const CallOptions& options = {});
  // Returns equivalent rules without exclusions (negative lookaheads) such as `^(?!.*bias)`, which
  // are matched in linear time. INVALID_ARGUMENT names the rule that cannot be rewritten.
  absl::StatusOr<RewriteAnswer> RewriteRules(const RuleSetDefinition& rules,
                                             const CallOptions& options = {});
  // Finds questionable parts of rules, which it applies to at most 1,000,000 tensors. No tensor may
  // have its own spec.
  absl::StatusOr<LintAnswer> LintRules(const LintQuestion& question,
                                       absl::Span<const TreeTensor> tensors,
                                       const CallOptions& options = {});
  absl::StatusOr<DiffAnswer> DiffLayouts(const DiffQuestion& question,
                                         absl::Span<const TreeTensor> tensors,
                                         const CallOptions& options = {});

  // The next three calls answer questions about flax's logical names. Their results and errors are
  // those of the functions in sharding/rules/logical_rules.h.
  absl::StatusOr<LogicalRules> ComposeLogicalRules(const LogicalRulesSelector& first,
                                                   const LogicalRulesSelector& second,
                                                   const CallOptions& options = {});
  absl::StatusOr<SpmdAnswer> ResolveSpmdAxes(const SpmdQuestion& question,
                                             const CallOptions& options = {});
  // Returns the spec to which flax.linen resolves the names; nullopt if the array keeps its layout.
  absl::StatusOr<std::optional<PartitionSpec>> ResolveLinenAxes(const LinenQuestion& question,
                                                                const CallOptions& options = {});
  // Plans the data movement from one layout of an array to another. This and the following
  // questions move no data.
  absl::StatusOr<ReshardAnswer> PlanReshard(const ReshardQuestion& question,
                                            const CallOptions& options = {});
  // The totals of a layout of at most 1,000,000 tensors. Every tensor must have its own spec.
  absl::StatusOr<AnalyzeAnswer> AnalyzeLayout(const AnalyzeQuestion& question,
                                              absl::Span<const TreeTensor> tensors,
                                              const CallOptions& options = {});
  // The parameters of a layout, counted as eformer's analyze_sharding_strategy does.
  absl::StatusOr<ShardingStrategyAnswer> AnalyzeShardingStrategy(
      const AnalyzeQuestion& question, absl::Span<const TreeTensor> tensors,
      const CallOptions& options = {});
  // The best meshes for a tree of at most 1,000,000 tensors. Every tensor must have a dtype.
  absl::StatusOr<SearchAnswer> SearchMeshes(const SearchQuestion& question,
                                            absl::Span<const TreeTensor> tensors,
                                            const CallOptions& options = {});
  // Returns the layouts of the question's leaves, in the order of the question. After them come the
  // layouts of the cluster's arrays, sorted by name.
  absl::StatusOr<std::vector<ShardingsEntry>> ListShardings(const ShardingsQuestion& question,
                                                            const CallOptions& options = {});

 private:
  ClientCore* const core_;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_LAYOUTS_H_
