// RandomClient: puts by meaning and from files, slices, reshards and saves.
#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "absl/time/clock.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/spec_codec.h"
#include "shardmesh/v1/operation_service.pb.h"
#include "shardmesh/v1/resolve_service.pb.h"
#include "status/status_macros.h"
#include "tensor/checkpoint_folder.h"
#include "tests/model/expectations.h"
#include "tests/model/process_cluster.h"
#include "tests/model/random_client.h"

namespace shardmesh::model {
namespace {

// A save that ended is listed at least this long.
constexpr absl::Duration kResultsKept = absl::Minutes(9);
constexpr int64_t kSteps = 4;

std::string PresetFor(size_t rank) { return rank == 3 ? "HiddenStateSharding" : ""; }

// Returns the mesh axes of each dimension; dimensions that the spec leaves out have none.
std::vector<std::vector<std::string>> AxesOf(const v1::PartitionSpec& spec, int rank) {
  std::vector<std::vector<std::string>> axes(static_cast<size_t>(rank));
  for (int i = 0; i < std::min(rank, spec.dimensions_size()); ++i) {
    const v1::AxisValue& value = spec.dimensions(i);
    std::vector<std::string>& of = axes[static_cast<size_t>(i)];
    if (!value.name().empty()) of.push_back(value.name());
    for (const v1::AxisValue& each : value.tuple().values()) {
      if (!each.name().empty()) of.push_back(each.name());
    }
  }
  return axes;
}

// Returns whether the axis tp cuts the dimension.
bool IsCut(const v1::PartitionSpec& spec, int dimension) {
  const auto axes = AxesOf(spec, dimension + 1);
  return std::count(axes.back().begin(), axes.back().end(), "tp") > 0;
}

}  // namespace

// --- Puts ---------------------------------------------------------------------------------------

void RandomClient::DrawLayout(Dice& dice, size_t rank, bool has_rules,
                              v1::PutTensor* tensor) const {
  const int64_t kind = dice.Below(6);
  if (kind == 0 && has_rules) return;
  if (kind == 1 && !PresetFor(rank).empty()) {
    tensor->set_preset(PresetFor(rank));
  } else if (kind <= 2) {
    static const auto* const names = new std::vector<std::string>{
        "__BATCH__", "__HEAD__", "__VOCAB__", "__HEAD_DIM__", "__EMBED__", ""};
    std::set<std::string> used;
    for (size_t i = 0; i < rank; ++i) {
      v1::AxisValue& value = *tensor->mutable_axes()->add_axes();
      const std::string& name = dice.Of(*names);
      // Two names may stand for the same mesh axis, which partitions only one dimension.
      if (!name.empty() && used.empty()) {
        used.insert(name);
        value.set_name(name);
      } else {
        value.set_constant(v1::AXIS_CONSTANT_NONE);
      }
    }
    tensor->mutable_axes();
  } else {
    *tensor->mutable_spec() = RandomSpec(dice, rank);
  }
}

absl::Status RandomClient::DrawSource(Dice& dice, bool is_bad, Transfer* transfer,
                                      v1::BeginPutHeader* header, v1::PutTensors* tensors) {
  std::vector<Content> contents;
  for (const PutItem& item : transfer->items) contents.push_back(item.content);
  const std::string path = StrCat(files_, "/source-c", number_, "-", requests_, ".bin");
  SHARDMESH_ASSIGN_OR_RETURN(SourceOnDisk source, WriteSource(path, contents));
  if (!is_bad) {
    SetSource(source, header, tensors);
    transfer->is_sent = true;
    transfer->source_path = path;
    return absl::OkStatus();
  }
  switch (dice.Below(6)) {
    case 0:
      source.file.size_bytes += 1;
      break;
    case 1:
      source.file.head_sha256[3] ^= 1;
      break;
    case 2:
      source.file.modify_time += absl::Seconds(1);
      break;
    case 3:
      source.file.path += ".missing";
      break;
    case 4:
      source.file.path = "/etc/passwd";  // below no read root
      break;
    default:
      source.offsets_bytes[0] = source.file.size_bytes + 1;
  }
  SetSource(source, header, tensors);
  std::filesystem::remove(path);
  if (dice.OneIn(2)) {
    return WriteSource(path, contents).status();  // another file of the same name
  }
  return absl::OkStatus();
}

absl::Status RandomClient::CheckLayout(const v1::PutTensor& tensor, const std::string& mesh,
                                       const v1::ArrayDescriptor& array) const {
  if (array.mesh_id() != mesh) {
    return Violation(StrCat("a put onto ", mesh, " answers ", array.ShortDebugString()));
  }
  if (!tensor.has_axes() && tensor.preset().empty()) return absl::OkStatus();
  v1::ResolveEffectiveSpecRequest request;
  v1::ResolveEffectiveSpecResponse response;
  request.set_preset(tensor.preset());
  for (const v1::AxisValue& axis : tensor.axes().axes()) {
    request.add_axes(axis.name().empty() ? "_" : axis.name());
  }
  *request.mutable_shape() = tensor.shape();
  request.set_mesh(mesh);
  const absl::Status status =
      coordinator_.Call("ResolveService.ResolveEffectiveSpec", request, &response);
  SHARDMESH_RETURN_IF_ERROR(Want(status.ok(), "ResolveEffectiveSpec", request, status, "OK"));
  std::vector<std::vector<std::string>> wanted(static_cast<size_t>(tensor.shape_size()));
  int next = 0;
  for (int i = 0; i < response.axis_counts_size(); ++i) {
    for (int n = 0; n < response.axis_counts(i); ++n) {
      wanted[static_cast<size_t>(i)].push_back(response.axes(next++));
    }
  }
  if (wanted == AxesOf(array.spec(), tensor.shape_size())) return absl::OkStatus();
  return Violation(StrCat("a put of {", tensor.ShortDebugString(), "} lies as ",
                          array.ShortDebugString(), ", and the resolver answers ",
                          response.ShortDebugString()));
}

// --- Slices -------------------------------------------------------------------------------------

absl::Status RandomClient::ReadSlice(Dice& dice) {
  const int slot = static_cast<int>(dice.Below(2));
  const std::string id = AnyArrayId(dice);
  Held* const held = FindHeld(id);
  if (held == nullptr || !held->spec.unreduced_axes().empty()) {
    return ReadAndCompare(id, slot, dice);
  }
  SHARDMESH_ASSIGN_OR_RETURN(const std::string session, Session(slot, dice));
  v1::BeginGetRequest request;
  v1::BeginGetResponse response;
  request.set_session_id(session);
  request.mutable_array()->set_array_id(id);
  Tile part;
  bool is_bad = false;
  for (const int64_t size : held->content.shape) {
    IndexRange range{0, size};
    if (size > 0) {
      range.start = dice.Below(size);
      range.stop = range.start + 1 + dice.Below(size - range.start);
    }
    part.ranges.push_back(range);
  }
  if (dice.OneIn(6)) {
    is_bad = true;
    switch (part.ranges.empty() ? 0 : dice.Below(4)) {
      case 0:
        part.ranges.push_back({0, 1});
        break;
      case 1:
        part.ranges[0].stop = held->content.shape[0] + 1;
        break;
      case 2:
        part.ranges[0].start = part.ranges[0].stop;
        break;
      default:
        part.ranges[0].start = -1;
    }
    // A dimension without indexes has only the empty range.
    if (part.ranges.size() == held->content.shape.size() && part.ranges[0] == IndexRange{0, 0}) {
      is_bad = held->content.shape[0] > 0;
    }
  }
  rpc::Encode(part, request.mutable_slice());
  request.set_accept_second_copy(dice.OneIn(2));
  const absl::Status status = coordinator_.Call("ArrayService.BeginGet", request, &response);
  if (is_bad) return Want(IsRefusal(status), "BeginGet of a slice", request, status, "a refusal");
  int64_t elements = 0;
  for (const v1::HeldTile& tile : response.tiles()) {
    int64_t of_tile = tile.ranks_size() > 0 ? 1 : 0;
    for (const v1::IndexRange& range : tile.tile().ranges())
      of_tile *= range.stop() - range.start();
    elements += of_tile;
  }
  SHARDMESH_RETURN_IF_ERROR(Want(
      status.ok() && elements == part.element_count() &&
          response.pinned() == (held->pins.count(slot) == 0),
      "BeginGet of a slice", request, status,
      StrCat(part.element_count(), " elements, not ", response.ShortDebugString().substr(0, 600))));
  held->pins.insert(slot);
  const absl::StatusOr<std::string> bytes = FetchPart(response, part, absl::Seconds(60));
  if (!bytes.ok()) {
    return Violation(
        StrCat("GetTiles of ", part.ToString(), " of ", id, ": ", bytes.status().ToString()));
  }
  if (held->bytes_known && !HasBytes(PartOf(held->content, part), *bytes)) {
    return Violation(StrCat("the slice ", part.ToString(), " of array ", id, " has other bytes"));
  }
  return absl::OkStatus();
}

// --- Reshards -----------------------------------------------------------------------------------

absl::Status RandomClient::CallReshard(const v1::ReshardRequest& request,
                                       v1::ReshardResponse* whole) const {
  std::vector<std::string> answers;
  const absl::Status status = coordinator_.CallBytes(FindMethod("ArrayService.Reshard"),
                                                     {request.SerializeAsString()}, &answers);
  for (const std::string& answer : answers) {
    v1::ReshardResponse part;
    part.ParseFromString(answer);
    whole->MergeFrom(part);
  }
  return status;
}

absl::Status RandomClient::ReshardBadly(v1::ReshardRequest request, Dice& dice) {
  switch (dice.Below(11)) {
    case 0:
      request.set_session_id("nosuchsession");
      break;
    case 1:
      request.clear_source();
      break;
    case 2:
      request.set_prefix(StrCat("c", number_, "/no such name"));
      break;
    case 3:
      request.mutable_mesh()->set_name("nosuchmesh");
      break;
    case 4:
      request.mutable_mesh()->mutable_value()->add_axes()->set_name("tp");
      break;
    case 5:
      *request.mutable_spec() = SpecOf({"nosuchaxis"});
      request.set_policy(v1::CORRECTION_POLICY_STRICT);
      break;
    case 6:
      request.set_prefix("c");
      request.set_name(OwnName(dice));
      break;
    case 7:
      request.mutable_array()->set_array_id("nosucharray");
      break;
    case 8:
      request.add_weights(1);
      break;
    case 9:
      request.set_uneven(v1::UNEVEN_CUTS_CEIL_CHUNKS);
      request.add_cut_points()->add_starts(1);
      break;
    default:
      request.set_request_id("");
  }
  v1::ReshardResponse whole;
  const absl::Status status = CallReshard(request, &whole);
  return Want(IsRefusal(status) && whole.arrays().empty(), "Reshard", request, status, "a refusal");
}

absl::Status RandomClient::Reshard(Dice& dice) {
  const int slot = static_cast<int>(dice.Below(2));
  SHARDMESH_ASSIGN_OR_RETURN(const std::string session, Session(slot, dice));
  v1::ReshardRequest request;
  request.set_request_id(NewRequestId(dice));
  request.set_session_id(session);
  request.set_release_source(dice.OneIn(2));
  if (dice.OneIn(3)) request.mutable_mesh()->set_name(dice.OneIn(2) ? "default" : kTurnedMesh);
  std::vector<const Held*> sources;
  bool mismatch = false;
  size_t rank = 0;
  if (dice.OneIn(4)) {
    request.set_prefix(StrCat("c", number_, "/"));
    for (const auto& [name, at] : names_) sources.push_back(FindHeld(at.array_id));
    if (dice.OneIn(2)) {
      request.mutable_rule_set()->mutable_value()->add_rules()->set_pattern(".*");
      *request.mutable_rule_set()->mutable_value()->mutable_rules(0)->mutable_spec() =
          dice.OneIn(2) ? SpecOf({"tp"}) : SpecOf({});
    }
  } else {
    const auto named = names_.find(OwnName(dice));
    if (named != names_.end() && dice.OneIn(2)) {
      request.mutable_array()->set_name(named->first);
      sources.push_back(FindHeld(named->second.array_id));
    } else {
      request.mutable_array()->set_array_id(AnyArrayId(dice));
      if (const Held* held = FindHeld(request.array().array_id()); held != nullptr) {
        sources.push_back(held);
      }
    }
    if (dice.OneIn(4)) request.set_name(OwnName(dice));
    if (!sources.empty()) rank = sources[0]->content.shape.size();
    if (dice.OneIn(2)) *request.mutable_spec() = RandomSpec(dice, rank);
    const std::string& result = request.name().empty() ? request.array().name() : request.name();
    if (!result.empty()) {
      const auto at = names_.find(result);
      const int64_t version = at == names_.end() ? 0 : at->second.version;
      const int64_t expected =
          dice.Of(std::vector<int64_t>{0, 0, 0, version == 0 ? -1 : version, version + 1});
      Expect(expected, request.mutable_precondition());
      mismatch = expected != 0 && version != std::max<int64_t>(expected, 0);
    }
  }
  if (dice.OneIn(8)) return ReshardBadly(std::move(request), dice);
  const bool has_partial_sums = std::any_of(sources.begin(), sources.end(), [](const Held* held) {
    return !held->spec.unreduced_axes().empty();
  });
  request.set_validate_only(dice.OneIn(6));
  const auto count = std::ssize(sources);
  v1::ReshardResponse whole;
  const absl::Status status = CallReshard(request, &whole);
  if (sources.empty() || mismatch) {
    return Want(
        ((sources.empty() && absl::IsNotFound(status)) || (mismatch && absl::IsAborted(status))) &&
            whole.arrays().empty(),
        "Reshard", request, status, sources.empty() ? "NOT_FOUND" : "ABORTED");
  }
  if (request.validate_only()) {
    return Want(status.ok() ? whole.array_count() == count
                            : ReasonOf(status) == Reason::kMemoryLimit ||
                                  (has_partial_sums && IsRefusal(status)),
                "Reshard", request, status, "a plan");
  }
  // Also after an error: the arrays that moved before it have moved.
  SHARDMESH_RETURN_IF_ERROR(TakeResharded(request, whole, slot));
  if (ReasonOf(status) == Reason::kMemoryLimit || (has_partial_sums && IsRefusal(status))) {
    return absl::OkStatus();
  }
  SHARDMESH_RETURN_IF_ERROR(Want(status.ok() && whole.array_count() == count &&
                                     whole.arrays_size() == static_cast<int>(count) &&
                                     whole.done_bytes() == whole.total_bytes(),
                                 "Reshard", request, status,
                                 StrCat(count, " arrays, not ", whole.ShortDebugString())));
  if (dice.OneIn(4)) {
    v1::ReshardResponse again;
    const absl::Status repeated = CallReshard(request, &again);
    bool same = repeated.ok() && again.arrays_size() == whole.arrays_size() &&
                again.revision() == whole.revision();
    for (int i = 0; same && i < whole.arrays_size(); ++i) {
      const auto has = [&](const v1::ReshardedArray& each) {
        return google::protobuf::util::MessageDifferencer::Equals(each, whole.arrays(i));
      };
      same = std::any_of(again.arrays().begin(), again.arrays().end(), has);
    }
    SHARDMESH_RETURN_IF_ERROR(Want(same, "Reshard again", request, repeated, "the first answer"));
    request.set_release_source(!request.release_source());
    const absl::Status reused = CallReshard(request, &again);
    return Want(IsRefusal(reused), "Reshard with another's request id", request, reused,
                "a refusal");
  }
  return absl::OkStatus();
}

absl::Status RandomClient::TakeResharded(const v1::ReshardRequest& request,
                                         const v1::ReshardResponse& whole, int slot) {
  for (const v1::ReshardedArray& moved : whole.arrays()) {
    if (const absl::Status taken = TakeMoved(request, moved, slot); !taken.ok()) {
      return Violation(StrCat("Reshard {", request.ShortDebugString(), "} moved {",
                              moved.ShortDebugString().substr(0, 800),
                              "}: ", ToStd(taken.message())));
    }
  }
  return absl::OkStatus();
}

absl::Status RandomClient::TakeMoved(const v1::ReshardRequest& request,
                                     const v1::ReshardedArray& moved, int slot) {
  const v1::ArrayDescriptor& array = moved.array_descriptor();
  const std::string& source_id = moved.source_array_id();
  const std::string own_name = request.has_array() ? request.array().name() : moved.name();
  const std::string wanted_name = request.name().empty() ? own_name : request.name();
  Held* const source = FindHeld(source_id);
  if (source == nullptr) return Violation("that array is not there");
  if (!own_name.empty() && (!names_.contains(own_name) || names_[own_name].array_id != source_id)) {
    return Violation("the name is that of another array");
  }
  if (moved.name() != wanted_name) return Violation(StrCat("the name is to be ", wanted_name));
  const std::string mesh = request.has_mesh() ? request.mesh().name() : source->mesh_id;
  const Shape shape(array.shape().begin(), array.shape().end());
  if (array.mesh_id() != mesh || shape != source->content.shape ||
      array.dtype() != rpc::Encode(source->content.dtype)) {
    return Violation(StrCat("it is to be of the same type and shape on ", mesh));
  }
  const v1::PartitionSpec* const asked = request.has_spec() ? &request.spec()
                                         : request.has_rule_set()
                                             ? &request.rule_set().value().rules(0).spec()
                                             : nullptr;
  // All layouts of an array without elements are the same.
  const bool is_empty = *ElementCount(shape) == 0;
  for (int i = 0; asked != nullptr && !is_empty && i < array.shape_size(); ++i) {
    const bool is_cut = IsCut(*asked, i) && array.shape(i) % 2 == 0;
    if (IsCut(array.spec(), i) != is_cut) {
      return Violation(StrCat("dimension ", i, " is ", is_cut ? "" : "not ", "to be cut"));
    }
  }
  if (moved.skipped() != (array.array_id() == source_id)) {
    return Violation("a skipped array has a new id, or a moved one its old id");
  }
  if (!moved.skipped()) {
    if (arrays_.contains(array.array_id())) return Violation("the id is that of another array");
    Held copy;
    copy.content = source->content;
    copy.bytes_known = source->bytes_known && source->spec.unreduced_axes().empty();
    copy.spec = array.spec();
    copy.mesh_id = mesh;
    copy.replicas = source->replicas;
    if (!request.release_source()) source->pins.insert(slot);
    if (wanted_name.empty()) copy.pins.insert(slot);
    arrays_[array.array_id()] = std::move(copy);
  }
  if (!wanted_name.empty() && (!moved.skipped() || wanted_name != own_name)) {
    const auto before = names_.find(wanted_name);
    if (before != names_.end() && moved.name_version() <= before->second.version) {
      return Violation("the version of the name does not rise");
    }
    PointName(wanted_name, array.array_id(), moved.name_version());
  }
  if (request.release_source()) {
    if (!own_name.empty() && own_name != wanted_name) DropName(own_name);
    if (own_name.empty() && !moved.skipped()) {
      if (Held* const old = FindHeld(source_id); old != nullptr) {
        old->pins.erase(slot);
        ReleaseIfUnheld(source_id);
      }
    }
  }
  return absl::OkStatus();
}

// --- Saves --------------------------------------------------------------------------------------

std::string RandomClient::SaveFolder() const { return StrCat(files_, "/saved-c", number_); }

std::optional<absl::Status> RandomClient::SaveBadly(v1::BeginSaveRequest request, Dice& dice) {
  bool is_bad_at_once = true;
  switch (dice.Below(9)) {
    case 0:
      request.set_session_id("nosuchsession");
      break;
    case 1:
      request.set_folder("relative");
      break;
    case 2:
      request.set_step(-1);
      break;
    case 3:
      request.set_step(100'000'000);
      break;
    case 4:
      request.clear_step();
      request.set_keep(1);
      break;
    case 5:
      request.set_max_file_bytes(1);
      break;
    case 6:
      request.set_max_file_bytes(int64_t{1} << 20);
      request.set_single_file(true);
      break;
    case 7:
      request.set_prefix(StrCat("c", number_, "/no such name"));
      break;
    default:
      // Only the workers know their roots.
      request.set_folder(dice.OneIn(2) ? "/nosuchfolder" : StrCat(files_, "/../elsewhere"));
      request.set_validate_only(false);
      is_bad_at_once = false;
  }
  v1::BeginSaveResponse begun;
  const absl::Status status = coordinator_.Call("SaveService.BeginSave", request, &begun);
  if (is_bad_at_once) {
    return Want(IsRefusal(status), "BeginSave", request, status, "a refusal");
  }
  if (!status.ok()) return Want(IsRefusal(status), "BeginSave", request, status, "a refusal");
  v1::WaitSaveRequest wait;
  v1::WaitSaveResponse result;
  wait.set_operation_id(begun.operation_id());
  const absl::Status ended = coordinator_.Call("SaveService.WaitSave", wait, &result);
  return Want(absl::IsInvalidArgument(ended), "WaitSave", request, ended, "INVALID_ARGUMENT");
}

absl::Status RandomClient::BeginSave(Dice& dice) {
  const int slot = static_cast<int>(dice.Below(2));
  SHARDMESH_ASSIGN_OR_RETURN(const std::string session, Session(slot, dice));
  v1::BeginSaveRequest request;
  request.set_request_id(NewRequestId(dice));
  request.set_session_id(session);
  request.set_prefix(dice.OneIn(3) ? OwnName(dice) : StrCat("c", number_, "/"));
  request.set_folder(SaveFolder());
  const int64_t step = dice.Below(kSteps);
  request.set_step(step);
  request.set_keep(static_cast<int32_t>(dice.Below(4)));
  request.set_overwrite(dice.OneIn(2));
  request.set_strip_prefix(dice.OneIn(3));
  if (dice.OneIn(3)) {
    request.set_single_file(true);
  } else if (dice.OneIn(2)) {
    request.set_max_file_bytes(int64_t{1} << 20);
  }
  request.set_validate_only(dice.OneIn(8));
  request.set_detached(dice.OneIn(3));
  if (dice.OneIn(6)) {
    const std::optional<absl::Status> refused = SaveBadly(request, dice);
    if (refused.has_value()) return *refused;
  }
  SavedTensors wanted;
  bool is_bad = false;
  int64_t size_bytes = 0;
  int64_t revision = 0;
  for (const auto& [name, at] : names_) {
    if (!name.starts_with(request.prefix())) continue;
    const Held& held = arrays_[at.array_id];
    const std::string saved_as =
        request.strip_prefix() ? name.substr(request.prefix().size()) : name;
    is_bad = is_bad || saved_as.empty() || !held.spec.unreduced_axes().empty();
    wanted[saved_as] =
        held.bytes_known ? std::optional<Content>(held.content) : std::optional<Content>();
    size_bytes += *ElementCount(held.content.shape) * BitsPerElement(held.content.dtype) / 8;
    revision = std::max(revision, at.version);
  }
  v1::BeginSaveResponse begun;
  const absl::Status status = coordinator_.Call("SaveService.BeginSave", request, &begun);
  if (wanted.empty() || is_bad) {
    return Want(wanted.empty() ? absl::IsNotFound(status) : absl::IsInvalidArgument(status),
                "BeginSave", request, status, wanted.empty() ? "NOT_FOUND" : "INVALID_ARGUMENT");
  }
  if (ReasonOf(status) == Reason::kOverloaded) return absl::OkStatus();
  if (request.validate_only() && saved_.contains(step) && !request.overwrite()) {
    SHARDMESH_RETURN_IF_ERROR(
        Want(absl::IsAlreadyExists(status), "BeginSave", request, status, "ALREADY_EXISTS"));
    return CheckSaved(dice);
  }
  SHARDMESH_RETURN_IF_ERROR(Want(
      status.ok() && begun.tensors() == std::ssize(wanted) && begun.size_bytes() == size_bytes &&
          begun.revision() == revision && begun.operation_id().empty() == request.validate_only() &&
          begun.detached() == (request.detached() && !request.validate_only()),
      "BeginSave", request, status,
      StrCat(wanted.size(), " tensors of ", size_bytes, " bytes at ", revision, ", not ",
             begun.ShortDebugString())));
  if (request.validate_only()) return CheckSaved(dice);
  if (dice.OneIn(4)) {
    v1::BeginSaveResponse again;
    const absl::Status repeated = coordinator_.Call("SaveService.BeginSave", request, &again);
    SHARDMESH_RETURN_IF_ERROR(Want(repeated.ok() && again.operation_id() == begun.operation_id(),
                                   "BeginSave again", request, repeated, "the first answer"));
  }
  bool is_cancelled = false;
  if (dice.OneIn(5)) {
    v1::CancelOperationRequest cancel;
    v1::CancelOperationResponse cancelled;
    cancel.set_operation_id(begun.operation_id());
    SetIfThere(&cancel, "session_id", session);
    const absl::Status ended =
        coordinator_.Call("OperationService.CancelOperation", cancel, &cancelled);
    SHARDMESH_RETURN_IF_ERROR(Want(ended.ok() || absl::IsFailedPrecondition(ended),
                                   "CancelOperation", cancel, ended, "OK, or that it is too late"));
    is_cancelled = true;
  }
  v1::WaitSaveRequest wait;
  v1::WaitSaveResponse result;
  wait.set_operation_id(begun.operation_id());
  const absl::Status ended = coordinator_.Call("SaveService.WaitSave", wait, &result);
  if (is_cancelled && absl::IsCancelled(ended)) return CheckSaved(dice);
  if (saved_.contains(step) && !request.overwrite()) {
    SHARDMESH_RETURN_IF_ERROR(
        Want(absl::IsAlreadyExists(ended), "WaitSave", request, ended, "ALREADY_EXISTS"));
    return CheckSaved(dice);
  }
  SHARDMESH_RETURN_IF_ERROR(
      Want(ended.ok() && result.tensors() == std::ssize(wanted) &&
               result.size_bytes() == size_bytes && result.revision() == revision &&
               result.path() == StrCat(SaveFolder(), "/", StepFolderName(step)),
           "WaitSave", request, ended, StrCat("the checkpoint, not ", result.ShortDebugString())));
  saved_[step] = std::move(wanted);
  std::set<int64_t> removed;
  for (auto each = saved_.begin(); request.keep() > 0 && each != saved_.end() && each->first < step;
       ++each) {
    const auto left = std::distance(each, saved_.find(step)) + 1;
    if (left > request.keep()) removed.insert(each->first);
  }
  for (const int64_t each : removed) saved_.erase(each);
  if (removed != std::set<int64_t>(result.removed_steps().begin(), result.removed_steps().end())) {
    return Violation(StrCat("WaitSave {", request.ShortDebugString(), "} answered OK with {",
                            result.ShortDebugString(), "}; it is to remove ", removed.size(),
                            " steps"));
  }
  std::vector<int64_t> kept;
  for (const auto& [each, tensors] : saved_) kept.push_back(each);
  if (kept != std::vector<int64_t>(result.kept_steps().begin(), result.kept_steps().end())) {
    return Violation(StrCat("WaitSave {", request.ShortDebugString(), "} answered OK with {",
                            result.ShortDebugString(), "}; the folder has ", kept.size(),
                            " steps"));
  }
  last_save_ = {begun.operation_id(), result, absl::Now()};
  const absl::StatusOr<SavedTensors> have = ReadCheckpoint(SaveFolder(), step);
  if (!have.ok()) {
    return Violation(StrCat("step ", step, " cannot be read: ", have.status().ToString()));
  }
  if (const std::string difference = Difference(*have, saved_[step]); !difference.empty()) {
    return Violation(StrCat("the checkpoint of {", request.ShortDebugString(), "}: ", difference));
  }
  return CheckSaved(dice);
}

absl::Status RandomClient::WaitSave(Dice& dice) {
  v1::WaitSaveRequest request;
  v1::WaitSaveResponse response;
  const bool is_known =
      last_save_.has_value() && !dice.OneIn(3) && absl::Now() - last_save_->ended < kResultsKept;
  request.set_operation_id(is_known ? last_save_->operation_id : "nosuchoperation");
  const absl::Status status = coordinator_.Call("SaveService.WaitSave", request, &response);
  if (!is_known) return Want(absl::IsNotFound(status), "WaitSave", request, status, "NOT_FOUND");
  return Want(status.ok() &&
                  google::protobuf::util::MessageDifferencer::Equals(response, last_save_->result),
              "WaitSave again", request, status, "the first answer");
}

absl::Status RandomClient::CheckSaved(Dice& dice) const {
  std::set<std::string> wanted;
  for (const auto& [step, tensors] : saved_) wanted.insert(StepFolderName(step));
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(SaveFolder(), error)) {
    const std::string name = entry.path().filename().string();
    if (!wanted.contains(name)) return Violation(StrCat(entry.path().string(), " is left"));
    wanted.erase(name);
  }
  if (!wanted.empty()) return Violation(StrCat("the checkpoint ", *wanted.begin(), " is lost"));
  if (saved_.empty()) return absl::OkStatus();
  const auto any = std::next(saved_.begin(), dice.Below(std::ssize(saved_)));
  const absl::StatusOr<SavedTensors> have = ReadCheckpoint(SaveFolder(), any->first);
  const std::string difference =
      have.ok() ? Difference(*have, any->second) : have.status().ToString();
  return difference.empty() ? absl::OkStatus()
                            : Violation(StrCat("step ", any->first, ": ", difference));
}

}  // namespace shardmesh::model
