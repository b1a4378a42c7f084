// One TLS connection over a non-blocking socket, and the configuration of such connections.
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

// The configuration that connections of one kind share. Immutable.
class TlsContext {
 public:
  // Returns the configuration of a server that requires a certificate of the authorities from each
  // client. Errors: those of UseTls. RESOURCE_EXHAUSTED: no memory is left.
  static absl::StatusOr<TlsContext> ForServer(const TlsTexts& texts);
  // Returns the configuration of a client that offers HTTP/2 and accepts any server's certificate.
  // The caller checks that certificate afterwards with CheckPeer. The client presents a certificate
  // if `texts` is not null. Errors as in ForServer.
  static absl::StatusOr<TlsContext> ForClient(const TlsTexts* texts);

  ssl_ctx_st* get() const { return context_.get(); }

 private:
  struct Free {
    void operator()(ssl_ctx_st* context) const;
  };

  explicit TlsContext(ssl_ctx_st* context) : context_(context) {}

  std::unique_ptr<ssl_ctx_st, Free> context_;
};

// A TLS connection. OpenSSL reads and writes only memory, and this class reads and writes the
// socket: OpenSSL's own writes to a socket may end the process with SIGPIPE. Each call blocks until
// it is done, but at most until its deadline or until the stop descriptor is readable. After
// kTimeout, the same call continues where it stopped. With a deadline in the past, calls never
// block. For one thread at a time.
//
//   TlsSession session(*TlsContext::ForClient(&texts), socket);
//   if (session.Connect(deadline) == TlsSession::Outcome::kDone) session.Write("hello", deadline);
class TlsSession {
 public:
  // kDone: the call has done its work. kEnded: the peer closed the connection. kRefused: the peer
  // sent an alert, or both sides have no protocol in common; reason() has the details. kNotTls: the
  // peer's bytes are not TLS. kTimeout: the deadline has passed, or the stop descriptor is
  // readable.
  enum class Outcome { kDone, kEnded, kRefused, kNotTls, kTimeout };

  // Uses `socket`, and stops when `stop` is readable (negative: never). The caller owns both
  // descriptors, which must outlive the session.
  TlsSession(const TlsContext& context, int socket, int stop = -1);

  Outcome Accept(absl::Time deadline);
  Outcome Connect(absl::Time deadline);
  // Reads at least one byte. Sets `*count` to the number of bytes.
  Outcome Read(absl::Span<char> buffer, size_t* count, absl::Time deadline);
  // Writes all of `text`. kDone: the socket has accepted all bytes. With any other outcome, the
  // session keeps the part of `text` that it has encrypted but not sent (has_unsent), for Flush.
  Outcome Write(std::string_view text, absl::Time deadline);
  // Sends bytes that the socket has not accepted yet. Returns false if some of them are left.
  bool Flush(absl::Time deadline);
  bool has_unsent() const { return sent_bytes_ < unsent_.size(); }
  // Whether the connection is open: no write has found that the peer is gone.
  bool is_open() const { return is_open_; }
  // Sends the end of the session (close_notify).
  void End(absl::Time deadline);

  // Returns OpenSSL's reason why the last call was not done.
  const std::string& reason() const { return reason_; }
  // Returns OpenSSL's connection, for ReadPeerCertificate and CheckPeer.
  const ssl_st* ssl() const { return ssl_.get(); }

 private:
  struct Free {
    void operator()(ssl_st* connection) const;
  };

  // Repeats a step of OpenSSL, and exchanges bytes with the peer, until the step is done or fails.
  Outcome Drive(absl::FunctionRef<int()> step, absl::Time deadline);
  // Reads the peer's bytes from the socket into OpenSSL. Returns false if the peer is gone.
  bool Fill();

  const int socket_;
  const int stop_;
  const std::unique_ptr<ssl_st, Free> ssl_;
  std::string unsent_;  // OpenSSL's output; the socket has accepted its first sent_bytes_ bytes
  size_t sent_bytes_ = 0;
  bool is_open_ = true;
  int first_byte_ = -1;  // the peer's first byte; negative: none has come
  std::string reason_;
};

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_TLS_TLS_SESSION_H_
