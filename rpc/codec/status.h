// absl::Status inside, gRPC status with google.rpc details on the wire, and nothing lost between.
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

// Most bytes of a message on the wire: a call's trailers are limited to 8 KiB, and a message stands
// in them twice. Longer ones are cut at a character, and end in "...". Other texts of details are
// cut at a quarter of that.
inline constexpr size_t kMaxStatusMessageBytes = 1024;

// The message of `status` as it goes on the wire: it begins with the field at fault, and is cut at
// kMaxStatusMessageBytes.
std::string WireMessage(const absl::Status& status);

// Code, message, and as google.rpc details: ErrorInfo (domain "shardmesh"; the reason, the Python
// class as metadata.python_type, facts of status/detail.h as metadata), BadRequest and RetryInfo,
// each where attached.
grpc::Status ToGrpc(const absl::Status& status);

// The inverse. Details of other types are dropped; an ErrorInfo of another domain too. A reason
// that this build does not know reads as kUnspecified and is still passed on by ToGrpc.
absl::Status FromGrpc(const grpc::Status& status);

// A wrong field of a request: its path, and what is wrong with it.
struct FieldViolation {
  std::string field;
  std::string description;

  friend bool operator==(const FieldViolation&, const FieldViolation&) = default;
};

// Says that the error is about this field of a request. Around the decoding of a nested message it
// puts the outer field in front: WithField(WithField(s, "dimensions[1]"), "spec") names
// `spec.dimensions[1]`. An OK status stays as it is.
absl::Status WithField(absl::Status status, std::string_view field);
// The same for an entry of a repeated field: `dimensions[1]`.
absl::Status WithField(absl::Status status, std::string_view field, size_t index);
// Empty where no field was named.
std::vector<FieldViolation> FieldViolationsOf(const absl::Status& status);

// INVALID_ARGUMENT (BAD_FIELD) of one field.
absl::Status BadField(std::string_view field, std::string_view message);

using shardmesh::RetryDelayOf;
using shardmesh::WithRetryDelay;

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CODEC_STATUS_H_
