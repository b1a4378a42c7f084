// Drains, forgets and replaces workers.
#include "server/calls/worker_calls.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/time/time.h"
#include "process/log.h"
#include "rpc/codec/field_check.h"
#include "rpc/codec/status.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// Time in which a healthy worker attaches again after it lost its stream.
constexpr absl::Duration kAttachesAgainWithin = absl::Seconds(10);

// The maximum number of ranks that an answer names.
constexpr int64_t kMostRanks = 1'000;

template <typename Response>
void Encode(const std::vector<ServedRank>& ranks, Response* to) {
  to->set_rank_count(std::ssize(ranks));
  for (const ServedRank& rank : ranks) {
    if (to->ranks_size() == kMostRanks) break;
    v1::ServedRank* const added = to->add_ranks();
    added->set_mesh_id(rank.mesh_id);
    added->set_rank(static_cast<int32_t>(rank.rank));
  }
}

}  // namespace

absl::Status WorkerCalls::DrainWorker(const v1::DrainWorkerRequest& request,
                                      v1::DrainWorkerResponse* response) const {
  const std::string& identity = request.identity();
  SHARDMESH_RETURN_IF_ERROR(rpc::CheckIdentity(identity, "identity"));
  if (request.validate_only()) {
    SHARDMESH_RETURN_IF_ERROR(membership_->CheckDrain(identity, !request.resume()));
  } else {
    SHARDMESH_RETURN_IF_ERROR(membership_->Drain(identity, !request.resume()));
    LogInfo(request.resume() ? "a worker is taken into use again" : "a worker is drained",
            {{"identity", identity}});
  }
  const std::vector<ServedRank> ranks = membership_->RanksOf(identity);
  Encode(ranks, response);
  int64_t arrays = 0;
  for (const ServedRank& rank : ranks) arrays += registry_->CountTiles(rank.mesh_id, rank.rank);
  response->set_arrays(arrays);
  const std::vector<Sequencer::LiveWork> live = live_();
  response->set_work(
      std::count_if(live.begin(), live.end(), [&identity](const Sequencer::LiveWork& each) {
        const std::vector<Participant>& all = each.work.participants;
        return std::any_of(all.begin(), all.end(),
                           [&](const Participant& one) { return one.identity == identity; });
      }));
  const std::shared_ptr<const MembershipView> view = membership_->view();
  if (const WorkerStatus* worker = view->FindWorker(identity); worker != nullptr) {
    response->set_used_bytes(worker->used_bytes());
  }
  return absl::OkStatus();
}

absl::Status WorkerCalls::ForgetWorker(const v1::ForgetWorkerRequest& request) const {
  SHARDMESH_RETURN_IF_ERROR(rpc::CheckIdentity(request.identity(), "identity"));
  if (request.validate_only()) return membership_->CheckForget(request.identity());
  SHARDMESH_RETURN_IF_ERROR(membership_->Forget(request.identity()));
  LogInfo("a worker is forgotten", {{"identity", request.identity()}});
  return absl::OkStatus();
}

// A call of ReplaceWorker that is under way.
struct WorkerCalls::Replacement {
  const v1::ReplaceWorkerRequest* request = nullptr;
  v1::ReplaceWorkerResponse* response = nullptr;
  Done done;
  std::vector<ServedRank> ranks;
  size_t moved = 0;  // number of `ranks` that have moved
};

absl::Status WorkerCalls::CheckLost(const std::string& identity) const {
  if (membership_->view()->IsAlive(identity)) {
    return WithReason(
        absl::FailedPreconditionError(
            StrCat("worker \"", identity, "\" is attached and keeps its ranks; stop it first")),
        Reason::kWorkerAttached, {{fact::kIdentity, identity}});
  }
  // A healthy worker attaches soon after the coordinator's start and keeps its ranks, so do not
  // replace it yet.
  if (!recovery_->IsAwaited(identity)) return absl::OkStatus();
  return Recovering(
      StrCat("worker \"", identity,
             "\" has not attached since the coordinator started, and is expected back; "
             "try again"),
      {{fact::kIdentity, identity}});
}

absl::Status WorkerCalls::CheckReplace(const v1::ReplaceWorkerRequest& request,
                                       const std::vector<ServedRank>& ranks) const {
  SHARDMESH_RETURN_IF_ERROR(rpc::CheckIdentity(request.identity(), "identity"));
  SHARDMESH_RETURN_IF_ERROR(rpc::CheckIdentity(request.replacement(), "replacement"));
  if (request.identity() == request.replacement()) {
    return rpc::BadField("replacement", "is the worker that is to be replaced; name another");
  }
  const std::shared_ptr<const MembershipView> view = membership_->view();
  const auto no_worker = [](std::string_view identity, std::string_view what) {
    return WithReason(absl::NotFoundError(StrCat(what, " \"", identity,
                                                 "\"; `shardmesh status` lists the workers")),
                      Reason::kNotFound, {{fact::kKind, "worker"}, {fact::kName, identity}});
  };
  if (view->FindWorker(request.identity()) == nullptr && ranks.empty()) {
    return no_worker(request.identity(), "no worker has the identity");
  }
  // Perhaps the names are swapped: the advice to stop the worker would end the spare one.
  if (ranks.empty() && view->IsAlive(request.identity())) {
    return WithReason(
        absl::FailedPreconditionError(StrCat("worker \"", request.identity(),
                                             "\" is attached and serves no rank; name the lost "
                                             "worker first, and then its replacement")),
        Reason::kWorkerAttached, {{fact::kIdentity, request.identity()}});
  }
  SHARDMESH_RETURN_IF_ERROR(CheckLost(request.identity()));
  const WorkerStatus* const replacement = view->FindWorker(request.replacement());
  if (!view->IsAlive(request.replacement())) {
    // The coordinator itself ends the stream of a worker whose ranks have moved. Two calls in a row
    // that name the same replacement must not fail because of that.
    if (replacement != nullptr && clock_->Now() - replacement->lost < kAttachesAgainWithin) {
      return Recovering(
          StrCat("worker \"", request.replacement(), "\" was lost a moment ago (",
                 replacement->lost_because, "); it attaches again if its process runs; try again"),
          {{fact::kIdentity, request.replacement()}});
    }
    return no_worker(request.replacement(), "no live worker has the identity");
  }
  if (replacement->state == WorkerState::kDraining) {
    return WithReason(
        absl::FailedPreconditionError(StrCat("worker \"", request.replacement(),
                                             "\" drains and gets no ranks; name another")),
        Reason::kNotServing, {{fact::kIdentity, request.replacement()}});
  }
  return absl::OkStatus();
}

