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
#include "rpc/codec/measured_link.h"
#include "server/state/membership.h"

namespace shardmesh::server {

// The link of a pair, measured by one of the two.
struct WorkerLink {
  std::string identity;  // the worker that measured
  rpc::MeasuredLink measured;
};

// Keeps the last report of each attached worker. A link counts while the two measured processes are
// alive. Thread-safe.
class LinkTable {
 public:
  // Replaces the worker's last report.
  void Reported(std::string_view identity, uint64_t incarnation,
                std::vector<rpc::MeasuredLink> links);
  // Drops the report of a worker that is no longer alive.
  void Lost(std::string_view identity);

  // Returns the valid links between `lower` and those of these workers whose identities are above
  // it, sorted by identity; each pair once. Costs O(links of `lower`), however many workers there
  // are.
  std::vector<WorkerLink> LinksOf(const MembershipView& view, const std::string& lower,
                                  const std::set<std::string, std::less<>>& identities) const;

  // Returns the cost of links between ranks of a mesh, for the choice of algorithms. It has the
  // longest latency and the least bandwidth of all valid links, since a collective waits for the
  // slowest pair, and whether all share memory. Returns the default if there is no valid link or no
  // such mesh. After a report, or a new epoch, O(workers of the mesh, and the links of those that
  // reported, came or went); otherwise O(1). It costs more only when the removed figure was the
  // worst of many workers.
  LinkCost CostOf(const MembershipView& view, std::string_view mesh_id) const;

 private:
  struct Report {
    uint64_t incarnation = 0;
    int64_t change = 0;                                           // the change that brought it
    std::map<std::string, rpc::MeasuredLink, std::less<>> links;  // by peer
  };
  // The worst of several figures: the largest.
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
    // Returns false if the worst figure is no longer known.
    bool Remove(double value) { return count_ > 0 && (value < value_ || --count_ > 0); }
    double value() const { return value_; }

   private:
    double value_ = 0;
    int64_t count_ = 0;  // how many figures equal the worst
  };
  // One report's figures for a mesh.
  struct Row {
    int64_t change = 0;  // of the report; 0: recompute
    int64_t links = 0;   // that count
    int64_t not_shared = 0;
    Worst latency_seconds = {};
    Worst seconds_per_byte = {};

    void Add(const rpc::MeasuredLink& link);
    // Returns false if the row must be recomputed.
    bool Remove(const rpc::MeasuredLink& link);
  };
  // A mesh's cost in one epoch, with its parts.
  struct KnownCost {
    int64_t epoch = 0;
    int64_t changes = 0;  // when `cost` was made
    std::vector<std::string> identities = {};
    absl::flat_hash_map<std::string_view, size_t> ranks = {};  // of `identities`
    std::vector<uint64_t> incarnations = {};                   // by rank; 0: lost
    std::vector<Row> rows = {};                                // by rank
    LinkCost cost = {};
  };

  static Row RowOf(const KnownCost& known, size_t rank, const Report& report);
  // Applies the live workers of `view`: invalidates the rows of workers that came or went, and
  // updates the rows of others with their links.
  void TakeEpoch(const MembershipView& view, KnownCost* known) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // `identity` no longer reports a link to `peer`.
  void Forget(std::string_view peer, std::string_view identity)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::map<std::string, Report, std::less<>> reports_ ABSL_GUARDED_BY(mutex_);  // by identity
  // The workers that report a link to a worker, by the latter.
  std::map<std::string, std::set<std::string, std::less<>>, std::less<>> told_by_
      ABSL_GUARDED_BY(mutex_);
  int64_t changes_ ABSL_GUARDED_BY(mutex_) = 0;
  mutable std::map<std::string, KnownCost, std::less<>> costs_ ABSL_GUARDED_BY(mutex_);  // by mesh
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_LINK_TABLE_H_
