// Puts and gathers of ClientCore: begins, runs and ends transfers in the session.
#include "client/client_core.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/container/flat_hash_set.h"
#include "client/remote/operation_calls.h"
#include "client/types/cancellation.h"
#include "process/thread_pool.h"
#include "rpc/call.h"
#include "rpc/call_memory.h"
#include "rpc/codec/status.h"
#include "sharding/tile.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/saved_checksums.h"

namespace shardmesh::client {
namespace {

// How long to wait for the coordinator's report on the cause of a broken transfer. The coordinator
// takes at most 5 s to notice that a worker is lost.
constexpr absl::Duration kVerdictTimeout = absl::Seconds(7);
// Time limit for the call that aborts a broken transfer. If that call fails, the transfer is
// aborted when the session ends.
constexpr absl::Duration kAbortTimeout = absl::Seconds(2);
// Like kAbortTimeout, but for an abort after the put's deadline: the caller expects the put to end
// at the deadline.
constexpr absl::Duration kLateAbortTimeout = absl::Milliseconds(500);
// Time limit for the coordinator's report on the workers that are late at the put's deadline. The
// coordinator asks them once more, and answers 100 ms before the limit.
constexpr absl::Duration kLateVerdictTimeout = absl::Milliseconds(300);
// A put that fails when less of its time is left has failed at its deadline: a stream or a
// connection ends a little before its own deadline.
constexpr absl::Duration kLateWithin = absl::Milliseconds(50);
// If less of a put's time is left when the workers have not said whether they can read its files,
// the client does not send the tensors instead: it would not come to an end.
constexpr absl::Duration kMinSendTime = absl::Seconds(1);
// Time limit for the release of an array that was read.
constexpr absl::Duration kReleaseTimeout = absl::Seconds(2);
// The largest number of arrays that one call releases.
constexpr size_t kMaxReleased = 10'000;
// Smaller tensors are sent without the question whether an array has their elements.
constexpr int64_t kMinClaimedBytes = int64_t{64} << 10;
// How many tensors with sources are compared before all of them are, about.
constexpr size_t kProbes = 4;
// The largest number of threads that compute digests of tensors.
constexpr int kMaxMatchers = 8;
// The field of BeginPutRequest that has the files, and the end of that of a tensor's source.
constexpr std::string_view kFilesField = "header.files";
constexpr std::string_view kSourceField = "].source";

// Whether a stream's error may be only a symptom. If so, the coordinator may know the cause: a
// worker is lost, or the transfer has ended.
bool IsSymptom(const absl::Status& status) {
  // A restarted coordinator signs tokens with another key.
  if (ReasonOf(status) == Reason::kBadToken) return true;
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kInternal:
      return ReasonOf(status) != Reason::kMemoryLimit;
    default:
      return false;
  }
}

// Whether a download's error may be due to a change after the coordinator's answer, so that a new
// answer may help. For example, a worker was lost, or a restarted coordinator signs tokens with
// another key.
bool MayHaveMoved(const absl::Status& status) {
  const Reason reason = ReasonOf(status);
  return reason == Reason::kArrayDegraded || reason == Reason::kBadToken ||
         reason == Reason::kStaleTerm || reason == Reason::kNotServing ||
         rpc::IsShortOfCallMemory(status) ||
         (absl::IsUnavailable(status) && reason == Reason::kUnspecified);
}

// The array as an argument of a command. A name that has an "@" is written with its version;
// without a known version, the array is written as @ID.
std::string CommandText(const ArraySelector& array, const std::string& array_id) {
  if (!array.name.empty() && array.version > 0) return StrCat(array.name, "@", array.version);
  const bool is_by_name = !array.name.empty() && array.name.find('@') == std::string::npos;
  return is_by_name ? array.name : StrCat("@", array_id);
}

// The error of a put whose commit got no answer because gRPC's memory for calls was exhausted.
absl::Status OutcomeUnknown(const absl::Status& status) {
  return WithReason(
      absl::DeadlineExceededError(StrCat(
          "the coordinator did not answer the put's commit in time (", ToStd(status.message()),
          "): the put may be committed; describe its names before you put again")),
      Reason::kDeadline);
}

// Cancels a transfer's streams as soon as the coordinator reports that the transfer failed. If no
// thread cancelled the streams, a stream to a worker that no longer reads would stay blocked. Also
// gets the coordinator's report on the workers that are late, shortly before the deadline: after
// the deadline, the coordinator may have aborted the put because this client has gone.
class TransferWatch {
 public:
  TransferWatch(const CoordinatorConnection& connection, const std::string& transfer_id,
                const SteadyDeadline& deadline, const std::string& traceparent,
                Cancellation* streams)
      : thread_(StartThread([this, &connection, transfer_id, deadline, traceparent, streams] {
          const absl::StatusOr<Operation> operation = WatchOperation(
              connection, transfer_id, [](const Operation&) { return true; },
              {.deadline = deadline.wall(), .cancellation = &stop_, .traceparent = traceparent});
          if (operation.ok() && (operation->state == OperationState::kFailed ||
                                 operation->state == OperationState::kCancelled)) {
            streams->Cancel();
          }
          if (ReasonOf(operation.status()) == Reason::kDeadline) late_ = operation.status();
        })) {}
  ~TransferWatch() { Stop().IgnoreError(); }

