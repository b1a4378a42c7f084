// Answers to clients' calls about tiles in quarantine (put aside by workers): list, restore, drop.
#ifndef SHARDMESH_SERVER_QUARANTINE_QUARANTINE_CALLS_H_
#define SHARDMESH_SERVER_QUARANTINE_QUARANTINE_CALLS_H_

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/attach/coordinator_parts.h"
#include "server/attach/quarantine_orders.h"

namespace shardmesh::v1 {
class DropQuarantinedRequest;
class DropQuarantinedResponse;
class ListQuarantineRequest;
class ListQuarantineResponse;
class RestoreQuarantinedRequest;
class RestoreQuarantinedResponse;
}  // namespace shardmesh::v1

namespace shardmesh::server {

// Ends a call whose client has gone or gives up, with CANCELLED: at once if the call is waiting for
// the answer of a worker. A worker that has an order to drop tiles may still drop them. A restore
// ends early only while it asks which workers have tiles. Once workers take tiles back, the restore
// continues to its end. Thread-safe.
class QuarantineStop {
 public:
  void Cancel();

  // Sets or replaces the callback of Cancel. Only the code that runs the call uses this function.
  // Cancel runs the callback once, without a lock. If Cancel was called before, Set runs it at
  // once.
  void Set(absl::AnyInvocable<void() &&> on_cancel);

  // Tells for the answer of which worker the call waits; empty: of none, or of one that takes tiles
  // back. The code that runs the call sets it.
  std::string awaited() const;
  void SetAwaited(std::string identity);

 private:
  mutable absl::Mutex mutex_;
  std::string awaited_ ABSL_GUARDED_BY(mutex_);
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  absl::AnyInvocable<void() &&> on_cancel_ ABSL_GUARDED_BY(mutex_);
};
using QuarantineStopPtr = std::shared_ptr<QuarantineStop>;

// The functions below ask the attached workers, one after the other. Each function calls `done`
// once, on any thread. Request, response, the hub and all objects of `context` must live until that
// call. cluster_service.proto lists the errors.
using QuarantineDone = absl::AnyInvocable<void(const absl::Status&) &&>;

void ListQuarantine(const CoordinatorParts& context, QuarantineAccess* hub,
                    const v1::ListQuarantineRequest* request, v1::ListQuarantineResponse* response,
                    const QuarantineStopPtr& stop, QuarantineDone done);
void RestoreQuarantined(const CoordinatorParts& context, QuarantineAccess* hub,
                        const v1::RestoreQuarantinedRequest* request,
                        v1::RestoreQuarantinedResponse* response, const QuarantineStopPtr& stop,
                        QuarantineDone done);
void DropQuarantined(const CoordinatorParts& context, QuarantineAccess* hub,
                     const v1::DropQuarantinedRequest* request,
                     v1::DropQuarantinedResponse* response, const QuarantineStopPtr& stop,
                     QuarantineDone done);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_QUARANTINE_QUARANTINE_CALLS_H_
