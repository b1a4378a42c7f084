// Serves shardmesh.v1.ArrayService: puts and gets begin and end here, names move here.
#ifndef SHARDMESH_SERVER_SERVICE_ARRAY_SERVICE_H_
#define SHARDMESH_SERVER_SERVICE_ARRAY_SERVICE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "process/clock.h"
#include "program/collective_choice.h"
#include "server/state/arrays.h"
#include "server/state/definitions.h"
#include "server/state/link_table.h"
#include "server/state/recovery.h"
#include "server/state/session.h"
#include "server/state/step_memory.h"
#include "server/steps/transfers.h"
#include "server/steps/worker_streams.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace shardmesh::server {

// What the array and compute services work with. All outlive the services.
struct CoordinatorParts {
  rpc::Clock* clock = nullptr;
  const DefinitionStore* definition_store = nullptr;
  const Membership* membership = nullptr;
  const WorkerStreams* hub = nullptr;
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

#endif  // SHARDMESH_SERVER_SERVICE_ARRAY_SERVICE_H_
