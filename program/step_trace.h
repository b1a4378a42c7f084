// The timeline of one step: what each rank did, and when.
#ifndef SHARDMESH_PROGRAM_STEP_TRACE_H_
#define SHARDMESH_PROGRAM_STEP_TRACE_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "sharding/mesh.h"

namespace shardmesh {

// The most spans that a rank records in one step, and that all ranks record together.
inline constexpr int64_t kMaxRankSpans = 4096;
inline constexpr int64_t kMaxStepSpans = 32'768;

// Returns the most spans that each of `ranks` ranks records; at least 1. Requires ranks >= 1.
constexpr int64_t SpansOfEachRank(int64_t ranks) {
  return std::clamp<int64_t>(kMaxStepSpans / ranks, 1, kMaxRankSpans);
}

// What a rank did during a span of time.
enum class TraceSpanKind : uint8_t {
  kInstruction,  // ran an instruction of the plan; spans of the other kinds lie within it
  kKernel,       // computed
  kSend,         // handed a message to the link to a peer, which may read the message later
  kWait,         // waited for data of a peer; without a peer, for the kernel of another step
};

// Returns a name such as `kernel`.
constexpr const char* TraceSpanKindName(TraceSpanKind kind) {
  constexpr const char* kNames[] = {"instruction", "kernel", "send", "wait"};
  return kNames[static_cast<int>(kind)];
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

// What one rank did in a step.
struct RankTrace {
  DeviceId rank = 0;
  // When the rank began the step, by the wall clock of its host. The times of ranks on one host are
  // comparable. Between hosts, they differ as the wall clocks do.
  absl::Time started = absl::UnixEpoch();
  std::vector<TraceSpan> spans = {};  // in the order in which they ended
  int64_t omitted_spans = 0;          // later spans, left out because of a limit

  friend bool operator==(const RankTrace&, const RankTrace&) = default;
};

// What all ranks did in a step.
struct StepTrace {
  std::vector<std::string> labels = {};  // of the plan's instructions, by index; may end early
  std::vector<RankTrace> ranks = {};     // in the order of ranks; some may be missing

  friend bool operator==(const StepTrace&, const StepTrace&) = default;
};

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_STEP_TRACE_H_
