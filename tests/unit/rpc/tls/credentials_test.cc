// Real servers and clients with certificates: who reaches whom, what is said where they do not, and
// certificates that are renewed.
#include "rpc/tls/credentials.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "rpc/call.h"
#include "rpc/codec/status.h"
#include "rpc/metrics/certificate_metrics.h"
#include "rpc/metrics/metrics.h"
#include "rpc/server_lifecycle.h"
#include "rpc/tls/certificate_watch.h"
#include "shardmesh/v1/session_service.grpc.pb.h"
#include "tests/testing/certificates.h"
#include "tests/testing/eventually.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::rpc {
namespace {

using ::shardmesh::test::CertificateFolder;
using ::shardmesh::test::Eventually;
using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::shardmesh::test::TestAuthority;
using ::testing::AllOf;
using ::testing::HasSubstr;

const PeerName kCoordinator{PeerRole::kCoordinator, "coordinator"};
const PeerName kWorker{PeerRole::kWorker, "worker-0"};
const PeerName kClient{PeerRole::kClient, "client"};

// Takes sessions of callers whose certificate says what they call themselves.
class NamedSessions final : public v1::SessionService::CallbackService {
 public:
  explicit NamedSessions(const Credentials& own) : own_(own) {}

  grpc::ServerUnaryReactor* OpenSession(grpc::CallbackServerContext* context,
                                        const v1::OpenSessionRequest* request,
                                        v1::OpenSessionResponse* /*response*/) override {
    auto* reactor = context->DefaultReactor();
    reactor->Finish(
        ToGrpc(CheckCaller(own_, *context, {PeerRole::kWorker, request->client_name()})));
    return reactor;
  }

 private:
  const Credentials own_;
};

struct Server {
  explicit Server(const Credentials& credentials) : service(credentials) {
    const NamedService services[] = {{v1::SessionService::service_full_name(), &service}};
    ServerOptions options;
    options.credentials = credentials;
    lifecycle = *ServerLifecycle::Start(options, services);
    lifecycle->SetReady(true);
  }
  const std::string& address() const { return lifecycle->address(); }

  NamedSessions service;
  std::unique_ptr<ServerLifecycle> lifecycle;
};

// A channel and how it is connected.
struct Client {
  Client(const std::string& to, const Credentials& credentials,
         ExpectedPeer peer = ExpectedPeer::Coordinator())
      : address(to),
        options{.credentials = credentials, .peer = std::move(peer), .own_connection = true},
        channel(*CreateChannel(to, options)) {}

  absl::Status Connect(absl::Duration timeout = absl::Seconds(10)) const {
    return WaitForConnected(*channel, address, timeout, options);
  }
  absl::Status OpenSession(const std::string& name) const {
    grpc::ClientContext context;
    Apply(CallOptions::Within(absl::Seconds(10)), &context);
    v1::OpenSessionRequest request;
    request.set_client_name(name);
    v1::OpenSessionResponse response;
    return FromGrpc(
        v1::SessionService::NewStub(channel)->OpenSession(&context, request, &response));
  }
  // Of whatever answers at the address.
  absl::Status CheckHealth() const {
    grpc::ClientContext context;
    Apply(CallOptions::Within(absl::Seconds(10)), &context);
    grpc::health::v1::HealthCheckResponse response;
    return FromGrpc(grpc::health::v1::Health::NewStub(channel)->Check(
        &context, grpc::health::v1::HealthCheckRequest(), &response));
  }

  const std::string address;
  const ChannelOptions options;
  const std::shared_ptr<grpc::Channel> channel;
};

class CredentialsTest : public ::testing::Test {
 protected:
  Credentials Make(const std::string& stem, const PeerName& name) const {
    return Make(stem, authority_.Issue(name), authority_.certificate());
  }
  Credentials Make(const std::string& stem, const KeyPair& pair, const std::string& trusted) const {
    return *Credentials::FromFiles(folder_.Write(stem, pair, trusted));
  }
  // Whether a new connection of `client` to the server comes about.
  static bool Connects(const Server& server, const Credentials& client) {
    return Client(server.address(), client).Connect().ok();
  }

