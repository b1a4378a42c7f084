// Moves bytes between OpenSSL's memory and the socket.
#include "rpc/tls/tls_session.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "rpc/tls/dial.h"
#include "status/status_macros.h"

namespace shardmesh::rpc {
namespace {

// A TLS record begins with one byte for its type. The two constants are the lowest and the highest
// type.
constexpr int kFirstRecordType = 0x14;
constexpr int kLastRecordType = 0x17;

// Maximum number of bytes that are written at once: the size of the largest TLS record.
constexpr size_t kPieceBytes = size_t{16} << 10;

absl::Status NoMemory() {
  ERR_clear_error();
  return absl::ResourceExhaustedError("there is no memory left to set up TLS");
}

}  // namespace

void TlsContext::Free::operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
void TlsSession::Free::operator()(SSL* connection) const { SSL_free(connection); }

absl::StatusOr<TlsContext> TlsContext::ForServer(const TlsTexts& texts) {
  TlsContext context(SSL_CTX_new(TLS_server_method()));
  if (context.get() == nullptr) {
    return NoMemory();
  }
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SHARDMESH_RETURN_IF_ERROR(UseTls(texts, context.get()));
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  // No session resumption: each connection must present the client's certificate again.
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_TICKET);
  return context;
}

absl::StatusOr<TlsContext> TlsContext::ForClient(const TlsTexts* texts) {
  TlsContext context(SSL_CTX_new(TLS_client_method()));
  if (context.get() == nullptr) {
    return NoMemory();
  }
  if (texts != nullptr) {
    SHARDMESH_RETURN_IF_ERROR(UseTls(*texts, context.get()));
  }
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_NONE, nullptr);
  static constexpr unsigned char kHttp2[] = {2, 'h', '2'};
  SSL_CTX_set_alpn_protos(context.get(), kHttp2, sizeof(kHttp2));
  return context;
}

TlsSession::TlsSession(const TlsContext& context, int socket, int stop)
    : socket_(socket), stop_(stop), ssl_(SSL_new(context.get())) {
  SSL_set_bio(ssl_.get(), BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
}

TlsSession::Outcome TlsSession::Accept(absl::Time deadline) {
  return Drive([this] { return SSL_accept(ssl_.get()); }, deadline);
}

TlsSession::Outcome TlsSession::Connect(absl::Time deadline) {
  return Drive([this] { return SSL_connect(ssl_.get()); }, deadline);
}

TlsSession::Outcome TlsSession::Read(absl::Span<char> buffer, size_t* count, absl::Time deadline) {
  return Drive([&] { return SSL_read_ex(ssl_.get(), buffer.data(), buffer.size(), count); },
               deadline);
}

TlsSession::Outcome TlsSession::Write(std::string_view text, absl::Time deadline) {
  for (; !text.empty(); text.remove_prefix(std::min(text.size(), kPieceBytes))) {
    const std::string_view piece = text.substr(0, kPieceBytes);
    size_t taken = 0;
    const Outcome outcome = Drive(
        [&] { return SSL_write_ex(ssl_.get(), piece.data(), piece.size(), &taken); }, deadline);
    if (outcome != Outcome::kDone) {
      return outcome;
    }
    if (has_unsent()) {
      return Outcome::kEnded;  // the socket did not accept all bytes
    }
  }
  return Outcome::kDone;
}

void TlsSession::End(absl::Time deadline) {
  SSL_shutdown(ssl_.get());
  Flush(deadline);
  ERR_clear_error();
  shutdown(socket_, SHUT_WR);
}

TlsSession::Outcome TlsSession::Drive(absl::FunctionRef<int()> step, absl::Time deadline) {
  for (;;) {
    ERR_clear_error();
    const int result = step();
    const int error = SSL_get_error(ssl_.get(), result);
    const char* const text = ERR_reason_error_string(ERR_peek_error());
    reason_ = text == nullptr ? "unknown" : text;
    ERR_clear_error();
    // Even if the socket accepts no more bytes, continue: the peer's last bytes can still be read.
    Flush(deadline);
    if (result > 0) {
      return Outcome::kDone;
    }
    if (error == SSL_ERROR_WANT_READ) {
      if (!AwaitReady(socket_, POLLIN, deadline, stop_)) {
        return Outcome::kTimeout;
      }
      if (!Fill()) {
        return Outcome::kEnded;
      }
      continue;
    }
    if (error != SSL_ERROR_SSL) {
      return Outcome::kEnded;
    }
    return first_byte_ >= kFirstRecordType && first_byte_ <= kLastRecordType ? Outcome::kRefused
                                                                             : Outcome::kNotTls;
  }
}

bool TlsSession::Flush(absl::Time deadline) {
  BIO* const out = SSL_get_wbio(ssl_.get());
  char* data = nullptr;
  if (const auto size = static_cast<size_t>(BIO_get_mem_data(out, &data)); size > 0) {
    unsent_.append(data, size);
    BIO_reset(out);
  }
  while (has_unsent()) {
    const ssize_t sent =
        send(socket_, unsent_.data() + sent_bytes_, unsent_.size() - sent_bytes_, MSG_NOSIGNAL);
    if (sent >= 0) {
      sent_bytes_ += static_cast<size_t>(sent);
    } else if (errno != EINTR && errno != EAGAIN) {
      is_open_ = false;
      return false;
    } else if (errno == EAGAIN && !AwaitReady(socket_, POLLOUT, deadline, stop_)) {
      return false;
    }
  }
  unsent_.clear();
  sent_bytes_ = 0;
  return true;
}

bool TlsSession::Fill() {
  char buffer[4096];
  const ssize_t count = recv(socket_, buffer, sizeof(buffer), 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
    return true;
  }
  if (count > 0 && first_byte_ < 0) {
    first_byte_ = static_cast<unsigned char>(buffer[0]);
  }
  return count > 0 && BIO_write(SSL_get_rbio(ssl_.get()), buffer, static_cast<int>(count)) > 0;
}

}  // namespace shardmesh::rpc
