// Moves the bytes of puts and gets between this process and the workers. Upload cuts tensors into
// tiles; Download joins tiles to a tensor.
#ifndef SHARDMESH_CLIENT_REMOTE_TRANSFER_H_
#define SHARDMESH_CLIENT_REMOTE_TRANSFER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/remote/silence_watch.h"
#include "client/remote/worker_connections.h"
#include "client/types/array.h"
#include "client/types/cancellation.h"
#include "process/steady_deadline.h"
#include "rpc/tls/credentials.h"
#include "sharding/tile.h"
#include "tensor/array_descriptor.h"
#include "tensor/tensor_elements.h"
#include "tensor/view.h"

namespace shardmesh::client {

// A rank of the mesh, with its worker.
struct TransferDevice {
  int32_t rank = 0;
  std::string identity;
  uint64_t incarnation = 0;
  std::vector<std::string> addresses;  // the preferred address first
};

// A tensor to send: the array that it becomes, the token that permits the upload to the workers,
// and the tensor's elements.
struct UploadTensor {
  const ArrayDescriptor* array;
  std::string_view token;
  TensorElements view;  // of the array's dtype and shape
  // Whether the array gets a name. Steps may be given the memory of other arrays for their results.
  bool is_named = true;
  // The ranks that get their tiles, rising. Empty: all ranks.
  absl::Span<const int64_t> ranks = {};
};

// The second copy of an array: another array, whose ranks have the same tiles on other workers.
struct SecondCopy {
  std::string array_id;
  std::string token;  // grants access to the copy on the workers
  std::vector<TransferDevice> devices;
};

struct HandoverOutcome {
  int64_t bytes = 0;     // of tiles that were handed over
  absl::Status refusal;  // why a worker took no memory, or not all; OK if nobody asked one
};

struct TransferOptions {
  rpc::Credentials credentials = rpc::Credentials::Insecure();
  SteadyDeadline deadline = SteadyDeadline::After(absl::InfiniteDuration());
  // See PutOptions::progress.
  ProgressCallback progress = nullptr;
  // See CallOptions::traceparent.
  std::string traceparent = {};
  // For Upload: whether tiles are handed over to workers on this host, and where Upload says what
  // came of it; null: nowhere.
  Handover handover = Handover::kOff;
  HandoverOutcome* handover_outcome = nullptr;
  // For messages of Download: the array as commands write it, such as "w" or "w@3". If empty,
  // messages write @ID.
  std::string array = {};
  // For Download: the partial sum to take, by PartialSumOf; nullopt: an array that holds partial
  // sums is refused.
  std::optional<int64_t> partial_sum = std::nullopt;
  // For Download: the copy from which it takes the tiles that the array's own workers do not give;
  // null: there is none.
  const SecondCopy* second_copy = nullptr;
  // For Download: the workers, by identity, that earlier downloads of the same get have lost.
  // Download does not ask them, and adds those that it loses. Null: there were none.
  absl::flat_hash_set<std::string>* lost_workers = nullptr;
  // For Download: how often downloads of the same get have left each worker, by identity, because
  // it sent nothing for a while. Download asks such workers last, and adds to the numbers. Null:
  // none were left.
  absl::flat_hash_map<std::string, int>* silent_workers = nullptr;
  // For Download: how long a worker may send nothing until other holders of its tiles are asked.
  absl::Duration patience = absl::Seconds(1);
  // The watch that finds out which workers send nothing. Downloads that share it share its thread.
  // Null: Download has its own watch.
  SilenceWatch* silence_watch = nullptr;
  // Where Download takes its connections from, and keeps them afterwards; null for new connections
  // only.
  WorkerConnections* connections = nullptr;
};

// Sends the devices their tiles of every tensor, with one stream and one thread for each worker; no
// stream waits for another. Returns the bytes sent. The first failure of a stream, or
// `cancellation`, ends all streams and all attempts to connect. Returns the error of the stream
// that failed first, with the rank and identity of that stream's worker. DEADLINE_EXCEEDED
// (DEADLINE): the put ended because its deadline has passed. Uses a few MiB of memory for each
// worker, whatever the size of the tensors, and the memory of a tile that is being handed over.
//
// FAILED_PRECONDITION (NOT_AVAILABLE): with Handover::kOn, a worker takes no memory of this client.
// INTERNAL: the tensors are not all on one mesh, or `devices` lacks a rank of that mesh.
absl::StatusOr<int64_t> Upload(absl::Span<const TransferDevice> devices,
                               absl::Span<const UploadTensor> tensors, Cancellation* cancellation,
                               const TransferOptions& options);

// Returns FAILED_PRECONDITION (INVALID_SPEC) if the array holds partial sums. `text`: as
// TransferOptions::array.
absl::Status CheckReduced(const ArrayDescriptor& array, const std::string& text);

// Downloads `part` of the array from the workers to `into`. Requires that `part` is within the
// array, and that `into` has the array's dtype and the shape of `part`. Each distinct tile comes
// from one of the workers that hold it; the load is spread over all holders. If a worker is lost
// during the download, the tiles come from other holders. A tile whose holders are all lost, or not
// among `devices`, comes from the second copy. Every checksum is checked. `token` grants access to
// the array on the workers.
//
// If a worker sends nothing for `options.patience`, also in the middle of a tile, and other workers
// hold all its tiles in either copy, Download asks them instead for the tiles that have not come
// completely. A worker that is asked again gets four times as long each time. The time of a
// progress callback does not count, and each address of a worker has this time.
//
// FAILED_PRECONDITION (ARRAY_DEGRADED), with the tile: no holder of the tile is left in either
// copy. FAILED_PRECONDITION (INVALID_SPEC): the array holds partial sums, and
// `options.partial_sum` is not set. CANCELLED: `cancellation`, which may be null, was cancelled.
// DEADLINE_EXCEEDED: no time is left to ask another holder. After any other failure, returns the
// error of the stream that failed first. After an error, `into` is partly filled.
absl::Status Download(const ArrayDescriptor& array, const Tile& part, std::string_view token,
                      absl::Span<const TransferDevice> devices, const MutableTensorView& into,
                      Cancellation* cancellation, const TransferOptions& options);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_REMOTE_TRANSFER_H_
