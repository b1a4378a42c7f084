// Converts flight records (records of instructions that ran), the progress of steps and timelines
// of steps between messages and values. spec_codec.h states the rules for all codecs.
#ifndef SHARDMESH_RPC_CODEC_FLIGHT_CODEC_H_
#define SHARDMESH_RPC_CODEC_FLIGHT_CODEC_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "program/flight_record.h"
#include "shardmesh/v1/cluster_service.pb.h"
#include "shardmesh/v1/trace.pb.h"

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

// The limit for the bytes of a timeline's labels. Encode leaves out the labels beyond.
inline constexpr size_t kMaxTraceLabelBytes = size_t{512} << 10;

void Encode(const RankTrace& from, v1::RankTrace* to);
// INVALID_ARGUMENT (BAD_FIELD): a time or a kind is invalid, or there are more than kMaxRankSpans
// spans.
absl::StatusOr<RankTrace> Decode(const v1::RankTrace& from);

void Encode(const StepTrace& from, v1::StepTrace* to);
// Errors are those of Decode of a RankTrace.
absl::StatusOr<StepTrace> Decode(const v1::StepTrace& from);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CODEC_FLIGHT_CODEC_H_
