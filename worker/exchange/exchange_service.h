// The server side of Exchange streams: accepts the streams that peers dial.
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

// A gRPC service with its own completion queue. The owner polls this queue. Thread-safe.
class ExchangeService {
 public:
  // Returns the handler of an accepted stream. Called on the polling thread; the handler's OnOpen
  // follows.
  using Accept = std::function<std::shared_ptr<ExchangeStream::Handler>(
      std::shared_ptr<ExchangeStream> stream)>;

  static std::unique_ptr<ExchangeService> Create(Accept accept);
  // Requires that AwaitIdle has returned, that OnClosed was called for every stream, and that the
  // queue is shut down and empty.
  virtual ~ExchangeService() = default;

  // Adds the completion queue to the server. Call it before the server is built.
  virtual void Customize(grpc::ServerBuilder& builder) = 0;
  virtual grpc::Service* service() = 0;
  // Returns the completion queue, which other streams may use as well; null before Customize.
  virtual grpc::CompletionQueue* queue() = 0;
  // Begins to accept streams. Requires a running server.
  virtual void Start() = 0;

  // Accepts no more streams. A stream that is arriving at this moment may still be accepted.
  // Requires that the server exists.
  virtual void StopAccepting() = 0;
  // Waits until no further stream can arrive. Requires StopAccepting, and that the server has
  // stopped.
  virtual void AwaitIdle() = 0;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_EXCHANGE_SERVICE_H_
