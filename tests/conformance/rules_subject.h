// Questions about rules that give tensors their specs by name.
#ifndef SHARDMESH_TESTS_CONFORMANCE_RULES_SUBJECT_H_
#define SHARDMESH_TESTS_CONFORMANCE_RULES_SUBJECT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/mesh_client.h"
#include "sharding/mesh.h"
#include "sharding/rules/rule_set.h"
#include "sharding/spec.h"
#include "tests/conformance/question.h"
#include "tests/testing/golden_tree.h"

namespace shardmesh::conformance {

// The implementation under test. Each method answers as the original does, errors included.
class RulesSubject {
 public:
  virtual ~RulesSubject() = default;

  // The spec of each leaf, in the leaves' order.
  virtual absl::StatusOr<std::vector<PartitionSpec>> MatchTree(
      const std::vector<Rule>& rules, std::optional<int64_t> min_size, bool strict,
      absl::Span<const test::TreeLeaf> leaves) const = 0;

  // The spec of a name by rules in one line of text.
  virtual absl::StatusOr<PartitionSpec> SpecByPatternText(std::string_view text,
                                                          std::string_view name,
                                                          const PartitionSpec& default_spec,
                                                          const Mesh& mesh) const = 0;

  // Whether the pattern is found in the name.
  virtual absl::StatusOr<bool> Search(std::string_view pattern, std::string_view name) const = 0;
};

std::shared_ptr<const RulesSubject> LibraryRules();
// `client` outlives the subject.
std::shared_ptr<const RulesSubject> WireRules(client::MeshClient& client);

// Adds match_partition_rules, create_pattern_based_partition_spec and re_search.
void AddRulesQuestions(std::shared_ptr<const RulesSubject> subject, Questions* questions);

}  // namespace shardmesh::conformance

#endif  // SHARDMESH_TESTS_CONFORMANCE_RULES_SUBJECT_H_
