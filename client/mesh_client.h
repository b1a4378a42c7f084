// MeshClient: everything that a user of a cluster can do, in blocking calls of five sub-clients.
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
#include "client/layouts.h"
#include "rpc/tls/credentials.h"

namespace shardmesh::client {

class ClientCore;
class CoordinatorConnection;

struct MeshClientOptions {
  rpc::Credentials credentials = rpc::Credentials::Insecure();
  // Each call fails with DEADLINE_EXCEEDED after this time, retries included; a computation has
  // this time, and the answer that says who was missing up to a second more.
  absl::Duration timeout = absl::Seconds(30);
  // The same for calls that move tensors: puts, loads and gathers.
  absl::Duration transfer_timeout = absl::Minutes(30);
  // How long arrays without a name outlive a client that has died. 1 s to 1 h.
  absl::Duration session_ttl = absl::Seconds(30);
  // For people who look at the cluster's sessions. At most 255 bytes.
  std::string client_name = "shardmesh";
  // Whether a coordinator that cannot be reached or does not serve is waited for until a call's
  // timeout, also by Connect; otherwise an error within 3 s, but see rpc::ConnectOptions::limit.
  bool await_coordinator = false;
  // Called before each wait after which a call is made again, with the reason, such as that the
  // coordinator recovers. From any thread; quick.
  std::function<void(const absl::Status& why)> on_wait = nullptr;
};

// A connection to a cluster, with a session that is opened when first needed, is renewed in the
// background and ends with the client; then the arrays go that it made without giving them a name.
//
// Errors are the server's own: code, message, reason (ReasonOf) and details as it sent them. A call
// is made again while the coordinator answers that it recovers, or that a worker with what the call
// needs is expected back (UNAVAILABLE with a delay), and time is left. Mutations of definitions,
// arrays and names carry an id by which the server knows a repetition. Calls about workers carry
// none: repeated after a lost answer, they report what is then left to do. A coordinator that
// cannot be reached is UNAVAILABLE, with its address, within the time of
// MeshClientOptions::await_coordinator.
//
// Example:
//   auto client = MeshClient::Connect("127.0.0.1:7070");
//   auto loaded = (*client)->arrays().LoadCheckpoint("model.safetensors", {.rules = rules});
//   auto tensor = (*client)->arrays().Gather(ArraySelector::ByName("pooler.dense.weight"));
//
// Thread-safe. The destructor closes the session, which takes at most a second if the coordinator
// does not answer; no call may be under way then.
class MeshClient {
 public:
  // Connects to the coordinator at `address`: `host:port`, `[v6]:port` or `unix:/path`.
  // INVALID_ARGUMENT for other text; UNAVAILABLE as above.
  static absl::StatusOr<std::unique_ptr<MeshClient>> Connect(const std::string& address,
                                                             const MeshClientOptions& options = {});
  // A client over this connection; credentials of the options are for workers alone.
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

  // Closes the client's session, as its destructor does, waiting at most two seconds for the
  // answer: what was begun in it ends, and what it kept is let go. A later call opens another.
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
