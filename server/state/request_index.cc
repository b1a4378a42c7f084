// Keys of requests, and the errors of requests that cannot be answered.
#include "server/state/request_index.h"

#include "absl/strings/escaping.h"
#include "absl/strings/substitute.h"
#include "sharding/digest.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"

namespace shardmesh::server {
namespace {

std::string Text(std::string_view message, std::string_view key) {
  return absl::Substitute(ToAbsl(message), ToAbsl(RequestIdOf(key)));
}

}  // namespace

std::string_view RequestIdOf(std::string_view key) {
  const size_t method = key.find('/');
  const size_t id = method == std::string_view::npos ? method : key.find('/', method + 1);
  return id == std::string_view::npos ? key : key.substr(id + 1);
}

std::string RequestKey(std::string_view caller, std::string_view method,
                       std::string_view request_id) {
  if (request_id.empty()) return "";
  // Hash the caller: its name may have any length and contain slashes.
  return StrCat(absl::BytesToHexString(Sha256(caller).substr(0, 8)), "/", method, "/", request_id);
}

absl::Status RequestIdReused(const RequestMessages& messages, std::string_view key) {
  return InvalidArgument(Reason::kRequestIdReused, Text(messages.reused, key),
                         {{fact::kValue, RequestIdOf(key)}}, messages.python_type);
}

absl::Status RequestStillRuns(const RequestMessages& messages, std::string_view key) {
  return WithRetryDelay(absl::AbortedError(Text(messages.running, key)), absl::Milliseconds(100));
}

}  // namespace shardmesh::server
