// Converts flight records (records of instructions that ran) and the progress of steps between
// messages and values. spec_codec.h states the rules for all codecs.
#ifndef SHARDMESH_RPC_CODEC_FLIGHT_CODEC_H_
#define SHARDMESH_RPC_CODEC_FLIGHT_CODEC_H_

#include "absl/status/statusor.h"
#include "program/flight_record.h"
#include "shardmesh/v1/cluster_service.pb.h"

namespace shardmesh::rpc {

// Maximum size, in bytes, of a record's label and of a record's error, and maximum number of a
// record's peers. Encoding and decoding truncate longer texts and lists.
inline constexpr size_t kMaxFlightLabelBytes = 256;
inline constexpr size_t kMaxFlightMessageBytes = 512;
inline constexpr size_t kMaxFlightPeers = 64;

void Encode(const FlightRecord& from, v1::FlightRecord* to);
// INVALID_ARGUMENT (BAD_FIELD): a time is invalid.
absl::StatusOr<FlightRecord> Decode(const v1::FlightRecord& from);

void Encode(const StepProgress& from, v1::StepProgress* to);
absl::StatusOr<StepProgress> Decode(const v1::StepProgress& from);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CODEC_FLIGHT_CODEC_H_
