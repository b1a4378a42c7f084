// Makes plain connections, and as much of a TLS handshake as a diagnosis needs.
#include "rpc/tls/dial.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "process/host_port.h"
#include "process/steady_deadline.h"
#include "rpc/tls/certificate.h"
#include "rpc/tls/certificate_watch.h"
#include "rpc/tls/tls_session.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {
namespace {

// Time limit for the diagnosis of a connection.
constexpr absl::Duration kDiagnosis = absl::Seconds(1);

constexpr std::string_view kTlsFlags = "--tls-cert, --tls-key and --tls-ca";

struct SocketAddress {
  sockaddr_storage bytes = {};
  socklen_t size = 0;
};
using SocketAddresses = std::vector<SocketAddress>;

// Returns the addresses of a host, each once. Errors: those of Dial.
absl::StatusOr<SocketAddresses> Resolve(std::string_view address) {
  if (IsUnixAddress(address)) {
    return absl::UnimplementedError("a unix socket is not dialled");
  }
  SHARDMESH_ASSIGN_OR_RETURN(const HostPort parsed, ParseHostPort(address));
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(parsed.host.c_str(), StrCat(parsed.port).c_str(), &hints, &found);
  if (error == EAI_AGAIN) {
    return absl::UnavailableError("no name server answers");
  }
  if (error == EAI_NONAME || error == EAI_NODATA || error == EAI_ADDRFAMILY) {
    return absl::NotFoundError(StrCat("no host \"", parsed.host, "\" is known"));
  }
  if (error != 0) {
    return absl::UnavailableError(
        StrCat("\"", parsed.host, "\" cannot be looked up: ",
               error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error)));
  }
  const absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  SocketAddresses addresses;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    SocketAddress next{.size = each->ai_addrlen};
    std::memcpy(&next.bytes, each->ai_addr, each->ai_addrlen);
    const bool is_known =
        std::any_of(addresses.begin(), addresses.end(), [&](const SocketAddress& other) {
          return other.size == next.size && std::memcmp(&other.bytes, &next.bytes, next.size) == 0;
        });
    if (!is_known) addresses.push_back(next);
  }
  return addresses;
}

// Returns the address as text, such as `10.0.0.7:7070` or `[::1]:7070`.
std::string TextOf(const SocketAddress& address) {
  char host[NI_MAXHOST] = {};
  char port[NI_MAXSERV] = {};
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address.bytes), address.size, host,
                  sizeof(host), port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "(unknown)";
  }
  return address.bytes.ss_family == AF_INET6 ? StrCat("[", host, "]:", port)
                                             : StrCat(host, ":", port);
}

// An attempt to connect to one address, or its outcome.
struct Attempt {
  enum State { kPending, kAccepts, kRefuses };
  FileDescriptor socket;
  State state = kPending;
};

