// Carries out the coordinator's orders to save a checkpoint together with other workers.
#ifndef SHARDMESH_WORKER_SAVE_SAVE_ORDERS_H_
#define SHARDMESH_WORKER_SAVE_SAVE_ORDERS_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "shardmesh/internal/v1/attach_service.pb.h"
#include "worker/save/save_folder.h"
#include "worker/save/save_pace.h"
#include "worker/save/write_root.h"
#include "worker/store/shard_store.h"

namespace shardmesh::worker {

// Each save has a thread of its own, because a disk may be slow. The thread executes the save's
// orders in their order; EndSave also stops the order in progress. Thread-safe.
class SaveOrders {
 public:
  // The way back to the coordinator. Called on the thread of the save, and also after EndAll. Take
  // calls `answer` if no thread can be started.
  struct Reply {
    std::function<void(internal::v1::SaveAnswer)> answer;
    std::function<void(internal::v1::SaveProgress)> progress;
  };

  // `store` outlives this object.
  SaveOrders(ShardStore* store, WriteRoots roots, SavePace::Options pauses = {});
  // Ends all saves and waits for their threads.
  ~SaveOrders();
  SaveOrders(const SaveOrders&) = delete;
  SaveOrders& operator=(const SaveOrders&) = delete;

  // Queues an order. Calls `reply.answer` once. RESOURCE_EXHAUSTED, in the answer: the host allows
  // no more threads.
  void Take(internal::v1::SaveOrder order, Reply reply);

  // Ends all saves: their coordinator is gone. Does not wait.
  void EndAll();

 private:
  struct Save;

  // RESOURCE_EXHAUSTED: the host allows no more threads.
  absl::StatusOr<Save*> FindOrBegin(const std::string& save_id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Answers an order with its result.
  static void Answer(const internal::v1::SaveOrder& order, internal::v1::SaveAnswer answer,
                     const absl::Status& status, const Reply& reply);
  // Runs on the thread of the save, which ends before the members that it uses.
  void Execute(Save* save, const internal::v1::SaveOrder& order, const Reply& reply) const;

  ShardStore* const store_;
  const WriteRoots roots_;
  const SavePace::Options pauses_;
  absl::Mutex mutex_;
  // By id. An ended save stays until a later order comes.
  std::map<std::string, std::unique_ptr<Save>> saves_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SAVE_SAVE_ORDERS_H_
