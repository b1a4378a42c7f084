// Both ends of a TLS connection within this process: how calls end, and what is said of the server.
#include "rpc/tls/tls_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "process/file.h"
#include "tests/testing/certificates.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::rpc {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Outcome = TlsSession::Outcome;

const PeerName kWorker{PeerRole::kWorker, "worker-0"};
const PeerName kClient{PeerRole::kClient, "client"};

class TlsSessionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    near_ = FileDescriptor(ends[0]);
    far_ = FileDescriptor(ends[1]);
  }
  static TlsTexts Texts(const KeyPair& pair, const std::string& authorities) {
    return {.certificate = pair.certificate,
            .private_key = pair.private_key,
            .authorities = authorities};
  }
  TlsTexts TextsOf(const PeerName& name) const {
    return Texts(authority_.Issue(name), authority_.certificate());
  }
  absl::Time Deadline() const { return absl::Now() + absl::Seconds(20); }

  const test::TestAuthority authority_;
  FileDescriptor near_;
  FileDescriptor far_;
};

TEST_F(TlsSessionTest, CarriesWhatIsLargerThanTheSocketHolds) {
  const TlsTexts server_texts = TextsOf(kWorker);
  const TlsTexts client_texts = TextsOf(kClient);
  const std::string sent(size_t{4} << 20, 'x');
  std::thread server([&] {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const TlsContext context, TlsContext::ForServer(server_texts));
    TlsSession session(context, far_.get());
    ASSERT_EQ(session.Accept(Deadline()), Outcome::kDone) << session.reason();
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const CertificateFacts caller,
                                   ReadPeerCertificate(session.ssl()));
    EXPECT_EQ(caller.name, kClient);
    EXPECT_EQ(session.Write(sent, Deadline()), Outcome::kDone);
    session.End(Deadline());
  });
  std::string heard;
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const TlsContext context, TlsContext::ForClient(&client_texts));
    TlsSession session(context, near_.get());
    EXPECT_EQ(session.Connect(Deadline()), Outcome::kDone) << session.reason();
    EXPECT_THAT(CheckPeer(session.ssl(), absl::Now()), IsOk());
    char buffer[4096];
    size_t count = 0;
    Outcome outcome = Outcome::kDone;
    while ((outcome = session.Read(absl::MakeSpan(buffer), &count, Deadline())) == Outcome::kDone) {
      heard.append(buffer, count);
    }
    EXPECT_EQ(outcome, Outcome::kEnded);
  }
  server.join();
  EXPECT_TRUE(heard == sent) << heard.size();
}

TEST_F(TlsSessionTest, SaysWhichAuthorityOfAServerHasExpired) {
  const test::ChainWithExpiredMiddle chain = test::MakeChainWithExpiredMiddle(kWorker);
  const TlsTexts server_texts = Texts(chain.pair, chain.authorities);
  const TlsTexts client_texts = Texts(authority_.Issue(kClient), chain.authorities);
  const TlsTexts stranger_texts = TextsOf(kClient);
  for (const bool knows_authority : {true, false}) {
    SetUp();
    std::thread server([&] {
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const TlsContext context, TlsContext::ForServer(server_texts));
      TlsSession(context, far_.get()).Accept(Deadline());
    });
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        const TlsContext context,
        TlsContext::ForClient(knows_authority ? &client_texts : &stranger_texts));
    TlsSession session(context, near_.get());
    EXPECT_EQ(session.Connect(Deadline()), Outcome::kDone) << session.reason();
    const absl::Status status = CheckPeer(session.ssl(), absl::Now());
    if (knows_authority) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition));
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr("an authority above its own, \"CN = middle\" (depth 1)"),
                        HasSubstr("certificate has expired")));
    } else {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument));
    }
    server.join();
  }
}

TEST_F(TlsSessionTest, TellsApartHowItDoesNotComeAbout) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const TlsContext context, TlsContext::ForClient(nullptr));
  EXPECT_EQ(TlsSession(context, near_.get()).Connect(absl::Now() + absl::Milliseconds(20)),
            Outcome::kTimeout);
  int stop[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, stop), 0);
  const FileDescriptor stopped(stop[0]);
  FileDescriptor(stop[1]).Close();  // the other end is readable from here on
  EXPECT_EQ(TlsSession(context, near_.get(), stopped.get()).Connect(absl::InfiniteFuture()),
            Outcome::kTimeout);
  ASSERT_EQ(send(far_.get(), "SSH-2.0\r\n", 9, MSG_NOSIGNAL), 9);
  EXPECT_EQ(TlsSession(context, near_.get()).Connect(Deadline()), Outcome::kNotTls);
  SetUp();
  // An alert: handshake failure.
  ASSERT_EQ(send(far_.get(), "\x15\x03\x03\x00\x02\x02\x28", 7, MSG_NOSIGNAL), 7);
  TlsSession refused(context, near_.get());
  EXPECT_EQ(refused.Connect(Deadline()), Outcome::kRefused);
  EXPECT_THAT(refused.reason(), HasSubstr("handshake failure"));
  SetUp();
  far_.Close();
  EXPECT_EQ(TlsSession(context, near_.get()).Connect(Deadline()), Outcome::kEnded);
}

}  // namespace
}  // namespace shardmesh::rpc
