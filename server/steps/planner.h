// A cache of plans. A program is planned once for operands with the same shapes and layouts, on a
// mesh whose links have about the same speed. A program with a symbolic dimension is so planned
// once for each length; its hash finds it as long as one of these plans is cached.
#ifndef SHARDMESH_SERVER_STEPS_PLANNER_H_
#define SHARDMESH_SERVER_STEPS_PLANNER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
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
#include "program/plan_forecast.h"
#include "program/program.h"
#include "program/step_plan.h"
#include "status/lru_cache.h"

namespace shardmesh::server {

// A program with a symbolic dimension, and the hash that clients give instead of it.
struct SymbolicProgram {
  Program program;
  std::string hash;  // SHA-256 of `program:` and the program's message
};

// A plan, its bytes in the form that workers get, and the SHA-256 of the bytes, which identifies
// the plan.
struct PreparedPlan {
  Plan plan;
  std::string bytes;
  std::string hash;
  // The figures that the plan was made with.
  LinkCost links = {};
  KernelRates kernels = {};
  StepForecast forecast = {};  // of one run, with these figures
  // The program of which this is the plan for one length; null: the program has no symbolic
  // dimension.
  std::shared_ptr<const SymbolicProgram> symbolic = nullptr;
};

struct PlannerOptions {
  // Maximum number of bytes of cached plans. Above this limit the planner evicts the least recently
  // used plans of the caller with the most bytes. A caller with many different plans therefore
  // evicts only its own plans.
  int64_t max_bytes = int64_t{64} << 20;
};

// Thread-safe.
class Planner {
 public:
  explicit Planner(PlannerOptions options = {}) : options_(options) {}

  // Returns the plan of a program, from the cache if possible.
  //
  // A cached plan keeps the figures of links and kernels that it was made with. The plan is reused
  // while these figures are close to the current ones (AreAlike), and both are measured or both are
  // the defaults. Small differences between
  // measurements therefore never change the algorithm of a call. `target.preferred` must be the
  // same in all calls. A new plan counts against `caller` (rpc::Caller::name); all callers can
  // reuse it. Errors: those of PlanProgram. If the program has a symbolic dimension, the plan is
  // that for the length of the operands; errors also those of LengthOf
  // (program/graph/symbolic_program.h).
  absl::StatusOr<std::shared_ptr<const PreparedPlan>> Prepare(
      std::string_view caller, const Program& program, absl::Span<const ValueDescriptor> operands,
      const PlanTarget& target);

  // Returns a cached plan by its hash. If Prepare has returned the same plan with several figures,
  // returns the one that it returned last. NOT_FOUND: the plan is no longer cached; the client must
  // send the program again.
  absl::StatusOr<std::shared_ptr<const PreparedPlan>> Find(std::string_view hash);

  // Returns the program with a symbolic dimension that has this hash; null if no plan of it is
  // cached.
  std::shared_ptr<const SymbolicProgram> FindSymbolic(std::string_view hash) const;

  int64_t size_bytes() const;

 private:
  struct Entry {
    Program program;  // empty if `prepared->symbolic` is set, which has it then
    std::vector<ValueDescriptor> operands;
    std::shared_ptr<const PreparedPlan> prepared;
    std::string caller;
    size_t digest = 0;
  };
  // These caches have no limit of their own, because the planner limits the plans of all callers
  // together.
  using Plans = LruCache<const Entry*, std::unique_ptr<const Entry>>;
  using Callers = std::map<std::string, Plans, std::less<>>;

  // Returns a cached plan for this program with these operands and this target; null if there is
  // none.
  std::shared_ptr<const PreparedPlan> Known(size_t digest, const Program& program,
                                            absl::Span<const ValueDescriptor> operands,
                                            const PlanTarget& target)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the entry's plan. Marks the entry as its caller's most recently used one, and makes it
  // the last one of its hash.
  std::shared_ptr<const PreparedPlan> Use(const Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetOldestOf(Callers::iterator caller) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const PlannerOptions options_;
  mutable absl::Mutex mutex_;
  Callers callers_ ABSL_GUARDED_BY(mutex_);  // only callers that have cached plans
  // Indexes of the entries: by a digest of program, operands and mesh, and by the plan's hash.
  // Different programs can have the same plan, and so can figures that differ much. The entry of a
  // hash that was added or used last stands last.
  absl::flat_hash_map<size_t, std::vector<const Entry*>> by_question_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, std::vector<const Entry*>> by_hash_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, std::vector<const Entry*>> by_symbolic_hash_
      ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_PLANNER_H_
