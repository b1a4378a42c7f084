// Records of the instructions of steps: flight records, for the diagnosis of hangs, and timelines.
#ifndef SHARDMESH_PROGRAM_FLIGHT_RECORD_H_
#define SHARDMESH_PROGRAM_FLIGHT_RECORD_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "sharding/mesh.h"

namespace shardmesh {

// One instruction of one step, as one rank ran it or still runs it.
struct FlightRecord {
  struct Peer {
    DeviceId rank = 0;
    absl::Time data_came = absl::InfiniteFuture();  // InfiniteFuture: not yet
  };

  // For an ended instruction: its number, from 0, in the order in which the process's instructions
  // ended.
  int64_t number = 0;
  int64_t step = 0;
  std::string mesh_id = {};
  DeviceId rank = 0;
  int64_t op = 0;         // index of the instruction in the plan; also the op in worker::Tag
  std::string what = {};  // label of the instruction: "op 0 (linear): all-reduce over tp"
  absl::Time started = absl::InfinitePast();
  absl::Time ended = absl::InfiniteFuture();  // InfiniteFuture: still runs
  absl::Status outcome = absl::OkStatus();    // OK while the instruction runs
  std::vector<Peer> peers = {};  // peers whose data the instruction needs; empty for local work
  int64_t omitted_peers = 0;     // number of such peers that `peers` does not list
  // The peer for whose data the instruction waits. After a failure: the last peer for whose data
  // the instruction waited.
  std::optional<DeviceId> waits_for = {};
  // While a change of layout by regions runs: bytes of regions that other ranks have sent so far.
  int64_t received_bytes = 0;

  bool is_running() const { return ended == absl::InfiniteFuture(); }
};

// A step that runs on a worker, and the instruction that it has reached.
struct StepProgress {
  int64_t step = 0;
  absl::Time started = absl::InfinitePast();  // on this worker
  // The running instruction; nullopt before the first instruction and after the last one.
  std::optional<FlightRecord> instruction = {};
};

// --- The timeline of one step: what each rank did, and when.

// The most spans that a rank records in one step, and that all ranks record together.
inline constexpr int64_t kMaxRankSpans = 4096;
inline constexpr int64_t kMaxStepSpans = 32'768;

// Returns the most spans that each of `ranks` ranks records; at least 1. Requires ranks >= 1.
constexpr int64_t SpansOfEachRank(int64_t ranks) {
  return std::clamp<int64_t>(kMaxStepSpans / ranks, 1, kMaxRankSpans);
}

// The work of a rank during a span of time. A worker of a newer build may record kinds that have no
// name here: they keep their number (TraceSpanKindNumber).
enum class TraceSpanKind : int32_t {
  kInstruction,  // ran an instruction of the plan; spans of the other kinds lie within it
  kKernel,       // computed
  kSend,         // handed a message to the link to a peer, which may read the message later
  kWait,         // waited for data of a peer; without a peer, for the kernel of another step
};

// Returns the number of the kind in v1::TraceSpanKind, from 1.
constexpr int32_t TraceSpanKindNumber(TraceSpanKind kind) { return static_cast<int32_t>(kind) + 1; }

// Returns a name such as `kernel`; for a kind without a name, its number, as in `kind 7`.
inline std::string TraceSpanKindName(TraceSpanKind kind) {
  switch (kind) {
    case TraceSpanKind::kInstruction:
      return "instruction";
    case TraceSpanKind::kKernel:
      return "kernel";
    case TraceSpanKind::kSend:
      return "send";
    case TraceSpanKind::kWait:
      return "wait";
  }
  return "kind " + std::to_string(TraceSpanKindNumber(kind));
}

// A span of time in which a rank did one thing.
struct TraceSpan {
  TraceSpanKind kind = TraceSpanKind::kInstruction;
  int64_t op = 0;                               // index of the instruction in the plan
  absl::Duration start = absl::ZeroDuration();  // since RankTrace::started
  absl::Duration elapsed = absl::ZeroDuration();
  int64_t flops = 0;  // of a kernel: floating-point operations, or elements
  int64_t bytes = 0;  // sent or received; of an instruction: sent to other ranks
  // The peer that gets a message, or for which the rank waited.
  std::optional<DeviceId> peer = std::nullopt;

  friend bool operator==(const TraceSpan&, const TraceSpan&) = default;
};

// The timeline of one rank in a step.
struct RankTrace {
  DeviceId rank = 0;
  // When the rank began the step, by the wall clock of its host. The times of ranks on one host are
  // comparable. Between hosts, they differ as the wall clocks do.
  absl::Time started = absl::UnixEpoch();
  std::vector<TraceSpan> spans = {};  // in the order in which they ended
  int64_t omitted_spans = 0;          // later spans, left out because of a limit

  friend bool operator==(const RankTrace&, const RankTrace&) = default;
};

// The timelines of all ranks in a step.
struct StepTrace {
  std::vector<std::string> labels = {};  // of the plan's instructions, by index; may end early
  std::vector<RankTrace> ranks = {};     // in the order of ranks; some may be missing

  friend bool operator==(const StepTrace&, const StepTrace&) = default;
};

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_FLIGHT_RECORD_H_
