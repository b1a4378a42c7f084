// ClientCore: the transport, the session and the time limits that the sub-clients (ArrayClient,
// ...) share.
#ifndef SHARDMESH_CLIENT_CLIENT_CORE_H_
#define SHARDMESH_CLIENT_CLIENT_CORE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "client/mesh_client.h"
#include "client/remote/content_match.h"
#include "client/remote/coordinator_connection.h"
#include "client/remote/session_keeper.h"
#include "client/remote/silence_watch.h"
#include "client/remote/transfer.h"
#include "client/remote/transfer_calls.h"
#include "client/remote/worker_connections.h"
#include "client/types/call_options.h"
#include "process/steady_deadline.h"
#include "status/reason.h"
#include "status/status_macros.h"

namespace shardmesh::client {

struct ReadOutcome {
  absl::Status status;
  bool may_have_moved = false;  // whether a new request may succeed: see ClientCore::Read
};

// Downloads `tile`, in coordinates of the array, to `into`. May be called several times.
using FetchTile = std::function<absl::Status(const Tile& tile, const MutableTensorView& into,
                                             const ProgressCallback& progress)>;
// Consumes `part` of an array.
using ReadBody =
    std::function<absl::Status(const Array& array, const Tile& part, const FetchTile& fetch)>;

// The arrays that the session pins only because this client is reading them. The coordinator's
// answer to a request says whether that request pinned the array, or the session had pinned the
// array before. If a read pinned the array, the last reader of the array releases the array. A
// release must not drop a pin that a concurrent read relies on. Therefore a request for a read
// waits while a release is in progress. No release begins while a request for a read is in
// progress. Thread-safe.
class ReadPins {
 public:
  // Call BeginAsking before a request that may pin an array, and EndAsking after that request.
  // BeginAsking waits while another thread releases arrays, which takes at most the time of one
  // call.
  void BeginAsking() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](bool* letting_go) { return !*letting_go; }, &letting_go_));
    ++asking_;
  }
  // Returns what EndReading returns, if the request failed.
  std::vector<std::string> EndAsking(const absl::StatusOr<BegunGet>& get) {
    absl::MutexLock lock(&mutex_);
    --asking_;
    // Reads that ended during the request have left their arrays to it.
    if (!get.ok()) return TakeIdle();
    Reading& reading = readings_[get->array.descriptor.array_id];
    ++reading.readers;
    reading.pinned |= get->pinned;
    return {};
  }
  // Ends a read of each array. Returns the arrays that the caller must release now. If the result
  // is not empty, the caller must release these arrays and then call EndLettingGo.
  std::vector<std::string> EndReading(absl::Span<const std::string> array_ids) {
    absl::MutexLock lock(&mutex_);
    for (const std::string& array_id : array_ids) --readings_[array_id].readers;
    return TakeIdle();
  }
  // Returns what EndReading returns: the arrays of reads that ended during the release.
  std::vector<std::string> EndLettingGo() {
    absl::MutexLock lock(&mutex_);
    letting_go_ = false;
    return TakeIdle();
  }

 private:
  struct Reading {
    int readers = 0;
    bool pinned = false;
  };

  // Removes the arrays that have no readers. Returns those of them that are pinned, and begins
  // their release. None if a request or a release is in progress: its end takes them.
  std::vector<std::string> TakeIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::vector<std::string> idle;
    if (asking_ > 0 || letting_go_) return idle;
    for (auto it = readings_.begin(); it != readings_.end();) {
      const auto current = it++;
      if (current->second.readers > 0) continue;
      if (current->second.pinned) idle.push_back(current->first);
      readings_.erase(current);
    }
    letting_go_ = !idle.empty();
    return idle;
  }

  absl::Mutex mutex_;
  int asking_ ABSL_GUARDED_BY(mutex_) = 0;
  bool letting_go_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_map<std::string, Reading> readings_ ABSL_GUARDED_BY(mutex_);
};

// The descriptions of the arrays of which slices were read last: a slice of the same array then
// needs no question for its shape. An entry may be out of date: its array may be gone, or its name
// may refer to another array. Thread-safe.
class RecentArrays {
 public:
  std::optional<ArrayDescriptor> Find(const ArraySelector& array) const {
    absl::MutexLock lock(&mutex_);
    const auto found = arrays_.find(KeyOf(array));
    return found == arrays_.end() ? std::nullopt : std::optional(found->second);
  }
  void Set(const ArraySelector& array, const ArrayDescriptor& descriptor) {
    absl::MutexLock lock(&mutex_);
    if (arrays_.size() >= kMaxArrays) arrays_.clear();
    arrays_.insert_or_assign(KeyOf(array), descriptor);
  }

 private:
  static constexpr size_t kMaxArrays = 1'000;
  using Key = std::tuple<std::string, std::string, int64_t>;

  static Key KeyOf(const ArraySelector& array) {
    return {array.name, array.array_id, array.version};
  }

  mutable absl::Mutex mutex_;
  absl::flat_hash_map<Key, ArrayDescriptor> arrays_ ABSL_GUARDED_BY(mutex_);
};

