// CoordinatorClient: watches of the cluster; workers drained, forgotten and replaced.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/remote/coordinator_connection.h"
#include "status/status_macros.h"

namespace shardmesh::client {
namespace {

v1::ClusterSubject Encode(ClusterSubject subject) {
  switch (subject) {
    case ClusterSubject::kWorkers:
      return v1::CLUSTER_SUBJECT_WORKERS;
    case ClusterSubject::kArrays:
      return v1::CLUSTER_SUBJECT_ARRAYS;
    case ClusterSubject::kNames:
      return v1::CLUSTER_SUBJECT_NAMES;
  }
  return v1::CLUSTER_SUBJECT_UNSPECIFIED;
}

WorkerChange::Kind KindOf(v1::WorkerChangeKind kind) {
  switch (kind) {
    case v1::WORKER_CHANGE_KIND_ATTACHED:
      return WorkerChange::Kind::kAttached;
    case v1::WORKER_CHANGE_KIND_LOST:
      return WorkerChange::Kind::kLost;
    case v1::WORKER_CHANGE_KIND_DRAINING:
      return WorkerChange::Kind::kDraining;
    case v1::WORKER_CHANGE_KIND_RESUMED:
      return WorkerChange::Kind::kResumed;
    case v1::WORKER_CHANGE_KIND_FORGOTTEN:
      return WorkerChange::Kind::kForgotten;
    default:
      return WorkerChange::Kind::kUnknown;
  }
}

// Nullopt: an event that a newer coordinator knows and this build does not.
absl::StatusOr<std::optional<ClusterChange>> DecodeChange(const v1::WatchClusterResponse& from) {
  ClusterChange change;
  if (from.has_time()) {
    SHARDMESH_ASSIGN_OR_RETURN(change.time, DecodeAnswer(from.time()));
  }
  switch (from.event_case()) {
    case v1::WatchClusterResponse::kStarted:
      change.event = WatchStarted{.term = from.started().term(),
                                  .epoch = from.started().epoch(),
                                  .revision = from.started().revision()};
      break;
    case v1::WatchClusterResponse::kWorker:
      change.event = WorkerChange{.kind = KindOf(from.worker().kind()),
                                  .identity = from.worker().identity(),
                                  .incarnation = from.worker().incarnation(),
                                  .epoch = from.worker().epoch(),
                                  .reason = from.worker().reason()};
      break;
    case v1::WatchClusterResponse::kArray:
      change.event =
          ArrayChange{.array_id = from.array().array_id(),
                      .mesh_id = from.array().mesh_id(),
                      .is_deleted = from.array().kind() == v1::ARRAY_CHANGE_KIND_DELETED};
      break;
    case v1::WatchClusterResponse::kName:
      change.event = NameChange{.name = from.name().name(),
                                .array_id = from.name().array_id(),
                                .version = from.name().version(),
                                .is_deleted = from.name().kind() == v1::NAME_CHANGE_KIND_DELETED};
      break;
    case v1::WatchClusterResponse::EVENT_NOT_SET:
      return std::optional<ClusterChange>();
  }
  return std::optional<ClusterChange>(std::move(change));
}

template <typename Response>
std::vector<ServedRank> RanksOf(const Response& from) {
  std::vector<ServedRank> ranks;
  for (const v1::ServedRank& rank : from.ranks()) {
    ranks.push_back({.mesh_id = rank.mesh_id(), .rank = rank.rank()});
  }
  return ranks;
}

}  // namespace

absl::StatusOr<DrainedWorker> CoordinatorClient::DrainWorker(const std::string& identity,
                                                             bool resume, const Options& options) {
  v1::DrainWorkerRequest request;
  request.set_identity(identity);
  request.set_resume(resume);
  v1::DrainWorkerResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection_->Call(
      connection_->cluster, &v1::ClusterService::Stub::DrainWorker, request, options, &response));
  return DrainedWorker{.ranks = RanksOf(response),
                       .rank_count = response.rank_count(),
                       .work = response.work(),
                       .arrays = response.arrays(),
                       .used_bytes = response.used_bytes()};
}

absl::Status CoordinatorClient::ForgetWorker(const std::string& identity, const Options& options) {
  v1::ForgetWorkerRequest request;
  request.set_identity(identity);
  v1::ForgetWorkerResponse response;
  return connection_->Call(connection_->cluster, &v1::ClusterService::Stub::ForgetWorker, request,
                           options, &response);
}

absl::StatusOr<ReplacedWorker> CoordinatorClient::ReplaceWorker(const std::string& identity,
                                                                const std::string& replacement,
                                                                const Options& options) {
  v1::ReplaceWorkerRequest request;
  request.set_identity(identity);
  request.set_replacement(replacement);
  v1::ReplaceWorkerResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection_->Call(
      connection_->cluster, &v1::ClusterService::Stub::ReplaceWorker, request, options, &response));
  return ReplacedWorker{.ranks = RanksOf(response), .rank_count = response.rank_count()};
}

absl::Status CoordinatorClient::WatchCluster(
    const std::vector<ClusterSubject>& subjects,
    const std::function<bool(const ClusterChange&)>& on_change, Cancellation* cancellation,
    const Options& options) {
  v1::WatchClusterRequest request;
  for (const ClusterSubject subject : subjects) request.add_subjects(Encode(subject));
  grpc::ClientContext context;
  connection_->Prepare(options, &context);
  Cancellation never;
  Cancellation* const cancelled = cancellation == nullptr ? &never : cancellation;
  const Cancellation::Registration registration(cancelled, [&context] { context.TryCancel(); });
  const auto stream = connection_->cluster->WatchCluster(&context, request);
  v1::WatchClusterResponse response;
  absl::Status status;
  bool is_wanted = true;
  while (is_wanted && stream->Read(&response)) {
    absl::StatusOr<std::optional<ClusterChange>> change = DecodeChange(response);
    status = change.status();
    is_wanted = status.ok() && (!change->has_value() || on_change(**change));
  }
  if (!is_wanted) {
    context.TryCancel();
    stream->Finish();  // CANCELLED, as it was asked to be.
    return status;
  }
  status = connection_->StatusOf(stream->Finish());
  return cancelled->is_cancelled() ? absl::OkStatus() : status;
}

}  // namespace shardmesh::client
