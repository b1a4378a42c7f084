// Serves shardmesh.v1.ArrayService: puts and gets begin and end here, names move here.
#ifndef SHARDMESH_SERVER_ARRAY_SERVICE_H_
#define SHARDMESH_SERVER_ARRAY_SERVICE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "rpc/clock.h"
#include "server/attach_service.h"
#include "server/catalogue.h"
#include "server/cluster_state.h"
#include "server/link_table.h"
#include "server/recovery.h"
#include "server/session.h"
#include "server/step_memory.h"
#include "server/transfers.h"
#include "tensor/collective_choice.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace shardmesh::server {

// What the array and compute services work with. All outlive the services.
struct CoordinatorParts {
  rpc::Clock* clock = nullptr;
  const DefinitionStore* definition_store = nullptr;
  const Membership* membership = nullptr;
  const AttachHub* hub = nullptr;
  ArrayRegistry* registry = nullptr;
  SessionTable* sessions = nullptr;
  Transfers* transfers = nullptr;
  const LinkTable* links = nullptr;
  const Recovery* recovery = nullptr;
  PreferredAlgorithms preferred_algorithms;
  StepMemoryOptions step_memory;
  int64_t max_put_streams_per_caller = 0;
  std::string token_key;  // see rpc/transfer_token.h
  int64_t term = 0;
};

// Thread-safe.
std::unique_ptr<grpc::Service> MakeArrayService(const CoordinatorParts& context);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_ARRAY_SERVICE_H_
