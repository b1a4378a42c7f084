// Converts timelines of steps between messages and values. spec_codec.h states the rules for all
// codecs.
#ifndef SHARDMESH_RPC_CODEC_TRACE_CODEC_H_
#define SHARDMESH_RPC_CODEC_TRACE_CODEC_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "program/step_trace.h"
#include "shardmesh/v1/trace.pb.h"

namespace shardmesh::rpc {

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

#endif  // SHARDMESH_RPC_CODEC_TRACE_CODEC_H_
