// Recognises streams that a peer's gRPC reset because its memory quota was used up.
#include "rpc/call_memory.h"

#include <string_view>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/time/time.h"
#include "rpc/codec/status.h"
#include "status/detail.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {
namespace {

// Key of the payload that marks a status of ExplainCallMemory. The payload stays within this
// process: it is not sent to peers.
constexpr char kPayload[] = "shardmesh.rpc/call_memory";
// HTTP/2 error ENHANCE_YOUR_CALM. gRPC 1.51 sends it only for a stream that its memory quota ends.
constexpr std::string_view kReset = "RST_STREAM with error code 11";
constexpr absl::Duration kRetryDelay = absl::Milliseconds(200);

}  // namespace

absl::Status ExplainCallMemory(absl::Status outcome) {
  if (!absl::IsResourceExhausted(outcome) || ReasonOf(outcome) != Reason::kUnspecified ||
      ToStd(outcome.message()).find(kReset) == std::string_view::npos) {
    return outcome;
  }
  absl::Status explained = WithRetryDelay(
      WithReason(absl::ResourceExhaustedError(
                     "the process ended this call because running calls have used up its memory "
                     "for calls; try again when fewer calls run, or raise its --rpc-memory"),
                 Reason::kOverloaded),
      kRetryDelay);
  explained.SetPayload(kPayload, absl::Cord("1"));
  return explained;
}

bool IsShortOfCallMemory(const absl::Status& status) {
  return status.GetPayload(kPayload).has_value();
}

}  // namespace shardmesh::rpc
