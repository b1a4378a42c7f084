// Encodes and decodes the errors inside the attach stream.
#include "rpc/codec/worker_error_codec.h"

#include <string>
#include <utility>

#include "status/reason.h"

namespace shardmesh::rpc {

void Encode(const absl::Status& from, v1::WorkerError* to) {
  if (from.ok()) {
    return;
  }
  to->set_code(static_cast<int>(from.code()));
  to->set_message(std::string(from.message()));
  if (const Reason reason = ReasonOf(from); reason != Reason::kUnspecified) {
    to->set_reason(std::string(ReasonName(reason)));
  }
}

absl::Status Decode(const v1::WorkerError& from) {
  // absl's constructor would keep a code without a name.
  constexpr int kLastCode = static_cast<int>(absl::StatusCode::kUnauthenticated);
  const bool is_known = from.code() >= 0 && from.code() <= kLastCode;
  const auto code =
      is_known ? static_cast<absl::StatusCode>(from.code()) : absl::StatusCode::kUnknown;
  absl::Status status(code, from.message());
  const auto reason = ReasonFromName(from.reason());
  if (!status.ok() && reason.has_value() && *reason != Reason::kUnspecified) {
    return WithReason(std::move(status), *reason);
  }
  return status;
}

}  // namespace shardmesh::rpc