  // Ends the watch. Returns the coordinator's DEADLINE_EXCEEDED (DEADLINE) if it named workers that
  // are late; otherwise OK.
  absl::Status Stop() {
    stop_.Cancel();
    if (thread_.ok() && thread_->joinable()) thread_->join();
    return FactOf(late_, fact::kIdentity).value_or("").empty() ? absl::OkStatus() : late_;
  }

  // RESOURCE_EXHAUSTED: the host allows no more threads, and nothing watches the transfer.
  absl::Status status() const { return thread_.status(); }

 private:
  Cancellation stop_;
  absl::Status late_;                   // only the thread uses it until its end
  absl::StatusOr<std::thread> thread_;  // declared last: the thread uses the members above
};

// The limit of a call that cleans up after a call with `options`. The cancellation of `options` is
// left out, because the cleanup must also run after a cancellation.
CallLimit Aftermath(absl::Duration timeout, const CallOptions& options) {
  CallLimit limit = CallLimit::Within(timeout);
  limit.traceparent = options.traceparent;
  return limit;
}

// Reports the progress of a put that the workers read.
class FillWatch {
 public:
  FillWatch(const CoordinatorConnection& connection, const std::string& transfer_id,
            const SteadyDeadline& deadline, const std::string& traceparent,
            const ProgressCallback& progress) {
    if (progress == nullptr) return;
    // Without a thread, the put goes on and reports no progress.
    thread_ = StartThread([this, &connection, transfer_id, deadline, traceparent, &progress] {
      int64_t reported = 0;
      // The put does not depend on its progress report: the result does not matter.
      WatchOperation(
          connection, transfer_id,
          [&](const Operation& operation) {
            if (operation.done_bytes > reported) {
              reported = operation.done_bytes;
              progress(reported, operation.total_bytes);
            }
            return operation.done_bytes < operation.total_bytes;
          },
          {.deadline = deadline.wall(), .cancellation = &stop_, .traceparent = traceparent})
          .IgnoreError();
    });
  }
  ~FillWatch() {
    stop_.Cancel();
    if (thread_.ok() && thread_->joinable()) thread_->join();
  }

 private:
  Cancellation stop_;
  // Declared last: the thread uses the members above.
  absl::StatusOr<std::thread> thread_ = std::thread();
};

// Returns the part of a file of a checkpoint in which the tensor's elements lie. Saves write no
// other files of tensors than `.safetensors`.
std::optional<SavedPart> SavedPartOf(const PutTensor& tensor) {
  if (tensor.saved.has_value()) return tensor.saved;
  const std::optional<FileSource>& source = tensor.source;
  const TensorView* const view = tensor.view.view();
  if (!source.has_value() || view == nullptr || !source->file->path.ends_with(".safetensors")) {
    return std::nullopt;
  }
  int64_t size_bytes = view->size_bytes();
  if (source->conversion.has_value()) {
    size_bytes = size_bytes * 8 / BitsPerElement(view->dtype()) *
                 BitsPerElement(source->conversion->dtype) / 8;
  }
  return SavedPart{
      .file = source->file, .offset_bytes = source->offset_bytes, .size_bytes = size_bytes};
}

// Compares the tensors that a put sends with the checksums of their saved checkpoints, while the
// put sends them. An error ends the streams.
class SavedCheck {
 public:
  // `streams` outlives this object, and its cancellation ends the comparison.
  SavedCheck(std::vector<SavedPart> parts, const SteadyDeadline& deadline, Cancellation* streams) {
    if (parts.empty()) return;
    thread_ = StartThread([this, parts = std::move(parts), deadline, streams] {
      status_ = CheckSavedChecksums(parts, [this, deadline, streams]() -> absl::Status {
        if (streams->is_cancelled() || stop_.is_cancelled()) {
          return absl::CancelledError("the put has ended");
        }
        if (!deadline.is_over()) return absl::OkStatus();
        return WithReason(absl::DeadlineExceededError(
                              "the put's time was over before all bytes were compared with the "
                              "checksums of the saved checkpoint"),
                          Reason::kDeadline);
      });
      if (!status_.ok()) streams->Cancel();
    });
  }
  ~SavedCheck() {
    stop_.Cancel();
    Join();
  }

  // RESOURCE_EXHAUSTED: the host allows no more threads, and nothing is compared.
  absl::Status status() const { return thread_.status(); }

  // Waits for the end of the comparison, which ends soon if `sent` is an error. Returns the error
  // of the put; OK if all was sent and has its checksums.
  absl::Status Conclude(const absl::Status& sent) {
    if (!sent.ok()) stop_.Cancel();
    Join();
    const bool is_cause =
        !status_.ok() && !absl::IsCancelled(status_) && !absl::IsDeadlineExceeded(status_);
    return is_cause || sent.ok() ? status_ : sent;
  }

 private:
  void Join() {
    if (thread_.ok() && thread_->joinable()) thread_->join();
  }

