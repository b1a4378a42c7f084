// Serves one Reshard: starts it, and sends its plan and its arrays as they move.
#include "server/service/reshard_stream.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "rpc/caller.h"
#include "rpc/codec/status.h"
#include "rpc/stream/outbox.h"
#include "server/codec/reshard_codec.h"
#include "server/service/background_reactor.h"
#include "server/service/step_parts.h"
#include "status/reason.h"
#include "status/status_macros.h"

namespace shardmesh::server {
namespace {

// Reshard, as synchronous code:
//   write(plan)
//   while (arrays = those that have moved since the last message) write(arrays)
//   write(revision), finish
// Arrays that move while a message is being written go into the next message. If the client leaves,
// the reshard is cancelled. The reactor lives until gRPC is done with it and the reshard has ended.
class ReshardStream final : public grpc::ServerWriteReactor<v1::ReshardResponse> {
 public:
  ReshardStream(ReshardRunner* runner, ReshardCall call)
      : outbox_(std::numeric_limits<int64_t>::max(),
                [this](const v1::ReshardResponse* message) { StartWrite(message); }) {
    ReshardEvents events;
    events.planned = [this](const ReshardOutline& outline) { Planned(outline); };
    events.moved = [this](const ReshardedArray& array, int64_t done_bytes) {
      Moved(array, done_bytes);
    };
    events.ended = [this](absl::StatusOr<Revision> revision) { Ended(std::move(revision)); };
    ReshardRunner::RunPtr run = runner->Start(std::move(call), std::move(events));
    absl::MutexLock lock(&mutex_);
    run_ = std::move(run);
  }

  void OnWriteDone(bool ok) override {
    outbox_.OnWriteDone(ok);
    Update([this, ok]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      is_writing_ = false;
      // After a failed write the client has left, and OnCancel ends the reshard.
      is_broken_ = is_broken_ || !ok;
    });
  }
  void OnCancel() override {
    ReshardRunner::RunPtr run;
    {
      absl::MutexLock lock(&mutex_);
      run = run_;
    }
    if (run != nullptr) {
      ReshardRunner::Cancel(
          run,
          WithReason(absl::CancelledError("the client cancelled the reshard"), Reason::kCancelled));
    }
  }
  void OnDone() override { delete this; }

 private:
  using Outbox = rpc::Outbox<v1::ReshardResponse>;

  void Planned(const ReshardOutline& outline) {
    Update([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      Encode(outline, &next_);
      has_next_ = true;
    });
  }
  void Moved(const ReshardedArray& array, int64_t done_bytes) {
    Update([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      Encode(array, next_.add_arrays());
      done_bytes_ = done_bytes;
      next_.set_done_bytes(done_bytes);
      has_next_ = true;
    });
  }
  void Ended(absl::StatusOr<Revision> revision) {
    Update([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      next_.set_done_bytes(done_bytes_);
      next_.set_revision(revision.value_or(0));
      has_next_ = has_next_ || revision.ok();
      status_ = revision.status();
      has_ended_ = true;
    });
  }

  // Changes the state, and then writes what has gathered. While a write is in progress, nothing is
  // written: the end of that write calls Update again. Exception: at the end of the reshard, all is
  // queued, and the call is finished. One thread at a time writes, so messages keep their order.
  // After the call of Ended, another thread may finish the call and thereby delete this object:
  // Update then uses nothing of it any more.
  template <typename Change>
  void Update(const Change& change) {
    {
      absl::MutexLock lock(&mutex_);
      change();
      if (is_flushing_) return;
      is_flushing_ = true;
    }
    for (;;) {
      auto message = std::make_shared<v1::ReshardResponse>();
      {
        absl::MutexLock lock(&mutex_);
        if (!has_next_ || is_broken_ || (is_writing_ && !has_ended_)) {
          is_flushing_ = false;
          if (!has_ended_ || std::exchange(is_closed_, true)) return;
          break;
        }
        message->Swap(&next_);
        has_next_ = MoveExcess(message.get(), &next_);
        is_writing_ = true;
      }
      const auto size_bytes = static_cast<int64_t>(message->ByteSizeLong());
      // Push fails only after a failed write. In that case the client has left.
      outbox_.Push(std::move(message), size_bytes).IgnoreError();
    }
    absl::Status status;
    {
      absl::MutexLock lock(&mutex_);
      status = status_;
    }
    outbox_.Close(Outbox::kFlush,
                  [this, status = std::move(status)] { Finish(rpc::ToGrpc(status)); });
  }

