// The coordinator as a whole: its state, its services, and how they are wired.
#ifndef SHARDMESH_SERVER_COORDINATOR_SERVER_H_
#define SHARDMESH_SERVER_COORDINATOR_SERVER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "program/collective_choice.h"
#include "rpc/connection_limit.h"
#include "rpc/tls/credentials.h"
#include "server/state/array_registry.h"
#include "server/state/membership.h"
#include "server/state/recovery.h"
#include "server/state/request_memory.h"
#include "server/state/session.h"
#include "server/state/step_memory.h"
#include "server/steps/planner.h"
#include "server/store/local_store.h"
#include "server/store/sqlite_store.h"
#include "sharding/mesh.h"
#include "sharding/rules/rule_set.h"

namespace shardmesh::server {

// Limits on what clients and workers use of the coordinator; docs/limits.md has the table.
struct CoordinatorLimits {
  int64_t max_meshes = 10'000;
  int64_t max_definitions = 100'000;
  int64_t max_names = ArrayRegistry::kMaxNames;
  int64_t max_watches = 1'000;
  int64_t max_watches_per_caller = 100;
  int64_t max_live_work = 10'000;        // steps and transfers
  int64_t max_connection_calls = 1'024;  // of one connection at a time
  rpc::ConnectionLimits max_connections = {};
  // If this is used up, gRPC cancels random streams, including those of workers. It is far above
  // the need of healthy workers. Half of it is for inventories: it bounds how many workers bring
  // theirs at the same time. An idle worker needs less than 512 KiB.
  int64_t rpc_memory_bytes = int64_t{4} << 30;
  int64_t max_inventory_tiles = 2'000'000;
  absl::Duration hello_timeout = absl::Seconds(10);
  absl::Duration inventory_timeout = absl::Minutes(5);
};

// A lower limit would not hold the state's own tables and the reserve for deletions.
inline constexpr int64_t kMinStoreQuotaBytes = int64_t{1} << 20;

struct CoordinatorOptions {
  std::string listen_address = "127.0.0.1:7070";  // port 0: a free one
  std::string http_address = "127.0.0.1:7071";    // for metrics; empty: none
  // Folder of the state; empty: in memory, lost when the process ends.
  std::string data_dir;
  // How large the state on disk may grow; and how much overwritten or deleted data it keeps, for
  // how long, for watches and reads at older revisions.
  int64_t store_quota_bytes = SqliteStoreOptions().quota_bytes;
  int64_t history_bytes = static_cast<int64_t>(RetentionOptions().bytes);
  absl::Duration history_time = RetentionOptions().time;
  // How long to wait for another coordinator that holds the folder and may be about to stop.
  absl::Duration lock_timeout = absl::ZeroDuration();
  // Defines the mesh "default" if there is none yet. An existing one must be equal.
  std::optional<Mesh> mesh;
  // The least number of elements of a sharded tensor, if a rule set does not set it.
  int64_t min_sharding_size = kDefaultMinSize;
  // Algorithms of collectives whose calls do not name one.
  PreferredAlgorithms preferred_algorithms;
  bool insecure = false;        // allows plaintext beyond loopback
  bool http_plaintext = false;  // the same, for metrics only; with TLS too
  rpc::Credentials credentials = rpc::Credentials::Insecure();
  MembershipOptions membership;
  // How long workers are expected back before callers get an error that names what is missing.
  absl::Duration return_grace = Recovery::kDefaultReturnGrace;
  // How long arrays without names are kept after a start, for the sessions that held them.
  absl::Duration unnamed_grace = ArrayRegistry::kAdoptionGrace;
  // Limits on each caller's sessions; docs/limits.md has the table.
  SessionOptions sessions;
  int64_t max_put_streams_per_caller = 64;  // BeginPut calls whose answer is not sent yet
  RequestMemoryLimits requests;
  StepMemoryOptions steps;
  PlannerOptions plans;
  CoordinatorLimits limits;
};

// Serves from Start to Drain. Thread-safe.
class CoordinatorServer {
 public:
  // Opens the state, binds, and serves. Errors name the resource that is not available: those of
  // OpenSqliteStore, ArrayRegistry::Open and ServerLifecycle::Start. FAILED_PRECONDITION if the
  // mesh "default" has a different definition.
  static absl::StatusOr<std::unique_ptr<CoordinatorServer>> Start(CoordinatorOptions options);
  // Stops at once if Drain was not called.
  virtual ~CoordinatorServer() = default;

  virtual int port() const = 0;
  virtual int http_port() const = 0;  // 0: none
  virtual const std::string& address() const = 0;

  // Health becomes "not serving", and new calls are refused. Running calls may go on to `deadline`.
  virtual void Drain(absl::Time deadline) = 0;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_COORDINATOR_SERVER_H_
