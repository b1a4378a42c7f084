// Dials, and speaks TLS as far as a diagnosis needs it.
#include "rpc/dial.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "absl/cleanup/cleanup.h"
#include "absl/time/clock.h"
#include "rpc/certificate.h"
#include "rpc/certificate_watch.h"
#include "rpc/host_port.h"
#include "rpc/tls_session.h"
#include "sharding/status_macros.h"
#include "sharding/str_cat.h"

namespace shardmesh::rpc {
namespace {

// How long it may take to find out what is wrong with a connection.
constexpr absl::Duration kDiagnosis = absl::Seconds(1);

constexpr std::string_view kTlsFlags = "--tls-cert, --tls-key and --tls-ca";

// Of a server that speaks TLS, to a client that does.
std::string DiagnoseTls(TlsSession& session, const CertificateWatch& watch,
                        const ExpectedPeer& peer, absl::Time deadline) {
  using Outcome = TlsSession::Outcome;
  const TlsFiles& files = watch.files();
  const absl::Status fault = CheckPeer(session.ssl(), absl::Now());
  if (absl::IsFailedPrecondition(fault)) {
    return StrCat(std::string(fault.message()),
                  "; renew it there, and look at the clocks of both hosts");
  }
  if (!fault.ok()) {
    return StrCat("its certificate is not one of an authority in ", files.authorities, " (",
                  std::string(fault.message()),
                  "); --tls-ca must name the authority that signed it");
  }
  const absl::StatusOr<CertificateFacts> facts = ReadPeerCertificate(session.ssl());
  if (!facts.ok()) {
    return std::string(facts.status().message());
  }
  if (!peer.Matches(facts->name)) {
    return StrCat("its certificate is that of ", facts->name.ToUri(), ", and ", peer.ToString(),
                  " is expected; is the address right, and did it get its own certificate?");
  }
  // A refusal comes with the server's first word, after the handshake.
  char byte = 0;
  size_t count = 0;
  switch (session.Read(absl::MakeSpan(&byte, 1), &count, deadline)) {
    case Outcome::kRefused:
      return StrCat("it refuses the certificate in ", files.certificate, " (", session.reason(),
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

bool AwaitReady(int descriptor, short events, absl::Time deadline, int stop) {
  const absl::Duration left = std::max(deadline - absl::Now(), absl::ZeroDuration());
  // A negative descriptor is passed over.
  pollfd ready[] = {{.fd = descriptor, .events = events, .revents = 0},
                    {.fd = stop, .events = POLLIN, .revents = 0}};
  return poll(ready, 2, static_cast<int>(absl::ToInt64Milliseconds(left))) > 0 &&
         ready[1].revents == 0;
}

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
  using Outcome = TlsSession::Outcome;
  deadline = std::min(deadline, absl::Now() + kDiagnosis);
  const absl::StatusOr<FileDescriptor> fd = Dial(address, deadline);
  if (!fd.ok()) {
    return "";
  }
  const auto state = credentials.is_secure() ? credentials.watch()->state() : nullptr;
  const absl::StatusOr<TlsContext> context =
      TlsContext::ForClient(state == nullptr ? nullptr : &state->texts);
  if (!context.ok()) {
    return "";  // they were checked, so memory is short
  }
  TlsSession session(*context, fd->get());
  const Outcome outcome = session.Connect(deadline);
  if (!credentials.is_secure()) {
    return outcome == Outcome::kDone || outcome == Outcome::kRefused
               ? StrCat("it speaks TLS, and this process plaintext; give ", kTlsFlags)
               : "";
  }
  const bool speaks_tls = outcome == Outcome::kDone || outcome == Outcome::kRefused;
  if (speaks_tls && absl::Now() > state->facts.not_after) {
    return StrCat("the certificate of this process, ", credentials.watch()->files().certificate,
                  ", has expired; renew it");
  }
  switch (outcome) {
    case Outcome::kDone:
      return DiagnoseTls(session, *credentials.watch(), peer, deadline);
    case Outcome::kRefused:
      return StrCat("it refuses the TLS handshake (", session.reason(), ")");
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
