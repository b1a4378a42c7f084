// ArrayClient: puts, gathers, names and releases of arrays.
#ifndef SHARDMESH_CLIENT_ARRAYS_H_
#define SHARDMESH_CLIENT_ARRAYS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/types/array.h"
#include "client/types/call_options.h"
#include "tensor/safetensors.h"

namespace shardmesh::client {

class ClientCore;

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
  // the bytes directly to the workers, without a copy of contiguous tiles. UNAVAILABLE
  // (WORKER_LOST): a worker was lost during the put; the message names the worker.
  absl::StatusOr<PutResult> PutTensors(absl::Span<const PutTensor> tensors,
                                       const PutOptions& put_options = {},
                                       const CallOptions& options = {});
  // Puts every tensor of a checkpoint, under the name that the tensor has in the checkpoint.
  // `path`: a .safetensors file, the index of a checkpoint, or a folder; see Checkpoint::Open.
  // Errors: first those of Checkpoint::Open, then those of PutTensors.
  absl::StatusOr<PutResult> LoadCheckpoint(const Checkpoint& checkpoint,
                                           const PutOptions& put_options = {},
                                           const CallOptions& options = {});
  absl::StatusOr<PutResult> LoadCheckpoint(const std::string& path,
                                           const PutOptions& put_options = {},
                                           const CallOptions& options = {});

  // Gathers a whole tensor: each tile from a worker that holds the tile, with every checksum
  // checked. FAILED_PRECONDITION (ARRAY_DEGRADED): some tile is on no live worker. `progress`: like
  // PutOptions::progress, for the received bytes; the count restarts if the gather is retried. The
  // time limit or a cancellation may come before the coordinator's first answer. In that case the
  // gather waits up to a second longer for that answer, and releases the array that the answer
  // pinned.
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
  // Gathers a tensor, or a slice of one, and writes it to a .npy file (see WriteNpy). The file
  // appears complete or not at all.
  absl::StatusOr<Array> GatherToNpy(const ArraySelector& array, const std::string& path,
                                    const ProgressCallback& progress = nullptr,
                                    const CallOptions& options = {});
  absl::StatusOr<Array> GatherToNpy(const ArraySelector& array, const ArraySlice& slice,
                                    const std::string& path,
                                    const ProgressCallback& progress = nullptr,
                                    const CallOptions& options = {});

  absl::StatusOr<Array> DescribeArray(const ArraySelector& array, const CallOptions& options = {});
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
  // Releases arrays that this client's session pins; returns how many of these arrays the session
  // had pinned.
  absl::StatusOr<int64_t> ReleaseArrays(absl::Span<const std::string> array_ids,
                                        const CallOptions& options = {});

 private:
  ClientCore* const core_;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_ARRAYS_H_
