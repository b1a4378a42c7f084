// The streams to the attached workers: who they are, what they are told, what they report.
#ifndef SHARDMESH_SERVER_SERVICE_ATTACH_SERVICE_H_
#define SHARDMESH_SERVER_SERVICE_ATTACH_SERVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "process/clock.h"
#include "rpc/tls/credentials.h"
#include "server/state/arrays.h"
#include "server/state/attach_failures.h"
#include "server/state/definitions.h"
#include "server/state/link_table.h"
#include "server/state/membership.h"
#include "server/state/recovery.h"
#include "server/steps/flight_log.h"
#include "server/steps/mesh_endpoints.h"
#include "server/steps/sequencer.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace shardmesh::v1 {
class QuarantineAnswer;
class QuarantineOrder;
}  // namespace shardmesh::v1

namespace shardmesh::server {

struct AttachHubOptions {
  std::string cluster_id;
  int64_t term = 0;
  std::string token_key;  // under which transfer tokens are signed; given to workers
  std::string build_version;
  rpc::Credentials credentials = rpc::Credentials::Insecure();  // to call endpoints back with
  // What heartbeats tell of steps, and which steps failed, is written here, and there what they
  // tell of links. All outlive the hub.
  FlightLog* flight_log = nullptr;
  LinkTable* link_table = nullptr;
  rpc::Clock* clock = nullptr;
  const Recovery* recovery = nullptr;  // who is expected back; outlives the hub
  // Called when a worker's inventory was taken in, without a lock, on the hub's thread for
  // inventories: the next one waits. Null: nobody minds.
  std::function<void(std::string_view identity)> joined = nullptr;
  // How long an endpoint has to answer who it is, where none has yet.
  absl::Duration verify_timeout = absl::Seconds(3);
  // How long a stream has to bring its hello, and then its whole inventory.
  absl::Duration hello_timeout = absl::Seconds(10);
  absl::Duration inventory_timeout = absl::Minutes(5);
  // Tiles of an inventory; a stream that brings more is refused.
  int64_t max_inventory_tiles = 2'000'000;
  // Workers that bring their inventories at a time; others wait for their welcome. At least 1.
  int64_t max_inventories = 256;
  // Bytes of the inventories that were brought and are not taken in yet. One that goes beyond that
  // comes to its end all the same; streams that bring more meanwhile are refused, and new ones wait
  // until there should be room for them.
  int64_t max_inventory_bytes = int64_t{256} << 20;
};

// Serves shardmesh.v1.AttachService. A worker's stream goes
//   hello -> endpoints verified -> Membership::Attach -> welcome -> inventory -> verdict -> member
// and from then on brings heartbeats and reports up, and takes steps and memberships down. When it
// ends, for whatever reason, the worker is lost.
//
// As the StepTransport it hands the serialised message of a step to all participants; the plan's
// bytes go along until a worker is known to have the plan.
//
// Membership goes down as a snapshot when a worker joins, and then as changes (MembershipPages);
// changes that come at once are told together.
//
// Thread-safe. Membership, registry, definition_store and clock outlive the hub. Before workers
// attach, SetSequencer.
class AttachHub : public StepTransport, public MeshEndpoints {
 public:
  static std::unique_ptr<AttachHub> Create(Membership* membership, ArrayRegistry* registry,
                                           const DefinitionStore* definition_store,
                                           AttachHubOptions options);

  virtual grpc::Service* service() = 0;
  virtual void SetSequencer(Sequencer* sequencer) = 0;
  // Hears of each tile of a put that a rank has staged, before the sequencer does. Before workers
  // attach.
  using TileListener = std::function<void(std::string_view transfer_id, int64_t size_bytes)>;
  virtual void SetTileListener(TileListener listener) = 0;

  // Whether the worker reaches all its peers, as of the newest epoch.
  virtual bool IsReady(std::string_view identity) const = 0;
  // The attempts to attach that failed since the worker took part last, of workers that the
  // membership knows.
  virtual AttachFailures::Failures FailedAttachesOf(std::string_view identity) const = 0;

  // Tells the workers that serve this mesh to let go of these arrays of it; all workers, where
  // others served it a moment ago.
  virtual void Drop(const std::string& mesh_id, const std::vector<std::string>& array_ids) = 0;
  // Has workers told who is alive, on a thread of the hub's; for the membership's listener.
  virtual void MembershipChanged() = 0;
  // Tells a worker what became of tiles that were left as they are when its inventory was judged;
  // nothing if it is not attached.
  virtual void SendVerdict(const std::string& identity, const InventoryVerdict& verdict) = 0;
  // Has a worker do something with its quarantine; `answered` is called once, without a lock, and
  // maybe before this returns. Returns the order's number.
  // UNAVAILABLE (WORKER_LOST): it is not attached, or its stream ended before it answered.
  // RESOURCE_EXHAUSTED, with a retry delay: too many orders wait for answers.
  using QuarantineAnswered = absl::AnyInvocable<void(absl::StatusOr<v1::QuarantineAnswer>) &&>;
  virtual int64_t OrderQuarantine(const std::string& identity, v1::QuarantineOrder order,
                                  QuarantineAnswered answered) = 0;
  // Nobody waits for the answer to this order any more: it makes room for another. Nothing if it
  // was answered. The worker may carry the order out nevertheless.
  virtual void ForgetQuarantineOrder(int64_t number) = 0;
  // The worker of this attachment is lost: its stream gets nothing more, and is ended.
  virtual void WorkerLost(std::string_view identity, uint64_t attachment) = 0;
  // Ends all streams as the coordinator stops: workers attach anew elsewhere, or later. None of
  // them counts as lost for that.
  virtual void EndStreams() = 0;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SERVICE_ATTACH_SERVICE_H_
