// The restore of a quarantined array (tiles that workers put aside): which worker's tile each rank
// gets, and the array's name.
#ifndef SHARDMESH_SERVER_QUARANTINE_QUARANTINE_RESTORE_H_
#define SHARDMESH_SERVER_QUARANTINE_QUARANTINE_RESTORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "server/attach/coordinator_parts.h"
#include "server/quarantine/quarantine_away.h"
#include "server/quarantine/quarantine_calls.h"
#include "server/state/array_registry.h"
#include "server/state/membership.h"
#include "shardmesh/internal/v1/attach_service.pb.h"
#include "shardmesh/v1/cluster_service.pb.h"
#include "tensor/array_descriptor.h"

namespace shardmesh::server::quarantine {

// The state of the restore of one array.
struct Restore {
  const CoordinatorParts context;
  QuarantineAccess* const hub;
  const v1::RestoreQuarantinedRequest* const request;
  v1::RestoreQuarantinedResponse* const response;
  const QuarantineStopPtr stop;
  QuarantineDone done;

  AskedWorkers asked = {};
  // A membership view. All its live workers were asked whether they have tiles of the array.
  std::shared_ptr<const MembershipView> view = nullptr;
  std::map<std::string, v1::QuarantinedArray> held = {};  // by identity
  // For each rank: the identity of the worker whose tile is restored.
  std::map<int64_t, std::string> ranks = {};
  CommitRequest commit = {};
  std::optional<ArrayDescriptor> staged = {};
};
using RestorePtr = std::shared_ptr<Restore>;

absl::Status InProgress(const std::string& array_id);

// Checks that the quarantines have all tiles of an array. The error names the ranks that lack a
// tile, and the remedy.
absl::Status CheckAllThere(const Restore& restore, const ArrayDescriptor& array);

// For an array that the registry knows: chooses quarantined tiles for the ranks whose tiles the
// array lacks.
absl::Status ChooseMissing(const ArrayPtr& array, Restore* restore);
// For an array that the registry does not know: chooses quarantined tiles for all ranks. Stages the
// array, unless the request has `validate_only`.
absl::Status ChooseAll(Restore* restore);
// For an array that the registry keeps without a name: chooses its name.
absl::Status ChooseName(const Array& array, Restore* restore);

}  // namespace shardmesh::server::quarantine

#endif  // SHARDMESH_SERVER_QUARANTINE_QUARANTINE_RESTORE_H_
