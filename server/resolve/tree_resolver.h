// The layout of a whole tree (names, shapes and element types of a model's tensors), resolved in
// pieces: each distinct spec is listed once, and tensors refer to it by index.
#ifndef SHARDMESH_SERVER_RESOLVE_TREE_RESOLVER_H_
#define SHARDMESH_SERVER_RESOLVE_TREE_RESOLVER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory_resource>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "rpc/codec/tree_decoder.h"
#include "sharding/axis_value.h"
#include "sharding/compatibility.h"
#include "sharding/correction.h"
#include "sharding/layout/analysis.h"
#include "sharding/mesh.h"
#include "sharding/mode.h"
#include "sharding/partition_axis.h"
#include "sharding/rules/rule_set_definition.h"
#include "sharding/shape.h"
#include "sharding/spec.h"
#include "sharding/tile.h"
#include "sharding/uneven.h"

namespace shardmesh::server {

// A tensor's name and shape need to live only during a call of Add. Its axes and spec must outlive
// the resolver. The tensors of a tree share axes and specs, so the resolver identifies these by
// their addresses.
using rpc::TreeTensor;

// A spec that at least one tensor of a tree has.
struct TreeSpec {
  PartitionSpec requested;
  PartitionSpec effective;
  std::vector<Correction> corrections;
  Shape shape;  // shape of the first tensor with this spec; `corrections` refer to it
};

// The result for one tensor.
struct TreePlacement {
  uint32_t spec_index = 0;
  std::optional<int64_t> rule = std::nullopt;  // index of the rule that matched
  bool unmatched = false;                      // no rule matched; the tensor counts as replicated
  int64_t bytes_per_device = 0;                // on the device with the tensor's largest tile
};

// Counts of a tree's tensors and of their elements.
struct TreeCounts {
  int64_t tensors = 0;
  int64_t parameters = 0;          // elements of all tensors
  int64_t sharded_parameters = 0;  // elements of tensors that are not replicated
  int64_t corrected = 0;           // tensors with a corrected spec
  int64_t replicated = 0;          // tensors that every device holds as a whole
  int64_t unmatched = 0;           // tensors that no rule matched
};

struct TreeQuestion {
  std::optional<RuleSetDefinition> rules;  // for tensors without axes and spec
  PartitionAxis profile;                   // for tensors with axes
  std::optional<Mode> mode;                // nullopt: training
  // Nullopt: no spec is corrected, and no bytes are counted.
  std::optional<Mesh> mesh;
  bool strict = false;  // the first correction of a spec is an error
  // The rule that cuts dimensions whose axes do not divide them, with the weights of the devices
  // (CutByRule). kEqualOnly: such axes are dropped from the spec.
  UnevenCuts uneven = UnevenCuts::kEqualOnly;
  std::vector<int64_t> weights = {};
  // Whether a tensor that no rule matches is part of the answer. If false, such a tensor is an
  // error.
  bool keep_unmatched = false;
  // Whether a spec in the request may name only axes of the mesh, each once.
  bool own_specs_must_suit_mesh = false;
  Compatibility compatibility = Compatibility::kDefault;
};

// Resolves a tree. A tensor whose layout comes from the same source as that of an earlier tensor of
// the same shape is looked up in a table. For one thread.
class TreeResolver {
 public:
  static constexpr int64_t kMaxTensors = 1'000'000;

  // FAILED_PRECONDITION (NO_MESH): the mesh is empty.
  static absl::StatusOr<std::unique_ptr<TreeResolver>> Create(TreeQuestion question);

  // Resolves the next tensors, in order, and appends their new specs to specs(). Calls
  // `is_cancelled` at every tensor, and within a tensor every few rules. If `is_cancelled` returns
  // true, the result is CANCELLED. One part cannot be cancelled: after some hundred tensors, Add
  // builds the automaton of all rules. That takes ten milliseconds for a thousand rules.
  //
  // Errors name the tensor. INVALID_ARGUMENT: the errors of RuleSet::Match, ResolveSpec, Correct
  // and CutByRule; a repeated name; MISSING_ARGUMENT if there are neither rules nor axes nor a
  // spec; with `strict` the first correction, with its reason. RESOURCE_EXHAUSTED (LIMIT_EXCEEDED):
  // more than kMaxTensors tensors.
  absl::StatusOr<std::vector<TreePlacement>> Add(absl::Span<const TreeTensor> tensors,
                                                 const std::function<bool()>& is_cancelled = {});

