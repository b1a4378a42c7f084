// A worker: its store, kernels, links and services, wired together.
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

// The minimum of WorkerOptions::rpc_memory_bytes: the need of one connection with an unread stream
// and a pending message of the largest size.
inline constexpr int64_t kMinRpcMemoryBytes = int64_t{16} << 20;

// Returns the default of WorkerOptions::rpc_memory_bytes: a quarter of `memory_bytes`, at least 256
// MiB and at most 4 GiB.
int64_t DefaultRpcMemoryBytes(int64_t memory_bytes);

struct WorkerOptions {
  std::string coordinator = "127.0.0.1:7070";
  std::string listen = "127.0.0.1:0";
  // Addresses at which the coordinator, peers and clients reach it, best first; port 0 stands for
  // the bound one. Empty: the address on which it listens.
  std::vector<std::string> advertise;
  // The port for peers: on the host of `listen`, and reached on the hosts of `advertise`; 0 for a
  // free port.
  int64_t exchange_port = 0;
  // Stable name; empty for the host's.
  std::string identity;
  int64_t memory_bytes = int64_t{4} << 30;  // limit of shard memory
  // Bytes that gRPC may use for calls of clients and the coordinator. Messages of peers are bounded
  // by `memory_bytes`. 0: DefaultRpcMemoryBytes.
  int64_t rpc_memory_bytes = 0;
  std::string data_dir;  // empty: tiles are only in memory
  QuarantineLimits quarantine = {};
  // For kernels; 0 for this process's share of the host, divided by how many parts it is one of.
  int64_t threads = 0;
  HostPart part = {};
  std::string metrics_listen;              // host:port of GET /metrics; empty for none
  bool insecure = false;                   // allows plaintext beyond loopback
  bool http_plaintext = false;             // the same, for metrics only; with TLS too
  Transport transport = Transport::kAuto;  // of data between workers
  rpc::Credentials credentials = rpc::Credentials::Insecure();
};

// A running worker. Start binds, and answers health, Identify and peers at once. Health reports
// ready when the worker is attached and reaches all its peers, and again after each loss of either.
//
// Thread-safe.
class WorkerServer {
 public:
  // Errors of ShardStore::Open, ServerLifecycle::Start, MetricsEndpoint::Start and
  // CoordinatorLink::Create; INVALID_ARGUMENT for a bad identity or address, and for less than
  // kMinRpcMemoryBytes; FAILED_PRECONDITION if it listens on all addresses and none is advertised,
  // or with the certificate of somebody else.
  static absl::StatusOr<std::unique_ptr<WorkerServer>> Start(WorkerOptions options);
  // Stops at once if Drain was not called.
  ~WorkerServer();
  WorkerServer(const WorkerServer&) = delete;
  WorkerServer& operator=(const WorkerServer&) = delete;

  const std::string& identity() const;
  // host:port with the port that was bound.
  const std::string& address() const;
  // The port of the metrics endpoint; 0 if there is none.
  int metrics_port() const;
  bool ready() const;
  // Why the coordinator refuses the worker for good; nullopt as long as it does not.
  std::optional<absl::Status> failure() const;

  // No longer ready, refuses transfers, tells the coordinator that it leaves, waits until
  // `deadline` for steps and streams that run, and stops. Must not be called from a reaction.
  void Drain(absl::Time deadline);

 private:
  class Impl;
  explicit WorkerServer(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_WORKER_SERVER_H_
