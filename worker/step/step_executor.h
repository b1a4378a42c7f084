// Runs the steps that the coordinator orders: this rank's part of each, one after the other.
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
#include "program/program.h"
#include "rpc/codec/flight_record.h"
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
  // The step is the last use of the array: it is released when the step commits. Where a result is
  // made in its memory (ResultOverOperand), the rank gives it up as soon as the step begins.
  bool donate = false;
};

// A result of a step.
struct StepOutput {
  ArrayDescriptor array;
  // `array` in the terms of the caller, kept with the tile (TileDescription::array_descriptor).
  std::string encoded;
};

// One step as it was ordered; the same for every rank of the mesh.
struct StepOrder {
  int64_t sequence = 0;
  int64_t epoch = 0;
  int64_t term = 0;
  std::string plan_hash;   // SHA-256 of the plan's bytes
  std::string plan_bytes;  // empty where the plan should be known
  std::vector<StepOperand> operands;
  std::vector<StepOutput> outputs;  // as many as the plan has
  absl::Duration timeout = absl::InfiniteDuration();
  // Report the elements of outputs, where this rank holds the tile's first replica.
  bool return_literals = false;
};

enum class StepOutcome {
  kDone,      // every output is staged
  kFailed,    // nothing is staged
  kNeedPlan,  // the plan is not known; the step waits for Run with the plan's bytes
};

struct StepResult {
  struct Output {
    std::string array_id;
    uint32_t crc32c = 0;     // of the tile
    int64_t size_bytes = 0;  // of the tile
    std::string data;        // its elements, if asked for and this rank's to send
  };

  int64_t sequence = 0;
  int64_t epoch = 0;  // of the order
  int64_t term = 0;   // of the order
  DeviceId rank = 0;  // in the plan's mesh; 0 where the plan is not known
  StepOutcome outcome = StepOutcome::kDone;
  std::vector<Output> outputs = {};  // if done
  // If failed: names this rank, the step and the op.
  absl::Status status = absl::OkStatus();
  // The peer that is to blame, if it is not this worker.
  std::string blamed_identity = {};
  absl::Duration kernel_time = absl::ZeroDuration();
  absl::Duration collective_time = absl::ZeroDuration();
  int64_t sent_bytes = 0;
};

// What is told of the work, for metrics. Each may be empty; called on the executor's threads, by
// several at once, with no lock held.
struct StepObserver {
  std::function<void(StepOutcome outcome, absl::Duration elapsed)> step;
  std::function<void(int64_t flops, absl::Duration elapsed)> kernel;
  // Bytes that a collective sent to peers, and those that were copied in memory on the way.
  struct CollectiveBytes {
    int64_t sent = 0;
    int64_t copied_to_send = 0;
    int64_t copied_received = 0;
  };
  std::function<void(CollectiveKind kind, CollectiveAlgorithm algorithm,
                     const CollectiveBytes& bytes, absl::Duration elapsed)>
      collective;
};

// Runs steps side by side, each on a thread of its own, and begins them in the order of their
// sequence numbers. The coordinator orders no two steps at once of which one writes what the other
// uses, so any of them may overlap. Their collectives do; their kernels take turns (KernelTurns).
//
// A step whose plan is not known is passed over until its plan's bytes come; one that waits for a
// membership, or for a peer's memory, keeps a thread and nothing else.
//
// Why steps cannot deadlock on the threads. There are kRunners + 1. A step takes the last of them
// only if no step below it is unfinished on this worker. So at most one step has it, and the lowest
// unfinished step never waits for a thread: until it has ended, no higher one is the lowest. The
// coordinator sends orders to all workers in the order of their numbers, which are of the whole
// pool. Hence the step that is the lowest of all that are unfinished anywhere is the lowest on each
// of its workers, all of which run it or wait for its plan alone; it ends, or its time is over.
// Then the same holds for the next one.
//
//   Run -> waiting -> running -> staged -> Commit: its outputs are arrays
//            |           |         |
//            +-----------+---------+----> Abort, failure: nothing is left of it
//
// A step that fails here is aborted on its peers too; an abort is noticed at once where the step
// waits for data, and between blocks of a kernel otherwise. Plans are kept by hash.
//
// Thread-safe.
class StepExecutor {
 public:
  // At a step's timeout the coordinator, which hears of all ranks, says who is to blame. A worker
  // that hears nothing of it ends the step so much later.
  static constexpr absl::Duration kVerdictGrace = absl::Seconds(1);
  // Most elements, in bytes, that one result carries.
  static constexpr int64_t kMaxReturnedBytes = kMaxLiteralBytes;
  // Steps that run side by side, beside the lowest one.
  static constexpr int kRunners = 4;
  // Plans kept; a plan takes some kilobytes, and a client has some tens.
  static constexpr size_t kPlanCapacity = 256;

  // All pointers outlive the executor.
  struct Options {
    std::string identity;
    PeerLinks* links = nullptr;
    ShardStore* store = nullptr;
    // For values between operands and outputs; usually the store's.
    std::shared_ptr<BufferPool> pool;
    MatmulKernel* kernel = nullptr;
    // Where packed copies of weights are reserved, usually the store's budget; null: none are kept.
    MemoryBudget* weight_budget = nullptr;
    FlightRecorder* recorder = nullptr;
    rpc::Clock* clock = nullptr;
    StepObserver observer;
  };

  using Report = std::function<void(StepResult result)>;

  static std::unique_ptr<StepExecutor> Start(Options options);
  // Fails what waits and what runs (CANCELLED), reports it, and joins the threads.
  virtual ~StepExecutor() = default;
  StepExecutor(const StepExecutor&) = delete;
  StepExecutor& operator=(const StepExecutor&) = delete;

  // Queues a step, or gives a step that waits for its plan the plan's bytes. `report` is called
  // once for each call of Run, on one of the executor's threads (or on this one, if the order is
  // refused or the plan not known), and must not block. A step whose number is not above that of
  // the last step ordered is refused: FAILED_PRECONDITION, or ABORTED (STALE_TERM) for a term below
  // the highest seen. A step that waits for its plan fails at its timeout.
  virtual void Run(StepOrder order, Report report) = 0;

  // The step's outputs become arrays; operands that it donated are released. NOT_FOUND for a step
  // that has nothing staged here; otherwise errors of ShardStore::Commit.
  virtual absl::Status Commit(int64_t sequence) = 0;

  // Ends the step wherever it stands: what it staged goes, and what it had yet to send; if it still
  // runs or waits it fails with `status`, and reports it.
  virtual void Abort(int64_t sequence, const absl::Status& status) = 0;

  // Fails what waits and what runs with `status`, and reports it. What is staged stays: whether its
  // outputs are arrays is for the coordinator to say.
  virtual void AbortUnfinished(const absl::Status& status) = 0;

  // The caller has committed or aborted in the store, array by array, whatever steps staged:
  // their Commit and Abort find nothing any more.
  virtual void KeepStaged() = 0;

  // The caller lets go of these arrays: copies of them in the kernel's own layout go too. Call it
  // along with ShardStore::Release.
  virtual void Forget(absl::Span<const std::string> array_ids) = 0;

  // The steps that run, for heartbeats, the lowest first.
  virtual std::vector<rpc::StepProgress> progress() const = 0;

 protected:
  StepExecutor() = default;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_STEP_STEP_EXECUTOR_H_
