// Reads, checks and makes certificates with OpenSSL.
#include "rpc/tls/certificate.h"

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "process/clock.h"
#include "process/file.h"
#include "process/random_bytes.h"
#include "rpc/tls/openssl_owned.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{1} << 20;

// Frees a stack, but not its certificates, which other objects own.
void FreeStack(STACK_OF(X509) * stack) { sk_X509_free(stack); }

using Bio = OpensslOwned<BIO, BIO_free_all>;
using Key = OpensslOwned<EVP_PKEY, EVP_PKEY_free>;
using Certificate = OpensslOwned<X509, X509_free>;
using Chain = OpensslOwned<STACK_OF(X509), FreeStack>;

Bio OpenText(std::string_view text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// Returns OpenSSL's last error on this thread, and clears it.
std::string LastError() {
  const unsigned long error = ERR_peek_last_error();
  ERR_clear_error();
  const char* const reason = ERR_reason_error_string(error);
  return reason == nullptr ? "unknown error" : reason;
}

absl::Status BadFile(std::string_view file, std::string_view what) {
  return WithReason(absl::InvalidArgumentError(StrCat(file, " ", what)), Reason::kBadFile,
                    {{fact::kFile, file}});
}

absl::Status Failed(std::string_view what) {
  return absl::InternalError(StrCat("cannot ", what, ": ", LastError()));
}

// Refuses keys with a passphrase: without this function, OpenSSL would ask the user for the
// passphrase. Sets `*asked`.
int NoPassphrase(char* /*buffer*/, int /*size*/, int /*writing*/, void* asked) {
  *static_cast<bool*>(asked) = true;
  return -1;
}

absl::StatusOr<std::vector<Certificate>> ParseCertificates(std::string_view text,
                                                           std::string_view file) {
  ERR_clear_error();
  const Bio bio = OpenText(text);
  std::vector<Certificate> certificates;
  while (X509* certificate = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    certificates.emplace_back(certificate);
  }
  // This error marks the end of the text. Any other error marks a malformed certificate.
  const unsigned long error = ERR_peek_last_error();
  const bool is_end =
      ERR_GET_LIB(error) == ERR_LIB_PEM && ERR_GET_REASON(error) == PEM_R_NO_START_LINE;
  if (!is_end) {
    return BadFile(file, StrCat("is damaged: its certificate ", certificates.size() + 1,
                                " does not read (", LastError(), "); write the file anew"));
  }
  ERR_clear_error();
  if (certificates.empty()) {
    return BadFile(file,
                   "holds no certificate; it must be PEM, with -----BEGIN CERTIFICATE----- before "
                   "each");
  }
  return certificates;
}

absl::StatusOr<Key> ParseKey(std::string_view text, std::string_view file) {
  ERR_clear_error();
  const Bio bio = OpenText(text);
  bool has_passphrase = false;
  Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassphrase, &has_passphrase));
  if (key == nullptr) {
    const std::string error = LastError();
    return BadFile(file, has_passphrase
                             ? std::string("is locked by a passphrase; give the key without one, "
                                           "readable by this process alone")
                             : StrCat("holds no private key that reads (", error,
                                      "); it must be PEM, as -----BEGIN PRIVATE KEY-----"));
  }
  return key;
}

absl::Time TimeOf(const ASN1_TIME* from) {
  std::tm tm = {};
  return ASN1_TIME_to_tm(from, &tm) == 1 ? absl::FromTM(tm, absl::UTCTimeZone())
                                         : absl::InfinitePast();
}

std::string Text(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", time, absl::UTCTimeZone());
}

std::string ToText(const X509_NAME* name) {
  const Bio bio(BIO_new(BIO_s_mem()));
  X509_NAME_print_ex(bio.get(), name, 0, XN_FLAG_ONELINE);
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

// Returns the names in the URIs of the certificate that have PeerName's form.
std::vector<PeerName> PeerNamesOf(const X509* certificate) {
  std::vector<PeerName> found;
  const OpensslOwned<GENERAL_NAMES, GENERAL_NAMES_free> names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) {
      continue;
    }
    const ASN1_IA5STRING* const uri = name->d.uniformResourceIdentifier;
    const std::string_view text(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                                static_cast<size_t>(ASN1_STRING_length(uri)));
    if (std::optional<PeerName> parsed = ParsePeerName(text); parsed.has_value()) {
      found.push_back(*std::move(parsed));
    }
  }
  return found;
}

