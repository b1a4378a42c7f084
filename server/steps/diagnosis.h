// Verdicts on stuck steps: which ranks and workers other ranks wait for.
#ifndef SHARDMESH_SERVER_STEPS_DIAGNOSIS_H_
#define SHARDMESH_SERVER_STEPS_DIAGNOSIS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "program/flight_record.h"

namespace shardmesh::server {

// The known state of a rank, and of the worker that serves it.
struct ObservedRank {
  int64_t rank = 0;
  std::string identity;
  // Empty while the worker is alive.
  std::string lost_because = {};
  absl::Time lost = absl::InfinitePast();  // InfinitePast: it was never attached
  absl::Time last_heartbeat = absl::InfinitePast();
  std::vector<std::string> unreached = {};  // identities of peers
  // The rank has reported that its part of the step is done.
  bool is_done = false;
  std::optional<StepProgress> progress = {};  // as of the last heartbeat
  std::vector<FlightRecord> ended = {};       // instructions of the step that ended, in order
};

// A step that runs.
struct ObservedStep {
  int64_t sequence = 0;
  std::string op = {};
  std::string mesh_id = {};
  absl::Time started = absl::InfinitePast();
  std::vector<ObservedRank> ranks = {};  // by rank
};

// Records of the store that were left out at the start: they cannot be read, or point to one that
// cannot.
struct UnreadableRecords {
  int64_t count = 0;
  std::vector<std::string> keys = {};  // of the first of them, with C escapes
};

struct Culprit {
  int64_t rank = -1;  // -1: not known
  std::string identity;
  std::string reason;  // "has sent no heartbeat for 2.1s"
};

enum class FindingKind {
  kStuck,        // ranks of a step wait for others that run something else, or nothing
  kDeadlock,     // ranks wait for each other in different instructions: their programs differ
  kCutOff,       // ranks wait for each other in one instruction: data does not get through
  kFailed,       // a step failed
  kWorker,       // a worker that serves a rank is lost, silent, or does not reach its peers
  kDegraded,     // arrays lack tiles
  kQuarantined,  // workers hold tiles in quarantine
  kUnreadable,   // records of the store were left out
};

struct Finding {
  FindingKind kind = FindingKind::kStuck;
  // One sentence: `step 12 (linear of "x", "w") is stuck: ` and the explanation below.
  std::string summary = {};
  // `ranks 0 and 1 wait in "op 0 (linear): all-reduce over tp" for rank 2 (worker-2), which has not
  // begun the step`
  std::string explanation = {};
  int64_t sequence = 0;
  std::string op = {};
  std::string mesh_id = {};
  std::optional<int64_t> instruction = {};
  std::string label = {};
  std::vector<int64_t> waiting = {};  // ranks, rising
  std::vector<Culprit> culprits = {};
  absl::Time since = absl::InfinitePast();
  // Whether a rank waits, is lost or silent, or has not begun the step; false if all ranks merely
  // work.
  bool is_blocked = true;
};

struct DiagnosisOptions {
  absl::Time now;
  // Interval of heartbeats. A worker is silent, and at fault, if its last heartbeat is one and a
  // half intervals older than that of the others; with three or more workers, than that of the
  // second newest. It is also silent after the same time without a heartbeat, and at least two
  // seconds unless it is the only worker.
  absl::Duration heartbeat_interval = absl::Seconds(1);
};

// Returns what keeps a step from its end, as far as it is known. The diagnosis follows waiting
// ranks from each to the rank whose data it waits for. It ends at ranks that do not wait (lost,
// silent, not yet in the step, busy, or past the instruction), or at a circle. Nullopt if the known
// facts do not suffice.
std::optional<Finding> DiagnoseStep(const ObservedStep& step, const DiagnosisOptions& options);

// Workers of a mesh, one an entry, that are lost, silent, or do not reach each other.
std::vector<Finding> DiagnoseWorkers(absl::Span<const ObservedRank> ranks,
                                     const std::string& mesh_id, const DiagnosisOptions& options);

// `"op 0 (linear): all-reduce over tp"`, by its label; `instruction 3` where it has none.
std::string DescribeInstruction(int64_t instruction, std::string_view label);

// `rank 3`, `ranks 0, 1 and 2`; of more than eight the first and how many more.
std::string DescribeRanks(absl::Span<const int64_t> ranks);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_DIAGNOSIS_H_
