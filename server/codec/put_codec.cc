// Decodes the requests of BeginPut, and encodes its answers.
#include "server/codec/put_codec.h"

#include "rpc/codec/array_codec.h"
#include "rpc/codec/field_check.h"
#include "rpc/codec/source_codec.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "rpc/transfer_token.h"
#include "server/resolve/resolve_answers.h"
#include "server/state/array_view_codec.h"
#include "server/state/request_index.h"
#include "server/steps/auxiliary_mesh.h"
#include "sharding/compatibility.h"
#include "sharding/digest.h"
#include "status/fact_keys.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// A message of an answer to BeginPut is full once it has this many bytes.
constexpr int64_t kPieceBytes = int64_t{512} << 10;
// The maximum number of tensors of a put. The answer to the put's commit names all arrays in one
// message, which is stored in one transaction.
constexpr int64_t kMaxPutTensors = 40'000;
// The maximum number of files of a put.
constexpr int64_t kMaxPutFiles = 10'000;
// The size of a digest of a tile.
constexpr size_t kSha256Bytes = 32;
// The maximum length of a checkpoint's path. The coordinator remembers it with each ended put.
constexpr size_t kMaxCheckpointBytes = 1'024;

absl::StatusOr<std::vector<std::shared_ptr<const SourceFile>>> DecodeFiles(
    const v1::BeginPutHeader& from) {
  if (from.files_size() > kMaxPutFiles) {
    return rpc::WithField(
        WithReason(absl::InvalidArgumentError(StrCat("lists ", from.files_size(),
                                                     " files; a put reads at most ", kMaxPutFiles,
                                                     "; put in several parts")),
                   Reason::kLimitExceeded,
                   {{fact::kHave, from.files_size()}, {fact::kLimit, kMaxPutFiles}}),
        "header.files");
  }
  std::vector<std::shared_ptr<const SourceFile>> files;
  for (int i = 0; i < from.files_size(); ++i) {
    auto file = rpc::Decode(from.files(i));
    if (!file.ok()) {
      return rpc::WithField(rpc::WithField(file.status(), "files", static_cast<size_t>(i)),
                            "header");
    }
    files.push_back(std::make_shared<const SourceFile>(*std::move(file)));
  }
  return files;
}

absl::Status DecodeOrigin(const v1::TensorOrigin& from, PutTensor* tensor) {
  if (from.offset_bytes() < 0) {
    return rpc::BadField("origin.offset_bytes",
                         StrCat("is ", from.offset_bytes(), "; an offset is at least 0"));
  }
  if (from.conversion().size() > ArrayOrigin::kMaxConversionBytes) {
    return rpc::WithField(WithReason(absl::InvalidArgumentError(StrCat(
                                         "has ", from.conversion().size(),
                                         " bytes; the description of a conversion has at most ",
                                         ArrayOrigin::kMaxConversionBytes)),
                                     Reason::kLimitExceeded,
                                     {{fact::kHave, from.conversion().size()},
                                      {fact::kLimit, ArrayOrigin::kMaxConversionBytes}}),
                          "origin.conversion");
  }
  tensor->origin = FileRange{.file = from.file(), .offset_bytes = from.offset_bytes()};
  tensor->conversion = from.conversion();
  return absl::OkStatus();
}

absl::StatusOr<ContentClaim> DecodeContent(const v1::TensorContent& from) {
  SHARDMESH_RETURN_IF_ERROR(rpc::CheckArrayId(from.array_id(), "content.array_id"));
  for (int i = 0; i < from.tile_sha256_size(); ++i) {
    if (from.tile_sha256(i).size() == kSha256Bytes) continue;
    return rpc::BadField(
        StrCat("content.tile_sha256[", i, "]"),
        StrCat("has ", from.tile_sha256(i).size(), " bytes; a SHA-256 has ", kSha256Bytes));
  }
  if (from.equal_tiles_size() > 0 && from.equal_tiles_size() != from.tile_sha256_size()) {
    return rpc::BadField("content.equal_tiles",
                         StrCat("lists ", from.equal_tiles_size(), ", and tile_sha256 has ",
                                from.tile_sha256_size(), "; each of these tiles has a digest"));
  }
  for (int i = 0; i < from.equal_tiles_size(); ++i) {
    const int64_t least = i == 0 ? 0 : int64_t{from.equal_tiles(i - 1)} + 1;
    if (from.equal_tiles(i) >= least) continue;
    return rpc::BadField(StrCat("content.equal_tiles[", i, "]"),
                         StrCat("is ", from.equal_tiles(i), "; the numbers of tiles rise from 0"));
  }
  return ContentClaim{.array_id = from.array_id(),
                      .tile_sha256 = {from.tile_sha256().begin(), from.tile_sha256().end()},
                      .equal_tiles = {from.equal_tiles().begin(), from.equal_tiles().end()}};
}

}  // namespace

void Encode(const RankEndpoint& from, v1::DeviceEndpoint* to) {
  to->set_rank(static_cast<int32_t>(from.rank));
  to->set_identity(from.identity);
  to->set_incarnation(from.incarnation);
  for (const std::string& address : from.endpoints) {
    to->add_endpoints()->set_address(address);
  }
}

