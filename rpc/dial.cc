// Dials, and speaks TLS by OpenSSL as far as a diagnosis needs it.
#include "rpc/dial.h"

#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "absl/cleanup/cleanup.h"
#include "absl/time/clock.h"
#include "rpc/certificate.h"
#include "rpc/certificate_watch.h"
#include "rpc/host_port.h"
#include "rpc/openssl_owned.h"
#include "sharding/status_macros.h"
#include "sharding/str_cat.h"

namespace shardmesh::rpc {
namespace {

// A TLS record begins with its type.
constexpr int kFirstRecordType = 0x14;
constexpr int kLastRecordType = 0x17;

constexpr std::string_view kTlsFlags = "--tls-cert, --tls-key and --tls-ca";

// Whether the socket is ready before the deadline.
bool AwaitReady(int fd, short events, absl::Time deadline) {
  const absl::Duration left = std::max(deadline - absl::Now(), absl::ZeroDuration());
  pollfd ready = {.fd = fd, .events = events, .revents = 0};
  return poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(left))) == 1;
}

// A TLS client on a connected socket, with the certificates in use, that takes any server's and
// judges it afterwards.
class TlsClient {
 public:
  // kRefused: by an alert, or since nothing in common is spoken.
  enum class Outcome { kDone, kEnded, kRefused, kNotTls, kTimeout };

  TlsClient(int fd, const CertificateWatch* watch)
      : fd_(fd), context_(SSL_CTX_new(TLS_client_method())) {
    ERR_clear_error();
    if (watch != nullptr) {
      UseTls(watch->state()->texts, context_.get()).IgnoreError();  // they were checked
    }
    SSL_CTX_set_verify(context_.get(), SSL_VERIFY_NONE, nullptr);
    static constexpr unsigned char kHttp2[] = {2, 'h', '2'};
    SSL_CTX_set_alpn_protos(context_.get(), kHttp2, sizeof(kHttp2));
    ssl_.reset(SSL_new(context_.get()));
    // Through memory: OpenSSL's own writes to a socket may end the process with SIGPIPE.
    SSL_set_bio(ssl_.get(), BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
  }

  Outcome Handshake(absl::Time deadline) {
    return Drive(deadline, [this] { return SSL_connect(ssl_.get()); });
  }
  // Waits for the server's first word.
  Outcome AwaitAnswer(absl::Time deadline) {
    char byte = 0;
    return Drive(deadline, [&] { return SSL_read(ssl_.get(), &byte, sizeof(byte)); });
  }

  // Of kRefused.
  const std::string& reason() const { return reason_; }
  // X509_V_OK if the server's certificate is of the authority and valid.
  long FaultOfServer() const { return SSL_get_verify_result(ssl_.get()); }
  absl::StatusOr<CertificateFacts> ServerFacts() const { return ReadPeerCertificate(ssl_.get()); }

 private:
  template <typename Step>
  Outcome Drive(absl::Time deadline, const Step& step) {
    for (;;) {
      ERR_clear_error();
      const int result = step();
      const int error = SSL_get_error(ssl_.get(), result);
      Send();
      if (result > 0) {
        return Outcome::kDone;
      }
      if (error == SSL_ERROR_WANT_READ) {
        if (!AwaitReady(fd_, POLLIN, deadline)) {
          return Outcome::kTimeout;
        }
        if (!Receive()) {
          return Outcome::kEnded;
        }
        continue;
      }
      const char* const text = ERR_reason_error_string(ERR_peek_error());
      reason_ = text == nullptr ? "unknown" : text;
      ERR_clear_error();
      if (error != SSL_ERROR_SSL) {
        return Outcome::kEnded;
      }
      return first_byte_ >= kFirstRecordType && first_byte_ <= kLastRecordType ? Outcome::kRefused
                                                                               : Outcome::kNotTls;
    }
  }

  // What OpenSSL has to say. A handshake's messages are small: the socket takes them at once, or
  // the server is gone, which the next read tells.
  void Send() {
    BIO* const out = SSL_get_wbio(ssl_.get());
    char* data = nullptr;
    const long size = BIO_get_mem_data(out, &data);
    if (size > 0) {
      send(fd_, data, static_cast<size_t>(size), MSG_NOSIGNAL);
      BIO_reset(out);
    }
  }
  // What the server says; false if it has ended the connection.
  bool Receive() {
    char buffer[4096];
    const ssize_t count = recv(fd_, buffer, sizeof(buffer), 0);
    if (count > 0 && first_byte_ < 0) {
      first_byte_ = static_cast<unsigned char>(buffer[0]);
    }
    return count > 0 && BIO_write(SSL_get_rbio(ssl_.get()), buffer, static_cast<int>(count)) > 0;
  }

  const int fd_;
  const OpensslOwned<SSL_CTX, SSL_CTX_free> context_;
  OpensslOwned<SSL, SSL_free> ssl_;
  int first_byte_ = -1;  // that the server said; negative if none
  std::string reason_;
};

// Of a server that speaks TLS, to a client that does.
std::string DiagnoseTls(TlsClient& client, const CertificateWatch& watch, const ExpectedPeer& peer,
                        absl::Time deadline) {
  using Outcome = TlsClient::Outcome;
  const TlsFiles& files = watch.files();
  const long fault = client.FaultOfServer();
  if (fault == X509_V_ERR_CERT_HAS_EXPIRED || fault == X509_V_ERR_CERT_NOT_YET_VALID) {
    return StrCat("its certificate is not valid now (", X509_verify_cert_error_string(fault),
                  "); renew it there, and look at the clocks of both hosts");
  }
  if (fault != X509_V_OK) {
    return StrCat("its certificate is not one of an authority in ", files.authorities, " (",
                  X509_verify_cert_error_string(fault),
                  "); --tls-ca must name the authority that signed it");
  }
  const absl::StatusOr<CertificateFacts> facts = client.ServerFacts();
  if (!facts.ok()) {
    return std::string(facts.status().message());
  }
  if (!peer.Matches(facts->name)) {
    return StrCat("its certificate is that of ", facts->name.ToUri(), ", and ", peer.ToString(),
                  " is expected; is the address right, and did it get its own certificate?");
  }
  switch (client.AwaitAnswer(deadline)) {
    case Outcome::kRefused:
      return StrCat("it refuses the certificate in ", files.certificate, " (", client.reason(),
                    "); both sides need certificates of one authority, not expired");
    case Outcome::kEnded:
      return StrCat("it ends the connection when it has seen the certificate in ",
                    files.certificate,
                    ", as those do that trust another authority; both sides need certificates of "
                    "one authority, not expired");
    case Outcome::kDone:
    case Outcome::kNotTls:
    case Outcome::kTimeout:
      break;
  }
  return "";
}

}  // namespace

