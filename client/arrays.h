// ArrayClient: puts, gathers, moves, names and releases of arrays.
#ifndef SHARDMESH_CLIENT_ARRAYS_H_
#define SHARDMESH_CLIENT_ARRAYS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/held_arrays.h"
#include "client/types/array.h"
#include "client/types/call_options.h"
#include "client/types/cancellation.h"
#include "client/types/reshard.h"
#include "client/types/resize.h"
#include "client/types/save.h"
#include "process/steady_deadline.h"
#include "sharding/axis_value.h"
#include "sharding/mode.h"
#include "tensor/checkpoint/tensor_map.h"
#include "tensor/safetensors.h"

namespace shardmesh::client {

class ClientCore;

// Returns the tensors of a checkpoint, to put them under their names in it. All but I8 with
// scales, and these scales, have a source, from which workers may read them. The views are valid as
// long as the checkpoint. Errors of MappedCheckpoint::Elements.
absl::StatusOr<std::vector<PutTensor>> PutTensorsOf(const MappedCheckpoint& checkpoint);

// Returns a function for the `keep_going` of Checkpoint::Open and TensorSource::Open. An opening
// that waits for a save then ends with DEADLINE_EXCEEDED (DEADLINE) at the deadline, and with
// CANCELLED (CANCELLED) once `cancellation` is cancelled. `cancellation` may be null; it must
// outlive the function. The function is thread-safe.
std::function<absl::Status()> OpenUntil(const SteadyDeadline& deadline,
                                        const Cancellation* cancellation = nullptr);

// How often a load or put opens its files at most: again after each failure for which a save that
// replaced them may be the reason.
inline constexpr int kMaxLoadAttempts = 10;

// The attempts of one load or put of files that a save may replace meanwhile. All of them together
// have the time of one put. Not thread-safe.
//
// Example:
//   PutAttempts attempts = client->arrays().BeginAttempts();
//   for (;;) {
//     auto result = client->arrays().PutTensors(tensors, put_options, attempts.Options());
//     if (!attempts.MayOpenAgain(result.status()) || !source.WasReplaced()) return result;
//     // Open the files again, and take `source` and `tensors` from the new checkpoint.
//   }
class PutAttempts {
 public:
  PutAttempts(const SteadyDeadline& deadline, const CallOptions& options)
      : deadline_(deadline), options_(options) {}

  // The options of the next attempt, with the time that is left.
  CallOptions Options() const;
  // Whether files that were replaced may be opened again after this result of an attempt: it is an
  // error that such files can lead to, and there are attempts and time left. Counts the attempts.
  bool MayOpenAgain(const absl::Status& result);
  // Whether there is time left. Opening the files again may have waited for a save: without time,
  // the result of the last attempt says more than that of another one.
  bool HasTime() const { return !deadline_.is_over(); }
  // Returns what OpenUntil returns for the deadline and the cancellation of the attempts.
  std::function<absl::Status()> KeepOpening() const {
    return OpenUntil(deadline_, options_.cancellation);
  }

 private:
  SteadyDeadline deadline_;
  CallOptions options_;
  int count_ = 0;
};

// The arrays of a cluster. MeshClientOptions::transfer_timeout limits each call that moves
// elements; MeshClientOptions::timeout limits every other call.
//
// Example, with a `view` of TensorView::Create and a Cancellation `c` that another thread may use:
//   auto put = client->arrays().PutTensors({{.name = "w", .view = view, .spec = spec}});
//   auto w = client->arrays().Gather(ArraySelector::ByName("w"), nullptr, {.cancellation = &c});
// Errors, retries and time limits are those of MeshClient, which owns this object. Thread-safe.
class ArrayClient {
 public:
  // `core` outlives this object.
  explicit ArrayClient(ClientCore* core) : core_(core) {}
  ArrayClient(const ArrayClient&) = delete;
  ArrayClient& operator=(const ArrayClient&) = delete;

