// Credentials, and which addresses lead beyond this host.
#include "rpc/credentials.h"

#include <arpa/inet.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <utility>

#include "rpc/host_port.h"
#include "sharding/reason.h"
#include "sharding/status_macros.h"
#include "sharding/str_cat.h"

namespace shardmesh::rpc {

Credentials::Credentials(std::shared_ptr<grpc::ChannelCredentials> channel,
                         std::shared_ptr<grpc::ServerCredentials> server, bool is_secure)
    : channel_(std::move(channel)), server_(std::move(server)), is_secure_(is_secure) {}

Credentials Credentials::Insecure() {
  return Credentials(grpc::InsecureChannelCredentials(), grpc::InsecureServerCredentials(),
                     /*is_secure=*/false);
}

bool IsLoopbackAddress(std::string_view address) {
  if (IsUnixAddress(address)) {
    return true;
  }
  const auto parsed = ParseHostPort(address);
  if (!parsed.ok()) {
    return false;
  }
  if (parsed->host == "localhost") {
    return true;
  }
  in_addr v4;
  if (inet_pton(AF_INET, parsed->host.c_str(), &v4) == 1) {
    return (ntohl(v4.s_addr) >> 24) == 127;
  }
  in6_addr v6;
  return inet_pton(AF_INET6, parsed->host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

absl::Status CheckBindAddress(std::string_view address, bool insecure) {
  if (!IsUnixAddress(address)) {
    SHARDMESH_RETURN_IF_ERROR(ParseHostPort(address).status());
  }
  if (insecure || IsLoopbackAddress(address)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(StrCat(
      "refusing to serve plaintext on ", address,
      ", which others than this host can reach; bind 127.0.0.1, or pass --insecure where the "
      "network itself is trusted"));
}

}  // namespace shardmesh::rpc
