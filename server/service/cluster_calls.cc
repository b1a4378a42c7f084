// Cuts answers into pages, and makes each item of them.
#include "server/service/cluster_calls.h"

#include <unistd.h>

#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <variant>

#include "absl/strings/numbers.h"
#include "rpc/call.h"
#include "rpc/codec/definition.h"
#include "rpc/codec/flight_codec.h"
#include "rpc/codec/link_codec.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "server/codec/status_codec.h"
#include "status/fact_keys.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// Records of one worker in an answer, and bytes of those of all workers together.
constexpr size_t kDefaultFlightRecords = 64;
constexpr int32_t kMaxFlightRecords = static_cast<int32_t>(FlightLog::kMaxRecords);
constexpr int64_t kFlightBytes = int64_t{2} << 20;
// Meshes and workers, or links, of a page of an answer, and bytes of them: half of what a message
// may have, which leaves room for the last item.
constexpr int64_t kDefaultStatusItems = 1'000;
constexpr int64_t kDefaultLinks = 5'000;
constexpr int64_t kMaxPageItems = 10'000;
constexpr int64_t kPageBytes = rpc::kMaxControlMessageBytes / 2;

absl::StatusOr<int64_t> PageSize(int32_t asked, int64_t otherwise) {
  if (asked < 0 || asked > kMaxPageItems) {
    return rpc::BadField("page_size",
                         StrCat("is ", asked, "; it must be between 0 and ", kMaxPageItems));
  }
  return asked == 0 ? otherwise : asked;
}

absl::Status BadToken(std::string_view token) {
  return rpc::BadField("page_token",
                       StrCat(PythonRepr(token.substr(0, 64)),
                              " is of no page; pass on next_page_token of the page before"));
}

// What a page may still take.
class PageBudget {
 public:
  explicit PageBudget(int64_t items, int64_t bytes = kPageBytes) : items_(items), bytes_(bytes) {}

  bool is_spent() const { return items_ <= 0 || bytes_ <= 0; }
  void Spend(const google::protobuf::Message& item) {
    --items_;
    bytes_ -= static_cast<int64_t>(item.ByteSizeLong());
  }

 private:
  int64_t items_;
  int64_t bytes_;
};

// Where a page of the status begins: `m/RANK/MESH`, a mesh and the first of its ranks, or
// `w/IDENTITY`, behind this worker.
struct StatusPosition {
  bool in_meshes = true;
  std::string name;  // of the mesh or the worker
  int64_t rank = 0;

  static std::string OfMesh(std::string_view name, int64_t rank) {
    return StrCat("m/", rank, "/", name);
  }
  static std::string OfWorker(std::string_view identity) { return StrCat("w/", identity); }

  static absl::StatusOr<StatusPosition> Parse(std::string_view token) {
    StatusPosition position;
    if (token.empty()) return position;
    position.in_meshes = token.starts_with("m/");
    if (!position.in_meshes && !token.starts_with("w/")) return BadToken(token);
    std::string_view name = token.substr(2);
    if (position.in_meshes) {
      const size_t slash = name.find('/');
      if (slash == std::string_view::npos ||
          !absl::SimpleAtoi(ToAbsl(name.substr(0, slash)), &position.rank) || position.rank < 0) {
        return BadToken(token);
      }
      name.remove_prefix(slash + 1);
    }
    position.name = std::string(name);
    return position;
  }
};

// Where a page of links begins: `w/INDEX`, a worker, or `l/INDEX/IDENTITY`, the link of this number
// among those whose lower identity is this one.
struct LinkPosition {
  bool in_workers = true;
  int64_t index = 0;
  std::string identity;

  static std::string OfWorker(int64_t index) { return StrCat("w/", index); }
  static std::string OfLink(std::string_view identity, int64_t index) {
    return StrCat("l/", index, "/", identity);
  }

  static absl::StatusOr<LinkPosition> Parse(std::string_view token) {
    LinkPosition position;
    if (token.empty()) return position;
    position.in_workers = token.starts_with("w/");
    if (!position.in_workers && !token.starts_with("l/")) return BadToken(token);
    std::string_view index = token.substr(2);
    if (!position.in_workers) {
      const size_t slash = index.find('/');
      if (slash == std::string_view::npos) return BadToken(token);
      position.identity = std::string(index.substr(slash + 1));
      index = index.substr(0, slash);
    }
    if (!absl::SimpleAtoi(ToAbsl(index), &position.index) || position.index < 0) {
      return BadToken(token);
    }
    return position;
  }
};

absl::Status CheckSequence(int64_t sequence) {
  if (sequence >= 0) return absl::OkStatus();
  return rpc::BadField("sequence", StrCat("is ", sequence,
                                          "; steps are counted from 1, and 0 "
                                          "means all"));
}

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
  // Where nobody serves the mesh that was asked about, anybody may be about to.
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

