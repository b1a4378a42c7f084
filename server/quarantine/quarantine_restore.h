// What a restore brings back: which tiles of which ranks, and under which name.
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
#include "server/state/arrays.h"
#include "server/state/membership.h"
#include "shardmesh/internal/v1/attach_service.pb.h"
#include "shardmesh/v1/cluster_service.pb.h"
#include "tensor/array_descriptor.h"

namespace shardmesh::server::quarantine {

// The restore of one array.
struct Restore {
  const CoordinatorParts context;
  QuarantineAccess* const hub;
  const v1::RestoreQuarantinedRequest* const request;
  v1::RestoreQuarantinedResponse* const response;
  const QuarantineStopPtr stop;
  QuarantineDone done;

  AskedWorkers asked = {};
  // All that are alive in it were asked.
  std::shared_ptr<const MembershipView> view = nullptr;
  std::map<std::string, v1::QuarantinedArray> held = {};  // by identity
  // What comes back, by rank.
  std::map<int64_t, std::string> ranks = {};
  CommitRequest commit = {};
  std::optional<ArrayDescriptor> staged = {};
};
using RestorePtr = std::shared_ptr<Restore>;

absl::Status InProgress(const std::string& array_id);

// Of an array that is in no place whole: OK, or which ranks lack its tile, and what helps.
absl::Status CheckAllThere(const Restore& restore, const ArrayDescriptor& array);

// Of an array that the registry knows: the tiles that it misses.
absl::Status ChooseMissing(const ArrayPtr& array, Restore* restore);
// Of an array that the registry does not know: every rank's tile. Stages it.
absl::Status ChooseAll(Restore* restore);
// Of an array that is held without a name.
absl::Status ChooseName(const Array& array, Restore* restore);

}  // namespace shardmesh::server::quarantine

#endif  // SHARDMESH_SERVER_QUARANTINE_QUARANTINE_RESTORE_H_
