// The cost of a layout of many tensors: bytes per device, bytes that replication wastes, sharded
// bytes.
#ifndef SHARDMESH_SHARDING_LAYOUT_ANALYSIS_H_
#define SHARDMESH_SHARDING_LAYOUT_ANALYSIS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/mesh.h"
#include "sharding/shape.h"
#include "sharding/spec.h"
#include "sharding/tile.h"

namespace shardmesh {

// Returns the bytes of `elements` packed elements; a partly used last byte counts. INVALID_ARGUMENT
// (INVALID_SHAPE) for fewer than 0 elements, fewer than 1 bit each, or more bytes than int64_t
// holds.
absl::StatusOr<int64_t> TileBytes(int64_t elements, int64_t bits_per_element);

// The tensors with one spec.
struct SpecUsage {
  PartitionSpec spec;
  int64_t tensors = 0;
  int64_t parameters = 0;
  int64_t bytes = 0;  // of one copy of each tensor

  friend bool operator==(const SpecUsage&, const SpecUsage&) = default;
};

// One tensor's cost.
struct TensorUsage {
  std::string name;
  Shape shape;
  PartitionSpec spec;
  int64_t bytes = 0;         // of one copy
  int64_t device_bytes = 0;  // bytes of its largest tile
  int64_t held_bytes = 0;    // bytes of its tiles on all devices together
  int64_t wasted_bytes = 0;  // held_bytes - bytes

  friend bool operator==(const TensorUsage&, const TensorUsage&) = default;
};

struct LayoutReport {
  int64_t tensors = 0;
  int64_t parameters = 0;          // elements of all tensors
  int64_t sharded_parameters = 0;  // elements of the tensors that are not FullyReplicated()
  int64_t bytes = 0;               // bytes of one copy of every tensor
  int64_t sharded_bytes = 0;       // bytes of one copy of the tensors in sharded_parameters
  int64_t held_bytes = 0;          // bytes on all devices together
  int64_t wasted_bytes = 0;        // held_bytes - bytes

  // The least and the most bytes that any device holds, and one device that holds the least and one
  // that holds the most.
  int64_t least_device_bytes = 0;
  int64_t most_device_bytes = 0;
  DeviceId least_loaded_device = 0;
  DeviceId most_loaded_device = 0;
  double mean_device_bytes = 0;  // held_bytes / devices
  // least_device_bytes / most_device_bytes; 1 if every device is empty.
  double balance_score = 1;

  std::vector<SpecUsage> specs;      // sorted by falling bytes, then by the spec's text
  std::vector<TensorUsage> worst;    // at most kListed tensors, by falling wasted_bytes
  std::vector<TensorUsage> largest;  // at most kListed tensors, by falling device_bytes
};

// Adds up a layout tensor by tensor. Memory: O(1) for each distinct spec. Tensors with uneven parts
// also need one sum for each combination of coordinates along the axes of these parts.
//
// Example: mesh tp=4, a float32 tensor of shape (8, 8) with P('tp') and one of shape (8,) with P().
// A device holds 64 + 32 bytes, all devices hold 384, 96 are wasted, the balance score is 1. Not
// synchronised: one thread at a time.
class LayoutAnalysis {
 public:
  // The maximum number of tensors in each of LayoutReport::worst and LayoutReport::largest. Tensors
  // with equal bytes are ordered by name.
  static constexpr int64_t kListed = 10;
  // Upper bound on the sums kept for uneven parts, and on the combinations that Report()
  // enumerates.
  static constexpr int64_t kMaxUnevenSums = int64_t{1} << 22;

  // FAILED_PRECONDITION (NO_MESH; Python: AssertionError) on an empty mesh.
  static absl::StatusOr<LayoutAnalysis> Create(const Mesh& mesh);

  LayoutAnalysis(LayoutAnalysis&&) noexcept;
  LayoutAnalysis& operator=(LayoutAnalysis&&) noexcept;
  ~LayoutAnalysis();

  // Adds a tensor with equal parts. Returns the errors of Tiling::Create and TileBytes, with the
  // tensor's name. Returns RESOURCE_EXHAUSTED (LIMIT_EXCEEDED) if a sum exceeds int64_t. If it
  // returns an error, it has added nothing.
  absl::Status Add(std::string_view name, absl::Span<const int64_t> shape, int64_t bits_per_element,
                   const PartitionSpec& spec);
  // Like Add above, for a tensor that may have uneven parts. Returns INVALID_ARGUMENT
  // (INVALID_MESH) if the tiling is on another mesh. Returns RESOURCE_EXHAUSTED (LIMIT_EXCEEDED)
  // also if the sums for uneven parts exceed kMaxUnevenSums.
  absl::Status Add(std::string_view name, const Tiling& tiling, int64_t bits_per_element);

  // Returns the report on all tensors added before. RESOURCE_EXHAUSTED (LIMIT_EXCEEDED) if it has
  // to enumerate more than kMaxUnevenSums combinations.
  absl::StatusOr<LayoutReport> Report() const;

 private:
  struct State;

  explicit LayoutAnalysis(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

// A tensor with the spec to analyze.
struct AnalyzedTensor {
  std::string name;
  Shape shape;
  PartitionSpec spec;
};

// A count as Python represents it. In Python, the size of a scalar is a float, because numpy's
// product of no extents is 1.0. Every sum that includes a float is a float.
struct PythonCount {
  int64_t value = 0;
  bool is_float = false;

  friend bool operator==(const PythonCount&, const PythonCount&) = default;
};

// The result of eformer's analyze_sharding_strategy, without two tables that are always empty.
struct ExactAnalysis {
  PythonCount total_parameters;
  PythonCount sharded_parameters;  // elements of the tensors whose spec is not P()
  double balance_score = 0;        // always 0, as in eformer
};

// Returns the exact answer of the Python original. FAILED_PRECONDITION (NO_MESH; Python:
// AssertionError) on an empty mesh. INVALID_ARGUMENT (AXIS_NOT_IN_MESH; Python: KeyError) for the
// first entry, in order, that is a tuple, unconstrained or no axis of the mesh: the original looks
// up each entry as one axis.
absl::StatusOr<ExactAnalysis> AnalyzeAsOriginal(absl::Span<const AnalyzedTensor> tensors,
                                                const Mesh& mesh);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_LAYOUT_ANALYSIS_H_
