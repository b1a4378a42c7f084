// Writes the files of a test authority.
#include "client/cli/local/certificate_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/time/clock.h"
#include "process/clock.h"
#include "process/file.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

// A host name that every server's certificate contains.
constexpr const char* kAnyServer = "shardmesh";
constexpr char kCoordinator[] = "coordinator";
constexpr char kClient[] = "client";
constexpr char kSuffix[] = ".crt";
constexpr mode_t kPrivate = 0600;
constexpr mode_t kPublic = 0644;
constexpr absl::Duration kAuthorityLifetime = absl::Hours(24 * 3650);

rpc::TlsFiles FilesOf(const std::string& folder, const std::string& identity) {
  return {.certificate = StrCat(folder, "/", identity, kSuffix),
          .private_key = StrCat(folder, "/", identity, ".key"),
          .authorities = StrCat(folder, "/ca.crt")};
}

std::string AuthorityFolder(const std::string& folder) { return folder + "/authority"; }
std::string AuthorityKeyPath(const std::string& folder) {
  return AuthorityFolder(folder) + "/ca.key";
}

absl::Status WriteFile(const std::string& path, const std::string& text, mode_t mode) {
  SHARDMESH_ASSIGN_OR_RETURN(AtomicFileWriter file, AtomicFileWriter::Create(path, mode));
  SHARDMESH_RETURN_IF_ERROR(file.Append(text));
  return file.Finish();
}

absl::Status MakeFolder(const std::string& path, mode_t mode) {
  SHARDMESH_RETURN_IF_ERROR(MakeFolders(path));
  return chmod(path.c_str(), mode) == 0 ? absl::OkStatus()
                                        : FileError("set the mode of", path, errno);
}

bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

absl::Status Unusable(std::string_view what) { return absl::FailedPreconditionError(ToAbsl(what)); }

// Returns the folder's authority; creates one if the folder has none.
absl::StatusOr<rpc::KeyPair> OpenAuthority(const std::string& folder, absl::Time now,
                                           bool* made_authority) {
  const std::string certificate_path = folder + "/ca.crt";
  const std::string key_path = AuthorityKeyPath(folder);
  const bool has_certificate = Exists(certificate_path);
  if (has_certificate != Exists(key_path)) {
    return Unusable(StrCat(
        has_certificate ? certificate_path : key_path, " is there and ",
        has_certificate ? key_path : certificate_path,
        " is not, so nothing can be signed; bring the missing file back, or choose another --dir: "
        "an authority is not replaced, because processes that trust it would be cut off",
        has_certificate ? std::string()
                        : StrCat(". If the run that made the key was interrupted, nobody trusts "
                                 "this authority yet: remove ",
                                 key_path)));
  }
  if (has_certificate) {
    rpc::KeyPair authority;
    SHARDMESH_ASSIGN_OR_RETURN(authority.private_key,
                               rpc::ReadPemFile(key_path, "the authority's key"));
    SHARDMESH_ASSIGN_OR_RETURN(const std::string bundle,
                               rpc::ReadPemFile(certificate_path, "the authority's certificate"));
    const absl::StatusOr<std::string> own = rpc::FindCertificateOf(authority.private_key, bundle);
    if (!own.ok()) {
      return Unusable(StrCat(
          "the authority in ", folder, " cannot sign: ", ToStd(own.status().message()), " (",
          key_path, " and ", certificate_path, "); bring its files back, or choose another --dir"));
    }
    SHARDMESH_ASSIGN_OR_RETURN(const absl::Time not_after, rpc::ReadExpiry(*own));
    if (now > not_after) {
      return Unusable(StrCat(
          "the authority in ", folder, " expired ", FormatRounded(now - not_after),
          " ago, so peers reject what it signs; remove ", certificate_path, " and ", key_path,
          " and run `shardmesh certs --dir ", folder,
          "` again, which makes another authority and all certificates anew, then give the new ",
          "ca.crt to all who trusted the old one"));
    }
    authority.certificate = *own;
    return authority;
  }
  SHARDMESH_ASSIGN_OR_RETURN(rpc::KeyPair authority,
                             rpc::MakeAuthority(now, now + kAuthorityLifetime));
  SHARDMESH_RETURN_IF_ERROR(MakeFolder(AuthorityFolder(folder), 0700));
  // Write the key first, so that no certificate exists without its key. After an interruption
  // between the two writes, there is a key without a certificate, and the next attempt fails.
  SHARDMESH_RETURN_IF_ERROR(WriteFile(key_path, authority.private_key, kPrivate));
  SHARDMESH_RETURN_IF_ERROR(WriteFile(certificate_path, authority.certificate, kPublic));
  *made_authority = true;
  return authority;
}

