// CallOptions: the time limit and the cancellation of one call of a sub-client.
#ifndef SHARDMESH_CLIENT_TYPES_CALL_OPTIONS_H_
#define SHARDMESH_CLIENT_TYPES_CALL_OPTIONS_H_

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "client/types/cancellation.h"

namespace shardmesh::client {

// Options of one call. The last argument of each method of the sub-clients.
//
// Example:
//   client->cluster().GetStatus("", {.timeout = absl::Seconds(2)});
struct CallOptions {
  // The call fails with DEADLINE_EXCEEDED after this time, retries included. Nullopt means the
  // client's own limit: MeshClientOptions::timeout, or transfer_timeout for calls that move
  // tensors.
  std::optional<absl::Duration> timeout = std::nullopt;
  // Another thread can cancel this object to end the call with CANCELLED (reason CANCELLED), also
  // between retries. The coordinator may nevertheless have made the requested change. May be null;
  // must outlive the call.
  Cancellation* cancellation = nullptr;
  // The W3C trace context that the call passes on, such as `00-TRACE-SPAN-01`; empty for none.
  std::string traceparent = {};
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_TYPES_CALL_OPTIONS_H_
