// The library as the subject of questions about trees of tensors.
#include "tests/conformance/analysis_subject.h"

namespace shardmesh::conformance {
namespace {

class AnalysisLibrary final : public AnalysisSubject {
 public:
  absl::StatusOr<ExactAnalysis> Analyze(const std::vector<AnalyzedTensor>& tensors,
                                        const Mesh& mesh) const override {
    return AnalyzeAsOriginal(tensors, mesh);
  }
  absl::StatusOr<std::vector<LeafPlacement>> ShardAndGather(const std::vector<LeafToShard>& leaves,
                                                            const Mesh& mesh) const override {
    return PlanShardAndGather(leaves, mesh);
  }
  absl::StatusOr<std::vector<std::optional<NamedSharding>>> ShardingStructure(
      const std::vector<HeldLeaf>& leaves) const override {
    return ExtractShardingStructure(leaves);
  }
  absl::StatusOr<std::vector<std::optional<NamedSharding>>> Shardings(
      const std::vector<HeldLeaf>& leaves, const Mesh& mesh) const override {
    return ExtractShardings(leaves, mesh);
  }
  absl::StatusOr<std::vector<std::optional<PartitionSpec>>> PartitionSpecs(
      const std::vector<HeldLeaf>& leaves) const override {
    return GetPartitionSpecs(leaves);
  }
};

}  // namespace

std::shared_ptr<const AnalysisSubject> LibraryAnalysis() {
  return std::make_shared<AnalysisLibrary>();
}

}  // namespace shardmesh::conformance
