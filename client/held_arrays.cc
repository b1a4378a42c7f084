// Pins arrays, and ends the pins.
#include "client/held_arrays.h"

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/arrays.h"
#include "client/client_core.h"
#include "status/status_macros.h"

namespace shardmesh::client {

absl::Status HeldArrays::Add(const Array& array, const std::optional<Tile>& part,
                             const SteadyDeadline& deadline) {
  SHARDMESH_RETURN_IF_ERROR(core_->Hold(array, part, deadline, options_));
  ids_.push_back(array.descriptor.array_id);
  return absl::OkStatus();
}

void HeldArrays::LetGo() {
  if (!ids_.empty()) core_->EndHold(std::exchange(ids_, {}), options_);
}

absl::StatusOr<HeldArrays> ArrayClient::Hold(absl::Span<const std::string> array_ids,
                                             const CallOptions& options) {
  const SteadyDeadline deadline = core_->Deadline(options);
  HeldArrays held(core_, options);
  for (const std::string& array_id : array_ids) {
    Array array;
    array.descriptor.array_id = array_id;
    SHARDMESH_RETURN_IF_ERROR(held.Add(array, std::nullopt, deadline));
  }
  return held;
}

}  // namespace shardmesh::client
