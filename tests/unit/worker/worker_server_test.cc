// What a worker is given by its options, before it serves.
#include "worker/worker_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>

#include "rpc/call.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::StatusIs;
using ::testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;

TEST(WorkerServerTest, TheMemoryOfCallsFollowsFromThatOfTilesWithinBounds) {
  EXPECT_EQ(DefaultRpcMemoryBytes(1), 256 * kMiB);
  EXPECT_EQ(DefaultRpcMemoryBytes(1024 * kMiB), 256 * kMiB);
  EXPECT_EQ(DefaultRpcMemoryBytes(4096 * kMiB), 1024 * kMiB);
  EXPECT_EQ(DefaultRpcMemoryBytes(1'000'000 * kMiB), 4096 * kMiB);
  EXPECT_GT(kMinRpcMemoryBytes, rpc::kMaxDataMessageBytes);
}

TEST(WorkerServerTest, RefusesLessMemoryForCallsThanOneOfThemTakes) {
  WorkerOptions options;
  options.identity = "w";
  options.rpc_memory_bytes = kMinRpcMemoryBytes - 1;
  const absl::Status refused = WorkerServer::Start(std::move(options)).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("--rpc-memory is 16777215 B, less than one stream of a client may take; "
                        "give 16777216 B or more"));
}

}  // namespace
}  // namespace shardmesh::worker
