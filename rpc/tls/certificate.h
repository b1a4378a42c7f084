// Certificates: what a process shows in TLS and whom it trusts, read from files and checked; and
// the making of a test authority's.
#ifndef SHARDMESH_RPC_TLS_CERTIFICATE_H_
#define SHARDMESH_RPC_TLS_CERTIFICATE_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "rpc/tls/peer_name.h"

struct ssl_ctx_st;  // OpenSSL's SSL_CTX
struct ssl_st;      // ... and SSL

namespace shardmesh::rpc {

// Paths of PEM files; all three or none.
struct TlsFiles {
  std::string certificate;  // this process's, and those between it and the authority
  std::string private_key;
  std::string authorities;  // who may have signed the certificates of peers, and of this process

  bool empty() const { return certificate.empty() && private_key.empty() && authorities.empty(); }
  bool complete() const {
    return !certificate.empty() && !private_key.empty() && !authorities.empty();
  }
  friend auto operator<=>(const TlsFiles&, const TlsFiles&) = default;
};

// OK for all three files or none; INVALID_ARGUMENT names what is missing, as the flags --tls-cert,
// --tls-key and --tls-ca.
absl::Status CheckComplete(const TlsFiles& files);

// The same as PEM texts.
struct TlsTexts {
  std::string certificate;
  std::string private_key;
  std::string authorities;

  friend bool operator==(const TlsTexts&, const TlsTexts&) = default;
};

// A file with `what`, such as "the authority's key". Errors name both: NOT_FOUND,
// PERMISSION_DENIED, ... of FileError; INVALID_ARGUMENT (BAD_FILE) for one that is no regular file
// or over 1 MiB.
absl::StatusOr<std::string> ReadPemFile(const std::string& path, std::string_view what);
// Errors of ReadPemFile.
absl::StatusOr<TlsTexts> ReadTlsFiles(const TlsFiles& files);

// What a certificate says of its owner.
struct CertificateFacts {
  PeerName name;
  absl::Time not_before;
  absl::Time not_after;
};

// Whether `texts`, which came from `files`, can be used at `now`. Each error names the file, what
// is wrong with it and what to do:
//   INVALID_ARGUMENT (BAD_FILE)  a text does not read as PEM, the key is locked by a passphrase or
//                                does not belong to the certificate, the certificate was not signed
//                                by one of the authorities, is not for TLS clients (or, of a
//                                coordinator or worker, servers), or bears no name as PeerName has,
//                                or several
//   FAILED_PRECONDITION          the certificate, or that of an authority above it, is not valid
//                                yet, or no more
absl::StatusOr<CertificateFacts> CheckTls(const TlsFiles& files, const TlsTexts& texts,
                                          absl::Time now);

// Has connections of `context` show the certificate, with those between it and the authority, prove
// it by the key, and trust the authorities; of servers also name them to callers. Errors of
// CheckTls for texts that it would not take.
absl::Status UseTls(const TlsTexts& texts, ssl_ctx_st* context);

// The facts of the certificate that the other side of a connection has shown; NOT_FOUND if it has
// shown none, errors of ReadCertificate for one without a name.
absl::StatusOr<CertificateFacts> ReadPeerCertificate(const ssl_st* connection);

// Whether the certificate that the server at the other end of a connection has shown, and those
// above it, are trusted by this one and valid at `now`:
//   FAILED_PRECONDITION  one of them is not valid yet, or no more; the message says which
//   INVALID_ARGUMENT     they do not lead to an authority; the message is OpenSSL's reason
absl::Status CheckPeer(const ssl_st* connection, absl::Time now);

// A certificate with its key, as PEM texts.
struct KeyPair {
  std::string certificate;
  std::string private_key;
};

// How long before they are made certificates are valid, for clocks that lag.
inline constexpr absl::Duration kClockSkew = absl::Minutes(5);

// A new authority of P-256 whose certificate is valid from kClockSkew before `now` to `not_after`.
// For trying out and for tests: its key lies in a file.
absl::StatusOr<KeyPair> MakeAuthority(absl::Time now, absl::Time not_after);

struct CertificateRequest {
  PeerName name;
  // Further names, for tools that compare them with where they connect: host names and IP
  // addresses. INVALID_ARGUMENT for what is neither.
  std::vector<std::string> hosts;
  absl::Time not_before;
  absl::Time not_after;  // never later than the authority's own
};

// A new key of P-256, and a certificate for it that `authority` signs.
absl::StatusOr<KeyPair> MakeCertificate(const KeyPair& authority,
                                        const CertificateRequest& request);

// Of the certificates in `bundle` (PEM) the one that belongs to the key; NOT_FOUND if none does.
absl::StatusOr<std::string> FindCertificateOf(std::string_view private_key,
                                              std::string_view bundle);
// The facts of the first certificate in a PEM text; unlike CheckTls it checks nothing but that.
absl::StatusOr<CertificateFacts> ReadCertificate(std::string_view text);
// When the first certificate in a PEM text ends, also of one without a name, as authorities have.
absl::StatusOr<absl::Time> ReadExpiry(std::string_view text);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_TLS_CERTIFICATE_H_
