// Answers questions about layouts within a process, as a coordinator does: no port, no cluster, no
// disk.
#ifndef SHARDMESH_SERVER_QUESTION_SERVER_H_
#define SHARDMESH_SERVER_QUESTION_SERVER_H_

#include <memory>

#include "absl/status/statusor.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace shardmesh::server {

// Serves CatalogService and the question services like a coordinator that has just started: there
// are no definitions and no arrays. Definitions live in memory, until the server is destroyed.
// Calls of other services return UNIMPLEMENTED. Message limits are those of a coordinator.
//
// Serves from Start until the destructor, which cancels running calls. Thread-safe.
class QuestionServer {
 public:
  // Errors: those of ArrayRegistry::Open, DefinitionStore::Open and rpc::ServerLifecycle::Start.
  static absl::StatusOr<std::unique_ptr<QuestionServer>> Start();
  virtual ~QuestionServer() = default;

  // Returns a channel to the server. All calls on the channel must end before the server ends: gRPC
  // 1.51 crashes on a call that begins on such a channel after its server has stopped.
  virtual std::shared_ptr<grpc::Channel> MakeChannel() = 0;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_QUESTION_SERVER_H_
