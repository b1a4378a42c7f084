// Converts measured links between messages and values. spec_codec.h states the rules for all
// codecs.
#ifndef SHARDMESH_RPC_CODEC_LINK_CODEC_H_
#define SHARDMESH_RPC_CODEC_LINK_CODEC_H_

#include "absl/status/statusor.h"
#include "program/measured_rates.h"
#include "shardmesh/v1/cluster_service.pb.h"

namespace shardmesh::rpc {

void Encode(const MeasuredLink& from, v1::MeasuredLink* to);
// INVALID_ARGUMENT (BAD_FIELD): an unknown transport, a negative latency, an invalid time, or a
// number of bytes per second that is not finite or not above 0.
absl::StatusOr<MeasuredLink> Decode(const v1::MeasuredLink& from);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CODEC_LINK_CODEC_H_
