// A worker: creates its store, kernels, links and services, and connects them.
#ifndef SHARDMESH_WORKER_WORKER_SERVER_H_
#define SHARDMESH_WORKER_WORKER_SERVER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rpc/tls/credentials.h"
#include "worker/exchange/peer_links.h"
#include "worker/kernel/host_share.h"
#include "worker/store/shard_store.h"

namespace shardmesh::worker {

// The minimum of WorkerOptions::rpc_memory_bytes. One client stream may need this much: the unread
// bytes of its flow-control window, and two messages of the largest size.
inline constexpr int64_t kMinRpcMemoryBytes = int64_t{16} << 20;

// Returns the default of WorkerOptions::rpc_memory_bytes: a quarter of `memory_bytes`, at least 256
// MiB and at most 4 GiB.
int64_t DefaultRpcMemoryBytes(int64_t memory_bytes);

struct WorkerOptions {
  std::string coordinator = "127.0.0.1:7070";
  std::string listen = "127.0.0.1:0";
  // Addresses at which the coordinator, peers and clients reach this worker, best first. A port of
  // 0 stands for the port on which the worker listens. If the list is empty: the address on which
  // the worker listens.
  std::vector<std::string> advertise;
  // The port for peers; 0 for a free port. The worker listens on the host of `listen`, and peers
  // reach it on the hosts of `advertise`.
  int64_t exchange_port = 0;
  // Stable name of the worker. Empty: the host's name.
  std::string identity;
  int64_t memory_bytes = int64_t{4} << 30;  // memory limit of the shard store and the buffer pool
  // Bytes that gRPC may use for calls of clients and the coordinator; 0: DefaultRpcMemoryBytes.
  // Messages of peers count in `memory_bytes` instead.
  int64_t rpc_memory_bytes = 0;
  // The most memory that tiles of released arrays may take. They are kept for later puts of the
  // same content, and make room as soon as memory is needed. 0: the worker keeps none.
  int64_t cache_bytes = 0;
  std::string data_dir;  // empty: the worker keeps tiles only in memory
  // Absolute paths of folders below which the worker writes checkpoints. Empty: it writes none.
  std::vector<std::string> write_roots;
  QuarantineLimits quarantine = {};
  // Rate and interval of the scrubber of a worker with a data folder; see Scrubber. A rate of 0: it
  // has none.
  int64_t scrub_bytes_per_second = int64_t{16} << 20;
  absl::Duration scrub_interval = absl::Hours(1);
  // Threads for kernels. 0: as many as HostPart::Threads allows this process.
  int64_t threads = 0;
  // Folders below which the worker reads files that puts name. Empty: it reads no files.
  std::vector<std::string> read_roots;
  HostPart part = {};
  std::string metrics_listen;  // host:port of GET /metrics; empty for none
  bool insecure = false;       // allows plaintext beyond the loopback interface
  // Allows plaintext beyond the loopback interface for the metrics endpoint only, even if the other
  // endpoints use TLS.
  bool http_plaintext = false;
  Transport transport = Transport::kAuto;  // how workers exchange data
  // Whether frames between workers have a checksum of their payload also within a host and under
  // TLS.
  bool frame_checksums = false;
  rpc::Credentials credentials = rpc::Credentials::Insecure();
};

// A running worker. After Start it listens, and answers health checks, Identify and peers at once.
// Health reports ready while the worker is attached and reaches all its peers.
//
// Thread-safe.
class WorkerServer {
 public:
  // Starts a worker. Errors: those of ShardStore::Open, ServerLifecycle::Start,
  // MetricsEndpoint::Start and CoordinatorLink::Create.
  //
  // INVALID_ARGUMENT for a malformed identity or address, and for less RPC memory than
  // kMinRpcMemoryBytes. FAILED_PRECONDITION if the worker listens on all addresses and `advertise`
  // is empty, or if the worker's certificate is for another worker. Errors of ReadRoots::Open.
  static absl::StatusOr<std::unique_ptr<WorkerServer>> Start(WorkerOptions options);
  // Stops the worker at once, unless Drain has already stopped it.
  ~WorkerServer();
  WorkerServer(const WorkerServer&) = delete;
  WorkerServer& operator=(const WorkerServer&) = delete;

  const std::string& identity() const;
  // Returns host:port, with the port on which the worker listens.
  const std::string& address() const;
  // Returns the port of the metrics endpoint; 0 if there is none.
  int metrics_port() const;
  bool ready() const;
  // Returns why the coordinator permanently refuses this worker; nullopt if the coordinator does
  // not refuse it.
  std::optional<absl::Status> failure() const;

  // Stops the worker after its work has ended. The worker reports not ready, and tells the
  // coordinator that it leaves. It waits until the coordinator no longer needs it, refuses further
  // transfers, and waits for running streams. All waits together end at the latest at `deadline`.
  // After these waits the worker stops. Drain must not be called from a gRPC reaction.
  void Drain(absl::Time deadline);

 private:
  class Impl;
  explicit WorkerServer(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_WORKER_SERVER_H_
