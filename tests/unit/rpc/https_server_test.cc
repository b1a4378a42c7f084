// What callers without TLS get from an HTTPS server, and that they cannot hold it up.
// tests/integration/tls_test.cc has callers with certificates.
#include "rpc/https_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <string>
#include <string_view>
#include <vector>

#include "absl/time/clock.h"
#include "rpc/dial.h"
#include "tests/testing/certificates.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::rpc {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;

class HttpsServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const TlsFiles files = folder_.Write(
        "worker", authority_.Issue({PeerRole::kWorker, "worker-0"}), authority_.certificate());
    SHARDMESH_ASSERT_OK_AND_ASSIGN(watch_, CertificateWatch::Start(files));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(server_, Start("127.0.0.1:0"));
  }
  absl::StatusOr<std::unique_ptr<HttpsServer>> Start(const std::string& address) {
    return HttpsServer::Start(address, watch_.get(), [](std::string_view) {
      return HttpsServer::Answer{"text/plain", ""};
    });
  }
  FileDescriptor Call() {
    auto socket = Dial(StrCat("127.0.0.1:", server_->port()), absl::Now() + absl::Seconds(10));
    EXPECT_THAT(socket, IsOk());
    return *std::move(socket);
  }

  test::CertificateFolder folder_;
  test::TestAuthority authority_;
  std::unique_ptr<CertificateWatch> watch_;
  std::unique_ptr<HttpsServer> server_;
};

TEST_F(HttpsServerTest, EndsWhatIsNotTls) {
  const FileDescriptor caller = Call();
  const std::string_view request = "GET /metrics HTTP/1.1\r\n\r\n";
  ASSERT_EQ(send(caller.get(), request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  std::string heard;
  pollfd ready = {.fd = caller.get(), .events = POLLIN, .revents = 0};
  char buffer[256];
  ssize_t count = 0;
  while (poll(&ready, 1, 10'000) == 1 &&
         (count = recv(caller.get(), buffer, sizeof(buffer), 0)) > 0) {
    heard.append(buffer, static_cast<size_t>(count));
  }
  EXPECT_LE(count, 0) << "the connection has ended";
  EXPECT_THAT(heard, ::testing::Not(::testing::HasSubstr("HTTP")));
}

TEST_F(HttpsServerTest, StopsAtOnceThoughCallersAreSilent) {
  std::vector<FileDescriptor> callers;
  for (int i = 0; i < 5; ++i) callers.push_back(Call());
  const absl::Time start = absl::Now();
  server_.reset();
  EXPECT_LT(absl::Now() - start, HttpsServer::kPatience);
}

TEST_F(HttpsServerTest, SaysWhatIsWrongWithAnAddress) {
  EXPECT_THAT(Start(StrCat("127.0.0.1:", server_->port())).status(),
              StatusIs(absl::StatusCode::kAlreadyExists, Reason::kAlreadyExists));
  EXPECT_THAT(Start("127.0.0.1").status(), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Start("localhost:0").status(), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace shardmesh::rpc
