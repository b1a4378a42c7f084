// ArrayClient: transfers in the session of ClientCore, and calls about names.
#include "client/arrays.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "client/client_core.h"
#include "client/get_report.h"
#include "client/remote/coordinator_connection.h"
#include "client/remote/reshard_calls.h"
#include "client/remote/row_bands.h"
#include "client/remote/transfer_calls.h"
#include "client/remote/wire_enums.h"
#include "process/steady_deadline.h"
#include "rpc/call.h"
#include "rpc/call_memory.h"
#include "status/byte_text.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

// Limit on the number of attempts of a gather. If tiles are not on the workers that the coordinator
// named, the client asks the coordinator again. The coordinator learns of lost workers at once, or
// within its heartbeat limit of 5 s.
constexpr int kMaxGatherAttempts = 8;
// Limit on the number of attempts of a put that end because the coordinator was restarted, or
// because workers have lost it. They attach again within seconds.
constexpr int kMaxPutAttempts = 8;

// Returns the error for an array whose workers this client cannot reach, although the coordinator
// counts them as attached. Returns `status` unchanged if it is not ARRAY_DEGRADED.
absl::Status WithoutReach(const ArraySelector& array, const absl::Status& status) {
  if (ReasonOf(status) != Reason::kArrayDegraded) {
    return status;
  }
  return absl::UnavailableError(
      StrCat(array.name.empty() ? "" : StrCat("\"", array.name, "\": "), ToStd(status.message()),
             "; those workers are attached to the coordinator, but this client exchanges elements "
             "with them directly: run it where it can reach the workers' addresses"));
}

// Returns `options` for a load of `checkpoint`, unless they name another one.
PutOptions WithCheckpoint(PutOptions options, const std::string& checkpoint) {
  if (options.checkpoint.empty()) options.checkpoint = checkpoint;
  return options;
}

// Reshards by `call`, and keeps the arrays without names that the session then pins: new ones, and
// old ones whose names have moved.
absl::StatusOr<ReshardResult> ReshardAndKeep(
    ClientCore* core, const ReshardOptions& reshard_options, const CallOptions& options,
    const std::function<absl::StatusOr<ReshardResult>(const std::string& session_id,
                                                      const CallLimit& limit)>& call) {
  std::string session;
  absl::StatusOr<ReshardResult> result =
      core->InSession(core->TransferDeadline(options), options,
                      [&](const std::string& session_id, const CallLimit& limit) {
                        session = session_id;
                        return call(session_id, limit);
                      });
  if (!result.ok() || reshard_options.validate_only) return result;
  std::vector<std::string> kept;
  std::vector<std::string> released;
  for (const ReshardedArray& array : result->arrays) {
    if (array.is_skipped) continue;
    if (array.name.empty()) kept.push_back(array.descriptor.array_id);
    if (reshard_options.release_source) {
      released.push_back(array.source_array_id);
    } else if (!array.name.empty() && reshard_options.name.empty()) {
      kept.push_back(array.source_array_id);
    }
  }
  core->Keep(session, kept);
  core->DropReleased(released);
  return result;
}

std::vector<TileHolder> DecodeHolders(
    const google::protobuf::RepeatedPtrField<v1::TileHolder>& from) {
  std::vector<TileHolder> holders;
  holders.reserve(static_cast<size_t>(from.size()));
  for (const v1::TileHolder& each : from) {
    holders.push_back(
        {.rank = each.rank(), .identity = each.identity(), .present = each.present()});
  }
  return holders;
}

// `holders` may be null.
absl::StatusOr<Array> Describe(const CoordinatorConnection& connection, const ArraySelector& array,
                               const CallLimit& limit, ArrayHolders* holders = nullptr) {
  v1::DescribeArrayRequest request;
  EncodeSelector(array, request.mutable_array());
  request.set_include_holders(holders != nullptr);
  v1::DescribeArrayResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(
      connection.arrays, &v1::ArrayService::Stub::DescribeArray, request, limit, &response));
  if (holders != nullptr) {
    *holders = {.first = DecodeHolders(response.holders()),
                .second = DecodeHolders(response.second_holders())};
  }
  return DecodeArray(response.array());
}

