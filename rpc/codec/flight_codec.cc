// Encodes and decodes flight records (records of instructions that ran) and timelines, within their
// bounds.
#include "rpc/codec/flight_codec.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rpc/codec/enum_codec.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "rpc/codec/worker_error_codec.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {
namespace {

// Returns at most `max_bytes` bytes of a text. Does not cut inside a UTF-8 character.
std::string Shortened(std::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return std::string(text);
  size_t size = max_bytes;
  while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80) --size;
  return std::string(text.substr(0, size));
}

absl::StatusOr<absl::Time> TimeOr(bool is_set, const google::protobuf::Timestamp& from,
                                  absl::Time otherwise) {
  if (!is_set) return otherwise;
  return Decode(from);
}

}  // namespace

void Encode(const FlightRecord& from, v1::FlightRecord* to) {
  to->set_number(from.number);
  to->set_sequence(from.step);
  to->set_mesh_id(from.mesh_id);
  to->set_rank(static_cast<int32_t>(from.rank));
  to->set_instruction(static_cast<uint32_t>(from.op));
  to->set_label(Shortened(from.what, kMaxFlightLabelBytes));
  Encode(from.started, to->mutable_start_time());
  if (!from.is_running()) Encode(from.ended, to->mutable_end_time());
  if (!from.outcome.ok()) {
    to->set_code(static_cast<int>(from.outcome.code()));
    to->set_message(Shortened(ToStd(from.outcome.message()), kMaxFlightMessageBytes));
  }
  std::vector<const FlightRecord::Peer*> peers;
  for (const FlightRecord::Peer& peer : from.peers) peers.push_back(&peer);
  if (peers.size() > kMaxFlightPeers) {
    std::stable_partition(peers.begin(), peers.end(), [](const FlightRecord::Peer* peer) {
      return peer->data_came == absl::InfiniteFuture();
    });
    peers.resize(kMaxFlightPeers);
  }
  for (const FlightRecord::Peer* peer : peers) {
    v1::FlightPeer* added = to->add_peers();
    added->set_rank(static_cast<int32_t>(peer->rank));
    if (peer->data_came != absl::InfiniteFuture()) {
      Encode(peer->data_came, added->mutable_data_time());
    }
  }
  to->set_omitted_peers(
      static_cast<int32_t>(from.omitted_peers + std::ssize(from.peers) - std::ssize(peers)));
  if (from.waits_for.has_value()) to->set_waits_for_rank(static_cast<int32_t>(*from.waits_for));
}

absl::StatusOr<FlightRecord> Decode(const v1::FlightRecord& from) {
  FlightRecord record{.number = from.number(),
                      .step = from.sequence(),
                      .mesh_id = from.mesh_id(),
                      .rank = from.rank(),
                      .op = from.instruction(),
                      .what = Shortened(from.label(), kMaxFlightLabelBytes),
                      .omitted_peers = from.omitted_peers()};
  SHARDMESH_ASSIGN_OR_RETURN(
      record.started, TimeOr(from.has_start_time(), from.start_time(), absl::InfinitePast()));
  SHARDMESH_ASSIGN_OR_RETURN(record.ended,
                             TimeOr(from.has_end_time(), from.end_time(), absl::InfiniteFuture()));
  if (from.code() != 0) {
    internal::v1::WorkerError error;
    error.set_code(from.code());
    error.set_message(Shortened(from.message(), kMaxFlightMessageBytes));
    record.outcome = Decode(error);
  }
  for (const v1::FlightPeer& peer : from.peers()) {
    if (record.peers.size() == kMaxFlightPeers) {
      record.omitted_peers += from.peers_size() - std::ssize(record.peers);
      break;
    }
    FlightRecord::Peer& added = record.peers.emplace_back();
    added.rank = peer.rank();
    SHARDMESH_ASSIGN_OR_RETURN(
        added.data_came, TimeOr(peer.has_data_time(), peer.data_time(), absl::InfiniteFuture()));
  }
  if (from.has_waits_for_rank()) record.waits_for = from.waits_for_rank();
  return record;
}

void Encode(const StepProgress& from, v1::StepProgress* to) {
  to->set_sequence(from.step);
  Encode(from.started, to->mutable_start_time());
  if (from.instruction.has_value()) Encode(*from.instruction, to->mutable_instruction());
}

absl::StatusOr<StepProgress> Decode(const v1::StepProgress& from) {
  StepProgress progress{.step = from.sequence()};
  SHARDMESH_ASSIGN_OR_RETURN(
      progress.started, TimeOr(from.has_start_time(), from.start_time(), absl::InfinitePast()));
  if (from.has_instruction()) {
    SHARDMESH_ASSIGN_OR_RETURN(progress.instruction, Decode(from.instruction()));
  }
  return progress;
}

namespace {

static_assert(TraceSpanKindNumber(TraceSpanKind::kWait) == v1::TRACE_SPAN_KIND_WAIT);

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
  // A kind that only newer builds know keeps its number.
  SHARDMESH_ASSIGN_OR_RETURN(span.kind,
                             DecodeEnum<TraceSpanKind>(from.kind(), from.kind() > 0, "kind"));
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
