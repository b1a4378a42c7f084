// The surroundings of the parts that handle the attach stream: its write side, links and steps.
#ifndef SHARDMESH_TESTS_UNIT_WORKER_SERVICE_ATTACH_FAKES_H_
#define SHARDMESH_TESTS_UNIT_WORKER_SERVICE_ATTACH_FAKES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "shardmesh/internal/v1/attach_service.pb.h"
#include "worker/exchange/peer_links.h"
#include "worker/service/attach_sink.h"
#include "worker/service/tile_filler.h"
#include "worker/step/step_executor.h"
#include "worker/store/shard_store.h"

namespace shardmesh::worker {

// Keeps the messages for the coordinator. Thread-safe.
class KeptMessages final : public AttachSink {
 public:
  void Send(internal::v1::AttachRequest request) override {
    absl::MutexLock lock(&mutex_);
    messages_.push_back(std::move(request));
  }
  std::string peer() const override { return "ipv4:10.0.0.1:7"; }

  // The messages since the last call.
  std::vector<internal::v1::AttachRequest> Take() {
    absl::MutexLock lock(&mutex_);
    return std::exchange(messages_, {});
  }
  size_t count() const {
    absl::MutexLock lock(&mutex_);
    return messages_.size();
  }

 private:
  mutable absl::Mutex mutex_;
  std::vector<internal::v1::AttachRequest> messages_ ABSL_GUARDED_BY(mutex_);
};

// Links of a worker without peers. For one thread.
class NoPeers final : public PeerLinks {
 public:
  void Customize(grpc::ServerBuilder& /*builder*/) override {}
  grpc::Service* service() override { return nullptr; }
  void Start() override {}
  void Close() override {}
  void SetClusterId(std::string cluster_id) override { cluster_id_ = std::move(cluster_id); }
  void SetMembership(MembershipView view) override { view_ = std::move(view); }
  MembershipView membership() const override { return view_; }
  absl::Status ExpectStep(int64_t /*sequence*/, int64_t /*epoch*/) override {
    return absl::OkStatus();
  }
  void CloseStep(int64_t /*sequence*/) override {}
  absl::StatusOr<std::unique_ptr<StepLink>> OpenLink(std::string_view /*mesh_id*/,
                                                     int64_t /*sequence*/, int64_t /*epoch*/,
                                                     absl::Time /*deadline*/) override {
    return absl::UnavailableError("no peers");
  }
  void AbortStep(int64_t /*sequence*/, const absl::Status& /*status*/,
                 std::string_view /*blamed*/) override {}
  std::string BlamedFor(int64_t /*sequence*/) const override { return ""; }
  MeasuredLinks measured_links() const override { return {}; }
  Counters counters() const override { return {}; }

  const std::string& cluster_id() const { return cluster_id_; }

 private:
  std::string cluster_id_;
  MembershipView view_;
};

// Keeps the orders, and runs no step. For one thread.
class KeptOrders final : public StepExecutor {
 public:
  void Run(StepOrder order, Report report) override {
    runs.emplace_back(std::move(order), std::move(report));
  }
  absl::Status Commit(int64_t sequence) override {
    committed.push_back(sequence);
    return commit_status;
  }
  void Abort(int64_t /*sequence*/, const absl::Status& status) override {
    aborted.push_back(status);
  }
  void AbortUnfinished(const absl::Status& /*status*/) override {}
  void KeepStaged() override { ++kept_staged; }
  void Forget(absl::Span<const std::string> array_ids) override {
    forgotten.insert(forgotten.end(), array_ids.begin(), array_ids.end());
  }
  bool runs_steps() const override { return false; }
  std::vector<StepProgress> progress() const override { return {}; }

