// Combines the coordinator's membership pages into a view.
#ifndef SHARDMESH_WORKER_SERVICE_MEMBERSHIP_BOOK_H_
#define SHARDMESH_WORKER_SERVICE_MEMBERSHIP_BOOK_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/exchange/membership_view.h"

namespace shardmesh::internal::v1 {
class Membership;
class MeshMembership;
}  // namespace shardmesh::internal::v1

namespace shardmesh::worker {

// The membership as one attach stream brings it: first a snapshot, then changes to the snapshot,
// all in pages.
//
// clang-format off
//   book.Take(page)            nullopt: more pages of this change follow
//   book.Take(last_page)       the view as of this change
// clang-format on
//
// After an error the object is unusable, and the caller must begin a new stream. Not thread-safe.
class MembershipBook {
 public:
  // INTERNAL: pages contradict each other; the error message says how. INVALID_ARGUMENT: a mesh is
  // malformed.
  absl::StatusOr<std::optional<MembershipView>> Take(const internal::v1::Membership& page);

 private:
  struct LiveWorker {
    uint64_t incarnation = 0;
    std::vector<std::string> endpoints;
  };
  struct ServedMesh {
    int64_t revision = 0;
    Mesh mesh;
    std::vector<std::string> identities;  // by rank
  };

  absl::Status TakeMesh(const internal::v1::MeshMembership& page);
  absl::StatusOr<MembershipView> View(int64_t epoch, int64_t term) const;

  bool has_snapshot_ = false;
  std::map<std::string, LiveWorker, std::less<>> workers_;  // by identity
  std::map<std::string, ServedMesh, std::less<>> meshes_;   // by mesh id
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SERVICE_MEMBERSHIP_BOOK_H_
