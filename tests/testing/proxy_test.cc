// Tests the proxy: it does to a connection only what a network can do.
#include "tests/testing/proxy.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <iterator>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/time/time.h"
#include "status/str_cat.h"
#include "tests/testing/eventually.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::test {
namespace {

// Two ends of a connection through a proxy.
class ProxyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = Loopback(0);
    socklen_t size = sizeof(address);
    ASSERT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    ASSERT_EQ(listen(listener_, 4), 0);
    ASSERT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(proxy_,
                                   Proxy::Start(StrCat("127.0.0.1:", ntohs(address.sin_port))));
    int port = 0;
    ASSERT_TRUE(
        absl::SimpleAtoi(proxy_->address().substr(proxy_->address().rfind(':') + 1), &port));
    client_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    address = Loopback(port);
    ASSERT_EQ(connect(client_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    server_ = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    ASSERT_GE(server_, 0);
  }
  void TearDown() override {
    for (const int fd : {listener_, client_, server_}) {
      if (fd >= 0) close(fd);
    }
  }

  static sockaddr_in Loopback(int port) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }
  static void Send(int fd, const std::string& bytes) {
    ASSERT_EQ(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), std::ssize(bytes));
  }
  // Returns the bytes that arrive until the time is over; "reset" if the connection was reset.
  static std::string Receive(int fd, absl::Duration time) {
    pollfd polled = {fd, POLLIN, 0};
    if (poll(&polled, 1, static_cast<int>(absl::ToInt64Milliseconds(time))) <= 0) return "";
    char bytes[64];
    const ssize_t count = recv(fd, bytes, sizeof(bytes), 0);
    return count < 0 ? "reset" : std::string(bytes, static_cast<size_t>(count));
  }

  std::unique_ptr<Proxy> proxy_;
  int listener_ = -1;
  int client_ = -1;
  int server_ = -1;
};

TEST_F(ProxyTest, PassesBytesOfBothDirections) {
  Send(client_, "question");
  EXPECT_EQ(Receive(server_, absl::Seconds(10)), "question");
  Send(server_, "answer");
  EXPECT_EQ(Receive(client_, absl::Seconds(10)), "answer");
}

TEST_F(ProxyTest, CutsAfterSoManyBytesUntilItCutsNoMore) {
  proxy_->CutAfter(12);
  proxy_->CutNoMore();
  Send(client_, "0123456789abcdef");
  EXPECT_EQ(Receive(server_, absl::Seconds(10)), "0123456789abcdef");

  proxy_->CutAfter(12);
  EXPECT_TRUE(Eventually([&] {
    send(client_, "0123456789abcdef", 16, MSG_NOSIGNAL);
    return Receive(client_, absl::Milliseconds(50)) == "reset";
  }));
}

// A network loses packets, but TCP never loses bytes from the middle of a stream: the receiver
// would misinterpret the bytes after the gap.
TEST_F(ProxyTest, NothingArrivesBehindBytesThatWereSwallowed) {
  for (const bool of_the_server : {false, true}) {
    SCOPED_TRACE(of_the_server);
    if (of_the_server) {
      TearDown();
      ASSERT_NO_FATAL_FAILURE(SetUp());
    }
    const int from = of_the_server ? server_ : client_;
    const int to = of_the_server ? client_ : server_;
    proxy_->Set(Proxy::Mode::kSwallow);
    // Until the proxy swallows, sent bytes arrive.
    const int64_t before = proxy_->swallowed_bytes();
    EXPECT_TRUE(Eventually([&] {
      Send(from, "lost");
      return proxy_->swallowed_bytes() > before;
    }));
    while (!Receive(to, absl::Milliseconds(50)).empty()) {
    }
    proxy_->Set(Proxy::Mode::kPass);
    EXPECT_EQ(Receive(to, absl::Seconds(10)), "reset");
    EXPECT_EQ(Receive(from, absl::Seconds(10)), "reset");
  }
}

}  // namespace
}  // namespace shardmesh::test