// Reads the array, or only `slice` of it if `slice` is not null: passes it to `body`, which runs
// again if a download failed and a new answer of the coordinator may help.
// `partial_sum`: see TransferOptions.
absl::Status ReadPart(ClientCore& core, ArraySelector array, const ArraySlice* slice,
                      const CallOptions& options, const ReadBody& body,
                      const std::optional<int64_t>& partial_sum = std::nullopt) {
  const SteadyDeadline deadline = core.TransferDeadline(options);
  const auto describe = [&]() -> absl::StatusOr<ArrayDescriptor> {
    SHARDMESH_ASSIGN_OR_RETURN(Array described, Describe(core.connection(), array,
                                                         ClientCore::LimitAt(deadline, options)));
    core.recent_arrays().Set(array, described.descriptor);
    return std::move(described.descriptor);
  };
  rpc::Backoff backoff({.max_delay = absl::Seconds(1)});
  for (int attempt = 1;; ++attempt) {
    // Resolve the slice anew for each attempt: the name may now refer to an array of another shape.
    std::optional<Tile> part;
    std::string array_id;
    bool is_remembered = false;  // and may be out of date
    if (slice != nullptr) {
      if (attempt == 1) {
        if (const auto recent = core.recent_arrays().Find(array); recent.has_value()) {
          if (absl::StatusOr<Tile> tile = TileOf(*slice, *recent); tile.ok()) {
            part = *std::move(tile);
            array_id = recent->array_id;
            is_remembered = true;
          }
        }
      }
      if (!is_remembered) {
        SHARDMESH_ASSIGN_OR_RETURN(const ArrayDescriptor described, describe());
        SHARDMESH_ASSIGN_OR_RETURN(part, TileOf(*slice, described));
        array_id = described.array_id;
      }
    }
    ReadOutcome outcome = core.Read(array, part, array_id, deadline, options, body, partial_sum);
    if (slice != nullptr && absl::IsInvalidArgument(outcome.status)) {
      // The part fits the described array. An error therefore suggests that the name now refers to
      // another array.
      const absl::StatusOr<ArrayDescriptor> now = describe();
      outcome.may_have_moved = now.ok() && now->array_id != array_id;
    }
    if (outcome.status.ok() || !outcome.may_have_moved) {
      return std::move(outcome.status);
    }
    if (is_remembered) continue;  // the next attempt asks what the array is
    // The coordinator's answer was out of date: the coordinator did not know yet that tiles had
    // moved or were lost. Wait, so that the coordinator can learn of the change, and ask again.
    const absl::Duration delay = backoff.NextDelay(outcome.status);
    if (attempt == kMaxGatherAttempts || delay >= deadline.left()) {
      return WithoutReach(array, outcome.status);
    }
    core.OnWait(outcome.status);
    SleepUnlessCancelled(delay, options.cancellation);
  }
}

// Whether an error of a put may come from a save that replaced the put's files: a worker or this
// client found no file, another file, other bytes, or a marker and a manifest that do not fit.
bool MayBeOfReplacedFile(const absl::Status& error) {
  switch (ReasonOf(error)) {
    case Reason::kBadFile:
    case Reason::kChecksumMismatch:
    case Reason::kFileChanged:
    case Reason::kMissingArgument:  // no source: this client found no real path of a file
    case Reason::kNoReadRoot:       // a path that leads elsewhere
      return true;
    case Reason::kUnspecified:
      // ABORTED is that of ESTALE: a file server no longer has the open file.
      return absl::IsNotFound(error) || absl::IsAborted(error);
    default:
      return false;
  }
}

// Finds the real paths of the files of a checkpoint.
class SourceFinder {
 public:
  // Returns a place in the file `opened`, which outlives this object. Nullopt if the file has no
  // real path: it was removed, or this process may no longer enter its folder.
  std::optional<FileSource> Find(const SourceFile& opened, int64_t offset_bytes) {
    const auto [place, is_new] = files_.try_emplace(&opened);
    if (is_new) place->second = AtRealPath(opened);
    if (place->second == nullptr) return std::nullopt;
    return FileSource{.file = place->second, .offset_bytes = offset_bytes};
  }

 private:
  absl::flat_hash_map<const SourceFile*, std::shared_ptr<const SourceFile>> files_;
};

