// Reads regions of arrays from the workers that hold them.
#ifndef SHARDMESH_WORKER_FILL_PEER_READER_H_
#define SHARDMESH_WORKER_FILL_PEER_READER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "rpc/call.h"
#include "rpc/tls/credentials.h"
#include "rpc/transport_args.h"
#include "sharding/tile.h"
#include "worker/fill/checked_file.h"
#include "worker/service/tile_filler.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace shardmesh::worker {

// A region to read. The token's text and the holders outlive the call.
struct WantedRegion {
  std::string array_id;
  std::string_view token;
  Tile region;
  int64_t size_bytes = 0;
  // Workers that hold the region, best first; at least one.
  std::vector<const FillSource*> holders;
};

// Reads regions, one stream for each holder, and from a few holders at a time, all streams on the
// calling thread. If a holder fails, its remaining regions are read from their next holders.
//
// Bytes that have come and are not passed on take at most kStreamBytes of memory for each stream,
// in whatever order and however fast they come. The holders take turns in the order of their
// identities. A hash of this worker's identity says with which one a call of Read begins, so that
// the workers do not all begin with the same holders, however they are named.
//
// A holder that was lost or silent is asked last by later calls of Read, until BeginTransfer: only
// for regions that no other holder could send.
//
// Not thread-safe: one reader for each thread. Keeps its connections for later calls, at most
// kMaxConnections.
class PeerReader {
 public:
  static constexpr size_t kMaxConnections = 256;
  // The window of a stream, the message that is passed on, and the next one.
  static constexpr int64_t kStreamBytes = rpc::kLookaheadBytes + 2 * rpc::kMaxDataMessageBytes;

  struct Options {
    std::string identity = {};  // of this worker
    // How many streams are open at the same time, at least one.
    size_t max_streams = 1;
    rpc::Credentials credentials = rpc::Credentials::Insecure();
    // A holder from which nothing comes for so long counts as lost. While other streams are busy,
    // it may take a little longer.
    absl::Duration idle_limit = absl::Seconds(30);
  };

  explicit PeerReader(Options options);
  ~PeerReader();
  PeerReader(const PeerReader&) = delete;
  PeerReader& operator=(const PeerReader&) = delete;

  // Forgets which holders were lost or silent. Call it before the first Read of a transfer. Until
  // the next call, at most `max_streams` are open at the same time, and no more than
  // Options::max_streams. At least one is.
  void BeginTransfer(size_t max_streams = std::numeric_limits<size_t>::max()) {
    lost_.clear();
    max_streams_ = std::clamp<size_t>(max_streams, 1, options_.max_streams);
  }

  // Receives bytes of the region at `index`, from `offset_bytes` of the row-major region on. If a
  // holder fails within a region, the bytes come again from the region's beginning.
  using Sink =
      std::function<absl::Status(size_t index, int64_t offset_bytes, absl::Span<const char> bytes)>;

  struct Outcome {
    absl::Status status;
    size_t failed = 0;           // the region that failed
    int64_t received_bytes = 0;  // also those that came twice
    // The CRC-32C of each region's bytes, by its index. Set if `status` is OK.
    std::vector<uint32_t> crc32c;
  };
  // Reads all regions. Calls `keep_going` at least every 100 ms, and between messages. The error is
  // that of `keep_going`, of `sink`, or that of the last holder of the failed region.
  Outcome Read(absl::Span<const WantedRegion> regions, const Sink& sink,
               const KeepGoing& keep_going);

 private:
  class Stream;
  class Round;

  // Returns a connection to a holder: the kept one, or one to its first address that answers.
  absl::StatusOr<std::shared_ptr<grpc::Channel>> Connect(const FillSource& holder,
                                                         const KeepGoing& keep_going);

  const Options options_;
  size_t max_streams_;
  // Holders that were lost or silent in an earlier call of Read, since BeginTransfer.
  std::set<std::string, std::less<>> lost_;
  // Connections by `IDENTITY ADDRESS`.
  std::map<std::string, std::shared_ptr<grpc::Channel>, std::less<>> channels_;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_FILL_PEER_READER_H_
