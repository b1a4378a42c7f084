// The parts of a coordinator that its services share.
#ifndef SHARDMESH_SERVER_ATTACH_COORDINATOR_PARTS_H_
#define SHARDMESH_SERVER_ATTACH_COORDINATOR_PARTS_H_

#include <cstdint>
#include <string>

#include "process/clock.h"
#include "program/collective_choice.h"
#include "program/move_plan.h"
#include "server/attach/worker_streams.h"
#include "server/state/array_registry.h"
#include "server/state/definitions.h"
#include "server/state/link_table.h"
#include "server/state/operation_table.h"
#include "server/state/recovery.h"
#include "server/state/session.h"
#include "server/state/step_memory.h"
#include "server/steps/array_cache.h"
#include "server/steps/fill_transport.h"
#include "server/steps/transfers.h"

namespace shardmesh::server {

// The parts that the array, compute and cluster services work with. All parts outlive the services.
struct CoordinatorParts {
  Clock* clock = nullptr;
  DefinitionStore* definition_store = nullptr;
  const Membership* membership = nullptr;
  const WorkerStreams* hub = nullptr;
  FillTransport* fill = nullptr;
  DigestTransport* digests = nullptr;
  ArrayRegistry* registry = nullptr;
  ArrayCache* cache = nullptr;
  SessionTable* sessions = nullptr;
  Transfers* transfers = nullptr;
  OperationTable* operations = nullptr;
  const LinkTable* links = nullptr;
  const Recovery* recovery = nullptr;
  PreferredAlgorithms preferred_algorithms;
  StepMemoryOptions step_memory;
  int64_t max_put_streams_per_caller = 0;
  int64_t move_memory_bytes = kMoveMemoryBytes;  // see ReshardPlanParts
  std::string token_key;                         // see rpc/transfer_token.h
  int64_t term = 0;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_ATTACH_COORDINATOR_PARTS_H_
