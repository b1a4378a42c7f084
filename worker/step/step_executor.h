// Runs this rank's part of the steps that the coordinator orders.
#ifndef SHARDMESH_WORKER_STEP_STEP_EXECUTOR_H_
#define SHARDMESH_WORKER_STEP_STEP_EXECUTOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "process/clock.h"
#include "program/flight_record.h"
#include "program/program.h"
#include "sharding/mesh.h"
#include "tensor/array_descriptor.h"
#include "tensor/buffer.h"
#include "tensor/literal.h"
#include "worker/exchange/peer_links.h"
#include "worker/kernel/matmul.h"
#include "worker/step/flight_recorder.h"
#include "worker/store/shard_store.h"

namespace shardmesh::worker {

// An operand of a step.
struct StepOperand {
  // The id of a committed array, or a whole tensor that every device gets.
  std::variant<std::string, Literal> value;
  // The step is the last use of the array: the array is released when the step commits. Where a
  // result is made in its memory (ResultOverOperand), the rank gives it up as soon as the step
  // begins.
  bool donate = false;
};

// A result of a step.
struct StepOutput {
  ArrayDescriptor array;
  // The bytes from which the caller decoded `array`, kept with the tile
  // (TileDescription::array_descriptor).
  std::string encoded;
};

// One step as the coordinator ordered it; the same for every rank of the mesh.
struct StepOrder {
  int64_t sequence = 0;
  int64_t epoch = 0;
  int64_t term = 0;
  std::string plan_hash;   // SHA-256 of the plan's bytes
  std::string plan_bytes;  // empty if the worker should know the plan
  std::vector<StepOperand> operands;
  std::vector<StepOutput> outputs;  // as many as the plan has
  absl::Duration timeout = absl::InfiniteDuration();
  // Report the outputs' elements for tiles of which this rank holds the first replica.
  bool return_literals = false;
};

enum class StepOutcome {
  kDone,      // every output is staged
  kFailed,    // nothing is staged
  kNeedPlan,  // the plan is unknown; the step waits for Run with the plan's bytes
};

struct StepResult {
  struct Output {
    std::string array_id;
    uint32_t crc32c = 0;     // of the tile
    int64_t size_bytes = 0;  // of the tile
    std::string data;        // its elements, if requested and this rank sends them
  };

  int64_t sequence = 0;
  int64_t epoch = 0;  // of the order
  int64_t term = 0;   // of the order
  DeviceId rank = 0;  // in the plan's mesh; 0 if the plan is unknown
  StepOutcome outcome = StepOutcome::kDone;
  std::vector<Output> outputs = {};  // if kDone
  // If kFailed: names this rank, the step and the op.
  absl::Status status = absl::OkStatus();
  // The peer that caused the failure, unless it is this worker.
  std::string blamed_identity = {};
  absl::Duration kernel_time = absl::ZeroDuration();
  absl::Duration collective_time = absl::ZeroDuration();
  int64_t sent_bytes = 0;
};

// Callbacks for metrics. Each may be empty. Several of the executor's threads may call them at
// once, with no lock held.
struct StepObserver {
  std::function<void(StepOutcome outcome, absl::Duration elapsed)> step;
  std::function<void(int64_t flops, absl::Duration elapsed)> kernel;
  // Bytes that a collective sent to peers, and bytes that it copied in memory.
  struct CollectiveBytes {
    int64_t sent = 0;
    int64_t copied_to_send = 0;
    int64_t copied_received = 0;
  };
  std::function<void(CollectiveKind kind, CollectiveAlgorithm algorithm,
                     const CollectiveBytes& bytes, absl::Duration elapsed)>
      collective;
};

// Runs steps side by side, each on its own thread, and begins them in the order of their sequence
// numbers.
//
// The coordinator never orders two concurrent steps of which one writes an array that the other
// uses. Any steps may therefore overlap. Their collectives overlap; their kernels take turns
// (KernelTurns).
//
// A step whose plan is unknown is skipped until its plan's bytes come. A step that waits for a
// membership, or for a peer's memory, holds only a thread.
//
// Why steps cannot deadlock on the threads:
// - There are kRunners + 1 threads. A step takes the last one only if no step below it is
//   unfinished on this worker. At most one step therefore has it, and the lowest unfinished step
//   never waits for a thread.
// - The coordinator sends orders to all workers in the order of their numbers, which count over the
//   whole pool. The lowest step that is unfinished anywhere is therefore the lowest on each of its
//   workers.
// - All these workers run this step, or wait only for its plan. It ends, or its deadline passes.
//   Then the same holds for the next step.
//
// clang-format off
//   Run -> waiting -> running -> staged -> Commit: its outputs are arrays
//            |           |         |
//            +-----------+---------+----> Abort, failure: nothing is left of it
// clang-format on
//
// A step that fails here is aborted on its peers too. A step notices an abort at once while it
// waits for data, and otherwise between blocks of a kernel. Plans are cached by hash.
//
// Thread-safe.
class StepExecutor {
 public:
  // At a step's timeout the coordinator, which receives reports from all ranks, names the rank at
  // fault. Without a verdict, a worker ends the step this much later.
  static constexpr absl::Duration kVerdictGrace = absl::Seconds(1);
  // Most bytes of elements that one result carries.
  static constexpr int64_t kMaxReturnedBytes = kMaxLiteralBytes;
  // Steps that run side by side, in addition to the lowest one.
  static constexpr int kRunners = 4;
  // Plans in the cache: a plan takes some kilobytes, and a client has some tens of plans.
  static constexpr size_t kPlanCapacity = 256;

