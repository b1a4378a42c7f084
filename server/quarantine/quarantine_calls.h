// Answers to clients' calls about tiles in quarantine: list, restore, drop.
#ifndef SHARDMESH_SERVER_QUARANTINE_QUARANTINE_CALLS_H_
#define SHARDMESH_SERVER_QUARANTINE_QUARANTINE_CALLS_H_

#include <memory>

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

// Ends a call whose client has gone: it then ends with CANCELLED, at once where it waits for a
// worker. A worker that was asked to drop tiles may drop them nevertheless. A restore ends so only
// while it asks who has tiles; once tiles are on their way back it goes on to its end.
// Thread-safe.
class QuarantineStop {
 public:
  void Cancel();

  // For the call: has `on_cancel`, in place of the one before, called once on Cancel, without a
  // lock; at once where that was before.
  void Set(absl::AnyInvocable<void() &&> on_cancel);

 private:
  absl::Mutex mutex_;
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  absl::AnyInvocable<void() &&> on_cancel_ ABSL_GUARDED_BY(mutex_);
};
using QuarantineStopPtr = std::shared_ptr<QuarantineStop>;

// Asks the attached workers, one after the other. Request and response outlive the call of `done`,
// which comes once, on any thread; the errors are in cluster_service.proto. What `context` names
// and the hub outlive it too.
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
