// What callers without TLS get from an HTTPS server, and that silent ones cannot hold it up.
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
#include "rpc/tls_session.h"
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
      return HttpsServer::Answer{"text/plain", "all is well\n"};
    });
  }
  FileDescriptor Call() {
    auto socket = Dial(StrCat("127.0.0.1:", server_->port()), absl::Now() + absl::Seconds(10));
    EXPECT_THAT(socket, IsOk());
    return *std::move(socket);
  }
  // What a caller with a certificate is told at this path.
  std::string Get(std::string_view path) {
    const rpc::KeyPair own = authority_.Issue({PeerRole::kClient, "client"});
    const TlsTexts texts = {.certificate = own.certificate,
                            .private_key = own.private_key,
                            .authorities = authority_.certificate()};
    const absl::StatusOr<TlsContext> context = TlsContext::ForClient(&texts);
    EXPECT_THAT(context, IsOk());
    const FileDescriptor socket = Call();
    const absl::Time deadline = absl::Now() + absl::Seconds(10);
    TlsSession session(*context, socket.get());
    EXPECT_EQ(session.Connect(deadline), TlsSession::Outcome::kDone) << session.reason();
    EXPECT_THAT(CheckPeer(session.ssl(), absl::Now()), IsOk());
    EXPECT_EQ(session.Write(StrCat("GET ", path, " HTTP/1.1\r\n\r\n"), deadline),
              TlsSession::Outcome::kDone);
    std::string heard;
    char buffer[256];
    size_t count = 0;
    while (session.Read(absl::MakeSpan(buffer), &count, deadline) == TlsSession::Outcome::kDone) {
      heard.append(buffer, count);
    }
    return heard;
  }
  // Whether the server has ended a connection, or does within `time`.
  static bool IsEnded(const FileDescriptor& caller, absl::Duration time) {
    char byte = 0;
    return AwaitReady(caller.get(), POLLIN, absl::Now() + time) &&
           recv(caller.get(), &byte, 1, 0) <= 0;
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

TEST_F(HttpsServerTest, AnswersAtOnceThoughOthersAreSilent) {
  std::vector<FileDescriptor> callers;
  for (int i = 0; i < 32; ++i) callers.push_back(Call());
  const absl::Time start = absl::Now();
  EXPECT_THAT(Get("/metrics"), ::testing::HasSubstr("all is well"));
  EXPECT_LT(absl::Now() - start, HttpsServer::kPatience / 2);
}

TEST_F(HttpsServerTest, EndsThoseThatStaySilent) {
  const absl::Time start = absl::Now();
  const FileDescriptor caller = Call();
  EXPECT_TRUE(IsEnded(caller, 10 * HttpsServer::kPatience));
  EXPECT_GE(absl::Now() - start, HttpsServer::kPatience - absl::Milliseconds(10));
}

TEST_F(HttpsServerTest, EndsTheOldestOfTooManySilentCallers) {
  std::vector<FileDescriptor> callers;
  const absl::Time start = absl::Now();
  for (size_t i = 0; i < HttpsServer::kMaxSilent + 1; ++i) callers.push_back(Call());
  EXPECT_TRUE(IsEnded(callers.front(), absl::Seconds(10)));
  if (absl::Now() - start < HttpsServer::kPatience / 2) {  // unless the machine is busy
    EXPECT_FALSE(IsEnded(callers.back(), absl::ZeroDuration()));
  }
  EXPECT_THAT(Get("/metrics"), ::testing::HasSubstr("all is well"));
}

TEST_F(HttpsServerTest, SaysWhatIsWrongWithAnAddress) {
  EXPECT_THAT(Start(StrCat("127.0.0.1:", server_->port())).status(),
              StatusIs(absl::StatusCode::kAlreadyExists, Reason::kAlreadyExists));
  EXPECT_THAT(Start("127.0.0.1").status(), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Start("localhost:0").status(), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace shardmesh::rpc