absl::StatusOr<PutHeader> Decode(const v1::BeginPutHeader& from) {
  SHARDMESH_RETURN_IF_ERROR(rpc::CheckRequestId(from.request_id(), "header.request_id"));
  if (from.mesh().has_value()) {
    return rpc::BadField("header.mesh", "is given inline; arrays lie on meshes of the catalog");
  }
  PutHeader header{.request_id = from.request_id(),
                   .session_id = from.session_id(),
                   .mesh_id = from.mesh().name().empty() ? "default" : from.mesh().name(),
                   .hold = from.hold() && !from.validate_only(),
                   .validate_only = from.validate_only()};
  auto compatibility = rpc::Decode(from.compatibility());
  if (!compatibility.ok()) {
    return rpc::WithField(compatibility.status(), "header.compatibility");
  }
  header.compatibility = *compatibility;
  auto mode = rpc::Decode(from.mode(), *compatibility);
  if (!mode.ok()) {
    return rpc::WithField(mode.status(), "header.mode");
  }
  header.mode = *mode;
  auto strict = rpc::DecodeIsStrict(from.policy());
  if (!strict.ok()) {
    return rpc::WithField(strict.status(), "header.policy");
  }
  header.strict = *strict;
  SHARDMESH_ASSIGN_OR_RETURN(header.files, DecodeFiles(from));
  auto uneven = rpc::DecodeUnevenCuts(from.uneven(), !from.weights().empty());
  if (!uneven.ok()) {
    return rpc::WithField(uneven.status(), "header");
  }
  header.uneven = *uneven;
  header.reuse = from.reuse();
  header.weights.assign(from.weights().begin(), from.weights().end());
  if (from.checkpoint().size() > kMaxCheckpointBytes) {
    return rpc::BadField("header.checkpoint",
                         StrCat("has ", from.checkpoint().size(), " bytes; at most ",
                                kMaxCheckpointBytes, " are allowed: give the folder's name only"));
  }
  header.checkpoint = from.checkpoint();
  if (from.replicas() < 0 || from.replicas() > kMaxReplicas) {
    return rpc::BadField("header.replicas",
                         StrCat("is ", from.replicas(), "; each tile can be kept on 1 or ",
                                kMaxReplicas, " workers, and 0 keeps what the name has"));
  }
  header.replicas = from.replicas();
  return header;
}

absl::StatusOr<PutTensor> Decode(const v1::PutTensor& from) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::optional<int64_t> expected_version,
                             Decode(from.precondition(), /*must_exist=*/false));
  PutTensor tensor{.name = from.name(), .expected_version = expected_version};
  if (!tensor.name.empty()) {
    SHARDMESH_RETURN_IF_ERROR(rpc::CheckArrayName(tensor.name, "name"));
  }
  auto dtype = rpc::Decode(from.dtype());
  if (!dtype.ok()) {
    return rpc::WithField(dtype.status(), "dtype");
  }
  tensor.dtype = *dtype;
  auto shape = rpc::DecodeShape(from.shape());
  if (!shape.ok()) {
    return rpc::WithField(shape.status(), "shape");
  }
  tensor.shape = *std::move(shape);
  auto cut_points = rpc::DecodeCutPoints(from.cut_points(), tensor.shape);
  if (!cut_points.ok()) {
    return rpc::WithField(cut_points.status(), "cut_points");
  }
  tensor.cut_points = *std::move(cut_points);
  if (from.has_source()) {
    const auto source = rpc::Decode(from.source());
    if (!source.ok()) {
      return rpc::WithField(source.status(), "source");
    }
    tensor.source = *source;
  }
  if (from.has_converted_source()) {
    if (from.has_source()) {
      return rpc::BadField("converted_source",
                           "is set together with source; leave source out, which means the same "
                           "without a conversion");
    }
    auto source = rpc::Decode(from.converted_source());
    if (!source.ok()) {
      return rpc::WithField(source.status(), "converted_source");
    }
    tensor.source = *std::move(source);
  }
  if (from.has_origin()) {
    SHARDMESH_RETURN_IF_ERROR(DecodeOrigin(from.origin(), &tensor));
  }
  if (from.zeros() && (from.has_source() || from.has_converted_source() || from.has_origin() ||
                       from.has_content())) {
    return rpc::BadField(
        "zeros", "is set together with a place that has the elements; leave one of them out");
  }
  tensor.is_zeros = from.zeros();
  if (from.has_content()) {
    SHARDMESH_ASSIGN_OR_RETURN(tensor.content, DecodeContent(from.content()));
  }
  if (from.has_spec()) {
    auto spec = rpc::Decode(from.spec());
    if (!spec.ok()) {
      return rpc::WithField(spec.status(), "spec");
    }
    tensor.spec = *std::move(spec);
  } else if (from.has_axes()) {
    auto axes = rpc::DecodeAxes(from.axes().axes());
    if (!axes.ok()) {
      return rpc::WithField(axes.status(), "axes.axes");
    }
    tensor.axes = *std::move(axes);
  } else if (from.has_preset()) {
    if (from.preset().empty()) {
      return rpc::BadField("preset", "is empty; name a preset, or leave it out");
    }
    tensor.preset = from.preset();
  }
  return tensor;
}

