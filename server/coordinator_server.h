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
#include "program/move_plan.h"
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

// Limits on the coordinator's resources for clients and workers; docs/limits.md has the table.
struct CoordinatorLimits {
  int64_t max_meshes = 10'000;
  int64_t max_definitions = 100'000;
  int64_t max_names = ArrayRegistry::kMaxNames;
  int64_t max_watches = 1'000;
  int64_t max_watches_per_caller = 100;
  int64_t max_live_work = 10'000;        // steps and transfers
  int64_t max_connection_calls = 1'024;  // maximum number of running calls of one connection
  rpc::ConnectionLimits max_connections = {};
  // Maximum memory, in bytes, that gRPC may use for calls. At this limit, gRPC cancels random
  // streams, including streams of workers. The default is far above what healthy workers need: an
  // idle worker needs less than 512 KiB. Half of the memory is for inventories, so this limit also
  // bounds how many workers send their inventories at the same time.
  int64_t rpc_memory_bytes = int64_t{4} << 30;
  int64_t max_inventory_tiles = 2'000'000;
  absl::Duration hello_timeout = absl::Seconds(10);
  absl::Duration inventory_timeout = absl::Minutes(5);
};

// The smallest quota that a store may have: the state's own tables and the reserve for deletions
// must fit.
inline constexpr int64_t kMinStoreQuotaBytes = int64_t{1} << 20;

struct CoordinatorOptions {
  std::string listen_address = "127.0.0.1:7070";  // port 0: any free port
  std::string http_address = "127.0.0.1:7071";    // address for metrics; empty: no metrics
  // Folder of the durable state. Empty: the state is in memory and is lost when the process ends.
  std::string data_dir;
  // `store_quota_bytes`: maximum size, in bytes, of the state on disk. The store keeps overwritten
  // and deleted data for `history_time`, but at most `history_bytes` of it. Watches and reads at
  // older revisions need that data.
  int64_t store_quota_bytes = SqliteStoreOptions().quota_bytes;
  int64_t history_bytes = static_cast<int64_t>(RetentionOptions().bytes);
  absl::Duration history_time = RetentionOptions().time;
  // How long Start waits if another coordinator, which may be about to stop, holds the folder.
  absl::Duration lock_timeout = absl::ZeroDuration();
  // Defines the mesh "default" if it does not exist. An existing mesh "default" must be equal to
  // this mesh.
  std::optional<Mesh> mesh;
  // A tensor with fewer elements than this number is not sharded. Applies to rule sets that do not
  // set this number themselves.
  int64_t min_sharding_size = kDefaultMinSize;
  // Algorithms for calls of collectives that do not name an algorithm.
  PreferredAlgorithms preferred_algorithms;
  bool insecure = false;        // allows plaintext on addresses beyond loopback
  bool http_plaintext = false;  // allows plaintext for metrics only, also with TLS
  rpc::Credentials credentials = rpc::Credentials::Insecure();
  MembershipOptions membership;
  // How long the coordinator waits for lost workers to attach again. After that time, callers get
  // an error that names the missing workers or tiles.
  absl::Duration return_grace = Recovery::kDefaultReturnGrace;
  // How long a worker may be lost until a spare worker gets its ranks (LostRanks). Infinite: until
  // an operator gives them to another worker.
  absl::Duration replace_lost_after = absl::InfiniteDuration();
  // Whether lost tiles stay lost, although other workers or files have them.
  bool no_repair = false;
  // How long arrays without names stay after a start of the coordinator. Before the start, only
  // sessions kept these arrays.
  absl::Duration unnamed_grace = ArrayRegistry::kAdoptionGrace;
  // Limits on each caller's sessions; docs/limits.md has the table.
  SessionOptions sessions;
  // Maximum number of BeginPut calls of one caller whose answers are not yet sent completely.
  int64_t max_put_streams_per_caller = 64;
  RequestMemoryLimits requests;
  StepMemoryOptions steps;
  PlannerOptions plans;
  // Memory that arrays of one reshard or resize may take on a worker while they move, beyond their
  // old and new tiles: kLeastMoveMemoryBytes to kMostMoveMemoryBytes.
  int64_t move_memory_bytes = kMoveMemoryBytes;
  CoordinatorLimits limits;
};

// Serves from Start to Drain. Thread-safe.
class CoordinatorServer {
 public:
  // Opens the state, binds the addresses, and serves. Errors: those of OpenSqliteStore,
  // ArrayRegistry::Open and ServerLifecycle::Start, which name the resource that is not available.
  // FAILED_PRECONDITION: the mesh "default" has a different definition.
  static absl::StatusOr<std::unique_ptr<CoordinatorServer>> Start(CoordinatorOptions options);
  // Stops at once, unless Drain was called.
  virtual ~CoordinatorServer() = default;

  virtual int port() const = 0;
  virtual int http_port() const = 0;  // 0: none
  virtual const std::string& address() const = 0;

  // Sets the health status to "not serving" and refuses new calls. Running calls may continue until
  // `deadline`.
  virtual void Drain(absl::Time deadline) = 0;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_COORDINATOR_SERVER_H_
