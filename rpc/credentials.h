// Who may speak to whom, and over what: credentials of channels and servers, and the rule about
// plaintext beyond this host.
#ifndef SHARDMESH_RPC_CREDENTIALS_H_
#define SHARDMESH_RPC_CREDENTIALS_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace grpc {
class ChannelCredentials;
class ServerCredentials;
}  // namespace grpc

namespace shardmesh::rpc {

// What a process shows to its peers and demands of them, the same for all of its channels and
// servers. Immutable, hence safe to share between threads; copies are cheap.
class Credentials {
 public:
  // Plaintext; nobody is authenticated.
  static Credentials Insecure();

  const std::shared_ptr<grpc::ChannelCredentials>& channel() const { return channel_; }
  const std::shared_ptr<grpc::ServerCredentials>& server() const { return server_; }
  // Whether peers are authenticated and bytes encrypted.
  bool is_secure() const { return is_secure_; }

 private:
  Credentials(std::shared_ptr<grpc::ChannelCredentials> channel,
              std::shared_ptr<grpc::ServerCredentials> server, bool is_secure);

  std::shared_ptr<grpc::ChannelCredentials> channel_;
  std::shared_ptr<grpc::ServerCredentials> server_;
  bool is_secure_;
};

// Whether only processes of this host can reach the address (`host:port`, `[v6]:port`,
// `unix:/path`): `localhost`, 127.0.0.0/8, ::1 and unix sockets. Names are not looked up.
bool IsLoopbackAddress(std::string_view address);

// OK if a plaintext server may be bound there. FAILED_PRECONDITION, saying what to do, for an
// address beyond loopback unless `insecure`. INVALID_ARGUMENT for text that is not an address.
absl::Status CheckBindAddress(std::string_view address, bool insecure);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CREDENTIALS_H_
