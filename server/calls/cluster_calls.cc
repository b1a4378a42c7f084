// Answers questions about the cluster: flight records, links and the diagnosis.
#include "server/calls/cluster_calls.h"

#include <iterator>
#include <memory>
#include <optional>
#include <set>

#include "rpc/codec/flight_codec.h"
#include "rpc/codec/link_codec.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "server/calls/cluster_pages.h"
#include "server/codec/status_codec.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// Limits of an answer: the records of one worker (default and maximum), and the bytes of the
// records of all workers together.
constexpr size_t kDefaultFlightRecords = 64;
constexpr int32_t kMaxFlightRecords = static_cast<int32_t>(FlightLog::kMaxRecords);
constexpr int64_t kFlightBytes = int64_t{2} << 20;
// Links on a page if the request sets no page size.
constexpr int64_t kDefaultLinks = 5'000;

// Returns the step that the request names; 0 if it names none.
template <typename Request>
absl::StatusOr<int64_t> StepOf(const Request& request) {
  if (!request.has_sequence()) return 0;
  if (request.sequence() >= 1) return request.sequence();
  return rpc::BadField("sequence", StrCat("is ", request.sequence(),
                                          "; steps are counted from 1; leave it out for all"));
}

}  // namespace

absl::Status ClusterCalls::ListFlightRecords(const v1::ListFlightRecordsRequest& request,
                                             v1::ListFlightRecordsResponse* response) const {
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t step, StepOf(request));
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
        options_.flight_log->Find(identity, step, max_records);
    if (!flight.has_value()) {
      if (request.identity().empty()) continue;  // the worker was forgotten
      return WithReason(absl::NotFoundError(StrCat("there is no worker \"", identity,
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
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t step, StepOf(request));
  const StepWatch::Verdict verdict =
      options_.step_watch->Diagnose(step, options_.live(), DegradedArrays(), options_.unreadable);
  response->set_healthy(verdict.findings.empty());
  response->set_verdict(verdict.sentence);
  // The verdict's sentence counts all findings, also those that do not fit the answer.
  PageBudget budget(std::ssize(verdict.findings));
  for (const Finding& finding : verdict.findings) {
    if (budget.is_spent()) break;
    Encode(finding, response->add_findings());
    budget.Spend(response->findings(response->findings_size() - 1));
  }
  return absl::OkStatus();
}

void ClusterCalls::DescribeStart(v1::WatchStarted* to) const {
  to->set_term(context_.term);
  to->set_epoch(context_.membership->view()->epoch);
  to->set_revision(context_.definition_store->settled_revision());
}

// Returns 0 while the coordinator still awaits inventories. During that time, arrays lack tiles
// only because the workers have not reported the tiles.
int64_t ClusterCalls::DegradedArrays() const {
  return options_.recovery->awaited() > 0 ? 0 : context_.registry->CountArrays().degraded;
}

}  // namespace shardmesh::server
