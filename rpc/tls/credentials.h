// Who may speak to whom, and over what: credentials of channels and servers, and the rule about
// plaintext beyond this host.
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

// What a process shows to its peers and demands of them, the same for all of its channels and
// servers. Immutable, but for certificates that are reloaded, hence safe to share between threads;
// copies are cheap.
//
// With certificates every connection is TLS with both sides authenticated. A server refuses callers
// without a certificate of the authority, and those whose certificate bears no name (PeerName): the
// authority may sign others, for something else. A client refuses servers by their name in the
// certificate (PeerName), not by their host's: the same certificate serves under a pod's name, an
// address and a forwarded port.
class Credentials {
 public:
  // Plaintext; nobody is authenticated.
  static Credentials Insecure();

  // With certificates from files, which are reloaded when they change (CertificateWatch): new
  // connections use what is in the files, at the latest 3 s after a change; those that are there go
  // on. Plaintext if `files` are empty. Errors of CheckComplete, ReadTlsFiles and CheckTls.
  //
  // Files are watched by a thread of the process, one for each three, until the process ends.
  static absl::StatusOr<Credentials> FromFiles(const TlsFiles& files);

  // For channels to `peer`.
  std::shared_ptr<grpc::ChannelCredentials> channel(const ExpectedPeer& peer) const;
  const std::shared_ptr<grpc::ServerCredentials>& server() const { return server_; }
  // Whether peers are authenticated and bytes encrypted.
  bool is_secure() const { return watch_ != nullptr; }
  // The certificates in use; null for plaintext. Lives as long as the process.
  const CertificateWatch* watch() const { return watch_; }

 private:
  struct Tls;

  explicit Credentials(std::shared_ptr<grpc::ServerCredentials> server)
      : server_(std::move(server)) {}

  std::shared_ptr<grpc::ServerCredentials> server_;
  const Tls* tls_ = nullptr;  // null for plaintext
  const CertificateWatch* watch_ = nullptr;
};

// OK if `credentials` are those of a process that others expect as `own`: plaintext, or with a
// certificate of that name. FAILED_PRECONDITION names both.
absl::Status CheckOwnName(const Credentials& credentials, const ExpectedPeer& own);

// OK if the caller of a call that this process serves may speak as `name`: everybody over
// plaintext; over TLS the one whose certificate bears that name. PERMISSION_DENIED names both.
absl::Status CheckCaller(const Credentials& own, const grpc::ServerContextBase& context,
                         const PeerName& name);

// Whether only processes of this host can reach the address (`host:port`, `[v6]:port`,
// `unix:/path`): `localhost`, 127.0.0.0/8, ::1 and unix sockets. Names are not looked up.
bool IsLoopbackAddress(std::string_view address);

// OK if a plaintext server may be bound there. FAILED_PRECONDITION, saying what to do, for an
// address beyond loopback unless `insecure`. INVALID_ARGUMENT for text that is not an address.
absl::Status CheckBindAddress(std::string_view address, bool insecure);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_TLS_CREDENTIALS_H_
