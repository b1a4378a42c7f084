// Hands tiles over to a worker on this host as sealed memory, instead of streaming them.
#ifndef SHARDMESH_CLIENT_REMOTE_TILE_HANDOVER_H_
#define SHARDMESH_CLIENT_REMOTE_TILE_HANDOVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/remote/handover_room.h"
#include "process/file.h"
#include "sharding/tile.h"
#include "tensor/tensor_elements.h"
#include "tensor/view.h"

namespace shardmesh::client {

// A connection to the handover socket of one worker (rpc/stream/handover.h). Not thread-safe.
class TileHandover {
 public:
  // Connects to the socket that the worker names. UNAVAILABLE: it is not on this host, or in
  // another network namespace. PERMISSION_DENIED: the worker runs as another user. `room`, from
  // which each tile takes its size, must outlive this object; null: there is room for all.
  static absl::StatusOr<std::unique_ptr<TileHandover>> Connect(const std::string& socket,
                                                               HandoverRoom* room = nullptr);

  // Whether tiles of this size are handed over.
  static bool Fits(int64_t size_bytes);

  // Memory that the worker keeps, for the header of its tile.
  struct Handed {
    std::string id;
    uint32_t crc32c = 0;  // of the tile
  };
  struct Limits {
    std::function<bool()> is_over;                // whether the put has ended
    std::function<void(int64_t bytes)> on_bytes;  // called for each piece that was copied
    absl::Duration reply_time = absl::Seconds(5);
    // How long the copy of a tile may take. The worker gets no message meanwhile, and ends a stream
    // on which none comes for a minute.
    absl::Duration copy_time = absl::Seconds(20);
  };
  // Copies a tile into memory, and hands the memory over. Returns nullopt, and takes back what it
  // has told on_bytes, if that failed: the tile must then be sent in pieces. Requires
  // Fits(bits.size_bytes()). Returns the errors of a TileProducer. CANCELLED: `is_over` returned
  // true.
  absl::StatusOr<std::optional<Handed>> HandOver(const TensorElements& tensor, const Tile& tile,
                                                 const TileBits& bits, const Limits& limits);

  // Why the last tile was not handed over; OK if it was. DEADLINE_EXCEEDED: its copy took too long.
  // Unless the worker was only full for now, or the room too small for that tile, HandOver does
  // nothing after an error.
  const absl::Status& refusal() const { return refusal_; }

 private:
  TileHandover(FileDescriptor socket, HandoverRoom* room)
      : socket_(std::move(socket)), room_(room) {}

  absl::StatusOr<FileDescriptor> Fill(const TensorElements& tensor, const Tile& tile,
                                      const TileBits& bits, const Limits& limits,
                                      int64_t* done_bytes, uint32_t* crc32c,
                                      absl::Status* producer);
  absl::Status Send(const std::string& id, const FileDescriptor& memory, const Limits& limits);

  FileDescriptor socket_;
  HandoverRoom* const room_;
  absl::Status refusal_;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_REMOTE_TILE_HANDOVER_H_
