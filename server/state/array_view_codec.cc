// Encodes arrays of the registry, and decodes references to them.
#include "server/state/array_view_codec.h"

#include <algorithm>

#include "rpc/codec/array_codec.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "sharding/correction.h"

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

absl::StatusOr<ArrayReference> Decode(const v1::ArraySelector& from) {
  if (from.name().empty() && from.array_id().empty()) {
    return rpc::BadField("array", "no array is named: its name, or its id, is empty");
  }
  return ArrayReference{
      .name = from.name(), .version = from.version(), .array_id = from.array_id()};
}

std::optional<int64_t> DecodeExpectedVersion(int64_t version) {
  if (version == 0) return std::nullopt;
  return std::max<int64_t>(version, 0);
}

}  // namespace shardmesh::server
