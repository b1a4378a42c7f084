// Authentication and encryption: credentials of channels and servers, and the rule about plaintext
// beyond this host.
#ifndef SHARDMESH_RPC_TLS_CREDENTIALS_H_
#define SHARDMESH_RPC_TLS_CREDENTIALS_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rpc/tls/certificate.h"
#include "rpc/tls/peer_name.h"

namespace grpc {
class ChannelCredentials;
class ServerContextBase;
class ServerCredentials;
}  // namespace grpc

namespace shardmesh::rpc {

class CertificateWatch;

// The certificates that a process presents and requires, the same for all of its channels and
// servers. Immutable except for reloaded certificates, and safe to share between threads; copies
// are cheap.
//
// With certificates, every connection is TLS with both sides authenticated. A server refuses
// callers without a certificate of the authority. It also refuses certificates without a name
// (PeerName), because the authority may sign others for different purposes. A client checks the
// name in the server's certificate (PeerName), not the host name. The same certificate therefore
// works under a pod's name, an address and a forwarded port.
class Credentials {
 public:
  // Plaintext, without authentication.
  static Credentials Insecure();

  // Uses certificates from files, which are reloaded when they change (CertificateWatch). New
  // connections use the new files at most 3 s after a change; existing connections continue.
  // Plaintext if `files` are empty. Errors of CheckComplete, ReadTlsFiles and CheckTls.
  //
  // One thread for each set of three files watches them until the process ends.
  static absl::StatusOr<Credentials> FromFiles(const TlsFiles& files);

  // Returns credentials for channels to `peer`.
  std::shared_ptr<grpc::ChannelCredentials> channel(const ExpectedPeer& peer) const;
  const std::shared_ptr<grpc::ServerCredentials>& server() const { return server_; }
  // Returns whether peers are authenticated and bytes encrypted.
  bool is_secure() const { return watch_ != nullptr; }
  // Returns the current certificates; null for plaintext. Lives as long as the process.
  const CertificateWatch* watch() const { return watch_; }

 private:
  struct Tls;

  explicit Credentials(std::shared_ptr<grpc::ServerCredentials> server)
      : server_(std::move(server)) {}

  std::shared_ptr<grpc::ServerCredentials> server_;
  const Tls* tls_ = nullptr;  // null for plaintext
  const CertificateWatch* watch_ = nullptr;
};

// Returns OK if `credentials` fit a process that others expect as `own`: plaintext, or a
// certificate with that name. FAILED_PRECONDITION names both.
absl::Status CheckOwnName(const Credentials& credentials, const ExpectedPeer& own);

// Returns OK if the caller of a served call may act as `name`: over plaintext any caller, over TLS
// only one whose certificate has that name. PERMISSION_DENIED names both.
absl::Status CheckCaller(const Credentials& own, const grpc::ServerContextBase& context,
                         const PeerName& name);

// Returns whether only processes of this host can reach the address (`host:port`, `[v6]:port`,
// `unix:/path`): `localhost`, 127.0.0.0/8, ::1 and unix sockets. Names are not resolved.
bool IsLoopbackAddress(std::string_view address);

// Returns OK if a plaintext server may bind the address. FAILED_PRECONDITION, with advice, for an
// address beyond loopback unless `insecure`. INVALID_ARGUMENT for text that is not an address.
absl::Status CheckBindAddress(std::string_view address, bool insecure);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_TLS_CREDENTIALS_H_
