// Makes the services of questions from their shared parts.
#include "server/service/question_services.h"

#include <grpcpp/impl/service_type.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/service/question_calls.h"

namespace shardmesh::server {

std::vector<QuestionService> MakeQuestionServices(const QuestionOptions& options) {
  const auto calls = std::make_shared<QuestionCalls>(options);
  std::vector<QuestionService> services;
  const auto add = [&services](std::string name, std::unique_ptr<grpc::Service> service) {
    services.push_back({std::move(name), std::move(service)});
  };
  add("shardmesh.v1.ResolveService", MakeResolveService(calls));
  add("shardmesh.v1.LayoutService", MakeLayoutService(calls));
  add("shardmesh.v1.RuleService", MakeRuleService(calls));
  add("shardmesh.v1.MeshService", MakeMeshService(calls));
  add("shardmesh.v1.ReshardService", MakeReshardService(calls));
  add("shardmesh.compat.v1.CompatService", MakeCompatService(calls));
  return services;
}

}  // namespace shardmesh::server
