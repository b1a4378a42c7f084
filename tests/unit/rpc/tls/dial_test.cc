// Plain connections and their diagnosis, against sockets of this process and without gRPC.
#include "rpc/tls/dial.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "rpc/tls/tls_session.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/certificates.h"
#include "tests/testing/silent_socket.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::rpc {
namespace {

using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

absl::Time Soon() { return absl::Now() + absl::Seconds(20); }

// A port of 127.0.0.1. It refuses connections until Listen.
class LocalPort {
 public:
  LocalPort()
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
        address_(test::BindToLoopback(socket_.get())) {}
  void Listen() { EXPECT_EQ(listen(socket_.get(), 8), 0); }
  FileDescriptor Accept() { return FileDescriptor(accept4(socket_.get(), nullptr, nullptr, 0)); }
  const std::string& address() const { return address_; }

 private:
  const FileDescriptor socket_;
  const std::string address_;
};

TEST(DialTest, ConnectsWithASocketThatDoesNotBlock) {
  LocalPort port;
  port.Listen();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const FileDescriptor near, Dial(port.address(), Soon()));
  EXPECT_NE(fcntl(near.get(), F_GETFL) & O_NONBLOCK, 0);
  EXPECT_NE(fcntl(near.get(), F_GETFD) & FD_CLOEXEC, 0);
  const FileDescriptor far = port.Accept();
  ASSERT_EQ(write(far.get(), "hello", 5), 5);
  ASSERT_TRUE(AwaitReady(near.get(), POLLIN, Soon()));
  char heard[8] = {};
  EXPECT_EQ(read(near.get(), heard, sizeof(heard)), 5);
  EXPECT_STREQ(heard, "hello");
}

TEST(DialTest, NamesTheAddressThatRefuses) {
  const LocalPort port;
  const absl::Time start = absl::Now();
  const absl::Status status = Dial(port.address(), Soon()).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(std::string(status.message()), HasSubstr(port.address()));
  EXPECT_LT(absl::Now() - start, absl::Seconds(10)) << "it does not wait for the deadline";
}

TEST(DialTest, AnAddressThatAnswersNothingIsDialledUntilTheDeadline) {
  const test::SilentSocket silent;
  const absl::Time start = absl::Now();
  EXPECT_THAT(Dial(silent.address(), start + absl::Milliseconds(100)).status(),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(90));
  EXPECT_THAT(Dial(silent.address(), start - absl::Hours(1)).status(),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(Dial(silent.address(), absl::InfinitePast()).status(),
              StatusIs(absl::StatusCode::kUnavailable));
}

TEST(DialTest, RefusesWhatIsNoAddressOfAHost) {
  EXPECT_THAT(Dial("unix:/tmp/socket", Soon()).status(),
              StatusIs(absl::StatusCode::kUnimplemented));
  EXPECT_THAT(Dial("unix-abstract:name", Soon()).status(),
              StatusIs(absl::StatusCode::kUnimplemented));
  for (const char* address : {"", "nowhere", "127.0.0.1:", ":", "127.0.0.1:x", "127.0.0.1:65536",
                              "127.0.0.1:-1", "[::1]", "[::1:1"}) {
    EXPECT_THAT(Dial(address, Soon()).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField))
        << address;
  }
}

TEST(DialEachTest, DialsNothingWhereThereIsNoChoice) {
  LocalPort port;
  port.Listen();
  for (const std::string& address :
       {port.address(), std::string("unix:/tmp/socket"), std::string("nowhere")}) {
    const DialledAddresses dialled = DialEach(address, Soon());
    EXPECT_THAT(dialled.accepting, IsEmpty()) << address;
    EXPECT_THAT(dialled.refusing, IsEmpty()) << address;
    EXPECT_THAT(dialled.silent, IsEmpty()) << address;
  }
}

class AwaitReadyTest : public ::testing::Test {
 protected:
  struct Pipe {
    Pipe() {
      int ends[2];
      EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
      reader = FileDescriptor(ends[0]);
      writer = FileDescriptor(ends[1]);
    }
    void Fill() { EXPECT_EQ(write(writer.get(), "x", 1), 1); }

    FileDescriptor reader;
    FileDescriptor writer;
  };

