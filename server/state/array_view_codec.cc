// Encodes arrays of the registry, and decodes references to them.
#include "server/state/array_view_codec.h"

#include <algorithm>

#include "rpc/codec/array_codec.h"
#include "rpc/codec/source_codec.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "sharding/correction.h"
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
  to->set_is_state(array.definition.is_state);
  rpc::Encode(array.created, to->mutable_create_time());
  // SizeBytes cannot fail here: the registry checked the descriptor when the array was put.
  to->set_size_bytes(descriptor.SizeBytes().value_or(0));
  if (array.definition.source.file != nullptr) {
    rpc::Encode(*array.definition.source.file, to->mutable_source()->mutable_file());
    to->mutable_source()->set_offset_bytes(array.definition.source.offset_bytes);
    if (const auto& read_as = array.definition.source.conversion; read_as.has_value()) {
      rpc::Encode(*read_as, to->mutable_source()->mutable_conversion());
    }
  }
  if (array.definition.requested_spec.has_value()) {
    rpc::Encode(*array.definition.requested_spec, to->mutable_requested_spec());
    // The reasons of the corrections are not stored: they follow from the requested spec, the shape
    // and the mesh. Only a put by a rule for uneven cuts gives an array both cut points and
    // corrections.
    const auto corrected =
        Correct(*array.definition.requested_spec, descriptor.shape, descriptor.mesh,
                descriptor.cut_points.empty() ? PartSizes::kEqual : PartSizes::kAny);
    if (corrected.ok()) {
      for (const Correction& correction : corrected->corrections) {
        rpc::Encode(correction, to->add_corrections());
      }
    }
  }
}

void EncodeRepair(const Array& array, const Recovery& recovery, v1::Array* to) {
  if (const std::optional<ArrayReplicas> replicas = recovery.ReplicasOf(array);
      replicas.has_value()) {
    v1::ArrayReplicas* const encoded = to->mutable_replicas();
    encoded->set_wanted(static_cast<int32_t>(replicas->wanted));
    encoded->set_complete(static_cast<int32_t>(replicas->complete));
    encoded->set_by_spec(replicas->by_spec);
    encoded->set_shares_host(replicas->shares_host);
    encoded->set_operation_id(replicas->operation_id);
    encoded->set_failure(replicas->failure);
  }
  if (array.missing_ranks.empty()) return;
  const std::optional<ArrayRepair> repair = recovery.RepairOf(array.definition.descriptor.array_id);
  // A repair that is about to begin has no operation yet, and may find no work.
  if (!repair.has_value() || repair->is_due) return;
  v1::ArrayRepair* const encoded = to->mutable_repair();
  encoded->set_operation_id(repair->operation_id);
  encoded->set_tiles(repair->tiles);
  encoded->set_size_bytes(repair->size_bytes);
  if (repair->time_left.has_value()) {
    rpc::Encode(*repair->time_left, encoded->mutable_time_left());
  }
  encoded->set_failure(repair->failure);
  if (repair->next_try != absl::InfiniteFuture()) {
    rpc::Encode(repair->next_try, encoded->mutable_next_try_time());
  }
}

absl::StatusOr<ArrayReference> Decode(const v1::ArraySelector& from) {
  if (from.name().empty() && from.array_id().empty()) {
    return rpc::BadField("array", "no array is named: its name, or its id, is empty");
  }
  if (from.has_version() && from.version() < 1) {
    return rpc::BadField("array.version",
                         StrCat("is ", from.version(),
                                "; versions are counted from 1; leave it out for the current one"));
  }
  return ArrayReference{
      .name = from.name(), .version = from.version(), .array_id = from.array_id()};
}

absl::StatusOr<std::optional<int64_t>> Decode(const v1::Precondition& from, bool must_exist,
                                              std::string_view path) {
  switch (from.condition_case()) {
    case v1::Precondition::kMustNotExist:
      if (!from.must_not_exist()) {
        return rpc::BadField(StrCat(path, ".must_not_exist"),
                             "is false; set it to true, or leave "
                             "the precondition unset for any state");
      }
      if (must_exist) {
        return rpc::BadField(StrCat(path, ".must_not_exist"),
                             "cannot hold for a change of what exists; name a version, or create");
      }
      return std::optional<int64_t>(0);
    case v1::Precondition::kVersion:
      if (from.version() < 1) {
        return rpc::BadField(StrCat(path, ".version"),
                             "is below 1; leave the precondition unset for any version");
      }
      return std::optional(from.version());
    case v1::Precondition::CONDITION_NOT_SET:
      break;
  }
  return std::optional<int64_t>();
}

}  // namespace shardmesh::server
