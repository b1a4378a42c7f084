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

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/types/layout_questions.h"
#include "sharding/axis_value.h"
#include "sharding/compatibility.h"
#include "sharding/correction.h"
#include "sharding/mode.h"
#include "sharding/spec.h"
#include "sharding/tile.h"
#include "sharding/uneven.h"
#include "tensor/array_descriptor.h"
#include "tensor/array_origin.h"
#include "tensor/buffer.h"
#include "tensor/saved_checksums.h"
#include "tensor/source_conversion.h"
#include "tensor/source_file.h"
#include "tensor/tensor_elements.h"
#include "tensor/view.h"

namespace shardmesh::client {

// Where an acknowledged array's bytes are: in the workers' memory, or synced to the workers' disks.
enum class Durability { kUnknown, kMemory, kDisk };
// kDegraded: some of the array's tiles are on no live worker.
enum class ArrayState { kUnknown, kAvailable, kDegraded };

// The elements of a tensor in a file: row-major and little-endian, without gaps. A conversion makes
// the tensor from them.
struct FileSource {
  // The file and its state. For workers, the path must be absolute. Tensors of one file should
  // share the object. Not null.
  std::shared_ptr<const SourceFile> file;
  int64_t offset_bytes = 0;
  // The type and the order of the dimensions in the file, if they differ from the tensor's.
  std::optional<SourceConversion> conversion = std::nullopt;
};

// The coordinator's work to bring back the tiles that an array lacks.
struct ArrayRepair {
  std::string operation_id;                 // reads tiles again; empty: none runs
  int64_t tiles = 0;                        // that are read again or wait for their turn
  int64_t size_bytes = 0;                   // of these tiles
  std::optional<absl::Duration> time_left;  // of the operation; nullopt: not known
  // Why a tile could not be read again, for people; empty: no tile failed. `next_try` is the time
  // of the next try; nullopt: a worker must attach first.
  std::string failure;
  std::optional<absl::Time> next_try;
};

// The replicas of an array that wants each tile on two workers (PutOptions::replicas).
struct ArrayReplicas {
  int64_t wanted = 0;
  // How many workers have the tile that the fewest workers have, at most `wanted`. 1 after the loss
  // of a worker: the other copies of its tiles are there.
  int64_t complete = 0;
  // Whether the array's own spec puts each tile on two hosts, so that no second copy is made.
  bool by_spec = false;
  bool shares_host = false;  // both copies of some tile are on one host
  std::string operation_id;  // of the operation that copies; empty: none runs
  std::string failure;       // why the last try to copy failed, for people; empty: it did not
};

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
  // difference. Exception: a resize that went back leaves sums of partial sums (ResizeMesh), whose
  // effective spec has further axes.
  std::optional<PartitionSpec> requested_spec;
  std::vector<Correction> corrections;
  // The place from which the workers read the array when it was put. Nullopt if a client sent it,
  // or if a step made it.
  std::optional<FileSource> source;
  // Set by lists and descriptions of arrays, if a missing tile's rank has an attached worker.
  std::optional<ArrayRepair> repair;
  // Set by lists and descriptions of arrays that want two replicas.
  std::optional<ArrayReplicas> replicas;
  // Whether steps update the array in place: see Program::updates.
  bool is_state = false;
};

// A rank of an array, and the worker that is to have the tile of this rank.
struct TileHolder {
  int64_t rank = 0;
  std::string identity;  // empty: no worker serves the rank yet
  bool present = false;  // false: the tile is missing
};

// Returns the number of partial sums of the array, which add up to its value: the size of the
// groups of devices along the unreduced axes of its spec; 1 without such axes.
int64_t PartialSumCount(const ArrayDescriptor& array);
// Returns the number of the partial sum that a rank has a tile of: the place of the rank among the
// devices along these axes, in the order of the spec, the first one major.
int64_t PartialSumOf(const ArrayDescriptor& array, DeviceId rank);

