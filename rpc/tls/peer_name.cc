// Parses and formats the names in certificates.
#include "rpc/tls/peer_name.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {
namespace {

constexpr std::string_view kScheme = "spiffe://shardmesh/";
constexpr PeerRole kRoles[] = {PeerRole::kCoordinator, PeerRole::kWorker, PeerRole::kClient};
constexpr size_t kMaxIdentityBytes = 63;

}  // namespace

std::string_view PeerRoleName(PeerRole role) {
  switch (role) {
    case PeerRole::kCoordinator:
      return "coordinator";
    case PeerRole::kWorker:
      return "worker";
    case PeerRole::kClient:
      return "client";
  }
  return "";
}

std::string PeerName::ToUri() const { return StrCat(kScheme, PeerRoleName(role), "/", identity); }

std::optional<PeerName> ParsePeerName(std::string_view uri) {
  if (!uri.starts_with(kScheme)) {
    return std::nullopt;
  }
  uri.remove_prefix(kScheme.size());
  const size_t slash = uri.find('/');
  if (slash == std::string_view::npos || !CheckCertificateIdentity(uri.substr(slash + 1)).ok()) {
    return std::nullopt;
  }
  for (const PeerRole role : kRoles) {
    if (uri.substr(0, slash) == PeerRoleName(role)) {
      return PeerName{role, std::string(uri.substr(slash + 1))};
    }
  }
  return std::nullopt;
}

absl::Status CheckCertificateIdentity(std::string_view identity) {
  const auto is_alnum = [](char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)); };
  const bool fits =
      !identity.empty() && identity.size() <= kMaxIdentityBytes && is_alnum(identity.front()) &&
      std::all_of(identity.begin(), identity.end(),
                  [&](char c) { return is_alnum(c) || c == '.' || c == '_' || c == '-'; });
  return fits ? absl::OkStatus()
              : WithReason(
                    absl::InvalidArgumentError(StrCat(
                        "\"", identity, "\" cannot be an identity in a certificate: ", "1 to ",
                        kMaxIdentityBytes, " letters, digits, ., _ and - ",
                        "are allowed, the first a letter or digit")),
                    Reason::kBadField, {{fact::kField, "identity"}, {fact::kValue, identity}});
}

bool ExpectedPeer::Matches(const PeerName& name) const {
  const bool has_role =
      role_.has_value() ? name.role == *role_ : is_client_taken_ || name.role != PeerRole::kClient;
  return has_role && (identity_.empty() || name.identity == identity_);
}

std::string ExpectedPeer::ToString() const {
  if (!role_.has_value()) {
    return is_client_taken_ ? "a coordinator, worker or client" : "a coordinator or a worker";
  }
  return identity_.empty() ? StrCat("a ", PeerRoleName(*role_))
                           : StrCat(PeerRoleName(*role_), " \"", identity_, "\"");
}

}  // namespace shardmesh::rpc
