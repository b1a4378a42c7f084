// Orders to workers to save a checkpoint, and the answers.
#ifndef SHARDMESH_SERVER_ATTACH_SAVE_ACCESS_H_
#define SHARDMESH_SERVER_ATTACH_SAVE_ACCESS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "server/attach/order_table.h"
#include "server/attach/worker_stream.h"

namespace shardmesh::internal::v1 {
class SaveAnswer;
class SaveOrder;
class SaveProgress;
}  // namespace shardmesh::internal::v1

namespace shardmesh::server {

using SaveAnswered = absl::AnyInvocable<void(absl::StatusOr<internal::v1::SaveAnswer>) &&>;
// Gets the bytes that the worker has written for the order so far.
using SaveProgressed = std::function<void(int64_t done_bytes)>;

// Sends orders of saves to attached workers. Thread-safe.
class SaveAccess {
 public:
  virtual ~SaveAccess() = default;

  // Sends the worker an order, under a number of its own. Calls `answered` once, without a lock,
  // perhaps before this function returns; before that, calls `progressed` any number of times, if
  // it is not null. UNAVAILABLE (WORKER_LOST): the worker is not attached, or its stream ended
  // before the answer.
  virtual void OrderSave(const std::string& identity, const internal::v1::SaveOrder& order,
                         SaveProgressed progressed, SaveAnswered answered) = 0;
};

// The orders of saves that wait for the answers of workers. Thread-safe.
class SaveOrderTable {
 public:
  void Send(WorkerStream* stream, const internal::v1::SaveOrder& order, SaveProgressed progressed,
            SaveAnswered answered);
  // Pass on what a worker reports, if the order went over this stream and waits for its answer.
  void Progress(const WorkerStream* stream, const internal::v1::SaveProgress& progress);
  void Answer(const WorkerStream* stream, const internal::v1::SaveAnswer& answer);

  // Removes and returns the callbacks of the orders that went over this stream. Afterwards the
  // caller calls each with the error NotAttached, without holding its own lock.
  std::vector<SaveAnswered> TakeAllOf(const WorkerStream* stream);

 private:
  struct Waiting {
    SaveProgressed progressed;
    SaveAnswered answered;
  };

  OrderTable<Waiting> table_;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_ATTACH_SAVE_ACCESS_H_