// Begins the report of a get of this part alone.
absl::Status BeginReport(const Array& array, const Tile& part, bool is_slice, GetReport& report) {
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t size_bytes, array.descriptor.TileSizeBytes(part));
  report.Begin(DescribeGet(array, is_slice ? std::optional(part) : std::nullopt, /*arrays=*/1),
               /*arrays=*/1, size_bytes);
  return absl::OkStatus();
}

absl::Status CheckPartialSum(const Array& array, int64_t number) {
  const int64_t count = PartialSumCount(array.descriptor);
  if (number >= 0 && number < count) return absl::OkStatus();
  return InvalidArgument(Reason::kBadField,
                         StrCat("there is no partial sum ", number,
                                " of the array; it has the numbers 0 to ", count - 1),
                         {{fact::kField, "number"}, {fact::kValue, number}});
}

// Gathers the array, or only `slice` of it if `slice` is not null. `partial_sum`: see
// TransferOptions.
absl::StatusOr<GatheredTensor> GatherPart(
    ClientCore& core, const ArraySelector& array, const ArraySlice* slice,
    const ProgressCallback& progress, const CallOptions& options,
    const std::optional<int64_t>& partial_sum = std::nullopt) {
  GetReport report(&core, options);
  const ProgressCallback counting = report.Counting(progress);
  std::optional<GatheredTensor> tensor;
  const auto gather = [&](const Array& read, const Tile& part,
                          const FetchTile& fetch) -> absl::Status {
    if (partial_sum.has_value()) {
      SHARDMESH_RETURN_IF_ERROR(CheckPartialSum(read, *partial_sum));
    }
    SHARDMESH_ASSIGN_OR_RETURN(tensor, GatheredTensor::Allocate(read, part));
    SHARDMESH_RETURN_IF_ERROR(BeginReport(read, part, slice != nullptr, report));
    return fetch(part, tensor->mutable_view(), counting);
  };
  SHARDMESH_RETURN_IF_ERROR(
      report.Conclude(ReadPart(core, array, slice, report.options(), gather, partial_sum)));
  return *std::move(tensor);
}

const ArraySlice* Pointer(const std::optional<ArraySlice>& slice) {
  return slice.has_value() ? &*slice : nullptr;
}

absl::Status CheckFits(const MutableTensorView& into, const Array& array, const Tile& part) {
  if (into.dtype() == array.descriptor.dtype && into.shape() == part.shape()) {
    return absl::OkStatus();
  }
  const auto text = [](Dtype dtype, const Shape& shape) {
    return StrCat(DtypeName(dtype), " ", ShapeToString(shape));
  };
  const std::string have = text(into.dtype(), into.shape());
  const std::string need = text(array.descriptor.dtype, part.shape());
  return InvalidArgument(
      Reason::kShapeMismatch,
      StrCat("the memory is of a tensor ", have, ", and the array has ", need, " to gather"),
      {{fact::kHave, have}, {fact::kNeed, need}});
}

// Reads one array piece by piece, over several attempts.
class PieceReader {
 public:
  // All arguments outlive this object.
  PieceReader(const TensorSink& sink, const GatherOptions& options,
              const Cancellation* cancellation)
      : sink_(sink), options_(options), cancellation_(cancellation) {}

  // The array that was read. Requires that Read has succeeded.
  const Array& array() const { return *array_; }

