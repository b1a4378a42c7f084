// The list of live workers and meshes that attached workers get, encoded once for all attached
// workers.
#ifndef SHARDMESH_SERVER_ATTACH_MEMBERSHIP_PAGES_H_
#define SHARDMESH_SERVER_ATTACH_MEMBERSHIP_PAGES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/attach/worker_message.h"
#include "server/state/definitions.h"
#include "server/state/membership.h"

namespace shardmesh::internal::v1 {
class Membership;
}  // namespace shardmesh::internal::v1

namespace shardmesh::server {

// Encodes each new membership view as messages of type internal::v1::AttachResponse (field
// `membership`). Workers that have the previous state get the change; all other workers get a
// snapshot of the complete state. Each message lists a live worker once, however many meshes it
// serves. Each page is encoded once and shared by all streams: a change of one worker costs
// O(workers) to find and O(1) to encode.
//
//   pages.Update(view, state);
//   for each stream:  send(told ? pages.ChangeFor(identity) : pages.SnapshotFor(identity))
//
// A page has at most kPageBytes plus the bytes of its last item. Not thread-safe.
class MembershipPages {
 public:
  using Page = WorkerMessage;
  static constexpr int64_t kPageBytes = int64_t{1} << 20;

  explicit MembershipPages(int64_t term) : term_(term) {}

  // Adopts `view` and `state` as the current state. Returns whether workers need a change, because
  // the state differs from the previous one.
  bool Update(std::shared_ptr<const MembershipView> view, std::shared_ptr<const Definitions> state);

  // Returns the changes of the last Update for this worker, in the order to send.
  std::vector<Page> ChangeFor(std::string_view identity) const;
  // Returns the complete state as of the last Update, for this worker.
  std::vector<Page> SnapshotFor(std::string_view identity) const;

 private:
  // A mesh with its ranks, in the form that workers get.
  struct ToldMesh {
    std::shared_ptr<const MeshRanks> ranks;
    std::shared_ptr<const Definition> definition;
    std::vector<Page> pages;  // the whole mesh
  };
  // A mesh that the last Update changed.
  struct ChangedMesh {
    std::shared_ptr<const MeshRanks> ranks;
    std::vector<Page> pages;
  };

  // Marks `page` as the last page of a change or of a snapshot, and sets its epoch (that of `view`)
  // and its term.
  void SetEnd(const MembershipView& view, internal::v1::Membership* page) const;
  void TellWorkers(const MembershipView& view);
  void TellMeshes(const MembershipView& view, const Definitions& state);

  const int64_t term_;
  std::shared_ptr<const MembershipView> view_;  // null before the first Update
  std::shared_ptr<const Definitions> state_;
  std::map<std::string, ToldMesh, std::less<>> meshes_;  // by mesh id

  // Pages of the last change, in the order to send. Every worker gets the pages in `before_meshes_`
  // and in `after_meshes_`. The pages of a mesh go only to the workers that serve the mesh.
  std::vector<Page> before_meshes_;
  std::vector<ChangedMesh> changed_meshes_;
  std::vector<Page> after_meshes_;

  // Pages of the snapshot: `all_workers_` comes before the pages of the meshes, `end_` after them.
  // SnapshotFor makes them at its first call after a change.
  mutable std::vector<Page> all_workers_;
  mutable Page end_;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_ATTACH_MEMBERSHIP_PAGES_H_