absl::StatusOr<FileDescriptor> Dial(std::string_view address, absl::Time deadline) {
  if (IsUnixAddress(address)) {
    return absl::UnimplementedError("a unix socket is not dialled");
  }
  SHARDMESH_ASSIGN_OR_RETURN(const HostPort parsed, ParseHostPort(address));
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(parsed.host.c_str(), StrCat(parsed.port).c_str(), &hints, &found) != 0) {
    return absl::UnavailableError(StrCat("nobody knows the host ", parsed.host));
  }
  const absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    FileDescriptor fd(socket(each->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd.valid()) {
      continue;
    }
    bool accepts = connect(fd.get(), each->ai_addr, each->ai_addrlen) == 0;
    if (!accepts && errno == EINPROGRESS && AwaitReady(fd.get(), POLLOUT, deadline)) {
      int error = 0;
      socklen_t size = sizeof(error);
      accepts = getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
    }
    if (accepts) {
      return fd;
    }
  }
  return absl::UnavailableError(StrCat("nobody accepts connections at ", address));
}

std::string DiagnoseConnection(std::string_view address, const Credentials& credentials,
                               const ExpectedPeer& peer, absl::Time deadline) {
  using Outcome = TlsClient::Outcome;
  const absl::StatusOr<FileDescriptor> fd = Dial(address, deadline);
  if (!fd.ok()) {
    return "";
  }
  TlsClient client(fd->get(), credentials.watch());
  const Outcome outcome = client.Handshake(deadline);
  if (!credentials.is_secure()) {
    return outcome == Outcome::kDone || outcome == Outcome::kRefused
               ? StrCat("it speaks TLS, and this process plaintext; give ", kTlsFlags)
               : "";
  }
  const auto state = credentials.watch()->state();
  const bool speaks_tls = outcome == Outcome::kDone || outcome == Outcome::kRefused;
  if (speaks_tls && absl::Now() > state->facts.not_after) {
    return StrCat("the certificate of this process, ", credentials.watch()->files().certificate,
                  ", has expired; renew it");
  }
  switch (outcome) {
    case Outcome::kDone:
      return DiagnoseTls(client, *credentials.watch(), peer, deadline);
    case Outcome::kRefused:
      return StrCat("it refuses the TLS handshake (", client.reason(), ")");
    case Outcome::kNotTls:
      return StrCat("it speaks plaintext, and this process TLS; start it with ", kTlsFlags,
                    ", or leave them out here");
    case Outcome::kEnded:
      return StrCat("it ends the connection when TLS is spoken to it, as a process without ",
                    kTlsFlags, " does; start it with them, or leave them out here");
    case Outcome::kTimeout:
      break;
  }
  return "";
}

}  // namespace shardmesh::rpc
