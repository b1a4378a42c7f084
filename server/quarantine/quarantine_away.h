// Workers that may have tiles in quarantine: those to ask, and those that are not attached.
#ifndef SHARDMESH_SERVER_QUARANTINE_QUARANTINE_AWAY_H_
#define SHARDMESH_SERVER_QUARANTINE_QUARANTINE_AWAY_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "server/attach/coordinator_parts.h"
#include "server/state/array_registry.h"
#include "server/state/membership.h"
#include "shardmesh/v1/cluster_service.pb.h"

namespace shardmesh::server::quarantine {

// Identities of the workers that are alive.
std::vector<std::string> AliveWorkers(const MembershipView& view);

// Attachments of the workers that were asked for their tiles, by identity.
using AskedWorkers = std::map<std::string, uint64_t>;

// Returns live workers that were not asked since they attached; from now on they count as asked. A
// worker that attaches while others answer is among them. A worker that attaches again is asked
// again: its tiles may have changed.
std::vector<std::string> TakeUnasked(const MembershipView& view, AskedWorkers* asked);

// The first of the names, and the number of the others.
std::string FirstOf(const std::vector<std::string>& names);

// A worker that serves ranks and is not attached.
struct AwayWorker {
  std::vector<std::string> ranks = {};  // `rank 1 of mesh "m"`
  std::string why = {};
  bool comes_back = false;
};
using AwayWorkers = std::map<std::string, AwayWorker>;  // by identity

// Returns the workers of these meshes that are away. Without meshes, or if the ranks of a mesh are
// not known, returns all workers that are away: any of them may have tiles. `view` must be the view
// by which the live workers were asked: then each worker was either asked or away, even if workers
// come or go meanwhile.
AwayWorkers FindAway(const CoordinatorParts& context, const MembershipView& view,
                     const std::set<std::string>& mesh_ids);

// `worker-1 (rank 1 of mesh "m": not attached since the coordinator started), ...`
std::string Describe(const AwayWorkers& away);

bool AnyComesBack(const AwayWorkers& away);
bool AllComeBack(const AwayWorkers& away);

void Encode(const std::string& identity, const AwayWorker& worker, v1::UnreachedWorker* to);

// The identities of the workers, joined by commas, in the form of a fact of an error.
std::string IdentitiesOf(const AwayWorkers& away);

// UNAVAILABLE (RECOVERING) while workers that may have the requested tiles are expected back.
// NOT_FOUND otherwise.
absl::Status NotQuarantined(const CoordinatorParts& context, const MembershipView& view,
                            std::string_view what);

// For people: the time for which an array without a name is held.
std::string HeldFor(const CoordinatorParts& context, const UnnamedArray& array);

// Accepts 1 to 64 bytes; the error names `field`.
absl::Status CheckArrayId(const std::string& array_id, std::string_view field);

}  // namespace shardmesh::server::quarantine

#endif  // SHARDMESH_SERVER_QUARANTINE_QUARANTINE_AWAY_H_