absl::StatusOr<CertificateFacts> FactsOf(const X509* certificate, std::string_view file) {
  const std::vector<PeerName> names = PeerNamesOf(certificate);
  if (names.size() != 1) {
    return BadFile(file, StrCat("bears ", names.empty() ? "no name" : "several names",
                                " of the form spiffe://shardmesh/ROLE/IDENTITY among its "
                                "alternative names (URI), with ROLE coordinator, worker or client; "
                                "it must bear exactly one, by which peers identify the process"));
  }
  return CertificateFacts{.name = names.front(),
                          .not_before = TimeOf(X509_get0_notBefore(certificate)),
                          .not_after = TimeOf(X509_get0_notAfter(certificate))};
}

// Describes a certificate whose validity ended at `not_after`.
std::string ExpiredText(absl::Time not_after, absl::Time now) {
  return StrCat("expired at ", Text(not_after), ", ", FormatRounded(now - not_after), " ago");
}

// Describes a certificate whose validity begins at `not_before`, which is later than `now`.
std::string NotYetText(absl::Time not_before, absl::Time now) {
  return StrCat("is valid from ", Text(not_before), " on, and the time is ", Text(now),
                "; wait, or check the clock of this host");
}

absl::Status CheckTime(const CertificateFacts& facts, std::string_view file, absl::Time now) {
  if (now < facts.not_before) {
    return absl::FailedPreconditionError(StrCat(file, " ", NotYetText(facts.not_before, now)));
  }
  if (now > facts.not_after) {
    return absl::FailedPreconditionError(
        StrCat(file, " ", ExpiredText(facts.not_after, now),
               "; renew it (`shardmesh certs` does so for those of a test authority)"));
  }
  return absl::OkStatus();
}

// The reason why a certificate chain is not trusted, and the certificate at fault.
struct ChainFault {
  int error = X509_V_ERR_UNSPECIFIED;  // OpenSSL's number
  // Position in the chain: 0 for the process's own certificate, 1 for its signer's, and so on.
  int depth = 0;
  Certificate at;  // the certificate at this depth; null if unknown

  std::string what() const { return X509_verify_cert_error_string(error); }
  bool is_of_time() const {
    return at != nullptr &&
           (error == X509_V_ERR_CERT_HAS_EXPIRED || error == X509_V_ERR_CERT_NOT_YET_VALID);
  }
};

// Checks the chain of certificates from `own` to an authority in `store`. Returns the chain's
// fault; nullopt if the chain is trusted. `purpose`: OpenSSL's name of the purpose that the chain
// must allow; null: any.
std::optional<ChainFault> FindFault(X509_STORE* store, X509* own, STACK_OF(X509) * between,
                                    const char* purpose, absl::Time now) {
  const OpensslOwned<X509_STORE_CTX, X509_STORE_CTX_free> context(X509_STORE_CTX_new());
  ChainFault fault;
  if (X509_STORE_CTX_init(context.get(), store, own, between) == 1) {
    if (purpose != nullptr) {
      X509_STORE_CTX_set_default(context.get(), purpose);
    }
    X509_STORE_CTX_set_time(context.get(), 0, absl::ToTimeT(now));
    if (X509_verify_cert(context.get()) == 1) {
      return std::nullopt;
    }
    fault.error = X509_STORE_CTX_get_error(context.get());
    fault.depth = X509_STORE_CTX_get_error_depth(context.get());
    if (X509* const at = X509_STORE_CTX_get_current_cert(context.get()); at != nullptr) {
      X509_up_ref(at);
      fault.at.reset(at);
    }
  }
  ERR_clear_error();
  return fault;
}

