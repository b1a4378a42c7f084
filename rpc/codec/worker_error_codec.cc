// Encodes and decodes the errors in messages of the attach stream.
#include "rpc/codec/worker_error_codec.h"

#include <string>
#include <utility>

#include "rpc/codec/status.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"

namespace shardmesh::rpc {

namespace {

constexpr size_t kMaxFactBytes = 256;

}  // namespace

void Encode(const absl::Status& from, internal::v1::WorkerError* to) {
  if (from.ok()) {
    return;
  }
  to->set_code(static_cast<int>(from.code()));
  to->set_message(std::string(from.message()));
  if (const Reason reason = ReasonOf(from); reason != Reason::kUnspecified) {
    to->set_reason(std::string(ReasonName(reason)));
  }
  for (const auto& [key, value] : FactsOf(from)) {
    (*to->mutable_facts())[WireText(key, kMaxFactBytes)] = WireText(value, kMaxFactBytes);
  }
}

absl::Status Decode(const internal::v1::WorkerError& from) {
  // absl::Status would keep an unknown code as it is, so such a code becomes kUnknown.
  constexpr int kLastCode = static_cast<int>(absl::StatusCode::kUnauthenticated);
  const bool is_known = from.code() >= 0 && from.code() <= kLastCode;
  const auto code =
      is_known ? static_cast<absl::StatusCode>(from.code()) : absl::StatusCode::kUnknown;
  absl::Status status(code, from.message());
  for (const auto& [key, value] : from.facts()) {
    status = WithFact(std::move(status), key, value);
  }
  const auto reason = ReasonFromName(from.reason());
  if (!status.ok() && reason.has_value() && *reason != Reason::kUnspecified) {
    return WithReason(std::move(status), *reason);
  }
  return status;
}

}  // namespace shardmesh::rpc