// The workers of an array's tiles, by rank; only the first 1,000 ranks. Both are empty if the
// coordinator is older.
struct ArrayHolders {
  std::vector<TileHolder> first;
  std::vector<TileHolder> second;  // of the second replicas; empty: the array has none
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
  // The tensor's elements: a TensorView, whose bytes must not change until the put returns, or a
  // TileProducer, which makes the elements while they are sent.
  TensorElements view;
  // The layout: set at most one of these three members. If none is set, PutOptions::rules decide.
  // `axes` are logical axes, one per dimension.
  std::optional<PartitionSpec> spec = std::nullopt;
  std::optional<std::vector<AxisValue>> axes = std::nullopt;
  std::string preset = {};
  // The state that `name` must have. The put fails if `name` has another state.
  Precondition precondition = std::nullopt;
  // As in Tiling::Create. If not empty, the spec must fit as it is, and PutOptions::uneven does not
  // apply.
  std::vector<CutPoints> cut_points = {};
  // The same elements in a file, if workers may read them there. The client sends the tensors of a
  // put that have none.
  std::optional<FileSource> source = std::nullopt;
  // The place in a file from which `view` makes the elements, and how, if that is not `source`. A
  // later put with an equal origin needs no elements (PutOptions::reuse).
  std::optional<ArrayOrigin> origin = std::nullopt;
  // The bytes from which `view` makes the elements, in a file of a checkpoint that a save may have
  // written; nullopt: those of `source`. If this client sends the tensor, it compares them with the
  // checksums of the manifest before it commits the put.
  std::optional<SavedPart> saved = std::nullopt;
  // Whether all elements of `view` are zero. The workers then make them, unless the coordinator is
  // an older build. See client/types/zero_tensor.h. Excludes `source` and `origin`.
  bool is_zeros = false;
};

// The process that reads a put's elements from their files.
enum class PutReader {
  // The workers read the tensors that have a source, and this client sends the others. If a worker
  // cannot read a file, this client sends all of them. A file that changed since this client opened
  // it is an error.
  kAuto,
  kClient,
  kWorkers,
};

// Whether a put hands large tiles over to workers on this host, as memory, instead of streaming
// them. A worker must share the client's host, network namespace and user, and its own memory
// (`--transport` is not `stream`). Tiles below 1 MiB, and above 8 GiB, are always streamed.
enum class Handover {
  // Tensors that get a name, to the workers that take memory, up to half of what is left below the
  // memory limit of this process's control group, which counts it; all else is streamed. A step may
  // be
  // given an array without a name to write its result into (donate), which memory that was handed
  // over does not allow.
  kAuto,
  // All. FAILED_PRECONDITION (NOT_AVAILABLE): a worker takes no memory of this client, or the copy
  // of a tile takes more than 20 s, after which kAuto streams the tile and the worker's others.
  kOn,
  kOff,
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
  // The rule for tensors without cut points. `weights` has one weight for each device of the mesh
  // if the rule is kByWeights, and is empty otherwise.
  UnevenCuts uneven = UnevenCuts::kEqualOnly;
  std::vector<int64_t> weights = {};
  // Whether the put fails if a spec needs a correction. If false, the spec is corrected.
  bool strict = false;
  // Plans and checks the put, but moves and changes nothing. The result has only the arrays, whose
  // ids do not exist in the cluster, except those of arrays that would be reused.
  bool validate_only = false;
  // The checkpoint that the tensors are from, for people who see the put as an operation: its kind
  // is then kLoad. Empty: its kind is kPut. LoadCheckpoint sets it.
  std::string checkpoint = {};
  // FAILED_PRECONDITION with kWorkers: some worker cannot read a file; the error names the workers.
  PutReader reader = PutReader::kAuto;
  // For tensors that this client sends.
  Handover handover = Handover::kAuto;
  // Whether arrays on the workers are used that an earlier put made from the same place in the same
  // file, unchanged since. Nobody reads or sends such a tensor. If its array also lies as this put
  // asks, it gets the tensor's name; otherwise the workers copy it. The same holds for tensors that
  // this client would send, of 64 KiB and more and with a name or a file, if an array has the same
  // content: client and workers compare digests, which takes as long as reading the tensor. If only
  // some tiles of the array are equal, the workers copy these, and this client sends the others.
  // Tensors that workers would read are compared so if the workers have no memory for them, and
  // then used only as a whole.
  bool reuse = true;
  // The number of workers that keep each tile, 1 or 2. With 2, the workers copy the arrays once the
  // put has ended: ArrayClient::AwaitReplicas waits for that. All tensors need names. 0: as the
  // array to which the name points; 1 for a new name.
  int64_t replicas = 0;
  // The client calls this function at most about 20 times a second, and once after the last byte.
  // It makes one call at a time, on any thread. May be null.
  ProgressCallback progress = nullptr;
  // The client calls this function with the id of the transfer before it sends the first byte; if
  // the workers read the tensors, as soon as it knows the id. ClusterClient::CancelOperation
  // accepts this id. If a worker was short of memory for calls, the client retries the put, and
  // calls this function again for each retry. May be null.
  std::function<void(const std::string& transfer_id)> on_begun = nullptr;
  // Called before a put that came to nothing is made again, because the coordinator or a worker was
  // restarted or had no memory for the call. False: the put ends with its error. Null: true.
  std::function<bool()> may_begin_again = nullptr;
};

