// WorkerClient: the calls that a client makes to one worker, mainly to send and fetch tiles.
#ifndef SHARDMESH_CLIENT_REMOTE_WORKER_CLIENT_H_
#define SHARDMESH_CLIENT_REMOTE_WORKER_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/types/array.h"
#include "client/types/cancellation.h"
#include "rpc/call.h"
#include "rpc/tls/credentials.h"
#include "sharding/tile.h"
#include "tensor/view.h"

namespace shardmesh::client {

// A tile to send. Token and id must outlive the call.
struct OutgoingTile {
  std::string_view token;
  std::string_view array_id;
  int32_t rank = 0;
  Tile tile;
  // The whole tensor; its bytes must not change until the call returns.
  TensorView tensor;
};

struct PutTilesAnswer {
  int64_t tiles = 0;
  int64_t size_bytes = 0;
  Durability durability = Durability::kUnknown;
};

// A tile to fetch. Token and id must outlive the call.
struct FetchedTile {
  std::string_view token;
  std::string_view array_id;
  Tile tile;
  int64_t size_bytes = 0;  // of the tile
};

// Receives bytes of the tile with this index, from `offset_bytes` of the tile on; they are valid
// during the call. An error ends the stream and becomes the error of the RPC.
using TileSink =
    std::function<absl::Status(size_t index, int64_t offset_bytes, absl::Span<const char> bytes)>;

struct WorkerIdentity {
  std::string identity;
  uint64_t incarnation = 0;
  std::string cluster_id;
};

// One connection of its own, closed with the client.
// Errors are the worker's; if the connection failed, the address is prepended. Nothing is retried,
// because a stream cannot be resumed. Not thread-safe, except for the cancellations passed to
// calls.
class WorkerClient {
 public:
  // Connects to the first of `addresses` (best first) that answers before `deadline`, with at most
  // 10 s for each. An address that accepts nothing for half a second is tried again after the
  // others. With TLS, the server must be the worker of that identity. UNAVAILABLE names all
  // addresses if none answers. CANCELLED after `cancellation`, which may be null.
  static absl::StatusOr<std::unique_ptr<WorkerClient>> Connect(
      const std::string& identity, absl::Span<const std::string> addresses,
      const rpc::Credentials& credentials, absl::Time deadline,
      Cancellation* cancellation = nullptr);
  ~WorkerClient();
  WorkerClient(const WorkerClient&) = delete;
  WorkerClient& operator=(const WorkerClient&) = delete;

  absl::StatusOr<WorkerIdentity> Identify(const rpc::CallOptions& options);

  // Streams the tiles, each in pieces of 1 MiB with checksums. Contiguous tiles are sent from their
  // own memory; others are copied piece by piece, a few MiB ahead of the network. `on_sent` is
  // called with the bytes of each piece when the network has accepted them. After this returns,
  // also with an error, no thread reads the tensors. CANCELLED after `cancellation`.
  absl::StatusOr<PutTilesAnswer> PutTiles(absl::Span<const OutgoingTile> tiles,
                                          const std::function<void(int64_t)>& on_sent,
                                          Cancellation* cancellation,
                                          const rpc::CallOptions& options);

  // Requests the tiles, at most 10,000, and passes their bytes to `sink` in order, each byte once.
  // DATA_LOSS (CHECKSUM_MISMATCH) for a piece or tile that differs from its checksum, INTERNAL for
  // an answer that does not match the request.
  absl::Status GetTiles(absl::Span<const FetchedTile> tiles, const TileSink& sink,
                        Cancellation* cancellation, const rpc::CallOptions& options);

 private:
  class Impl;
  explicit WorkerClient(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_REMOTE_WORKER_CLIENT_H_
