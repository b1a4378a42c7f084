// A coordinator's answers about trees of tensors.
#include <utility>

#include "status/status_macros.h"
#include "tests/conformance/analysis_subject.h"

namespace shardmesh::conformance {
namespace {

class AnalysisWire final : public AnalysisSubject {
 public:
  explicit AnalysisWire(client::MeshClient& client) : client_(client) {}

  absl::StatusOr<ExactAnalysis> Analyze(const std::vector<AnalyzedTensor>& tensors,
                                        const Mesh& mesh) const override {
    std::vector<client::TreeTensor> tree;
    for (const AnalyzedTensor& tensor : tensors) {
      tree.push_back({.name = tensor.name, .shape = tensor.shape, .spec = tensor.spec});
    }
    SHARDMESH_ASSIGN_OR_RETURN(const client::ShardingStrategyAnswer answer,
                               client_.layouts().AnalyzeShardingStrategy({.mesh = mesh}, tree));
    return answer.analysis;
  }

  // Every leaf is a tensor that brings its spec.
  absl::StatusOr<std::vector<LeafPlacement>> ShardAndGather(const std::vector<LeafToShard>& leaves,
                                                            const Mesh& mesh) const override {
    std::vector<client::TreeTensor> tree;
    for (const LeafToShard& leaf : leaves) {
      tree.push_back({.name = leaf.name, .shape = leaf.shape, .spec = leaf.spec});
    }
    client::TreeQuestion question;
    question.mesh = mesh;
    question.compatibility = Compatibility::kExact;
    question.own_specs_must_suit_mesh = true;
    SHARDMESH_ASSIGN_OR_RETURN(const client::TreeAnswer answer,
                               client_.layouts().ResolveTree(question, tree));
    std::vector<LeafPlacement> placements;
    for (size_t i = 0; i < leaves.size(); ++i) {
      const client::TreeSpec& spec = answer.specs[answer.placements[i].spec_index];
      LeafPlacement& placement = placements.emplace_back();
      placement.name = leaves[i].name;
      // P() leaves a tensor as it is; see CorrectConstraint.
      if (spec.requested != PartitionSpec()) {
        placement.shard = CorrectionResult{spec.effective, spec.corrections};
      }
    }
    return placements;
  }

  absl::StatusOr<std::vector<std::optional<NamedSharding>>> ShardingStructure(
      const std::vector<HeldLeaf>& leaves) const override {
    return Layouts({.kind = client::ShardingsQuestion::Kind::kLayouts,
                    .leaves = leaves,
                    .compatibility = Compatibility::kExact});
  }

  absl::StatusOr<std::vector<std::optional<NamedSharding>>> Shardings(
      const std::vector<HeldLeaf>& leaves, const Mesh& mesh) const override {
    return Layouts({.kind = client::ShardingsQuestion::Kind::kLayoutsOnMesh,
                    .leaves = leaves,
                    .mesh = mesh,
                    .compatibility = Compatibility::kExact});
  }

  absl::StatusOr<std::vector<std::optional<PartitionSpec>>> PartitionSpecs(
      const std::vector<HeldLeaf>& leaves) const override {
    SHARDMESH_ASSIGN_OR_RETURN(
        std::vector<client::ShardingsEntry> entries,
        client_.layouts().ListShardings({.kind = client::ShardingsQuestion::Kind::kSpecs,
                                         .leaves = leaves,
                                         .compatibility = Compatibility::kExact}));
    std::vector<std::optional<PartitionSpec>> specs;
    for (client::ShardingsEntry& entry : entries) {
      specs.push_back(std::move(entry.spec));
    }
    return specs;
  }

 private:
  absl::StatusOr<std::vector<std::optional<NamedSharding>>> Layouts(
      const client::ShardingsQuestion& question) const {
    SHARDMESH_ASSIGN_OR_RETURN(std::vector<client::ShardingsEntry> entries,
                               client_.layouts().ListShardings(question));
    std::vector<std::optional<NamedSharding>> layouts;
    for (client::ShardingsEntry& entry : entries) {
      std::optional<NamedSharding>& layout = layouts.emplace_back();
      if (entry.spec.has_value() && entry.mesh.has_value()) {
        layout = NamedSharding{*std::move(entry.mesh), *std::move(entry.spec)};
      }
    }
    return layouts;
  }

  client::MeshClient& client_;
};

}  // namespace

std::shared_ptr<const AnalysisSubject> WireAnalysis(client::MeshClient& client) {
  return std::make_shared<AnalysisWire>(client);
}

}  // namespace shardmesh::conformance