absl::Status CheckSigned(absl::Span<const Certificate> chain,
                         absl::Span<const Certificate> authorities, const TlsFiles& files,
                         absl::Time now) {
  const OpensslOwned<X509_STORE, X509_STORE_free> store(X509_STORE_new());
  for (const Certificate& authority : authorities) {
    X509_STORE_add_cert(store.get(), authority.get());
  }
  const Chain between(sk_X509_new_null());
  for (const Certificate& certificate : chain.subspan(1)) {
    sk_X509_push(between.get(), certificate.get());
  }
  const std::optional<ChainFault> fault =
      FindFault(store.get(), chain.front().get(), between.get(), /*purpose=*/nullptr, now);
  if (!fault.has_value()) {
    return absl::OkStatus();
  }
  const X509* const at = fault->at.get();
  if (fault->is_of_time()) {
    const bool is_between = std::any_of(chain.begin(), chain.end(), [at](const Certificate& each) {
      return X509_cmp(each.get(), at) == 0;
    });
    const std::string& file = is_between ? files.certificate : files.authorities;
    const absl::Time not_after = TimeOf(X509_get0_notAfter(at));
    return absl::FailedPreconditionError(StrCat(
        files.certificate, " cannot be used: the certificate of an authority above it, \"",
        ToText(X509_get_subject_name(at)), "\" (depth ", fault->depth, " of the chain, in ", file,
        "), ",
        now > not_after
            ? StrCat(ExpiredText(not_after, now), "; put its renewed certificate into ", file)
            : NotYetText(TimeOf(X509_get0_notBefore(at)), now)));
  }
  return BadFile(
      files.certificate,
      StrCat("is not signed by an authority in ", files.authorities, " (", fault->what(),
             at == nullptr ? "" : "; issued by ",
             at == nullptr ? "" : ToText(X509_get_issuer_name(at)),
             "); both must come from the same authority, and certificates between the two belong "
             "into the first file"));
}

absl::Status CheckPurpose(X509* certificate, const PeerName& name, std::string_view file) {
  if (X509_check_purpose(certificate, X509_PURPOSE_SSL_CLIENT, 0) != 1) {
    return BadFile(file,
                   "is not for TLS clients, and every process is one; issue it with the "
                   "extended key usage clientAuth");
  }
  if (name.role != PeerRole::kClient &&
      X509_check_purpose(certificate, X509_PURPOSE_SSL_SERVER, 0) != 1) {
    return BadFile(file, StrCat("is not for TLS servers, as a ", PeerRoleName(name.role),
                                " is one; issue it with the extended key usage serverAuth"));
  }
  return absl::OkStatus();
}

// Returns OK if TLS accepts the certificate with the key. OpenSSL refuses, for example, keys that
// are too short.
absl::Status CheckUsable(X509* certificate, EVP_PKEY* key, const TlsFiles& files) {
  const OpensslOwned<SSL_CTX, SSL_CTX_free> context(SSL_CTX_new(TLS_method()));
  if (context == nullptr) {
    return Failed("set up TLS");
  }
  if (SSL_CTX_use_certificate(context.get(), certificate) != 1) {
    return BadFile(files.certificate, StrCat("cannot be used for TLS: ", LastError()));
  }
  if (SSL_CTX_use_PrivateKey(context.get(), key) != 1) {
    return BadFile(files.private_key, StrCat("cannot be used for TLS: ", LastError()));
  }
  return absl::OkStatus();
}

template <typename Write>
absl::StatusOr<std::string> ToPem(const Write& write) {
  const Bio bio(BIO_new(BIO_s_mem()));
  if (write(bio.get()) != 1) {
    return Failed("write PEM");
  }
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

absl::StatusOr<KeyPair> ToPem(X509* certificate, EVP_PKEY* key) {
  KeyPair pair;
  SHARDMESH_ASSIGN_OR_RETURN(pair.certificate,
                             ToPem([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate); }));
  SHARDMESH_ASSIGN_OR_RETURN(pair.private_key, ToPem([&](BIO* bio) {
                               return PEM_write_bio_PKCS8PrivateKey(bio, key, nullptr, nullptr, 0,
                                                                    nullptr, nullptr);
                             }));
  return pair;
}

struct Extension {
  int nid;
  std::string value;  // in the format of OpenSSL's configuration files
};

