// Connects to a coordinator, and creates the sub-clients.
#include "client/mesh_client.h"

#include <utility>

#include "client/client_core.h"
#include "client/remote/coordinator_connection.h"
#include "process/steady_deadline.h"
#include "rpc/call.h"
#include "status/status_macros.h"

namespace shardmesh::client {

MeshClient::MeshClient(std::unique_ptr<ClientCore> core)
    : core_(std::move(core)),
      layouts_(core_.get()),
      catalog_(core_.get()),
      arrays_(core_.get()),
      compute_(core_.get()),
      cluster_(core_.get()) {}
MeshClient::~MeshClient() = default;

absl::StatusOr<std::unique_ptr<MeshClient>> MeshClient::Connect(const std::string& address,
                                                                const MeshClientOptions& options) {
  const auto deadline = SteadyDeadline::After(options.timeout);
  const RetryOptions retries{options.await_coordinator, options.on_wait};
  rpc::Backoff backoff({.max_delay = absl::Milliseconds(500)});
  absl::StatusOr<std::unique_ptr<CoordinatorConnection>> connected;
  for (;;) {
    // Each attempt resolves the host name again: the coordinator may have moved to another address.
    connected =
        CoordinatorConnection::Connect(address, options.credentials, deadline.left(), retries);
    if (!options.await_coordinator || !absl::IsUnavailable(connected.status())) break;
    const absl::Duration delay = backoff.NextDelay(connected.status());
    if (delay >= deadline.left()) break;
    if (options.on_wait) options.on_wait(connected.status());
    absl::SleepFor(delay);
  }
  SHARDMESH_ASSIGN_OR_RETURN(std::unique_ptr<CoordinatorConnection> connection,
                             std::move(connected));
  return Over(std::move(connection), options);
}

std::unique_ptr<MeshClient> MeshClient::Over(std::unique_ptr<CoordinatorConnection> connection,
                                             const MeshClientOptions& options) {
  return std::unique_ptr<MeshClient>(
      new MeshClient(std::make_unique<ClientCore>(std::move(connection), options)));
}

void MeshClient::CloseSession() { core_->CloseSession(); }

}  // namespace shardmesh::client