// The most recently compiled programs, by the hashes of their plans. Thread-safe.
class CompiledPrograms {
 public:
  void Add(const std::string& plan_hash, std::shared_ptr<const Program> program) {
    absl::MutexLock lock(&mutex_);
    if (!programs_.insert_or_assign(plan_hash, std::move(program)).second) {
      return;
    }
    order_.push_back(plan_hash);
    if (order_.size() > kMaxPrograms) {
      programs_.erase(order_.front());
      order_.pop_front();
    }
  }
  // Returns null if the program is not among them.
  std::shared_ptr<const Program> Find(const std::string& plan_hash) const {
    absl::MutexLock lock(&mutex_);
    const auto found = programs_.find(plan_hash);
    return found == programs_.end() ? nullptr : found->second;
  }

 private:
  static constexpr size_t kMaxPrograms = 1'000;

  mutable absl::Mutex mutex_;
  absl::flat_hash_map<std::string, std::shared_ptr<const Program>> programs_
      ABSL_GUARDED_BY(mutex_);
  std::deque<std::string> order_ ABSL_GUARDED_BY(mutex_);  // hashes in the order of compilation
};

// Claims about arrays that have elements of a put, by tensor. Empty: there are none.
using ContentClaims = std::vector<std::optional<ContentClaim>>;

// The state that the sub-clients share; users of MeshClient do not see this class. Thread-safe.
class ClientCore {
 public:
  ClientCore(std::unique_ptr<CoordinatorConnection> connection, const MeshClientOptions& options)
      : options_(options),
        connection_(std::move(connection)),
        session_(connection_.get(), options.session_ttl, options.client_name,
                 {.release_time = options.session_release_time,
                  .close_time = options.session_close_time}) {}

  const CoordinatorConnection& connection() const { return *connection_; }
  CompiledPrograms& programs() { return programs_; }
  int64_t min_reported_get_bytes() const { return options_.min_reported_get_bytes; }
  absl::Duration report_end_time() const { return options_.report_end_time; }
  // The limits of a call that begins now.
  CallLimit LimitOf(const CallOptions& options) const {
    return LimitAt(Deadline(options), options);
  }
  static CallLimit LimitAt(const SteadyDeadline& deadline, const CallOptions& options) {
    return {.deadline = deadline.wall(),
            .cancellation = options.cancellation,
            .traceparent = options.traceparent};
  }
  // The deadline of an operation that may make several calls: each call gets the remaining time.
  SteadyDeadline Deadline(const CallOptions& options) const {
    return SteadyDeadline::After(options.timeout.value_or(options_.timeout));
  }
  SteadyDeadline TransferDeadline(const CallOptions& options) const {
    return SteadyDeadline::After(options.timeout.value_or(options_.transfer_timeout));
  }
  TransferOptions Transfer(const SteadyDeadline& deadline, ProgressCallback progress,
                           const CallOptions& options) const {
    return {.credentials = options_.credentials,
            .deadline = deadline,
            .progress = std::move(progress),
            .traceparent = options.traceparent};
  }

  void CloseSession() { session_.Close(); }

  // See SessionKeeper: arrays without names that the client made and holds.
  void Keep(const std::string& session_id, absl::Span<const std::string> array_ids) {
    session_.Keep(session_id, array_ids);
  }
  void Drop(absl::Span<const std::string> array_ids) { session_.Drop(array_ids); }
  void DropReleased(absl::Span<const std::string> array_ids) { session_.DropReleased(array_ids); }
  // Calls `call`, which names this array by its id and names no session. If the array is one of
  // Keep and its session is gone, the next session first takes the array over: only then the
  // coordinator knows that a client has it. Also returns errors of SessionKeeper::Get.
  template <typename Call>
  auto ById(const std::string& array_id, const CallLimit& limit, const Call& call)
      -> decltype(call()) {
    if (!session_.Keeps(array_id)) return call();
    SHARDMESH_ASSIGN_OR_RETURN(const std::string session_id, session_.Get(limit));
    auto result = call();
    if (ReasonOf(result.status()) != Reason::kNotFound) return result;
    // The coordinator may have ended since the last call that named the session.
    SHARDMESH_ASSIGN_OR_RETURN(const bool is_replaced, session_.Replace(session_id, limit));
    return is_replaced ? call() : result;
  }

  // Calls `call` with the id of the session. If the coordinator no longer has that session, opens a
  // new one and calls `call` once more.
  template <typename Call>
  auto InSession(const SteadyDeadline& deadline, const CallOptions& options, const Call& call)
      -> decltype(call("", CallLimit())) {
    SHARDMESH_ASSIGN_OR_RETURN(std::string session_id, session_.Get(LimitAt(deadline, options)));
    auto result = call(session_id, LimitAt(deadline, options));
    if (ReasonOf(result.status()) != Reason::kSessionGone) {
      return result;
    }
    session_.Forget(session_id);
    SHARDMESH_ASSIGN_OR_RETURN(session_id, session_.Get(LimitAt(deadline, options)));
    return call(session_id, LimitAt(deadline, options));
  }