  const TestAuthority authority_;
  const CertificateFolder folder_;
};

TEST_F(CredentialsTest, BothSidesMeetWithCertificatesOfOneAuthority) {
  const Server server(Make("s", kCoordinator));
  for (const PeerName& name : {kClient, kWorker, kCoordinator}) {
    const Client client(server.address(), Make(name.identity + "-c", name));
    EXPECT_THAT(client.Connect(), IsOk()) << name.ToUri();
    EXPECT_THAT(client.CheckHealth(), IsOk()) << name.ToUri();
  }
}

TEST_F(CredentialsTest, ACallerSpeaksAsWhomItsCertificateSays) {
  const Server server(Make("s", kCoordinator));
  const Client worker(server.address(), Make("w", kWorker));
  EXPECT_THAT(worker.OpenSession("worker-0"), IsOk());
  const absl::Status other = worker.OpenSession("worker-1");
  EXPECT_THAT(other, StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(std::string(other.message()), AllOf(HasSubstr("spiffe://shardmesh/worker/worker-0"),
                                                  HasSubstr("spiffe://shardmesh/worker/worker-1")));
  // A client may have a worker's identity for its name; its role is another.
  const Client client(server.address(), Make("c", {PeerRole::kClient, "worker-0"}));
  EXPECT_THAT(client.OpenSession("worker-0"), StatusIs(absl::StatusCode::kPermissionDenied));
  const Server plain(Credentials::Insecure());
  EXPECT_THAT(Client(plain.address(), Credentials::Insecure()).OpenSession("anybody"), IsOk());
}

TEST_F(CredentialsTest, AServerIsKnownByItsNameAndNotByItsHost) {
  const Server worker(Make("s", kWorker));
  const Credentials client = Make("c", kClient);
  EXPECT_THAT(Client(worker.address(), client, ExpectedPeer::Worker("worker-0")).Connect(), IsOk());
  EXPECT_THAT(Client(worker.address(), client, ExpectedPeer::AnyServer()).Connect(), IsOk());
  struct Case {
    ExpectedPeer peer;
    const char* said;
  };
  for (const Case& each : {Case{ExpectedPeer::Worker("worker-1"), "worker \"worker-1\""},
                           Case{ExpectedPeer::Coordinator(), "a coordinator"}}) {
    const Client other(worker.address(), client, each.peer);
    const absl::Status status = other.Connect();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("its certificate is that of spiffe://shardmesh/worker/worker-0"),
                      HasSubstr(each.said), HasSubstr(worker.address())));
    // Also in a call that nobody looked into.
    EXPECT_THAT(std::string(other.CheckHealth().message()),
                HasSubstr("its certificate is that of spiffe://shardmesh/worker/worker-0"));
  }
}

TEST_F(CredentialsTest, AClientWithoutACertificateIsToldToGiveOne) {
  const Server server(Make("s", kCoordinator));
  const absl::Time start = absl::Now();
  const absl::Status status = Client(server.address(), Credentials::Insecure()).Connect();
  EXPECT_LT(absl::Now() - start, absl::Seconds(3));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("it speaks TLS, and this process plaintext"), HasSubstr("--tls-cert"),
                    HasSubstr(server.address())));
}

TEST_F(CredentialsTest, APlaintextServerIsToldFromOneWithTls) {
  const Server server(Credentials::Insecure());
  const absl::Time start = absl::Now();
  const absl::Status status = Client(server.address(), Make("c", kClient)).Connect();
  EXPECT_LT(absl::Now() - start, absl::Seconds(3));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("this process TLS"), HasSubstr("--tls-cert")));
}