bool PutRequests::TakesLong(const v1::BeginPutRequest& request) const {
  return plan_.has_header()
             ? plan_.SearchesLong()
             : SearchesLong(*definition_store_->shared_state(), request.header().rule_set());
}

absl::Status PutRequests::Take(const v1::BeginPutRequest& request, const rpc::Caller& caller,
                               const std::function<bool()>& is_cancelled) {
  if (request.piece_case() == v1::BeginPutRequest::PIECE_NOT_SET && plan_.has_header()) {
    return absl::OkStatus();
  }
  if (request.has_header() == plan_.has_header()) {
    return rpc::BadField("header", "must be in the first message, and only there");
  }
  if (request.has_header()) {
    SHARDMESH_ASSIGN_OR_RETURN(PutHeader header, Decode(request.header()));
    fingerprint_ = Sha256(request.header().SerializeAsString());
    const Compatibility compatibility = header.compatibility;
    SHARDMESH_RETURN_IF_ERROR(plan_.TakeHeader(
        std::move(header), caller,
        [&](const Definitions& definitions) {
          return SelectRules(definitions, request.header().rule_set(), compatibility, is_cancelled);
        },
        [&](const Definitions& definitions) {
          return SelectProfile(definitions, request.header().profile());
        }));
  }
  for (int i = 0; i < request.tensors().tensors_size(); ++i) {
    const v1::PutTensor& tensor = request.tensors().tensors(i);
    if (++tensors_ > kMaxPutTensors) {
      return WithReason(
          absl::ResourceExhaustedError(StrCat("a put has at most ", kMaxPutTensors, " tensors")),
          Reason::kLimitExceeded, {{fact::kHave, tensors_}, {fact::kLimit, kMaxPutTensors}});
    }
    if (const absl::Status taken = TakeTensor(tensor, is_cancelled); !taken.ok()) {
      // Errors of the rule set name the tensor already.
      const std::string context = StrCat("tensor ", PythonRepr(tensor.name()));
      const bool is_named = ToStd(taken.message()).starts_with(StrCat(context, ": "));
      return rpc::WithField(is_named ? taken : WithContext(taken, context), "tensors.tensors",
                            static_cast<size_t>(i));
    }
  }
  return absl::OkStatus();
}

absl::Status PutRequests::TakeTensor(const v1::PutTensor& tensor,
                                     const std::function<bool()>& is_cancelled) {
  fingerprint_ = Sha256(StrCat(fingerprint_, tensor.SerializeAsString()));
  SHARDMESH_ASSIGN_OR_RETURN(PutTensor decoded, Decode(tensor));
  return plan_.TakeTensor(std::move(decoded), is_cancelled);
}

std::string PutRequests::key() const {
  return RequestKey(plan_.header().session_id, "BeginPut", plan_.header().request_id);
}

v1::BeginPutResponse PutAnswer::Next() {
  rpc::TransferClaims claims{.direction = rpc::TransferDirection::kPut,
                             .transfer_id = put_->transfer_id,
                             .session_id = put_->session_id,
                             .array_descriptor = {},
                             .term = term_,
                             .expire_time = put_->expire_time};
  const bool is_begun = !put_->transfer_id.empty();
  v1::BeginPutResponse message;
  if (next_ == 0) {
    message.set_transfer_id(put_->transfer_id);
    message.set_term(term_);
    if (is_begun) {
      rpc::Encode(put_->expire_time, message.mutable_expire_time());
    }
    for (const RankEndpoint& endpoint : put_->devices) {
      Encode(endpoint, message.add_devices());
    }
  }
  for (int64_t size_bytes = 0; !is_at_end() && size_bytes <= kPieceBytes; ++next_) {
    v1::PutAssignment* assignment = message.add_assignments();
    rpc::Encode(put_->items[next_].definition.descriptor, assignment->mutable_array_descriptor());
    const PutItem& item = put_->items[next_];
    if (item.reused != nullptr) {
      assignment->mutable_reused()->set_array_id(
          item.reused->array().definition.descriptor.array_id);
      assignment->mutable_reused()->set_moved_bytes(item.moved_bytes);
      for (const int64_t rank : item.sent_ranks) {
        assignment->mutable_reused()->add_sent_ranks(static_cast<int32_t>(rank));
      }
    }
    const bool is_sent = item.reused == nullptr ? !item.is_filled() : !item.sent_ranks.empty();
    if (is_begun && is_sent) {
      claims.array_descriptor = assignment->array_descriptor().SerializeAsString();
      assignment->set_token(rpc::SignToken(claims, token_key_));
    }
    for (const Correction& correction : put_->corrections[next_]) {
      rpc::Encode(correction, assignment->add_corrections());
    }
    size_bytes += static_cast<int64_t>(assignment->ByteSizeLong());
  }
  return message;
}

}  // namespace shardmesh::server