// Returns an unsigned certificate.
absl::StatusOr<Certificate> Draft(std::string_view common_name, EVP_PKEY* key, const X509* issuer,
                                  absl::Time not_before, absl::Time not_after,
                                  absl::Span<const Extension> extensions) {
  Certificate certificate(X509_new());
  std::string serial_bytes = RandomBytes(16);
  serial_bytes[0] = static_cast<char>(serial_bytes[0] & 0x7f);  // never negative
  const OpensslOwned<BIGNUM, BN_free> serial(
      BN_bin2bn(reinterpret_cast<const unsigned char*>(serial_bytes.data()),
                static_cast<int>(serial_bytes.size()), nullptr));
  X509_NAME* const subject = X509_get_subject_name(certificate.get());
  bool made =
      X509_set_version(certificate.get(), X509_VERSION_3) == 1 &&
      BN_to_ASN1_INTEGER(serial.get(), X509_get_serialNumber(certificate.get())) != nullptr &&
      ASN1_TIME_set(X509_getm_notBefore(certificate.get()), absl::ToTimeT(not_before)) != nullptr &&
      ASN1_TIME_set(X509_getm_notAfter(certificate.get()), absl::ToTimeT(not_after)) != nullptr &&
      X509_set_pubkey(certificate.get(), key) == 1 &&
      X509_NAME_add_entry_by_txt(subject, "O", MBSTRING_ASC,
                                 reinterpret_cast<const unsigned char*>("shardmesh test authority"),
                                 -1, -1, 0) == 1 &&
      X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                                 reinterpret_cast<const unsigned char*>(common_name.data()),
                                 static_cast<int>(common_name.size()), -1, 0) == 1;
  const X509* const signer = issuer == nullptr ? certificate.get() : issuer;
  made = made && X509_set_issuer_name(certificate.get(), X509_get_subject_name(signer)) == 1;
  X509V3_CTX context;
  X509V3_set_ctx(&context, const_cast<X509*>(signer), certificate.get(), nullptr, nullptr, 0);
  for (const Extension& each : extensions) {
    const OpensslOwned<X509_EXTENSION, X509_EXTENSION_free> extension(
        X509V3_EXT_conf_nid(nullptr, &context, each.nid, each.value.c_str()));
    made =
        made && extension != nullptr && X509_add_ext(certificate.get(), extension.get(), -1) == 1;
  }
  if (!made) {
    return Failed(StrCat("make a certificate for ", common_name));
  }
  return certificate;
}

// Returns the entry of a host for the certificate's alternative names: `DNS:NAME` or `IP:ADDRESS`.
absl::StatusOr<std::string> HostEntry(const std::string& host) {
  in_addr v4;
  in6_addr v6;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1 || inet_pton(AF_INET6, host.c_str(), &v6) == 1) {
    return StrCat("IP:", host);
  }
  const bool is_name =
      !host.empty() && host.size() <= 253 && std::all_of(host.begin(), host.end(), [](char c) {
        return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' ||
               c == '_' || c == '*';
      });
  if (!is_name) {
    return WithReason(absl::InvalidArgumentError(StrCat(
                          "\"", host, "\" is neither a host name nor an IP address; write it ",
                          "without port, such as coordinator.example.org or 10.0.0.7")),
                      Reason::kBadField, {{fact::kField, "host"}, {fact::kValue, host}});
  }
  return StrCat("DNS:", host);
}

}  // namespace

absl::Status CheckComplete(const TlsFiles& files) {
  if (files.empty() || files.complete()) {
    return absl::OkStatus();
  }
  std::vector<std::string> missing;
  for (const auto& [path, flag] :
       {std::pair(&files.certificate, "--tls-cert"), std::pair(&files.private_key, "--tls-key"),
        std::pair(&files.authorities, "--tls-ca")}) {
    if (path->empty()) {
      missing.emplace_back(flag);
    }
  }
  return WithReason(
      absl::InvalidArgumentError(
          StrCat("TLS needs a certificate, its key and the authority's certificate; ",
                 StrJoin(missing, " and "), missing.size() == 1 ? " is" : " are", " missing")),
      Reason::kBadField, {{fact::kField, StrJoin(missing, ",")}});
}

absl::StatusOr<std::string> ReadPemFile(const std::string& path, std::string_view what) {
  const auto hint = [&](const absl::Status& status) -> absl::Status {
    std::string text(status.message());
    StrAppend(&text, "; it must hold ", what);
    if (absl::IsPermissionDenied(status)) {
      StrAppend(&text, ", readable by the user of this process (uid ",
                static_cast<int64_t>(geteuid()), ")");
    }
    absl::Status with_hint(status.code(), text);
    return WithReason(std::move(with_hint), ReasonOf(status));
  };
  absl::StatusOr<InputFile> file = OpenInputFile(path);
  if (!file.ok()) {
    return hint(file.status());
  }
  if (file->size_bytes > kMaxFileBytes) {
    return BadFile(path, StrCat("has ", file->size_bytes, " bytes; at most ", kMaxFileBytes,
                                " are allowed in a file with ", what));
  }
  std::string text(static_cast<size_t>(file->size_bytes), '\0');
  if (const absl::Status read = ReadExactly(*file, path, 0, absl::MakeSpan(text)); !read.ok()) {
    return hint(read);
  }
  return text;
}

