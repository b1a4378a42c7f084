// Where a listener can be reached, and what it says of addresses that it cannot have.
#include "rpc/listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "rpc/dial.h"
#include "sharding/str_cat.h"
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
  explicit CountingListener(const std::string& address) : created_(Listener::Create(address)) {
    if (!created_.ok()) return;
    (*created_)->Start([this](int descriptor) {
      close(descriptor);
      ++count_;
    });
  }
  absl::Status status() const { return created_.status(); }
  Listener& operator*() { return **created_; }
  bool AwaitCount(int count) {
    return Eventually([&] { return count_ >= count; }, absl::Seconds(10));
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
