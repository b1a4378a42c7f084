// Orders to workers that wait for their answers: numbers, limits, and the streams that carried
// them.
#ifndef SHARDMESH_SERVER_ATTACH_ORDER_TABLE_H_
#define SHARDMESH_SERVER_ATTACH_ORDER_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/attach/worker_stream.h"

namespace shardmesh::server {

// The orders of one kind. `Waiting` is what waits for an order's answer: a callback, or a struct of
// callbacks. The table calls none of them, and destroys them without its lock. Thread-safe.
template <typename Waiting>
class OrderTable {
 public:
  // Registers an order under the next number, and sends the message `encode(number)` that carries
  // it. Moves from `*waiting` and returns the number. Returns nullopt, and leaves `*waiting` as it
  // is, if `limit` orders wait already.
  template <typename Encode>
  std::optional<int64_t> Register(WorkerStream* stream, Waiting* waiting, size_t limit,
                                  const Encode& encode) {
    absl::MutexLock lock(&mutex_);
    if (orders_.size() >= limit) return std::nullopt;
    orders_.emplace(++last_number_, Order{.stream = stream, .waiting = std::move(*waiting)});
    stream->Send(encode(last_number_));
    return last_number_;
  }

  // Removes and returns what waits for the order's answer. nullopt: no such order waits, or the
  // order went over another stream.
  std::optional<Waiting> Take(const WorkerStream* stream, int64_t number) {
    absl::MutexLock lock(&mutex_);
    const auto found = orders_.find(number);
    if (found == orders_.end() || found->second.stream != stream) return std::nullopt;
    std::optional<Waiting> taken = std::move(found->second.waiting);
    orders_.erase(found);
    return taken;
  }

  // Calls `visit` under the lock with what waits for the order's answer, if the order waits and
  // went over this stream.
  template <typename Visit>
  void Look(const WorkerStream* stream, int64_t number, const Visit& visit) const {
    absl::MutexLock lock(&mutex_);
    const auto found = orders_.find(number);
    if (found != orders_.end() && found->second.stream == stream) visit(found->second.waiting);
  }

  // Frees the memory of an order whose answer nobody wants any more.
  void Forget(int64_t number) {
    // Declared before `lock`, so that the callback is destroyed after the lock is released.
    typename decltype(orders_)::node_type forgotten;
    absl::MutexLock lock(&mutex_);
    forgotten = orders_.extract(number);
  }

  // Removes and returns what waits for the answers of this stream, by rising number.
  std::vector<Waiting> TakeAllOf(const WorkerStream* stream) {
    std::vector<Waiting> taken;
    absl::MutexLock lock(&mutex_);
    for (auto order = orders_.begin(); order != orders_.end();) {
      const auto next = std::next(order);
      if (order->second.stream == stream) {
        taken.push_back(std::move(order->second.waiting));
        orders_.erase(order);
      }
      order = next;
    }
    return taken;
  }

 private:
  struct Order {
    WorkerStream* stream = nullptr;
    Waiting waiting;
  };

  mutable absl::Mutex mutex_;
  std::map<int64_t, Order> orders_ ABSL_GUARDED_BY(mutex_);  // by number
  int64_t last_number_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_ATTACH_ORDER_TABLE_H_