  // Reads the pieces that are missing.
  absl::Status Read(const Array& read, const Tile& part, const FetchTile& fetch) {
    if (!array_.has_value()) {
      SHARDMESH_RETURN_IF_ERROR(Begin(read, part));
    } else if (read.descriptor.array_id != array_->descriptor.array_id) {
      return absl::AbortedError(StrCat("the name \"", read.name,
                                       "\" was moved to another array while the array ",
                                       array_->descriptor.array_id, " was read; gather it again"));
    }
    for (; band_.has_value(); band_ = bands_->Next()) {
      SHARDMESH_ASSIGN_OR_RETURN(const int64_t size_bytes, read.descriptor.TileSizeBytes(*band_));
      SHARDMESH_ASSIGN_OR_RETURN(const absl::Span<char> bytes, Memory(size_bytes));
      SHARDMESH_ASSIGN_OR_RETURN(
          const MutableTensorView view,
          MutableTensorView::Create(read.descriptor.dtype, band_->shape(), bytes));
      ProgressCallback progress;
      if (options_.progress != nullptr) {
        progress = [this](int64_t done, int64_t) {
          options_.progress(done_bytes_ + done, total_bytes_);
        };
      }
      SHARDMESH_RETURN_IF_ERROR(fetch(*band_, view, progress));
      const absl::Status appended = sink_.append(bytes);
      // The sink may have taken long, and this may have been the last piece.
      if (cancellation_->is_cancelled()) {
        return WithReason(absl::CancelledError("the caller cancelled the get"), Reason::kCancelled);
      }
      SHARDMESH_RETURN_IF_ERROR(appended);
      done_bytes_ += size_bytes;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Begin(const Array& read, const Tile& part) {
    SHARDMESH_ASSIGN_OR_RETURN(total_bytes_, read.descriptor.TileSizeBytes(part));
    array_ = read;
    bands_.emplace(read.descriptor.dtype, part, std::max<int64_t>(options_.piece_bytes, 1));
    band_ = bands_->Next();
    return sink_.begin(read, part);
  }
  // Returns memory for `size_bytes`, which is valid until the next call.
  absl::StatusOr<absl::Span<char>> Memory(int64_t size_bytes) {
    if (size_bytes > memory_bytes_) {
      memory_.reset();
      memory_bytes_ = 0;
      memory_.reset(new (std::nothrow) char[static_cast<size_t>(size_bytes)]);
      if (memory_ == nullptr) {
        return WithReason(absl::ResourceExhaustedError(StrCat("there is no memory for a piece of ",
                                                              FormatBytes(size_bytes))),
                          Reason::kMemoryLimit, {{fact::kNeed, size_bytes}});
      }
      memory_bytes_ = size_bytes;
    }
    return absl::MakeSpan(memory_.get(), static_cast<size_t>(size_bytes));
  }

  const TensorSink& sink_;
  const GatherOptions& options_;
  const Cancellation* const cancellation_;
  std::optional<Array> array_;  // set once the sink's `begin` was called
  std::optional<RowBands> bands_;
  std::optional<Tile> band_;  // the next one
  std::unique_ptr<char[]> memory_;
  int64_t memory_bytes_ = 0;
  int64_t total_bytes_ = 0;
  int64_t done_bytes_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<PutTensor>> PutTensorsOf(const MappedCheckpoint& checkpoint) {
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<TensorElements> elements, checkpoint.Elements());
  std::vector<PutTensor> tensors;
  tensors.reserve(elements.size());
  SourceFinder sources;
  for (size_t i = 0; i < elements.size(); ++i) {
    const MappedTensor& tensor = checkpoint.tensors()[i];
    PutTensor& put =
        tensors.emplace_back(PutTensor{.name = tensor.name, .view = std::move(elements[i])});
    const SourceTensor& source = checkpoint.SourceOf(tensor);
    put.saved = checkpoint.source().SavedPartOf(source);
    std::optional<FileSource> place = sources.Find(*source.file, source.offset_bytes);
    if (MappedCheckpoint::IsElementwise(tensor)) {
      put.source = std::move(place);
      if (put.source.has_value()) put.source->conversion = checkpoint.ReadAs(tensor);
    } else if (place.has_value()) {
      put.origin = ArrayOrigin{.file = std::move(place->file),
                               .offset_bytes = place->offset_bytes,
                               .conversion = checkpoint.ConversionOf(tensor)};
    }
  }
  return tensors;
}

absl::StatusOr<PutArray> ArrayClient::Shard(const TensorElements& tensor,
                                            const std::vector<AxisValue>& axes, const Mode& mode,
                                            const PutOptions& put_options,
                                            const CallOptions& options) {
  if (put_options.mode.has_value()) {
    return InvalidArgument(Reason::kBadField,
                           "PutOptions::mode is set, and Shard has a mode of its own; unset it");
  }
  PutOptions with_mode = put_options;
  with_mode.mode = mode;
  const PutTensor put{.name = "", .view = tensor, .axes = axes};
  SHARDMESH_ASSIGN_OR_RETURN(PutResult result,
                             PutTensors(absl::MakeConstSpan(&put, 1), with_mode, options));
  return std::move(result.arrays.front());
}

absl::StatusOr<PutResult> ArrayClient::PutTensors(absl::Span<const PutTensor> tensors,
                                                  const PutOptions& put_options,
                                                  const CallOptions& options) {
  const SteadyDeadline deadline = core_->TransferDeadline(options);
  rpc::Backoff backoff({.initial_delay = absl::Milliseconds(200), .max_delay = absl::Seconds(5)});
  for (int restarts = 0;;) {
    bool is_taken_back = false;
    absl::StatusOr<PutResult> result =
        core_->Put(tensors, put_options, deadline, options, &is_taken_back);
    if (!is_taken_back) return result;
    const absl::Status& error = result.status();
    const bool is_of_restart = ReasonOf(error) == Reason::kNotServing || IsOfUnknownTransfer(error);
    const bool is_of_passing_cause =
        rpc::IsShortOfCallMemory(error) || (is_of_restart && ++restarts < kMaxPutAttempts);
    if (!is_of_passing_cause) return result;
    if (put_options.may_begin_again && !put_options.may_begin_again()) return result;
    const absl::Duration delay = backoff.NextDelay(result.status());
    if (delay >= deadline.left()) {
      return result;
    }
    core_->OnWait(result.status());
    SleepUnlessCancelled(delay, options.cancellation);
  }
}

absl::StatusOr<PutResult> ArrayClient::LoadCheckpoint(const Checkpoint& checkpoint,
                                                      const PutOptions& put_options,
                                                      const CallOptions& options) {
  std::vector<PutTensor> tensors;
  tensors.reserve(checkpoint.tensors().size());
  SourceFinder sources;
  absl::flat_hash_map<const SafetensorsFile*, std::shared_ptr<const SourceFile>> opened;
  for (const Checkpoint::Entry& entry : checkpoint.tensors()) {
    std::shared_ptr<const SourceFile>& file = opened[entry.file];
    if (file == nullptr) file = std::make_shared<const SourceFile>(entry.file->state());
    const int64_t offset_bytes =
        entry.file->header().data_offset_bytes() + entry.tensor->begin_bytes;
    const TensorView view = checkpoint.View(entry);
    tensors.push_back(
        {.name = entry.tensor->name,
         .view = view,
         .source = sources.Find(entry.file->state(), offset_bytes),
         .saved = SavedPart{
             .file = file, .offset_bytes = offset_bytes, .size_bytes = view.size_bytes()}});
  }
  return PutTensors(tensors, WithCheckpoint(put_options, checkpoint.path()), options);
}

absl::StatusOr<PutResult> ArrayClient::LoadCheckpoint(const MappedCheckpoint& checkpoint,
                                                      const PutOptions& put_options,
                                                      const CallOptions& options) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<PutTensor> tensors, PutTensorsOf(checkpoint));
  return PutTensors(tensors, WithCheckpoint(put_options, checkpoint.source().checkpoint_path()),
                    options);
}

