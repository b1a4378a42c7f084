// Authentication and encryption: credentials of channels and servers, and the rule that plaintext
// is only for this host.
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

// The certificates that a process presents and requires, for all of its channels and servers.
// Immutable except for reloaded certificates, and safe to share between threads. Copies are cheap.
//
// With certificates, every connection is TLS and authenticates both sides. A server refuses clients
// without a certificate of the authority. It also refuses certificates without a name (PeerName),
// because the authority may sign other certificates for different purposes. A client checks the
// name in the server's certificate (PeerName), not the host name. The same certificate therefore
// works under a pod's name, an address and a forwarded port.
class Credentials {
 public:
  // Returns credentials for plaintext, without authentication.
  static Credentials Insecure();

  // Uses certificates from files, which are reloaded when they change (CertificateWatch). New
  // connections use the new files at most 3 s after a change; existing connections continue.
  // Plaintext if `files` is empty. Errors: those of CheckComplete, ReadTlsFiles and CheckTls.
  //
  // Each set of three files has one thread that watches the files until the process ends.
  static absl::StatusOr<Credentials> FromFiles(const TlsFiles& files);

  // Returns credentials for channels to `peer`.
  std::shared_ptr<grpc::ChannelCredentials> channel(const ExpectedPeer& peer) const;
  const std::shared_ptr<grpc::ServerCredentials>& server() const { return server_; }
  // Whether peers are authenticated and bytes are encrypted.
  bool is_secure() const { return watch_ != nullptr; }
  // Returns the watch that has the current certificates; null for plaintext. The watch lives as
  // long as the process.
  const CertificateWatch* watch() const { return watch_; }

 private:
  struct Tls;

  explicit Credentials(std::shared_ptr<grpc::ServerCredentials> server)
      : server_(std::move(server)) {}

  std::shared_ptr<grpc::ServerCredentials> server_;
  const Tls* tls_ = nullptr;  // null for plaintext
  const CertificateWatch* watch_ = nullptr;
};

// Checks that `credentials` fit a process that its peers expect as `own`: plaintext, or a
// certificate with that name. FAILED_PRECONDITION names the certificate's name and `own`.
absl::Status CheckOwnName(const Credentials& credentials, const ExpectedPeer& own);

// Checks that the caller of an RPC may act as `name`. Over plaintext any caller may; over TLS the
// caller's certificate must have that name. PERMISSION_DENIED names the caller's name and `name`.
absl::Status CheckCaller(const Credentials& own, const grpc::ServerContextBase& context,
                         const PeerName& name);

// Whether only processes of this host can reach the address (`host:port`, `[v6]:port`,
// `unix:/path`): `localhost`, 127.0.0.0/8, ::1 and unix sockets. Other host names are not resolved.
bool IsLoopbackAddress(std::string_view address);

// Checks that a plaintext server may bind the address. FAILED_PRECONDITION, with advice: the
// address is beyond loopback and `insecure` is false. INVALID_ARGUMENT: the text is not an address.
absl::Status CheckBindAddress(std::string_view address, bool insecure);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_TLS_CREDENTIALS_H_
