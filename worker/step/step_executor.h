// Runs this rank's part of the steps that the coordinator orders. A step is one run of a plan; the
// plan says what every rank does.
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

// TileDescription::transfer_id of the result of a step is this prefix and the step's sequence
// number.
inline constexpr std::string_view kStepTransferPrefix = "step-";

// A value that a step reads, and whether the step may use up its array.
struct StepOperand {
  // The id of a committed array, or a whole tensor. The coordinator sends such a tensor to every
  // rank, within the StepOrder.
  std::variant<std::string, Literal> value;
  // Whether this step is the last use of the array. If so, the array is released when the step
  // commits. If the plan makes a result in the operand's memory (ResultOverOperand), the rank takes
  // this memory out of its store when the step begins.
  bool donate = false;
};

// The array that a step makes from one output of its plan.
struct StepOutput {
  ArrayDescriptor array;
  // The encoded form of `array`, kept with the tile (TileDescription::array_descriptor).
  std::string encoded;
};

// The coordinator's command to run one step. Every rank of the mesh gets the same command.
struct StepOrder {
  int64_t sequence = 0;
  int64_t epoch = 0;
  int64_t term = 0;
  std::string plan_hash;   // SHA-256 of the plan's bytes
  std::string plan_bytes;  // empty if the coordinator assumes that the worker knows the plan
  std::vector<StepOperand> operands;
  std::vector<StepOutput> outputs;  // one for each output of the plan
  absl::Duration timeout = absl::InfiniteDuration();
  // Whether to report the elements of the outputs' tiles. If several ranks hold replicas of a tile,
  // only the rank with the first replica reports its elements.
  bool return_literals = false;
  // The most spans to record for StepResult::trace; 0: none are recorded.
  int64_t max_trace_spans = 0;
};

enum class StepOutcome {
  kDone,      // every output is staged in the store
  kFailed,    // nothing is staged
  kNeedPlan,  // the plan is unknown; the step waits until Run is called with the plan's bytes
};

struct StepResult {
  struct Output {
    std::string array_id;
    uint32_t crc32c = 0;     // of the tile
    int64_t size_bytes = 0;  // of the tile
    std::string data;  // the tile's elements, if return_literals is set and this rank reports them
  };

  int64_t sequence = 0;
  int64_t epoch = 0;  // of the StepOrder
  int64_t term = 0;   // of the StepOrder
  DeviceId rank = 0;  // in the plan's mesh; 0 if the step did not open its link
  StepOutcome outcome = StepOutcome::kDone;
  std::vector<Output> outputs = {};  // set if kDone
  // If kFailed, the error; its message names this worker, the step and, if known, the rank and the
  // op.
  absl::Status status = absl::OkStatus();
  // If kFailed, the identity of the peer that caused the failure; empty if this worker caused it.
  std::string blamed_identity = {};
  absl::Duration kernel_time = absl::ZeroDuration();
  absl::Duration collective_time = absl::ZeroDuration();
  int64_t sent_bytes = 0;
  // How long the step waited for other steps: for a thread, and for the turns of their kernels.
  absl::Duration queue_time = absl::ZeroDuration();
  // The timeline of this rank. Set if kDone and StepOrder::max_trace_spans is above 0.
  std::optional<RankTrace> trace = std::nullopt;
};

// Callbacks for metrics; each of them may be empty. Several of the executor's threads may call them
// at once. The executor holds no lock during a call.
struct StepObserver {
  std::function<void(StepOutcome outcome, absl::Duration elapsed)> step;
  std::function<void(int64_t flops, absl::Duration elapsed)> kernel;
  // Bytes that a collective sent to peers, and bytes that it copied within this process.
  struct CollectiveBytes {
    int64_t sent = 0;
    int64_t copied_to_send = 0;
    int64_t copied_received = 0;
  };
  std::function<void(CollectiveKind kind, CollectiveAlgorithm algorithm,
                     const CollectiveBytes& bytes, absl::Duration elapsed)>
      collective;
  // A change of layout by regions (RunRegionMove).
  std::function<void(const CollectiveBytes& bytes, absl::Duration elapsed)> move = nullptr;
};

