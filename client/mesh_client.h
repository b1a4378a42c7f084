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
  // Each call fails with DEADLINE_EXCEEDED after this time, retries included. A computation waits
  // up to a second longer for the coordinator's answer, which names the ranks that did not finish.
  absl::Duration timeout = absl::Seconds(30);
  // Like `timeout`, but for calls that move tensors: puts, loads and gathers.
  absl::Duration transfer_timeout = absl::Minutes(30);
  // How long the cluster keeps the client's arrays without a name after the client has died. 1 s to
  // 1 h.
  absl::Duration session_ttl = absl::Seconds(30);
  // A name shown to people who list the cluster's sessions. At most 255 bytes.
  std::string client_name = "shardmesh";
  // Whether calls, and Connect, wait until their timeout for a coordinator that cannot be reached
  // or does not serve. If false, they return an error within 3 s. If a host has several addresses,
  // the client may spend up to 10 s more on each address that does not answer, but never more than
  // the call's timeout.
  bool await_coordinator = false;
  // The client calls this function before it waits to retry a call, with the error that is the
  // reason for the retry, such as RECOVERING. The call may come on any thread. The function must be
  // quick.
  std::function<void(const absl::Status& why)> on_wait = nullptr;
  // Gathers of at least this many bytes are operations: others see their progress, and can cancel
  // them. Smaller gathers are not reported, which saves them a thread and a call.
  int64_t min_reported_get_bytes = int64_t{64} << 20;
  // How long such a gather waits at its end until the coordinator has taken its result. After this
  // time it returns its own result.
  absl::Duration report_end_time = absl::Seconds(2);
  // How long the end of the client, or CloseSession, tries to release the arrays without a name
  // that the client still has. A coordinator that is just starting may need this time. Zero: does
  // not try. An array that is not released goes with the session; if the session ended with an
  // earlier process of the coordinator, the array stays for the coordinator's `--unnamed-grace`.
  // Without such arrays, nothing takes time.
  absl::Duration session_release_time = absl::Seconds(5);
  // How long the end of the client, or CloseSession, then waits for the answer that the session is
  // closed. A session whose close the coordinator does not get ends after `session_ttl`.
  absl::Duration session_close_time = absl::Seconds(2);
};

// A connection to a cluster. The client opens a session (a lease at the coordinator) when a call
// first needs a session, and renews the session in the background. The session ends when the client
// is destroyed. At the end of the session, the coordinator releases the client's arrays that have
// no name.
//
// Errors are the server's own: code, message, reason (ReasonOf) and details are unchanged. The
// client repeats a call until its timeout while the coordinator recovers (RECOVERING). The client
// repeats a call a few times if the coordinator is overloaded, does not serve or is not reached:
// status/retry.h has the rule. Mutations of definitions, arrays and names carry an id by which the
// server detects a repetition. Calls that change workers carry no such id. If the answer to a call
// about a worker is lost, the client repeats the call, and reports only the work that the first
// call left to the repeated call. If the coordinator cannot be reached, the error is UNAVAILABLE,
// with the address in the message. MeshClientOptions::await_coordinator says how long the client
// waits before this error.
//
// Example; `.rules` is the name of rules in the catalog, or a RuleSetDefinition:
//   auto client = MeshClient::Connect("127.0.0.1:7070");
//   auto loaded = (*client)->arrays().LoadCheckpoint("model.safetensors", {.rules = "bert"});
//   auto tensor = (*client)->arrays().Gather(ArraySelector::ByName("pooler.dense.weight"));
//
// Thread-safe. The destructor closes the session. If the coordinator does not answer, this takes at
// most MeshClientOptions::session_release_time and session_close_time, and a second for a renewal
// that is in progress. No call may be in progress when the destructor begins.
class MeshClient {
 public:
  // Connects to the coordinator at `address`: `host:port`, `[v6]:port` or `unix:/path`.
  // INVALID_ARGUMENT if `address` has none of these forms; UNAVAILABLE as described for the class.
  static absl::StatusOr<std::unique_ptr<MeshClient>> Connect(const std::string& address,
                                                             const MeshClientOptions& options = {});
  // Returns a client that uses this connection. The credentials of the options are used only for
  // connections to workers.
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

  // Closes the client's session, like the destructor and within the same times. The session's
  // transfers end, and the coordinator releases the arrays that the session pins. A later call
  // opens another session.
  void CloseSession();

 private:
  explicit MeshClient(std::unique_ptr<ClientCore> core);

  const std::unique_ptr<ClientCore> core_;  // declared first: the sub-clients use it
  LayoutClient layouts_;
  CatalogClient catalog_;
  ArrayClient arrays_;
  ComputeClient compute_;
  ClusterClient cluster_;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_MESH_CLIENT_H_
