// Encodes the requests that begin and end transfers, and decodes the answers, which say which
// workers hold which ranks.
#include "client/remote/transfer_calls.h"

#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/time/clock.h"
#include "client/remote/wire_enums.h"
#include "process/steady_deadline.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/source_codec.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/utf8.h"
#include "tensor/source_conversion.h"

namespace shardmesh::client {
namespace {

// The files of a put, in the order of their first use.
using FileIndex = absl::flat_hash_map<const SourceFile*, uint32_t>;

// The limits of BeginPutHeader.files, and of the paths that a put names beside what it needs.
// Origins in further files, or in files with longer paths, are left out: they only save work later.
constexpr size_t kMaxFiles = 10'000;
constexpr size_t kMaxPathsBytes = size_t{1} << 20;
// The limits of FindContentRequest, of tensors and thus of files; and the largest numbers of
// candidates, and of checksums of their tiles, that one put compares.
constexpr int kMaxAsked = 1'000;
constexpr size_t kMaxCandidates = 50'000;
constexpr size_t kMaxChecksums = 10'000'000;
// Time limit for each question about content, which only saves work.
constexpr absl::Duration kContentTimeout = absl::Seconds(10);

// Returns the file of the tensor's source or origin; null: there is none.
const SourceFile* FileOf(const PutTensor& tensor) {
  if (tensor.source.has_value()) return tensor.source->file.get();
  return tensor.origin.has_value() ? tensor.origin->file.get() : nullptr;
}

// Encodes the files of the sources and origins, each once. Those that workers read come first, and
// are never left out.
FileIndex EncodeFiles(absl::Span<const PutTensor> tensors, bool from_files,
                      v1::BeginPutHeader* to) {
  FileIndex index;
  size_t paths_bytes = 0;
  const auto is_left_out = [&](const SourceFile& file) {
    return index.size() >= kMaxFiles || file.path.size() > SourceFile::kMaxPathBytes ||
           paths_bytes + file.path.size() > kMaxPathsBytes;
  };
  const auto add = [&](const SourceFile* file) {
    paths_bytes += file->path.size();
    index.emplace(file, static_cast<uint32_t>(index.size()));
    rpc::Encode(*file, to->add_files());
  };
  for (const PutTensor& tensor : tensors) {
    if (!from_files || !tensor.source.has_value()) continue;
    const SourceFile* const file = tensor.source->file.get();
    if (!index.contains(file)) add(file);
  }
  for (const PutTensor& tensor : tensors) {
    const SourceFile* const file = FileOf(tensor);
    if (file != nullptr && !index.contains(file) && !is_left_out(*file)) add(file);
  }
  return index;
}

void EncodeOrigin(const PutTensor& from, uint32_t file, v1::TensorOrigin* to) {
  to->set_file(file);
  if (from.source.has_value()) {
    to->set_offset_bytes(from.source->offset_bytes);
    to->set_conversion(
        ConversionText(from.source->conversion, from.view.dtype(), from.view.shape()));
    return;
  }
  to->set_offset_bytes(from.origin->offset_bytes);
  to->set_conversion(from.origin->conversion);
}

// Encodes the next tensors of `numbers`, as many as a request of FindContent may have, and returns
// the rest of `numbers`.
absl::Span<const size_t> EncodeSome(absl::Span<const PutTensor> tensors,
                                    absl::Span<const size_t> numbers, v1::FindContentRequest* to) {
  FileIndex files;
  size_t paths_bytes = 0;
  for (; !numbers.empty() && to->tensors_size() < kMaxAsked; numbers.remove_prefix(1)) {
    const PutTensor& tensor = tensors[numbers.front()];
    const SourceFile* const file = FileOf(tensor);
    if (file != nullptr && !files.contains(file) &&
        file->path.size() <= SourceFile::kMaxPathBytes) {
      if (paths_bytes + file->path.size() > kMaxPathsBytes) break;
      paths_bytes += file->path.size();
      files.emplace(file, static_cast<uint32_t>(files.size()));
      rpc::Encode(*file, to->add_files());
    }
    v1::ContentTensor& wire = *to->add_tensors();
    wire.set_dtype(rpc::Encode(tensor.view.dtype()));
    rpc::Encode(tensor.view.shape(), wire.mutable_shape());
    if (const auto found = files.find(file); found != files.end()) {
      EncodeOrigin(tensor, found->second, wire.mutable_origin());
    }
  }
  return numbers;
}

void EncodeContent(const ContentClaim& from, v1::TensorContent* to) {
  to->set_array_id(from.array_id);
  to->mutable_tile_sha256()->Add(from.tile_sha256.begin(), from.tile_sha256.end());
  for (const int64_t tile : from.equal_tiles) to->add_equal_tiles(static_cast<int32_t>(tile));
}

// How the sources of a put's tensors are told to the coordinator. Tensors without a source have
// origins in any case.
enum class SourceForm {
  kOrigin,     // the client sends them
  kPlain,      // the workers read them
  kConverted,  // the workers read them, and convert some
};

// A coordinator of an older build ignores converted sources. It is to ignore those of all tensors.
SourceForm FormOf(absl::Span<const PutTensor> tensors, bool from_files) {
  if (!from_files) return SourceForm::kOrigin;
  const bool is_converted =
      std::any_of(tensors.begin(), tensors.end(), [](const PutTensor& tensor) {
        return tensor.source.has_value() && tensor.source->conversion.has_value();
      });
  return is_converted ? SourceForm::kConverted : SourceForm::kPlain;
}

void EncodeTensor(const PutTensor& from, const FileIndex& files, SourceForm form,
                  v1::PutTensor* to) {
  to->set_name(from.name);
  to->set_dtype(rpc::Encode(from.view.dtype()));
  rpc::Encode(from.view.shape(), to->mutable_shape());
  if (from.spec.has_value()) {
    rpc::Encode(*from.spec, to->mutable_spec());
  } else if (from.axes.has_value()) {
    v1::LogicalAxes& axes = *to->mutable_axes();  // created even for a scalar, which has no axes
    for (const AxisValue& axis : *from.axes) {
      rpc::Encode(axis, axes.add_axes());
    }
  } else if (!from.preset.empty()) {
    to->set_preset(from.preset);
  }
  SetPrecondition(from.precondition, to->mutable_precondition());
  rpc::Encode(from.cut_points, to->mutable_cut_points());
  to->set_zeros(from.is_zeros);
  const auto file = files.find(FileOf(from));
  if (file == files.end()) return;
  if (form == SourceForm::kOrigin || !from.source.has_value()) {
    EncodeOrigin(from, file->second, to->mutable_origin());
    return;
  }
  FileRange range{.file = file->second,
                  .offset_bytes = from.source->offset_bytes,
                  .conversion = from.source->conversion};
  if (form == SourceForm::kPlain) return rpc::Encode(range, to->mutable_source());
  if (!range.conversion.has_value()) {
    range.conversion = SourceConversion{.dtype = from.view.dtype()};
  }
  rpc::Encode(range, to->mutable_converted_source());
}

// Returns the name of a checkpoint as the coordinator takes it: the absolute path, or its end if
// the path is too long or no UTF-8. Empty if there is no checkpoint.
std::string CheckpointName(const std::string& checkpoint) {
  if (checkpoint.empty()) return "";
  constexpr size_t kMaxBytes = 1'024;
  const auto fits = [](const std::string& text) {
    return text.size() <= kMaxBytes && DecodeUtf8(text).has_value();
  };
  std::error_code error;
  std::filesystem::path path = std::filesystem::absolute(checkpoint, error);
  path = error ? std::filesystem::path(checkpoint) : path.lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // without a slash at the end
  if (fits(path.string())) return path.string();
  const std::string name = path.filename().string();
  return fits(name) && !name.empty() ? name : "a checkpoint";
}

void EncodeHeader(const std::string& request_id, const std::string& session_id,
                  const PutOptions& from, v1::BeginPutHeader* to) {
  to->set_request_id(request_id);
  to->set_session_id(session_id);
  if (!from.mesh.empty()) {
    to->mutable_mesh()->set_name(from.mesh);
  }
  if (from.rules.index() != 0) {
    EncodeSelector(from.rules, to->mutable_rule_set());
  }
  to->set_policy(EncodePolicy(from.strict));
  EncodeSelector(from.profile, to->mutable_profile());
  if (from.mode.has_value()) {
    rpc::Encode(*from.mode, to->mutable_mode());
  }
  to->set_compatibility(EncodeCompatibility(from.compatibility));
  to->set_validate_only(from.validate_only);
  to->set_uneven(rpc::Encode(from.uneven));
  to->mutable_weights()->Add(from.weights.begin(), from.weights.end());
  to->set_hold(true);
  to->set_checkpoint(CheckpointName(from.checkpoint));
  to->set_reuse(from.reuse);
  // A value that the field cannot hold is wrong too; the coordinator says so.
  to->set_replicas(static_cast<int32_t>(std::clamp<int64_t>(from.replicas, -1, 1'000'000'000)));
}

std::vector<TransferDevice> DecodeDevices(
    const google::protobuf::RepeatedPtrField<v1::DeviceEndpoint>& from) {
  std::vector<TransferDevice> devices;
  for (const v1::DeviceEndpoint& wire : from) {
    TransferDevice& device = devices.emplace_back();
    device.rank = wire.rank();
    device.identity = wire.identity();
    device.incarnation = wire.incarnation();
    for (const v1::Endpoint& endpoint : wire.endpoints()) {
      device.addresses.push_back(endpoint.address());
    }
  }
  return devices;
}

absl::Status Append(const v1::BeginPutResponse& from, BegunPut* to) {
  if (from.devices_size() > 0) {
    to->devices = DecodeDevices(from.devices());
  }
  if (!from.transfer_id().empty()) {
    to->transfer_id = from.transfer_id();
    SHARDMESH_ASSIGN_OR_RETURN(to->expire_time, DecodeAnswer(from.expire_time()));
  }
  for (const v1::PutAssignment& wire : from.assignments()) {
    BegunPut::Assignment& assignment = to->assignments.emplace_back();
    SHARDMESH_ASSIGN_OR_RETURN(assignment.array, DecodeAnswer(wire.array_descriptor()));
    assignment.token = wire.token();
    SHARDMESH_RETURN_IF_ERROR(DecodeAnswers(wire.corrections(), &assignment.corrections));
    assignment.is_reused = wire.has_reused() && wire.reused().sent_ranks().empty();
    assignment.moved_bytes = wire.reused().moved_bytes();
    for (const int32_t rank : wire.reused().sent_ranks()) {
      if (rank < 0 || rank >= assignment.array.mesh.size()) {
        return absl::InternalError(StrCat("the coordinator wants a tile for rank ", rank,
                                          " of a mesh of ", assignment.array.mesh.size()));
      }
      assignment.sent_ranks.push_back(rank);
    }
  }
  return absl::OkStatus();
}

// How long an attempt of BeginGet waits for the coordinator's answer after the deadline or the
// cancellation of the attempt.
constexpr absl::Duration kLateAnswerTime = absl::Seconds(1);
// How often an attempt of BeginGet checks its cancellation.
constexpr absl::Duration kCancellationInterval = absl::Milliseconds(20);

// Makes one attempt of the call BeginGet. The comment on the function BeginGet says why an attempt
// may exceed `limit`.
absl::Status AskForGet(const CoordinatorConnection& connection, const v1::BeginGetRequest& request,
                       const CallLimit& limit, v1::BeginGetResponse* response) {
  const auto deadline = SteadyDeadline::At(limit.deadline);
  if (deadline.is_over()) {
    return connection.StatusOf({grpc::StatusCode::DEADLINE_EXCEEDED, "Deadline Exceeded"});
  }
  grpc::ClientContext context;
  connection.Prepare({.deadline = limit.deadline + kLateAnswerTime,
                      .cancellation = nullptr,
                      .traceparent = limit.traceparent},
                     &context);
  grpc::CompletionQueue queue;
  grpc::Status status;
  const auto call = connection.arrays->AsyncBeginGet(&context, request, &queue);
  call->Finish(response, &status, /*tag=*/nullptr);
  void* tag = nullptr;
  bool is_ok = false;
  std::optional<SteadyDeadline> late;  // end of the wait after a cancellation
  while (queue.AsyncNext(&tag, &is_ok, absl::ToChronoTime(absl::Now() + kCancellationInterval)) ==
         grpc::CompletionQueue::TIMEOUT) {
    if (!late.has_value() && limit.is_cancelled()) {
      late = SteadyDeadline::After(kLateAnswerTime);
    }
    if (late.has_value() && late->is_over()) context.TryCancel();
  }
  queue.Shutdown();
  while (queue.Next(&tag, &is_ok)) {
  }
  return connection.StatusOf(status);
}

// An open call of BeginPut. The destructor cancels the call, so that the coordinator aborts the
// put.
struct HeldPut {
  ~HeldPut() {
    if (stream != nullptr && !is_finished) {
      context.TryCancel();
      stream->Finish();  // the status does not matter: the transfer has ended, or is ending
    }
  }

  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<v1::BeginPutRequest, v1::BeginPutResponse>> stream;
  bool is_finished = false;
};

}  // namespace

absl::StatusOr<BegunPut> BeginPut(const CoordinatorConnection& connection,
                                  const std::string& session_id,
                                  absl::Span<const PutTensor> tensors,
                                  const PutOptions& put_options, bool from_files,
                                  absl::Span<const std::optional<ContentClaim>> claims,
                                  const CallLimit& limit) {
  for (const PutTensor& tensor : tensors) {
    if ((tensor.spec.has_value() ? 1 : 0) + (tensor.axes.has_value() ? 1 : 0) +
            (tensor.preset.empty() ? 0 : 1) >
        1) {
      return absl::InvalidArgumentError(StrCat("tensor '", tensor.name, "' has several layouts; ",
                                               "give one of spec, axes and preset"));
    }
  }
  // All attempts use one request id. By this id the coordinator recognises a repeated request, and
  // answers with the put that the first request began.
  std::string request_id = NewRequestId();
  BegunPut put;
  const auto begin = [&](const CallLimit& attempt) -> absl::Status {
    put = BegunPut();
    auto call = std::make_shared<HeldPut>();
    std::optional<Cancellation::Registration> registration;
    if (attempt.cancellation != nullptr) {
      registration.emplace(attempt.cancellation,
                           [&context = call->context] { context.TryCancel(); });
    }
    connection.Prepare(attempt, &call->context);
    call->stream = connection.arrays->BeginPut(&call->context);
    absl::Status unreadable;
    bool is_complete = false;
    SHARDMESH_RETURN_IF_ERROR(WriteWhileReading(
        [&] {
          v1::BeginPutRequest request;
          EncodeHeader(request_id, session_id, put_options, request.mutable_header());
          const FileIndex files = EncodeFiles(tensors, from_files, request.mutable_header());
          const SourceForm form = FormOf(tensors, from_files);
          bool is_open = call->stream->Write(request);
          for (size_t i = 0; i < tensors.size() && is_open;) {
            request.Clear();
            for (size_t bytes = 0; i < tensors.size() && bytes < kBatchBytes; ++i) {
              v1::PutTensor& tensor = *request.mutable_tensors()->add_tensors();
              EncodeTensor(tensors[i], files, form, &tensor);
              if (!claims.empty() && claims[i].has_value()) {
                EncodeContent(*claims[i], tensor.mutable_content());
              }
              bytes += tensor.ByteSizeLong();
            }
            is_open = call->stream->Write(request);
          }
          call->stream->WritesDone();
        },
        [&] {
          v1::BeginPutResponse response;
          while (unreadable.ok() && !is_complete && call->stream->Read(&response)) {
            unreadable = Append(response, &put);
            is_complete = unreadable.ok() &&
                          (put_options.validate_only || !put.transfer_id.empty()) &&
                          !tensors.empty() && put.assignments.size() == tensors.size();
          }
          if (!unreadable.ok()) {
            call->context.TryCancel();
          }
        }));
    SHARDMESH_RETURN_IF_ERROR(unreadable);
    if (is_complete) {
      put.hold = std::move(call);
      return absl::OkStatus();
    }
    call->is_finished = true;
    return connection.StatusOf(call->stream->Finish());
  };
  absl::Status begun = connection.Repeat(limit, begin);
  if (absl::IsFailedPrecondition(begun) && ReasonOf(begun) == Reason::kRequestIdReused) {
    // An earlier attempt began a put, but the answer to that attempt was lost, and that put has
    // since ended. Only the lost answer had the put's id, so nobody committed the put: begin a new
    // one.
    request_id = NewRequestId();
    begun = connection.Repeat(limit, begin);
  }
  SHARDMESH_RETURN_IF_ERROR(begun);
  if (put.transfer_id.empty() != put_options.validate_only ||
      put.assignments.size() != tensors.size()) {
    return BadAnswer(absl::InvalidArgumentError(StrCat(put.assignments.size(), " assignments of ",
                                                       tensors.size(), " tensors in transfer '",
                                                       put.transfer_id, "'")));
  }
  return put;
}

absl::StatusOr<FoundContent> FindContent(const CoordinatorConnection& connection,
                                         absl::Span<const PutTensor> tensors,
                                         absl::Span<const size_t> numbers, const CallLimit& limit) {
  FoundContent found;
  absl::flat_hash_set<std::string> ids;  // of the candidates
  size_t checksums = 0;
  while (!numbers.empty()) {
    v1::FindContentRequest request;
    const absl::Span<const size_t> rest = EncodeSome(tensors, numbers, &request);
    do {
      CallLimit question = limit;
      question.deadline = std::min(limit.deadline, absl::Now() + kContentTimeout);
      v1::FindContentResponse response;
      SHARDMESH_RETURN_IF_ERROR(connection.Call(
          connection.arrays, &v1::ArrayService::Stub::FindContent, request, question, &response));
      for (const uint32_t index : response.found_by_origin()) {
        if (index < numbers.size()) found.by_origin.insert(numbers[index]);
      }
      for (const v1::ContentCandidate& wire : response.candidates()) {
        ContentCandidate candidate;
        SHARDMESH_ASSIGN_OR_RETURN(candidate.array, DecodeAnswer(wire.array_descriptor()));
        candidate.tile_crc32c.assign(wire.tile_crc32c().begin(), wire.tile_crc32c().end());
        candidate.has_name = wire.has_name();
        if (!ids.insert(candidate.array.array_id).second) continue;
        checksums += candidate.tile_crc32c.size();
        found.candidates.push_back(std::move(candidate));
        if (found.candidates.size() == kMaxCandidates || checksums > kMaxChecksums) return found;
      }
      request.set_page_token(response.next_page_token());
    } while (!request.page_token().empty());
    numbers = rest;
  }
  return found;
}

absl::StatusOr<CommittedPut> CommitTransfer(const CoordinatorConnection& connection,
                                            const std::string& session_id,
                                            const std::string& transfer_id,
                                            const CallLimit& limit) {
  v1::CommitTransferRequest request;
  request.set_request_id(NewRequestId());
  request.set_session_id(session_id);
  request.set_transfer_id(transfer_id);
  v1::CommitTransferResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(
      connection.arrays, &v1::ArrayService::Stub::CommitTransfer, request, limit, &response));
  CommittedPut put;
  put.array_ids.assign(response.array_ids().begin(), response.array_ids().end());
  put.revision = response.revision();
  put.durability = DurabilityOf(response.durability());
  SHARDMESH_ASSIGN_OR_RETURN(put.transfer_time, DecodeAnswer(response.transfer_time()));
  return put;
}

bool IsOfUnknownTransfer(const absl::Status& error) {
  return ReasonOf(error) == Reason::kNotFound && FactOf(error, fact::kKind) == "transfer";
}

absl::Status AbortTransfer(const CoordinatorConnection& connection, const std::string& session_id,
                           const std::string& transfer_id, const absl::Status& reason,
                           const CallLimit& limit) {
  v1::AbortTransferRequest request;
  request.set_session_id(session_id);
  request.set_transfer_id(transfer_id);
  // For coordinators of older builds, which do not know `error`.
  request.set_reason(rpc::WireMessage(reason));
  if (!absl::IsCancelled(reason)) rpc::Encode(reason, request.mutable_error());
  v1::AbortTransferResponse response;
  return connection.Call(connection.arrays, &v1::ArrayService::Stub::AbortTransfer, request, limit,
                         &response);
}

absl::StatusOr<BegunGet> BeginGet(const CoordinatorConnection& connection,
                                  const std::string& session_id, const ArraySelector& array,
                                  const std::optional<Tile>& part, const CallLimit& limit) {
  v1::BeginGetRequest request;
  request.set_session_id(session_id);
  EncodeSelector(array, request.mutable_array());
  if (part.has_value()) {
    rpc::Encode(*part, request.mutable_slice());
  }
  request.set_accept_second_copy(true);  // an older coordinator gives none
  v1::BeginGetResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Repeat(limit, [&](const CallLimit& attempt) {
    response.Clear();
    return AskForGet(connection, request, attempt, &response);
  }));
  BegunGet get;
  SHARDMESH_ASSIGN_OR_RETURN(get.array, DecodeArray(response.array()));
  get.devices = DecodeDevices(response.devices());
  get.token = response.token();
  get.pinned = response.pinned();
  if (const v1::SecondCopy& copy = response.second_copy(); response.has_second_copy()) {
    get.second_copy = {.array_id = copy.array_id(),
                       .token = copy.token(),
                       .devices = DecodeDevices(copy.devices())};
  }
  return get;
}

absl::StatusOr<int64_t> ReleaseArrays(const CoordinatorConnection& connection,
                                      const std::string& session_id,
                                      absl::Span<const std::string> array_ids,
                                      const CallLimit& limit) {
  v1::ReleaseArraysRequest request;
  request.set_session_id(session_id);
  request.mutable_array_ids()->Add(array_ids.begin(), array_ids.end());
  v1::ReleaseArraysResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(
      connection.arrays, &v1::ArrayService::Stub::ReleaseArrays, request, limit, &response));
  return response.released();
}

}  // namespace shardmesh::client