absl::StatusOr<TlsTexts> ReadTlsFiles(const TlsFiles& files) {
  TlsTexts texts;
  SHARDMESH_ASSIGN_OR_RETURN(
      texts.authorities, ReadPemFile(files.authorities, "the authority's certificate (--tls-ca)"));
  SHARDMESH_ASSIGN_OR_RETURN(
      texts.certificate, ReadPemFile(files.certificate, "this process's certificate (--tls-cert)"));
  SHARDMESH_ASSIGN_OR_RETURN(texts.private_key,
                             ReadPemFile(files.private_key, "the certificate's key (--tls-key)"));
  return texts;
}

absl::StatusOr<CertificateFacts> CheckTls(const TlsFiles& files, const TlsTexts& texts,
                                          absl::Time now) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<Certificate> authorities,
                             ParseCertificates(texts.authorities, files.authorities));
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<Certificate> chain,
                             ParseCertificates(texts.certificate, files.certificate));
  SHARDMESH_ASSIGN_OR_RETURN(const Key key, ParseKey(texts.private_key, files.private_key));
  X509* const own = chain.front().get();
  if (X509_check_private_key(own, key.get()) != 1) {
    ERR_clear_error();
    return BadFile(files.private_key, StrCat("is not the key of the certificate in ",
                                             files.certificate, "; give two that belong together"));
  }
  SHARDMESH_ASSIGN_OR_RETURN(CertificateFacts facts, FactsOf(own, files.certificate));
  SHARDMESH_RETURN_IF_ERROR(CheckTime(facts, files.certificate, now));
  SHARDMESH_RETURN_IF_ERROR(CheckSigned(chain, authorities, files, now));
  SHARDMESH_RETURN_IF_ERROR(CheckPurpose(own, facts.name, files.certificate));
  SHARDMESH_RETURN_IF_ERROR(CheckUsable(own, key.get(), files));
  return facts;
}

absl::Status UseTls(const TlsTexts& texts, SSL_CTX* context) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<Certificate> chain,
                             ParseCertificates(texts.certificate, "the certificate in use"));
  SHARDMESH_ASSIGN_OR_RETURN(const Key key, ParseKey(texts.private_key, "the key in use"));
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<Certificate> authorities,
                             ParseCertificates(texts.authorities, "the authorities in use"));
  bool done = SSL_CTX_use_certificate(context, chain[0].get()) == 1 &&
              SSL_CTX_use_PrivateKey(context, key.get()) == 1;
  for (size_t i = 1; i < chain.size() && done; ++i) {
    done = SSL_CTX_add1_chain_cert(context, chain[i].get()) == 1;
  }
  for (size_t i = 0; i < authorities.size() && done; ++i) {
    done = X509_STORE_add_cert(SSL_CTX_get_cert_store(context), authorities[i].get()) == 1 &&
           SSL_CTX_add_client_CA(context, authorities[i].get()) == 1;
  }
  return done ? absl::OkStatus() : Failed("use the certificates for TLS");
}

absl::StatusOr<CertificateFacts> ReadPeerCertificate(const SSL* connection) {
  const Certificate certificate(SSL_get1_peer_certificate(connection));
  if (certificate == nullptr) {
    return absl::NotFoundError("it shows no certificate");
  }
  return FactsOf(certificate.get(), "its certificate");
}

absl::Status CheckPeer(const SSL* connection, absl::Time now) {
  const long result = SSL_get_verify_result(connection);
  if (result == X509_V_OK) {
    return absl::OkStatus();
  }
  // OpenSSL records the fault, but not which certificate has it: check the chain again.
  const Certificate own(SSL_get1_peer_certificate(connection));
  const std::optional<ChainFault> fault =
      FindFault(SSL_CTX_get_cert_store(SSL_get_SSL_CTX(connection)), own.get(),
                SSL_get_peer_cert_chain(connection), "ssl_server", now);
  if (!fault.has_value() || !fault->is_of_time()) {
    return absl::InvalidArgumentError(X509_verify_cert_error_string(result));
  }
  const std::string which = fault->depth == 0
                                ? "its certificate"
                                : StrCat("the certificate of an authority above its own, \"",
                                         ToText(X509_get_subject_name(fault->at.get())),
                                         "\" (depth ", fault->depth, "),");
  return absl::FailedPreconditionError(StrCat(which, " is not valid now (", fault->what(), ")"));
}