  Cancellation stop_;
  absl::Status status_;  // written by the thread, read after its end
  // Declared last: the thread uses the members above.
  absl::StatusOr<std::thread> thread_ = std::thread();
};

// Returns whether the workers make the zeros of this tensor. A coordinator of an older build gives
// the client a token to send them.
bool AreMadeByWorkers(const PutTensor& tensor, const BegunPut& put, size_t number) {
  return tensor.is_zeros && put.assignments[number].token.empty();
}

// Adds up the bytes of all tiles of the put, including replicas, those that the workers read, and
// those that are there already. `from_files`: as for BeginPut.
absl::Status CountTiles(absl::Span<const PutTensor> tensors, const BegunPut& put, bool from_files,
                        PutResult* result) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const BegunPut::Assignment& assignment = put.assignments[i];
    SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, assignment.array.Tiling());
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t size_bytes, assignment.array.SizeBytes());
    const int64_t tile_bytes = size_bytes * tiling.replica_count();
    result->tile_bytes += tile_bytes;
    if (!assignment.is_reused && assignment.sent_ranks.empty()) {
      const bool is_read = from_files && tensors[i].source.has_value();
      if (is_read || AreMadeByWorkers(tensors[i], put, i)) result->read_bytes += tile_bytes;
      continue;
    }
    if (assignment.is_reused) ++result->reused_tensors;
    result->reused_bytes += tile_bytes;
    result->moved_bytes += assignment.moved_bytes;
    for (const int64_t rank : assignment.sent_ranks) {
      SHARDMESH_ASSIGN_OR_RETURN(const int64_t sent_bytes,
                                 assignment.array.TileSizeBytes(tiling.TileOf(rank)));
      result->reused_bytes -= sent_bytes;
    }
  }
  return absl::OkStatus();
}

// Returns the numbers of the tensors that this client sends, at least in part; they rise.
// `from_files`: as for BeginPut.
std::vector<size_t> SentBy(absl::Span<const PutTensor> tensors, const BegunPut& put,
                           bool from_files) {
  std::vector<size_t> numbers;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const bool is_read = from_files && tensors[i].source.has_value();
    if (is_read || put.assignments[i].is_reused || AreMadeByWorkers(tensors[i], put, i)) continue;
    numbers.push_back(i);
  }
  return numbers;
}

// Returns who moves the elements of a put from files, of which this client sends these tensors.
PutReader ReaderOf(absl::Span<const PutTensor> tensors, const BegunPut& put,
                   absl::Span<const size_t> sent) {
  if (sent.empty()) return PutReader::kWorkers;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].source.has_value() && !put.assignments[i].is_reused) return PutReader::kAuto;
  }
  return PutReader::kClient;
}

// Whether the refusal is that of a coordinator of an older build, of whose puts either all tensors
// have sources or none has.
bool IsOfMixedSources(const absl::Status& refusal) {
  if (!absl::IsInvalidArgument(refusal)) return false;
  const std::vector<rpc::FieldViolation> violations = rpc::FieldViolationsOf(refusal);
  return std::any_of(violations.begin(), violations.end(), [](const rpc::FieldViolation& each) {
    return each.field.ends_with(kSourceField);
  });
}

// Whether a coordinator's refusal of a put from files leaves the way of sending the tensors. A file
// that changed is no such refusal: this client would send other elements than it found.
bool MaySendInstead(const absl::Status& refusal) {
  const Reason reason = ReasonOf(refusal);
  // The workers' disks are too slow. A call whose own time is over has no reason.
  if (absl::IsDeadlineExceeded(refusal)) return reason == Reason::kDeadline;
  if (reason == Reason::kLimitExceeded) {  // too many files, or a path that is too long
    const std::vector<rpc::FieldViolation> violations = rpc::FieldViolationsOf(refusal);
    return std::any_of(violations.begin(), violations.end(), [](const rpc::FieldViolation& each) {
      return each.field.starts_with(kFilesField);
    });
  }
  if (!absl::IsFailedPrecondition(refusal)) return false;
  return reason == Reason::kNoReadRoot || reason == Reason::kNotAvailable ||
         reason == Reason::kBadFile;
}

// Returns the refusal of a put from files because of a coordinator of an older build. `what`: what
// that build does.
absl::Status OfOlderCoordinator(std::string_view what) {
  return WithReason(
      absl::FailedPreconditionError(StrCat("the coordinator runs an older build, ", what,
                                           "; upgrade it, or let the client read the files")),
      Reason::kNotAvailable, {{fact::kField, "source"}});
}

// Returns LIMIT_EXCEEDED if the files of the put's sources do not fit into one message, as they
// must.
absl::Status CheckFilesFit(absl::Span<const PutTensor> tensors) {
  constexpr int64_t kBytesBesidePath = 160;  // at most, of an encoded file
  int64_t bytes = 0;
  absl::flat_hash_set<const SourceFile*> files;
  for (const PutTensor& tensor : tensors) {
    if (!tensor.source.has_value() || !files.insert(tensor.source->file.get()).second) continue;
    bytes += static_cast<int64_t>(tensor.source->file->path.size()) + kBytesBesidePath;
  }
  if (bytes <= rpc::kMaxControlMessageBytes) return absl::OkStatus();
  return rpc::WithField(
      InvalidArgument(Reason::kLimitExceeded,
                      StrCat("the put has ", files.size(), " files, whose paths take ", bytes,
                             " bytes; a put names its files in ", rpc::kMaxControlMessageBytes,
                             " bytes: put in several parts, or let the client read the files"),
                      {{fact::kHave, bytes}, {fact::kLimit, rpc::kMaxControlMessageBytes}}),
      kFilesField);
}

