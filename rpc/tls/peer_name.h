// PeerName: the role and identity of a process in its certificate.
#ifndef SHARDMESH_RPC_TLS_PEER_NAME_H_
#define SHARDMESH_RPC_TLS_PEER_NAME_H_

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"

namespace shardmesh::rpc {

enum class PeerRole { kCoordinator, kWorker, kClient };

// `coordinator`, `worker`, `client`.
std::string_view PeerRoleName(PeerRole role);

// A name in a certificate, `spiffe://shardmesh/ROLE/IDENTITY`.
// Example: ParsePeerName("spiffe://shardmesh/worker/shardmesh-worker-0") is {kWorker,
// "shardmesh-worker-0"}.
struct PeerName {
  PeerRole role = PeerRole::kClient;
  std::string identity;

  std::string ToUri() const;

  friend bool operator==(const PeerName&, const PeerName&) = default;
};

// Returns nullopt for a URI of another form.
std::optional<PeerName> ParsePeerName(std::string_view uri);

// Returns OK for a legal identity: 1 to 63 characters of [A-Za-z0-9._-], the first a letter or
// digit. Such an identity can be part of a URI, a file name and a label of a host name.
// INVALID_ARGUMENT (BAD_FIELD) otherwise.
absl::Status CheckCertificateIdentity(std::string_view identity);

// The peer that a client expects at an address. A plaintext connection proves nothing, and nothing
// is expected of it.
class ExpectedPeer {
 public:
  static ExpectedPeer Coordinator() { return ExpectedPeer(PeerRole::kCoordinator, {}); }
  static ExpectedPeer Worker(std::string identity) {
    return ExpectedPeer(PeerRole::kWorker, std::move(identity));
  }
  // A coordinator or any worker; for questions that both answer, such as health.
  static ExpectedPeer AnyServer() { return ExpectedPeer(std::nullopt, {}); }
  // Any peer with a name: the requirement of a server on its callers.
  static ExpectedPeer Anybody() {
    ExpectedPeer anybody(std::nullopt, {});
    anybody.is_client_taken_ = true;
    return anybody;
  }

  bool Matches(const PeerName& name) const;
  // Returns `a coordinator (spiffe://shardmesh/coordinator/...)`, ... for messages.
  std::string ToString() const;

 private:
  ExpectedPeer(std::optional<PeerRole> role, std::string identity)
      : role_(role), identity_(std::move(identity)) {}

  std::optional<PeerRole> role_;  // nullopt: coordinator or worker, and client for Anybody
  std::string identity_;          // empty: any
  bool is_client_taken_ = false;
};

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_TLS_PEER_NAME_H_
