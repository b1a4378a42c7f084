// Speed of the links between workers, from their heartbeats.
#ifndef SHARDMESH_SERVER_STATE_LINK_TABLE_H_
#define SHARDMESH_SERVER_STATE_LINK_TABLE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "program/collective_choice.h"
#include "program/measured_rates.h"
#include "server/state/membership.h"

namespace shardmesh::server {

// The link between two workers, as one of them measured it.
struct WorkerLink {
  std::string identity;  // the worker that measured the link
  MeasuredLink measured;
};

// Keeps the last report of each attached worker. A measured link is valid as long as both worker
// processes are alive. Thread-safe.
class LinkTable {
 public:
  // Replaces the worker's last report.
  void Reported(std::string_view identity, uint64_t incarnation, std::vector<MeasuredLink> links);
  // Drops the report of a worker that is no longer alive.
  void Lost(std::string_view identity);

  // Returns the valid links between the worker `lower` and those workers of `identities` that sort
  // after `lower`. The links are sorted by the identity of the other worker; each pair occurs once.
  // Costs O(links of `lower`), independent of the number of workers.
  std::vector<WorkerLink> LinksOf(const MembershipView& view, const std::string& lower,
                                  const std::set<std::string, std::less<>>& identities) const;

  // Returns the cost of links between ranks of a mesh, for the choice of algorithms. The cost has
  // the longest latency and the least bandwidth of all valid links, since a collective waits for
  // the slowest pair. The cost also says whether all links share memory. Returns the default if
  // there is no valid link or no such mesh.
  //
  // After a new report or a new epoch, takes time linear in two numbers: the workers of the mesh,
  // and the links of the workers that reported, came or went. If there was neither since the last
  // call, takes O(1). A call takes longer only if a removed link was the slowest link of many other
  // workers: the figures of these workers are recomputed.
  LinkCost CostOf(const MembershipView& view, std::string_view mesh_id) const;

 private:
  struct Report {
    uint64_t incarnation = 0;
    int64_t change = 0;                                      // value of changes_ at this report
    std::map<std::string, MeasuredLink, std::less<>> links;  // by peer
  };
  // The largest (worst) of several figures, with a count, so that figures can be removed.
  class Worst {
   public:
    void Add(double value) {
      if (count_ == 0 || value > value_) {
        value_ = value;
        count_ = 1;
      } else if (value == value_) {
        ++count_;
      }
    }
    // Returns false if the largest figure is unknown after the removal.
    bool Remove(double value) { return count_ > 0 && (value < value_ || --count_ > 0); }
    double value() const { return value_; }

   private:
    double value_ = 0;
    int64_t count_ = 0;  // number of figures equal to the largest
  };
  // The figures of one worker's report about links within a mesh.
  struct Row {
    int64_t change = 0;  // Report::change of its report; 0: recompute the row
    int64_t links = 0;   // number of valid links
    int64_t not_shared = 0;
    Worst latency_seconds = {};
    Worst seconds_per_byte = {};

    void Add(const MeasuredLink& link);
    // Returns false if the row must be recomputed from the report.
    bool Remove(const MeasuredLink& link);
  };
  // The cached cost of a mesh in one epoch, and the figures that it was computed from.
  struct KnownCost {
    int64_t epoch = 0;
    int64_t changes = 0;  // changes_ when `cost` was computed
    std::vector<std::string> identities = {};
    absl::flat_hash_map<std::string_view, size_t> ranks = {};  // rank of each identity
    std::vector<uint64_t> incarnations = {};                   // by rank; 0: lost
    std::vector<Row> rows = {};                                // by rank
    LinkCost cost = {};
  };

  static Row RowOf(const KnownCost& known, size_t rank, const Report& report);
  // Applies a new epoch. Marks the rows of workers that came or went for recomputation. Adds or
  // removes the links to these workers in the rows of other workers.
  void TakeEpoch(const MembershipView& view, KnownCost* known) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Records that `identity` no longer reports a link to `peer`.
  void Forget(std::string_view peer, std::string_view identity)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::map<std::string, Report, std::less<>> reports_ ABSL_GUARDED_BY(mutex_);  // by identity
  // By worker: the workers that report a link to it.
  std::map<std::string, std::set<std::string, std::less<>>, std::less<>> told_by_
      ABSL_GUARDED_BY(mutex_);
  int64_t changes_ ABSL_GUARDED_BY(mutex_) = 0;
  mutable std::map<std::string, KnownCost, std::less<>> costs_ ABSL_GUARDED_BY(mutex_);  // by mesh
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_LINK_TABLE_H_
