// A program outside the project that uses the installed client library: it calls a coordinator that
// is not there, and is told so. It names the values of questions and answers as users do.
#include <iostream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "client/credentials.h"
#include "client/mesh_client.h"

namespace {

using shardmesh::client::Credentials;
using shardmesh::client::EntryValue;
using shardmesh::client::MeshClient;

// A user's own functions over the values of the library.
EntryValue PairOfWorkers(shardmesh::Mesh mesh) {
  return shardmesh::MeshDefinition{.mesh = std::move(mesh), .workers = {"worker-0", "worker-1"}};
}

bool IsSlow(const shardmesh::MeasuredLink& link) { return link.bytes_per_second < 1e9; }

size_t CountFailed(const std::vector<shardmesh::FlightRecord>& records) {
  size_t count = 0;
  for (const shardmesh::FlightRecord& record : records) count += record.outcome.ok() ? 0 : 1;
  return count;
}

}  // namespace

int main() {
  // Without files, credentials are plaintext.
  const absl::StatusOr<Credentials> credentials =
      Credentials::FromFiles(shardmesh::client::TlsFiles());
  const absl::StatusOr<shardmesh::Mesh> mesh = shardmesh::Mesh::Parse("x=2");
  const absl::StatusOr<shardmesh::RuleSet> rules =
      shardmesh::RuleSet::Create({{"kernel", shardmesh::PartitionSpec()}});
  if (!credentials.ok() || credentials->is_secure() || !mesh.ok() || !rules.ok()) return 2;
  const EntryValue pair = PairOfWorkers(*mesh);
  if (std::get<shardmesh::MeshDefinition>(pair).workers.size() != 2) return 2;
  if (!IsSlow(shardmesh::MeasuredLink()) || CountFailed({shardmesh::FlightRecord()}) != 0) return 2;
  const shardmesh::client::RuleSetSelector selector = shardmesh::RuleSetDefinition{.rules = *rules};
  if (!std::holds_alternative<shardmesh::RuleSetDefinition>(selector)) return 2;

  const std::string address = "127.0.0.1:1";
  const auto client = MeshClient::Connect(address, {.credentials = *credentials});
  const absl::Status status =
      client.ok() ? (*client)->cluster().GetStatus().status() : client.status();
  std::cout << status << "\n";
  const bool names_the_address = std::string(status.message()).find(address) != std::string::npos;
  return absl::IsUnavailable(status) && names_the_address ? 0 : 1;
}
