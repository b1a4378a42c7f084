// Converts absl::Status to a gRPC status with google.rpc details, and back without loss.
#ifndef SHARDMESH_RPC_CODEC_STATUS_H_
#define SHARDMESH_RPC_CODEC_STATUS_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "status/detail.h"

namespace grpc {
class Status;
}  // namespace grpc

namespace shardmesh::rpc {

// Upper bound on the bytes of a message on the wire. A call's trailers are limited to 8 KiB and
// contain the message twice. Longer messages are cut between characters and end in "...". Other
// texts of details are cut at a quarter of the bound.
inline constexpr size_t kMaxStatusMessageBytes = 1024;

// The message of `status` as it goes on the wire: it begins with the field at fault, and is cut at
// kMaxStatusMessageBytes.
std::string WireMessage(const absl::Status& status);

// Code, message, and as google.rpc details: ErrorInfo (domain "shardmesh"; the reason, the Python
// class as metadata.python_type, facts of status/detail.h as metadata), BadRequest and RetryInfo,
// each where attached.
grpc::Status ToGrpc(const absl::Status& status);

// The inverse of ToGrpc. Drops details of other types, and an ErrorInfo of another domain. A reason
// that this build does not know becomes kUnspecified, and ToGrpc still passes it on.
absl::Status FromGrpc(const grpc::Status& status);

// The path of an invalid field of a request, and the fault.
struct FieldViolation {
  std::string field;
  std::string description;

  friend bool operator==(const FieldViolation&, const FieldViolation&) = default;
};

// Attaches the field of a request that the error is about. For the error of a nested message,
// prepends the outer field: WithField(WithField(s, "dimensions[1]"), "spec") names
// `spec.dimensions[1]`. An OK status stays unchanged.
absl::Status WithField(absl::Status status, std::string_view field);
// As above, for an entry of a repeated field: `dimensions[1]`.
absl::Status WithField(absl::Status status, std::string_view field, size_t index);
// Returns an empty list if the status names no field.
std::vector<FieldViolation> FieldViolationsOf(const absl::Status& status);

// Returns INVALID_ARGUMENT (BAD_FIELD) for one field.
absl::Status BadField(std::string_view field, std::string_view message);

using shardmesh::RetryDelayOf;
using shardmesh::WithRetryDelay;

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CODEC_STATUS_H_
