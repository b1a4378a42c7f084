// A program outside the project that uses the installed client library: it calls a coordinator that
// is not there, and is told so.
#include <iostream>
#include <string>

#include "client/mesh_client.h"

int main() {
  const std::string address = "127.0.0.1:1";
  const auto client = shardmesh::client::MeshClient::Connect(address);
  const absl::Status status =
      client.ok() ? (*client)->cluster().GetStatus().status() : client.status();
  std::cout << status << "\n";
  const bool names_the_address = std::string(status.message()).find(address) != std::string::npos;
  return absl::IsUnavailable(status) && names_the_address ? 0 : 1;
}