  // Puts tensors onto a mesh: all of them become visible together, or none does. The client sends
  // the bytes directly to the workers, without a copy of contiguous tiles, unless the workers read
  // them from files (PutOptions::reader). UNAVAILABLE
  // (WORKER_LOST): a worker was lost during the put; the message names the worker.
  absl::StatusOr<PutResult> PutTensors(absl::Span<const PutTensor> tensors,
                                       const PutOptions& put_options = {},
                                       const CallOptions& options = {});
  // Puts one tensor by the meaning of its dimensions: `axes` are logical axes, one per dimension,
  // resolved in `mode` by the profile of `put_options`. As the original's `shard(x, axes, mode)`,
  // but done. The array has no name, and the session pins it until ReleaseArrays, or until its end.
  // Example: Shard(view, {AxisValue::Name("__BATCH__"), AxisValue::None()}, RuntimeMode::kTrain).
  // `put_options.mode` must be unset. Errors: those of PutTensors.
  absl::StatusOr<PutArray> Shard(const TensorElements& tensor, const std::vector<AxisValue>& axes,
                                 const Mode& mode, const PutOptions& put_options = {},
                                 const CallOptions& options = {});
  // Puts every tensor of a checkpoint, under the name that the tensor has in the checkpoint.
  // `path`: a safetensors file, an index, a .npz file, or a folder; see TensorSource::Open.
  // Errors: first those of TensorSource::Open, then those of PutTensors. With
  // PutReader::kAuto and kWorkers, workers may read the files themselves, under the paths that
  // realpath(3) gives, but for tensors that become I8 with scales. DATA_LOSS (CHECKSUM_MISMATCH):
  // bytes that this client sent do not have the checksums of the saved checkpoint; nothing was put.
  // FAILED_PRECONDITION (FILE_CHANGED): a file is not as it was opened. With `path`: if this error,
  // or that of a missing or damaged file, comes from a save that has replaced the checkpoint, opens
  // it again, kMaxLoadAttempts times in all and within the time limit of the call, which also ends
  // each wait for such a save. A load never puts tensors of two checkpoints.
  absl::StatusOr<PutResult> LoadCheckpoint(const Checkpoint& checkpoint,
                                           const PutOptions& put_options = {},
                                           const CallOptions& options = {});
  // Puts the tensors of a checkpoint as a map renames, transposes and converts them. Errors: first
  // those of MappedCheckpoint::Elements, before anything is put.
  absl::StatusOr<PutResult> LoadCheckpoint(const MappedCheckpoint& checkpoint,
                                           const PutOptions& put_options = {},
                                           const CallOptions& options = {});
  absl::StatusOr<PutResult> LoadCheckpoint(const std::string& path,
                                           const PutOptions& put_options = {},
                                           const CallOptions& options = {});
  // Begins the attempts of a load or put whose files the caller opens, and opens again.
  PutAttempts BeginAttempts(const CallOptions& options = {}) const;

  // Waits until the arrays of these names, which want two replicas (PutOptions::replicas), have
  // them. Returns the arrays in the order of the names. `progress` gets the bytes of the operation
  // that copies arrays, also those that other calls have put; before it is known, those of the
  // arrays. FAILED_PRECONDITION (ARRAY_DEGRADED): an array could not be copied; the message says
  // why. The coordinator tries again later by itself. FAILED_PRECONDITION (NOT_AVAILABLE): an array
  // wants one replica only, as with a coordinator of an older build. DEADLINE_EXCEEDED (DEADLINE):
  // the copies go on; the error names the workers that are late.
  absl::StatusOr<std::vector<Array>> AwaitReplicas(absl::Span<const std::string> names,
                                                   const ProgressCallback& progress = nullptr,
                                                   const CallOptions& options = {});

  // Saves the arrays whose names begin with `prefix` as a checkpoint of safetensors files in
  // `folder`, an absolute path that all workers see under their `--write-root`. The workers write
  // the files. The names are read at one revision: puts and steps may go on meanwhile. Blocks until
  // the checkpoint is complete. If the time limit or a cancellation ends the call first, asks the
  // coordinator to cancel the save. Errors: those of SaveService in save_service.proto. NOT_FOUND
  // of kind `operation`: the coordinator was restarted during the save, and the checkpoint may be
  // complete. Save again: the new save goes on with the bytes that the workers wrote.
  absl::StatusOr<SavedCheckpoint> SaveCheckpoint(const std::string& prefix,
                                                 const std::string& folder,
                                                 const SaveOptions& save_options = {},
                                                 const CallOptions& options = {});
  // Begins such a save, and returns before workers write. The names are read when this returns. The
  // end of this client cancels the save, unless SaveOptions::detached is set.
  // ClusterClient::CancelOperation cancels the save, and for other clients ForceCancelOperation.
  // SaveOptions::progress is not called. FAILED_PRECONDITION (NOT_AVAILABLE): the coordinator is of
  // an older build, which detaches no save; the save was cancelled.
  //
  // Example:
  //   auto begun = client->arrays().BeginSave("", "/ckpt/run", {.step = 100, .detached = true});
  //   // Compute the next step meanwhile.
  //   auto saved = client->arrays().WaitSave(begun->operation_id);
  absl::StatusOr<BegunSave> BeginSave(const std::string& prefix, const std::string& folder,
                                      const SaveOptions& save_options = {},
                                      const CallOptions& options = {});
  // Waits until a save has ended, which any client may have begun, and returns its result. Limited
  // by MeshClientOptions::transfer_timeout; the save goes on after DEADLINE_EXCEEDED. `progress` as
  // SaveOptions::progress. NOT_FOUND: there is no such save, or it ended over ten minutes ago.
  absl::StatusOr<SavedCheckpoint> WaitSave(const std::string& operation_id,
                                           const ProgressCallback& progress = nullptr,
                                           const CallOptions& options = {});

