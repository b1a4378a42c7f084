// Reads and checks the TLS certificates of a process and of its trusted authorities. Also makes the
// certificates of a test authority.
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

// Paths of PEM files. Either all three are set, or none.
struct TlsFiles {
  std::string certificate;  // the process's certificate, and intermediates up to an authority
  std::string private_key;
  std::string authorities;  // authorities that sign the certificates of peers and of this process

  bool empty() const { return certificate.empty() && private_key.empty() && authorities.empty(); }
  bool complete() const {
    return !certificate.empty() && !private_key.empty() && !authorities.empty();
  }
  friend auto operator<=>(const TlsFiles&, const TlsFiles&) = default;
};

// Requires all three files or none. INVALID_ARGUMENT names the missing flags: --tls-cert, --tls-key
// or --tls-ca.
absl::Status CheckComplete(const TlsFiles& files);

// The contents of TlsFiles, as PEM texts.
struct TlsTexts {
  std::string certificate;
  std::string private_key;
  std::string authorities;

  friend bool operator==(const TlsTexts&, const TlsTexts&) = default;
};

// Reads a file that contains `what`, such as "the authority's key". Errors name the path and
// `what`: NOT_FOUND, PERMISSION_DENIED, ... of FileError; INVALID_ARGUMENT (BAD_FILE) for a file
// that is not regular or is over 1 MiB.
absl::StatusOr<std::string> ReadPemFile(const std::string& path, std::string_view what);
// Errors: those of ReadPemFile.
absl::StatusOr<TlsTexts> ReadTlsFiles(const TlsFiles& files);

// The statements of a certificate about its owner.
struct CertificateFacts {
  PeerName name;
  absl::Time not_before;
  absl::Time not_after;
};

// Checks that `texts`, which were read from `files`, are usable at `now`. Each error names the
// file, the fault and the remedy:
// clang-format off
//   INVALID_ARGUMENT (BAD_FILE)  A text is not PEM. The key has a passphrase or does not belong to
//                                the certificate. No given authority signed the certificate. The
//                                certificate is not for TLS clients (or, for a coordinator or
//                                worker, not for servers). The certificate has no name of
//                                PeerName's form, or several.
//   FAILED_PRECONDITION          The certificate, or that of an authority above it, is not valid
//                                yet or is no longer valid.
// clang-format on
absl::StatusOr<CertificateFacts> CheckTls(const TlsFiles& files, const TlsTexts& texts,
                                          absl::Time now);

// Sets up `context`: its connections present the certificate and its intermediates, prove that they
// own the key, and trust the authorities. Servers also send the authorities' names to clients.
// Errors: those of CheckTls, for texts that CheckTls would refuse.
absl::Status UseTls(const TlsTexts& texts, ssl_ctx_st* context);

// Returns the facts of the peer's certificate. NOT_FOUND: the peer presented no certificate. Other
// errors: those of ReadCertificate, such as for a certificate without a name.
absl::StatusOr<CertificateFacts> ReadPeerCertificate(const ssl_st* connection);

// Checks that this process trusts the certificates that the server presented, and that they are
// valid at `now`. Errors:
// clang-format off
//   FAILED_PRECONDITION  A certificate is not valid yet or is no longer valid; the message names
//                        the certificate.
//   INVALID_ARGUMENT     The certificates do not lead to an authority; the message is OpenSSL's
//                        reason.
// clang-format on
absl::Status CheckPeer(const ssl_st* connection, absl::Time now);

// A certificate with its key, as PEM texts.
struct KeyPair {
  std::string certificate;
  std::string private_key;
};

// Certificates become valid this long before they are made, for hosts whose clocks lag.
inline constexpr absl::Duration kClockSkew = absl::Minutes(5);

// Returns a new authority with a P-256 key. Its certificate is valid from kClockSkew before `now`
// to `not_after`. Only for trials and tests, because the authority's key lies in a file.
absl::StatusOr<KeyPair> MakeAuthority(absl::Time now, absl::Time not_after);

struct CertificateRequest {
  PeerName name;
  // Further names, for tools that verify the host: host names and IP addresses. MakeCertificate
  // returns INVALID_ARGUMENT for other text.
  std::vector<std::string> hosts;
  absl::Time not_before;
  absl::Time not_after;  // at most the not_after of the authority's certificate
};

// Returns a new P-256 key, with a certificate that `authority` signs.
absl::StatusOr<KeyPair> MakeCertificate(const KeyPair& authority,
                                        const CertificateRequest& request);

// Returns the certificate in `bundle` (PEM) that belongs to the key; NOT_FOUND if there is none.
absl::StatusOr<std::string> FindCertificateOf(std::string_view private_key,
                                              std::string_view bundle);
// Returns the facts of the first certificate in a PEM text. Makes none of the checks of CheckTls.
absl::StatusOr<CertificateFacts> ReadCertificate(std::string_view text);
// Returns the time at which the first certificate in a PEM text expires. Accepts also a certificate
// without a name, such as an authority's.
absl::StatusOr<absl::Time> ReadExpiry(std::string_view text);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_TLS_CERTIFICATE_H_
