// An HTTP client for tests: only GET, from a server on this host.
#ifndef SHARDMESH_TESTS_TESTING_HTTP_GET_H_
#define SHARDMESH_TESTS_TESTING_HTTP_GET_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace shardmesh::test {

// Returns the body of the answer to `GET path`. `address`: an IPv4 address and a port,
// `127.0.0.1:9090`. UNAVAILABLE if no server answers within five seconds, INTERNAL with the body
// for a status other than 200.
absl::StatusOr<std::string> HttpGet(std::string_view address, std::string_view path);

// Encodes a text for use in a query string.
std::string UrlEncoded(std::string_view text);

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_TESTING_HTTP_GET_H_
