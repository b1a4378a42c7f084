// Operations on workers by platform engineers: drain, forget and replace.
#ifndef SHARDMESH_SERVER_CALLS_WORKER_CALLS_H_
#define SHARDMESH_SERVER_CALLS_WORKER_CALLS_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "process/clock.h"
#include "server/state/array_registry.h"
#include "server/state/definitions.h"
#include "server/state/membership.h"
#include "server/state/recovery.h"
#include "server/steps/sequencer.h"
#include "shardmesh/v1/cluster_service.pb.h"

namespace shardmesh::server {

// Answers calls of cluster_service.proto, which lists their errors. Thread-safe.
class WorkerCalls {
 public:
  // All objects that the arguments point to must outlive this object. `live` returns the steps and
  // transfers that run now.
  WorkerCalls(const Clock* clock, Membership* membership, DefinitionStore* definition_store,
              const ArrayRegistry* registry, const Recovery* recovery,
              std::function<std::vector<Sequencer::LiveWork>()> live)
      : clock_(clock),
        membership_(membership),
        definition_store_(definition_store),
        registry_(registry),
        recovery_(recovery),
        live_(std::move(live)) {}

  absl::Status DrainWorker(const v1::DrainWorkerRequest& request,
                           v1::DrainWorkerResponse* response) const;
  absl::Status ForgetWorker(const v1::ForgetWorkerRequest& request) const;
  // ReplaceWorker calls `done` once, on the caller's thread or on the store's thread. The request
  // and the response must live until then.
  using Done = absl::AnyInvocable<void(const absl::Status&) &&>;
  void ReplaceWorker(const v1::ReplaceWorkerRequest* request, v1::ReplaceWorkerResponse* response,
                     Done done) const;
  // Does the same for the coordinator itself, without an answer to encode.
  void ReplaceWorker(const std::string& identity, const std::string& replacement, Done done) const;

 private:
  struct Replacement;

  // Returns OK if the worker's ranks may move to another worker. The worker must be lost. It must
  // not be a worker that the coordinator still expects back after the coordinator's start
  // (Recovery::IsAwaited).
  absl::Status CheckLost(const std::string& identity) const;
  absl::Status CheckReplace(const v1::ReplaceWorkerRequest& request,
                            const std::vector<ServedRank>& ranks) const;
  void ReplaceNext(std::shared_ptr<Replacement> replacement) const;
  // Copies the assignment of the mesh's ranks from the definitions to the membership, if the two
  // differ.
  void MoveRanks(const std::string& mesh_id) const;

  const Clock* const clock_;
  Membership* const membership_;
  DefinitionStore* const definition_store_;
  const ArrayRegistry* const registry_;
  const Recovery* const recovery_;
  const std::function<std::vector<Sequencer::LiveWork>()> live_;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_CALLS_WORKER_CALLS_H_