// The workers with certificates in the folder, in the order of their names.
std::vector<std::string> WorkersIn(const std::string& folder) {
  std::vector<std::string> workers;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() != kSuffix) {
      continue;
    }
    const absl::StatusOr<std::string> text =
        rpc::ReadPemFile(entry.path().string(), "a certificate");
    const auto facts = text.ok() ? rpc::ReadCertificate(*text)
                                 : absl::StatusOr<rpc::CertificateFacts>(text.status());
    if (facts.ok() && facts->name.role == rpc::PeerRole::kWorker &&
        facts->name.identity == entry.path().stem().string()) {
      workers.push_back(facts->name.identity);
    }
  }
  std::sort(workers.begin(), workers.end());
  return workers;
}

}  // namespace

rpc::TlsFiles CoordinatorTlsFiles(const std::string& folder) {
  return FilesOf(folder, kCoordinator);
}
rpc::TlsFiles WorkerTlsFiles(const std::string& folder, const std::string& identity) {
  return FilesOf(folder, identity);
}
rpc::TlsFiles ClientTlsFiles(const std::string& folder) { return FilesOf(folder, kClient); }

absl::StatusOr<WrittenCertificates> WriteCertificates(const CertificateFolderOptions& options) {
  std::vector<rpc::PeerName> names = {{rpc::PeerRole::kCoordinator, kCoordinator},
                                      {rpc::PeerRole::kClient, kClient}};
  std::vector<std::string> workers = options.workers;
  if (!options.only_missing) {
    const std::vector<std::string> found = WorkersIn(options.folder);
    workers.insert(workers.end(), found.begin(), found.end());
  }
  for (const std::string& worker : workers) {
    SHARDMESH_RETURN_IF_ERROR(rpc::CheckCertificateIdentity(worker));
    if (worker == kCoordinator || worker == kClient || worker == "ca") {
      return WithReason(
          absl::InvalidArgumentError(StrCat("a worker cannot be named \"", worker,
                                            "\" here: another certificate's file has that name")),
          Reason::kBadField, {{fact::kField, "worker"}, {fact::kValue, worker}});
    }
    const rpc::PeerName name{rpc::PeerRole::kWorker, worker};
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      names.push_back(name);
    }
  }
  WrittenCertificates written;
  if (options.only_missing &&
      std::all_of(names.begin(), names.end(), [&](const rpc::PeerName& name) {
        const rpc::TlsFiles files = FilesOf(options.folder, name.identity);
        return Exists(files.certificate) && Exists(files.private_key) && Exists(files.authorities);
      })) {
    return written;
  }
  const absl::Time now = absl::Now();
  if (!Exists(options.folder)) {
    SHARDMESH_RETURN_IF_ERROR(MakeFolder(options.folder, 0700));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const rpc::KeyPair authority,
                             OpenAuthority(options.folder, now, &written.made_authority));
  for (const rpc::PeerName& name : names) {
    const rpc::TlsFiles files = FilesOf(options.folder, name.identity);
    if (options.only_missing && Exists(files.certificate) && Exists(files.private_key)) {
      continue;
    }
    rpc::CertificateRequest request{.name = name,
                                    .hosts = {},
                                    .not_before = now - rpc::kClockSkew,
                                    .not_after = now + options.lifetime};
    if (name.role != rpc::PeerRole::kClient) {
      // Scrapers of metrics verify only the name `shardmesh` (kAnyServer), because they know
      // neither identities nor stable addresses.
      request.hosts = {"localhost", "127.0.0.1", "::1", name.identity, kAnyServer};
      request.hosts.insert(request.hosts.end(), options.hosts.begin(), options.hosts.end());
    }
    SHARDMESH_ASSIGN_OR_RETURN(const rpc::KeyPair made, rpc::MakeCertificate(authority, request));
    const rpc::TlsTexts texts{.certificate = made.certificate,
                              .private_key = made.private_key,
                              .authorities = authority.certificate};
    SHARDMESH_ASSIGN_OR_RETURN(const rpc::CertificateFacts facts, rpc::CheckTls(files, texts, now));
    SHARDMESH_RETURN_IF_ERROR(WriteFile(files.private_key, made.private_key, kPrivate));
    SHARDMESH_RETURN_IF_ERROR(WriteFile(files.certificate, made.certificate, kPublic));
    written.certificates.push_back({files.certificate, name, facts.not_after});
  }
  return written;
}

}  // namespace shardmesh::client
