// The accepting end of Exchange streams.
#ifndef SHARDMESH_WORKER_EXCHANGE_EXCHANGE_SERVICE_H_
#define SHARDMESH_WORKER_EXCHANGE_EXCHANGE_SERVICE_H_

#include <functional>
#include <memory>

#include "worker/exchange/exchange_stream.h"

namespace grpc {
class CompletionQueue;
class ServerBuilder;
class Service;
}  // namespace grpc

namespace shardmesh::worker {

// A service with its own completion queue, which its user polls. Thread-safe.
class ExchangeService {
 public:
  // Makes the handler of an accepted stream, on the polling thread; OnOpen follows.
  using Accept = std::function<std::shared_ptr<ExchangeStream::Handler>(
      std::shared_ptr<ExchangeStream> stream)>;

  static std::unique_ptr<ExchangeService> Create(Accept accept);
  // Requires that AwaitIdle has returned, OnClosed was called for every stream, and the queue is
  // shut down and empty.
  virtual ~ExchangeService() = default;

  // Call it before the server is built.
  virtual void Customize(grpc::ServerBuilder& builder) = 0;
  virtual grpc::Service* service() = 0;
  // Other streams may use the queue as well; null before Customize.
  virtual grpc::CompletionQueue* queue() = 0;
  // Begins to accept streams. Requires a running server.
  virtual void Start() = 0;

  // Accepts no more streams, except one that may be arriving. Requires that the server exists.
  virtual void StopAccepting() = 0;
  // Waits until no further stream can come. Requires StopAccepting, and that the server has
  // stopped.
  virtual void AwaitIdle() = 0;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_EXCHANGE_SERVICE_H_
