// Gives meshes another shape: moves the arrays to an auxiliary mesh of that shape, changes the
// mesh, and moves the arrays back.
#ifndef SHARDMESH_SERVER_RESHARD_RESIZE_RUNNER_H_
#define SHARDMESH_SERVER_RESHARD_RESIZE_RUNNER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/reshard/reshard_planning.h"
#include "server/reshard/reshard_runner.h"
#include "server/reshard/resize_plan.h"
#include "server/state/array_registry.h"
#include "server/state/definitions.h"
#include "server/state/operation_table.h"
#include "server/state/session.h"
#include "sharding/mesh_definition.h"

namespace shardmesh::server {

// The objects that resizes use. All of them outlive the runner.
struct ResizeParts {
  ReshardPlanParts plan = {};
  ArrayRegistry* registry = nullptr;
  DefinitionStore* definitions = nullptr;
  SessionTable* sessions = nullptr;
  OperationTable* operations = nullptr;
  ReshardRunner* reshards = nullptr;
  // Returns a mesh as DefinitionStore takes it: a serialised v1::EntryValue.
  std::function<std::string(const MeshDefinition&)> encode = nullptr;
};

// A resize that has begun, or that was only planned.
struct BegunResize {
  std::string operation_id = {};  // empty: only planned, or nothing to do
  PlannedResize plan = {};
};

// Resizes meshes. Each resize runs on a thread of its own:
//
// clang-format off
//   Begin -> planned -> [auxiliary mesh defined] -> arrays move to it -> [mesh changed]
//         -> arrays move back -> [auxiliary mesh deleted] -> done
// clang-format on
//
// Before arrays move, those with partial sums are resharded on their own mesh, which adds them up.
//
// The steps in brackets are one commit of the store each. All state of a resize is in the store:
// the two meshes, and the mesh that each array lies on. After an end of the coordinator, a new
// request therefore goes on, or goes back to the old shape.
//
// The cancellation or a failure before the mesh is changed moves the arrays back to the mesh as it
// was, and deletes the auxiliary mesh. After the change a resize cannot be cancelled.
//
// Thread-safe.
class ResizeRunner {
 public:
  // Bounds the threads.
  static constexpr size_t kMaxRunning = 8;
  // Requests that are remembered for repetitions; the oldest are dropped first.
  static constexpr size_t kMaxRemembered = 1'000;
  // How long a resize waits for sessions and steps to release the last arrays of a mesh.
  static constexpr absl::Duration kHoldersTimeout = absl::Seconds(30);
  // How long a resize waits until the workers know a mesh.
  static constexpr absl::Duration kReadyTimeout = absl::Seconds(10);

  explicit ResizeRunner(ResizeParts parts) : parts_(std::move(parts)) {}
  // Stops all resizes and waits for their ends.
  ~ResizeRunner();
  ResizeRunner(const ResizeRunner&) = delete;
  ResizeRunner& operator=(const ResizeRunner&) = delete;

  // Plans and checks the call and, unless it has `validate_only`, begins the resize. With
  // `validate_only`, refused arrays and too little memory are no errors. Takes long with many
  // arrays: do not call it on a gRPC thread. Errors: those of ArrayService.ResizeMesh.
  absl::StatusOr<BegunResize> Begin(const ResizeCall& call,
                                    const std::function<bool()>& is_cancelled);

  // Ends all resizes with `reason`, wherever they are, and begins no more. For a coordinator that
  // stops.
  void Stop(const absl::Status& reason);
  // Waits for the ends of all resizes, and joins their threads. Call it after Stop, when no Begin
  // runs. From then on no thread of the runner uses its parts.
  void Join();

 private:
  // One resize.
  class Run;
  struct Running {
    std::shared_ptr<Run> run;
    std::string mesh_id;
    std::vector<MeshAxis> axes;
    BegunResize begun;
    std::thread thread;
  };
  struct Remembered {
    std::string fingerprint;
    BegunResize begun;
  };

  // Returns the answer of an earlier request that this one repeats, or that resizes the mesh to the
  // same shape now; nullopt if there is none. ABORTED (MESH_IN_USE): the mesh is being resized to
  // another shape, or by a resize that was cancelled or goes back.
  absl::StatusOr<std::optional<BegunResize>> FindKnown(const ResizeCall& call,
                                                       const std::string& key);
  // Joins the threads of resizes that are over. RESOURCE_EXHAUSTED (OVERLOADED): kMaxRunning are
  // not.
  absl::Status MakeRoom();

  const ResizeParts parts_;
  absl::Mutex begin_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);  // held by Begin
  absl::Mutex mutex_;                                     // held only for short times
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::unique_ptr<Running>> running_ ABSL_GUARDED_BY(mutex_);  // by id
  std::map<std::string, Remembered> requests_ ABSL_GUARDED_BY(mutex_);  // by request key
  std::deque<std::string> request_order_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_RESHARD_RESIZE_RUNNER_H_
