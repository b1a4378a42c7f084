// AttachFixture: the parts of a worker that handle its attach stream, without a coordinator.
#ifndef SHARDMESH_TESTS_UNIT_WORKER_SERVICE_ATTACH_FIXTURE_H_
#define SHARDMESH_TESTS_UNIT_WORKER_SERVICE_ATTACH_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "rpc/codec/time_codec.h"
#include "rpc/contract.h"
#include "rpc/transfer_token.h"
#include "tensor/buffer.h"
#include "tests/unit/worker/service/attach_fakes.h"
#include "worker/service/attach_handler.h"

namespace shardmesh::worker {

// A worker "w1", which has rank 1 of a mesh x=2. A test makes the handler with its filler.
template <typename ClockType>
class AttachFixture : public testing::Test {
 protected:
  using Message = internal::v1::AttachResponse;

  AttachFixture() {
    store_ = *ShardStore::Open({.pool = pool_, .data_dir = ""});
    gate_ = std::make_unique<TileGate>(TileGate::Options{
        .identity = "w1",
        .store = store_.get(),
        .clock = &clock_,
        .staged = [this](const TileReport& report) { reports_->ReportTile(report); }});
    terms_ = *TermKeeper::Open("");
    reports_ = std::make_unique<AttachReports>(
        AttachReports::Options{.clock = &clock_,
                               .store = store_.get(),
                               .progress = [] { return std::vector<StepProgress>(); },
                               .measured_links = [] { return MeasuredLinks(); },
                               .ready_changed = [](bool) {}});
  }
  // The filler outlives the handler.
  void MakeHandler(TileFiller* filler) {
    handler_ =
        std::make_unique<AttachHandler>(AttachHandler::Options{.coordinator = "coordinator:1",
                                                               .identity = "w1",
                                                               .clock = &clock_,
                                                               .store = store_.get(),
                                                               .memory = &memory_,
                                                               .gate = gate_.get(),
                                                               .links = &links_,
                                                               .executor = &executor_,
                                                               .terms = terms_.get(),
                                                               .reports = reports_.get(),
                                                               .filler = filler});
  }

  absl::Status Take(const Message& message) { return handler_->Take(message, stream_); }
  static Message Welcome(int64_t term = 3, absl::Duration heartbeat = absl::Seconds(10)) {
    Message message;
    internal::v1::Welcome* welcome = message.mutable_welcome();
    welcome->set_cluster_id("cluster");
    welcome->set_term(term);
    welcome->set_protocol(rpc::kNewestProtocol);
    welcome->set_token_key(std::string(rpc::kTokenKeyBytes, 'k'));
    rpc::Encode(heartbeat, welcome->mutable_heartbeat_interval());
    return message;
  }
  static Message Membership(int64_t epoch) { return MembershipOf(epoch, {"w0", "w1"}); }
  // Takes the worker in, and forgets the messages of the attach.
  void Attach(absl::Duration heartbeat = absl::Seconds(10)) {
    ASSERT_TRUE(Take(Welcome(3, heartbeat)).ok());
    ASSERT_TRUE(Take(Membership(4)).ok());
    stream_->Take();
  }

  ClockType clock_;
  MemoryBudget budget_{int64_t{16} << 20};
  std::shared_ptr<BufferPool> pool_ = BufferPool::Create(&budget_, 0);
  std::unique_ptr<ShardStore> store_;
  std::unique_ptr<TileGate> gate_;
  NoPeers links_;
  KeptOrders executor_;
  std::shared_ptr<KeptMessages> stream_ = std::make_shared<KeptMessages>();
  std::unique_ptr<TermKeeper> terms_;
  MemoryRequests memory_{absl::Minutes(5)};
  std::unique_ptr<AttachReports> reports_;
  std::unique_ptr<AttachHandler> handler_;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_TESTS_UNIT_WORKER_SERVICE_ATTACH_FIXTURE_H_
