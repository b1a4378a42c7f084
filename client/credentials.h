// Authentication and encryption of a client's connections.
#ifndef SHARDMESH_CLIENT_CREDENTIALS_H_
#define SHARDMESH_CLIENT_CREDENTIALS_H_

#include "rpc/tls/certificate.h"
#include "rpc/tls/credentials.h"

namespace shardmesh::client {

// Paths of PEM files: `certificate` of the client, its `private_key`, and the `authorities` that it
// trusts. Set all three or none.
using TlsFiles = rpc::TlsFiles;

// The certificates that a client presents and requires. Immutable, except that certificates are
// reloaded; safe to share between threads; copies are cheap. A client uses these members:
//   Credentials::Insecure()        plaintext, without authentication;
//   Credentials::FromFiles(files)  certificates from TlsFiles, which are reloaded when they change;
//                                  returns an error if the files cannot be used.
//
// Example:
//   auto credentials = Credentials::FromFiles(
//       {.certificate = "client.crt", .private_key = "client.key", .authorities = "ca.crt"});
//   auto client = MeshClient::Connect("coordinator:7070", {.credentials = *credentials});
using Credentials = rpc::Credentials;

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CREDENTIALS_H_