// Runs steps concurrently, each on its own thread. Begins them by rising sequence number.
//
// If one step writes an array that another step uses, the coordinator sends the StepOrder of the
// other step only after the first step has ended. A worker can therefore overlap all steps that it
// has received. The collectives of these steps overlap; their kernels take turns (KernelTurns).
//
// A step whose plan is unknown waits in the queue until its plan's bytes come. Later steps may
// begin before it. A step that waits for the membership view of its epoch, or for a peer to share
// memory with this worker, blocks only its own thread.
//
// Why steps cannot deadlock by waiting for threads:
// - There are kRunners + 1 threads. Only the step with the lowest number among this worker's
//   unfinished steps may take the last free thread. That step therefore never waits for a thread.
// - The coordinator gives every step of the cluster a different number, and sends the steps to each
//   worker by rising number. The lowest unfinished step of the cluster is therefore the lowest
//   unfinished step on each worker that takes part in this step.
// - Each of these workers runs the step, or waits only for its plan. The step therefore ends, at
//   the latest at its deadline. The same then holds for the next lowest step.
//
// clang-format off
//   Run -> waiting -> running -> staged -> Commit: its outputs are arrays
//            |           |         |
//            +-----------+---------+----> Abort, failure: nothing is left of it
// clang-format on
//
// If a step fails here, the executor also aborts the step on its peers. A step that waits for data
// notices an abort at once; a computing step notices an abort between blocks of a kernel. Plans are
// cached by hash.
//
// A plan may update operands (Plan.updates). From its begin until Commit or Abort, a step holds the
// tiles of these arrays, and no other step begins on them here (ShardStore::BeginUpdate). A step
// that finds a tile held waits for its release, at most until the step's deadline.
//
// Thread-safe.
class StepExecutor {
 public:
  // At a step's timeout, the coordinator decides which rank is at fault, because it has reports
  // from all ranks. If a worker hears nothing from the coordinator until kVerdictGrace after the
  // timeout, the worker ends the step itself.
  static constexpr absl::Duration kVerdictGrace = absl::Seconds(1);
  // Limit for the total bytes of the output arrays of a step with return_literals. Beyond it, the
  // step fails with LIMIT_EXCEEDED.
  static constexpr int64_t kMaxReturnedBytes = kMaxLiteralBytes;
  // The maximum number of steps that run at the same time. At this maximum, one more step may begin
  // if it has the lowest number of the unfinished steps.
  static constexpr int kRunners = 4;
  // The maximum number of plans in the cache. A plan with this rank's part in it takes some tens of
  // kilobytes, or a few megabytes if it has thousands of instructions. A client has some tens of
  // plans.
  static constexpr size_t kPlanCapacity = 256;

  // The objects that the executor uses. All of them outlive the executor.
  struct Options {
    std::string identity;
    PeerLinks* links = nullptr;
    ShardStore* store = nullptr;
    // Memory for values that are neither operands nor outputs, in one block for each step; usually
    // the store's pool.
    std::shared_ptr<BufferPool> pool;
    // Called on a thread of a step if the pool has no room for a buffer of `size_bytes`. `refused`
    // is the error (MEMORY_LIMIT). May block. Returns whether it has freed memory, so that the step
    // tries once more. Null: a step without room fails at once.
    std::function<bool(const absl::Status& refused, int64_t size_bytes)> free_memory = nullptr;
    MatmulKernel* kernel = nullptr;
    // Budget for packed weights (WeightCache), usually the store's budget. Null: no weights are
    // packed.
    MemoryBudget* weight_budget = nullptr;
    FlightRecorder* recorder = nullptr;
    Clock* clock = nullptr;
    StepObserver observer;
  };

  using Report = std::function<void(StepResult result)>;

  static std::unique_ptr<StepExecutor> Start(Options options);
  // Fails waiting and running steps (CANCELLED), reports this for each, and joins the threads.
  virtual ~StepExecutor() = default;
  StepExecutor(const StepExecutor&) = delete;
  StepExecutor& operator=(const StepExecutor&) = delete;

  // Queues a step, or passes the plan's bytes to a step that waits for its plan.
  //
  // Calls `report` once for each call of Run: with kDone or kFailed on one of the executor's
  // threads, after the step has run. If the executor refuses `order`, or does not know the plan
  // (kNeedPlan), it calls `report` on the calling thread. `report` must not block.
  //
  // Reports these errors. FAILED_PRECONDITION if the step's number is not above the number of the
  // last ordered step. Exception: `order` is for a step that still waits for its plan. ABORTED
  // (STALE_TERM) if the term of `order` is below the highest term of earlier StepOrders.
  // INVALID_ARGUMENT if PlanCache::Add refuses the plan's bytes. If the plan's bytes do not come,
  // the step fails kVerdictGrace after its timeout, without a further report.
  virtual void Run(StepOrder order, Report report) = 0;

  // Commits the step's outputs, which become arrays, and its updates: the arrays that it updates
  // get their new elements. Releases the operands that the step donated. NOT_FOUND if the step has
  // nothing staged here; otherwise errors of ShardStore::Commit, StateTile::Commit and
  // ShardStore::Release. After an error of ShardStore::Commit the step is still staged.
  virtual absl::Status Commit(int64_t sequence) = 0;

  // Ends the step in any state: drops its staged outputs and its unsent messages, and gives the
  // arrays that it updates the elements that they had before the step. If the step runs
  // or waits, it fails with `status` and reports this.
  virtual void Abort(int64_t sequence, const absl::Status& status) = 0;

  // Fails waiting and running steps with `status`, and reports this for each. Staged outputs stay,
  // because the coordinator decides whether they become arrays.
  virtual void AbortUnfinished(const absl::Status& status) = 0;

  // Forgets all staged steps. The caller has already committed or aborted their outputs in the
  // store, array by array. Undoes the updates of these steps: if such a step has committed, this
  // worker has missed it, and the coordinator puts the tiles aside by their steps
  // (StoredTile::state_step). Later calls of Commit and Abort find nothing staged for these steps.
  virtual void KeepStaged() = 0;

  // Drops packed forms of these arrays that are not in the store (WeightCache). Call it together
  // with ShardStore::Release.
  virtual void Forget(absl::Span<const std::string> array_ids) = 0;

  // Whether a step runs now, or waits for its peers.
  virtual bool runs_steps() const = 0;

  // Returns the progress of running steps for heartbeats, in rising order of steps.
  virtual std::vector<StepProgress> progress() const = 0;

 protected:
  StepExecutor() = default;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_STEP_STEP_EXECUTOR_H_
