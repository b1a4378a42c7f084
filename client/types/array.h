// Arrays of the cluster, as a client puts, finds and gets them.
#ifndef SHARDMESH_CLIENT_TYPES_ARRAY_H_
#define SHARDMESH_CLIENT_TYPES_ARRAY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/types/layout_questions.h"
#include "sharding/correction.h"
#include "sharding/spec.h"
#include "sharding/tile.h"
#include "tensor/array_descriptor.h"
#include "tensor/buffer.h"
#include "tensor/view.h"

namespace shardmesh::client {

// Where acknowledged bytes are: in the workers' memory, or synced to their disks.
enum class Durability { kUnknown, kMemory, kDisk };
// kDegraded: some tiles are missing at present.
enum class ArrayState { kUnknown, kAvailable, kDegraded };

struct Array {
  ArrayDescriptor descriptor;
  ArrayState state = ArrayState::kUnknown;
  std::vector<int32_t> missing_ranks;  // rising
  // The name by which the array was found, and its version; empty and 0 otherwise.
  std::string name;
  int64_t name_version = 0;
  Durability durability = Durability::kUnknown;
  absl::Time create_time = absl::InfinitePast();
  int64_t size_bytes = 0;  // each element once
  // The requested spec, if it differs from the effective one, and the reasons.
  std::optional<PartitionSpec> requested_spec;
  std::vector<Correction> corrections;
};

// Selects an array by name (at a version; 0: the current one), or by id.
struct ArraySelector {
  static ArraySelector ByName(std::string name, int64_t version = 0) {
    return {std::move(name), {}, version};
  }
  static ArraySelector ById(std::string array_id) { return {{}, std::move(array_id), 0}; }

  std::string name;
  std::string array_id;  // used if name is empty
  int64_t version = 0;
};

// Special values for the version that a change expects of a name.
inline constexpr int64_t kAnyVersion = 0;
inline constexpr int64_t kMustNotExist = -1;

// A tensor to put.
struct PutTensor {
  // The name that will refer to it: at most 1,024 bytes; empty for an array without a name.
  std::string name;
  // Its bytes, which must not change until the put returns.
  TensorView view;
  // Nullopt: the rules decide.
  std::optional<PartitionSpec> spec = std::nullopt;
  // The version of the name that the put replaces.
  int64_t expected_version = kAnyVersion;
  // As in Tiling::Create.
  std::vector<CutPoints> cut_points = {};
};

// Bytes given to the network up to now, and in all; replicas count each time.
using ProgressCallback = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

struct PutOptions {
  // The mesh's name; empty means "default".
  std::string mesh = {};
  // For tensors without a spec.
  RuleSetSelector rules = {};
  // Turns the first correction into an error.
  bool strict = false;
  // This version of the coordinator answers UNIMPLEMENTED (NOT_AVAILABLE): delete the names first.
  bool release_first = false;
  // Called at most about 20 times a second, and once after the last byte; one call at a time, on
  // any thread. May be null.
  ProgressCallback progress = nullptr;
  // Called with the id of the transfer before its first byte moves; the id can cancel the transfer
  // as an operation. Called again for each retry after a worker was short of memory for calls. May
  // be null.
  std::function<void(const std::string& transfer_id)> on_begun = nullptr;
};

// An array as put, with the corrections of its requested spec.
struct PutArray {
  ArrayDescriptor descriptor;
  std::vector<Correction> corrections;
};

struct PutResult {
  std::vector<PutArray> arrays;  // in the order of the tensors
  int64_t revision = 0;          // revision of the store after the put
  Durability durability = Durability::kUnknown;
  int64_t sent_bytes = 0;  // bytes of tiles, including replicas
  // The longest time of any rank from its first byte to its last.
  absl::Duration transfer_time = absl::ZeroDuration();
};

// A whole tensor, gathered from the cluster. Movable; owns its memory.
class GatheredTensor {
 public:
  // Allocates memory for a tensor like `array`, bytes unspecified. RESOURCE_EXHAUSTED if the host
  // has none.
  static absl::StatusOr<GatheredTensor> Allocate(Array array);

  const Array& array() const { return array_; }
  TensorView view() const;
  MutableTensorView mutable_view();

 private:
  GatheredTensor(Array array, std::shared_ptr<MemoryBudget> budget, Buffer buffer)
      : array_(std::move(array)), budget_(std::move(budget)), buffer_(std::move(buffer)) {}

  Array array_;
  std::shared_ptr<MemoryBudget> budget_;  // outlives buffer_
  Buffer buffer_;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_TYPES_ARRAY_H_
