// Keeps a table of connections, and removes closed ones when the table seems full.
#include "rpc/connection_limit.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "absl/strings/str_format.h"

namespace shardmesh::rpc {
namespace {

// Even if no limit is reached, closed connections are removed once the table has this many
// connections and twice as many as after the last removal.
constexpr int64_t kFewestLookedAt = 1024;

constexpr size_t kNetworkBytes = 8;  // the bytes of an IPv6 address that name its /64 network

ino_t InodeOf(int descriptor) {
  struct stat found;
  return fstat(descriptor, &found) == 0 && S_ISSOCK(found.st_mode) ? found.st_ino : 0;
}

std::string Text(int family, const void* address) {
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(family, address, text, sizeof(text));
  return text;
}

}  // namespace

std::string HostOfPeer(const sockaddr_storage& peer) {
  if (peer.ss_family == AF_INET) {
    return Text(AF_INET, &reinterpret_cast<const sockaddr_in&>(peer).sin_addr);
  }
  if (peer.ss_family != AF_INET6) return "this host";
  in6_addr address = reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&address)) return Text(AF_INET, &address.s6_addr[12]);
  if (IN6_IS_ADDR_LOOPBACK(&address)) return Text(AF_INET6, &address);
  std::memset(&address.s6_addr[kNetworkBytes], 0, sizeof(address.s6_addr) - kNetworkBytes);
  return Text(AF_INET6, &address) + "/64";
}

std::string ConnectionLimit::Take(int descriptor, const sockaddr_storage& peer) {
  if (limits_.all == 0 && limits_.per_host == 0) return "";
  const std::string host = HostOfPeer(peer);
  const auto is_over = [](int64_t have, int64_t limit) { return limit > 0 && have >= limit; };
  if (is_over(all_, limits_.all) || is_over(CountOf(host), limits_.per_host) || all_ >= look_at_) {
    LookAgain();
  }
  if (is_over(CountOf(host), limits_.per_host)) {
    return absl::StrFormat(
        "%s has %d connections, and may have %d (--max-connections-per-host); close unused ones",
        host, CountOf(host), limits_.per_host);
  }
  if (is_over(all_, limits_.all)) {
    return absl::StrFormat(
        "there are %d connections, and there may be %d (--max-connections); close unused ones",
        all_, limits_.all);
  }
  hosts_[host].push_back({descriptor, InodeOf(descriptor)});
  ++all_;
  return "";
}

void ConnectionLimit::LookAgain() {
  // If many callers are refused in a row, the search for closed connections takes at most an eighth
  // of the listener's time.
  const auto began = std::chrono::steady_clock::now();
  if (began < next_look_) return;
  all_ = 0;
  for (auto host = hosts_.begin(); host != hosts_.end();) {
    const auto each = host++;
    std::erase_if(each->second, [](const Connection& connection) {
      return InodeOf(connection.descriptor) != connection.inode;
    });
    all_ += std::ssize(each->second);
    if (each->second.empty()) hosts_.erase(each);
  }
  look_at_ = std::max(kFewestLookedAt, 2 * all_);
  const auto ended = std::chrono::steady_clock::now();
  next_look_ = ended + 7 * (ended - began);
}

int64_t ConnectionLimit::CountOf(const std::string& host) const {
  const auto found = hosts_.find(host);
  return found == hosts_.end() ? 0 : std::ssize(found->second);
}

}  // namespace shardmesh::rpc
