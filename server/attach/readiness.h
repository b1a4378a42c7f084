// Determines whether the workers of a mesh can run a step together.
#ifndef SHARDMESH_SERVER_ATTACH_READINESS_H_
#define SHARDMESH_SERVER_ATTACH_READINESS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "process/clock.h"
#include "server/state/definitions.h"
#include "server/state/membership.h"
#include "server/state/recovery.h"

namespace shardmesh::server {

// Tracks which peers each member reaches, and which membership view and definitions all members
// have received. A member is a worker whose inventory was processed. Thread-safe.
class Readiness {
 public:
  // All arguments outlive this object.
  Readiness(const Membership* membership, const DefinitionStore* definition_store,
            const Recovery* recovery, const Clock* clock);

  // Records that the worker is a member from now on. Its reports over an earlier stream no longer
  // count.
  void Joined(std::string_view identity);
  void Left(std::string_view identity);
  // Records the peers that a member does not reach, as of `epoch`. No effect if the worker is not a
  // member.
  void PeersReported(std::string_view identity, int64_t epoch,
                     const std::vector<std::string>& unreached);
  // Records that all members have received this view and these definitions.
  void Told(std::shared_ptr<const MembershipView> view, std::shared_ptr<const Definitions> state);

  // Whether the member reaches all its peers, as of the newest epoch.
  bool IsReady(std::string_view identity) const;
  // OK if every rank of the mesh has a member that is not draining and reaches the members of all
  // other ranks. Errors:
  // - UNAVAILABLE (RECOVERING): some ranks have no such member, but all of these ranks are expected
  //   to have one soon. Also while ranks are being assigned, or members have not yet received them.
  // - FAILED_PRECONDITION (MESH_INCOMPLETE): some ranks have no such member, and at least one of
  //   these ranks is not expected to have one soon. The error names the ranks.
  // - NOT_FOUND: no such mesh.
  // If members do not reach a member whose heartbeats have ceased, the errors name that member, and
  // not the members that only wait for it.
  absl::Status Check(std::string_view mesh_id) const;

 private:
  struct PeersReport {
    int64_t epoch = -1;  // epoch of the last report
    // The unreached peers of that report, each with the time since when every report of this member
    // has named the peer.
    std::map<std::string, absl::Time, std::less<>> unreached = {};
  };

  absl::Status Incomplete(const MembershipView& view, const MeshRanks& ranks,
                          const absl::Status& incomplete) const;
  // Returns the workers of the mesh whose heartbeats have ceased while those of other workers of
  // the mesh go on. All workers of the mesh must be alive.
  std::set<std::string_view> FindSilent(const MembershipView& view, const MeshRanks& mesh) const;
  // Returns why the worker cannot take part in a step of this mesh; empty if it can. Adds the peers
  // in `silent` that a worker outside of `silent` does not reach to `missed`, and does not count
  // them: these peers are at fault.
  std::string FindUnmet(std::string_view identity, const MeshRanks& mesh, int64_t epoch,
                        const std::set<std::string_view>& silent,
                        std::set<std::string_view>* missed) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  bool MayMeetSoon(const MembershipView& view, const MeshRanks& ranks) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  const Membership* const membership_;
  const DefinitionStore* const definition_store_;
  const Recovery* const recovery_;
  const Clock* const clock_;

  mutable absl::Mutex mutex_;
  // The last report of each member, by identity.
  std::map<std::string, PeersReport, std::less<>> reports_ ABSL_GUARDED_BY(mutex_);
  // The arguments of the last call of Told; null before the first call.
  std::shared_ptr<const MembershipView> told_view_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const Definitions> told_state_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_ATTACH_READINESS_H_
