// Questions to workers for digests of their tiles, and the answers.
#ifndef SHARDMESH_SERVER_ATTACH_DIGEST_ORDERS_H_
#define SHARDMESH_SERVER_ATTACH_DIGEST_ORDERS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "server/attach/order_table.h"
#include "server/attach/worker_stream.h"
#include "server/content/digest_transport.h"

namespace shardmesh::server {

// The questions that wait for the answers of workers. Thread-safe.
class DigestOrders {
 public:
  using TilesDigested = DigestTransport::TilesDigested;

  // Maximum number of questions that wait for answers. A put has ContentCheck::kOrders for each
  // worker at a time.
  static constexpr size_t kMaxOrders = 10'000;

  // Sends the question and moves from `*digested`. Returns the question's number.
  // RESOURCE_EXHAUSTED (OVERLOADED), with a retry delay: kMaxOrders questions wait for answers. In
  // that case `*digested` is unchanged.
  absl::StatusOr<int64_t> Send(WorkerStream* stream, const std::vector<WantedDigest>& tiles,
                               TilesDigested* digested);
  // Calls `digested` of the question, if the question went over this stream and still waits.
  void Answer(const WorkerStream* stream, int64_t number, const DigestTransport::Digests& digests);
  void Forget(int64_t number) { table_.Forget(number); }
  // Removes and returns the callbacks of the questions that went over this stream. Afterwards the
  // caller calls each with the error NotAttached, without holding its own lock.
  std::vector<TilesDigested> TakeAllOf(const WorkerStream* stream) {
    return table_.TakeAllOf(stream);
  }

 private:
  OrderTable<TilesDigested> table_;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_ATTACH_DIGEST_ORDERS_H_