// Starts an attempt for each address, in the order of the addresses.
std::vector<Attempt> Begin(const SocketAddresses& addresses) {
  std::vector<Attempt> attempts;
  for (const SocketAddress& to : addresses) {
    Attempt& attempt = attempts.emplace_back();
    attempt.socket =
        FileDescriptor(socket(to.bytes.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const bool accepts =
        attempt.socket.valid() &&
        connect(attempt.socket.get(), reinterpret_cast<const sockaddr*>(&to.bytes), to.size) == 0;
    const bool is_pending = attempt.socket.valid() && !accepts && errno == EINPROGRESS;
    attempt.state = accepts      ? Attempt::kAccepts
                    : is_pending ? Attempt::kPending
                                 : Attempt::kRefuses;
  }
  return attempts;
}

// Polls until `end`, which may be later than one call of poll can wait. Continues after a signal.
int PollUntil(absl::Span<pollfd> descriptors, const SteadyDeadline& end) {
  constexpr int kLongest = std::numeric_limits<int>::max();
  while (true) {
    const auto left =
        static_cast<int>(std::min<int64_t>(absl::ToInt64Milliseconds(end.left()), kLongest));
    const int ready = poll(descriptors.data(), descriptors.size(), left);
    const bool goes_on = ready < 0 ? errno == EINTR : ready == 0 && left == kLongest;
    if (!goes_on) return ready;
  }
}

// Waits until all attempts have ended; with `first_is_enough`, only until one attempt is accepted.
// Waits at most until `deadline`.
void Await(std::vector<Attempt>& attempts, absl::Time deadline, bool first_is_enough) {
  const auto end = SteadyDeadline::At(deadline);
  while (true) {
    std::vector<pollfd> pending;
    std::vector<Attempt*> of_pending;
    for (Attempt& attempt : attempts) {
      if (attempt.state == Attempt::kAccepts && first_is_enough) return;
      if (attempt.state != Attempt::kPending) continue;
      pending.push_back({.fd = attempt.socket.get(), .events = POLLOUT, .revents = 0});
      of_pending.push_back(&attempt);
    }
    if (pending.empty() || PollUntil(absl::MakeSpan(pending), end) <= 0) return;
    for (size_t i = 0; i < pending.size(); ++i) {
      if (pending[i].revents == 0) continue;
      int error = 0;
      socklen_t size = sizeof(error);
      const bool accepts =
          getsockopt(pending[i].fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
      of_pending[i]->state = accepts ? Attempt::kAccepts : Attempt::kRefuses;
    }
  }
}

// Returns why a TLS server, with which the handshake succeeded, does not fit this TLS client; empty
// if no fault is found.
std::string DiagnoseTls(TlsSession& session, const CertificateWatch& watch,
                        const ExpectedPeer& peer, absl::Time deadline) {
  using Outcome = TlsSession::Outcome;
  const TlsFiles& files = watch.files();
  const absl::Status fault = CheckPeer(session.ssl(), absl::Now());
  if (absl::IsFailedPrecondition(fault)) {
    return StrCat(std::string(fault.message()),
                  "; renew it there, and check the clocks of both hosts");
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
    return StrCat(
        "its certificate is that of ", facts->name.ToUri(), ", and ", peer.ToString(),
        " is expected; is the address right, and does that process have its own certificate?");
  }
  // A server's refusal of the client's certificate arrives only after the handshake, with the
  // server's first bytes.
  char byte = 0;
  size_t count = 0;
  switch (session.Read(absl::MakeSpan(&byte, 1), &count, deadline)) {
    case Outcome::kRefused:
      return StrCat("it refuses the certificate in ", files.certificate, " (", session.reason(),
                    "); both sides need unexpired certificates of one authority");
    case Outcome::kEnded:
      return StrCat("it ends the connection after it has received the certificate in ",
                    files.certificate,
                    "; it probably trusts another authority: both sides need unexpired "
                    "certificates of one authority");
    case Outcome::kDone:
    case Outcome::kNotTls:
    case Outcome::kTimeout:
      break;
  }
  return "";
}

}  // namespace

bool AwaitReady(int descriptor, short events, absl::Time deadline, int stop) {
  // poll ignores a negative descriptor, so `stop` may be negative.
  pollfd ready[] = {{.fd = descriptor, .events = events, .revents = 0},
                    {.fd = stop, .events = POLLIN, .revents = 0}};
  return PollUntil(absl::MakeSpan(ready), SteadyDeadline::At(deadline)) > 0 &&
         ready[1].revents == 0;
}

absl::StatusOr<FileDescriptor> Dial(std::string_view address, absl::Time deadline) {
  SHARDMESH_ASSIGN_OR_RETURN(const SocketAddresses addresses, Resolve(address));
  std::vector<Attempt> attempts = Begin(addresses);
  Await(attempts, deadline, /*first_is_enough=*/true);
  for (Attempt& attempt : attempts) {
    if (attempt.state == Attempt::kAccepts) return std::move(attempt.socket);
  }
  return absl::UnavailableError(StrCat("no process accepts connections at ", address));
}

DialledAddresses DialEach(std::string_view address, absl::Time deadline) {
  DialledAddresses dialled;
  const absl::StatusOr<SocketAddresses> addresses = Resolve(address);
  if (!addresses.ok() || addresses->size() < 2) return dialled;
  std::vector<Attempt> attempts = Begin(*addresses);
  Await(attempts, deadline, /*first_is_enough=*/false);
  for (size_t i = 0; i < attempts.size(); ++i) {
    const Attempt::State state = attempts[i].state;
    (state == Attempt::kAccepts   ? dialled.accepting
     : state == Attempt::kRefuses ? dialled.refusing
                                  : dialled.silent)
        .push_back(TextOf((*addresses)[i]));
  }
  return dialled;
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
    return "";  // the texts were checked before, so memory is exhausted
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
      return StrCat("it ends the connection at the TLS handshake, as a process without ", kTlsFlags,
                    " does; start that process with them, or leave them out here");
    case Outcome::kTimeout:
      break;
  }
  return "";
}

}  // namespace shardmesh::rpc
