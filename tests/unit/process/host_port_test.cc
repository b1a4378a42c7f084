// Addresses, and which of them only this host can reach.
#include "process/host_port.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "rpc/tls/credentials.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;

TEST(HostPortTest, ReadsAndWritesAddresses) {
  for (const char* text : {"localhost:7070", "127.0.0.1:0", "[::1]:65535", "worker-0.svc:1"}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const HostPort parsed, ParseHostPort(text));
    EXPECT_EQ(parsed.ToString(), text);
  }
}

TEST(HostPortTest, RefusesWhatIsNoAddress) {
  for (const char* text :
       {"", "host", "host:", ":1", "host:65536", "host:-1", "host:+1", "host:1x", "::1", "[::1]",
        "a:b:1", "[[a]]:5", "[[::1]]:5", "[a]:5", "[]:5", "a]:5", "[a:5", "a[b:5", "[::1]]:5"}) {
    EXPECT_THAT(CheckAddress(text), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField))
        << text;
  }
  EXPECT_THAT(CheckAddress("unix:/tmp/s"), IsOk());
  EXPECT_THAT(std::string(CheckAddress("http://host:7070").message()),
              ::testing::HasSubstr("begins with a scheme; write HOST:PORT"));
}

TEST(HostPortTest, PutsAnotherPortInItsPlace) {
  EXPECT_EQ(WithPort("worker-0.svc:1", 7074), "worker-0.svc:7074");
  EXPECT_EQ(WithPort("[::1]:7072", 7074), "[::1]:7074");
  EXPECT_EQ(WithPort("127.0.0.1:7072", 0), "127.0.0.1:7072");
  EXPECT_EQ(WithPort("unix:/tmp/s", 7074), "unix:/tmp/s");
}

TEST(HostNameTest, IsTheOneThatTheKernelReports) {
  std::ifstream file("/proc/sys/kernel/hostname");
  std::string name;
  ASSERT_TRUE(std::getline(file, name));
  EXPECT_EQ(HostName(), name);
}

TEST(CheckBindAddressTest, OnlyLoopbackNeedsNoPermission) {
  for (const char* text : {"127.0.0.1:1", "127.8.8.8:1", "localhost:1", "[::1]:1", "unix:/s"}) {
    EXPECT_THAT(rpc::CheckBindAddress(text, false), IsOk()) << text;
  }
  for (const char* text : {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "127.0.0.1.example:1", "host:1",
                           "[::ffff:10.0.0.1]:1"}) {
    EXPECT_THAT(rpc::CheckBindAddress(text, false), StatusIs(absl::StatusCode::kFailedPrecondition))
        << text;
    EXPECT_THAT(rpc::CheckBindAddress(text, true), IsOk()) << text;
  }
  EXPECT_THAT(rpc::CheckBindAddress("nowhere", true), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace shardmesh
