// Serves the watches of workers, arrays and names.
#include "server/watch/cluster_watch.h"

#include <array>
#include <memory>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

v1::WorkerChangeKind EncodeKind(WorkerChange::Kind kind) {
  switch (kind) {
    case WorkerChange::Kind::kAttached:
      return v1::WORKER_CHANGE_KIND_ATTACHED;
    case WorkerChange::Kind::kLost:
      return v1::WORKER_CHANGE_KIND_LOST;
    case WorkerChange::Kind::kDraining:
      return v1::WORKER_CHANGE_KIND_DRAINING;
    case WorkerChange::Kind::kResumed:
      return v1::WORKER_CHANGE_KIND_RESUMED;
    case WorkerChange::Kind::kForgotten:
      return v1::WORKER_CHANGE_KIND_FORGOTTEN;
  }
  return v1::WORKER_CHANGE_KIND_UNSPECIFIED;
}

void EncodeTo(const WorkerChange& from, v1::WatchClusterResponse* response) {
  v1::WorkerChange* const to = response->mutable_worker();
  to->set_kind(EncodeKind(from.kind));
  to->set_identity(from.identity);
  to->set_incarnation(from.incarnation);
  to->set_epoch(from.epoch);
  to->set_reason(from.reason);
}

void EncodeTo(const ArrayChange& from, v1::WatchClusterResponse* response) {
  v1::ArrayChange* const to = response->mutable_array();
  to->set_kind(from.is_deleted ? v1::ARRAY_CHANGE_KIND_DELETED : v1::ARRAY_CHANGE_KIND_CREATED);
  to->set_array_id(from.array_id);
  to->set_mesh_id(from.mesh_id);
}

void EncodeTo(const NameChange& from, v1::WatchClusterResponse* response) {
  v1::NameChange* const to = response->mutable_name();
  to->set_kind(from.array_id.empty() ? v1::NAME_CHANGE_KIND_DELETED : v1::NAME_CHANGE_KIND_SET);
  to->set_name(from.name);
  to->set_array_id(from.array_id);
  to->set_version(from.version);
}

// For each kind of change, by its index in ClusterChange::Value: true if the client wants it.
using Wanted = std::array<bool, std::variant_size_v<ClusterChange::Value>>;

absl::StatusOr<Wanted> DecodeSubjects(const v1::WatchClusterRequest& request) {
  Wanted wanted = {};
  for (const int subject : request.subjects()) {
    switch (subject) {
      case v1::CLUSTER_SUBJECT_WORKERS:
        wanted[0] = true;
        break;
      case v1::CLUSTER_SUBJECT_ARRAYS:
        wanted[1] = true;
        break;
      case v1::CLUSTER_SUBJECT_NAMES:
        wanted[2] = true;
        break;
      default:
        return rpc::BadField("subjects",
                             StrCat("has the number ", subject, ", which is no subject"));
    }
  }
  if (request.subjects().empty()) wanted.fill(true);
  return wanted;
}

}  // namespace

// WatchCluster as synchronous pseudocode:
//   write(confirmation)
//   for (changes of interest from now on) write(change)   // until the client leaves
class ClusterWatches::Stream final
    : public WatchStream<v1::WatchClusterResponse, ClusterChangePtr> {
 public:
  Stream(Streams* streams, WatchPump* pump, grpc::CallbackServerContext* context,
         ClusterChanges* changes, const std::function<void(v1::WatchStarted*)>& describe)
      : WatchStream(streams, pump, context, "watch again, and list"),
        changes_(changes),
        describe_(describe) {}

  void Start(WatchCount* count, const v1::WatchClusterRequest& request) {
    // Check the request before Admit: a refused request must not count as a watch.
    const auto wanted = DecodeSubjects(request);
    if (!wanted.ok()) return Close(wanted.status());
    if (!Admit(count)) return;
    // Queue the confirmation before all changes, but encode and send it only after Begin: once
    // Begin has returned, the watch gets every change.
    feed()->Add(nullptr, 0);
    auto watch = changes_->Begin(
        [feed = feed(), pump = pump(), wanted = *wanted](const ClusterChangePtr& change) {
          if (!wanted[change->value.index()]) return;
          feed->Add(change, change->SizeBytes());
          pump->Wake(feed);
        });
    {
      absl::MutexLock lock(&mutex_);
      watch_ = std::move(watch);
    }
    pump()->Wake(feed());
  }

 private:
  // A null `change` stands for the confirmation.
  void Encode(const ClusterChangePtr& change, v1::WatchClusterResponse* to) override {
    if (change == nullptr) return describe_(to->mutable_started());
    rpc::Encode(change->time, to->mutable_time());
    std::visit([to](const auto& value) { EncodeTo(value, to); }, change->value);
  }

  ClusterChanges* const changes_;
  const std::function<void(v1::WatchStarted*)>& describe_;  // of the ClusterWatches
  absl::Mutex mutex_;
  // Last: its destructor waits for a running callback, which may use the other members.
  std::unique_ptr<ClusterChanges::Watch> watch_ ABSL_GUARDED_BY(mutex_);
};

ClusterWatches::ClusterWatches(ClusterChanges* changes, const WatchLimits& limits,
                               std::function<void(v1::WatchStarted*)> describe)
    : changes_(changes), describe_(std::move(describe)), count_("the cluster", limits) {}

ClusterWatches::~ClusterWatches() = default;

grpc::ServerWriteReactor<v1::WatchClusterResponse>* ClusterWatches::Open(
    grpc::CallbackServerContext* context, const v1::WatchClusterRequest& request) {
  auto* stream = new Stream(&streams_, &pump_, context, changes_, describe_);
  stream->Start(&count_, request);
  return stream;
}

void ClusterWatches::EndAll() { streams_.EndAll(); }

}  // namespace shardmesh::server