std::vector<PutArray> ArraysOf(BegunPut* put) {
  std::vector<PutArray> arrays;
  arrays.reserve(put->assignments.size());
  for (BegunPut::Assignment& assignment : put->assignments) {
    arrays.push_back(
        {std::move(assignment.array), std::move(assignment.corrections), assignment.is_reused});
  }
  return arrays;
}

// Returns the ids of the arrays that the put makes without names.
std::vector<std::string> NamelessOf(absl::Span<const PutTensor> tensors, const BegunPut& put) {
  std::vector<std::string> array_ids;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].name.empty()) array_ids.push_back(put.assignments[i].array.array_id);
  }
  return array_ids;
}

// Checks the files from which this client mapped the tensors' elements, each once. `from_files`:
// the workers check those of sources.
absl::Status CheckFilesNotWritten(absl::Span<const PutTensor> tensors, bool from_files) {
  const SourceFile* last = nullptr;
  for (const PutTensor& tensor : tensors) {
    if (from_files && tensor.source.has_value()) continue;
    const SourceFile* const file = tensor.source.has_value()   ? tensor.source->file.get()
                                   : tensor.origin.has_value() ? tensor.origin->file.get()
                                                               : nullptr;
    if (file == nullptr || file == last) continue;  // tensors of one file come together
    last = file;
    SHARDMESH_RETURN_IF_ERROR(CheckNotWritten(*file));
  }
  return absl::OkStatus();
}

// Whether the tensor is worth the question for arrays with its elements. Inputs of steps, which
// have neither a name nor a file, are new each time.
bool MayClaim(const PutTensor& tensor) {
  if (tensor.name.empty() && !tensor.source.has_value() && !tensor.origin.has_value()) return false;
  const absl::StatusOr<int64_t> count = ElementCount(tensor.view.shape());
  if (!count.ok()) return false;
  const absl::StatusOr<int64_t> size_bytes = PackedSizeBytes(tensor.view.dtype(), *count);
  return size_bytes.ok() && *size_bytes >= kMinClaimedBytes;
}

// The tensors of a put that are compared with arrays.
enum class Compared {
  kAll,
  kSent,  // those without a source
  // Those with a source, of which the coordinator uses only claims about all tiles. If none of a
  // few of them is equal to an array, the others are not compared.
  kRead,
};

// Returns some of the elements, from the whole list.
std::vector<TensorElements> SomeOf(absl::Span<const TensorElements> elements) {
  std::vector<TensorElements> some;
  const size_t step = std::max<size_t>(elements.size() / kProbes, 1);
  for (size_t i = 0; i < elements.size(); i += step) some.push_back(elements[i]);
  return some;
}

// Adds claims about arrays that have elements of tensors, which no origin finds. Returns whether it
// added one. Asks only about tensors without a claim. Adds none if the coordinator does not answer:
// the put then sends or reads the tensors.
bool AddClaims(const CoordinatorConnection& connection, absl::Span<const PutTensor> tensors,
               const PutOptions& put_options, Compared which, const CallLimit& limit,
               ContentClaims* claims) {
  if (!put_options.reuse || put_options.validate_only) return false;
  std::vector<size_t> asked;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const bool is_claimed = !claims->empty() && (*claims)[i].has_value();
    const bool is_meant =
        which == Compared::kAll || tensors[i].source.has_value() == (which == Compared::kRead);
    if (is_meant && !is_claimed && !tensors[i].is_zeros && MayClaim(tensors[i])) asked.push_back(i);
  }
  if (asked.empty()) return false;
  const absl::StatusOr<FoundContent> found = FindContent(connection, tensors, asked, limit);
  if (!found.ok() || found->candidates.empty()) return false;
  std::erase_if(asked, [&](size_t number) { return found->by_origin.contains(number); });
  std::vector<TensorElements> compared;
  compared.reserve(asked.size());
  for (const size_t number : asked) compared.push_back(tensors[number].view);
  const auto deadline = SteadyDeadline::At(limit.deadline);
  const auto match = [&](absl::Span<const TensorElements> elements) {
    ContentClaims matched =
        MatchContent(elements, found->candidates,
                     {.mesh = put_options.mesh.empty() ? "default" : put_options.mesh,
                      .threads = std::clamp(static_cast<int>(std::thread::hardware_concurrency()),
                                            1, kMaxMatchers),
                      .is_over = [&] { return deadline.is_over() || limit.is_cancelled(); }});
    if (which == Compared::kRead) {
      for (std::optional<ContentClaim>& claim : matched) {
        if (claim.has_value() && !claim->equal_tiles.empty()) claim.reset();
      }
    }
    return matched;
  };
  const auto has_claim = [](const ContentClaims& matched) {
    return std::any_of(matched.begin(), matched.end(),
                       [](const auto& claim) { return claim.has_value(); });
  };
  if (which == Compared::kRead && !has_claim(match(SomeOf(compared)))) return false;
  ContentClaims matched = match(compared);
  if (!has_claim(matched)) return false;
  claims->resize(tensors.size());
  for (size_t i = 0; i < asked.size(); ++i) (*claims)[asked[i]] = std::move(matched[i]);
  return true;
}

}  // namespace