std::function<absl::Status()> OpenUntil(const SteadyDeadline& deadline,
                                        const Cancellation* cancellation) {
  return [deadline, cancellation]() -> absl::Status {
    if (cancellation != nullptr && cancellation->is_cancelled()) {
      return WithReason(absl::CancelledError("the caller cancelled the call while a save replaced "
                                             "the checkpoint to open"),
                        Reason::kCancelled);
    }
    if (!deadline.is_over()) return absl::OkStatus();
    return WithReason(
        absl::DeadlineExceededError("the time limit was over while a save replaced the checkpoint "
                                    "to open; give more time, or open it when the save has ended"),
        Reason::kDeadline);
  };
}

CallOptions PutAttempts::Options() const {
  CallOptions left = options_;
  left.timeout = deadline_.left();
  return left;
}

bool PutAttempts::MayOpenAgain(const absl::Status& result) {
  ++count_;
  return count_ < kMaxLoadAttempts && !deadline_.is_over() && MayBeOfReplacedFile(result);
}

PutAttempts ArrayClient::BeginAttempts(const CallOptions& options) const {
  return PutAttempts(core_->TransferDeadline(options), options);
}

absl::StatusOr<PutResult> ArrayClient::LoadCheckpoint(const std::string& path,
                                                      const PutOptions& put_options,
                                                      const CallOptions& options) {
  PutAttempts attempts = BeginAttempts(options);
  absl::Status replaced;
  for (;;) {
    const auto open = [&]() -> absl::StatusOr<MappedCheckpoint> {
      SHARDMESH_ASSIGN_OR_RETURN(TensorSource source,
                                 TensorSource::Open(path, {}, attempts.KeepOpening()));
      return MappedCheckpoint::Create(std::make_shared<const TensorSource>(std::move(source)));
    };
    const absl::StatusOr<MappedCheckpoint> checkpoint = open();
    // A save that replaces the checkpoint may have yet to end. Then the error of the last attempt
    // says more, unless the caller has cancelled the call.
    if (!checkpoint.ok()) {
      return replaced.ok() || absl::IsCancelled(checkpoint.status()) ? checkpoint.status()
                                                                     : replaced;
    }
    if (!replaced.ok() && !attempts.HasTime()) return replaced;
    absl::StatusOr<PutResult> result = LoadCheckpoint(*checkpoint, put_options, attempts.Options());
    if (!attempts.MayOpenAgain(result.status()) || !checkpoint->source().WasReplaced()) {
      return result;
    }
    replaced = result.status();
  }
}