  Outbox outbox_;
  absl::Mutex mutex_;
  ReshardRunner::RunPtr run_ ABSL_GUARDED_BY(mutex_);
  v1::ReshardResponse next_ ABSL_GUARDED_BY(mutex_);  // gathered for the next message
  bool has_next_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t done_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // as of the last array that moved
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_flushing_ ABSL_GUARDED_BY(mutex_) = false;  // a thread is in the loop of Update
  bool is_broken_ ABSL_GUARDED_BY(mutex_) = false;    // a write failed
  bool is_closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);  // of the reshard, once it has ended
  bool has_ended_ ABSL_GUARDED_BY(mutex_) = false;
};

// Ends a call that could not begin.
class RefusedReshard final : public grpc::ServerWriteReactor<v1::ReshardResponse> {
 public:
  explicit RefusedReshard(const absl::Status& status) { Finish(rpc::ToGrpc(status)); }
  void OnDone() override { delete this; }
};

// Each step of a reshard has a request id of its own, and nothing repeats that request.
StepRunnerParts WithLittleMemory(StepRunnerParts parts) {
  parts.memory.max_bytes = int64_t{1} << 20;
  return parts;
}

}  // namespace

ReshardStreams::ReshardStreams(const CoordinatorParts& context, const StepRunnerParts& steps)
    : clock_(context.clock),
      steps_(WithLittleMemory(steps)),
      runner_({.plan = {.put = PutPartsOf(context),
                        .registry = context.registry,
                        .recovery = context.recovery,
                        .move_memory_bytes = context.move_memory_bytes},
               .clock = context.clock,
               .registry = context.registry,
               .sessions = context.sessions,
               .operations = context.operations,
               .steps = &steps_,
               .fill = context.fill,
               .token_key = context.token_key,
               .term = context.term}),
      resizes_({.plan = {.put = PutPartsOf(context),
                         .registry = context.registry,
                         .recovery = context.recovery,
                         .move_memory_bytes = context.move_memory_bytes},
                .registry = context.registry,
                .definitions = context.definition_store,
                .sessions = context.sessions,
                .operations = context.operations,
                .reshards = &runner_,
                .encode = EncodeEntry}) {}

grpc::ServerUnaryReactor* ReshardStreams::Resize(const grpc::CallbackServerContext& call,
                                                 const v1::ResizeMeshRequest* request,
                                                 v1::ResizeMeshResponse* response) {
  return new BackgroundReactor(
      call,
      [this, caller = rpc::CallerOf(call), request,
       response](const std::function<bool()>& is_cancelled) -> absl::Status {
        SHARDMESH_ASSIGN_OR_RETURN(ResizeCall resize, Decode(*request));
        resize.caller = caller;
        SHARDMESH_ASSIGN_OR_RETURN(const BegunResize begun, resizes_.Begin(resize, is_cancelled));
        Encode(begun, response);
        return absl::OkStatus();
      },
      &background_);
}

void ReshardStreams::EndResizes() {
  resizes_.Stop(
      WithReason(absl::UnavailableError(
                     "the coordinator is stopping, and the resize stopped midway; repeat it "
                     "when the coordinator serves, and it goes on"),
                 Reason::kNotServing));
}

grpc::ServerWriteReactor<v1::ReshardResponse>* ReshardStreams::Open(
    const grpc::CallbackServerContext& call, const v1::ReshardRequest& request) {
  const absl::Time now = clock_->Now();
  absl::StatusOr<ReshardCall> decoded =
      Decode(std::make_shared<const v1::ReshardRequest>(request), now);
  if (!decoded.ok()) return new RefusedReshard(decoded.status());
  decoded->caller = rpc::CallerOf(call);
  decoded->deadline = std::min(decoded->deadline, now + rpc::TimeLeft(call) - rpc::kTimeToTell);
  return new ReshardStream(&runner_, *std::move(decoded));
}

}  // namespace shardmesh::server
