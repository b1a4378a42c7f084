// New connections: to servers that come late, to addresses that answer nothing, and none.
#include "rpc/connector.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/channel.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "rpc/dial.h"
#include "rpc/server_lifecycle.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::rpc {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;

// A socket of this host that listens and takes no connection in: further SYNs are swallowed.
class SilentSocket {
 public:
  SilentSocket() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(socket_.get(), 0), 0);
    EXPECT_EQ(getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    // As many as its queue has room for.
    while (true) {
      auto queued = Dial(this->address(), absl::Now() + absl::Milliseconds(200));
      if (!queued.ok()) break;
      queued_.push_back(*std::move(queued));
    }
  }

  std::string address() const { return StrCat("127.0.0.1:", port_); }

 private:
  FileDescriptor socket_;
  int port_ = 0;
  std::vector<FileDescriptor> queued_;
};

TEST(ConnectorTest, ConnectsEachTimeOverAChannelOfItsOwn) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto server, ServerLifecycle::Start({}, {}));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto connector, Connector::Create(server->address(), {}));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto first, connector->Connect(absl::Seconds(10)));
  EXPECT_EQ(first->GetState(false), GRPC_CHANNEL_READY);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto second, connector->Connect(absl::Seconds(10)));
  EXPECT_EQ(second->GetState(false), GRPC_CHANNEL_READY);
  EXPECT_NE(first, second);
}

TEST(ConnectorTest, AnAddressThatRefusesFailsAtOnce) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto connector, Connector::Create("127.0.0.1:1", {}));
  const absl::Time start = absl::Now();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto channel, connector->Connect(absl::Seconds(10)));
  EXPECT_EQ(channel->GetState(false), GRPC_CHANNEL_TRANSIENT_FAILURE);
  EXPECT_LT(absl::Now() - start, absl::Seconds(2));
}

TEST(ConnectorTest, ASilentAddressTakesUntilTheTimeout) {
  const SilentSocket silent;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto connector, Connector::Create(silent.address(), {}));
  EXPECT_THAT(connector->Connect(absl::Milliseconds(1500)).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST(ConnectorTest, ConnectsSoonToAServerInThePlaceOfOneThatWasSilent) {
  auto silent = std::make_unique<SilentSocket>();
  const std::string address = silent->address();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto connector, Connector::Create(address, {}));
  std::unique_ptr<ServerLifecycle> server;
  absl::Time served;
  // By then a channel would wait for seconds with its next SYN.
  std::thread replacing([&] {
    absl::SleepFor(absl::Milliseconds(3500));
    silent.reset();
    auto started = ServerLifecycle::Start({.address = address}, {});
    ASSERT_THAT(started, IsOk());
    served = absl::Now();
    server = *std::move(started);
  });
  // A closed socket refuses at first, and the next call finds the server.
  grpc_connectivity_state state = GRPC_CHANNEL_TRANSIENT_FAILURE;
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (state != GRPC_CHANNEL_READY && absl::Now() < deadline) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto channel, connector->Connect(absl::Seconds(10)));
    state = channel->GetState(false);
  }
  const absl::Time connected = absl::Now();
  replacing.join();
  EXPECT_EQ(state, GRPC_CHANNEL_READY);
  EXPECT_LT(connected - served, absl::Seconds(2));
}

TEST(ConnectorTest, CancelEndsIt) {
  const SilentSocket silent;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto connector, Connector::Create(silent.address(), {}));
  const absl::Time start = absl::Now();
  std::thread cancelling([&] { connector->Cancel(); });
  EXPECT_THAT(connector->Connect(absl::Seconds(30)).status(),
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  cancelling.join();
  EXPECT_THAT(connector->Connect(absl::Seconds(30)).status(),
              StatusIs(absl::StatusCode::kCancelled));
}

TEST(ConnectorTest, RefusesTextThatIsNoAddress) {
  EXPECT_THAT(Connector::Create("nowhere", {}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace shardmesh::rpc
