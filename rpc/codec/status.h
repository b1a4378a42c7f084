// Converts absl::Status to a gRPC status with google.rpc details, and back without loss.
#ifndef SHARDMESH_RPC_CODEC_STATUS_H_
#define SHARDMESH_RPC_CODEC_STATUS_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "rpc/codec/correction_codec.h"
#include "status/fact_keys.h"

namespace google::rpc {
class Status;
}  // namespace google::rpc
namespace grpc {
class Status;
}  // namespace grpc

namespace shardmesh::rpc {

// Upper bound on the bytes of a message on the wire. A call's trailers are limited to 8 KiB and
// contain the message twice. Longer messages are cut between characters and end in "...". Other
// texts of details are cut at a quarter of the bound.
inline constexpr size_t kMaxStatusMessageBytes = 1024;

// Valid UTF-8 of at most `limit` bytes; an ellipsis replaces the cut part.
std::string WireText(std::string_view text, size_t limit);

// The message of `status` as it goes on the wire: it begins with the field at fault, and is cut at
// kMaxStatusMessageBytes.
std::string WireMessage(const absl::Status& status);

// Code, message, and details, each where attached: google.rpc.ErrorInfo (domain "shardmesh"; the
// reason, the Python class as metadata.python_type, facts of status/detail.h as metadata),
// RetryInfo (status/retry.h), BadRequest, and shardmesh.v1.CorrectionFailure. ResourceInfo,
// QuotaFailure and PreconditionFailure repeat facts. The details have a limit of bytes, in this
// order; a detail that has no room is left out, and corrections as many as have none.
void Encode(const absl::Status& status, google::rpc::Status* to);
grpc::Status ToGrpc(const absl::Status& status);

// The inverse. Drops details of other types, and an ErrorInfo of another domain. A reason that this
// build does not know becomes kUnspecified, and ToGrpc still passes it on.
absl::Status Decode(const google::rpc::Status& from);
absl::Status FromGrpc(const grpc::Status& status);

// The path of an invalid field of a request, and the fault.
struct FieldViolation {
  std::string field;
  std::string description;

  friend bool operator==(const FieldViolation&, const FieldViolation&) = default;
};

// Attaches the field of a request that the error is about. For the error of a nested message,
// prepends the outer field: WithField(WithField(s, "dimensions[1]"), "spec") names
// `spec.dimensions[1]`. It is also the fact `field` where errors of the reason have one. An OK
// status stays unchanged.
absl::Status WithField(absl::Status status, std::string_view field);
// As above, for an entry of a repeated field: `dimensions[1]`.
absl::Status WithField(absl::Status status, std::string_view field, size_t index);
// Returns an empty list if the status names no field.
std::vector<FieldViolation> FieldViolationsOf(const absl::Status& status);

// Returns INVALID_ARGUMENT (BAD_FIELD) for one field.
absl::Status BadField(std::string_view field, std::string_view message);

// Key of the payload of WithCorrections: the type URL of shardmesh.v1.CorrectionFailure.
inline constexpr absl::string_view kCorrectionFailureUrl =
    "type.googleapis.com/shardmesh.v1.CorrectionFailure";

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CODEC_STATUS_H_
