// Requests for memory that cached arrays take.
#include "worker/service/attach_memory_requests.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>

#include "absl/time/time.h"
#include "shardmesh/internal/v1/attach_service.pb.h"
#include "tests/testing/eventually.h"
#include "tests/unit/worker/service/attach_fakes.h"

namespace shardmesh::worker {
namespace {

class MemoryRequestsTest : public ::testing::Test {
 protected:
  // Asks on another thread, and returns the request that the coordinator gets.
  internal::v1::MemoryRequest Ask(int64_t need_bytes) {
    asked_ =
        std::async(std::launch::async, [this, need_bytes] { return requests_.Free(need_bytes); });
    EXPECT_TRUE(test::Eventually([&] { return stream_->count() == 1; }));
    return stream_->Take().front().memory_request();
  }

  const std::shared_ptr<KeptMessages> stream_ = std::make_shared<KeptMessages>();
  MemoryRequests requests_{absl::Minutes(5)};
  std::future<bool> asked_;
};

TEST_F(MemoryRequestsTest, FreesNothingWithoutACoordinator) {
  EXPECT_FALSE(requests_.Free(1));
  requests_.Attached(stream_);
  requests_.Detached();
  EXPECT_FALSE(requests_.Free(1));
  EXPECT_EQ(stream_->count(), 0U);
}

TEST_F(MemoryRequestsTest, ReturnsWhetherTheCoordinatorHasReleasedArrays) {
  requests_.Attached(stream_);
  internal::v1::MemoryRequest request = Ask(1'000);
  EXPECT_EQ(request.need_bytes(), 1'000);
  EXPECT_FALSE(request.on_disk());
  requests_.Answered(request.order_id() + 1, 1);  // of another request
  requests_.Answered(request.order_id(), 4'096);
  EXPECT_TRUE(asked_.get());
  requests_.Answered(request.order_id(), 4'096);  // nobody waits
  const int64_t last = request.order_id();
  request = Ask(7);
  EXPECT_NE(request.order_id(), last);
  requests_.Answered(request.order_id(), 0);
  EXPECT_FALSE(asked_.get());
}

TEST_F(MemoryRequestsTest, AsksForDiskSpaceToo) {
  requests_.Attached(stream_);
  asked_ = std::async(std::launch::async, [this] { return requests_.Free(7, /*on_disk=*/true); });
  EXPECT_TRUE(test::Eventually([&] { return stream_->count() == 1; }));
  const internal::v1::MemoryRequest request = stream_->Take().front().memory_request();
  EXPECT_TRUE(request.on_disk());
  requests_.Answered(request.order_id(), 8);
  EXPECT_TRUE(asked_.get());
}

TEST_F(MemoryRequestsTest, EndsWithTheStream) {
  requests_.Attached(stream_);
  Ask(1'000);
  requests_.Detached();
  EXPECT_FALSE(asked_.get());
}

TEST(UnansweredMemoryRequestTest, EndsAfterItsTimeout) {
  MemoryRequests requests(absl::Milliseconds(1));
  requests.Attached(std::make_shared<KeptMessages>());
  EXPECT_FALSE(requests.Free(1));
}

}  // namespace
}  // namespace shardmesh::worker