absl::StatusOr<PutResult> ClientCore::Put(absl::Span<const PutTensor> tensors,
                                          const PutOptions& put_options,
                                          const SteadyDeadline& deadline,
                                          const CallOptions& options, bool* is_taken_back) {
  *is_taken_back = false;
  const auto has_source = [](const PutTensor& tensor) { return tensor.source.has_value(); };
  const auto without = std::find_if_not(tensors.begin(), tensors.end(), has_source);
  if (put_options.reader == PutReader::kWorkers && without != tensors.end()) {
    return InvalidArgument(
        Reason::kMissingArgument,
        StrCat("tensor '", without->name,
               "' has no source: workers can read only tensors that lie in a file as they are, or "
               "transposed or in another float type"),
        {{fact::kField, "source"}});
  }
  absl::Status refusal;
  ContentClaims claims;
  if (put_options.reader != PutReader::kClient &&
      std::any_of(tensors.begin(), tensors.end(), has_source)) {
    bool is_refused = false;
    absl::StatusOr<PutResult> result =
        PutFromFiles(tensors, put_options, deadline, options, &claims, &is_refused, is_taken_back);
    if (!is_refused || put_options.reader == PutReader::kWorkers) return result;
    refusal = result.status();
  }
  absl::StatusOr<PutResult> result =
      PutFromMemory(tensors, put_options, std::move(claims), deadline, options, is_taken_back);
  if (result.ok()) result->workers_refused = std::move(refusal);
  return result;
}

absl::StatusOr<PutResult> ClientCore::PutFromFiles(absl::Span<const PutTensor> tensors,
                                                   const PutOptions& put_options,
                                                   const SteadyDeadline& deadline,
                                                   const CallOptions& options,
                                                   ContentClaims* claims, bool* is_refused,
                                                   bool* is_taken_back) {
  if (absl::Status fit = CheckFilesFit(tensors); !fit.ok()) {
    *is_refused = true;
    return fit;
  }
  AddClaims(*connection_, tensors, put_options, Compared::kSent, LimitAt(deadline, options),
            claims);
  std::string session;
  const auto begin = [&] {
    return InSession(deadline, options, [&](const std::string& session_id, const CallLimit& limit) {
      session = session_id;
      return BeginPut(*connection_, session_id, tensors, put_options,
                      /*from_files=*/true, *claims, limit);
    });
  };
  absl::StatusOr<BegunPut> begun = begin();
  // The workers read faster than anybody compares. But arrays that have the elements already need
  // no room.
  const bool compares_sources = ReasonOf(begun.status()) == Reason::kMemoryLimit &&
                                AddClaims(*connection_, tensors, put_options, Compared::kRead,
                                          LimitAt(deadline, options), claims);
  if (compares_sources) begun = begin();
  if (!begun.ok()) {
    const absl::Status refusal =
        IsOfMixedSources(begun.status())
            ? OfOlderCoordinator("which takes sources of all tensors of a put or of none")
            : std::move(begun).status();
    // At the end of the put's time, the error names the workers that did not answer.
    const bool has_time =
        absl::IsDeadlineExceeded(refusal) ? deadline.left() >= kMinSendTime : !deadline.is_over();
    *is_refused = MaySendInstead(refusal) && has_time;
    return refusal;
  }
  BegunPut put = *std::move(begun);
  const std::vector<size_t> numbers = SentBy(tensors, put, /*from_files=*/true);
  PutResult result;
  result.reader = ReaderOf(tensors, put, numbers);
  if (put_options.validate_only) {
    result.arrays = ArraysOf(&put);
    return result;
  }
  const auto abort = [&](const absl::Status& reason) {
    return AbortTransfer(
        *connection_, session, put.transfer_id, reason,
        Aftermath(deadline.is_over() ? kLateAbortTimeout : kAbortTimeout, options));
  };
  // A token permits this client to send the tiles. A coordinator that knows sources gives none for
  // a tensor that has one.
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].source.has_value() || put.assignments[i].token.empty()) continue;
    const absl::Status refusal = OfOlderCoordinator("whose workers read no files");
    *is_refused = abort(refusal).ok();
    return refusal;
  }
  if (put_options.on_begun) {
    put_options.on_begun(put.transfer_id);
  }
  SHARDMESH_RETURN_IF_ERROR(CountTiles(tensors, put, /*from_files=*/true, &result));
  const std::vector<std::string> nameless = NamelessOf(tensors, put);
  session_.Keep(session, nameless);
  absl::Cleanup finish = [&] { session_.Finish(nameless); };
  HandoverOutcome handover;
  absl::Status sent;
  absl::Status late;
  const absl::StatusOr<CommittedPut> committed = [&]() -> absl::StatusOr<CommittedPut> {
    // It reports what the workers have of all tensors, also of those that this client sends.
    const FillWatch watch(*connection_, put.transfer_id, deadline, options.traceparent,
                          put_options.progress);
    if (!numbers.empty()) {
      sent = Send(tensors, numbers, put, put_options, /*progress=*/nullptr, deadline, options,
                  &handover, &late)
                 .status();
    }
    // A file that somebody wrote meanwhile explains why sending failed, too.
    if (absl::Status kept = CheckFilesNotWritten(tensors, /*from_files=*/!compares_sources);
        !kept.ok()) {
      sent = std::move(kept);
    }
    if (!sent.ok()) {
      return Conclude(session, put.transfer_id, sent, late, deadline, options, is_taken_back);
    }
    return CommitTransfer(*connection_, session, put.transfer_id, LimitAt(deadline, options));
  }();
  if (!committed.ok()) {
    if (!sent.ok()) return committed.status();  // Conclude has ended the transfer
    // The transfer goes on without this client once its commit was requested.
    if (LimitAt(deadline, options).is_cancelled()) {
      abort(absl::CancelledError("the client cancelled it")).IgnoreError();
      return CancelledByCaller();
    }
    if (deadline.is_over()) abort(committed.status()).IgnoreError();
    *is_taken_back = IsOfUnknownTransfer(committed.status());
    // As in Conclude.
    return rpc::IsShortOfCallMemory(committed.status()) ? OutcomeUnknown(committed.status())
                                                        : committed.status();
  }
  std::move(finish).Cancel();
  if (put_options.progress) {
    put_options.progress(result.tile_bytes, result.tile_bytes);
  }
  result.arrays = ArraysOf(&put);
  result.revision = committed->revision;
  result.durability = committed->durability;
  result.sent_bytes = result.tile_bytes - result.reused_bytes - result.read_bytes;
  result.handed_over_bytes = handover.bytes;
  result.handover_refused = std::move(handover.refusal);
  result.transfer_time = committed->transfer_time;
  return result;
}