absl::StatusOr<KeyPair> MakeAuthority(absl::Time now, absl::Time not_after) {
  const Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) {
    return Failed("make a key");
  }
  // Each authority gets a distinct name, so that OpenSSL can find the right one of two in a bundle.
  const std::string name = StrCat("test authority ", ToStd(absl::BytesToHexString(RandomBytes(4))));
  const Extension extensions[] = {{NID_basic_constraints, "critical,CA:TRUE,pathlen:0"},
                                  {NID_key_usage, "critical,keyCertSign,cRLSign"},
                                  {NID_subject_key_identifier, "hash"}};
  SHARDMESH_ASSIGN_OR_RETURN(
      const Certificate certificate,
      Draft(name, key.get(), /*issuer=*/nullptr, now - kClockSkew, not_after, extensions));
  if (X509_sign(certificate.get(), key.get(), EVP_sha256()) == 0) {
    return Failed("sign a certificate");
  }
  return ToPem(certificate.get(), key.get());
}

absl::StatusOr<KeyPair> MakeCertificate(const KeyPair& authority,
                                        const CertificateRequest& request) {
  SHARDMESH_RETURN_IF_ERROR(CheckCertificateIdentity(request.name.identity));
  SHARDMESH_ASSIGN_OR_RETURN(
      const std::vector<Certificate> issuers,
      ParseCertificates(authority.certificate, "the authority's certificate"));
  SHARDMESH_ASSIGN_OR_RETURN(const Key issuer_key,
                             ParseKey(authority.private_key, "the authority's key"));
  const Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) {
    return Failed("make a key");
  }
  std::vector<std::string> names = {StrCat("URI:", request.name.ToUri())};
  for (const std::string& host : request.hosts) {
    SHARDMESH_ASSIGN_OR_RETURN(names.emplace_back(), HostEntry(host));
  }
  const bool is_server = request.name.role != PeerRole::kClient;
  const Extension extensions[] = {
      {NID_basic_constraints, "critical,CA:FALSE"},
      {NID_key_usage, "critical,digitalSignature"},
      {NID_ext_key_usage, is_server ? "serverAuth,clientAuth" : "clientAuth"},
      {NID_subject_key_identifier, "hash"},
      {NID_authority_key_identifier, "keyid"},
      {NID_subject_alt_name, StrJoin(names, ",")}};
  const X509* const issuer = issuers.front().get();
  SHARDMESH_ASSIGN_OR_RETURN(
      const Certificate certificate,
      Draft(request.name.identity, key.get(), issuer, request.not_before,
            std::min(request.not_after, TimeOf(X509_get0_notAfter(issuer))), extensions));
  if (X509_sign(certificate.get(), issuer_key.get(), EVP_sha256()) == 0) {
    return Failed("sign a certificate");
  }
  return ToPem(certificate.get(), key.get());
}

absl::StatusOr<std::string> FindCertificateOf(std::string_view private_key,
                                              std::string_view bundle) {
  SHARDMESH_ASSIGN_OR_RETURN(const Key key, ParseKey(private_key, "the key"));
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<Certificate> certificates,
                             ParseCertificates(bundle, "the bundle"));
  for (const Certificate& each : certificates) {
    if (X509_check_private_key(each.get(), key.get()) == 1) {
      return ToPem([&](BIO* bio) { return PEM_write_bio_X509(bio, each.get()); });
    }
  }
  ERR_clear_error();
  return absl::NotFoundError("no certificate belongs to the key");
}

absl::StatusOr<CertificateFacts> ReadCertificate(std::string_view text) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<Certificate> chain,
                             ParseCertificates(text, "the certificate"));
  return FactsOf(chain.front().get(), "the certificate");
}

absl::StatusOr<absl::Time> ReadExpiry(std::string_view text) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<Certificate> chain,
                             ParseCertificates(text, "the certificate"));
  return TimeOf(X509_get0_notAfter(chain.front().get()));
}

}  // namespace shardmesh::rpc