void WorkerCalls::ReplaceWorker(const v1::ReplaceWorkerRequest* request,
                                v1::ReplaceWorkerResponse* response, Done done) const {
  auto replacement = std::make_shared<Replacement>();
  replacement->request = request;
  replacement->response = response;
  replacement->done = std::move(done);
  replacement->ranks = membership_->RanksOf(request->identity());
  if (const absl::Status status = CheckReplace(*request, replacement->ranks); !status.ok()) {
    return std::move(replacement->done)(status);
  }
  // Check all ranks before moving any rank: if one rank cannot move, no rank should move.
  const std::shared_ptr<const MembershipView> view = membership_->view();
  const std::shared_ptr<const Definitions> state = definition_store_->shared_state();
  for (const ServedRank& rank : replacement->ranks) {
    const absl::Status status = DefinitionStore::CheckReassign(
        *state, rank.mesh_id, request->identity(), request->replacement());
    if (!status.ok()) return std::move(replacement->done)(status);
  }
  if (request->validate_only()) {
    Encode(replacement->ranks, response);
    return std::move(replacement->done)(absl::OkStatus());
  }
  ReplaceNext(std::move(replacement));
}

void WorkerCalls::ReplaceWorker(const std::string& identity, const std::string& replacement,
                                Done done) const {
  auto request = std::make_shared<v1::ReplaceWorkerRequest>();
  request->set_identity(identity);
  request->set_replacement(replacement);
  auto response = std::make_shared<v1::ReplaceWorkerResponse>();
  ReplaceWorker(request.get(), response.get(),
                [request, response, done = std::move(done)](const absl::Status& status) mutable {
                  std::move(done)(status);
                });
}

void WorkerCalls::ReplaceNext(std::shared_ptr<Replacement> replacement) const {
  if (replacement->moved == replacement->ranks.size()) {
    Encode(replacement->ranks, replacement->response);
    return std::move(replacement->done)(absl::OkStatus());
  }
  // The replaced worker may have attached while earlier ranks moved.
  if (const absl::Status status = CheckLost(replacement->request->identity()); !status.ok()) {
    return std::move(replacement->done)(status);
  }
  const std::string& mesh_id = replacement->ranks[replacement->moved].mesh_id;
  definition_store_->Reassign(
      mesh_id, replacement->request->identity(), replacement->request->replacement(),
      [this, replacement](const absl::StatusOr<std::shared_ptr<const Definition>>& written) {
        if (!written.ok()) return std::move(replacement->done)(written.status());
        const ServedRank& rank = replacement->ranks[replacement->moved++];
        const std::vector<std::string>& workers = WorkersOf(**written);
        const auto place = static_cast<size_t>(rank.rank);
        // Move the ranks before answering: a client may forget the worker as soon as it has the
        // answer.
        MoveRanks(rank.mesh_id);
        if (place >= workers.size() || workers[place] != replacement->request->replacement()) {
          return std::move(replacement->done)(WithReason(
              absl::AbortedError(StrCat("the ranks of mesh \"", rank.mesh_id,
                                        "\" were changed meanwhile; try again")),
              Reason::kVersionMismatch, {{fact::kKind, "mesh"}, {fact::kName, rank.mesh_id}}));
        }
        LogInfo("a rank has another worker", {{"mesh", rank.mesh_id},
                                              {"rank", rank.rank},
                                              {"from", replacement->request->identity()},
                                              {"to", replacement->request->replacement()}});
        ReplaceNext(replacement);
      });
}

void WorkerCalls::MoveRanks(const std::string& mesh_id) const {
  while (true) {
    // Read the definitions first, and repeat until the membership agrees with them. Otherwise a
    // concurrent change could leave the membership with older ranks than the definitions.
    const std::shared_ptr<const Definitions> state = definition_store_->shared_state();
    const auto mesh = state->Find(DefinitionKind::kMesh, mesh_id);
    if (!mesh.ok() || (*mesh)->assigned == nullptr) return;
    const std::vector<std::string>& workers = (*mesh)->assigned->workers;
    const std::shared_ptr<const MembershipView> view = membership_->view();
    const MeshRanks* const ranks = view->FindMesh(mesh_id);
    // A mesh that the membership does not know yet gets its ranks later, together with its
    // definition.
    if (ranks == nullptr || ranks->identities.empty() || ranks->identities == workers ||
        !membership_->SetRanks(mesh_id, workers).ok()) {
      return;
    }
  }
}

}  // namespace shardmesh::server