absl::StatusOr<int64_t> ClientCore::Send(absl::Span<const PutTensor> tensors,
                                         absl::Span<const size_t> numbers, const BegunPut& put,
                                         const PutOptions& put_options,
                                         const ProgressCallback& progress,
                                         const SteadyDeadline& deadline, const CallOptions& options,
                                         HandoverOutcome* handover, absl::Status* late) const {
  std::vector<UploadTensor> uploads;
  std::vector<SavedPart> saved;
  uploads.reserve(numbers.size());
  for (const size_t i : numbers) {
    uploads.push_back({&put.assignments[i].array, put.assignments[i].token, tensors[i].view,
                       /*is_named=*/!tensors[i].name.empty(), put.assignments[i].sent_ranks});
    if (std::optional<SavedPart> part = SavedPartOf(tensors[i]); part.has_value()) {
      saved.push_back(*std::move(part));
    }
  }
  Cancellation streams;
  std::optional<Cancellation::Registration> registration;
  if (options.cancellation != nullptr) {
    registration.emplace(options.cancellation, [&streams] { streams.Cancel(); });
  }
  TransferWatch watch(*connection_, put.transfer_id, deadline, options.traceparent, &streams);
  SHARDMESH_RETURN_IF_ERROR(watch.status());
  SavedCheck check(std::move(saved), deadline, &streams);
  SHARDMESH_RETURN_IF_ERROR(check.status());
  TransferOptions transfer = Transfer(deadline, progress, options);
  transfer.handover = put_options.handover;
  transfer.handover_outcome = handover;
  absl::StatusOr<int64_t> uploaded = Upload(put.devices, uploads, &streams, transfer);
  const absl::Status checked = check.Conclude(uploaded.status());
  *late = watch.Stop();
  SHARDMESH_RETURN_IF_ERROR(checked);
  return uploaded;
}

absl::StatusOr<PutResult> ClientCore::PutFromMemory(
    absl::Span<const PutTensor> tensors, const PutOptions& put_options, ContentClaims claims,
    const SteadyDeadline& deadline, const CallOptions& options, bool* is_taken_back) {
  std::string session;
  AddClaims(*connection_, tensors, put_options, Compared::kAll, LimitAt(deadline, options),
            &claims);
  SHARDMESH_ASSIGN_OR_RETURN(
      BegunPut put,
      InSession(deadline, options, [&](const std::string& session_id, const CallLimit& limit) {
        session = session_id;
        return BeginPut(*connection_, session_id, tensors, put_options, /*from_files=*/false,
                        claims, limit);
      }));
  PutResult result;
  if (put_options.validate_only) {
    result.arrays = ArraysOf(&put);
    return result;
  }
  if (put_options.on_begun) {
    put_options.on_begun(put.transfer_id);
  }
  SHARDMESH_RETURN_IF_ERROR(CountTiles(tensors, put, /*from_files=*/false, &result));
  // Kept before the commit: the coordinator may commit the put and end before it answers.
  const std::vector<std::string> nameless = NamelessOf(tensors, put);
  session_.Keep(session, nameless);
  absl::Cleanup finish = [&] { session_.Finish(nameless); };
  ProgressCallback progress = put_options.progress;
  if (progress != nullptr && result.reused_bytes > 0) {
    progress = [&](int64_t done_bytes, int64_t) {
      put_options.progress(result.reused_bytes + done_bytes, result.tile_bytes);
    };
  }
  HandoverOutcome handover;
  absl::Status late;
  const std::vector<size_t> numbers = SentBy(tensors, put, /*from_files=*/false);
  absl::StatusOr<int64_t> sent = 0;
  if (!numbers.empty()) {
    sent = Send(tensors, numbers, put, put_options, progress, deadline, options, &handover, &late);
  } else if (progress != nullptr) {
    progress(0, 0);
  }
  // A file that somebody wrote meanwhile explains why sending failed, too.
  absl::Status status = CheckFilesNotWritten(tensors, /*from_files=*/false);
  if (status.ok()) status = sent.status();
  SHARDMESH_ASSIGN_OR_RETURN(
      CommittedPut committed,
      Conclude(session, put.transfer_id, status, late, deadline, options, is_taken_back));
  std::move(finish).Cancel();

  result.arrays = ArraysOf(&put);
  result.revision = committed.revision;
  result.durability = committed.durability;
  result.sent_bytes = sent.value_or(0);
  result.handed_over_bytes = handover.bytes;
  result.handover_refused = std::move(handover.refusal);
  result.transfer_time = committed.transfer_time;
  return result;
}

