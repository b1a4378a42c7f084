// A cache of plans: a program is planned once for operands with the same layouts, on a mesh whose
// links are about the same.
#ifndef SHARDMESH_SERVER_STEPS_PLANNER_H_
#define SHARDMESH_SERVER_STEPS_PLANNER_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "program/program.h"
#include "program/step_plan.h"

namespace shardmesh::server {

// A plan together with its bytes as workers get them, and their SHA-256, which identifies it.
struct PreparedPlan {
  Plan plan;
  std::string bytes;
  std::string hash;
};

struct PlannerOptions {
  // Most bytes of cached plans. Beyond it the planner evicts plans of the caller with the most
  // bytes, the least recently used first. A caller that plans without end therefore evicts only its
  // own plans.
  int64_t max_bytes = int64_t{64} << 20;
};

// Thread-safe.
class Planner {
 public:
  explicit Planner(PlannerOptions options = {}) : options_(options) {}

  // Returns the plan of a program, from the cache if possible.
  //
  // A cached plan keeps the link figures that it was made with. It is found while they are close to
  // the current ones (AreAlike), so small differences between measurements never change a call's
  // algorithm. `target.preferred` is always the same. A new plan counts against `caller`
  // (rpc::Caller::name); all callers find it. Errors: those of PlanProgram.
  absl::StatusOr<std::shared_ptr<const PreparedPlan>> Prepare(
      std::string_view caller, const Program& program, absl::Span<const ValueDescriptor> operands,
      const PlanTarget& target);

  // NOT_FOUND: no plan with that hash is remembered; send the program again.
  absl::StatusOr<std::shared_ptr<const PreparedPlan>> Find(std::string_view hash);

  int64_t size_bytes() const;

 private:
  struct Entry {
    Program program;
    std::vector<ValueDescriptor> operands;
    LinkCost links;
    std::shared_ptr<const PreparedPlan> prepared;
    std::string caller;
    size_t digest = 0;
    int64_t bytes = 0;
  };
  using Entries = std::list<Entry>;  // most recently requested first
  struct OfCaller {
    Entries entries;
    int64_t bytes = 0;
  };

  // Null: no plan is remembered.
  std::shared_ptr<const PreparedPlan> Known(size_t digest, const Program& program,
                                            absl::Span<const ValueDescriptor> operands,
                                            const PlanTarget& target)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AskedFor(Entries::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget(Entries::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const PlannerOptions options_;
  mutable absl::Mutex mutex_;
  std::map<std::string, OfCaller, std::less<>> callers_ ABSL_GUARDED_BY(mutex_);
  // Indexes of the entries: by a digest of the question, and by the plan's hash. Two questions may
  // have one plan.
  absl::flat_hash_map<size_t, std::vector<Entries::iterator>> by_question_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, std::vector<Entries::iterator>> by_hash_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_PLANNER_H_
