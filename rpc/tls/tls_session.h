// One TLS connection over a non-blocking socket, and its configuration.
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

// The shared configuration of connections of one kind. Immutable.
class TlsContext {
 public:
  // For a server that requires a certificate of the authorities from each caller. Errors of UseTls;
  // RESOURCE_EXHAUSTED if there is no memory left.
  static absl::StatusOr<TlsContext> ForServer(const TlsTexts& texts);
  // For a client that speaks HTTP/2 and accepts any server's certificate; CheckPeer checks it
  // afterwards. It presents a certificate if `texts` is not null. Errors as above.
  static absl::StatusOr<TlsContext> ForClient(const TlsTexts* texts);

  ssl_ctx_st* get() const { return context_.get(); }

 private:
  struct Free {
    void operator()(ssl_ctx_st* context) const;
  };

  explicit TlsContext(ssl_ctx_st* context) : context_(context) {}

  std::unique_ptr<ssl_ctx_st, Free> context_;
};

// OpenSSL reads and writes memory, and this class the socket, because OpenSSL's own writes to a
// socket may end the process with SIGPIPE. Each call blocks until it is done, at most until its
// deadline or until the stop descriptor is readable. A call that ended with kTimeout continues
// where it stopped when it is repeated; a deadline in the past therefore never blocks. For one
// thread at a time.
//
//   TlsSession session(*TlsContext::ForClient(&texts), socket);
//   if (session.Connect(deadline) == TlsSession::Outcome::kDone) session.Write("hello", deadline);
class TlsSession {
 public:
  // kEnded: the peer closed the connection. kRefused: the peer sent an alert, or no common protocol
  // exists; reason() explains. kNotTls: the peer's bytes are not TLS. kTimeout: the deadline has
  // passed, or the stop descriptor is readable.
  enum class Outcome { kDone, kEnded, kRefused, kNotTls, kTimeout };

  // Owns neither the socket nor `stop`, which may be negative for none; both must outlive the
  // session.
  TlsSession(const TlsContext& context, int socket, int stop = -1);

  Outcome Accept(absl::Time deadline);
  Outcome Connect(absl::Time deadline);
  // Reads at least one byte; sets `count` to the number.
  Outcome Read(absl::Span<char> buffer, size_t* count, absl::Time deadline);
  // Writes all of `text`: kDone when the socket has accepted it. Otherwise the session keeps the
  // accepted text (has_unsent) for Flush.
  Outcome Write(std::string_view text, absl::Time deadline);
  // Sends bytes that the socket has not accepted yet; returns false if some are left.
  bool Flush(absl::Time deadline);
  bool has_unsent() const { return sent_bytes_ < unsent_.size(); }
  // Returns false after a write found that the peer is gone.
  bool is_open() const { return is_open_; }
  // Sends the end of the session (close_notify).
  void End(absl::Time deadline);

  // Returns OpenSSL's reason for the last call that was not done.
  const std::string& reason() const { return reason_; }
  // For ReadPeerCertificate and CheckPeer.
  const ssl_st* ssl() const { return ssl_.get(); }

 private:
  struct Free {
    void operator()(ssl_st* connection) const;
  };

  // Repeats a step of OpenSSL's until it needs nothing more from the peer.
  Outcome Drive(absl::FunctionRef<int()> step, absl::Time deadline);
  // Passes the peer's bytes to OpenSSL; returns false if the peer is gone.
  bool Fill();

  const int socket_;
  const int stop_;
  const std::unique_ptr<ssl_st, Free> ssl_;
  std::string unsent_;  // OpenSSL's output; the socket accepted sent_bytes_ of it
  size_t sent_bytes_ = 0;
  bool is_open_ = true;
  int first_byte_ = -1;  // the peer's first byte; negative if none
  std::string reason_;
};

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_TLS_TLS_SESSION_H_
