// How fast the links between workers are, as their heartbeats told of it.
#ifndef SHARDMESH_SERVER_LINK_TABLE_H_
#define SHARDMESH_SERVER_LINK_TABLE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "rpc/measured_link.h"
#include "server/membership.h"
#include "tensor/collective_choice.h"

namespace shardmesh::server {

// A pair's link as one of the two measured it.
struct WorkerLink {
  std::string identity;  // of the one that measured
  rpc::MeasuredLink measured;
};

// Keeps what each attached worker told last. A link counts while both its workers are alive, in the
// processes between which it was measured. Thread-safe.
class LinkTable {
 public:
  // What a worker knows of links now, in place of what it told before.
  void Reported(std::string_view identity, uint64_t incarnation,
                std::vector<rpc::MeasuredLink> links);
  // The worker is alive no more: what it told is forgotten.
  void Lost(std::string_view identity);

  // The links that count between `lower` and those of these workers whose identities are above it,
  // by these; each pair once. Costs O(links of `lower`), however many workers there are.
  std::vector<WorkerLink> LinksOf(const MembershipView& view, const std::string& lower,
                                  const std::set<std::string, std::less<>>& identities) const;

  // What links between ranks of a mesh are like, for the choice of algorithms: of all that count,
  // the longest latency and the least bandwidth, since a collective waits for the slowest pair, and
  // whether all share memory; the default where none does, or the view has no such mesh. After a
  // report O(workers of the mesh), after a new epoch the square of it; otherwise O(1).
  LinkCost CostOf(const MembershipView& view, std::string_view mesh_id) const;

 private:
  struct Report {
    uint64_t incarnation = 0;
    int64_t change = 0;                                           // the one that brought it
    std::map<std::string, rpc::MeasuredLink, std::less<>> links;  // by peer
  };
  // What one report says of a mesh.
  struct Row {
    int64_t change = 0;  // of the report
    bool has_links = false;
    bool shares_memory = true;
    double latency_seconds = 0;   // the longest
    double seconds_per_byte = 0;  // likewise
  };
  // A mesh's cost, and what it is made of, in one epoch.
  struct KnownCost {
    int64_t epoch = 0;
    int64_t changes = 0;  // when `cost` was made
    std::vector<std::string> identities = {};
    std::vector<Row> rows = {};  // by rank
    LinkCost cost = {};
  };

  Row RowOf(const MembershipView& view, const MeshRanks& mesh, const std::string& identity,
            const Report& report) const;

  // `identity` does not tell of a link to `peer` any more.
  void Forget(std::string_view peer, std::string_view identity)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::map<std::string, Report, std::less<>> reports_ ABSL_GUARDED_BY(mutex_);  // by identity
  // Who tells of a link to a worker, by that worker.
  std::map<std::string, std::set<std::string, std::less<>>, std::less<>> told_by_
      ABSL_GUARDED_BY(mutex_);
  int64_t changes_ ABSL_GUARDED_BY(mutex_) = 0;
  mutable std::map<std::string, KnownCost, std::less<>> costs_ ABSL_GUARDED_BY(mutex_);  // by mesh
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_LINK_TABLE_H_
