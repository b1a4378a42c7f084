// WorkerClient: the calls that a client makes to one worker, mainly to send and to fetch tiles.
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
#include "client/remote/tile_handover.h"
#include "client/types/array.h"
#include "client/types/cancellation.h"
#include "rpc/call.h"
#include "rpc/tls/credentials.h"
#include "sharding/tile.h"
#include "tensor/tensor_elements.h"
#include "tensor/view.h"

namespace shardmesh::client {

// A tile to send. The texts of `token` and `array_id` must outlive the call.
struct OutgoingTile {
  std::string_view token;
  std::string_view array_id;
  int32_t rank = 0;
  Tile tile;
  // The whole tensor; the bytes of a view must not change until the call returns.
  TensorElements tensor;
  // kOff: the tile is streamed, whatever its size. kOn: PutTiles ends with an error if the copy for
  // a handover takes too long.
  Handover handover = Handover::kAuto;
};

// Whether the tile is of a size that is handed over, and may be.
bool IsToHandOver(const OutgoingTile& tile, int64_t size_bytes);

struct PutTilesAnswer {
  int64_t tiles = 0;
  int64_t size_bytes = 0;
  int64_t handed_over_bytes = 0;  // of size_bytes
  Durability durability = Durability::kUnknown;
};

// A tile to fetch. The texts of `token` and `array_id` must outlive the call.
struct FetchedTile {
  std::string_view token;
  std::string_view array_id;
  Tile tile;
  int64_t size_bytes = 0;  // size of the tile
};

// Receives bytes of the tile at `index` of the request, which begin at `offset_bytes` of the tile.
// The bytes are valid only during the call. An error ends the stream and becomes the error of
// GetTiles.
using TileSink =
    std::function<absl::Status(size_t index, int64_t offset_bytes, absl::Span<const char> bytes)>;

struct WorkerIdentity {
  std::string identity;
  uint64_t incarnation = 0;
  std::string cluster_id;
  std::string handover_socket;  // for TileHandover::Connect; empty: the worker takes no memory
};

// A client with its own connection to one worker; the destructor closes the connection. Errors are
// those of the worker. If the connection failed, the message begins with the address. Calls are not
// retried, because a stream cannot be resumed. Not thread-safe, but another thread may cancel the
// Cancellation that was given to a call.
class WorkerClient {
 public:
  // Connects to the first of `addresses` (best first) that answers before `deadline`, with at most
  // 10 s for each address. If several addresses are given, an address that does not accept a
  // connection within half a second is tried again after all other addresses. With TLS, the server
  // must be the worker `identity`. Calls `on_attempt`, which may be null, before each attempt with
  // an address. UNAVAILABLE names all addresses if none answers. CANCELLED if `cancellation`, which
  // may be null, is cancelled.
  static absl::StatusOr<std::unique_ptr<WorkerClient>> Connect(
      const std::string& identity, absl::Span<const std::string> addresses,
      const rpc::Credentials& credentials, absl::Time deadline,
      Cancellation* cancellation = nullptr, const std::function<void()>& on_attempt = nullptr);
  ~WorkerClient();
  WorkerClient(const WorkerClient&) = delete;
  WorkerClient& operator=(const WorkerClient&) = delete;

  // CANCELLED if `cancellation`, which may be null, is cancelled.
  absl::StatusOr<WorkerIdentity> Identify(const rpc::CallOptions& options,
                                          Cancellation* cancellation = nullptr);

  // Streams the tiles, each in pieces of 1 MiB with checksums. Contiguous tiles are sent from the
  // tensor's memory; other tiles are copied piece by piece, and those of a TileProducer made piece
  // by piece, so that at most a few MiB wait for gRPC. Errors of the producer end the call. Calls
  // `on_sent` with the number of bytes of each piece that gRPC has taken for sending. After
  // PutTiles returns, even with an error, no thread reads the tensors. CANCELLED if `cancellation`
  // is cancelled.
  //
  // With a `handover` to the same worker, hands over tiles that fit, and streams the others, and
  // those of which the worker takes no memory, or whose copy takes too long. The number for
  // `on_sent` is negative if bytes are streamed that were copied for a handover before.
  // FAILED_PRECONDITION (NOT_AVAILABLE): the copy of a tile with Handover::kOn took too long.
  absl::StatusOr<PutTilesAnswer> PutTiles(absl::Span<const OutgoingTile> tiles,
                                          const std::function<void(int64_t)>& on_sent,
                                          Cancellation* cancellation,
                                          const rpc::CallOptions& options,
                                          TileHandover* handover = nullptr);

  // Requests the tiles, at most 10,000, and passes their bytes to `sink` in the order of the
  // request, each byte once. DATA_LOSS (CHECKSUM_MISMATCH): a piece or tile differs from its
  // checksum. INTERNAL: the answer does not match the request. CANCELLED: `cancellation` was
  // cancelled.
  absl::Status GetTiles(absl::Span<const FetchedTile> tiles, const TileSink& sink,
                        Cancellation* cancellation, const rpc::CallOptions& options);

 private:
  class Impl;
  explicit WorkerClient(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_REMOTE_WORKER_CLIENT_H_
