// Parses, checks and changes addresses.
#include "process/host_port.h"

#include <unistd.h>

#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "status/fact_keys.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh {

std::string HostPort::ToString() const {
  const bool is_v6 = host.find(':') != std::string::npos;
  return is_v6 ? StrCat("[", host, "]:", port) : StrCat(host, ":", port);
}

std::string HostName() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "worker";
}

bool IsUnixAddress(std::string_view address) {
  for (const std::string_view scheme : {"unix:", "unix-abstract:"}) {
    if (address.starts_with(scheme) && address.size() > scheme.size()) return true;
  }
  return false;
}

std::string HealthAddress(int port) { return StrCat("unix-abstract:shardmesh-health-", port); }

absl::StatusOr<HostPort> ParseHostPort(std::string_view address) {
  const auto bad = [&](std::string_view why) {
    return WithReason(
        absl::InvalidArgumentError(StrCat("not an address: ", PythonRepr(address), " ", why,
                                          "; write HOST:PORT, [IPV6]:PORT or unix:/PATH")),
        Reason::kBadField, {{fact::kValue, address}});
  };
  if (address.find("://") != std::string_view::npos) {
    return bad("begins with a scheme");
  }
  const size_t colon = address.rfind(':');
  if (colon == std::string_view::npos || address.ends_with(']')) {
    return bad("has no port");
  }
  std::string_view host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
    if (host.find(':') == std::string_view::npos) {
      return bad("has no IPv6 address in its brackets");
    }
  } else if (host.find(':') != std::string_view::npos) {
    return bad("has an IPv6 host without brackets");
  }
  if (host.find_first_of("[]") != std::string_view::npos) {
    return bad("has brackets where they mean nothing");
  }
  if (host.empty()) {
    return bad("has no host");
  }
  const std::string_view port_text = address.substr(colon + 1);
  int port = -1;
  const bool starts_with_digit =
      !port_text.empty() && absl::ascii_isdigit(static_cast<unsigned char>(port_text[0]));
  if (!starts_with_digit || !absl::SimpleAtoi(ToAbsl(port_text), &port) || port > 65535) {
    return bad("has no port number from 0 to 65535");
  }
  return HostPort{std::string(host), port};
}

std::string WithPort(const std::string& address, int port) {
  absl::StatusOr<HostPort> parsed = ParseHostPort(address);
  if (port == 0 || IsUnixAddress(address) || !parsed.ok()) return address;
  parsed->port = port;
  return parsed->ToString();
}

absl::Status CheckAddress(std::string_view address) {
  return IsUnixAddress(address) ? absl::OkStatus() : ParseHostPort(address).status();
}

}  // namespace shardmesh
