// ReadyCluster: the state of a coordinator with two workers, without services, on a fake clock.
#ifndef SHARDMESH_TESTS_UNIT_SERVER_STEPS_READY_CLUSTER_H_
#define SHARDMESH_TESTS_UNIT_SERVER_STEPS_READY_CLUSTER_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "process/random_bytes.h"
#include "server/state/array_registry.h"
#include "server/state/definitions.h"
#include "server/state/link_table.h"
#include "server/state/membership.h"
#include "server/state/recovery.h"
#include "server/state/request_memory.h"
#include "server/state/session.h"
#include "server/state/session_pins.h"
#include "server/steps/mesh_endpoints.h"
#include "server/steps/sequencer.h"
#include "server/store/local_store.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/define_mesh.h"

namespace shardmesh::server {

// Keeps what the workers would hear last.
class KeepingTransport final : public StepTransport {
 public:
  std::optional<Participant> Start(const WorkRef& work, const EncodedStepPtr& message) override {
    if (on_start) on_start();
    absl::MutexLock lock(&mutex_);
    ++started_;
    work_ = work;
    message_ = message;
    return std::nullopt;
  }
  void Commit(const WorkRef&) override {}
  void Abort(const WorkRef&, const absl::Status&) override {}

  std::function<void()> on_start;  // called before each start

  int started() {
    absl::MutexLock lock(&mutex_);
    return started_;
  }
  WorkRef work() {
    absl::MutexLock lock(&mutex_);
    return work_;
  }
  EncodedStepPtr message() {
    absl::MutexLock lock(&mutex_);
    return message_;
  }

 private:
  absl::Mutex mutex_;
  int started_ ABSL_GUARDED_BY(mutex_) = 0;
  WorkRef work_ ABSL_GUARDED_BY(mutex_);
  EncodedStepPtr message_ ABSL_GUARDED_BY(mutex_);
};

// Answers as the test says.
class FixedEndpoints final : public MeshEndpoints {
 public:
  absl::Status CheckReady(std::string_view) const override {
    if (on_check) std::exchange(on_check, nullptr)();
    if (on_each_check) on_each_check();
    return ready;
  }
  absl::StatusOr<std::vector<RankEndpoint>> Endpoints(std::string_view) const override {
    if (on_endpoints) on_endpoints();
    return endpoints;
  }

  mutable std::function<void()> on_check;  // called once, by the next CheckReady
  std::function<void()> on_each_check;     // called by each CheckReady
  std::function<void()> on_endpoints;      // called by each Endpoints
  absl::Status ready;
  std::vector<RankEndpoint> endpoints = {
      {.rank = 0, .identity = "w0", .incarnation = 1, .endpoints = {}},
      {.rank = 1, .identity = "w1", .incarnation = 1, .endpoints = {}}};
};

// Workers w0 and w1 serve the ranks of the mesh "m", which is x=2, and of the mesh "n", which is
// like it. Each worker has room for a mebibyte.
class ReadyCluster : public ::testing::Test {
 protected:
  ReadyCluster() {
    for (const char* identity : {"w0", "w1"}) {
      EXPECT_THAT(members_.Attach({.identity = identity,
                                   .incarnation = 1,
                                   .build_version = "1",
                                   .endpoints = {"127.0.0.1:1"},
                                   .host = "host",
                                   .capacity_bytes = 1 << 20}),
                  test::IsOk());
    }
    for (const char* mesh_id : {"m", "n"}) {
      revision_ = DefineMesh(definition_store_.get(), mesh_id, mesh_);
      EXPECT_THAT(members_.AddMesh(mesh_id, 2, {"w0", "w1"}), test::IsOk());
    }
    sequencer_ = std::make_unique<Sequencer>(&clock_, &transport_, Sequencer::Options{.term = 7});
    sequencer_->WorkerAttached("w0", 1);
    sequencer_->WorkerAttached("w1", 2);
    session_ = OpenSession();
  }

  std::string OpenSession() { return sessions_.Open(caller_, "", absl::Hours(1))->id; }

  // Eight F32 elements that lie over x.
  ArrayDescriptor Descriptor(const std::string& mesh_id = "m") const {
    return {.array_id = RandomId(),
            .dtype = Dtype::kF32,
            .shape = {8},
            .spec = PartitionSpec({SpecEntry::Axis("x")}),
            .mesh_id = mesh_id,
            .mesh_revision = revision_,
            .mesh = mesh_,
            .cut_points = {}};
  }
  // Commits the array under a name, or if that is empty pinned by the session.
  std::string AddArray(const ArrayDescriptor& descriptor, const std::string& name,
                       Durability durability = Durability::kMemory) {
    EXPECT_THAT(registry_->Stage({.descriptor = descriptor}), test::IsOk());
    CommitRequest commit;
    commit.arrays.push_back(
        {.array_id = descriptor.array_id, .durability = durability, .tile_crc32c = {1, 2}});
    if (name.empty()) {
      EXPECT_THAT(PinForSession(*registry_, sessions_, session_, descriptor.array_id),
                  test::IsOk());
    } else {
      commit.moves.push_back(
          {.name = name, .array_id = descriptor.array_id, .expected_version = {}});
    }
    absl::Notification done;
    registry_->Commit(std::move(commit), [&done](const absl::StatusOr<CommitResult>& result) {
      EXPECT_THAT(result, test::IsOk());
      done.Notify();
    });
    done.WaitForNotification();
    return descriptor.array_id;
  }
  // Two seconds later, each worker sends a heartbeat with these bytes in use.
  void Beat(int64_t used_bytes) {
    clock_.Advance(absl::Seconds(2));
    const auto view = members_.view();
    for (const auto& [identity, worker] : view->workers) {
      EXPECT_THAT(members_.Heartbeat(worker->attachment, used_bytes), test::IsOk());
    }
  }
  int64_t PinnedBySession() const { return sessions_.Get(session_)->pinned_arrays; }

  const rpc::Caller caller_{.name = "host:10.0.0.1"};
  const Mesh mesh_ = *Mesh::Parse("x=2");
  Revision revision_ = 0;  // of the mesh "n"
  test::FakeClock clock_;
  const std::unique_ptr<Store> store_ = CreateMemoryStore();
  const std::unique_ptr<RequestMemory> requests_ = *RequestMemory::Open(store_.get(), &clock_);
  const std::unique_ptr<DefinitionStore> definition_store_ =
      *DefinitionStore::Open(store_.get(), &clock_, requests_.get());
  std::function<void()> on_release_;  // called when workers are to drop arrays
  const std::unique_ptr<ArrayRegistry> registry_ =
      *ArrayRegistry::Open(store_.get(), &clock_, [this](const auto&, const auto&) {
        if (on_release_) on_release_();
      });
  Membership members_{&clock_, {.lost_after = absl::Hours(1)}};  // heartbeats come only from Beat
  Recovery recovery_{&clock_};
  LinkTable links_;
  SessionTable sessions_{&clock_, [](const EndedSession&) {}};
  FixedEndpoints endpoints_;
  KeepingTransport transport_;
  std::unique_ptr<Sequencer> sequencer_;
  std::string session_;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_TESTS_UNIT_SERVER_STEPS_READY_CLUSTER_H_