  bool IsReady(absl::Time deadline, int stop = -1) {
    return AwaitReady(pipe_.reader.get(), POLLIN, deadline, stop);
  }

  Pipe pipe_;
  Pipe stop_;
};

TEST_F(AwaitReadyTest, ADescriptorThatIsReadyNeedsNoTime) {
  EXPECT_FALSE(IsReady(absl::Now()));
  EXPECT_FALSE(IsReady(absl::InfinitePast()));
  pipe_.Fill();
  EXPECT_TRUE(IsReady(absl::Now() - absl::Hours(1)));
  EXPECT_TRUE(IsReady(absl::InfinitePast()));
  EXPECT_TRUE(IsReady(absl::InfiniteFuture()));
  EXPECT_TRUE(AwaitReady(pipe_.writer.get(), POLLOUT, absl::InfinitePast()));
}

TEST_F(AwaitReadyTest, WaitsUntilTheDeadline) {
  const absl::Time start = absl::Now();
  EXPECT_FALSE(IsReady(start + absl::Milliseconds(100)));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(90));
}

// 2^32 ms are 50 days, and the most that one poll can wait is half of that.
TEST_F(AwaitReadyTest, AFarDeadlineIsNotANearOne) {
  const absl::Time deadline = absl::Now() + absl::Milliseconds((int64_t{1} << 32) + 20);
  std::thread writer([this] {
    absl::SleepFor(absl::Milliseconds(200));
    pipe_.Fill();
  });
  EXPECT_TRUE(IsReady(deadline));
  writer.join();
}

TEST_F(AwaitReadyTest, ASignalDoesNotEndTheWait) {
  struct sigaction ignoring = {};
  ignoring.sa_handler = [](int) {};
  struct sigaction before = {};
  ASSERT_EQ(sigaction(SIGUSR1, &ignoring, &before), 0);
  const pthread_t waiting = pthread_self();
  std::thread interrupter([this, waiting] {
    for (int i = 0; i < 10; ++i) {
      absl::SleepFor(absl::Milliseconds(10));
      pthread_kill(waiting, SIGUSR1);
    }
    pipe_.Fill();
  });
  EXPECT_TRUE(IsReady(Soon()));
  interrupter.join();
  sigaction(SIGUSR1, &before, nullptr);
}

TEST_F(AwaitReadyTest, TheEndOfThePeerIsAnEvent) {
  pipe_.writer = FileDescriptor();
  EXPECT_TRUE(IsReady(Soon()));
}

TEST_F(AwaitReadyTest, AStopGoesBeforeADescriptorThatIsReady) {
  const int stop = stop_.reader.get();
  EXPECT_FALSE(IsReady(absl::Now(), stop));
  pipe_.Fill();
  EXPECT_TRUE(IsReady(Soon(), stop));
  stop_.Fill();
  EXPECT_FALSE(IsReady(Soon(), stop));
}

TEST_F(AwaitReadyTest, AStopEndsAWaitWithoutADeadline) {
  std::thread stopper([this] {
    absl::SleepFor(absl::Milliseconds(50));
    stop_.Fill();
  });
  EXPECT_FALSE(IsReady(absl::InfiniteFuture(), stop_.reader.get()));
  stopper.join();
}

// Serves one connection on its own thread.
class OneConnection {
 public:
  explicit OneConnection(std::function<void(FileDescriptor)> serve) {
    port_.Listen();
    thread_ = std::thread([this, serve = std::move(serve)] { serve(port_.Accept()); });
  }
  ~OneConnection() { thread_.join(); }
  const std::string& address() const { return port_.address(); }

 private:
  LocalPort port_;
  std::thread thread_;
};

