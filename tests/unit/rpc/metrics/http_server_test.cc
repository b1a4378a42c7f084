// What callers get from the HTTP server, over TLS and in plaintext, and that slow ones cannot hold
// it up. tests/integration/tls_test.cc has callers with other certificates.
#include "rpc/metrics/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/clock.h"
#include "rpc/tls/dial.h"
#include "rpc/tls/tls_session.h"
#include "tests/testing/certificates.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::rpc {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::StartsWith;

class HttpServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const TlsFiles files = folder_.Write(
        "worker", authority_.Issue({PeerRole::kWorker, "worker-0"}), authority_.certificate());
    SHARDMESH_ASSERT_OK_AND_ASSIGN(watch_, CertificateWatch::Start(files));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(server_, Start("127.0.0.1:0"));
  }
  absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& address) {
    return HttpServer::Start(address, watch_.get(), [this](std::string_view) {
      return HttpServer::Answer{"text/plain", body_};
    });
  }
  void StartInPlaintext() {
    server_.reset();
    watch_.reset();
    SHARDMESH_ASSERT_OK_AND_ASSIGN(server_, Start("127.0.0.1:0"));
  }
  FileDescriptor Call() {
    auto socket = Dial(StrCat("127.0.0.1:", server_->port()), absl::Now() + absl::Seconds(10));
    EXPECT_THAT(socket, IsOk());
    return *std::move(socket);
  }
  static void Say(const FileDescriptor& caller, std::string_view text) {
    ASSERT_EQ(send(caller.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  // Until the server ends the connection.
  static std::string Hear(const FileDescriptor& caller) {
    std::string heard;
    std::vector<char> buffer(size_t{1} << 16);
    const absl::Time deadline = absl::Now() + absl::Seconds(10);
    ssize_t count = 0;
    while (AwaitReady(caller.get(), POLLIN, deadline) &&
           (count = recv(caller.get(), buffer.data(), buffer.size(), 0)) > 0) {
      heard.append(buffer.data(), static_cast<size_t>(count));
    }
    return heard;
  }
  // A caller whose request is sent, in plaintext.
  FileDescriptor Asked() {
    FileDescriptor caller = Call();
    Say(caller, "GET /metrics HTTP/1.1\r\n\r\n");
    return caller;
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
    std::vector<char> buffer(size_t{1} << 16);
    size_t count = 0;
    while (session.Read(absl::MakeSpan(buffer), &count, deadline) == TlsSession::Outcome::kDone) {
      heard.append(buffer.data(), count);
    }
    return heard;
  }
  // Whether the server has ended a connection, or does within `time`.
  static bool IsEnded(const FileDescriptor& caller, absl::Duration time) {
    char byte = 0;
    return AwaitReady(caller.get(), POLLIN, absl::Now() + time) &&
           recv(caller.get(), &byte, 1, 0) <= 0;
  }

  std::string body_ = "all is well\n";
  test::CertificateFolder folder_;
  test::TestAuthority authority_;
  std::unique_ptr<CertificateWatch> watch_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, EndsWhatIsNotTls) {
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

TEST_F(HttpServerTest, AnswersOverTls) {
  EXPECT_THAT(Get("/metrics"), AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), EndsWith("is well\n")));
}

TEST_F(HttpServerTest, AnswersInPlaintext) {
  StartInPlaintext();
  const FileDescriptor caller = Call();
  Say(caller, "GET /metrics?x=1 HTTP/1.1\r\n\r\n");
  EXPECT_THAT(Hear(caller), AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), EndsWith("is well\n")));
  const FileDescriptor other = Call();
  Say(other, "POST /metrics HTTP/1.1\r\n\r\n");
  EXPECT_THAT(Hear(other), StartsWith("HTTP/1.1 405"));
  const FileDescriptor third = Call();
  Say(third, "nonsense\r\n\r\n");
  EXPECT_THAT(Hear(third), StartsWith("HTTP/1.1 400"));
}

TEST_F(HttpServerTest, SendsAnAnswerLargerThanTheSocketTakesToASlowReader) {
  body_ = std::string(size_t{16} << 20, 'x');
  StartInPlaintext();
  const FileDescriptor caller = Call();
  Say(caller, "GET /metrics HTTP/1.1\r\n\r\n");
  EXPECT_EQ(Hear(Asked()).size(), Hear(caller).size()) << "another reads it while that one waits";
  ASSERT_NO_FATAL_FAILURE(SetUp());
  EXPECT_GT(Get("/metrics").size(), body_.size());
}

TEST_F(HttpServerTest, StopsAtOnceThoughCallersAreSilent) {
  std::vector<FileDescriptor> callers;
  for (int i = 0; i < 5; ++i) callers.push_back(Call());
  const absl::Time start = absl::Now();
  server_.reset();
  EXPECT_LT(absl::Now() - start, HttpServer::kPatience);
}

TEST_F(HttpServerTest, HalfSentRequestsDelayNobody) {
  for (const bool is_tls : {true, false}) {
    SCOPED_TRACE(is_tls ? "TLS" : "plaintext");
    if (!is_tls) StartInPlaintext();
    // On a busy machine, one round can take long by itself.
    absl::Duration fastest = absl::InfiniteDuration();
    for (int round = 0; round < 5 && fastest >= HttpServer::kPatience; ++round) {
      std::vector<FileDescriptor> callers;
      for (int i = 0; i < 300; ++i) {
        callers.push_back(Call());
        // The beginning of a handshake, or of a request.
        Say(callers.back(), is_tls ? std::string_view("\x16\x03\x01\x02", 4) : "GET /metr");
      }
      const absl::Time start = absl::Now();
      if (is_tls) {
        EXPECT_THAT(Get("/metrics"), EndsWith("is well\n"));
      } else {
        EXPECT_THAT(Hear(Asked()), EndsWith("is well\n"));
      }
      fastest = std::min(fastest, absl::Now() - start);
    }
    EXPECT_LT(fastest, HttpServer::kPatience);
  }
}

TEST_F(HttpServerTest, EndsThoseThatAreNotThrough) {
  StartInPlaintext();
  const absl::Time start = absl::Now();
  const FileDescriptor silent = Call();
  const FileDescriptor slow = Call();
  Say(slow, "GET");
  EXPECT_TRUE(IsEnded(silent, 10 * HttpServer::kPatience));
  EXPECT_TRUE(IsEnded(slow, 10 * HttpServer::kPatience));
  EXPECT_GE(absl::Now() - start, HttpServer::kPatience - absl::Milliseconds(10));
}

TEST_F(HttpServerTest, EndsTheOldestOfTooManyCallers) {
  std::vector<FileDescriptor> callers;
  const absl::Time start = absl::Now();
  for (size_t i = 0; i < HttpServer::kMaxConnections + 1; ++i) callers.push_back(Call());
  EXPECT_TRUE(IsEnded(callers.front(), absl::Seconds(10)));
  if (absl::Now() - start < HttpServer::kPatience / 2) {  // unless the machine is busy
    EXPECT_FALSE(IsEnded(callers.back(), absl::ZeroDuration()));
  }
  EXPECT_THAT(Get("/metrics"), ::testing::HasSubstr("all is well"));
}

TEST_F(HttpServerTest, SaysWhatIsWrongWithAnAddress) {
  EXPECT_THAT(Start(StrCat("127.0.0.1:", server_->port())).status(),
              StatusIs(absl::StatusCode::kAlreadyExists, Reason::kAlreadyExists));
  EXPECT_THAT(Start("127.0.0.1").status(), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Start("localhost:0").status(), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace shardmesh::rpc
