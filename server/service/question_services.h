// Serves questions about layouts from the newest snapshot of the definitions: ResolveService,
// LayoutService, RuleService, MeshService, ReshardService and compat.v1's CompatService.
#ifndef SHARDMESH_SERVER_SERVICE_QUESTION_SERVICES_H_
#define SHARDMESH_SERVER_SERVICE_QUESTION_SERVICES_H_

#include <grpcpp/impl/service_type.h>

#include <memory>
#include <string>
#include <vector>

#include "server/state/array_registry.h"
#include "server/state/definitions.h"

namespace shardmesh::rpc {
class Metrics;
}  // namespace shardmesh::rpc

namespace shardmesh::server {

class ArrayRegistry;
class QuestionCalls;

struct QuestionOptions {
  const DefinitionStore* definition_store = nullptr;
  // The cluster's arrays; null: there are none.
  const ArrayRegistry* registry = nullptr;
  // Exports the number of corrections by reason; may be null.
  rpc::Metrics* metrics = nullptr;
};

struct QuestionService {
  std::string name;  // in full
  std::unique_ptr<grpc::Service> service;
};

// Makes all question services, which share a cache and threads. Thread-safe. The objects that the
// options point to outlive the services.
std::vector<QuestionService> MakeQuestionServices(const QuestionOptions& options);

// One function for each service, each in its own source file.
using SharedCalls = std::shared_ptr<QuestionCalls>;
std::unique_ptr<grpc::Service> MakeResolveService(SharedCalls calls);
std::unique_ptr<grpc::Service> MakeLayoutService(SharedCalls calls);
std::unique_ptr<grpc::Service> MakeRuleService(SharedCalls calls);
std::unique_ptr<grpc::Service> MakeMeshService(SharedCalls calls);
std::unique_ptr<grpc::Service> MakeReshardService(SharedCalls calls);
std::unique_ptr<grpc::Service> MakeCompatService(SharedCalls calls);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SERVICE_QUESTION_SERVICES_H_
