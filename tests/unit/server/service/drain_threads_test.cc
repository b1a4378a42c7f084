// Threads on which ClusterService answers: gRPC's own stay free while drains count tiles and the
// cache is dropped.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "rpc/call.h"
#include "rpc/codec/status.h"
#include "server/service/cluster_service.h"
#include "server/state/cluster_changes.h"
#include "server/steps/array_cache.h"
#include "shardmesh/v1/cluster_service.grpc.pb.h"
#include "tests/testing/eventually.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/steps/ready_cluster.h"

namespace shardmesh::server {
namespace {

class DrainThreadsTest : public ReadyCluster {
 protected:
  DrainThreadsTest() {
    CoordinatorParts context;
    context.clock = &clock_;
    context.definition_store = definition_store_.get();
    context.membership = &members_;
    context.registry = registry_.get();
    context.sessions = &sessions_;
    context.recovery = &recovery_;
    context.cache = &cache_;
    ClusterServiceOptions options;
    options.cluster_id = "cluster";
    options.recovery = &recovery_;
    options.membership = &members_;
    options.definition_store = definition_store_.get();
    options.live = [this] {
      ++at_work_;
      go_.WaitForNotification();
      return std::vector<Sequencer::LiveWork>();
    };
    service_ = MakeClusterService(context, std::move(options), &changes_, {}).service;
    grpc::ServerBuilder builder;
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    stub_ = v1::ClusterService::NewStub(server_->InProcessChannel({}));
  }
  ~DrainThreadsTest() override {
    server_->Shutdown(absl::ToChronoTime(absl::Now() + absl::Seconds(10)));
    sequencer_.reset();
  }

  absl::Status Drain() {
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(absl::Seconds(30)), &context);
    v1::DrainWorkerRequest request;
    request.set_identity("w0");
    request.set_validate_only(true);
    v1::DrainWorkerResponse response;
    return rpc::FromGrpc(stub_->DrainWorker(&context, request, &response));
  }

  absl::Status DropCache(v1::DropCacheResponse* response) {
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(absl::Seconds(30)), &context);
    return rpc::FromGrpc(stub_->DropCache(&context, {}, response));
  }
  // Answers calls of gRPC's own threads.
  void ExpectVersions(int calls) {
    for (int i = 0; i < calls; ++i) {
      grpc::ClientContext context;
      rpc::Apply(rpc::CallOptions::Within(absl::Seconds(30)), &context);
      v1::GetVersionResponse version;
      EXPECT_THAT(rpc::FromGrpc(stub_->GetVersion(&context, {}, &version)), test::IsOk());
    }
  }

  std::atomic<int> at_work_ = 0;  // drains that have begun to count
  absl::Notification go_;
  ClusterChanges changes_{&clock_};
  ArrayCache cache_{registry_.get(), &members_};
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::ClusterService::Stub> stub_;
};

TEST_F(DrainThreadsTest, DrainsThatCountForLongKeepNoThreadOfGrpc) {
  constexpr int kDrains = 20;  // gRPC has at most 16 threads
  std::vector<std::thread> drains;
  for (int i = 0; i < kDrains; ++i) {
    drains.emplace_back([this] { EXPECT_THAT(Drain(), test::IsOk()); });
  }
  EXPECT_TRUE(test::Eventually([this] { return at_work_ >= 1; }));
  ExpectVersions(kDrains);
  go_.Notify();
  for (std::thread& drain : drains) drain.join();
}

TEST_F(DrainThreadsTest, DropsOfTheCacheWaitForTheThreadOfDrains) {
  std::thread drain([this] { EXPECT_THAT(Drain(), test::IsOk()); });
  EXPECT_TRUE(test::Eventually([this] { return at_work_ >= 1; }));
  std::atomic<bool> has_dropped = false;
  std::thread drop([&] {
    v1::DropCacheResponse response;
    EXPECT_THAT(DropCache(&response), test::IsOk());
    EXPECT_EQ(response.arrays(), 0);
    has_dropped = true;
  });
  ExpectVersions(20);
  EXPECT_FALSE(has_dropped) << "a thread of gRPC has listed the cache";
  go_.Notify();
  drain.join();
  drop.join();
}

}  // namespace
}  // namespace shardmesh::server
