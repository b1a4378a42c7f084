// Cancellations of an operation that come before OperationTable::Begin has returned its id.
#ifndef SHARDMESH_SERVER_REPAIR_EARLY_CANCEL_H_
#define SHARDMESH_SERVER_REPAIR_EARLY_CANCEL_H_

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace shardmesh::server {

// The cancellations of an operation whose id its owner does not know yet. Thread-safe.
class EarlyCancel {
 public:
  // Returns the operation's id. If it is not known, keeps the reason and returns an empty text.
  std::string IdOrNote(const absl::Status& reason) {
    absl::MutexLock lock(&mutex_);
    if (id_.empty()) reason_ = reason;
    return id_;
  }
  // Sets the id. Returns the reason of an earlier cancellation; OK if there was none.
  absl::Status Begun(const std::string& id) {
    absl::MutexLock lock(&mutex_);
    id_ = id;
    return reason_;
  }

 private:
  absl::Mutex mutex_;
  std::string id_ ABSL_GUARDED_BY(mutex_);
  absl::Status reason_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_REPAIR_EARLY_CANCEL_H_