absl::Status ClusterCalls::ListFlightRecords(const v1::ListFlightRecordsRequest& request,
                                             v1::ListFlightRecordsResponse* response) const {
  SHARDMESH_RETURN_IF_ERROR(CheckSequence(request.sequence()));
  if (request.max_records() < 0 || request.max_records() > kMaxFlightRecords) {
    return rpc::BadField("max_records", StrCat("is ", request.max_records(),
                                               "; it must be between 0 and ", kMaxFlightRecords));
  }
  const size_t max_records = request.max_records() == 0
                                 ? kDefaultFlightRecords
                                 : static_cast<size_t>(request.max_records());
  const std::vector<std::string> identities = request.identity().empty()
                                                  ? options_.flight_log->Identities()
                                                  : std::vector{request.identity()};
  const std::shared_ptr<const MembershipView> view = context_.membership->view();
  for (const std::string& identity : identities) {
    const std::optional<WorkerFlight> flight =
        options_.flight_log->Find(identity, request.sequence(), max_records);
    if (!flight.has_value()) {
      if (request.identity().empty()) continue;  // forgotten this moment
      return WithReason(absl::NotFoundError(StrCat("nothing is known of a worker \"", identity,
                                                   "\"; `shardmesh status` lists the workers")),
                        Reason::kNotFound, {{fact::kKind, "worker"}, {fact::kName, identity}});
    }
    v1::WorkerFlight* to = response->add_workers();
    to->set_identity(identity);
    to->set_incarnation(flight->incarnation);
    if (const WorkerStatus* worker = view->FindWorker(identity); worker != nullptr) {
      to->set_state(EncodeState(*worker, context_.hub->IsReady(identity)));
      rpc::Encode(context_.clock->Now() - worker->last_heartbeat(), to->mutable_heartbeat_age());
    }
    if (flight->progress.has_value()) rpc::Encode(*flight->progress, to->mutable_progress());
    EncodeLast(*flight, kFlightBytes / std::ssize(identities), to);
  }
  return absl::OkStatus();
}

absl::Status ClusterCalls::ListLinks(const v1::ListLinksRequest& request,
                                     v1::ListLinksResponse* response) const {
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t page_size, PageSize(request.page_size(), kDefaultLinks));
  SHARDMESH_ASSIGN_OR_RETURN(const LinkPosition from, LinkPosition::Parse(request.page_token()));
  const std::shared_ptr<const MembershipView> view = context_.membership->view();
  std::vector<std::string> identities;
  if (request.mesh_id().empty()) {
    for (const auto& [identity, worker] : view->workers) {
      if (view->IsAlive(identity)) identities.push_back(identity);
    }
    if (identities.empty()) {
      return WithReason(absl::FailedPreconditionError(
                            "no worker is attached, hence there are no links; start workers"),
                        Reason::kMeshIncomplete, {{fact::kHave, 0}, {fact::kNeed, 1}});
    }
  } else {
    SHARDMESH_RETURN_IF_ERROR(view->CheckComplete(request.mesh_id()));
    identities = view->FindMesh(request.mesh_id())->identities;
  }
  PageBudget workers(std::ssize(identities) + 1, kPageBytes / 2);
  for (auto i = static_cast<size_t>(from.index); from.in_workers && i < identities.size(); ++i) {
    if (workers.is_spent()) {
      response->set_next_page_token(LinkPosition::OfWorker(static_cast<int64_t>(i)));
      return absl::OkStatus();
    }
    v1::LinkedWorker* const worker = response->add_workers();
    worker->set_identity(identities[i]);
    if (!request.mesh_id().empty()) worker->set_rank(static_cast<int32_t>(i));
    workers.Spend(*worker);
  }
  const std::set<std::string, std::less<>> asked(identities.begin(), identities.end());
  PageBudget links(page_size);
  auto lower = from.in_workers ? asked.begin() : asked.lower_bound(from.identity);
  for (; lower != asked.end(); ++lower) {
    const std::vector<WorkerLink> all = context_.links->LinksOf(*view, *lower, asked);
    const bool goes_on = !from.in_workers && *lower == from.identity;
    for (int64_t i = goes_on ? from.index : 0; i < std::ssize(all); ++i) {
      if (links.is_spent()) {
        response->set_next_page_token(LinkPosition::OfLink(*lower, i));
        return absl::OkStatus();
      }
      const WorkerLink& link = all[static_cast<size_t>(i)];
      v1::WorkerLink* const to = response->add_links();
      to->set_identity(link.identity);
      rpc::Encode(link.measured, to->mutable_measured());
      links.Spend(*to);
    }
  }
  return absl::OkStatus();
}

absl::Status ClusterCalls::Diagnose(const v1::DiagnoseRequest& request,
                                    v1::DiagnoseResponse* response) const {
  SHARDMESH_RETURN_IF_ERROR(CheckSequence(request.sequence()));
  const StepWatch::Verdict verdict = options_.step_watch->Diagnose(
      request.sequence(), options_.live(), DegradedArrays(), options_.unreadable);
  response->set_healthy(verdict.findings.empty());
  response->set_verdict(verdict.sentence);
  // The sentence counts all.
  PageBudget budget(std::ssize(verdict.findings));
  for (const Finding& finding : verdict.findings) {
    if (budget.is_spent()) break;
    Encode(finding, response->add_findings());
    budget.Spend(response->findings(response->findings_size() - 1));
  }
  return absl::OkStatus();
}

// While workers are still to bring their inventories, arrays lack tiles only because of that.
int64_t ClusterCalls::DegradedArrays() const {
  return options_.recovery->awaited() > 0 ? 0 : context_.registry->CountArrays().degraded;
}

// The mesh with its ranks from `first_rank` on. Returns the first that found no room; 0: all did.
int64_t ClusterCalls::DescribeMesh(const Definition& definition, const MembershipView& view,
                                   int64_t first_rank, v1::MeshStatus* to) const {
  to->set_mesh_id(definition.name);
  to->set_revision(definition.revision);
  const Mesh& mesh = std::get<rpc::MeshDefinition>(definition.value).mesh;
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
}

}  // namespace shardmesh::server
