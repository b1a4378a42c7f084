// Encodes arrays of the registry.
#include "server/service/array_view_codec.h"

#include "rpc/codec/array_codec.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "sharding/correction.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {

v1::Durability Encode(Durability durability) {
  return durability == Durability::kDisk ? v1::DURABILITY_DISK : v1::DURABILITY_MEMORY;
}

void Encode(const Array& array, const NameEntry* name, v1::Array* to) {
  const ArrayDescriptor& descriptor = array.definition.descriptor;
  rpc::Encode(descriptor, to->mutable_array_descriptor());
  to->set_state(array.state == ArrayState::kDegraded ? v1::ARRAY_STATE_DEGRADED
                                                     : v1::ARRAY_STATE_AVAILABLE);
  for (const int64_t rank : array.missing_ranks) {
    to->add_missing_ranks(static_cast<int32_t>(rank));
  }
  if (name != nullptr && name->version != 0) {
    to->set_name(name->name);
    to->set_name_version(name->version);
  }
  to->set_durability(Encode(array.durability));
  rpc::Encode(array.created, to->mutable_create_time());
  // What is in the registry was checked when it came.
  to->set_size_bytes(descriptor.SizeBytes().value_or(0));
  if (array.definition.requested_spec.has_value()) {
    rpc::Encode(*array.definition.requested_spec, to->mutable_requested_spec());
    // The reasons follow from request, shape and mesh.
    const auto corrected =
        Correct(*array.definition.requested_spec, descriptor.shape, descriptor.mesh);
    if (corrected.ok()) {
      for (const Correction& correction : corrected->corrections) {
        rpc::Encode(correction, to->add_corrections());
      }
    }
  }
}

absl::StatusOr<SelectedArray> Select(const ArrayRegistry& registry,
                                     const v1::ArraySelector& selector) {
  SelectedArray selected;
  std::string array_id;
  if (selector.name().empty() && selector.array_id().empty()) {
    return rpc::BadField("array", "no array is named: its name, or its id, is empty");
  }
  switch (selector.array_case()) {
    case v1::ArraySelector::kName: {
      SHARDMESH_ASSIGN_OR_RETURN(selected.name,
                                 registry.FindName(selector.name(), selector.version()));
      array_id = selected.name.array_id;
      break;
    }
    case v1::ArraySelector::kArrayId:
      array_id = selector.array_id();
      break;
    case v1::ArraySelector::ARRAY_NOT_SET:
      break;
  }
  SHARDMESH_ASSIGN_OR_RETURN(selected.array, registry.FindArray(array_id));
  if (selected.array->state == ArrayState::kStaging) {
    return WithReason(absl::NotFoundError(StrCat("array ", array_id, " is not committed yet")),
                      Reason::kNotFound);
  }
  return selected;
}

absl::Status Degraded(const SelectedArray& selected, const MembershipView& membership,
                      const Recovery& recovery) {
  const Array& array = *selected.array;
  const ArrayDescriptor& descriptor = array.definition.descriptor;
  const MeshRanks* const mesh = membership.FindMesh(descriptor.mesh_id);
  const bool has_ranks = mesh != nullptr && !mesh->identities.empty();
  const std::string ranks = StrJoin(array.missing_ranks, ", ", [&](std::string* out, int64_t rank) {
    StrAppend(out, has_ranks ? membership.DescribeRank(*mesh, rank) : StrCat("rank ", rank));
  });
  const std::string name = selected.name.version != 0
                               ? StrCat("tensor \"", selected.name.name, "\"")
                               : StrCat("array ", descriptor.array_id);
  bool comes_back = has_ranks;
  bool is_lost = false;  // a worker that is there lacks its tile
  for (const int64_t rank : array.missing_ranks) {
    if (!comes_back) break;
    const std::string& identity = mesh->identities[static_cast<size_t>(rank)];
    comes_back = array.durability == Durability::kDisk ? recovery.ComesBack(identity)
                                                       : recovery.IsAwaited(identity);
  }
  for (const int64_t rank : array.missing_ranks) {
    is_lost =
        is_lost || (has_ranks && membership.IsAlive(mesh->identities[static_cast<size_t>(rank)]));
  }
  if (comes_back) {
    return Recovering(
        StrCat(name, " waits for the tiles of ", ranks, ", expected back; try again"));
  }
  const std::string_view advice =
      is_lost
          ? "its worker is there without the tile: `shardmesh admin quarantine list` shows whether "
            "it is aside and can be restored; otherwise load it again"
      : array.durability == Durability::kDisk
          ? "start those workers again: the tiles are on their disks"
          : "the tiles were in memory: load it again, unless those workers still run and come back";
  return WithReason(
      absl::FailedPreconditionError(StrCat(name, " lacks the tiles of ", ranks, "; ", advice)),
      Reason::kArrayDegraded);
}

}  // namespace shardmesh::server
