// The layout of a whole tree of tensors, piece by piece: distinct specs once, tensors by index.
#ifndef SHARDMESH_SERVER_TREE_RESOLVER_H_
#define SHARDMESH_SERVER_TREE_RESOLVER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "rpc/definitions.h"
#include "sharding/axis_value.h"
#include "sharding/compatibility.h"
#include "sharding/correction.h"
#include "sharding/mesh.h"
#include "sharding/mode.h"
#include "sharding/partition_axis.h"
#include "sharding/shape.h"
#include "sharding/spec.h"
#include "tensor/dtype.h"

namespace shardmesh::server {

// A tensor of a tree. Views only: what they point to outlives the call.
struct TreeTensor {
  std::string_view name;
  Shape shape;
  std::optional<Dtype> dtype;   // nullopt: no bytes are counted
  std::vector<AxisValue> axes;  // semantic; empty: the rules decide
};

// A spec that one or more tensors of a tree have.
struct TreeSpec {
  PartitionSpec requested;
  PartitionSpec effective;
  std::vector<Correction> corrections;
};

// The answer for one tensor.
struct TreePlacement {
  uint32_t spec_index = 0;
  std::optional<int64_t> rule;   // that matched
  bool unmatched = false;        // no rule did: counted as replicated
  int64_t bytes_per_device = 0;  // on the device that holds most
};

struct LayoutSummary {
  int64_t tensors = 0;
  int64_t total_bytes = 0;           // each element once
  int64_t min_bytes_per_device = 0;  // on the least loaded device
  int64_t max_bytes_per_device = 0;  // on the most loaded one
  int64_t replicated_bytes = 0;      // all devices together, less total_bytes
  int64_t replicated_tensors = 0;    // of which each device holds all
  int64_t corrected_tensors = 0;
  int64_t devices = 0;
};

struct TreeQuestion {
  std::optional<rpc::RuleSetDefinition> rules;  // for tensors without axes
  PartitionAxis profile;                        // for tensors with axes
  std::optional<Mode> mode;                     // nullopt: training
  // Nullopt: specs are those asked for, nothing is corrected, no bytes are counted.
  std::optional<Mesh> mesh;
  bool strict = false;  // the first correction is an error
  // A tensor that no rule matches is answered as such; otherwise it is an error.
  bool keep_unmatched = false;
  Compatibility compatibility = Compatibility::kDefault;
};

// Answers a tree. For one thread.
class TreeResolver {
 public:
  static constexpr int64_t kMaxTensors = 1'000'000;

  explicit TreeResolver(TreeQuestion question) : question_(std::move(question)) {}

  // Answers the next tensors, in their order, and appends to specs() what they have that is new.
  // `is_cancelled` is asked now and then; true ends the call with CANCELLED.
  //
  // Errors name the tensor. INVALID_ARGUMENT: RuleSet::Match's, ResolveSpec's, Correct's, a name
  // that came before, MISSING_ARGUMENT for neither rules nor axes, and under strict the first
  // correction, with its reason. RESOURCE_EXHAUSTED (LIMIT_EXCEEDED): over kMaxTensors.
  absl::StatusOr<std::vector<TreePlacement>> Add(absl::Span<const TreeTensor> tensors,
                                                 const std::function<bool()>& is_cancelled = {});

  // The distinct specs so far, in order of their first appearance.
  const std::vector<TreeSpec>& specs() const { return specs_; }
  // Totals over all tensors so far.
  const LayoutSummary& summary() const { return summary_; }

 private:
  // What the tensors of one shape that one rule matches have in common.
  struct RuleAndShape {
    int64_t rule = 0;
    Shape shape;

    friend bool operator==(const RuleAndShape&, const RuleAndShape&) = default;
    template <typename H>
    friend H AbslHashValue(H h, const RuleAndShape& key) {
      return H::combine(std::move(h), key.rule, key.shape);
    }
  };
  struct Placed {
    uint32_t spec_index = 0;
    int64_t shard_elements = 0;
    bool fully_replicated = false;
    bool corrected = false;
  };

  absl::StatusOr<PartitionSpec> ResolveAxes(const TreeTensor& tensor) const;
  // Corrects `spec.effective`, which is as the rules or axes give it.
  absl::StatusOr<Placed> Place(TreeSpec spec, const Shape& shape);
  absl::Status Count(const TreeTensor& tensor, const Placed& placed, TreePlacement* placement);

  const TreeQuestion question_;
  std::vector<TreeSpec> specs_;
  LayoutSummary summary_;
  absl::flat_hash_set<std::string> names_;
  absl::flat_hash_map<std::string, uint32_t> spec_indexes_;  // by the specs' texts
  absl::flat_hash_map<RuleAndShape, Placed> placed_by_rule_;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_TREE_RESOLVER_H_
