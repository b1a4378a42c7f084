// Verdicts on stuck steps: which ranks and workers other ranks wait for.
#ifndef SHARDMESH_SERVER_DIAGNOSIS_DIAGNOSIS_H_
#define SHARDMESH_SERVER_DIAGNOSIS_DIAGNOSIS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "program/flight_record.h"

namespace shardmesh::server {

// The known state of a rank and of the worker that serves it.
struct ObservedRank {
  int64_t rank = 0;
  std::string identity;
  // Why the worker is lost; empty while the worker is alive.
  std::string lost_because = {};
  absl::Time lost = absl::InfinitePast();  // InfinitePast: the worker was never attached
  absl::Time last_heartbeat = absl::InfinitePast();
  std::vector<std::string> unreached = {};  // identities of peers that the worker does not reach
  // Whether the worker has not answered a question that others have answered since. `progress` then
  // tells an earlier state.
  bool is_mute = false;
  // Whether the rank has reported that its part of the step is done.
  bool is_done = false;
  std::optional<StepProgress> progress = {};  // as of the last heartbeat
  std::vector<FlightRecord> ended = {};       // ended instructions of the step, oldest first
};

// A running step.
struct ObservedStep {
  int64_t sequence = 0;
  std::string op = {};
  std::string mesh_id = {};
  absl::Time started = absl::InfinitePast();
  std::vector<ObservedRank> ranks = {};  // by rank
};

// Records in the durable state that the coordinator skipped at its start, because they cannot be
// read or refer to a record that cannot be read.
struct UnreadableRecords {
  int64_t count = 0;
  std::vector<std::string> keys = {};  // keys of the first records, with C escapes
};

struct Culprit {
  int64_t rank = -1;  // -1: not known
  std::string identity;
  std::string reason;  // such as "has sent no heartbeat for 2.1s"
};

enum class FindingKind {
  kStuck,        // ranks of a step wait for ranks that run something else, or nothing
  kDeadlock,     // ranks wait for each other in different instructions: their programs differ
  kCutOff,       // ranks wait for each other in one instruction: data does not get through
  kFailed,       // a step failed
  kWorker,       // a worker that serves a rank is lost, silent, or does not reach its peers
  kDegraded,     // arrays lack tiles
  kQuarantined,  // workers hold tiles in quarantine
  kUnreadable,   // the durable state has records that cannot be read
};

struct Finding {
  FindingKind kind = FindingKind::kStuck;
  // One sentence, such as `step 12 (linear of "x", "w") is stuck: `, followed by `explanation`.
  std::string summary = {};
  // Such as `ranks 0 and 1 wait in "op 0 (linear): all-reduce over tp" for rank 2 (worker-2), which
  // has not begun the step`.
  std::string explanation = {};
  int64_t sequence = 0;
  std::string op = {};
  std::string mesh_id = {};
  std::optional<int64_t> instruction = {};
  std::string label = {};
  std::vector<int64_t> waiting = {};  // the ranks that wait, in rising order
  std::vector<Culprit> culprits = {};
  absl::Time since = absl::InfinitePast();
  // Whether some rank waits, is lost or silent, or has not begun the step. False if all ranks are
  // only at work.
  bool is_blocked = true;
};

struct DiagnosisOptions {
  absl::Time now;
  // The workers' heartbeat interval. A worker whose heartbeat is overdue counts as silent, and at
  // fault, in two cases:
  //   - its last heartbeat is 1.5 intervals older than the newest one (with three or more workers:
  //     than the second newest);
  //   - it has sent no heartbeat for 1.5 intervals, and for at least two seconds unless it is the
  //     only worker.
  absl::Duration heartbeat_interval = absl::Seconds(1);
};

// Returns what keeps a step from ending. The diagnosis follows each waiting rank to the rank whose
// data it waits for. It stops at ranks that do not wait (lost, silent, mute, not yet in the step,
// busy, or past the instruction in which the other ranks wait), or at a cycle of ranks. Nullopt if
// the known facts do not suffice.
std::optional<Finding> DiagnoseStep(const ObservedStep& step, const DiagnosisOptions& options);

// Returns one finding for each worker of a mesh that is lost, silent, or does not reach its peers.
std::vector<Finding> DiagnoseWorkers(absl::Span<const ObservedRank> ranks,
                                     const std::string& mesh_id, const DiagnosisOptions& options);

// Names an instruction by its label: `"op 0 (linear): all-reduce over tp"`. Without a label:
// `instruction 3`.
std::string DescribeInstruction(int64_t instruction, std::string_view label);

// Names ranks: `rank 3`, `ranks 0, 1 and 2`. Of more than eight ranks, names the first eight and
// gives the number of the others.
std::string DescribeRanks(absl::Span<const int64_t> ranks);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_DIAGNOSIS_DIAGNOSIS_H_