  // Gathers a whole tensor: each tile from a worker that holds the tile, with every checksum
  // checked. If the array has two replicas (PutOptions::replicas), tiles of lost workers come from
  // the second one. FAILED_PRECONDITION (ARRAY_DEGRADED): some tile is on no live worker.
  // `progress`: like PutOptions::progress, for the received bytes; the count restarts if the gather
  // is retried. The time limit or a cancellation may come before the coordinator's first answer. In
  // that case the gather waits up to a second longer for that answer, and releases the array that
  // the answer pinned.
  absl::StatusOr<GatheredTensor> Gather(const ArraySelector& array,
                                        const ProgressCallback& progress = nullptr,
                                        const CallOptions& options = {});
  // Gathers a slice of a tensor. Reads only the parts of tiles that overlap the slice. Tiles that
  // do not overlap the slice may be missing. If the array is selected by name, the slice is taken
  // from the array to which the name refers when the transfer begins. INVALID_ARGUMENT (BAD_TILE):
  // see TileOf.
  absl::StatusOr<GatheredTensor> Gather(const ArraySelector& array, const ArraySlice& slice,
                                        const ProgressCallback& progress = nullptr,
                                        const CallOptions& options = {});
  // Gathers one of the partial sums of an array, or a slice of it; see PartialSumCount. All other
  // functions refuse such an array, whose value is the sum of them (INVALID_SPEC). An array without
  // partial sums has the number 0, itself. INVALID_ARGUMENT (BAD_FIELD): there is no partial sum of
  // this number.
  absl::StatusOr<GatheredTensor> GatherPartialSum(
      const ArraySelector& array, int64_t number,
      const std::optional<ArraySlice>& slice = std::nullopt, const CallOptions& options = {});
  // Gathers a tensor, or a slice of one, into the caller's memory, which must have the dtype of the
  // array and the shape of the part: SHAPE_MISMATCH, with `have` and `need`. After an error, `into`
  // is partly filled.
  absl::StatusOr<Array> GatherInto(const ArraySelector& array, const MutableTensorView& into,
                                   const GatherOptions& gather_options = {},
                                   const CallOptions& options = {});
  // Gathers a tensor, or a slice of one, of any size in bounded memory: passes it to `sink` piece
  // by piece. All pieces are of one array, even if its name is moved meanwhile. An error of the
  // sink ends the gather and is returned.
  absl::StatusOr<Array> GatherTo(const ArraySelector& array, const TensorSink& sink,
                                 const GatherOptions& gather_options = {},
                                 const CallOptions& options = {});
  // Gathers tensors of any size in bounded memory, and writes them to a safetensors file, each
  // under its name and with its element type. The file appears complete or not at all. The arrays
  // are those to which the selectors refer at one moment, and stay until they are read: names that
  // are moved or deleted meanwhile, and reshards, change nothing. ABORTED: the names change too
  // fast. INVALID_ARGUMENT (BAD_FILE): two tensors have one name.
  absl::StatusOr<std::vector<Array>> GatherToSafetensors(absl::Span<const FileTensor> tensors,
                                                         const std::string& path,
                                                         const ProgressCallback& progress = nullptr,
                                                         const CallOptions& options = {});
  // Gathers arrays into the folder `path`, as model.safetensors, or as several files of at most
  // `max_file_bytes` with an index, model.safetensors.index.json, that readers of the safetensors
  // package know. A tensor larger than that has a file of its own. The folder appears complete or
  // not at all. Makes the missing folders above it. ALREADY_EXISTS: the folder is there and not
  // empty. Other errors as GatherToSafetensors.
  absl::StatusOr<std::vector<Array>> GatherToFolder(absl::Span<const FileTensor> tensors,
                                                    const std::string& path, int64_t max_file_bytes,
                                                    const ProgressCallback& progress = nullptr,
                                                    const CallOptions& options = {});
  // Gathers a tensor, or a slice of one, in bounded memory, and writes it to a .npy file (see
  // WriteNpy). The file appears complete or not at all.
  absl::StatusOr<Array> GatherToNpy(const ArraySelector& array, const std::string& path,
                                    const GatherOptions& gather_options,
                                    const CallOptions& options = {});
  absl::StatusOr<Array> GatherToNpy(const ArraySelector& array, const std::string& path,
                                    const ProgressCallback& progress = nullptr,
                                    const CallOptions& options = {});
  absl::StatusOr<Array> GatherToNpy(const ArraySelector& array, const ArraySlice& slice,
                                    const std::string& path,
                                    const ProgressCallback& progress = nullptr,
                                    const CallOptions& options = {});