  const TreeQuestion& question() const { return question_; }
  // Returns whether a search for the rule of one tensor may take too long for a gRPC reaction: a
  // rule backtracks.
  bool SearchesLong() const {
    return question_.rules.has_value() && question_.rules->rules.backtracks();
  }
  // The distinct specs so far, in order of their first appearance.
  const std::vector<TreeSpec>& specs() const { return specs_; }
  // The number of tensors that have the spec of this index.
  int64_t UsesOf(uint32_t spec_index) const { return uses_[spec_index]; }
  // Counts over all tensors so far.
  const TreeCounts& counts() const { return counts_; }
  // The analysis of the layout of all tensors so far with a known dtype; null without a mesh.
  const LayoutAnalysis* analysis() const { return analysis_.has_value() ? &*analysis_ : nullptr; }

 private:
  // The tensor's shape, and where the tensor's layout comes from. Tensors with equal sources get
  // the same layout.
  struct Source {
    const void* given = nullptr;  // the tensor's own axes or spec; null: none
    // If `given` is null: index of the rule; -1: no rule was tried, -2: no rule matched.
    int64_t rule = 0;
    Shape shape;
  };
  struct SourceView {
    const void* given;
    int64_t rule;
    absl::Span<const int64_t> shape;
  };
  // A name with its hash, so that a growing hash table does not hash the name again.
  struct Name {
    absl::string_view bytes;
    size_t hash;
  };
  struct NameHash {
    size_t operator()(const Name& name) const { return name.hash; }
  };
  struct NameEqual {
    bool operator()(const Name& a, const Name& b) const {
      return a.hash == b.hash && a.bytes == b.bytes;
    }
  };
  struct SourceHash {
    using is_transparent = void;
    size_t operator()(const SourceView& view) const {
      return absl::HashOf(view.given, view.rule, view.shape);
    }
    size_t operator()(const Source& source) const {
      return (*this)(SourceView{source.given, source.rule, source.shape});
    }
  };
  struct SourceEqual {
    using is_transparent = void;
    template <typename A, typename B>
    bool operator()(const A& a, const B& b) const {
      return a.given == b.given && a.rule == b.rule &&
             absl::MakeConstSpan(a.shape) == absl::MakeConstSpan(b.shape);
    }
  };
  struct Placed {
    uint32_t spec_index = 0;
    bool fully_replicated = false;
    bool corrected = false;
    int64_t elements = 0;
    int64_t shard_elements = 0;
    std::optional<Tiling> tiling;  // only with a mesh
  };

  explicit TreeResolver(TreeQuestion question);

  absl::StatusOr<TreePlacement> Answer(const TreeTensor& tensor,
                                       const std::function<bool()>& is_cancelled);
  absl::Status Remember(std::string_view name);
  // Returns the requested spec: from the tensor's own spec, its axes, or its rule.
  absl::StatusOr<TreeSpec> Request(const TreeTensor& tensor, std::string_view rule_name,
                                   const SourceView& source) const;
  // With a mesh, corrects `spec.effective` to the mesh and the shape. Adds the spec to specs_ if it
  // is new.
  absl::StatusOr<Placed> Place(TreeSpec spec, const TreeTensor& tensor);

  const TreeQuestion question_;
  std::optional<RuleFinder> finder_;
  std::vector<TreeSpec> specs_;
  std::vector<int64_t> uses_;
  TreeCounts counts_;
  std::optional<LayoutAnalysis> analysis_;
  std::pmr::monotonic_buffer_resource name_bytes_{size_t{1} << 20};
  absl::flat_hash_set<Name, NameHash, NameEqual> names_;  // views into name_bytes_
  // The current name as rules match it. Reused for all tensors, so that its memory is allocated
  // once.
  std::string rule_name_;
  absl::flat_hash_map<std::string, uint32_t> spec_indexes_;  // by the text of the spec
  absl::flat_hash_map<Source, Placed, SourceHash, SourceEqual> placed_;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_RESOLVE_TREE_RESOLVER_H_
