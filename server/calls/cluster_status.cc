// Answers GetStatus: the cluster, its meshes and its workers, page by page.
#include <unistd.h>

#include <memory>
#include <string>
#include <variant>

#include "rpc/codec/spec_codec.h"
#include "rpc/codec/time_codec.h"
#include "server/calls/cluster_calls.h"
#include "server/calls/cluster_pages.h"
#include "server/codec/status_codec.h"
#include "sharding/mesh_definition.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// Meshes and workers on a page if the request sets no page size.
constexpr int64_t kDefaultStatusItems = 1'000;

}  // namespace

absl::Status ClusterCalls::GetStatus(const v1::GetStatusRequest& request,
                                     v1::GetStatusResponse* response) const {
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t page_size,
                             PageSize(request.page_size(), kDefaultStatusItems));
  SHARDMESH_ASSIGN_OR_RETURN(const StatusPosition from,
                             StatusPosition::Parse(request.page_token()));
  const std::shared_ptr<const MembershipView> view = context_.membership->view();
  const std::shared_ptr<const Definitions> state = context_.definition_store->shared_state();
  const Definitions::ByName& meshes = state->all(DefinitionKind::kMesh);
  const std::string& only = request.mesh_id();
  if (!only.empty()) {
    SHARDMESH_RETURN_IF_ERROR(state->Find(DefinitionKind::kMesh, only).status());
  }
  DescribeCluster(*view, response);
  response->set_mesh_count(std::ssize(meshes));

  PageBudget budget(page_size);
  if (from.in_meshes) {
    auto mesh = only.empty() ? meshes.lower_bound(from.name) : meshes.find(only);
    for (; mesh != meshes.end(); ++mesh) {
      int64_t rank = mesh->first == from.name ? from.rank : 0;
      if (budget.is_spent()) {
        response->set_next_page_token(StatusPosition::OfMesh(mesh->first, rank));
        return absl::OkStatus();
      }
      rank = DescribeMesh(*mesh->second, *view, rank, response->add_meshes());
      budget.Spend(response->meshes(response->meshes_size() - 1));
      if (rank != 0) {
        response->set_next_page_token(StatusPosition::OfMesh(mesh->first, rank));
        return absl::OkStatus();
      }
      if (!only.empty()) break;
    }
  }
  // If the requested mesh has no ranks yet, list all workers: any worker may get ranks of this
  // mesh.
  const MeshRanks* const ranks = only.empty() ? nullptr : view->FindMesh(only);
  const bool is_any = ranks == nullptr || ranks->identities.empty();
  auto worker = from.in_meshes ? view->workers.begin() : view->workers.upper_bound(from.name);
  std::string last = from.in_meshes ? std::string() : from.name;
  for (; worker != view->workers.end(); ++worker) {
    if (!is_any && !ranks->RankOf(worker->first).has_value()) continue;
    if (budget.is_spent()) {
      response->set_next_page_token(StatusPosition::OfWorker(last));
      return absl::OkStatus();
    }
    DescribeWorker(*worker->second, response->add_workers());
    budget.Spend(response->workers(response->workers_size() - 1));
    last = worker->first;
  }
  return absl::OkStatus();
}

void ClusterCalls::DescribeCluster(const MembershipView& view,
                                   v1::GetStatusResponse* response) const {
  response->set_cluster_id(options_.cluster_id);
  response->set_epoch(view.epoch);
  response->set_term(context_.term);
  response->set_revision(context_.definition_store->settled_revision());
  response->set_state(options_.is_draining()             ? v1::COORDINATOR_STATE_DRAINING
                      : options_.recovery->awaited() > 0 ? v1::COORDINATOR_STATE_RECOVERING
                                                         : v1::COORDINATOR_STATE_SERVING);
  response->set_pid(getpid());
  const ArrayCounts arrays = context_.registry->CountArrays();
  response->set_arrays(arrays.total());
  response->set_degraded_arrays(arrays.degraded);
  const CacheTotals cache = context_.registry->cache_totals();
  response->set_cached_arrays(cache.arrays);
  response->set_cached_bytes(cache.bytes);
  EncodeRepairs(options_.recovery->repairs(), response);
  EncodeReplicas(options_.recovery->replicas(), response);
  if (const int64_t unnamed = context_.registry->CountUnnamed(); unnamed > 0) {
    response->set_unnamed_arrays(unnamed);
    const absl::Duration held_for = context_.registry->unnamed_until() - context_.clock->Now();
    if (held_for > absl::ZeroDuration()) {
      rpc::Encode(held_for, response->mutable_unnamed_held_for());
    }
  }
  response->set_sessions(context_.sessions->size());
  response->set_unreadable_records(options_.unreadable.count);
  for (const std::string& key : options_.unreadable.keys) response->add_unreadable_keys(key);
  response->set_worker_count(std::ssize(view.workers));
  response->set_live_worker_count(view.alive);
}

// Describes the mesh with its ranks from `first_rank` on. Returns the first rank without room on
// the page; 0 if all ranks fit.
int64_t ClusterCalls::DescribeMesh(const Definition& definition, const MembershipView& view,
                                   int64_t first_rank, v1::MeshStatus* to) const {
  to->set_mesh_id(definition.name);
  to->set_revision(definition.revision);
  const Mesh& mesh = std::get<MeshDefinition>(definition.value).mesh;
  rpc::Encode(mesh, to->mutable_mesh());
  to->set_rank_count(mesh.size());
  to->set_complete(context_.hub->CheckReady(definition.name).ok());
  const MeshRanks* ranks = view.FindMesh(definition.name);
  const int64_t given = ranks == nullptr ? 0 : std::ssize(ranks->identities);
  int64_t size_bytes = 0;
  for (int64_t rank = first_rank; rank < given; ++rank) {
    if (size_bytes >= kPageBytes / 2) return rank;
    v1::RankStatus* status = to->add_ranks();
    status->set_rank(static_cast<int32_t>(rank));
    status->set_identity(ranks->identities[static_cast<size_t>(rank)]);
    size_bytes += static_cast<int64_t>(status->ByteSizeLong());
  }
  return 0;
}

void ClusterCalls::DescribeWorker(const WorkerStatus& worker, v1::WorkerStatus* to) const {
  const std::string& identity = worker.info.identity;
  Encode(worker, context_.hub->IsReady(identity), context_.hub->FailedAttachesOf(identity),
         context_.clock->Now(), to);
  // The worker may have attached again since the last look for a spare.
  if (worker.state == WorkerState::kLost && options_.lacks_spare &&
      options_.lacks_spare(identity)) {
    to->set_lost_reason(StrCat("there is no spare worker for its ranks; ", worker.lost_because));
  }
  to->set_cached_bytes(
      CachedBytesOn(*context_.membership->view(), context_.registry->CachedBytes(), identity));
}

}  // namespace shardmesh::server
