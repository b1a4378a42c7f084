// Converts durations and times between protobuf's well-known messages and Abseil's types.
#ifndef SHARDMESH_RPC_CODEC_TIME_CODEC_H_
#define SHARDMESH_RPC_CODEC_TIME_CODEC_H_

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"

namespace shardmesh::rpc {

// Encode a value beyond the message's range as the nearest value in the range. The range of a
// Duration is 10,000 years in either direction, the range of a Timestamp is the years 1 to 9999.
void Encode(absl::Duration from, google::protobuf::Duration* to);
void Encode(absl::Time from, google::protobuf::Timestamp* to);

// INVALID_ARGUMENT (BAD_FIELD): seconds or nanoseconds are outside the message's range, or have
// different signs.
absl::StatusOr<absl::Duration> Decode(const google::protobuf::Duration& from);
absl::StatusOr<absl::Time> Decode(const google::protobuf::Timestamp& from);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CODEC_TIME_CODEC_H_