absl::StatusOr<GatheredTensor> ArrayClient::Gather(const ArraySelector& array,
                                                   const ProgressCallback& progress,
                                                   const CallOptions& options) {
  return GatherPart(*core_, array, nullptr, progress, options);
}

absl::StatusOr<GatheredTensor> ArrayClient::Gather(const ArraySelector& array,
                                                   const ArraySlice& slice,
                                                   const ProgressCallback& progress,
                                                   const CallOptions& options) {
  return GatherPart(*core_, array, &slice, progress, options);
}

absl::StatusOr<GatheredTensor> ArrayClient::GatherPartialSum(const ArraySelector& array,
                                                             int64_t number,
                                                             const std::optional<ArraySlice>& slice,
                                                             const CallOptions& options) {
  return GatherPart(*core_, array, Pointer(slice), nullptr, options, number);
}

absl::StatusOr<Array> ArrayClient::GatherInto(const ArraySelector& array,
                                              const MutableTensorView& into,
                                              const GatherOptions& gather_options,
                                              const CallOptions& options) {
  GetReport report(core_, options);
  const ProgressCallback counting = report.Counting(gather_options.progress);
  const ArraySlice* const slice = Pointer(gather_options.slice);
  std::optional<Array> gathered;
  const auto gather = [&](const Array& read, const Tile& part,
                          const FetchTile& fetch) -> absl::Status {
    SHARDMESH_RETURN_IF_ERROR(CheckFits(into, read, part));
    SHARDMESH_RETURN_IF_ERROR(BeginReport(read, part, slice != nullptr, report));
    gathered = read;
    return fetch(part, into, counting);
  };
  SHARDMESH_RETURN_IF_ERROR(
      report.Conclude(ReadPart(*core_, array, slice, report.options(), gather)));
  return *std::move(gathered);
}

absl::StatusOr<Array> ArrayClient::GatherTo(const ArraySelector& array, const TensorSink& sink,
                                            const GatherOptions& gather_options,
                                            const CallOptions& options) {
  GetReport report(core_, options);
  GatherOptions counting = gather_options;
  counting.progress = report.Counting(gather_options.progress);
  return report.Conclude(GatherPieces(*core_, array, sink, counting, report));
}

absl::StatusOr<Array> GatherPieces(ClientCore& core, const ArraySelector& array,
                                   const TensorSink& sink, const GatherOptions& gather_options,
                                   GetReport& report) {
  PieceReader reader(sink, gather_options, report.options().cancellation);
  std::optional<Cancellation::Registration> registration;
  if (sink.cancelled != nullptr) {
    registration.emplace(report.options().cancellation, sink.cancelled);
  }
  const ArraySlice* const slice = Pointer(gather_options.slice);
  const auto gather = [&](const Array& read, const Tile& part,
                          const FetchTile& fetch) -> absl::Status {
    SHARDMESH_RETURN_IF_ERROR(BeginReport(read, part, slice != nullptr, report));
    return reader.Read(read, part, fetch);
  };
  SHARDMESH_RETURN_IF_ERROR(ReadPart(core, array, slice, report.options(), gather));
  return reader.array();
}

