// The coordinator's answers to questions, served within a process: no port, no cluster, no disk.
#ifndef SHARDMESH_SERVER_QUESTION_SERVER_H_
#define SHARDMESH_SERVER_QUESTION_SERVER_H_

#include <memory>

#include "absl/status/statusor.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace shardmesh::server {

// Serves CatalogService and the services of questions like a coordinator that was just started:
// there are no definitions and no arrays. Definitions are kept in memory, and end with the server.
// Other services' calls return UNIMPLEMENTED. Limits of messages are those of a coordinator.
//
// Serves from Start on; the destructor cancels running calls. Thread-safe.
class QuestionServer {
 public:
  // Errors: those of ArrayRegistry::Open, DefinitionStore::Open and rpc::ServerLifecycle::Start.
  static absl::StatusOr<std::unique_ptr<QuestionServer>> Start();
  virtual ~QuestionServer() = default;

  // A channel to the server. Its calls end before the server: gRPC 1.51 crashes on a call that
  // begins on such a channel after its server has stopped.
  virtual std::shared_ptr<grpc::Channel> MakeChannel() = 0;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_QUESTION_SERVER_H_
