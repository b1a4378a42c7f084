// Finds the mesh for a model: ranks all ways to divide a number of devices over named axes.
#ifndef SHARDMESH_SHARDING_LAYOUT_MESH_SEARCH_H_
#define SHARDMESH_SHARDING_LAYOUT_MESH_SEARCH_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/mesh.h"
#include "sharding/shape.h"
#include "sharding/spec.h"

namespace shardmesh {

// Tensors of one spec, shape and element size, which the search need not distinguish.
struct TensorGroup {
  PartitionSpec spec;  // as requested, before correction
  Shape shape;
  int64_t bits_per_element = 0;
  int64_t count = 1;  // from 1 to kMaxGroupCount
};

// Upper bound on the tensors of a group.
inline constexpr int64_t kMaxGroupCount = int64_t{1} << 31;

// Sorts the tensors of a tree into groups. Not synchronised.
class TensorGroups {
 public:
  // INVALID_ARGUMENT (INVALID_SHAPE) for a malformed shape or fewer than 1 bit per element.
  // INVALID_ARGUMENT (LIMIT_EXCEEDED) if the group's total count is not from 1 to kMaxGroupCount.
  absl::Status Add(const PartitionSpec& spec, absl::Span<const int64_t> shape,
                   int64_t bits_per_element, int64_t count = 1);

  // Returns the groups in the order of their first tensors. Valid until the next Add.
  absl::Span<const TensorGroup> groups() const { return groups_; }

 private:
  std::vector<TensorGroup> groups_;
  absl::flat_hash_map<std::string, size_t> index_;
};

// An axis of the meshes to try.
struct SearchAxis {
  std::string name;
  int64_t min_size = 1;
  std::optional<int64_t> max_size = {};  // nullopt: no bound; equal to min_size for a fixed size
};

// Criteria that compare candidates. Less is better; by kFit, fitting candidates come first.
enum class MeshCriterion {
  kFit,
  kDeviceBytes,  // device_bytes
  kWastedBytes,  // wasted_bytes
  kCorrections,  // corrected_tensors
};

// Returns `fit`, `device_bytes`, `wasted_bytes` or `corrections`.
std::string_view MeshCriterionName(MeshCriterion criterion);
// Returns the criterion of that name; nullopt if no criterion has it.
std::optional<MeshCriterion> MeshCriterionFromName(std::string_view name);

struct MeshSearchOptions {
  int64_t device_count = 0;
  std::vector<SearchAxis> axes;
  // Memory of a device; nullopt for unlimited memory.
  std::optional<int64_t> device_memory_bytes;
  // Number of candidates to keep, from 1 to kMaxKeptCandidates.
  int64_t keep = 20;
  // The first criterion that differs decides. Candidates that are equal in all criteria are ordered
  // by their axis sizes, larger first.
  std::vector<MeshCriterion> ranking = {MeshCriterion::kFit, MeshCriterion::kDeviceBytes,
                                        MeshCriterion::kWastedBytes, MeshCriterion::kCorrections};
  // The search calls this before each candidate and after every few thousand groups of tensors. If
  // it returns true, the search returns CANCELLED.
  std::function<bool()> is_cancelled;
};

// A candidate mesh, and the cost of all tensors on it. Specs are corrected for the mesh.
struct MeshCandidate {
  std::vector<int64_t> sizes;     // the size of each axis, in the order of the options
  bool fits = true;               // all tensors can be placed, and device_bytes is not too large
  int64_t device_bytes = 0;       // bytes that each device holds
  int64_t wasted_bytes = 0;       // bytes on all devices, minus one copy of every tensor
  int64_t sharded_bytes = 0;      // bytes of one copy of the tensors that are not fully replicated
  int64_t corrected_tensors = 0;  // number of tensors whose spec needed a correction
  // Tensors that cannot be placed, because an axis is used twice even after correction. The bytes
  // above count such tensors as replicated.
  int64_t unplaceable_tensors = 0;

  friend bool operator==(const MeshCandidate&, const MeshCandidate&) = default;
};

struct MeshSearchResult {
  int64_t evaluated = 0;            // number of candidates
  int64_t fitting = 0;              // number of candidates that fit
  std::vector<MeshCandidate> best;  // best first, at most `keep`
};

// Upper bounds on the candidates that a search evaluates, and on those that it keeps.
inline constexpr int64_t kMaxMeshCandidates = 10'000'000;
inline constexpr int64_t kMaxKeptCandidates = 10'000;

// Returns the number of candidate meshes: the ways to write device_count as an ordered product of
// one size per axis, each within its bounds. Saturates at int64_t's maximum. Errors on the options
// as SearchMeshes.
absl::StatusOr<int64_t> CountMeshes(const MeshSearchOptions& options);

// Evaluates the tensors on every candidate mesh, and returns the best ones.
//
// Example: 8 devices over (dp, tp) have 4 candidates: 8x1, 4x2, 2x4, 1x8.
// Errors:
//   - INVALID_ARGUMENT (INVALID_MESH): no device, no axis, an axis with a bad name or bad bounds,
//     or bounds that exclude every candidate;
//   - INVALID_ARGUMENT (DUPLICATE_AXIS): two axes have one name;
//   - INVALID_ARGUMENT (LIMIT_EXCEEDED): too many axes, devices or candidates, or `keep` is out of
//     range;
//   - INVALID_ARGUMENT (INVALID_SHAPE): a group has a malformed shape;
//   - RESOURCE_EXHAUSTED (LIMIT_EXCEEDED): a sum of bytes does not fit int64_t;
//   - CANCELLED: is_cancelled returned true.
// Takes O(candidates * groups * rank) time and O(groups + keep) memory.
absl::StatusOr<MeshSearchResult> SearchMeshes(absl::Span<const TensorGroup> groups,
                                              const MeshSearchOptions& options);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_LAYOUT_MESH_SEARCH_H_