absl::StatusOr<Array> ArrayClient::DescribeArray(const ArraySelector& array,
                                                 const CallOptions& options) {
  return DescribeWithHolders(array, nullptr, options);
}

absl::StatusOr<Array> ArrayClient::DescribeWithHolders(const ArraySelector& array,
                                                       ArrayHolders* holders,
                                                       const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const auto describe = [&] { return Describe(core_->connection(), array, limit, holders); };
  return array.name.empty() ? core_->ById(array.array_id, limit, describe) : describe();
}

absl::StatusOr<int64_t> ArrayClient::MoveName(const std::string& name, const std::string& array_id,
                                              const Precondition& precondition, bool validate_only,
                                              const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::MoveNameRequest request;
  request.set_request_id(NewRequestId());
  request.set_name(name);
  request.set_array_id(array_id);
  SetPrecondition(precondition, request.mutable_precondition());
  request.set_validate_only(validate_only);
  const absl::StatusOr<int64_t> version =
      core_->ById(array_id, limit, [&]() -> absl::StatusOr<int64_t> {
        v1::MoveNameResponse response;
        SHARDMESH_RETURN_IF_ERROR(connection.Call(
            connection.arrays, &v1::ArrayService::Stub::MoveName, request, limit, &response));
        return response.version();
      });
  // The array has a name from now on. If the name got lost, a later session must not delete it.
  if (version.ok() && !validate_only) core_->Drop({&array_id, 1});
  return version;
}

absl::Status ArrayClient::DeleteName(const std::string& name,
                                     std::optional<int64_t> expected_version, bool validate_only,
                                     const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::DeleteNameRequest request;
  request.set_request_id(NewRequestId());
  request.set_name(name);
  SetPrecondition(expected_version, request.mutable_precondition());
  request.set_validate_only(validate_only);
  v1::DeleteNameResponse response;
  return connection.Call(connection.arrays, &v1::ArrayService::Stub::DeleteName, request, limit,
                         &response);
}

absl::StatusOr<std::vector<Array>> ArrayClient::ListArrays(const std::string& prefix,
                                                           bool include_unnamed,
                                                           const CallOptions& options) {
  const SteadyDeadline deadline = core_->Deadline(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::ListArraysRequest request;
  request.set_prefix(prefix);
  request.set_include_unnamed(include_unnamed);
  request.set_page_size(1'000);  // the coordinator returns no larger pages
  std::vector<Array> arrays;
  do {
    v1::ListArraysResponse response;
    SHARDMESH_RETURN_IF_ERROR(connection.Call(connection.arrays,
                                              &v1::ArrayService::Stub::ListArrays, request,
                                              ClientCore::LimitAt(deadline, options), &response));
    for (const v1::Array& array : response.arrays()) {
      SHARDMESH_ASSIGN_OR_RETURN(arrays.emplace_back(), DecodeArray(array));
    }
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return arrays;
}

absl::StatusOr<ReshardResult> ArrayClient::Reshard(const ArraySelector& array,
                                                   const ReshardOptions& reshard_options,
                                                   const CallOptions& options) {
  return ReshardAndKeep(
      core_, reshard_options, options, [&](const std::string& session_id, const CallLimit& limit) {
        return client::Reshard(core_->connection(), session_id, array, reshard_options, limit);
      });
}

absl::StatusOr<ReshardResult> ArrayClient::ReshardTree(const std::string& prefix,
                                                       const ReshardOptions& reshard_options,
                                                       const CallOptions& options) {
  return ReshardAndKeep(
      core_, reshard_options, options, [&](const std::string& session_id, const CallLimit& limit) {
        return client::Reshard(core_->connection(), session_id, prefix, reshard_options, limit);
      });
}

absl::StatusOr<int64_t> ArrayClient::ReleaseArrays(absl::Span<const std::string> array_ids,
                                                   const CallOptions& options) {
  const absl::StatusOr<int64_t> released = core_->InSession(
      core_->Deadline(options), options,
      [&](const std::string& session_id, const CallLimit& limit) {
        return client::ReleaseArrays(core_->connection(), session_id, array_ids, limit);
      });
  if (released.ok()) core_->DropReleased(array_ids);
  return released;
}

}  // namespace shardmesh::client
