// An interface to ask workers for digests of tiles that they hold.
#ifndef SHARDMESH_SERVER_CONTENT_DIGEST_TRANSPORT_H_
#define SHARDMESH_SERVER_CONTENT_DIGEST_TRANSPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "sharding/tile.h"

namespace shardmesh::server {

// A tile of which a digest is wanted.
struct WantedDigest {
  std::string array_id;
  Tile tile;
};

// Reaches attached workers. Thread-safe. No call blocks.
class DigestTransport {
 public:
  // The SHA-256 of each tile, in the order of the question: 32 bytes, or empty if the worker does
  // not hold the tile.
  using Digests = std::vector<std::string>;
  using TilesDigested = absl::AnyInvocable<void(const absl::StatusOr<Digests>&) &&>;

  virtual ~DigestTransport() = default;

  // Asks the worker for digests. Calls `digested` once, without a lock, perhaps before this
  // function returns. Returns the number of the question.
  //
  // UNAVAILABLE (WORKER_LOST), with a retry delay: the worker is not attached, or its stream ends
  // before the answer. FAILED_PRECONDITION (NOT_AVAILABLE): it runs an older build.
  // RESOURCE_EXHAUSTED (OVERLOADED), with a retry delay: too many questions wait for answers.
  virtual int64_t DigestTiles(const std::string& identity, const std::vector<WantedDigest>& tiles,
                              TilesDigested digested) = 0;
  // Drops a question whose answer the caller no longer wants. Its `digested` is not called, unless
  // that call has begun.
  virtual void ForgetDigests(int64_t number) = 0;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_CONTENT_DIGEST_TRANSPORT_H_
