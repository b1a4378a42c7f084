// New connections: to servers that come late, to addresses that answer nothing, and none.
#include "rpc/connector.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/channel.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "process/file.h"
#include "rpc/call.h"
#include "rpc/connect.h"
#include "rpc/server_lifecycle.h"
#include "rpc/tls/dial.h"
#include "tests/testing/silent_socket.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::rpc {
namespace {

using ::shardmesh::test::BindToLoopback;
using ::shardmesh::test::IsOk;
using ::shardmesh::test::SilentSocket;
using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Clock = std::chrono::steady_clock;

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

TEST(WaitForConnectedTest, EndsSoonAfterItIsCancelled) {
  const SilentSocket silent;
  const ChannelOptions options{.own_connection = true};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto channel, CreateChannel(silent.address(), options));
  const Clock::time_point start = Clock::now();
  const ConnectOptions wait{.timeout = absl::Seconds(30), .is_cancelled = [start] {
                              return Clock::now() - start > std::chrono::milliseconds(200);
                            }};
  EXPECT_THAT(WaitForConnected(*channel, silent.address(), wait, options),
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
}

TEST(WaitForConnectedTest, NamesNoNegativeTime) {
  const SilentSocket silent;
  const ChannelOptions options{.own_connection = true};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto channel, CreateChannel(silent.address(), options));
  const absl::Status status =
      WaitForConnected(*channel, silent.address(), absl::Microseconds(-824), options);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(std::string(status.message()), HasSubstr("no time was left to connect"));
}

TEST(WaitForConnectedTest, DoesNotBlameAServerForAShortWait) {
  // The kernel accepts connections, and no process answers on them.
  const FileDescriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const std::string address = BindToLoopback(listener.get());
  ASSERT_EQ(listen(listener.get(), 8), 0);
  const ChannelOptions options{.own_connection = true};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto channel, CreateChannel(address, options));
  const absl::Status status = WaitForConnected(*channel, address, absl::Milliseconds(20), options);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("no connection within 20ms; a process accepts connections there: "
                              "give it more time"),
                    Not(HasSubstr("another server"))));
}

TEST(ConnectorTest, RefusesTextThatIsNoAddress) {
  EXPECT_THAT(Connector::Create("nowhere", {}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

// A server at one address of `localhost`, at whose other address nothing answers.
class TwoAddressesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(server_, ServerLifecycle::Start({}, {}));
    name_ = StrCat("localhost:", server_->port());
    const DialledAddresses found = DialEach(name_, absl::Now() + absl::Seconds(10));
    if (found.accepting.size() + found.refusing.size() != 2) {
      GTEST_SKIP() << "localhost does not stand for 127.0.0.1 and ::1 here";
    }
    silent_ = std::make_unique<SilentSocket>(server_->port());
  }

  // What came of a new channel, and what was said while it was waited for.
  absl::Status Connect(const ConnectOptions& wait) {
    const ChannelOptions options{.keepalive_timeout = absl::Seconds(1), .own_connection = true};
    SHARDMESH_ASSIGN_OR_RETURN(const auto channel, CreateChannel(name_, options));
    ConnectOptions told = wait;
    told.on_wait = [this](const absl::Status& why) { said_.push_back(why.ToString()); };
    return WaitForConnected(*channel, name_, told, options);
  }

  std::unique_ptr<ServerLifecycle> server_;
  std::unique_ptr<SilentSocket> silent_;
  std::string name_;
  std::vector<std::string> said_;
};

TEST_F(TwoAddressesTest, EachAddressIsDialledWhateverTheOthersAnswer) {
  const DialledAddresses found = DialEach(name_, absl::Now() + absl::Milliseconds(500));
  EXPECT_THAT(found.accepting, ElementsAre(server_->address()));
  EXPECT_THAT(found.silent, ElementsAre(silent_->address()));
  EXPECT_THAT(found.refusing, IsEmpty());
  const Clock::time_point start = Clock::now();
  EXPECT_THAT(Dial(name_, absl::Now() + absl::Seconds(10)), IsOk());
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(2));
}

TEST_F(TwoAddressesTest, AConnectionGoesOnToTheAddressThatAnswers) {
  EXPECT_THAT(Connect({.timeout = absl::Seconds(1), .limit = absl::Seconds(30)}), IsOk());
  // Unless gRPC began with the other one.
  if (!said_.empty()) {
    EXPECT_THAT(
        said_, ElementsAre(HasSubstr(StrCat(name_, ": ", silent_->address(),
                                            " does not answer; now trying ", server_->address()))));
  }
}

TEST_F(TwoAddressesTest, AnAddressThatAnswersNothingIsNamedInTheError) {
  const Clock::time_point start = Clock::now();
  const absl::Status status = Connect({.timeout = absl::Seconds(1)});
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
  if (!status.ok()) {  // gRPC began with the silent one
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(name_), HasSubstr(StrCat("of its addresses ", silent_->address(),
                                                         " does not answer"))));
  }
}

TEST_F(TwoAddressesTest, WhereNoAddressAnswersTheWaitIsNotProlonged) {
  server_.reset();
  const Clock::time_point start = Clock::now();
  const absl::Status status = Connect({.timeout = absl::Seconds(1), .limit = absl::Seconds(30)});
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(std::string(status.message()), HasSubstr(name_));
  EXPECT_THAT(said_, IsEmpty());
}

}  // namespace
}  // namespace shardmesh::rpc
