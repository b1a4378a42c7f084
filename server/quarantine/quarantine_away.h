// The workers that may have tiles in quarantine (put aside): attached workers, which are asked, and
// absent workers.
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

// Returns the identities of the workers that are alive.
std::vector<std::string> AliveWorkers(const MembershipView& view);

// For each worker that was asked for its tiles, by identity: the number of its attachment when it
// was asked.
using AskedWorkers = std::map<std::string, uint64_t>;

// Returns the live workers that were not asked since they attached, and marks them as asked. The
// result includes workers that attached while other workers answered. It also includes workers that
// attached again since they were asked, because their tiles may have changed.
std::vector<std::string> TakeUnasked(const MembershipView& view, AskedWorkers* asked);

// Joins the first eight names with commas, and says how many more names there are.
std::string FirstOf(const std::vector<std::string>& names);

// A worker that serves ranks and is not attached.
struct AwayWorker {
  std::vector<std::string> ranks = {};  // `rank 1 of mesh "m"`
  std::string why = {};
  bool comes_back = false;
};
using AwayWorkers = std::map<std::string, AwayWorker>;  // by identity

// Returns the absent workers of these meshes. If `mesh_ids` is empty, or the ranks of a mesh are
// not known, returns all absent workers: any of them may have tiles. `view` must be the view from
// which the caller took the workers to ask. With that view, each worker either was asked or is
// absent here, even if workers come or go in between.
AwayWorkers FindAway(const CoordinatorParts& context, const MembershipView& view,
                     const std::set<std::string>& mesh_ids);

// Describes absent workers: `worker-1 (rank 1 of mesh "m": not attached since the coordinator
// started), ...`
std::string Describe(const AwayWorkers& away);

bool AnyComesBack(const AwayWorkers& away);
bool AllComeBack(const AwayWorkers& away);

void Encode(const std::string& identity, const AwayWorker& worker, v1::UnreachedWorker* to);

// Returns the workers' identities, joined by commas, as a fact of an error has them.
std::string IdentitiesOf(const AwayWorkers& away);

// The error for tiles that no attached worker has in quarantine. `what` names the tiles.
// UNAVAILABLE (RECOVERING) while absent workers that may have the tiles are expected back;
// NOT_FOUND if no such worker is expected back.
absl::Status NotQuarantined(const CoordinatorParts& context, const MembershipView& view,
                            std::string_view what);

// Describes for messages how long an array without a name is still kept.
std::string HeldFor(const CoordinatorParts& context, const UnnamedArray& array);

// Checks that the id has 1 to 64 bytes. The error names `field`.
absl::Status CheckArrayId(const std::string& array_id, std::string_view field);

}  // namespace shardmesh::server::quarantine

#endif  // SHARDMESH_SERVER_QUARANTINE_QUARANTINE_AWAY_H_
