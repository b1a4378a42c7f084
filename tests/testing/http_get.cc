// HTTP/1.0 over a socket: the answer ends with the connection.
#include "tests/testing/http_get.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "status/str_cat.h"

namespace shardmesh::test {
namespace {

absl::Status Unavailable(std::string_view address) {
  return absl::UnavailableError(StrCat("no answer from ", address, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::string> HttpGet(std::string_view address, std::string_view path) {
  const size_t colon = address.rfind(':');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  uint32_t port = 0;
  if (colon == std::string_view::npos ||
      !absl::SimpleAtoi(ToAbsl(address.substr(colon + 1)), &port) ||
      inet_pton(AF_INET, std::string(address.substr(0, colon)).c_str(), &to.sin_addr) != 1) {
    return absl::InvalidArgumentError(StrCat("\"", address, "\" is no IPv4 address with a port"));
  }
  to.sin_port = htons(static_cast<uint16_t>(port));
  const int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const absl::Cleanup close_connection = [connection] { close(connection); };
  const timeval limit{.tv_sec = 5, .tv_usec = 0};
  setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  const std::string request =
      StrCat("GET ", path, " HTTP/1.0\r\nHost: ", address, "\r\nConnection: close\r\n\r\n");
  if (connect(connection, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0 ||
      send(connection, request.data(), request.size(), MSG_NOSIGNAL) !=
          static_cast<ssize_t>(request.size())) {
    return Unavailable(address);
  }
  std::string answer;
  std::array<char, 1 << 16> piece;
  ssize_t size = 0;
  while ((size = recv(connection, piece.data(), piece.size(), 0)) > 0) {
    answer.append(piece.data(), static_cast<size_t>(size));
  }
  const size_t head_end = answer.find("\r\n\r\n");
  if (size < 0 || head_end == std::string::npos) return Unavailable(address);
  const std::string body = answer.substr(head_end + 4);
  if (answer.find(" 200 ") > answer.find("\r\n")) {
    return absl::InternalError(
        StrCat(address, path, ": ", answer.substr(0, answer.find("\r\n")), ": ", body));
  }
  return body;
}

std::string UrlEncoded(std::string_view text) {
  std::string encoded;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0) {
      encoded.push_back(c);
    } else {
      encoded += absl::StrFormat("%%%02X", byte);
    }
  }
  return encoded;
}

}  // namespace shardmesh::test
