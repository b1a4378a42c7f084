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

// Returns `coordinator`, `worker` or `client`.
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

// Parses the URI of a PeerName. Returns nullopt for a URI of any other form.
std::optional<PeerName> ParsePeerName(std::string_view uri);

// Checks an identity: 1 to 63 characters of [A-Za-z0-9._-], the first a letter or digit. Such an
// identity can be part of a URI, a file name and a label of a host name. INVALID_ARGUMENT
// (BAD_FIELD): it has another form.
absl::Status CheckCertificateIdentity(std::string_view identity);

// The peer that a client expects at an address. Applies to TLS only: over plaintext, nothing proves
// who the peer is, and nothing is checked.
class ExpectedPeer {
 public:
  static ExpectedPeer Coordinator() { return ExpectedPeer(PeerRole::kCoordinator, {}); }
  static ExpectedPeer Worker(std::string identity) {
    return ExpectedPeer(PeerRole::kWorker, std::move(identity));
  }
  // A coordinator or any worker; for calls that both serve, such as health checks.
  static ExpectedPeer AnyServer() { return ExpectedPeer(std::nullopt, {}); }
  // Any peer with a PeerName: the requirement of a server on its clients.
  static ExpectedPeer Anybody() {
    ExpectedPeer anybody(std::nullopt, {});
    anybody.is_client_taken_ = true;
    return anybody;
  }

  bool Matches(const PeerName& name) const;
  // Returns a text for messages, such as `a coordinator (spiffe://shardmesh/coordinator/...)`.
  std::string ToString() const;

 private:
  ExpectedPeer(std::optional<PeerRole> role, std::string identity)
      : role_(role), identity_(std::move(identity)) {}

  std::optional<PeerRole> role_;  // nullopt: coordinator or worker; for Anybody also client
  std::string identity_;          // empty: any
  bool is_client_taken_ = false;
};

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_TLS_PEER_NAME_H_
