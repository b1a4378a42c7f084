// Worker streams with a fake clock, over a store in memory and without gRPC.
#ifndef SHARDMESH_TESTS_UNIT_SERVER_WORKER_STREAMS_FIXTURE_H_
#define SHARDMESH_TESTS_UNIT_SERVER_WORKER_STREAMS_FIXTURE_H_

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/attach/worker_streams.h"
#include "server/diagnosis/flight_log.h"
#include "server/state/array_registry.h"
#include "server/state/definitions.h"
#include "server/state/link_table.h"
#include "server/state/membership.h"
#include "server/state/recovery.h"
#include "server/steps/sequencer.h"
#include "server/store/local_store.h"
#include "shardmesh/internal/v1/attach_service.pb.h"
#include "tests/testing/eventually.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {

// The messages that the coordinator has sent on a worker's stream. Thread-safe.
class SentMessages {
 public:
  void Add(const WorkerMessage& message) {
    internal::v1::AttachResponse response;
    ASSERT_TRUE(response.ParseFromString(*message));
    absl::MutexLock lock(&mutex_);
    sent_.push_back(std::move(response));
  }
  std::vector<internal::v1::AttachResponse> all() const {
    absl::MutexLock lock(&mutex_);
    return sent_;
  }
  // The kinds of all messages except memberships, in order.
  std::vector<internal::v1::AttachResponse::MessageCase> kinds() const {
    std::vector<internal::v1::AttachResponse::MessageCase> kinds;
    for (const internal::v1::AttachResponse& each : all()) {
      if (!each.has_membership()) kinds.push_back(each.message_case());
    }
    return kinds;
  }
  std::vector<internal::v1::Membership> memberships() const {
    std::vector<internal::v1::Membership> pages;
    for (const internal::v1::AttachResponse& each : all()) {
      if (each.has_membership()) pages.push_back(each.membership());
    }
    return pages;
  }

 private:
  mutable absl::Mutex mutex_;
  std::vector<internal::v1::AttachResponse> sent_;
};

// The core of a coordinator, connected by the same listeners as in coordinator_server.cc.
class WorkerStreamsFixture : public testing::Test {
 protected:
  // A pending question to a worker's endpoint; the test calls `answered` to answer it.
  struct Question {
    std::string address;
    absl::AnyInvocable<void(absl::StatusOr<EndpointAnswer>) &&> answered;
  };

  WorkerStreamsFixture() {
    registry_ = *ArrayRegistry::Open(store_.get(), &clock_, [](const auto&, const auto&) {});
    definition_store_ = *DefinitionStore::Open(store_.get(), &clock_, &registry_->requests());
    WorkerStreamsOptions options;
    options.cluster_id = "cluster";
    options.term = 7;
    options.token_key = "key";
    options.build_version = "1.2";
    options.ask_endpoint = [this](const std::string& address, const std::string&, absl::Duration,
                                  auto answered) -> std::function<void()> {
      questions_.push_back({address, std::move(answered)});
      return [] {};
    };
    options.flight_log = &flight_log_;
    options.link_table = &link_table_;
    options.clock = &clock_;
    options.recovery = &recovery_;
    options.damaged = [this] { ++damaged_; };
    options.free_memory = [this](std::string_view identity, int64_t need_bytes, bool on_disk) {
      if (free_memory_) free_memory_(need_bytes);
      is_disk_asked_for_ = on_disk;
      return identity == "a" ? 2 * need_bytes : 0;
    };
    options.tile_staged = [this](std::string_view transfer_id, std::string_view,
                                 int64_t size_bytes) {
      if (tile_staged_) tile_staged_(transfer_id, size_bytes);
    };
    options.inventory_timeout = absl::Seconds(3);
    options.max_inventory_tiles = 2;
    streams_ = std::make_unique<WorkerStreams>(&members_, registry_.get(), definition_store_.get(),
                                               std::move(options));
    sequencer_ =
        std::make_unique<Sequencer>(&clock_, streams_.get(), Sequencer::Options{.term = 7});
    members_.AddListener([this](const MembershipEvent& event) {
      if (event.kind == MembershipEvent::Kind::kAttached) {
        sequencer_->WorkerAttached(event.identity, event.epoch);
      } else if (event.kind == MembershipEvent::Kind::kLost) {
        streams_->WorkerLost(event.identity, event.worker->attachment);
        sequencer_->WorkerLost(event.identity, event.epoch, event.worker->lost_because);
      }
      streams_->MembershipChanged();
    });
  }
  ~WorkerStreamsFixture() override { sequencer_.reset(); }

  test::FakeClock clock_;
  const std::unique_ptr<Store> store_ = CreateMemoryStore({.history = DefinitionHistory()});
  std::unique_ptr<ArrayRegistry> registry_;
  std::unique_ptr<DefinitionStore> definition_store_;
  Membership members_{&clock_};
  FlightLog flight_log_;
  LinkTable link_table_;
  Recovery recovery_{&clock_};
  std::vector<Question> questions_;
  std::function<void(std::string_view, int64_t)> tile_staged_;  // set before workers attach
  std::function<void(int64_t)> free_memory_;                    // set before workers attach
  std::atomic<bool> is_disk_asked_for_ = false;                 // by the last request for memory
  std::atomic<int> damaged_ = 0;                                // reports of damaged tiles
  std::unique_ptr<WorkerStreams> streams_;
  std::unique_ptr<Sequencer> sequencer_;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_TESTS_UNIT_SERVER_WORKER_STREAMS_FIXTURE_H_
