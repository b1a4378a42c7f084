// Questions answered in the caller's process, by the same code as in a coordinator.
#ifndef SHARDMESH_CLIENT_LOCAL_LOCAL_QUESTIONS_H_
#define SHARDMESH_CLIENT_LOCAL_LOCAL_QUESTIONS_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/mesh_client.h"

namespace shardmesh::server {
class QuestionServer;
}  // namespace shardmesh::server

namespace shardmesh::client {

// A MeshClient without a cluster. It answers questions about layouts, rules, meshes and plans. It
// keeps stored definitions in memory as long as this object exists; a new object has no
// definitions. Calls that need a cluster (puts, gets, computations, status) fail with
// UNIMPLEMENTED.
//
// Example:
//   auto local = LocalQuestions::Start();
//   auto answer = (*local)->client().layouts().ResolveSpec(
//       {.axes = axes, .mesh = mesh, .shape = shape});
//
// Thread-safe. No call may be in progress when the destructor begins.
class LocalQuestions {
 public:
  // Starts a server in this process. Errors of server::QuestionServer::Start.
  static absl::StatusOr<std::unique_ptr<LocalQuestions>> Start(
      const MeshClientOptions& options = {});
  ~LocalQuestions();
  LocalQuestions(const LocalQuestions&) = delete;
  LocalQuestions& operator=(const LocalQuestions&) = delete;

  // The client, which lives as long as this object.
  MeshClient& client() { return *client_; }

 private:
  LocalQuestions(std::unique_ptr<server::QuestionServer> server,
                 std::unique_ptr<MeshClient> client);

  const std::unique_ptr<server::QuestionServer> server_;
  const std::unique_ptr<MeshClient> client_;  // declared last: must be destroyed before the server
};

// Returns `status`, the result of a call of LocalQuestions::client(). If `status` says that a
// definition is missing, adds to the message that there is no cluster with stored definitions, and
// what to give instead. Code, reason and details do not change.
absl::Status ExplainMissingDefinition(const absl::Status& status);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_LOCAL_LOCAL_QUESTIONS_H_
