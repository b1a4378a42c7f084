// Encodes and decodes timelines of steps, within their bounds.
#include "rpc/codec/trace_codec.h"

#include <string>
#include <utility>

#include "rpc/codec/enum_codec.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {
namespace {

static_assert(static_cast<int>(TraceSpanKind::kWait) + 1 == v1::TRACE_SPAN_KIND_WAIT);

void EncodeSpan(const TraceSpan& from, v1::TraceSpan* to) {
  to->set_kind(EncodeEnum<v1::TraceSpanKind>(from.kind));
  to->set_instruction(static_cast<uint32_t>(from.op));
  Encode(from.start, to->mutable_start());
  Encode(from.elapsed, to->mutable_elapsed());
  to->set_flops(from.flops);
  to->set_bytes(from.bytes);
  if (from.peer.has_value()) to->set_peer_rank(static_cast<int32_t>(*from.peer));
}

absl::StatusOr<TraceSpan> DecodeSpan(const v1::TraceSpan& from) {
  TraceSpan span{.op = from.instruction(), .flops = from.flops(), .bytes = from.bytes()};
  SHARDMESH_ASSIGN_OR_RETURN(
      span.kind,
      DecodeEnum<TraceSpanKind>(from.kind(), v1::TraceSpanKind_IsValid(from.kind()), "kind"));
  SHARDMESH_ASSIGN_OR_RETURN(span.start, Decode(from.start()));
  SHARDMESH_ASSIGN_OR_RETURN(span.elapsed, Decode(from.elapsed()));
  if (from.has_peer_rank()) span.peer = from.peer_rank();
  return span;
}

}  // namespace

void Encode(const RankTrace& from, v1::RankTrace* to) {
  to->set_rank(static_cast<int32_t>(from.rank));
  Encode(from.started, to->mutable_start_time());
  for (const TraceSpan& span : from.spans) EncodeSpan(span, to->add_spans());
  to->set_omitted_spans(from.omitted_spans);
}

absl::StatusOr<RankTrace> Decode(const v1::RankTrace& from) {
  if (from.spans_size() > kMaxRankSpans) {
    return BadField("spans", StrCat("has ", from.spans_size(), " elements; a rank records at most ",
                                    kMaxRankSpans));
  }
  RankTrace trace{.rank = from.rank(), .omitted_spans = from.omitted_spans()};
  SHARDMESH_ASSIGN_OR_RETURN(trace.started, Decode(from.start_time()));
  for (const v1::TraceSpan& span : from.spans()) {
    SHARDMESH_ASSIGN_OR_RETURN(trace.spans.emplace_back(), DecodeSpan(span));
  }
  return trace;
}

void Encode(const StepTrace& from, v1::StepTrace* to) {
  size_t label_bytes = 0;
  for (const std::string& label : from.labels) {
    label_bytes += label.size();
    if (label_bytes > kMaxTraceLabelBytes) break;
    to->add_labels(label);
  }
  for (const RankTrace& rank : from.ranks) Encode(rank, to->add_ranks());
}

absl::StatusOr<StepTrace> Decode(const v1::StepTrace& from) {
  StepTrace trace{.labels = {from.labels().begin(), from.labels().end()}};
  for (const v1::RankTrace& rank : from.ranks()) {
    SHARDMESH_ASSIGN_OR_RETURN(trace.ranks.emplace_back(), Decode(rank));
  }
  return trace;
}

}  // namespace shardmesh::rpc
