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

// Maximum size, in bytes, of a status message that is sent. A call's trailers are limited to 8 KiB
// and contain the message twice. Longer messages are cut between UTF-8 characters and end in "...".
// Other texts of details are cut at a quarter of this bound.
inline constexpr size_t kMaxStatusMessageBytes = 1024;

// Returns valid UTF-8 of at most `limit` bytes. "..." replaces the part that was cut.
std::string WireText(std::string_view text, size_t limit);

// Returns the message of `status` as it is sent. It begins with the field at fault, and is cut at
// kMaxStatusMessageBytes.
std::string WireMessage(const absl::Status& status);

// Encodes code, message, and the details that are attached to the status:
//   - google.rpc.ErrorInfo (domain "shardmesh"): the reason, and as metadata the Python exception
//     class (`python_type`) and the facts of status/detail.h;
//   - RetryInfo (status/retry.h) and BadRequest;
//   - ResourceInfo, QuotaFailure or PreconditionFailure, which repeat facts;
//   - shardmesh.v1.CorrectionFailure.
// The details, in this order, are limited in bytes. A detail without room is omitted, and so are
// the corrections that have no room.
void Encode(const absl::Status& status, google::rpc::Status* to);
grpc::Status ToGrpc(const absl::Status& status);

// The inverse of Encode and ToGrpc. Drops details of other types, and an ErrorInfo of another
// domain. A reason that this build does not know becomes kUnspecified, but ToGrpc sends the reason
// as it was received.
absl::Status Decode(const google::rpc::Status& from);
absl::Status FromGrpc(const grpc::Status& status);
// Decodes a status that a client sent and that this process keeps: returns only its code, its
// reason, and its message, cut at kMaxStatusMessageBytes.
absl::Status DecodeBounded(const google::rpc::Status& from);

// The path of an invalid field of a request, and what is wrong with it.
struct FieldViolation {
  std::string field;
  std::string description;

  friend bool operator==(const FieldViolation&, const FieldViolation&) = default;
};

// Attaches the field of a request that the error is about. If the error has a field already,
// prepends `field` as the outer one: WithField(WithField(s, "dimensions[1]"), "spec") names
// `spec.dimensions[1]`. Also sets the fact `field` if errors of this reason have that fact. An OK
// status stays unchanged.
absl::Status WithField(absl::Status status, std::string_view field);
// Like WithField above, for an entry of a repeated field: `dimensions[1]`.
absl::Status WithField(absl::Status status, std::string_view field, size_t index);
// Returns the fields that the status names; empty if it names none.
std::vector<FieldViolation> FieldViolationsOf(const absl::Status& status);

// Returns INVALID_ARGUMENT (BAD_FIELD) about one field.
absl::Status BadField(std::string_view field, std::string_view message);

// Key of the payload that WithCorrections attaches: the type URL of shardmesh.v1.CorrectionFailure.
inline constexpr absl::string_view kCorrectionFailureUrl =
    "type.googleapis.com/shardmesh.v1.CorrectionFailure";

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CODEC_STATUS_H_
