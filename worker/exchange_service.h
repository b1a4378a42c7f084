// The accepting end of Exchange streams.
#ifndef SHARDMESH_WORKER_EXCHANGE_SERVICE_H_
#define SHARDMESH_WORKER_EXCHANGE_SERVICE_H_

#include <functional>
#include <memory>

#include "worker/exchange_stream.h"

namespace grpc {
class ServerBuilder;
class Service;
}  // namespace grpc

namespace shardmesh::worker {

// A service with a completion queue and a thread of its own. Thread-safe.
class ExchangeService {
 public:
  // Makes the handler of a stream that was accepted, on the service's thread; OnOpen follows.
  using Accept = std::function<std::shared_ptr<ExchangeStream::Handler>(
      std::shared_ptr<ExchangeStream> stream)>;

  static std::unique_ptr<ExchangeService> Create(Accept accept);
  // AwaitIdle has returned, and OnClosed was called for every stream.
  virtual ~ExchangeService() = default;

  // Before the server is built.
  virtual void Customize(grpc::ServerBuilder& builder) = 0;
  virtual grpc::Service* service() = 0;
  // Begins to accept; the server runs.
  virtual void Start() = 0;

  // Accepts no more but the stream that may be coming in; to be called while the server is there.
  virtual void StopAccepting() = 0;
  // Returns when no further stream will come; after StopAccepting, and once the server has stopped.
  virtual void AwaitIdle() = 0;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_SERVICE_H_
