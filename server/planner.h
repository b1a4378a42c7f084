// Plans, remembered: the same program over operands that lie the same way, on a mesh whose links
// are about the same, is planned once.
#ifndef SHARDMESH_SERVER_PLANNER_H_
#define SHARDMESH_SERVER_PLANNER_H_

#include <cstddef>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "tensor/plan.h"
#include "tensor/program.h"

namespace shardmesh::server {

// A plan together with its bytes as workers get them, and their SHA-256 by which it is known.
struct PreparedPlan {
  Plan plan;
  std::string bytes;
  std::string hash;
};

// Thread-safe.
class Planner {
 public:
  // Plans that are remembered; the one that was not asked for longest goes first.
  static constexpr size_t kCapacity = 64;

  // A plan is remembered with what the links were when it was made, and is found while they are
  // about that (AreAlike): measurements that differ a little never change the algorithm of a call
  // from one to the next. `target.preferred` is always the same. Errors: those of PlanProgram.
  absl::StatusOr<std::shared_ptr<const PreparedPlan>> Prepare(
      const Program& program, absl::Span<const ValueDescriptor> operands, const PlanTarget& target);

  // NOT_FOUND: no plan of that hash is remembered; compile the program again.
  absl::StatusOr<std::shared_ptr<const PreparedPlan>> Find(std::string_view hash);

 private:
  struct Entry {
    Program program;
    std::vector<ValueDescriptor> operands;
    LinkCost links;
    std::shared_ptr<const PreparedPlan> prepared;
  };

  absl::Mutex mutex_;
  std::list<Entry> entries_ ABSL_GUARDED_BY(mutex_);  // asked for last, first
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_PLANNER_H_