  // Requests the array once, and passes `part` of it to `body`; nullopt: the whole array. The
  // session pins the array until `body` has returned. `expected_id`: the id of the array to which
  // `part` belongs; empty: any array. ABORTED if `array` now selects an array whose id is not
  // `expected_id`. Sets `may_have_moved` if a download failed, or the request did, and the error
  // may be due to an outdated answer of the coordinator, or to a name that now refers to another
  // array.
  // `partial_sum`: see TransferOptions.
  ReadOutcome Read(const ArraySelector& array, const std::optional<Tile>& part,
                   const std::string& expected_id, const SteadyDeadline& deadline,
                   const CallOptions& options, const ReadBody& body,
                   const std::optional<int64_t>& partial_sum = std::nullopt);
  RecentArrays& recent_arrays() { return recent_arrays_; }
  // Pins the array until EndHold, so that it can be read by its id whatever becomes of its names.
  // `part`: the part that will be read; nullopt: the whole array. Errors: those of BeginGet; they
  // name the array by its name, if `array` has one. ABORTED: the array is gone, and its name means
  // another one.
  absl::Status Hold(const Array& array, const std::optional<Tile>& part,
                    const SteadyDeadline& deadline, const CallOptions& options);
  // Ends one Hold of each array.
  void EndHold(absl::Span<const std::string> array_ids, const CallOptions& options);

  // Puts the tensors once, as PutOptions::reader says. Sets `*is_taken_back` to true if the put
  // changed nothing. This is so if it failed while it sent tiles, before the client asked for the
  // commit, and the coordinator confirmed the abort; if the coordinator was restarted before it
  // committed the put; and if a worker staged no tile because it had lost the coordinator.
  absl::StatusOr<PutResult> Put(absl::Span<const PutTensor> tensors, const PutOptions& put_options,
                                const SteadyDeadline& deadline, const CallOptions& options,
                                bool* is_taken_back);

  // Says why a transfer is repeated. A worker that refuses a token says what to do, which this
  // client does by itself.
  void OnWait(const absl::Status& why) const {
    if (!options_.on_wait) return;
    options_.on_wait(ReasonOf(why) == Reason::kBadToken
                         ? WithReason(absl::UnavailableError("the coordinator was restarted, and "
                                                             "the transfer begins anew"),
                                      Reason::kBadToken)
                         : why);
  }

  // Ends a put. If `sent` is OK, commits the put. If `sent` is an error, asks the coordinator for
  // the cause, and aborts the transfer. If the put's time is over, the error is DEADLINE_EXCEEDED
  // and names the workers that are late. `late`: such an error, if the coordinator has told it
  // already; otherwise OK. `*is_taken_back`: see Put.
  absl::StatusOr<CommittedPut> Conclude(const std::string& session_id,
                                        const std::string& transfer_id, const absl::Status& sent,
                                        const absl::Status& late, const SteadyDeadline& deadline,
                                        const CallOptions& options, bool* is_taken_back);

 private:
  // Releases the arrays that ReadPins has returned, and those of reads that end meanwhile. Leaves
  // out arrays of Keep: the session that took one over has one pin for it and for its reads.
  void LetGo(std::vector<std::string> idle, const std::string& session_id,
             const CallOptions& options);
  // A put that this client sends. `claims`: those that are known already, as for BeginPut.
  absl::StatusOr<PutResult> PutFromMemory(absl::Span<const PutTensor> tensors,
                                          const PutOptions& put_options, ContentClaims claims,
                                          const SteadyDeadline& deadline,
                                          const CallOptions& options, bool* is_taken_back);
  // A put of which the workers read the tensors that have sources, and this client sends the
  // others. Sets `*is_refused` to true if the error came before anything moved, and this client may
  // send all tensors instead. Sets `*claims` to those about the tensors without sources; also about
  // the others if the workers have too little memory for new arrays.
  absl::StatusOr<PutResult> PutFromFiles(absl::Span<const PutTensor> tensors,
                                         const PutOptions& put_options,
                                         const SteadyDeadline& deadline, const CallOptions& options,
                                         ContentClaims* claims, bool* is_refused,
                                         bool* is_taken_back);
  // Sends the tensors of these numbers, which rise, to the workers of a put that has begun. Returns
  // the bytes sent. Compares those of saved checkpoints with their checksums. `progress` may be
  // null. Sets `*late` for Conclude.
  absl::StatusOr<int64_t> Send(absl::Span<const PutTensor> tensors,
                               absl::Span<const size_t> numbers, const BegunPut& put,
                               const PutOptions& put_options, const ProgressCallback& progress,
                               const SteadyDeadline& deadline, const CallOptions& options,
                               HandoverOutcome* handover, absl::Status* late) const;

  const MeshClientOptions options_;
  const std::unique_ptr<CoordinatorConnection> connection_;
  SessionKeeper session_;
  ReadPins read_pins_;
  RecentArrays recent_arrays_;
  WorkerConnections worker_connections_;
  SilenceWatch silence_watch_;
  CompiledPrograms programs_;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLIENT_CORE_H_
