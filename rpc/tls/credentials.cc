// Makes credentials, and tests whether an address is beyond this host.
#include "rpc/tls/credentials.h"

#include <arpa/inet.h>
#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/server_context.h>

#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "process/host_port.h"
#include "rpc/tls/certificate_watch.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {
namespace {

namespace tls = grpc::experimental;

// Interval, in seconds, at which gRPC checks whether the watch has replaced its memory files.
constexpr unsigned int kProviderInterval = 1;

// Returns the one URI of a certificate that has PeerName's form; nullopt if none or several have
// it.
template <typename Uris>
std::optional<PeerName> NameAmong(const Uris& uris) {
  std::optional<PeerName> found;
  for (const grpc::string_ref& uri : uris) {
    std::optional<PeerName> name = ParsePeerName(std::string_view(uri.data(), uri.size()));
    if (name.has_value() && std::exchange(found, std::move(name)).has_value()) {
      return std::nullopt;
    }
  }
  return found;
}

// Accepts a peer by the name in its certificate. gRPC has verified the certificate before.
class NameVerifier final : public tls::ExternalCertificateVerifier {
 public:
  explicit NameVerifier(ExpectedPeer expected) : expected_(std::move(expected)) {}

  bool Verify(tls::TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)> /*callback*/, grpc::Status* sync_status) override {
    const std::optional<PeerName> name = NameAmong(request->uri_names());
    if (!name.has_value() || !expected_.Matches(*name)) {
      *sync_status = grpc::Status(grpc::StatusCode::UNAUTHENTICATED,
                                  StrCat("its certificate is that of ",
                                         name.has_value() ? name->ToUri() : "an unknown process",
                                         ", and ", expected_.ToString(), " is expected"));
    }
    return true;
  }
  void Cancel(tls::TlsCustomVerificationCheckRequest* /*request*/) override {}

 private:
  const ExpectedPeer expected_;
};

void WatchAll(tls::TlsCredentialsOptions& options) {
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_check_call_host(false);  // NameVerifier checks the name instead
}

}  // namespace

struct Credentials::Tls {
  std::unique_ptr<CertificateWatch> watch;
  std::shared_ptr<tls::CertificateProviderInterface> provider;
  std::shared_ptr<grpc::ServerCredentials> server;
};

Credentials Credentials::Insecure() { return Credentials(grpc::InsecureServerCredentials()); }

absl::StatusOr<Credentials> Credentials::FromFiles(const TlsFiles& files) {
  SHARDMESH_RETURN_IF_ERROR(CheckComplete(files));
  if (files.empty()) {
    return Insecure();
  }
  // Never destroyed: a thread of gRPC reads the watch's files even after the last channel is
  // destroyed.
  static absl::Mutex& mutex = *new absl::Mutex;
  static auto& all = *new std::map<TlsFiles, Tls*>;
  absl::MutexLock lock(&mutex);
  Tls*& known = all[files];
  if (known == nullptr) {
    auto made = std::make_unique<Tls>();
    absl::StatusOr<std::unique_ptr<CertificateWatch>> watch = CertificateWatch::Start(files);
    if (!watch.ok()) {
      all.erase(files);
      return std::move(watch).status();
    }
    made->watch = *std::move(watch);
    made->provider = std::make_shared<tls::FileWatcherCertificateProvider>(
        made->watch->pair_path(), made->watch->pair_path(), made->watch->authorities_path(),
        kProviderInterval);
    tls::TlsServerCredentialsOptions options(made->provider);
    WatchAll(options);
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    options.set_certificate_verifier(
        tls::ExternalCertificateVerifier::Create<NameVerifier>(ExpectedPeer::Anybody()));
    made->server = tls::TlsServerCredentials(options);
    known = made.release();
  }
  Credentials credentials(known->server);
  credentials.tls_ = known;
  credentials.watch_ = known->watch.get();
  return credentials;
}

std::shared_ptr<grpc::ChannelCredentials> Credentials::channel(const ExpectedPeer& peer) const {
  if (tls_ == nullptr) {
    return grpc::InsecureChannelCredentials();
  }
  tls::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(tls_->provider);
  WatchAll(options);
  options.set_certificate_verifier(tls::ExternalCertificateVerifier::Create<NameVerifier>(peer));
  return tls::TlsCredentials(options);
}

absl::Status CheckOwnName(const Credentials& credentials, const ExpectedPeer& own) {
  if (!credentials.is_secure() || own.Matches(credentials.watch()->state()->facts.name)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      StrCat(credentials.watch()->files().certificate, " is the certificate of ",
             credentials.watch()->state()->facts.name.ToUri(), ", and this process is ",
             own.ToString(), "; give it its own with --tls-cert and --tls-key"));
}

absl::Status CheckCaller(const Credentials& own, const grpc::ServerContextBase& context,
                         const PeerName& name) {
  if (!own.is_secure()) {
    return absl::OkStatus();
  }
  const std::optional<PeerName> caller =
      NameAmong(context.auth_context()->FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME));
  if (caller == name) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(
      StrCat("the caller says that it is ", name.ToUri(), ", and its certificate is that of ",
             caller.has_value() ? caller->ToUri() : "an unknown process",
             "; give each worker the certificate of its own identity"));
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
  return absl::FailedPreconditionError(
      StrCat("refusing to serve plaintext on ", address,
             ", which other hosts can reach; bind 127.0.0.1, turn on TLS (--tls-cert, --tls-key, "
             "--tls-ca), or pass --insecure if the network itself is trusted"));
}

}  // namespace shardmesh::rpc
