// Where a listener can be reached, and what it says of addresses that it cannot have.
#include "rpc/listener.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "process/file.h"
#include "rpc/connection_limit.h"
#include "rpc/tls/dial.h"
#include "status/str_cat.h"
#include "tests/testing/eventually.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::rpc {
namespace {

using ::shardmesh::test::Eventually;
using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Counts connections, and ends them.
class CountingListener {
 public:
  explicit CountingListener(const std::string& address, ConnectionLimits limits = {})
      : created_(Listener::Create(address, std::nullopt, limits)) {
    if (!created_.ok()) return;
    (*created_)->Start([this](int descriptor) {
      close(descriptor);
      ++count_;
    });
  }
  absl::Status status() const { return created_.status(); }
  Listener& operator*() { return **created_; }
  bool AwaitCount(int count, absl::Duration time = absl::Seconds(10)) {
    return Eventually([&] { return count_ >= count; }, time);
  }

 private:
  std::atomic<int> count_ = 0;
  absl::StatusOr<std::unique_ptr<Listener>> created_;
};

absl::Status Reach(const std::string& address) {
  return Dial(address, absl::Now() + absl::Seconds(10)).status();
}

TEST(ListenerTest, TakesConnectionsInUntilItStops) {
  CountingListener listener("127.0.0.1:0");
  ASSERT_THAT(listener.status(), IsOk());
  const std::string address = StrCat("127.0.0.1:", (*listener).port());
  EXPECT_THAT(Reach(address), IsOk());
  EXPECT_THAT(Reach(address), IsOk());
  EXPECT_TRUE(listener.AwaitCount(2));
  (*listener).Stop();
  EXPECT_THAT(Reach(address), StatusIs(absl::StatusCode::kUnavailable));
  (*listener).Stop();
}

TEST(ListenerTest, AllAddressesAreThoseOfBothFamilies) {
  for (const char* const address : {"0.0.0.0:0", "[::]:0"}) {
    SCOPED_TRACE(address);
    CountingListener listener(address);
    if (std::string(address) == "[::]:0" && !listener.status().ok()) continue;  // no IPv6 here
    ASSERT_THAT(listener.status(), IsOk());
    EXPECT_THAT(Reach(StrCat("127.0.0.1:", (*listener).port())), IsOk());
    EXPECT_TRUE(listener.AwaitCount(1));
  }
}

TEST(ListenerTest, ANameStandsForAllOfItsAddresses) {
  CountingListener listener("localhost:0");
  ASSERT_THAT(listener.status(), IsOk());
  EXPECT_THAT(Reach(StrCat("localhost:", (*listener).port())), IsOk());
  EXPECT_THAT(Reach(StrCat("127.0.0.1:", (*listener).port())), IsOk());
  EXPECT_TRUE(listener.AwaitCount(2));
}

TEST(ListenerTest, ReplacesTheFileOfAUnixSocketAndRemovesItsOwn) {
  const std::string path = StrCat(::testing::TempDir(), "listener-", getpid());
  for (int i = 0; i < 2; ++i) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto listener, Listener::Create("unix:" + path));
    EXPECT_EQ(listener->port(), 0);
    EXPECT_EQ(access(path.c_str(), F_OK), 0);
  }
  EXPECT_NE(access(path.c_str(), F_OK), 0);
  EXPECT_THAT(Listener::Create("unix:/" + std::string(200, 'x')).status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

// Connects to 127.0.0.1 from an address of this host.
FileDescriptor ConnectFrom(const char* host, int port) {
  FileDescriptor connection(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  inet_pton(AF_INET, host, &address.sin_addr);
  EXPECT_EQ(bind(connection.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  address.sin_port = htons(static_cast<uint16_t>(port));
  EXPECT_EQ(connect(connection.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return connection;
}

// Whether the other side closes a connection at once.
bool IsRefused(const FileDescriptor& connection) {
  pollfd polled = {.fd = connection.get(), .events = POLLIN, .revents = 0};
  return poll(&polled, 1, 10'000) > 0;
}
bool IsKept(const FileDescriptor& connection) {
  pollfd polled = {.fd = connection.get(), .events = POLLIN, .revents = 0};
  return poll(&polled, 1, 100) == 0;
}

// Keeps connections until it is told to close one.
class KeepingListener {
 public:
  explicit KeepingListener(ConnectionLimits limits) {
    auto created = Listener::Create("127.0.0.1:0", std::nullopt, limits);
    EXPECT_THAT(created.status(), IsOk());
    listener_ = *std::move(created);
    listener_->Start([this](int descriptor) {
      absl::MutexLock lock(&mutex_);
      kept_.emplace_back(descriptor);
    });
  }
  ~KeepingListener() { listener_->Stop(); }
  int port() const { return listener_->port(); }
  void CloseFirst() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](std::vector<FileDescriptor>* kept) { return !kept->empty(); }, &kept_));
    kept_.erase(kept_.begin());
  }

 private:
  absl::Mutex mutex_;
  std::vector<FileDescriptor> kept_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Listener> listener_;
};

TEST(ListenerTest, NoMoreConnectionsThanThereMayBe) {
  KeepingListener listener({.all = 2});
  std::vector<FileDescriptor> connections;
  for (const char* const host : {"127.0.0.1", "127.0.0.2"}) {
    connections.push_back(ConnectFrom(host, listener.port()));
    EXPECT_TRUE(IsKept(connections.back()));
  }
  EXPECT_TRUE(IsRefused(ConnectFrom("127.0.0.3", listener.port())));
  listener.CloseFirst();
  EXPECT_TRUE(Eventually([&] { return IsKept(ConnectFrom("127.0.0.3", listener.port())); }));
}

TEST(ListenerTest, AHostLeavesConnectionsForOthers) {
  KeepingListener listener({.per_host = 2});
  std::vector<FileDescriptor> connections;
  for (const char* const host : {"127.0.0.1", "127.0.0.1", "127.0.0.2", "127.0.0.2"}) {
    connections.push_back(ConnectFrom(host, listener.port()));
    EXPECT_TRUE(IsKept(connections.back())) << host;
  }
  EXPECT_TRUE(IsRefused(ConnectFrom("127.0.0.1", listener.port())));
  listener.CloseFirst();
  EXPECT_TRUE(IsRefused(ConnectFrom("127.0.0.2", listener.port())));
  EXPECT_TRUE(Eventually([&] { return IsKept(ConnectFrom("127.0.0.1", listener.port())); }));
}

TEST(ListenerTest, SaysHowManyConnectionsThereAreAndMayBe) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const FileDescriptor one(ends[0]);
  const FileDescriptor other(ends[1]);
  sockaddr_storage peer = {};
  peer.ss_family = AF_UNIX;
  ConnectionLimit of_host({.per_host = 1});
  EXPECT_EQ(of_host.Take(one.get(), peer), "");
  EXPECT_THAT(
      of_host.Take(other.get(), peer),
      HasSubstr("this host has 1 connections, and may have 1 (--max-connections-per-host)"));
  ConnectionLimit of_all({.all = 1});
  EXPECT_EQ(of_all.Take(one.get(), peer), "");
  EXPECT_THAT(of_all.Take(other.get(), peer),
              HasSubstr("there are 1 connections, and there may be 1 (--max-connections)"));
  ConnectionLimit none({});
  EXPECT_EQ(none.Take(one.get(), peer), "");
}

// What was closed is not counted, also where its number is another connection's by then.
TEST(ListenerTest, ConnectionsThatComeAndGoAreNoMoreThanLiveAtATime) {
  CountingListener listener("127.0.0.1:0", {.all = 3, .per_host = 3});
  ASSERT_THAT(listener.status(), IsOk());
  EXPECT_TRUE(Eventually([&] {
    EXPECT_THAT(Reach(StrCat("127.0.0.1:", (*listener).port())), IsOk());
    return listener.AwaitCount(50, absl::ZeroDuration());
  }));
}

TEST(ListenerTest, AHostIsAnAddressOrANetworkOfVersion6) {
  const auto host_of = [](const char* address) {
    sockaddr_storage peer = {};
    auto& version4 = reinterpret_cast<sockaddr_in&>(peer);
    auto& version6 = reinterpret_cast<sockaddr_in6&>(peer);
    if (inet_pton(AF_INET, address, &version4.sin_addr) == 1) {
      peer.ss_family = AF_INET;
    } else if (inet_pton(AF_INET6, address, &version6.sin6_addr) == 1) {
      peer.ss_family = AF_INET6;
    } else {
      peer.ss_family = AF_UNIX;
    }
    return HostOfPeer(peer);
  };
  EXPECT_EQ(host_of("10.1.2.3"), "10.1.2.3");
  EXPECT_EQ(host_of("::ffff:10.1.2.3"), "10.1.2.3");
  EXPECT_EQ(host_of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
  EXPECT_EQ(host_of("2001:db8:1:2:ffff::1"), "2001:db8:1:2::/64");
  EXPECT_EQ(host_of("::1"), "::1");
  EXPECT_EQ(host_of("a unix socket"), "this host");
}

TEST(ListenerTest, SaysWhatIsWrongWithAnAddress) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto listener, Listener::Create("127.0.0.1:0"));
  const std::string taken = StrCat("127.0.0.1:", listener->port());
  const absl::Status status = Listener::Create(taken).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kAlreadyExists, Reason::kAlreadyExists));
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(taken), HasSubstr("in use")));
  EXPECT_THAT(Listener::Create(StrCat("0.0.0.0:", listener->port())).status(),
              StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_THAT(Listener::Create("nowhere").status(), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Listener::Create("192.0.2.1:0").status(), StatusIs(absl::StatusCode::kAlreadyExists));
}

}  // namespace
}  // namespace shardmesh::rpc
