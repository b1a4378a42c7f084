// Encodes timelines of steps as trace events.
#include "client/inspect/trace_events.h"

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/time/time.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

using Json = nlohmann::ordered_json;

// The thread of a rank that has the spans of this kind.
int ThreadOf(TraceSpanKind kind) { return TraceSpanKindNumber(kind); }

// Returns the kinds that have a row for this rank: those that have a name, and others of its spans.
std::set<TraceSpanKind> KindsOf(const RankTrace& rank) {
  std::set<TraceSpanKind> kinds = {TraceSpanKind::kInstruction, TraceSpanKind::kKernel,
                                   TraceSpanKind::kSend, TraceSpanKind::kWait};
  for (const TraceSpan& span : rank.spans) kinds.insert(span.kind);
  return kinds;
}

// Gives a process or a thread its name. `what`: process_name or thread_name.
Json NameEvent(const char* what, DeviceId rank, int thread, const std::string& name) {
  return {{"name", what}, {"ph", "M"}, {"pid", rank}, {"tid", thread}, {"args", {{"name", name}}}};
}

// Whether this build knows what a span of the kind is.
bool HasName(TraceSpanKind kind) {
  return kind >= TraceSpanKind::kInstruction && kind <= TraceSpanKind::kWait;
}

std::string LabelOf(const StepTrace& trace, int64_t op) {
  const auto index = static_cast<size_t>(op);
  return op >= 0 && index < trace.labels.size() ? trace.labels[index] : StrCat("instruction ", op);
}

std::string NameOf(const StepTrace& trace, const TraceSpan& span) {
  switch (span.kind) {
    case TraceSpanKind::kInstruction:
    case TraceSpanKind::kKernel:
      return LabelOf(trace, span.op);
    case TraceSpanKind::kSend:
      return StrCat("send to rank ", span.peer.value_or(-1));
    case TraceSpanKind::kWait:
      return span.peer.has_value() ? StrCat("wait for rank ", *span.peer)
                                   : "wait for another step's kernel";
  }
  return StrCat(TraceSpanKindName(span.kind), ": ", LabelOf(trace, span.op));
}

Json SpanEvent(const StepTrace& trace, DeviceId rank, absl::Duration offset,
               const TraceSpan& span) {
  Json arguments = {{"instruction", span.op}};
  const bool is_within = span.kind == TraceSpanKind::kSend || span.kind == TraceSpanKind::kWait;
  if (is_within) arguments["label"] = LabelOf(trace, span.op);
  if (span.kind == TraceSpanKind::kKernel) arguments["flops"] = span.flops;
  if (span.bytes > 0) arguments["bytes"] = span.bytes;
  if (!HasName(span.kind)) {
    if (span.flops > 0) arguments["flops"] = span.flops;
    if (span.peer.has_value()) arguments["peer"] = *span.peer;
  }
  return {{"name", NameOf(trace, span)},
          {"cat", TraceSpanKindName(span.kind)},
          {"ph", "X"},
          {"pid", rank},
          {"tid", ThreadOf(span.kind)},
          {"ts", absl::ToDoubleMicroseconds(offset + span.start)},
          {"dur", absl::ToDoubleMicroseconds(span.elapsed)},
          {"args", std::move(arguments)}};
}

}  // namespace

std::string TraceEventsOf(const StepTrace& trace, int64_t step) {
  Json events = Json::array();
  absl::Time first = absl::InfiniteFuture();
  for (const RankTrace& rank : trace.ranks) first = std::min(first, rank.started);
  int64_t omitted = 0;
  for (const RankTrace& rank : trace.ranks) {
    omitted += rank.omitted_spans;
    events.push_back(NameEvent("process_name", rank.rank, 0, StrCat("rank ", rank.rank)));
    for (const TraceSpanKind kind : KindsOf(rank)) {
      events.push_back(NameEvent("thread_name", rank.rank, ThreadOf(kind),
                                 HasName(kind) ? StrCat(TraceSpanKindName(kind), "s")
                                               : StrCat("spans of ", TraceSpanKindName(kind))));
    }
    for (const TraceSpan& span : rank.spans) {
      events.push_back(SpanEvent(trace, rank.rank, rank.started - first, span));
    }
  }
  const absl::Time began = trace.ranks.empty() ? absl::UnixEpoch() : first;
  const Json file = {
      {"traceEvents", std::move(events)},
      {"displayTimeUnit", "ns"},
      {"otherData",
       {{"step", step}, {"start_time_ns", absl::ToUnixNanos(began)}, {"omitted_spans", omitted}}}};
  return file.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace shardmesh::client