  absl::StatusOr<Array> DescribeArray(const ArraySelector& array, const CallOptions& options = {});
  // The same. Sets `holders` to the workers of the array's tiles, and of its second replicas.
  absl::StatusOr<Array> DescribeWithHolders(const ArraySelector& array, ArrayHolders* holders,
                                            const CallOptions& options = {});
  // All named arrays whose names begin with `prefix`, sorted by name. `include_unnamed` adds the
  // arrays without a name, sorted by id. With `include_unnamed`, `prefix` must be empty.
  absl::StatusOr<std::vector<Array>> ListArrays(const std::string& prefix = "",
                                                bool include_unnamed = false,
                                                const CallOptions& options = {});
  // Makes the name refer to the array. Returns the name's new version; 0 with `validate_only`,
  // which makes all checks and no change. ABORTED (VERSION_MISMATCH): the name is not in the state
  // that `precondition` requires.
  absl::StatusOr<int64_t> MoveName(const std::string& name, const std::string& array_id,
                                   const Precondition& precondition = std::nullopt,
                                   bool validate_only = false, const CallOptions& options = {});
  absl::Status DeleteName(const std::string& name,
                          std::optional<int64_t> expected_version = std::nullopt,
                          bool validate_only = false, const CallOptions& options = {});
  // Moves an array to another layout, on its mesh or on another one. Readers of the array's name
  // see the old array or the new one. After an error, the name points to the old array, unless the
  // answer of a successful move was lost. If another thread cancels the call, so is the move.
  // RESOURCE_EXHAUSTED (MEMORY_LIMIT): a worker has too little memory; nothing was moved. ABORTED
  // (VERSION_MISMATCH): the name is not in the state that `precondition` requires, or another call
  // moved the name meanwhile.
  absl::StatusOr<ReshardResult> Reshard(const ArraySelector& array,
                                        const ReshardOptions& reshard_options,
                                        const CallOptions& options = {});
  // Moves each array whose name begins with `prefix`, by itself. After an error, the arrays that
  // had moved before it stay moved. A repetition of the call skips these arrays.
  absl::StatusOr<ReshardResult> ReshardTree(const std::string& prefix,
                                            const ReshardOptions& reshard_options,
                                            const CallOptions& options = {});
  // Gives a mesh another shape, such as "dp=3,tp=2", and moves all named arrays that lie on it.
  // Blocks until the resize has ended. If the time limit or a cancellation ends the call first,
  // asks the coordinator to cancel the resize, which then goes back to the old shape. After another
  // error, a repetition of the call goes on where the resize stopped. Errors: those of
  // ArrayService.ResizeMesh in array_service.proto.
  absl::StatusOr<ResizeResult> ResizeMesh(const std::string& mesh, const std::string& shape,
                                          const ResizeOptions& resize_options = {},
                                          const CallOptions& options = {});
  // Pins arrays, each whole, until the result is destroyed, so that later calls find them by their
  // ids whatever becomes of their names. The client must outlive the result. NOT_FOUND: an array is
  // gone. FAILED_PRECONDITION: tiles of an array are missing.
  absl::StatusOr<HeldArrays> Hold(absl::Span<const std::string> array_ids,
                                  const CallOptions& options = {});
  // Releases arrays that this client's session pins; returns how many of these arrays the session
  // had pinned. Arrays without names that this client made are released also if the coordinator was
  // restarted since.
  absl::StatusOr<int64_t> ReleaseArrays(absl::Span<const std::string> array_ids,
                                        const CallOptions& options = {});

 private:
  ClientCore* const core_;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_ARRAYS_H_
