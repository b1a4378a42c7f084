// The inbox of a worker for sealed memory that clients on its host hand over.
#ifndef SHARDMESH_WORKER_SERVICE_HANDOVER_INBOX_H_
#define SHARDMESH_WORKER_SERVICE_HANDOVER_INBOX_H_

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "process/file.h"

namespace shardmesh::worker {

// Receives descriptors at a unix socket (rpc/stream/handover.h), and keeps each until a PutTiles
// stream names its id. It maps and checks nothing: only the token of that stream says what the
// memory is for. Closes what a connection has handed over, and what nobody has taken, when the
// connection ends; so nothing is left of a client that dies.
//
// Accepts connections of one user only. In addition, the name of the socket has random bytes, so
// that a client of another network namespace does not meet another process there.
//
// Has one thread. Thread-safe.
class HandoverInbox {
 public:
  struct Options {
    uid_t user = geteuid();
    size_t max_connections = 32;  // others are closed at once
    size_t max_kept = 8;          // descriptors of one connection; the next one is refused as full
  };

  // UNAVAILABLE if the process cannot create the socket or its wake-up descriptor.
  static absl::StatusOr<std::unique_ptr<HandoverInbox>> Start(const Options& options);
  static absl::StatusOr<std::unique_ptr<HandoverInbox>> Start() { return Start(Options()); }
  virtual ~HandoverInbox() = default;
  HandoverInbox(const HandoverInbox&) = delete;
  HandoverInbox& operator=(const HandoverInbox&) = delete;

  // The name of the abstract socket.
  virtual const std::string& socket() const = 0;

  // Takes the memory out of the inbox. Returns an invalid descriptor if no memory has this id.
  virtual FileDescriptor Take(std::string_view id) = 0;

  // Counts bytes of tiles whose memory was handed over and checked.
  virtual void CountStaged(int64_t bytes) = 0;

  struct Counters {
    int64_t staged_bytes = 0;  // see CountStaged
    int64_t refused = 0;       // descriptors that were refused as full, and connections
    int64_t kept = 0;          // descriptors in the inbox now
  };
  virtual Counters counters() const = 0;

 protected:
  HandoverInbox() = default;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SERVICE_HANDOVER_INBOX_H_
