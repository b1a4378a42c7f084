// A folder with a test authority and the certificates of a cluster, written by `shardmesh certs`.
//
// clang-format off
//   ca.crt                        the authority's certificate
//   authority/ca.key              the authority's key; lies in a subfolder, so that a Kubernetes
//                                 Secret made of the files of the folder does not contain the key
//   coordinator.crt, .key         spiffe://shardmesh/coordinator/coordinator
//   IDENTITY.crt, .key            spiffe://shardmesh/worker/IDENTITY, for each worker
//   client.crt, .key              spiffe://shardmesh/client/client
// clang-format on
#ifndef SHARDMESH_CLIENT_CLI_LOCAL_CERTIFICATE_FOLDER_H_
#define SHARDMESH_CLIENT_CLI_LOCAL_CERTIFICATE_FOLDER_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rpc/tls/certificate.h"

namespace shardmesh::client {

// Return the paths of the files of the coordinator, a worker (by its identity) and the client in
// such a folder.
rpc::TlsFiles CoordinatorTlsFiles(const std::string& folder);
rpc::TlsFiles WorkerTlsFiles(const std::string& folder, const std::string& identity);
rpc::TlsFiles ClientTlsFiles(const std::string& folder);

struct CertificateFolderOptions {
  std::string folder;  // made if missing
  // Identities of the workers that get certificates. The coordinator and the client always get
  // certificates. A worker cannot have the identity `coordinator` or `client`.
  std::vector<std::string> workers;
  // Additional names and addresses in each server certificate. Every server certificate has
  // localhost, the loopback addresses, the server's identity and the name `shardmesh`.
  std::vector<std::string> hosts;
  absl::Duration lifetime = absl::Hours(24 * 365);
  // If true, keeps existing certificates. If false, renews all certificates of the folder,
  // including those of workers that `workers` does not list.
  bool only_missing = false;
};

struct WrittenCertificate {
  std::string path;
  rpc::PeerName name;
  absl::Time not_after;
};

struct WrittenCertificates {
  bool made_authority = false;
  std::vector<WrittenCertificate> certificates;
};

// Makes the authority if the folder has none, and certificates with new keys. Only this user can
// read the keys; each file is replaced atomically. Errors:
//
// clang-format off
//   INVALID_ARGUMENT     an identity or host that no certificate can have
//   FAILED_PRECONDITION  the authority lacks its key or its certificate, or has expired: it is
//                        never replaced silently; the message says how to make another one
//   other codes          a file or folder cannot be read or written
// clang-format on
absl::StatusOr<WrittenCertificates> WriteCertificates(const CertificateFolderOptions& options);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_LOCAL_CERTIFICATE_FOLDER_H_
