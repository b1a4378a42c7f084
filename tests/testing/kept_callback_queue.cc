// Linked to test programs that start and stop gRPC servers. gRPC 1.51 ends the threads of its
// callback queue with the last server of a process, and sometimes aborts in them. This file
// therefore keeps an unused server alive until the process ends, and beyond.
#include <gtest/gtest.h>

#include <memory>

#include "rpc/server_lifecycle.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::test {
namespace {

class KeptCallbackQueue final : public ::testing::Environment {
 public:
  void SetUp() override {
    static auto* const server = new absl::StatusOr<std::unique_ptr<rpc::ServerLifecycle>>(
        rpc::ServerLifecycle::Start({}, {}));
    ASSERT_THAT(*server, IsOk());
  }
};

// gtest owns it.
[[maybe_unused]] const ::testing::Environment* const kKept =
    ::testing::AddGlobalTestEnvironment(new KeptCallbackQueue());

}  // namespace
}  // namespace shardmesh::test
