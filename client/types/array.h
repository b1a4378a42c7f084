// Arrays of the cluster in the client's puts, gets and lists.
#ifndef SHARDMESH_CLIENT_TYPES_ARRAY_H_
#define SHARDMESH_CLIENT_TYPES_ARRAY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/types/layout_questions.h"
#include "sharding/axis_value.h"
#include "sharding/compatibility.h"
#include "sharding/correction.h"
#include "sharding/mode.h"
#include "sharding/spec.h"
#include "sharding/tile.h"
#include "tensor/array_descriptor.h"
#include "tensor/buffer.h"
#include "tensor/view.h"

namespace shardmesh::client {

// Where an acknowledged array's bytes are: in the workers' memory, or synced to the workers' disks.
enum class Durability { kUnknown, kMemory, kDisk };
// kDegraded: some of the array's tiles are on no live worker.
enum class ArrayState { kUnknown, kAvailable, kDegraded };

struct Array {
  ArrayDescriptor descriptor;
  ArrayState state = ArrayState::kUnknown;
  std::vector<int32_t> missing_ranks;  // ranks whose tiles are missing, ascending
  // The name by which the caller selected the array, and the name's version. Empty and 0 if the
  // array was not selected by name.
  std::string name;
  int64_t name_version = 0;
  Durability durability = Durability::kUnknown;
  absl::Time create_time = absl::InfinitePast();
  int64_t size_bytes = 0;  // bytes of all elements; replicas do not count
  // `requested_spec` is set only if it differs from the effective spec. `corrections` explain the
  // difference.
  std::optional<PartitionSpec> requested_spec;
  std::vector<Correction> corrections;
};

// Selects an array by name or by id. With a name, `version` selects a version of the name; 0
// selects the current version.
struct ArraySelector {
  static ArraySelector ByName(std::string name, int64_t version = 0) {
    return {std::move(name), {}, version};
  }
  static ArraySelector ById(std::string array_id) { return {{}, std::move(array_id), 0}; }

  std::string name;
  std::string array_id;  // used if name is empty
  int64_t version = 0;
};

// Precondition: the state that a name must have, or else a change of the name fails. MustNotExist:
// the name does not exist. A number, at least 1: the name has this version. Nullopt: any state.
struct MustNotExist {
  explicit MustNotExist() = default;
  friend bool operator==(const MustNotExist&, const MustNotExist&) = default;
};
using Precondition = std::optional<std::variant<MustNotExist, int64_t>>;

// A tensor to put.
struct PutTensor {
  // The name that will refer to the array, at most 1,024 bytes. Empty for an array without a name.
  std::string name;
  // The tensor's elements, which must not change until the put returns.
  TensorView view;
  // The layout: set at most one of these three members. If none is set, PutOptions::rules decide.
  // `axes` are logical axes, one per dimension.
  std::optional<PartitionSpec> spec = std::nullopt;
  std::optional<std::vector<AxisValue>> axes = std::nullopt;
  std::string preset = {};
  // The state that `name` must have. The put fails if `name` has another state.
  Precondition precondition = std::nullopt;
  // As in Tiling::Create.
  std::vector<CutPoints> cut_points = {};
};

// Receives the number of bytes that have been transferred, and the number of all bytes to transfer.
// Each transfer of a replica counts.
using ProgressCallback = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

struct PutOptions {
  // The mesh's name; empty means "default".
  std::string mesh = {};
  // The rules for tensors without a layout.
  RuleSetSelector rules = {};
  // The profile and the mode with which `axes` and `preset` of tensors are resolved. Without a
  // mode, a preset is resolved in its own mode, and axes in training mode.
  ProfileSelector profile = {};
  std::optional<Mode> mode = std::nullopt;
  // With kExact, axes and rules are resolved exactly as the Python originals resolve them.
  Compatibility compatibility = Compatibility::kDefault;
  // Whether the put fails if a spec needs a correction. If false, the spec is corrected.
  bool strict = false;
  // Plans and checks the put, but moves and changes nothing. The result has only the arrays, whose
  // ids do not exist in the cluster.
  bool validate_only = false;
  // The client calls this function at most about 20 times a second, and once after the last byte.
  // It makes one call at a time, on any thread. May be null.
  ProgressCallback progress = nullptr;
  // The client calls this function with the id of the transfer before the transfer's first byte
  // moves. ClusterClient::CancelOperation accepts this id. If a worker was short of memory for
  // calls, the client retries the put, and calls this function again for each retry. May be null.
  std::function<void(const std::string& transfer_id)> on_begun = nullptr;
};

// An array that a put made, with the corrections of its requested spec.
struct PutArray {
  ArrayDescriptor descriptor;
  std::vector<Correction> corrections;
};

struct PutResult {
  std::vector<PutArray> arrays;  // in the order of the tensors
  int64_t revision = 0;          // revision of the store after the put
  Durability durability = Durability::kUnknown;
  int64_t sent_bytes = 0;  // bytes of tiles, including replicas
  // The time from the first byte to the last byte that a rank received, for the rank with the
  // longest time.
  absl::Duration transfer_time = absl::ZeroDuration();
};

// A half-open range of indexes, from 0, in one dimension of an array. A missing `stop` means the
// end of the dimension. A slice has one range for each dimension.
struct SliceRange {
  int64_t start = 0;
  std::optional<int64_t> stop = std::nullopt;
};
using ArraySlice = std::vector<SliceRange>;

// Returns the tile that a slice of the array means. INVALID_ARGUMENT (BAD_TILE): the number of
// ranges differs from the array's rank, or a range is empty or exceeds its dimension. The error has
// the facts `have` and `need`.
absl::StatusOr<Tile> TileOf(const ArraySlice& slice, const ArrayDescriptor& array);

// A tensor, or a slice of one, gathered from the cluster. Movable; owns its memory.
class GatheredTensor {
 public:
  // Allocates memory for `part` of the array; nullopt: for the whole array. The bytes are
  // unspecified. Requires that the part is within the array. RESOURCE_EXHAUSTED if the host has not
  // enough memory.
  static absl::StatusOr<GatheredTensor> Allocate(Array array, std::optional<Tile> part = {});

  const Array& array() const { return array_; }
  // The part of the array that was gathered.
  const Tile& part() const { return part_; }
  // The gathered elements, in the shape of the part.
  TensorView view() const;
  MutableTensorView mutable_view();

 private:
  GatheredTensor(Array array, Tile part, std::shared_ptr<MemoryBudget> budget, Buffer buffer)
      : array_(std::move(array)),
        part_(std::move(part)),
        budget_(std::move(budget)),
        buffer_(std::move(buffer)) {}

  Array array_;
  Tile part_;
  std::shared_ptr<MemoryBudget> budget_;  // outlives buffer_
  Buffer buffer_;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_TYPES_ARRAY_H_
