// One TLS connection over a socket that does not block, and what it is made with.
#ifndef SHARDMESH_RPC_TLS_TLS_SESSION_H_
#define SHARDMESH_RPC_TLS_TLS_SESSION_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "rpc/tls/certificate.h"

namespace shardmesh::rpc {

// What connections of one kind have in common. Immutable.
class TlsContext {
 public:
  // Of a server that asks each caller for a certificate of the authorities. Errors of UseTls;
  // RESOURCE_EXHAUSTED if there is no memory left.
  static absl::StatusOr<TlsContext> ForServer(const TlsTexts& texts);
  // Of a client that speaks HTTP/2 and takes any server's certificate; CheckPeer judges it
  // afterwards. It shows a certificate if `texts` is not null. Errors as above.
  static absl::StatusOr<TlsContext> ForClient(const TlsTexts* texts);

  ssl_ctx_st* get() const { return context_.get(); }

 private:
  struct Free {
    void operator()(ssl_ctx_st* context) const;
  };

  explicit TlsContext(ssl_ctx_st* context) : context_(context) {}

  std::unique_ptr<ssl_ctx_st, Free> context_;
};

// OpenSSL reads and writes memory, and this the socket: OpenSSL's own writes to a socket may end
// the process with SIGPIPE. Each call blocks until it is done, at most until its deadline or until
// the stop descriptor is readable. One that ended with kTimeout goes on where it stopped when it is
// called again; a deadline in the past thus never blocks. For one thread at a time.
//
//   TlsSession session(*TlsContext::ForClient(&texts), socket);
//   if (session.Connect(deadline) == TlsSession::Outcome::kDone) session.Write("hello", deadline);
class TlsSession {
 public:
  // kEnded: the other side has gone. kRefused: by an alert, or since nothing in common is spoken;
  // reason() says why. kNotTls: what it speaks is not TLS. kTimeout: the deadline has passed, or
  // the stop descriptor is readable.
  enum class Outcome { kDone, kEnded, kRefused, kNotTls, kTimeout };

  // Owns neither the socket nor `stop`, which may be negative for none; both outlive it.
  TlsSession(const TlsContext& context, int socket, int stop = -1);

  Outcome Accept(absl::Time deadline);
  Outcome Connect(absl::Time deadline);
  // At least one byte, of which `count` tells how many.
  Outcome Read(absl::Span<char> buffer, size_t* count, absl::Time deadline);
  // All of it: kDone when the socket has taken it. Otherwise the session keeps what it took
  // (has_unsent) for Flush.
  Outcome Write(std::string_view text, absl::Time deadline);
  // Sends what the socket has not taken yet; false if some is left.
  bool Flush(absl::Time deadline);
  bool has_unsent() const { return sent_bytes_ < unsent_.size(); }
  // False once a write found that the other side has gone.
  bool is_open() const { return is_open_; }
  // Says that nothing follows.
  void End(absl::Time deadline);

  // What OpenSSL says of the last call that was not done.
  const std::string& reason() const { return reason_; }
  // For ReadPeerCertificate and CheckPeer.
  const ssl_st* ssl() const { return ssl_.get(); }

 private:
  struct Free {
    void operator()(ssl_st* connection) const;
  };

  // Repeats a step of OpenSSL's until it needs nothing more from the other side.
  Outcome Drive(absl::FunctionRef<int()> step, absl::Time deadline);
  // Hands on what the other side says; false if it has gone.
  bool Fill();

  const int socket_;
  const int stop_;
  const std::unique_ptr<ssl_st, Free> ssl_;
  std::string unsent_;  // of what OpenSSL has to say; the socket took sent_bytes_ of it
  size_t sent_bytes_ = 0;
  bool is_open_ = true;
  int first_byte_ = -1;  // that the other side said; negative if none
  std::string reason_;
};

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_TLS_TLS_SESSION_H_