  absl::Status commit_status;
  std::vector<std::pair<StepOrder, Report>> runs;
  std::vector<int64_t> committed;
  std::vector<absl::Status> aborted;
  int kept_staged = 0;
  std::vector<std::string> forgotten;
};

// Keeps the orders, and fills nothing. Thread-safe.
class KeptFills final : public TileFiller {
 public:
  void Fill(FillOrder order, Failed failed) override {
    absl::MutexLock lock(&mutex_);
    orders_.emplace_back(std::move(order), std::move(failed));
  }
  void Check(std::vector<SourceFile> files, Checked checked) override {
    absl::MutexLock lock(&mutex_);
    checks_.emplace_back(std::move(files), std::move(checked));
  }
  void EndTransfer(const std::string& transfer_id) override {
    absl::MutexLock lock(&mutex_);
    ended_.push_back(transfer_id);
  }
  void Suspend() override {
    absl::MutexLock lock(&mutex_);
    ++suspensions_;
  }
  void Stop() override {}
  Counters counters() const override { return {}; }

  std::vector<std::pair<FillOrder, Failed>> orders() const {
    absl::MutexLock lock(&mutex_);
    return orders_;
  }
  std::vector<std::pair<std::vector<SourceFile>, Checked>> checks() const {
    absl::MutexLock lock(&mutex_);
    return checks_;
  }
  std::vector<std::string> ended() const {
    absl::MutexLock lock(&mutex_);
    return ended_;
  }
  int suspensions() const {
    absl::MutexLock lock(&mutex_);
    return suspensions_;
  }

 private:
  mutable absl::Mutex mutex_;
  std::vector<std::pair<FillOrder, Failed>> orders_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<std::vector<SourceFile>, Checked>> checks_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> ended_ ABSL_GUARDED_BY(mutex_);
  int suspensions_ ABSL_GUARDED_BY(mutex_) = 0;
};

// An array of four elements on the mesh of one rank that MembershipOf tells of for one worker.
inline ArrayDescriptor FourOnMesh(const std::string& id) {
  return {.array_id = id,
          .dtype = Dtype::kF32,
          .shape = {4},
          .spec = PartitionSpec(),
          .mesh_id = "m",
          .mesh_revision = 2,
          .mesh = *Mesh::Parse("x=1"),
          .cut_points = {}};
}

// A snapshot in term 3: mesh m, one axis x, whose ranks are these workers in order.
inline internal::v1::AttachResponse MembershipOf(int64_t epoch,
                                                 const std::vector<std::string>& identities) {
  internal::v1::AttachResponse response;
  internal::v1::Membership* membership = response.mutable_membership();
  membership->set_epoch(epoch);
  membership->set_term(3);
  internal::v1::MeshMembership* mesh = membership->add_meshes();
  mesh->set_mesh_id("m");
  mesh->set_mesh_revision(2);
  v1::MeshAxis* axis = mesh->mutable_mesh()->add_axes();
  axis->set_name("x");
  axis->set_size(static_cast<int64_t>(identities.size()));
  for (const std::string& identity : identities) {
    mesh->add_identities(identity);
    internal::v1::LiveWorker* worker = membership->add_workers();
    worker->set_identity(identity);
    worker->set_incarnation(7);
    worker->add_endpoints()->set_address("127.0.0.1:1");
  }
  membership->set_snapshot(true);
  membership->set_last(true);
  return response;
}

// Stages an array of four elements with one tile, in memory. Returns whether that worked.
inline bool StageFour(ShardStore& store, const std::string& array_id,
                      const std::string& descriptor = "", const std::string& transfer_id = "t") {
  auto staged = store.Stage({.array_id = array_id,
                             .dtype = Dtype::kF32,
                             .array_shape = {4},
                             .tile = {{{0, 4}}},
                             .array_descriptor = descriptor,
                             .transfer_id = transfer_id},
                            /*durable=*/false);
  if (!staged.ok()) return false;
  (*staged)->mutable_bytes()[0] = 'x';
  return (*staged)->Finish(std::nullopt).ok();
}

}  // namespace shardmesh::worker

#endif  // SHARDMESH_TESTS_UNIT_WORKER_SERVICE_ATTACH_FAKES_H_
