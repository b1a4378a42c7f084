// Callers' hosts, as gRPC writes peers.
#include "rpc/caller.h"

#include <gtest/gtest.h>

namespace shardmesh::rpc {
namespace {

TEST(CallerTest, TheHostOfAPeerIsWithoutItsPort) {
  EXPECT_EQ(HostOfPeer("ipv4:10.0.0.7:4711"), "10.0.0.7");
  EXPECT_EQ(HostOfPeer("ipv6:%5B::1%5D:4711"), "::1");
  EXPECT_EQ(HostOfPeer("ipv6:[fe80::1]:4711"), "fe80::1");
  EXPECT_EQ(HostOfPeer("unix:/run/socket"), "unix");
  EXPECT_EQ(HostOfPeer("unix-abstract:name"), "unix");
  EXPECT_EQ(HostOfPeer(""), "");
  EXPECT_EQ(HostOfPeer("odd"), "odd");
  EXPECT_EQ(HostOfPeer("odd:"), "odd:");
}

}  // namespace
}  // namespace shardmesh::rpc