TEST_F(CredentialsTest, AnAuthorityThatTheOtherSideDoesNotTrustIsNamed) {
  const TestAuthority other;
  const Server server(Make("s", kCoordinator));
  // Its certificate is of another authority; it trusts the server's.
  const KeyPair foreign = other.Issue(kClient);
  const TlsFiles files =
      folder_.Write("f", foreign, other.certificate() + authority_.certificate());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Credentials refused, Credentials::FromFiles(files));
  const absl::Status by_server = Client(server.address(), refused).Connect();
  EXPECT_THAT(by_server, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(std::string(by_server.message()), HasSubstr(files.certificate));
  // It trusts another authority than the server's.
  const Credentials stranger = Make("g", foreign, other.certificate());
  const absl::Status by_client = Client(server.address(), stranger).Connect();
  EXPECT_THAT(by_client, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(std::string(by_client.message()),
              AllOf(HasSubstr("is not one of an authority in"), HasSubstr("g-ca.crt")));
}

TEST_F(CredentialsTest, ACertificateThatExpiredMeanwhileIsNamedOnBothSides) {
  const absl::Time start = absl::Now();
  // Files whose certificate has expired are not loaded; a busy machine may take seconds until then.
  const auto make_short = [&](const std::string& stem, const PeerName& name) {
    return Make(stem, authority_.Issue(name, start - absl::Hours(1), start + absl::Seconds(8)),
                authority_.certificate());
  };
  const Credentials short_client = make_short("c", kClient);
  const Server short_lived(make_short("s", kCoordinator));
  const Server server(Make("t", kCoordinator));
  ASSERT_TRUE(Eventually([&] {
    return absl::Now() > short_client.watch()->state()->facts.not_after + absl::Seconds(1);
  }));
  const absl::Status theirs = Client(short_lived.address(), Make("d", kClient)).Connect();
  EXPECT_THAT(theirs, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(std::string(theirs.message()),
              AllOf(HasSubstr("its certificate is not valid now"), HasSubstr("expired")));
  const absl::Status own = Client(server.address(), short_client).Connect();
  EXPECT_THAT(own, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(std::string(own.message()), AllOf(HasSubstr("the certificate of this process"),
                                                HasSubstr("c.crt"), HasSubstr("expired")));
}

TEST_F(CredentialsTest, RefusesToStartWithFilesThatCannotBeUsed) {
  EXPECT_THAT(
      Credentials::FromFiles({.certificate = "a", .private_key = {}, .authorities = {}}).status(),
      StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_THAT(Credentials::FromFiles(folder_.FilesOf("nobody")).status(),
              StatusIs(absl::StatusCode::kNotFound));
  const KeyPair expired =
      authority_.Issue(kClient, absl::Now() - absl::Hours(2), absl::Now() - absl::Hours(1));
  EXPECT_THAT(
      Credentials::FromFiles(folder_.Write("old", expired, authority_.certificate())).status(),
      StatusIs(absl::StatusCode::kFailedPrecondition));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Credentials plain, Credentials::FromFiles({}));
  EXPECT_FALSE(plain.is_secure());
}

TEST_F(CredentialsTest, AProcessIsWhoItsCertificateSays) {
  const Credentials worker = Make("w", kWorker);
  EXPECT_THAT(CheckOwnName(worker, ExpectedPeer::Worker("worker-0")), IsOk());
  EXPECT_THAT(CheckOwnName(Credentials::Insecure(), ExpectedPeer::Worker("any")), IsOk());
  const absl::Status status = CheckOwnName(worker, ExpectedPeer::Worker("worker-1"));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("w.crt"), HasSubstr("worker-0"), HasSubstr("worker-1")));
  EXPECT_THAT(CheckOwnName(worker, ExpectedPeer::Coordinator()),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(CredentialsTest, ARenewedCertificateIsUsedByNewConnections) {
  const Credentials credentials = Make("s", kCoordinator);
  const Server server(credentials);
  const Credentials client = Make("c", kClient);
  const Client old(server.address(), client);
  ASSERT_THAT(old.Connect(), IsOk());
  Metrics metrics("coordinator");
  ExportValidity(credentials, metrics);

  const absl::Time not_after = absl::Now() + absl::Hours(7);
  folder_.Write("s", authority_.Issue(kCoordinator, absl::Now() - absl::Hours(1), not_after),
                authority_.certificate());
  EXPECT_TRUE(Eventually([&] {
    return absl::AbsDuration(credentials.watch()->state()->facts.not_after - not_after) <
           absl::Seconds(2);
  }));
  const CertificateFacts facts = credentials.watch()->state()->facts;
  const auto value = [&](const std::string& name) {
    const std::string text = metrics.Text();
    const size_t at = text.find(StrCat("\nshardmesh_certificate_", name, "_timestamp_seconds "));
    return std::stod(text.substr(text.find(' ', at)));
  };
  EXPECT_EQ(value("expiry"), static_cast<double>(absl::ToUnixSeconds(facts.not_after)));
  EXPECT_EQ(value("not_before"), static_cast<double>(absl::ToUnixSeconds(facts.not_before)));
  EXPECT_THAT(old.CheckHealth(), IsOk());
  EXPECT_TRUE(Connects(server, client));
}

TEST_F(CredentialsTest, AnAuthorityIsReplacedByWayOfABundle) {
  const TestAuthority next;
  const std::string bundle = authority_.certificate() + next.certificate();
  const Credentials server_credentials = Make("s", kCoordinator);
  const Credentials client = Make("c", kClient);
  const Server server(server_credentials);
  const Client before(server.address(), client);
  ASSERT_THAT(before.Connect(), IsOk());
  const auto await_taken = [&](const Credentials& credentials, const std::string& stem) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const TlsTexts texts, ReadTlsFiles(folder_.FilesOf(stem)));
    EXPECT_TRUE(Eventually([&] { return credentials.watch()->state()->texts == texts; })) << stem;
  };
  // Both trust both; then each gets a certificate of the new one; then the old one goes.
  folder_.Write("s-ca.crt", bundle);
  folder_.Write("c-ca.crt", bundle);
  await_taken(server_credentials, "s");
  await_taken(client, "c");
  EXPECT_TRUE(Connects(server, client));
  folder_.Write("s", next.Issue(kCoordinator), bundle);
  await_taken(server_credentials, "s");
  EXPECT_TRUE(Connects(server, client));
  folder_.Write("c", next.Issue(kClient), bundle);
  await_taken(client, "c");
  EXPECT_TRUE(Connects(server, client));
  folder_.Write("s-ca.crt", next.certificate());
  folder_.Write("c-ca.crt", next.certificate());
  await_taken(server_credentials, "s");
  await_taken(client, "c");
  EXPECT_TRUE(Eventually([&] { return Connects(server, client); }));
  // Whoever kept to the old authority is out; who was connected goes on.
  const Credentials late = Make("l", authority_.Issue(kClient), bundle);
  EXPECT_TRUE(Eventually([&] { return !Connects(server, late); }));
  EXPECT_THAT(before.CheckHealth(), IsOk());
}

TEST_F(CredentialsTest, AChannelReconnectsWithTheRenewedCertificate) {
  const TestAuthority next;
  const std::string bundle = authority_.certificate() + next.certificate();
  const Credentials client_credentials = Make("c", authority_.Issue(kClient), bundle);
  auto server = std::make_unique<Server>(Make("s", authority_.Issue(kCoordinator), bundle));
  const Client client(server->address(), client_credentials);
  ASSERT_THAT(client.Connect(), IsOk());
  ServerOptions options;
  options.address = server->address();
  server.reset();
  const KeyPair renewed = next.Issue(kClient);
  folder_.Write("c", renewed, bundle);
  EXPECT_TRUE(Eventually([&] {
    return client_credentials.watch()->state()->texts.certificate == renewed.certificate;
  }));
  // This one takes the new authority's alone.
  options.credentials = Make("t", next.Issue(kCoordinator), next.certificate());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto successor, ServerLifecycle::Start(options, {}));
  successor->SetReady(true);
  EXPECT_TRUE(Eventually([&] { return client.CheckHealth().ok(); })) << client.CheckHealth();
}

}  // namespace
}  // namespace shardmesh::rpc
