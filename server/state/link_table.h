// How fast the links between workers are, as their heartbeats told of it.
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
  // report, or a new epoch, O(workers of the mesh, and the links of those that reported, came or
  // went); otherwise O(1). More only where a figure that was the worst of many workers goes.
  LinkCost CostOf(const MembershipView& view, std::string_view mesh_id) const;

 private:
  struct Report {
    uint64_t incarnation = 0;
    int64_t change = 0;                                           // the one that brought it
    std::map<std::string, rpc::MeasuredLink, std::less<>> links;  // by peer
  };
  // The worst of some figures, the largest.
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
    // False: what is the worst now is not known.
    bool Remove(double value) { return count_ > 0 && (value < value_ || --count_ > 0); }
    double value() const { return value_; }

   private:
    double value_ = 0;
    int64_t count_ = 0;  // of figures that are as bad
  };
  // What one report says of a mesh.
  struct Row {
    int64_t change = 0;  // of the report; 0: to be looked at anew
    int64_t links = 0;   // that count
    int64_t not_shared = 0;
    Worst latency_seconds = {};
    Worst seconds_per_byte = {};

    void Add(const rpc::MeasuredLink& link);
    // False: the row is to be looked at anew.
    bool Remove(const rpc::MeasuredLink& link);
  };
  // A mesh's cost, and what it is made of, in one epoch.
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
  // Takes over who is alive in `view`: the rows of who came and went are to be looked at anew, and
  // their links are added to or taken from the rows of others.
  void TakeEpoch(const MembershipView& view, KnownCost* known) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

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

#endif  // SHARDMESH_SERVER_STATE_LINK_TABLE_H_
