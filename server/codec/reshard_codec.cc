// Decodes the requests of Reshard, and encodes its answers.
#include "server/codec/reshard_codec.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "rpc/codec/array_codec.h"
#include "rpc/codec/field_check.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "server/resolve/resolve_answers.h"
#include "server/state/array_view_codec.h"
#include "sharding/digest.h"
#include "sharding/mesh.h"
#include "shardmesh/v1/catalog_service.pb.h"
#include "status/status_macros.h"

namespace shardmesh::server {
namespace {

constexpr int64_t kMaxShapeBytes = 8192;
constexpr size_t kMaxRanksListed = 4'096;

// A message of an answer is full once it has this many bytes.
constexpr int64_t kMessageBytes = int64_t{256} << 10;
// The same for the list of memory. Older clients read this list from the first message only, so the
// limit is large: half of what gRPC takes by default.
constexpr int64_t kMemoryBytes = int64_t{2} << 20;

// Moves those elements to `rest` that come when the message has `limit_bytes`. Adds the bytes of
// the others to `size_bytes`. Returns whether all stayed.
template <typename Elements>
bool MoveRest(int64_t limit_bytes, Elements* elements, Elements* rest, int64_t* size_bytes) {
  int kept = 0;
  while (kept < elements->size() && *size_bytes < limit_bytes) {
    *size_bytes += static_cast<int64_t>((*elements)[kept++].ByteSizeLong());
  }
  if (kept == elements->size()) return true;
  for (int i = kept; i < elements->size(); ++i) rest->Add()->Swap(elements->Mutable(i));
  elements->DeleteSubrange(kept, elements->size() - kept);
  return false;
}

absl::Status DecodeSource(const v1::ReshardRequest& from, ReshardCall* to) {
  switch (from.source_case()) {
    case v1::ReshardRequest::kArray: {
      SHARDMESH_ASSIGN_OR_RETURN(to->array, server::Decode(from.array()));
      return absl::OkStatus();
    }
    case v1::ReshardRequest::kPrefix:
      to->prefix = from.prefix();
      return absl::OkStatus();
    case v1::ReshardRequest::SOURCE_NOT_SET:
      break;
  }
  return rpc::BadField("array", "is not set; give an array, or a prefix of names");
}

absl::Status DecodeLayout(const v1::ReshardRequest& from, ReshardCall* to) {
  if (from.has_spec()) {
    SHARDMESH_DECODE(spec, "spec", rpc::Decode(from.spec()));
    to->spec = std::move(spec);
  } else if (from.has_axes()) {
    SHARDMESH_DECODE(axes, "axes.axes", rpc::DecodeAxes(from.axes().axes()));
    to->axes = std::move(axes);
  } else if (from.has_preset()) {
    if (from.preset().empty()) {
      return rpc::BadField("preset", "is empty; name a preset, or leave it out");
    }
    to->preset = from.preset();
  }
  to->has_rules = from.has_rule_set();
  SHARDMESH_DECODE(mode, "mode", rpc::Decode(from.mode(), to->compatibility));
  to->mode = mode;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ReshardCall> Decode(const std::shared_ptr<const v1::ReshardRequest>& from,
                                   absl::Time now) {
  ReshardCall call{.request_id = from->request_id(),
                   .session_id = from->session_id(),
                   .fingerprint = Sha256(from->SerializeAsString()),
                   .mesh_id = from->mesh().name(),
                   .name = from->name(),
                   .release_source = from->release_source(),
                   .validate_only = from->validate_only()};
  if (from->mesh().has_value()) {
    return rpc::BadField("mesh", "is given inline; arrays lie on meshes of the catalog");
  }
  SHARDMESH_RETURN_IF_ERROR(DecodeSource(*from, &call));
  SHARDMESH_DECODE(compatibility, "compatibility", rpc::Decode(from->compatibility()));
  call.compatibility = compatibility;
  SHARDMESH_RETURN_IF_ERROR(DecodeLayout(*from, &call));
  SHARDMESH_DECODE(strict, "policy", rpc::DecodeIsStrict(from->policy()));
  call.strict = strict;
  if (!call.name.empty()) SHARDMESH_RETURN_IF_ERROR(rpc::CheckArrayName(call.name, "name"));
  SHARDMESH_ASSIGN_OR_RETURN(call.expected_version,
                             server::Decode(from->precondition(), /*must_exist=*/false));
  if (from->has_timeout()) {
    SHARDMESH_DECODE(timeout, "timeout", rpc::Decode(from->timeout()));
    call.deadline = now + timeout;
  }
  call.weights.assign(from->weights().begin(), from->weights().end());
  SHARDMESH_ASSIGN_OR_RETURN(call.uneven,
                             rpc::DecodeUnevenCuts(from->uneven(), !call.weights.empty(),
                                                   /*has_cut_points=*/!from->cut_points().empty()));
  if (from->cut_points_size() > 0) {
    call.cut_points = [from](const Shape& shape) {
      return rpc::DecodeCutPoints(from->cut_points(), shape);
    };
  }
  call.rule_source = [from, compatibility](const Definitions& definitions,
                                           const std::function<bool()>& is_cancelled) {
    return SelectRules(definitions, from->rule_set(), compatibility, is_cancelled);
  };
  call.profile_source = [from](const Definitions& definitions) {
    return SelectProfile(definitions, from->profile());
  };
  return call;
}

absl::StatusOr<ResizeCall> Decode(const v1::ResizeMeshRequest& from) {
  ResizeCall call{.request_id = from.request_id(),
                  .session_id = from.session_id(),
                  .fingerprint = Sha256(from.SerializeAsString()),
                  .mesh_id = from.mesh(),
                  .weights = {from.weights().begin(), from.weights().end()},
                  .validate_only = from.validate_only()};
  SHARDMESH_RETURN_IF_ERROR(rpc::CheckRequestId(call.request_id, "request_id"));
  if (call.mesh_id.empty()) return rpc::BadField("mesh", "is empty; name the mesh to resize");
  SHARDMESH_RETURN_IF_ERROR(CheckCount(std::ssize(from.shape()), kMaxShapeBytes, "bytes", "shape"));
  if (from.shape().empty()) {
    return rpc::BadField("shape", "is empty; give the new axes, such as dp=3,tp=2");
  }
  SHARDMESH_DECODE(axes, "shape", ParseMeshAxes(from.shape()));
  call.axes = std::move(axes);
  SHARDMESH_ASSIGN_OR_RETURN(call.uneven,
                             rpc::DecodeUnevenCuts(from.uneven(), !call.weights.empty()));
  return call;
}

std::string EncodeEntry(const MeshDefinition& mesh) {
  v1::EntryValue value;
  rpc::Encode(mesh, value.mutable_mesh());
  return value.SerializeAsString();
}

void Encode(const BegunResize& from, v1::ResizeMeshResponse* to) {
  const PlannedResize& plan = from.plan;
  to->set_operation_id(from.operation_id);
  to->set_array_count(plan.array_count);
  to->set_moved_bytes(plan.moved_bytes);
  for (size_t rank = 0; rank < std::min(plan.ranks.size(), kMaxRanksListed); ++rank) {
    const ResizeRank& each = plan.ranks[rank];
    v1::ResizeMeshRank* const added = to->add_ranks();
    added->set_rank(static_cast<int32_t>(rank));
    added->set_identity(each.identity);
    added->set_moved_bytes(each.moved_bytes);
    added->set_have_bytes(each.have_bytes);
    added->set_need_bytes(each.need_bytes);
  }
  for (const ResizeRefusal& each : plan.refusals) {
    v1::ResizeMeshRefusal* const added = to->add_refusals();
    added->set_name(each.name);
    added->set_array_id(each.array_id);
    rpc::Encode(each.error, added->mutable_error());
  }
  to->set_refusal_count(plan.refusal_count);
}

void Encode(const ReshardOutline& from, v1::ReshardResponse* to) {
  to->set_operation_id(from.operation_id);
  to->set_array_count(from.array_count);
  to->set_total_bytes(from.total_bytes);
  for (const ReshardMemoryNeed& each : from.memory) {
    v1::ReshardMemory* const memory = to->add_memory();
    memory->set_mesh_id(each.mesh_id);
    memory->set_rank(static_cast<int32_t>(each.rank));
    memory->set_identity(each.identity);
    memory->set_have_bytes(each.have_bytes);
    memory->set_need_bytes(each.need_bytes);
  }
}

void Encode(const ReshardedArray& from, v1::ReshardedArray* to) {
  to->set_name(from.name);
  to->set_name_version(from.name_version);
  to->set_source_array_id(from.source_array_id);
  rpc::Encode(from.descriptor, to->mutable_array_descriptor());
  for (const Correction& correction : from.corrections) {
    rpc::Encode(correction, to->add_corrections());
  }
  to->set_moved_bytes(from.moved_bytes);
  to->set_summed_bytes(from.summed_bytes);
  if (from.sums_spec.has_value()) rpc::Encode(*from.sums_spec, to->mutable_sums_spec());
  to->set_skipped(from.is_skipped);
}

bool MoveExcess(v1::ReshardResponse* message, v1::ReshardResponse* rest) {
  int64_t size_bytes = 0;
  const bool memory_fits =
      MoveRest(kMemoryBytes, message->mutable_memory(), rest->mutable_memory(), &size_bytes);
  // No array goes before the end of the list of memory.
  if (!memory_fits) size_bytes = kMessageBytes;
  const bool arrays_fit =
      MoveRest(kMessageBytes, message->mutable_arrays(), rest->mutable_arrays(), &size_bytes);
  if (memory_fits && arrays_fit) return false;
  rest->set_done_bytes(message->done_bytes());
  rest->set_revision(message->revision());
  message->clear_revision();
  return true;
}

}  // namespace shardmesh::server