  // All pointers outlive the executor.
  struct Options {
    std::string identity;
    PeerLinks* links = nullptr;
    ShardStore* store = nullptr;
    // For values between operands and outputs; usually the store's.
    std::shared_ptr<BufferPool> pool;
    MatmulKernel* kernel = nullptr;
    // Budget for packed copies of weights, usually the store's; null: no weights are packed.
    MemoryBudget* weight_budget = nullptr;
    FlightRecorder* recorder = nullptr;
    Clock* clock = nullptr;
    StepObserver observer;
  };

  using Report = std::function<void(StepResult result)>;

  static std::unique_ptr<StepExecutor> Start(Options options);
  // Fails waiting and running steps (CANCELLED), reports them, and joins the threads.
  virtual ~StepExecutor() = default;
  StepExecutor(const StepExecutor&) = delete;
  StepExecutor& operator=(const StepExecutor&) = delete;

  // Queues a step, or passes the plan's bytes to a step that waits for its plan.
  //
  // Calls `report` once for each call of Run, on one of the executor's threads. If the order is
  // refused or the plan unknown, it runs on this thread. `report` must not block.
  // FAILED_PRECONDITION if the step's number is not above that of the last ordered step. ABORTED
  // (STALE_TERM) for a term below the highest seen. A step that waits for its plan fails at its
  // timeout.
  virtual void Run(StepOrder order, Report report) = 0;

  // Turns the step's outputs into arrays and releases the operands that it donated. NOT_FOUND for a
  // step that has nothing staged here; otherwise errors of ShardStore::Commit.
  virtual absl::Status Commit(int64_t sequence) = 0;

  // Ends the step in any state: drops its staged outputs and its unsent messages. A running or
  // waiting step fails with `status` and reports it.
  virtual void Abort(int64_t sequence, const absl::Status& status) = 0;

  // Fails waiting and running steps with `status`, and reports them. Staged outputs stay: the
  // coordinator decides whether they become arrays.
  virtual void AbortUnfinished(const absl::Status& status) = 0;

  // Forgets all staged steps: the caller has committed or aborted their outputs in the store, array
  // by array. Later calls of Commit and Abort find nothing.
  virtual void KeepStaged() = 0;

  // Drops the copies of these arrays in the kernel's layout. Call it together with
  // ShardStore::Release.
  virtual void Forget(absl::Span<const std::string> array_ids) = 0;

  // Returns the running steps for heartbeats, the lowest first.
  virtual std::vector<StepProgress> progress() const = 0;

 protected:
  StepExecutor() = default;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_STEP_STEP_EXECUTOR_H_
