// A coordinator that goes while its threads still have something to tell the workers.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "process/failpoint.h"
#include "rpc/contract.h"
#include "tests/unit/server/hollow_fixture.h"

namespace shardmesh::test {
namespace {

class CoordinatorStopTest : public HollowFixture {
 protected:
  absl::Status DeleteName(const std::string& name) {
    v1::DeleteNameRequest request;
    request.set_request_id("delete " + name);
    request.set_name(name);
    v1::DeleteNameResponse response;
    return Call<v1::ArrayService>(&v1::ArrayService::Stub::DeleteName, request, &response);
  }
  // At once: what runs is cut off.
  void End() {
    channel_.reset();
    coordinator_.reset();
    workers_.reset();
  }
};

// The store's thread tells of a release, while the streams to the workers go.
TEST_F(CoordinatorStopTest, AReleaseThatIsToldWhenTheStreamsAreGoneHarmsNobody) {
  StartCoordinator("tp=1");
  StartWorkers(1);
  ASSERT_TRUE(AwaitQuiet("default"));
  const std::string session = OpenSession();
  v1::ExecuteRequest request = Product(session, "default");
  request.mutable_output()->add_names("w");
  const auto made = Execute(request);
  ASSERT_THAT(made, IsOk());
  const std::string array_id = made->outputs(0).array().array_descriptor().array_id();
  ASSERT_THAT(Release(session, array_id), IsOk());  // the name keeps it
  ASSERT_THAT(ArmFailpoints("registry.tell_released=delay"), IsOk());
  ASSERT_THAT(DeleteName("w"), IsOk());
  EXPECT_TRUE(Eventually([] { return !IsArmed("registry.tell_released"); }));
  End();
}

// The thread of the resize goes on after the end of all calls.
TEST_F(CoordinatorStopTest, AResizeThatBeginsAMoveAsTheCoordinatorGoesHarmsNobody) {
  StartCoordinator("tp=2");
  Begin({.count = 2, .features = {std::string(rpc::kFillFeature)}});
  ASSERT_TRUE(workers_->AwaitMembers(2, kTimeout)) << workers_->totals().last_end;
  ASSERT_TRUE(AwaitQuiet("default"));
  const std::string session = OpenSession();
  v1::ExecuteRequest product = Product(session, "default");
  product.mutable_output()->add_names("w");
  ASSERT_THAT(Execute(product), IsOk());
  ASSERT_THAT(ArmFailpoints("transfer.begin=delay"), IsOk());
  v1::ResizeMeshRequest resize;
  resize.set_request_id("resize");
  resize.set_session_id(session);
  resize.set_mesh("default");
  resize.set_shape("tp=1");
  v1::ResizeMeshResponse begun;
  ASSERT_THAT(Call<v1::ArrayService>(&v1::ArrayService::Stub::ResizeMesh, resize, &begun), IsOk());
  EXPECT_TRUE(Eventually([] { return !IsArmed("transfer.begin"); }));
  End();
}

TEST_F(CoordinatorStopTest, StreamsThatAttachAsTheCoordinatorGoesEnd) {
  constexpr int64_t kWorkers = 16;
  for (int round = 0; round < 20; ++round) {
    StartCoordinator("tp=16");
    // Endpoints are being asked, inventories come, and the first are told of each other.
    Begin({.count = kWorkers,
           .attach_delay = absl::Milliseconds(1),
           .inventory_pages = 3,
           .page_interval = absl::Milliseconds(2 * (round % 3)),
           .identify_delay = absl::Milliseconds(5 * (round % 2))});
    const int64_t enough = std::min<int64_t>(round, kWorkers);
    ASSERT_TRUE(workers_->Await(
        [&](const HollowWorkers::Totals& now) { return now.identifies >= enough; }, kTimeout))
        << workers_->totals().last_end;
    End();
  }
}

TEST_F(CoordinatorStopTest, ArraysThatGoWhileWorkersAttachAndTheCoordinatorStopsHarmNobody) {
  for (int round = 0; round < 10; ++round) {
    StartCoordinator("tp=1");
    StartWorkers(1);
    ASSERT_TRUE(AwaitQuiet("default"));
    const std::string session = OpenSession();
    // Steps that end, arrays that are released, and a worker that comes anew.
    std::thread caller([&] {
      for (;;) {
        const auto made = Execute(Product(session, "default"));
        if (!made.ok()) return;
        const auto& array = made->outputs(0).array().array_descriptor();
        if (!Release(session, array.array_id()).ok()) return;
      }
    });
    const auto drops = [this] {
      return Heard(0,
                   [](const internal::v1::AttachResponse& told) { return told.has_drop_arrays(); })
          .size();
    };
    const size_t before = drops();
    EXPECT_TRUE(Eventually([&] { return drops() > before; }));
    workers_->AttachAgain(0);
    coordinator_->Drain(absl::Now());
    caller.join();
    End();
  }
}

}  // namespace
}  // namespace shardmesh::test
