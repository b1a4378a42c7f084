// What a layout of many tensors costs: bytes per device, what replication wastes, what is sharded.
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

// Bytes of `elements` packed elements, the last byte filled up. INVALID_ARGUMENT (INVALID_SHAPE) if
// there are fewer than 0 elements or than 1 bit each, or the bytes do not fit int64_t.
absl::StatusOr<int64_t> TileBytes(int64_t elements, int64_t bits_per_element);

// The tensors that one spec places.
struct SpecUsage {
  PartitionSpec spec;
  int64_t tensors = 0;
  int64_t parameters = 0;
  int64_t bytes = 0;  // of one copy

  friend bool operator==(const SpecUsage&, const SpecUsage&) = default;
};

// One tensor's cost.
struct TensorUsage {
  std::string name;
  Shape shape;
  PartitionSpec spec;
  int64_t bytes = 0;         // of one copy
  int64_t device_bytes = 0;  // of its largest tile
  int64_t held_bytes = 0;    // on all devices together
  int64_t wasted_bytes = 0;  // held_bytes - bytes

  friend bool operator==(const TensorUsage&, const TensorUsage&) = default;
};

struct LayoutReport {
  int64_t tensors = 0;
  int64_t parameters = 0;          // elements of all tensors
  int64_t sharded_parameters = 0;  // of the tensors that FullyReplicated() denies
  int64_t bytes = 0;               // one copy of every tensor
  int64_t sharded_bytes = 0;       // of the tensors that sharded_parameters counts
  int64_t held_bytes = 0;          // on all devices together
  int64_t wasted_bytes = 0;        // sum over the tensors

  // What one device holds, and a device that holds it.
  int64_t least_device_bytes = 0;
  int64_t most_device_bytes = 0;
  DeviceId least_loaded_device = 0;
  DeviceId most_loaded_device = 0;
  double mean_device_bytes = 0;  // held_bytes / devices
  // least_device_bytes / most_device_bytes; 1 where no device holds anything.
  double balance_score = 1;

  std::vector<SpecUsage> specs;      // by falling bytes, then by the spec's text
  std::vector<TensorUsage> worst;    // the kListed with most wasted bytes, the worst first
  std::vector<TensorUsage> largest;  // the kListed with most bytes on a device, the largest first
};

// Adds up a layout tensor by tensor. Keeps what the report needs and no more: O(1) per distinct
// spec, and for tensors with uneven parts one sum per combination of parts.
//
// Example: mesh tp=4, a float32 tensor of shape (8, 8) with P('tp') and one of shape (8,) with P():
// a device holds 64 + 32 bytes, 384 are held, 96 are wasted, the balance score is 1.
// Not synchronised: one thread at a time.
class LayoutAnalysis {
 public:
  // How many tensors a report lists as worst and as largest. Equal ones in the order of names.
  static constexpr int64_t kListed = 10;
  // Most sums kept for uneven parts, and most combinations that Report() looks through.
  static constexpr int64_t kMaxUnevenSums = int64_t{1} << 22;

  // FAILED_PRECONDITION (NO_MESH; AssertionError) on an empty mesh.
  static absl::StatusOr<LayoutAnalysis> Create(const Mesh& mesh);

  LayoutAnalysis(LayoutAnalysis&&) noexcept;
  LayoutAnalysis& operator=(LayoutAnalysis&&) noexcept;
  ~LayoutAnalysis();

  // Adds a tensor with equal parts. Errors of Tiling::Create and of TileBytes, with the tensor's
  // name; RESOURCE_EXHAUSTED (LIMIT_EXCEEDED) once a sum does not fit int64_t. Nothing is added
  // then.
  absl::Status Add(std::string_view name, absl::Span<const int64_t> shape, int64_t bits_per_element,
                   const PartitionSpec& spec);
  // The same for a tensor that may have uneven parts. INVALID_ARGUMENT (INVALID_MESH) if the tiling
  // is on another mesh; RESOURCE_EXHAUSTED (LIMIT_EXCEEDED) also beyond kMaxUnevenSums.
  absl::Status Add(std::string_view name, const Tiling& tiling, int64_t bits_per_element);

  // Of what was added so far. RESOURCE_EXHAUSTED (LIMIT_EXCEEDED) beyond kMaxUnevenSums.
  absl::StatusOr<LayoutReport> Report() const;

 private:
  struct State;

  explicit LayoutAnalysis(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

// A tensor and the spec it is analyzed with.
struct AnalyzedTensor {
  std::string name;
  Shape shape;
  PartitionSpec spec;
};

// A count as Python holds it: the product of no extents, a scalar's size, is a float there and
// makes a float of every sum that it enters.
struct PythonCount {
  int64_t value = 0;
  bool is_float = false;

  friend bool operator==(const PythonCount&, const PythonCount&) = default;
};

// What eformer's analyze_sharding_strategy returns; its two tables are always empty.
struct ExactAnalysis {
  PythonCount total_parameters;
  PythonCount sharded_parameters;  // of the tensors whose spec is not P()
  double balance_score = 0;        // always
};

// The original's answer to the letter. Errors: FAILED_PRECONDITION (NO_MESH; AssertionError) on an
// empty mesh; INVALID_ARGUMENT (AXIS_NOT_IN_MESH; KeyError) for the first entry, in order, that is
// a tuple, unconstrained or no axis of the mesh, all of which the original looks up as one axis.
absl::StatusOr<ExactAnalysis> AnalyzeAsOriginal(absl::Span<const AnalyzedTensor> tensors,
                                                const Mesh& mesh);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_LAYOUT_ANALYSIS_H_