void ClientCore::LetGo(std::vector<std::string> idle, const std::string& session_id,
                       const CallOptions& options) {
  while (!idle.empty()) {
    std::erase_if(idle, [this](const std::string& array_id) { return session_.Keeps(array_id); });
    absl::Span<const std::string> left = idle;
    while (!left.empty()) {
      ReleaseArrays(*connection_, session_id, left.subspan(0, kMaxReleased),
                    Aftermath(kReleaseTimeout, options))
          .IgnoreError();
      left.remove_prefix(std::min(left.size(), kMaxReleased));
    }
    idle = read_pins_.EndLettingGo();
  }
}

absl::Status ClientCore::Hold(const Array& array, const std::optional<Tile>& part,
                              const SteadyDeadline& deadline, const CallOptions& options) {
  const std::string& array_id = array.descriptor.array_id;
  std::string session;
  const auto begin = [&](const ArraySelector& selector) {
    read_pins_.BeginAsking();
    absl::StatusOr<BegunGet> begun =
        InSession(deadline, options, [&](const std::string& session_id, const CallLimit& limit) {
          session = session_id;
          return BeginGet(*connection_, session_id, selector, part, limit);
        });
    LetGo(read_pins_.EndAsking(begun), session, options);
    return begun;
  };
  absl::StatusOr<BegunGet> begun = absl::NotFoundError("the array has no name");
  std::string other_id;  // of another array that the name means
  if (!array.name.empty()) {
    begun = begin(ArraySelector::ByName(array.name, array.name_version));
    if (begun.ok() && begun->array.descriptor.array_id != array_id) {
      other_id = begun->array.descriptor.array_id;
      LetGo(read_pins_.EndReading(absl::MakeConstSpan(&other_id, 1)), session, options);
      begun = absl::NotFoundError("the name means another array");
    }
  }
  // A coordinator that has restarted does not know former versions of names.
  if (absl::IsNotFound(begun.status())) begun = begin(ArraySelector::ById(array_id));
  if (ReasonOf(begun.status()) != Reason::kNotFound) return begun.status();
  session_.DropGone(array_id);
  if (other_id.empty()) return begun.status();
  return absl::AbortedError(StrCat("'", array.name, "' no longer means the array ", array_id,
                                   ", which is gone, but ", other_id, "; ask again"));
}

void ClientCore::EndHold(absl::Span<const std::string> array_ids, const CallOptions& options) {
  // A session that came after the one of the pins has none of them, unless it took the array over:
  // LetGo leaves such an array to its release.
  const absl::StatusOr<std::string> session_id = session_.Get(Aftermath(kReleaseTimeout, options));
  LetGo(read_pins_.EndReading(array_ids), session_id.value_or(""), options);
}

ReadOutcome ClientCore::Read(const ArraySelector& array, const std::optional<Tile>& part,
                             const std::string& expected_id, const SteadyDeadline& deadline,
                             const CallOptions& options, const ReadBody& body,
                             const std::optional<int64_t>& partial_sum) {
  std::string session;
  read_pins_.BeginAsking();
  absl::StatusOr<BegunGet> begun =
      InSession(deadline, options, [&](const std::string& session_id, const CallLimit& limit) {
        session = session_id;
        return BeginGet(*connection_, session_id, array, part, limit);
      });
  LetGo(read_pins_.EndAsking(begun), session, options);
  if (!begun.ok()) {
    if (array.name.empty() && ReasonOf(begun.status()) == Reason::kNotFound) {
      session_.DropGone(array.array_id);
    }
    return {std::move(begun).status()};
  }
  const BegunGet get = *std::move(begun);
  const ArrayDescriptor& descriptor = get.array.descriptor;
  const absl::Cleanup let_go = [&, array_id = descriptor.array_id] {
    LetGo(read_pins_.EndReading(absl::MakeConstSpan(&array_id, 1)), session, options);
  };
  // BeginGet may return an answer after the time limit or the cancellation: check both.
  if (LimitAt(deadline, options).is_cancelled()) return {CancelledByCaller()};
  if (deadline.is_over()) {
    return {connection_->StatusOf({grpc::StatusCode::DEADLINE_EXCEEDED, "Deadline Exceeded"})};
  }
  if (!expected_id.empty() && descriptor.array_id != expected_id) {
    return {absl::AbortedError(StrCat("'", array.name, "' no longer means the array ", expected_id,
                                      ", of which the slice is, but ", descriptor.array_id,
                                      "; ask again")),
            /*may_have_moved=*/true};
  }
  // Before `body`, which may write the head of a file.
  if (absl::Status reduced = CheckReduced(descriptor, CommandText(array, descriptor.array_id));
      !reduced.ok() && !partial_sum.has_value()) {
    return {std::move(reduced)};
  }
  ReadOutcome outcome;
  absl::flat_hash_set<std::string> lost_workers;
  absl::flat_hash_map<std::string, int> silent_workers;
  const auto fetch = [&](const Tile& tile, const MutableTensorView& into,
                         const ProgressCallback& progress) -> absl::Status {
    TransferOptions transfer = Transfer(deadline, progress, options);
    transfer.array = CommandText(array, descriptor.array_id);
    transfer.partial_sum = partial_sum;
    transfer.lost_workers = &lost_workers;
    transfer.silent_workers = &silent_workers;
    if (get.second_copy.has_value()) transfer.second_copy = &*get.second_copy;
    transfer.connections = &worker_connections_;
    transfer.silence_watch = &silence_watch_;
    const absl::Status downloaded =
        Download(descriptor, tile, get.token, get.devices, into, options.cancellation, transfer);
    if (downloaded.ok()) return downloaded;
    if (LimitAt(deadline, options).is_cancelled()) return CancelledByCaller();
    outcome.may_have_moved = MayHaveMoved(downloaded);
    return downloaded;
  };
  outcome.status = body(get.array, part.value_or(Tile::Whole(descriptor.shape)), fetch);
  return outcome;
}

