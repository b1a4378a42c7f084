// Encodes arrays of the catalogue.
#include "server/array_view_codec.h"

#include "rpc/array_codec.h"
#include "rpc/spec_codec.h"
#include "rpc/status.h"
#include "rpc/time_codec.h"
#include "sharding/correction.h"
#include "sharding/reason.h"
#include "sharding/status_macros.h"
#include "sharding/str_cat.h"

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
  // What is in the catalogue was checked when it came.
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

absl::StatusOr<SelectedArray> Select(const Catalogue& catalogue,
                                     const v1::ArraySelector& selector) {
  SelectedArray selected;
  std::string array_id;
  if (selector.name().empty() && selector.array_id().empty()) {
    return rpc::BadField("array", "no array is named: its name, or its id, is empty");
  }
  switch (selector.array_case()) {
    case v1::ArraySelector::kName: {
      SHARDMESH_ASSIGN_OR_RETURN(selected.name,
                                 catalogue.FindName(selector.name(), selector.version()));
      array_id = selected.name.array_id;
      break;
    }
    case v1::ArraySelector::kArrayId:
      array_id = selector.array_id();
      break;
    case v1::ArraySelector::ARRAY_NOT_SET:
      break;
  }
  SHARDMESH_ASSIGN_OR_RETURN(selected.array, catalogue.FindArray(array_id));
  if (selected.array->state == ArrayState::kStaging) {
    return WithReason(absl::NotFoundError(StrCat("array ", array_id, " is not committed yet")),
                      Reason::kNotFound);
  }
  return selected;
}

absl::Status Degraded(const SelectedArray& selected, const MembershipView& membership) {
  const ArrayDescriptor& descriptor = selected.array->definition.descriptor;
  const MeshRanks* const mesh = membership.FindMesh(descriptor.mesh_id);
  const std::string ranks =
      StrJoin(selected.array->missing_ranks, ", ", [&](std::string* out, int64_t rank) {
        StrAppend(out, mesh == nullptr || mesh->identities.empty()
                           ? StrCat("rank ", rank)
                           : membership.DescribeRank(*mesh, rank));
      });
  return WithReason(
      absl::FailedPreconditionError(
          StrCat(selected.name.version != 0 ? StrCat("tensor \"", selected.name.name, "\"")
                                            : StrCat("array ", descriptor.array_id),
                 " lacks the tiles of ", ranks, "; start lost workers again, or load it again")),
      Reason::kArrayDegraded);
}

}  // namespace shardmesh::server
