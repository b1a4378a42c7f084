// MeshClient: all operations of a cluster's user, as blocking calls of five sub-clients.
#ifndef SHARDMESH_CLIENT_MESH_CLIENT_H_
#define SHARDMESH_CLIENT_MESH_CLIENT_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/arrays.h"
#include "client/catalog.h"
#include "client/cluster.h"
#include "client/compute.h"
#include "client/credentials.h"
#include "client/layouts.h"

namespace shardmesh::client {

class ClientCore;
class CoordinatorConnection;

struct MeshClientOptions {
  Credentials credentials = Credentials::Insecure();
  // Each call fails with DEADLINE_EXCEEDED after this time, retries included. A computation has up
  // to a second more for its answer, which names the ranks that did not finish.
  absl::Duration timeout = absl::Seconds(30);
  // The same for calls that move tensors: puts, loads and gathers.
  absl::Duration transfer_timeout = absl::Minutes(30);
  // How long arrays without a name outlive a client that has died. 1 s to 1 h.
  absl::Duration session_ttl = absl::Seconds(30);
  // For people who look at the cluster's sessions. At most 255 bytes.
  std::string client_name = "shardmesh";
  // Whether to wait until a call's timeout, also in Connect, for a coordinator that cannot be
  // reached or does not serve. Otherwise an error within 3 s. If a host has several addresses, each
  // address that does not answer adds up to 10 s, within the call's timeout.
  bool await_coordinator = false;
  // Called before each wait that precedes a retry, with the reason, such as that the coordinator
  // recovers. Called on any thread; must be quick.
  std::function<void(const absl::Status& why)> on_wait = nullptr;
};

// A connection to a cluster. Its session is opened when first needed, renewed in the background,
// and ends with the client. Arrays that it made without a name are then released.
//
// Errors are the server's own: code, message, reason (ReasonOf) and details are unchanged. A call
// is repeated until its timeout while the coordinator recovers (RECOVERING), and a few times if the
// coordinator is overloaded, does not serve or is not reached: status/retry.h has the rule.
// Mutations of definitions, arrays and names carry an id by which the server detects a repetition.
// Calls about workers carry none: repeated after a lost answer, they report what is then left to
// do. A coordinator that cannot be reached is UNAVAILABLE, with its address, within the time of
// MeshClientOptions::await_coordinator.
//
// Example; `.rules` is the name of rules in the catalog, or a RuleSetDefinition:
//   auto client = MeshClient::Connect("127.0.0.1:7070");
//   auto loaded = (*client)->arrays().LoadCheckpoint("model.safetensors", {.rules = "bert"});
//   auto tensor = (*client)->arrays().Gather(ArraySelector::ByName("pooler.dense.weight"));
//
// Thread-safe. The destructor closes the session, which takes at most a second if the coordinator
// does not answer. No call may be in progress then.
class MeshClient {
 public:
  // Connects to the coordinator at `address`: `host:port`, `[v6]:port` or `unix:/path`.
  // INVALID_ARGUMENT for other text; UNAVAILABLE as above.
  static absl::StatusOr<std::unique_ptr<MeshClient>> Connect(const std::string& address,
                                                             const MeshClientOptions& options = {});
  // A client over this connection; credentials of the options are used only for workers.
  static std::unique_ptr<MeshClient> Over(std::unique_ptr<CoordinatorConnection> connection,
                                          const MeshClientOptions& options = {});
  ~MeshClient();
  MeshClient(const MeshClient&) = delete;
  MeshClient& operator=(const MeshClient&) = delete;

  // The sub-clients live as long as this object.
  LayoutClient& layouts() { return layouts_; }
  CatalogClient& catalog() { return catalog_; }
  ArrayClient& arrays() { return arrays_; }
  ComputeClient& compute() { return compute_; }
  ClusterClient& cluster() { return cluster_; }

  // Closes the client's session, like the destructor, and waits at most two seconds for the answer.
  // Its transfers end, and its arrays are released. A later call opens another session.
  void CloseSession();

 private:
  explicit MeshClient(std::unique_ptr<ClientCore> core);

  const std::unique_ptr<ClientCore> core_;  // first: the others use it
  LayoutClient layouts_;
  CatalogClient catalog_;
  ArrayClient arrays_;
  ComputeClient compute_;
  ClusterClient cluster_;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_MESH_CLIENT_H_