class DiagnoseConnectionTest : public ::testing::Test {
 protected:
  // Accepts TLS, and keeps the connection open until the client ends it.
  std::function<void(FileDescriptor)> Tls(const TlsTexts& texts) const {
    return [texts](FileDescriptor connection) {
      fcntl(connection.get(), F_SETFL, O_NONBLOCK);
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const TlsContext context, TlsContext::ForServer(texts));
      TlsSession session(context, connection.get());
      if (session.Accept(Soon()) != TlsSession::Outcome::kDone) return;
      char byte = 0;
      size_t count = 0;
      session.Read(absl::MakeSpan(&byte, 1), &count, Soon());
    };
  }
  TlsTexts TextsOf(const PeerName& name) const {
    const KeyPair pair = authority_.Issue(name);
    return {.certificate = pair.certificate,
            .private_key = pair.private_key,
            .authorities = authority_.certificate()};
  }
  std::string Diagnose(const std::string& address, const Credentials& credentials) const {
    return DiagnoseConnection(address, credentials, ExpectedPeer::Coordinator(), Soon());
  }

  const test::TestAuthority authority_;
  const test::CertificateFolder folder_;
  const Credentials secure_ = *Credentials::FromFiles(folder_.Write(
      "c", authority_.Issue({PeerRole::kClient, "client"}), authority_.certificate()));
};

TEST_F(DiagnoseConnectionTest, FindsNothingWhereNothingAnswers) {
  const LocalPort port;
  EXPECT_EQ(Diagnose(port.address(), secure_), "");
  EXPECT_EQ(Diagnose(port.address(), Credentials::Insecure()), "");
  EXPECT_EQ(Diagnose("unix:/tmp/socket", secure_), "");
  EXPECT_EQ(Diagnose("nowhere", secure_), "");
}

TEST_F(DiagnoseConnectionTest, FindsNothingWrongWithTheExpectedPeer) {
  const OneConnection server(Tls(TextsOf({PeerRole::kCoordinator, "coordinator"})));
  EXPECT_EQ(Diagnose(server.address(), secure_), "");
}

TEST_F(DiagnoseConnectionTest, TellsThatOnlyOneSideSpeaksTls) {
  {
    const OneConnection server(Tls(TextsOf({PeerRole::kCoordinator, "coordinator"})));
    EXPECT_THAT(
        Diagnose(server.address(), Credentials::Insecure()),
        AllOf(HasSubstr("it speaks TLS, and this process plaintext"), HasSubstr("--tls-cert")));
  }
  {
    const OneConnection server([](const FileDescriptor& connection) {
      EXPECT_EQ(write(connection.get(), "HTTP/1.1 400\r\n", 14), 14);
      char heard[4096];
      while (read(connection.get(), heard, sizeof(heard)) > 0) continue;
    });
    EXPECT_THAT(Diagnose(server.address(), secure_),
                HasSubstr("it speaks plaintext, and this process TLS"));
  }
}

TEST_F(DiagnoseConnectionTest, TellsThatTheHandshakeIsCutOff) {
  const OneConnection server([](const FileDescriptor& connection) {
    char heard[4096];
    EXPECT_GT(read(connection.get(), heard, sizeof(heard)), 0);
  });
  EXPECT_THAT(Diagnose(server.address(), secure_),
              HasSubstr("it ends the connection at the TLS handshake"));
}

TEST_F(DiagnoseConnectionTest, NamesThePeerThatIsNotTheExpectedOne) {
  const OneConnection server(Tls(TextsOf({PeerRole::kWorker, "worker-0"})));
  EXPECT_THAT(Diagnose(server.address(), secure_),
              AllOf(HasSubstr("its certificate is that of spiffe://shardmesh/worker/worker-0"),
                    HasSubstr("a coordinator is expected")));
}

TEST_F(DiagnoseConnectionTest, NamesTheAuthoritiesThatDidNotSignThePeer) {
  const OneConnection server(Tls(TextsOf({PeerRole::kCoordinator, "coordinator"})));
  const test::TestAuthority other;
  const Credentials stranger = *Credentials::FromFiles(
      folder_.Write("s", other.Issue({PeerRole::kClient, "client"}), other.certificate()));
  EXPECT_THAT(Diagnose(server.address(), stranger),
              AllOf(HasSubstr("its certificate is not one of an authority in"),
                    HasSubstr("s-ca.crt"), HasSubstr("--tls-ca")));
}

TEST_F(DiagnoseConnectionTest, ASilentPeerTakesASecondOrUntilTheDeadline) {
  const OneConnection server([](const FileDescriptor& connection) {
    char heard[4096];
    while (read(connection.get(), heard, sizeof(heard)) > 0) continue;
  });
  const absl::Time start = absl::Now();
  EXPECT_EQ(Diagnose(server.address(), secure_), "");
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(900));
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
}

}  // namespace
}  // namespace shardmesh::rpc
