// Wires the question services to a store in memory.
#include "server/question_server.h"

#include <grpcpp/channel.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/server.h>
#include <grpcpp/support/channel_arguments.h>

#include <string>
#include <vector>

#include "process/clock.h"
#include "rpc/call.h"
#include "rpc/server_lifecycle.h"
#include "server/service/catalog_service.h"
#include "server/service/question_services.h"
#include "server/state/array_registry.h"
#include "server/state/definitions.h"
#include "server/store/local_store.h"
#include "status/status_macros.h"

namespace shardmesh::server {
namespace {

class Server final : public QuestionServer {
 public:
  ~Server() override {
    lifecycle_.reset();  // cancels running calls and waits until they end
    clock_.Stop();
  }

  absl::Status Start();

  std::shared_ptr<grpc::Channel> MakeChannel() override {
    grpc::ChannelArguments args;
    args.SetMaxReceiveMessageSize(static_cast<int>(rpc::kMaxControlMessageBytes));
    args.SetMaxSendMessageSize(static_cast<int>(rpc::kMaxControlMessageBytes));
    return lifecycle_->server().InProcessChannel(args);
  }

 private:
  // Each of these members depends only on members above it. Members are destroyed in reverse order.
  RealClock clock_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<ArrayRegistry> registry_;
  std::unique_ptr<DefinitionStore> definition_store_;
  std::vector<QuestionService> questions_;
  StreamingService catalog_;
  std::unique_ptr<rpc::ServerLifecycle> lifecycle_;
};

absl::Status Server::Start() {
  store_ = CreateMemoryStore({.history = DefinitionHistory()});
  SHARDMESH_ASSIGN_OR_RETURN(
      registry_, ArrayRegistry::Open(store_.get(), &clock_,
                                     [](const std::string&, const std::vector<std::string>&) {}));
  SHARDMESH_ASSIGN_OR_RETURN(definition_store_,
                             DefinitionStore::Open(store_.get(), &clock_, &registry_->requests()));
  questions_ = MakeQuestionServices(
      {.definition_store = definition_store_.get(), .registry = registry_.get()});
  catalog_ = MakeCatalogService(definition_store_.get(), registry_.get(), /*gate=*/nullptr);
  rpc::ServerOptions server;
  server.address.clear();
  server.health = false;
  server.on_drain = [this] { catalog_.end_streams(); };
  std::vector<rpc::NamedService> services = {
      {"shardmesh.v1.CatalogService", catalog_.service.get()}};
  for (const QuestionService& questions : questions_) {
    services.push_back({questions.name, questions.service.get()});
  }
  SHARDMESH_ASSIGN_OR_RETURN(lifecycle_, rpc::ServerLifecycle::Start(server, services));
  lifecycle_->SetReady(true);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<QuestionServer>> QuestionServer::Start() {
  auto server = std::make_unique<Server>();
  SHARDMESH_RETURN_IF_ERROR(server->Start());
  return server;
}

}  // namespace shardmesh::server