// An array that a put made, with the corrections of its requested spec.
struct PutArray {
  ArrayDescriptor descriptor;
  std::vector<Correction> corrections;
  bool is_reused = false;  // all elements were on the workers already; see PutOptions::reuse
};

struct PutResult {
  std::vector<PutArray> arrays;  // in the order of the tensors
  int64_t revision = 0;          // revision of the store after the put
  Durability durability = Durability::kUnknown;
  int64_t tile_bytes = 0;         // bytes of all tiles, including replicas
  int64_t sent_bytes = 0;         // the same for the tiles that this client sent
  int64_t read_bytes = 0;         // the same for the tiles that the workers read from files
  int64_t handed_over_bytes = 0;  // of sent_bytes, those that went as memory; see Handover
  int64_t reused_tensors = 0;     // tensors whose elements were all on the workers already
  // The part of tile_bytes that was neither sent nor read: all bytes of such tensors, and of other
  // tensors the tiles that ranks copied.
  int64_t reused_bytes = 0;
  int64_t moved_bytes = 0;  // bytes that workers sent to one another to copy such tiles
  // kWorkers: the workers read all tiles. kClient: this client sent them. kAuto: the workers read
  // some tensors, and this client sent the others.
  PutReader reader = PutReader::kClient;
  // The reason why the workers did not read tensors that have sources, if they were asked to;
  // otherwise OK.
  absl::Status workers_refused = absl::OkStatus();
  // The reason why a worker took no memory of this client, or not all that was offered; OK if no
  // worker was asked (PutOptions::handover).
  absl::Status handover_refused = absl::OkStatus();
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

// Receives a gathered tensor, or a slice of one, in the row-major order of its elements.
struct TensorSink {
  // Called once before the first piece: the array, and the part of it that follows.
  std::function<absl::Status(const Array& array, const Tile& part)> begin;
  // Called for each piece; the bytes are valid during the call only. The pieces together are all
  // bytes of the part.
  std::function<absl::Status(absl::Span<const char> bytes)> append;
  // May be null. Called at most once, on any thread, when the gather is cancelled: a call of
  // `append` that waits for a reader may then return. Must be quick. The gather ends as cancelled,
  // whatever `append` returns.
  std::function<void()> cancelled = nullptr;
};

struct GatherOptions {
  // Only this part of the array; nullopt: the whole array.
  std::optional<ArraySlice> slice = std::nullopt;
  // See ArrayClient::Gather.
  ProgressCallback progress = nullptr;
  // Maximum number of bytes of a piece for a TensorSink, at least 1. One piece is in memory at a
  // time. A piece has at least one index of the last dimension.
  int64_t piece_bytes = int64_t{64} << 20;
};

// A tensor of a file that gathered arrays are written to.
struct FileTensor {
  std::string name;  // in the file
  ArraySelector array;
  std::optional<ArraySlice> slice = std::nullopt;  // only this part of the array
};

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
