// Questions about trees of tensors: what their layout amounts to, how they are placed and gathered,
// and what layouts they have.
#ifndef SHARDMESH_TESTS_CONFORMANCE_ANALYSIS_SUBJECT_H_
#define SHARDMESH_TESTS_CONFORMANCE_ANALYSIS_SUBJECT_H_

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "client/mesh_client.h"
#include "sharding/layout/analysis.h"
#include "sharding/layout/held_shardings.h"
#include "sharding/mesh.h"
#include "sharding/spec.h"
#include "tests/conformance/question.h"

namespace shardmesh::conformance {

// An empty mesh is none.
class AnalysisSubject {
 public:
  virtual ~AnalysisSubject() = default;

  virtual absl::StatusOr<ExactAnalysis> Analyze(const std::vector<AnalyzedTensor>& tensors,
                                                const Mesh& mesh) const = 0;
  virtual absl::StatusOr<std::vector<LeafPlacement>> ShardAndGather(
      const std::vector<LeafToShard>& leaves, const Mesh& mesh) const = 0;
  virtual absl::StatusOr<std::vector<std::optional<NamedSharding>>> ShardingStructure(
      const std::vector<HeldLeaf>& leaves) const = 0;
  virtual absl::StatusOr<std::vector<std::optional<NamedSharding>>> Shardings(
      const std::vector<HeldLeaf>& leaves, const Mesh& mesh) const = 0;
  virtual absl::StatusOr<std::vector<std::optional<PartitionSpec>>> PartitionSpecs(
      const std::vector<HeldLeaf>& leaves) const = 0;
};

std::shared_ptr<const AnalysisSubject> LibraryAnalysis();
// `client` outlives the subject.
std::shared_ptr<const AnalysisSubject> WireAnalysis(client::MeshClient& client);

// `analyze_sharding_strategy`, `make_shard_and_gather_fns`, `extract_sharding_structure`,
// `get_shardings_with_structure`, `extract_shardings` and `get_partition_spec`.
void AddAnalysisQuestions(std::shared_ptr<const AnalysisSubject> subject, Questions* questions);

}  // namespace shardmesh::conformance

#endif  // SHARDMESH_TESTS_CONFORMANCE_ANALYSIS_SUBJECT_H_
