// Workers that may have tiles aside: those to ask, and those that are away.
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
#include "server/state/arrays.h"
#include "server/state/membership.h"
#include "shardmesh/v1/cluster_service.pb.h"

namespace shardmesh::server::quarantine {

// Identities of the workers that are alive.
std::vector<std::string> AliveWorkers(const MembershipView& view);

// Attachments of the workers that were asked what they have, by identity.
using AskedWorkers = std::map<std::string, uint64_t>;

// The workers that are alive and were not asked since they attached; they count as asked from here
// on. Who attaches while others answer is among them, and so is who attaches anew: what it has may
// be other than before.
std::vector<std::string> TakeUnasked(const MembershipView& view, AskedWorkers* asked);

// The first of the names, and how many more there are.
std::string FirstOf(const std::vector<std::string>& names);

// A worker that serves ranks and is not attached.
struct AwayWorker {
  std::vector<std::string> ranks = {};  // `rank 1 of mesh "m"`
  std::string why = {};
  bool comes_back = false;
};
using AwayWorkers = std::map<std::string, AwayWorker>;  // by identity

// Of these meshes. Of all meshes if there are none, or one whose ranks are not known: any worker
// may have tiles of its arrays. The view is the one by which the others were asked: so each worker
// was asked or is away, whoever comes or goes meanwhile.
AwayWorkers FindAway(const CoordinatorParts& context, const MembershipView& view,
                     const std::set<std::string>& mesh_ids);

// `worker-1 (rank 1 of mesh "m": not attached since the coordinator started), ...`
std::string Describe(const AwayWorkers& away);

bool AnyComesBack(const AwayWorkers& away);
bool AllComeBack(const AwayWorkers& away);

void Encode(const std::string& identity, const AwayWorker& worker, v1::UnreachedWorker* to);

// The identities of the workers joined by commas, as facts of errors have them.
std::string IdentitiesOf(const AwayWorkers& away);

// UNAVAILABLE (RECOVERING) while workers are expected back that may have what was asked for.
// NOT_FOUND otherwise.
absl::Status NotQuarantined(const CoordinatorParts& context, const MembershipView& view,
                            std::string_view what);

// How long an array is held that has no name, for people.
std::string HeldFor(const CoordinatorParts& context, const UnnamedArray& array);

// 1 to 64 bytes; the error names `field`.
absl::Status CheckArrayId(const std::string& array_id, std::string_view field);

}  // namespace shardmesh::server::quarantine

#endif  // SHARDMESH_SERVER_QUARANTINE_QUARANTINE_AWAY_H_
