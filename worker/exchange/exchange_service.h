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

// A service with a completion queue of its own, which its user polls. Thread-safe.
class ExchangeService {
 public:
  // Makes the handler of a stream that was accepted, on the thread that
  // polls; OnOpen follows.
  using Accept = std::function<std::shared_ptr<ExchangeStream::Handler>(
      std::shared_ptr<ExchangeStream> stream)>;

  static std::unique_ptr<ExchangeService> Create(Accept accept);
  // AwaitIdle has returned, OnClosed was called for every stream, and the queue is shut down and
  // empty.
  virtual ~ExchangeService() = default;

  // Before the server is built.
  virtual void Customize(grpc::ServerBuilder& builder) = 0;
  virtual grpc::Service* service() = 0;
  // For other streams as well; null before Customize.
  virtual grpc::CompletionQueue* queue() = 0;
  // Begins to accept; the server runs.
  virtual void Start() = 0;

  // Accepts no more but the stream that may be coming in; to be called while the server is there.
  virtual void StopAccepting() = 0;
  // Returns when no further stream will come; after StopAccepting, and once the server has stopped.
  virtual void AwaitIdle() = 0;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_EXCHANGE_SERVICE_H_