absl::StatusOr<CommittedPut> ClientCore::Conclude(const std::string& session_id,
                                                  const std::string& transfer_id,
                                                  const absl::Status& sent,
                                                  const absl::Status& late,
                                                  const SteadyDeadline& deadline,
                                                  const CallOptions& options, bool* is_taken_back) {
  *is_taken_back = false;
  bool is_cancelled = LimitAt(deadline, options).is_cancelled();
  if (sent.ok()) {
    absl::StatusOr<CommittedPut> committed =
        CommitTransfer(*connection_, session_id, transfer_id, LimitAt(deadline, options));
    *is_taken_back = IsOfUnknownTransfer(committed.status());
    // If gRPC's memory for calls was exhausted, the client repeated the commit until the time
    // limit. The coordinator may have committed the put on an earlier request.
    return rpc::IsShortOfCallMemory(committed.status()) ? OutcomeUnknown(committed.status())
                                                        : std::move(committed);
  }
  const bool may_be_late = absl::IsDeadlineExceeded(sent) || absl::IsUnavailable(sent);
  const bool is_late = may_be_late && !is_cancelled && deadline.left() < kLateWithin;
  const bool is_explained = is_late && !late.ok();
  if (is_late && !is_explained) {
    // The coordinator aborts the put at the deadline of this call, and names the late workers.
    absl::StatusOr<CommittedPut> verdict = CommitTransfer(*connection_, session_id, transfer_id,
                                                          Aftermath(kLateVerdictTimeout, options));
    const Reason reason = ReasonOf(verdict.status());
    if (verdict.ok() || reason == Reason::kDeadline || reason == Reason::kWorkerLost) {
      return verdict;
    }
  }
  const bool may_know_better = IsSymptom(sent) && !is_cancelled && !is_late;
  if (may_know_better) {
    // Ask the coordinator to commit although sending failed. The coordinator answers as soon as it
    // knows the cause of the failure, or as soon as all tiles have arrived.
    CallLimit limit = Aftermath(std::min(deadline.left(), kVerdictTimeout), options);
    limit.cancellation = options.cancellation;
    absl::StatusOr<CommittedPut> verdict =
        CommitTransfer(*connection_, session_id, transfer_id, limit);
    is_cancelled = limit.is_cancelled();
    *is_taken_back = IsOfUnknownTransfer(verdict.status());
    if (verdict.ok() || ReasonOf(verdict.status()) == Reason::kWorkerLost || *is_taken_back) {
      return verdict;
    }
    // A worker may say that it does not serve because the transfer was cancelled meanwhile.
    if (!is_cancelled && ReasonOf(sent) == Reason::kNotServing &&
        absl::IsCancelled(verdict.status())) {
      return verdict;
    }
    // The streams end as soon as the transfer has ended, and a worker may hear of its end before
    // this client does.
    const bool is_of_end = absl::IsCancelled(sent) || ReasonOf(sent) == Reason::kStaleTerm;
    if (!is_cancelled && is_of_end && !absl::IsDeadlineExceeded(verdict.status())) {
      return rpc::IsShortOfCallMemory(verdict.status()) ? OutcomeUnknown(verdict.status())
                                                        : std::move(verdict);
    }
  }
  const absl::Status aborted =
      AbortTransfer(*connection_, session_id, transfer_id,
                    is_cancelled ? absl::CancelledError("the client cancelled it") : sent,
                    Aftermath(deadline.is_over() ? kLateAbortTimeout : kAbortTimeout, options));
  if (is_cancelled) return CancelledByCaller();
  if (is_explained) return late;
  if (is_late && absl::IsUnavailable(sent)) {
    return WithReason(absl::DeadlineExceededError(
                          StrCat("the put has not ended within its time: ", ToStd(sent.message()))),
                      Reason::kDeadline,
                      {{fact::kIdentity, FactOf(sent, fact::kIdentity).value_or("")}});
  }
  // A worker that has lost the coordinator stages no tile, and without that tile no coordinator
  // commits the put.
  *is_taken_back =
      ReasonOf(sent) == Reason::kNotServing || (aborted.ok() && !may_know_better && !is_late);
  return sent;
}

}  // namespace shardmesh::client
