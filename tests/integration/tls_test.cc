// Clusters of real processes with mutual TLS: the whole way of the data, who is refused and what it
// is told, and certificates that change while everything runs.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "client/cli/local/certificate_folder.h"
#include "client/cli/local/child_process.h"
#include "client/remote/worker_client.h"
#include "collective_cluster.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "process/host_port.h"
#include "rpc/call.h"
#include "rpc/codec/status.h"
#include "rpc/stream/frame.h"
#include "rpc/stream/message_bytes.h"
#include "sharding/mesh_definition.h"
#include "shardmesh/internal/v1/attach_service.grpc.pb.h"
#include "shardmesh/internal/v1/exchange_service.grpc.pb.h"
#include "status/str_cat.h"
#include "tests/testing/certificates.h"
#include "tests/testing/eventually.h"
#include "tests/testing/read_file.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

using ::nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<std::string> Flags(const rpc::TlsFiles& files) {
  return {"--tls-cert=" + files.certificate, "--tls-key=" + files.private_key,
          "--tls-ca=" + files.authorities};
}

template <typename T>
std::vector<T> operator+(std::vector<T> left, const std::vector<T>& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

rpc::Credentials CredentialsOf(const rpc::TlsFiles& files) {
  const absl::StatusOr<rpc::Credentials> credentials = rpc::Credentials::FromFiles(files);
  EXPECT_THAT(credentials, IsOk());
  return credentials.ok() ? *credentials : rpc::Credentials::Insecure();
}

// Everything over streams, so that all of it is TLS.
class TlsClusterTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new CertificateFolder;
    TestCluster::Options options;
    options.tls_folder = folder_->path();
    options.worker_flags = {"--transport=stream"};
    auto cluster = TestCluster::Start(options);
    ASSERT_THAT(cluster, IsOk());
    cluster_ = cluster->release();
  }
  static void TearDownTestSuite() {
    delete cluster_;
    cluster_ = nullptr;
    delete folder_;
    folder_ = nullptr;
  }
  void SetUp() override { ASSERT_NE(cluster_, nullptr); }

  static rpc::TlsFiles ClientFiles() { return client::ClientTlsFiles(folder_->path()); }
  static rpc::TlsFiles WorkerFiles(const std::string& identity) {
    return client::WorkerTlsFiles(folder_->path(), identity);
  }
  // `status` at the cluster's address with other certificates, or none.
  CommandResult Status(const std::vector<std::string>& flags) const {
    return RunShardmesh(
        std::vector<std::string>{"status", "--address=" + cluster_->address()} + flags,
        strangers_.path());
  }
  client::WorkerStatus WorkerOf(const std::string& identity) const {
    const absl::StatusOr<client::ClusterStatus> status = cluster_->client().cluster().GetStatus();
    EXPECT_THAT(status, IsOk());
    for (const client::WorkerStatus& worker : status->workers) {
      if (worker.identity == identity) return worker;
    }
    ADD_FAILURE() << "no " << identity;
    return {};
  }
  std::string AddressOf(const std::string& identity) const {
    return WorkerOf(identity).addresses.front();
  }
  // Where other workers reach it.
  std::string ExchangeAddressOf(const std::string& identity) const {
    const client::WorkerStatus worker = WorkerOf(identity);
    EXPECT_TRUE(worker.exchange_port.has_value());
    return WithPort(worker.addresses.front(), worker.exchange_port.value_or(0));
  }
  // What the coordinator says to a hello of this identity.
  absl::Status Attach(const rpc::TlsFiles& files, const std::string& identity,
                      std::optional<int> exchange_port = std::nullopt) const {
    const auto channel =
        *rpc::CreateChannel(cluster_->address(), {.credentials = CredentialsOf(files)});
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(absl::Seconds(10)), &context);
    const auto stream = internal::v1::AttachService::NewStub(channel)->Attach(&context);
    internal::v1::AttachRequest request;
    internal::v1::Hello* hello = request.mutable_hello();
    hello->set_identity(identity);
    hello->set_incarnation(1);
    hello->set_nonce(std::string(32, 'n'));
    if (exchange_port.has_value()) hello->set_exchange_port(*exchange_port);
    hello->add_endpoints()->set_address("127.0.0.1:1");
    hello->mutable_protocol()->set_min(1);
    hello->mutable_protocol()->set_max(1);
    stream->Write(request);
    internal::v1::AttachResponse response;
    stream->Read(&response);
    return rpc::FromGrpc(stream->Finish());
  }
  // What worker-1 says to a hello of worker-0's.
  absl::Status Exchange(const rpc::TlsFiles& files) const {
    const auto channel = *rpc::CreateChannel(
        ExchangeAddressOf("worker-1"),
        {.credentials = CredentialsOf(files), .peer = rpc::ExpectedPeer::Worker("worker-1")});
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(absl::Seconds(10)), &context);
    const auto stream = internal::v1::ExchangeService::NewStub(channel)->Exchange(&context);
    const rpc::FrameHello hello{.identity = "worker-0",
                                .incarnation = 1,
                                .peer_identity = "worker-1",
                                .peer_incarnation = 0,
                                .cluster_id = "",
                                .initial_credit_bytes = 1,
                                .boot_id = {},
                                .link_credit_bytes = 1};
    grpc::ByteBuffer bytes = *rpc::WriteFrame({.kind = rpc::FrameKind::kHello, .hello = hello});
    internal::v1::ExchangeRequest request;
    EXPECT_THAT(rpc::ParseMessage(&bytes, &request), IsOk());
    stream->Write(request);
    internal::v1::ExchangeResponse response;
    stream->Read(&response);
    return rpc::FromGrpc(stream->Finish());
  }

  static CertificateFolder* folder_;
  static TestCluster* cluster_;
  const CertificateFolder strangers_;
};
CertificateFolder* TlsClusterTest::folder_ = nullptr;
TestCluster* TlsClusterTest::cluster_ = nullptr;

TEST_F(TlsClusterTest, EverythingWorksOverIt) {
  client::MeshClient& client = cluster_->client();
  std::vector<float> numbers(64);
  std::iota(numbers.begin(), numbers.end(), 0.0F);
  const PartitionSpec rows({SpecEntry::Axes({"fsdp", "tp"})});
  ASSERT_THAT(PutFloats(client, "a", {8, 8}, numbers, rows), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto gathered,
                                 client.arrays().Gather(client::ArraySelector::ByName("a")));
  EXPECT_EQ(FloatsOf(gathered.view().bytes()), numbers);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const auto summed, client.compute().Collective({.input = client::ArraySelector::ByName("a"),
                                                      .kind = CollectiveKind::kAllReduce,
                                                      .axes = {"fsdp", "tp"},
                                                      .output = {.return_literals = true}}));
  std::vector<float> sums(16);
  for (size_t i = 0; i < numbers.size(); ++i) sums[i % 16] += numbers[i];
  EXPECT_EQ(FloatsOf(summed.outputs[0].literal->bytes), sums);

  const std::string out = strangers_.Path("out.npy");
  const std::string input = strangers_.Path("in.npy");
  EXPECT_THAT(cluster_->Run({"make-tensor", "--shape=4,8", "--out=" + input}), Succeeded());
  const std::vector<std::vector<std::string>> commands = {
      {"resolve", "--axes=__BATCH__,__EMBED__", "--shape=8,8"},
      {"matmul", "a", "a", "--out=" + out},
      {"linear", "--input=" + input, "--weight=a", "--as=b"},
      {"collective", "all-gather", "a", "--axes=fsdp,tp", "--dimension=0", "--as=c"},
      {"get", "c", "--out=" + out},
      {"describe", "b"},
      {"ls"},
      {"status"},
      {"doctor"},
      {"version"},
      {"catalog", "ls"}};
  for (const std::vector<std::string>& command : commands) {
    const CommandResult result = cluster_->Run(command);
    EXPECT_EQ(result.exit_code, 0) << command.front() << ": " << result.err;
  }
  EXPECT_TRUE(Eventually(
      [&] { return absl::StrContains(cluster_->Run({"links"}).out, "6 of 6 links measured"); }));
}

TEST_F(TlsClusterTest, AnArrayIsMovedToAnotherLayout) {
  client::MeshClient& client = cluster_->client();
  std::vector<float> numbers(64, 3);
  const PartitionSpec rows({SpecEntry::Axes({"fsdp", "tp"})});
  ASSERT_THAT(PutFloats(client, "from", {8, 8}, numbers, rows), IsOk());
  const Program moved{
      .operand_count = 1,
      .ops = {ReshardOp{.input = 0, .spec = PartitionSpec({SpecEntry(), SpecEntry::Axes({"tp"})})}},
      .outputs = {1}};
  const auto result = client.compute().Execute(
      {.work = moved, .operands = {client::ArraySelector::ByName("from")}});
  EXPECT_THAT(result, IsOk());
}

TEST_F(TlsClusterTest, WhoShowsNoCertificateIsToldToGiveOne) {
  const CommandResult result = Status({});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, AllOf(HasSubstr(cluster_->address()), HasSubstr("it speaks TLS"),
                                HasSubstr("--tls-cert")));
  EXPECT_LT(result.time, absl::Seconds(4));
}

TEST_F(TlsClusterTest, TheEnvironmentNamesFilesToo) {
  const rpc::TlsFiles files = ClientFiles();
  setenv("SHARDMESH_TLS_CERT", files.certificate.c_str(), 1);
  setenv("SHARDMESH_TLS_KEY", files.private_key.c_str(), 1);
  setenv("SHARDMESH_TLS_CA", files.authorities.c_str(), 1);
  const CommandResult good = Status({});
  const CommandResult overridden = Status({"--tls-cert=/nowhere"});
  unsetenv("SHARDMESH_TLS_CA");
  const CommandResult partial = Status({});
  unsetenv("SHARDMESH_TLS_CERT");
  unsetenv("SHARDMESH_TLS_KEY");
  EXPECT_EQ(good.exit_code, 0) << good.err;
  EXPECT_EQ(overridden.exit_code, 1);
  EXPECT_THAT(overridden.err, HasSubstr("/nowhere"));
  EXPECT_EQ(partial.exit_code, 2);
  EXPECT_THAT(partial.err, HasSubstr("--tls-ca is missing"));
}

TEST_F(TlsClusterTest, CertificatesThatDoNotFitAreToldApart) {
  const TestAuthority other;
  const rpc::PeerName client{rpc::PeerRole::kClient, "client"};
  const rpc::TlsFiles own = ClientFiles();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const rpc::TlsTexts texts, rpc::ReadTlsFiles(own));
  const rpc::KeyPair foreign = other.Issue(client);
  struct Case {
    const char* what;
    rpc::TlsFiles files;
    int exit_code;
    const char* said;
  };
  const Case cases[] = {
      {"of another authority", strangers_.Write("a", foreign, other.certificate()), 3,
       "is not one of an authority in"},
      {"of an authority that the cluster does not trust",
       strangers_.Write("b", foreign, other.certificate() + texts.authorities), 3, "b.crt"},
      {"expired",
       strangers_.Write(
           "c", other.Issue(client, absl::Now() - absl::Hours(3), absl::Now() - absl::Hours(2)),
           other.certificate()),
       1, "expired at"},
      {"with another's key",
       {own.certificate, WorkerFiles("worker-0").private_key, own.authorities},
       1,
       "is not the key of"},
      {"missing", {own.certificate, strangers_.Path("none"), own.authorities}, 1, "none"}};
  for (const Case& each : cases) {
    const CommandResult result = Status(Flags(each.files));
    EXPECT_EQ(result.exit_code, each.exit_code) << each.what << ": " << result.err;
    EXPECT_THAT(result.err, HasSubstr(each.said)) << each.what;
    EXPECT_LT(result.time, absl::Seconds(5)) << each.what;
  }
}

TEST_F(TlsClusterTest, OnlyAWorkerAttachesAndOnlyAsItself) {
  const absl::Status other = Attach(WorkerFiles("worker-0"), "worker-1");
  EXPECT_THAT(other, StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(std::string(other.message()), AllOf(HasSubstr("spiffe://shardmesh/worker/worker-0"),
                                                  HasSubstr("spiffe://shardmesh/worker/worker-1")));
  EXPECT_THAT(Attach(ClientFiles(), "worker-1"), StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(Attach(client::CoordinatorTlsFiles(folder_->path()), "coordinator"),
              StatusIs(absl::StatusCode::kPermissionDenied));
}

TEST_F(TlsClusterTest, AHelloWithAPortThatIsNoneIsRefused) {
  for (const int port : {-1, 0, 65'536}) {
    const absl::Status refused = Attach(WorkerFiles("worker-0"), "worker-0", port);
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr(StrCat("is ", port, "; a port is from 1 to 65535")));
  }
}

TEST_F(TlsClusterTest, OnlyAWorkerExchangesAndOnlyAsItself) {
  EXPECT_THAT(Exchange(ClientFiles()), StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(Exchange(WorkerFiles("worker-2")), StatusIs(absl::StatusCode::kPermissionDenied));
  // Its own certificate does; then it is the incarnation that is not known.
  EXPECT_THAT(Exchange(WorkerFiles("worker-0")), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(TlsClusterTest, AClientTakesNoWorkerForAnother) {
  const rpc::Credentials credentials = CredentialsOf(ClientFiles());
  const std::vector<std::string> addresses = {AddressOf("worker-2")};
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  EXPECT_THAT(client::WorkerClient::Connect("worker-2", addresses, credentials, deadline), IsOk());
  const absl::Status other =
      client::WorkerClient::Connect("worker-3", addresses, credentials, deadline).status();
  EXPECT_THAT(other, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(std::string(other.message()),
              AllOf(HasSubstr("its certificate is that of spiffe://shardmesh/worker/worker-2"),
                    HasSubstr("worker \"worker-3\"")));
}

TEST_F(TlsClusterTest, AWorkerWithAnothersCertificateDoesNotStart) {
  ServerProcess worker(
      "shardmesh-worker",
      std::vector<std::string>{"--coordinator=" + cluster_->address(), "--identity=worker-9"} +
          Flags(WorkerFiles("worker-0")));
  EXPECT_EQ(worker.AwaitEnd(), "exited with code 1");
  EXPECT_THAT(worker.Log(), AllOf(HasSubstr("worker-0.crt"), HasSubstr("worker-9")));
  ServerProcess coordinator("shardmesh-coordinator",
                            std::vector<std::string>{"--listen=127.0.0.1:0", "--http-listen="} +
                                Flags(WorkerFiles("worker-0")));
  EXPECT_EQ(coordinator.AwaitEnd(), "exited with code 1");
  EXPECT_THAT(coordinator.Log(),
              AllOf(HasSubstr("worker-0.crt"), HasSubstr("this process is a coordinator")));
}

TEST_F(TlsClusterTest, AWorkerWithoutTlsSaysWhatItMeets) {
  ServerProcess worker("shardmesh-worker",
                       {"--coordinator=" + cluster_->address(), "--identity=worker-9"});
  EXPECT_TRUE(worker.AwaitInLog("it speaks TLS, and this process plaintext"));
}

TEST_F(TlsClusterTest, ServersRefuseFlagsThatDoNotGoTogether) {
  for (const char* program : {"shardmesh-worker", "shardmesh-coordinator"}) {
    ServerProcess partial(program, {"--tls-cert=" + ClientFiles().certificate});
    EXPECT_EQ(partial.AwaitEnd(), "exited with code 2") << program;
    EXPECT_THAT(partial.Log(), HasSubstr("--tls-key and --tls-ca are missing"));
    ServerProcess insecure(program, std::vector<std::string>{"--insecure"} + Flags(ClientFiles()));
    EXPECT_EQ(insecure.AwaitEnd(), "exited with code 2") << program;
    EXPECT_THAT(insecure.Log(), HasSubstr("--http-plaintext"));
  }
}

// What one gets from an address over HTTPS, with these files; or the error.
std::string Https(const std::string& address, const std::string& path, const rpc::TlsFiles& files) {
  const std::string script = StrCat(
      "import ssl, urllib.request as r\n"
      "c = ssl.create_default_context(cafile=\"",
      files.authorities, "\")\n",
      files.certificate.empty()
          ? ""
          : StrCat("c.load_cert_chain(\"", files.certificate, "\", \"", files.private_key, "\")\n"),
      "try: print(r.urlopen(\"https://", address, path,
      "\", context=c, timeout=20).read().decode())\n"
      "except Exception as e: print(\"error:\", e)\n");
  const std::string folder = MakeTestFolder("https");
  std::ofstream(folder + "/get.py") << script;
  FILE* const pipe = popen(StrCat("python3 ", folder, "/get.py 2>&1").c_str(), "r");
  std::string printed;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) {
    printed.push_back(static_cast<char>(c));
  }
  pclose(pipe);
  std::filesystem::remove_all(folder);
  return printed;
}

TEST_F(TlsClusterTest, MetricsAreForThoseWithACertificate) {
  const rpc::TlsFiles client = ClientFiles();
  for (const std::string& address : cluster_->metrics_addresses()) {
    EXPECT_THAT(Https(address, "/metrics", client),
                AllOf(HasSubstr("shardmesh_build_info{"),
                      HasSubstr("shardmesh_certificate_expiry_timestamp_seconds "),
                      HasSubstr("shardmesh_certificate_not_before_timestamp_seconds ")));
    EXPECT_THAT(Https(address, "/", client), HasSubstr("error: HTTP Error 404"));
    rpc::TlsFiles nobody;
    nobody.authorities = client.authorities;
    EXPECT_THAT(Https(address, "/metrics", nobody), HasSubstr("error: "));
    const CertificateFolder other;
    ASSERT_THAT(client::WriteCertificates({.folder = other.path(), .workers = {}, .hosts = {}}),
                IsOk());
    rpc::TlsFiles stranger = client::ClientTlsFiles(other.path());
    stranger.authorities = client.authorities;
    EXPECT_THAT(Https(address, "/metrics", stranger), HasSubstr("error: "));
  }
}

// The answer to a question that needs no more than a connection, from one who shows this and
// nothing else: our own clients look at their own certificates first.
absl::Status Ask(const std::string& address, const grpc::SslCredentialsOptions& shown) {
  const auto channel = grpc::CreateChannel(address, grpc::SslCredentials(shown));
  grpc::ClientContext context;
  rpc::Apply(rpc::CallOptions::Within(absl::Seconds(10)), &context);
  grpc::health::v1::HealthCheckResponse response;
  return rpc::FromGrpc(grpc::health::v1::Health::NewStub(channel)->Check(
      &context, grpc::health::v1::HealthCheckRequest(), &response));
}
absl::Status AskWith(const std::string& address, const rpc::TlsFiles& files) {
  const auto texts = rpc::ReadTlsFiles(files);
  if (!texts.ok()) return texts.status();
  return Ask(address, {.pem_root_certs = texts->authorities,
                       .pem_private_key = texts->private_key,
                       .pem_cert_chain = texts->certificate});
}

TEST_F(TlsClusterTest, ATlsClientThatShowsNoCertificateGetsNothing) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const rpc::TlsTexts texts, rpc::ReadTlsFiles(ClientFiles()));
  grpc::SslCredentialsOptions nothing;
  nothing.pem_root_certs = texts.authorities;
  for (const std::string& address : {cluster_->address(), AddressOf("worker-0")}) {
    EXPECT_THAT(AskWith(address, ClientFiles()), IsOk()) << address;
    EXPECT_THAT(Ask(address, nothing), StatusIs(absl::StatusCode::kUnavailable)) << address;
  }
  // Nothing answers questions about health where workers meet; but it is TLS that comes first.
  const std::string address = ExchangeAddressOf("worker-0");
  EXPECT_THAT(AskWith(address, ClientFiles()), StatusIs(absl::StatusCode::kUnimplemented));
  EXPECT_THAT(Ask(address, nothing), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(TlsClusterTest, ACertificateThatNamesNobodyOpensNothing) {
  // Signed by the cluster's authority, for something else.
  const std::string folder = folder_->path();
  const std::string command = StrCat(
      "cd ", folder, " && openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ",
      "stranger.key -subj /CN=stranger -out stranger.csr 2>&1 && echo extendedKeyUsage=clientAuth ",
      "> stranger.ext && openssl x509 -req -in stranger.csr -CA ca.crt -CAkey authority/ca.key ",
      "-days 1 -extfile stranger.ext -out stranger.crt 2>&1");
  ASSERT_EQ(std::system(command.c_str()), 0);
  const rpc::TlsFiles stranger = {.certificate = folder + "/stranger.crt",
                                  .private_key = folder + "/stranger.key",
                                  .authorities = folder + "/ca.crt"};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ClusterStatus status,
                                 cluster_->client().cluster().GetStatus());
  for (const std::string& address :
       {cluster_->address(), status.workers.front().addresses.front()}) {
    EXPECT_THAT(AskWith(address, ClientFiles()), IsOk()) << address;
    EXPECT_THAT(AskWith(address, stranger), StatusIs(absl::StatusCode::kUnavailable)) << address;
  }
  EXPECT_THAT(AskWith(ExchangeAddressOf("worker-0"), stranger),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(Https(cluster_->metrics_addresses().front(), "/metrics", stranger),
              HasSubstr("error: "));
}

TEST_F(TlsClusterTest, ProbesNeedNoCertificate) {
  const std::string& address = cluster_->address();
  const int port = std::stoi(address.substr(address.rfind(':') + 1));
  const auto run = [&](std::vector<std::string> command) {
    command.push_back("--address=" + HealthAddress(port));
    return RunShardmesh(command, cluster_->folder());
  };
  for (const char* service : {"live", "ready"}) {
    const CommandResult result = run({"health", service});
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
  EXPECT_EQ(run({"status"}).exit_code, 3) << "health alone is answered there";
}

TEST_F(TlsClusterTest, MetricsArePlaintextWhereThatIsAskedFor) {
  const std::vector<std::string> flags =
      std::vector<std::string>{"--listen=0.0.0.0:0", "--http-listen=0.0.0.0:0"} +
      Flags(client::CoordinatorTlsFiles(folder_->path()));
  const auto port = [](const ServerProcess& process) {
    const std::string log = process.Log();
    const size_t begin = log.find("metrics served port=") + 20;
    return log.substr(begin, log.find('\n', begin) - begin);
  };
  ServerProcess secure("shardmesh-coordinator", flags);
  ASSERT_TRUE(secure.AwaitInLog("listening on 0.0.0.0:"));
  EXPECT_THAT(Https("127.0.0.1:" + port(secure), "/metrics", ClientFiles()),
              HasSubstr("shardmesh_build_info{"));
  ServerProcess plain("shardmesh-coordinator",
                      flags + std::vector<std::string>{"--http-plaintext"});
  ASSERT_TRUE(plain.AwaitInLog("listening on 0.0.0.0:"));
  EXPECT_THAT(Https("127.0.0.1:" + port(plain), "/metrics", ClientFiles()), HasSubstr("error: "));
}

// Workers read tiles from one another, and take memory and files, under their own certificates.
TEST(TlsTest, TilesAreLoadedHandedOverSavedMovedAndRepairedOverIt) {
  const CertificateFolder certificates;
  const std::string files = std::filesystem::canonical(MakeTestFolder("tls_tiles")).string();
  const std::string x = files + "/x.npy";
  TestCluster::Options options;
  options.mesh = "dp=2,tp=2";
  options.tls_folder = certificates.path();
  options.worker_flags = {"--read-root=" + files, "--write-root=" + files};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, TestCluster::Start(options));
  const auto run = [&](const std::vector<std::string>& command) {
    const CommandResult result = cluster->Run(command);
    EXPECT_EQ(result.exit_code, 0) << command.front() << ": " << result.err;
    return result.out;
  };
  const auto expect_x = [&](const std::string& name) {
    run({"get", name, "--out=" + files + "/got.npy"});
    EXPECT_TRUE(ReadFile(files + "/got.npy") == ReadFile(x)) << name;
  };
  // A tile of 1 MiB is the least that is handed over.
  run({"make-tensor", "--shape=1024,1024", "--out=" + x});
  const json put = json::parse(run({"put", x, "--as=w", "--spec=dp,tp", "--source=client",
                                    "--handover=on", "--no-reuse", "--output=json"}),
                               nullptr, /*allow_exceptions=*/false);
  EXPECT_EQ(put.value("handed_over_bytes", 0), 1024 * 1024 * 4) << put;
  run({"save", "w", files + "/run", "--single-file"});
  run({"rm", "w"});
  run({"load", files + "/run", "--spec=dp,tp", "--source=workers", "--no-reuse"});
  expect_x("w");
  ASSERT_THAT(
      cluster->client().catalog().CreateEntry(
          "column", MeshDefinition{.mesh = *Mesh::Parse("y=4"),
                                   .workers = {"worker-3", "worker-2", "worker-1", "worker-0"}}),
      IsOk());
  run({"reshard", "w", "--to=-,y", "--mesh=column"});
  expect_x("w");
  run({"rm", "w"});

  std::vector<float> numbers(64 * 64);
  std::iota(numbers.begin(), numbers.end(), 0.0F);
  const auto expect_rows = [&] {
    const auto rows = cluster->client().arrays().Gather(client::ArraySelector::ByName("rows"));
    ASSERT_THAT(rows, IsOk());
    EXPECT_EQ(FloatsOf(rows->view().bytes()), numbers);
  };
  ASSERT_THAT(PutFloats(cluster->client(), "rows", {64, 64}, numbers,
                        PartitionSpec({SpecEntry::Axis("dp")})),
              IsOk());
  const auto is_degraded = [&](bool degraded) {
    return Eventually([&, degraded] {
      const auto status = cluster->client().cluster().GetStatus();
      return status.ok() && (status->degraded_arrays > 0) == degraded;
    });
  };
  ASSERT_THAT(cluster->Kill("worker-1"), IsOk());
  ASSERT_TRUE(is_degraded(true));
  ASSERT_THAT(cluster->Restart("worker-1"), IsOk());
  ASSERT_TRUE(is_degraded(false)) << "its tile comes from another worker";
  expect_rows();
  run({"mesh", "resize", "default", "dp=4,tp=1"});
  expect_rows();
  std::filesystem::remove_all(files);
}

TEST(TlsTest, AProcessWithTlsSaysThatACoordinatorHasNone) {
  const CertificateFolder folder;
  ASSERT_THAT(
      client::WriteCertificates({.folder = folder.path(), .workers = {"worker-9"}, .hosts = {}}),
      IsOk());
  TestCluster::Options options;
  options.mesh = "fsdp=1";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, TestCluster::Start(options));
  ServerProcess worker(
      "shardmesh-worker",
      std::vector<std::string>{"--coordinator=" + cluster->address(), "--identity=worker-9"} +
          Flags(client::WorkerTlsFiles(folder.path(), "worker-9")));
  EXPECT_TRUE(worker.AwaitInLog("this process TLS"));
  const CommandResult result =
      RunShardmesh(std::vector<std::string>{"status", "--address=" + cluster->address()} +
                       Flags(client::ClientTlsFiles(folder.path())),
                   folder.path());
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, AllOf(HasSubstr("this process TLS"), HasSubstr("--tls-cert")));
  EXPECT_LT(result.time, absl::Seconds(4));
}

TEST(TlsTest, AStartWithoutItsCertificateIsALineOfTheLog) {
  const CertificateFolder folder;
  for (const char* program : {"shardmesh-coordinator", "shardmesh-worker"}) {
    ServerProcess process(
        program, std::vector<std::string>{"--log-format=json"} + Flags(folder.FilesOf("nobody")));
    process.AwaitEnd();
    const json line = json::parse(process.Log(), /*cb=*/nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(line.is_object()) << process.Log();
    EXPECT_EQ(line["level"], "error");
    EXPECT_THAT(line["error"].get<std::string>(), HasSubstr(folder.Path("nobody")));
  }
}

// A cluster of two workers whose files are replaced.
class RotationTest : public ::testing::Test {
 protected:
  void Start(const std::string& mesh) {
    TestCluster::Options options;
    options.mesh = mesh;
    options.tls_folder = folder_.path();
    options.worker_flags = {"--transport=stream"};
    SHARDMESH_ASSERT_OK_AND_ASSIGN(cluster_, TestCluster::Start(options));
    std::iota(numbers_.begin(), numbers_.end(), 0.0F);
    ASSERT_THAT(PutFloats(cluster_->client(), "m", {4, 4}, numbers_,
                          PartitionSpec({SpecEntry::Axes({"fsdp"})})),
                IsOk());
  }
  // How often a process has taken new files.
  int Reloads(const std::string& identity) const {
    const std::string log =
        client::ReadLog(StrCat(cluster_->folder(), "/shardmesh/test/", identity, ".log"));
    int count = 0;
    for (size_t at = 0; (at = log.find("certificates reloaded", at)) != std::string::npos; ++at) {
      ++count;
    }
    return count;
  }
  void AwaitReloads(int count) const {
    for (const char* identity : {"coordinator", "worker-0", "worker-1"}) {
      EXPECT_TRUE(Eventually([&] { return Reloads(identity) >= count; })) << identity;
    }
    // gRPC looks once a second.
    absl::SleepFor(absl::Seconds(2));
  }
  void ExpectSums(client::MeshClient& client) const {
    const auto result = client.compute().Collective({.input = client::ArraySelector::ByName("m"),
                                                     .kind = CollectiveKind::kAllReduce,
                                                     .axes = {"fsdp"},
                                                     .output = {.return_literals = true}});
    ASSERT_THAT(result, IsOk());
    std::vector<float> sums(8);
    for (size_t i = 0; i < numbers_.size(); ++i) sums[i % 8] += numbers_[i];
    EXPECT_EQ(FloatsOf(result->outputs[0].literal->bytes), sums);
  }
  // A worker comes back over new connections, and takes part.
  void RestartAndCompute() {
    ASSERT_THAT(cluster_->Kill("worker-1"), IsOk());
    ASSERT_THAT(cluster_->Restart("worker-1"), IsOk());
    ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
    ASSERT_THAT(PutFloats(cluster_->client(), "m", {4, 4}, numbers_,
                          PartitionSpec({SpecEntry::Axes({"fsdp"})})),
                IsOk());
    ExpectSums(cluster_->client());
  }
  // Signs everything anew with an authority that is not in the folder.
  void ReplaceCertificates(const TestAuthority& authority, const std::string& trusted) const {
    folder_.Write("ca.crt", trusted);
    const std::pair<std::string, rpc::PeerName> all[] = {
        {"coordinator", {rpc::PeerRole::kCoordinator, "coordinator"}},
        {"worker-0", {rpc::PeerRole::kWorker, "worker-0"}},
        {"worker-1", {rpc::PeerRole::kWorker, "worker-1"}},
        {"client", {rpc::PeerRole::kClient, "client"}}};
    for (const auto& [stem, name] : all) {
      const rpc::KeyPair pair = authority.Issue(name);
      folder_.Write(stem + ".key", pair.private_key);
      folder_.Write(stem + ".crt", pair.certificate);
    }
  }

  const CertificateFolder folder_;
  std::unique_ptr<TestCluster> cluster_;
  std::vector<float> numbers_ = std::vector<float>(16);
};

TEST_F(RotationTest, RenewedCertificatesAreUsedAndConnectionsGoOn) {
  Start("fsdp=2");
  ASSERT_THAT(client::WriteCertificates({.folder = folder_.path(), .workers = {}, .hosts = {}}),
              IsOk());
  AwaitReloads(1);
  ExpectSums(cluster_->client());  // over connections that are there
  RestartAndCompute();             // over new ones
  EXPECT_THAT(cluster_->Run({"status"}), Succeeded());
}

TEST_F(RotationTest, AnAuthorityIsReplacedWhileAllRuns) {
  Start("fsdp=2");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const rpc::TlsTexts first,
                                 rpc::ReadTlsFiles(client::ClientTlsFiles(folder_.path())));
  const TestAuthority next;
  folder_.Write("ca.crt", first.authorities + next.certificate());
  AwaitReloads(1);
  RestartAndCompute();
  ReplaceCertificates(next, first.authorities + next.certificate());
  AwaitReloads(2);
  folder_.Write("ca.crt", next.certificate());
  AwaitReloads(3);
  RestartAndCompute();
  EXPECT_THAT(cluster_->Run({"status"}), Succeeded());
  // Who has only what the old authority signed is out.
  const rpc::TlsFiles old =
      folder_.Write("old", {.certificate = first.certificate, .private_key = first.private_key},
                    first.authorities);
  const CommandResult result = RunShardmesh(
      std::vector<std::string>{"status", "--address=" + cluster_->address()} + Flags(old),
      folder_.path());
  EXPECT_EQ(result.exit_code, 3) << result.err;
}

TEST_F(RotationTest, FilesThatCannotBeUsedChangeNothing) {
  Start("fsdp=2");
  const std::string before = client::ReadLog(folder_.Path("worker-1.key"));
  folder_.Write("worker-1.key", client::ReadLog(folder_.Path("worker-0.key")));
  const std::string log = cluster_->folder() + "/shardmesh/test/worker-1.log";
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(client::ReadLog(log), "cannot be used; the previous ones stay in use");
  }));
  EXPECT_THAT(client::ReadLog(log), HasSubstr("is not the key of the certificate"));
  // worker-0 dials worker-1, and the client does.
  ASSERT_THAT(cluster_->Kill("worker-0"), IsOk());
  ASSERT_THAT(cluster_->Restart("worker-0"), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  folder_.Write("worker-1.key", before);
  RestartAndCompute();
}

class CertsTest : public ::testing::Test {
 protected:
  CommandResult Run(const std::vector<std::string>& arguments) const {
    return RunShardmesh(arguments, runtime_.path());
  }
  static int ModeOf(const std::string& path) {
    struct stat state = {};
    EXPECT_EQ(stat(path.c_str(), &state), 0) << path;
    return static_cast<int>(state.st_mode & 0777);
  }

  const CertificateFolder runtime_;
  const std::string folder_ = runtime_.Path("certs");
};

TEST_F(CertsTest, MakesAnAuthorityAndCertificatesAndRenewsThese) {
  const CommandResult made = Run(
      {"certs", "--dir=" + folder_, "--workers=2", "--host=coordinator.example", "--output=json"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_THAT(made.err, HasSubstr("only for trials"));
  const json list = json::parse(made.out);
  EXPECT_EQ(list["made_authority"], true);
  EXPECT_EQ(list["certificates"].size(), 4);
  for (const char* stem : {"coordinator", "shardmesh-worker-0", "shardmesh-worker-1", "client"}) {
    const rpc::TlsFiles files = client::WorkerTlsFiles(folder_, stem);
    EXPECT_THAT(rpc::Credentials::FromFiles(files), IsOk()) << stem;
    EXPECT_EQ(ModeOf(files.private_key), 0600) << stem;
  }
  EXPECT_EQ(ModeOf(folder_ + "/authority/ca.key"), 0600);
  EXPECT_EQ(ModeOf(folder_ + "/authority"), 0700);
  // A secret made of the folder's files holds no key of the authority.
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    EXPECT_TRUE(entry.path().filename() == "authority" || entry.path().filename() != "ca.key");
  }
  const std::string authority = client::ReadLog(folder_ + "/ca.crt");
  const std::string worker = client::ReadLog(folder_ + "/shardmesh-worker-0.crt");
  const CommandResult renewed = Run({"certs", "--dir=" + folder_, "--days=7"});
  ASSERT_EQ(renewed.exit_code, 0) << renewed.err;
  const size_t second = renewed.out.find("shardmesh-worker-1.crt");
  EXPECT_NE(second, std::string::npos);
  EXPECT_LT(renewed.out.find("shardmesh-worker-0.crt"), second) << "in the order of their names";
  EXPECT_EQ(client::ReadLog(folder_ + "/ca.crt"), authority);
  EXPECT_NE(client::ReadLog(folder_ + "/shardmesh-worker-0.crt"), worker);
}

TEST_F(CertsTest, ReplacesNoAuthorityInSilence) {
  ASSERT_THAT(Run({"certs", "--dir=" + folder_, "--worker=a", "--worker=b.c"}), Succeeded());
  const std::string key = folder_ + "/authority/ca.key";
  const std::string kept = client::ReadLog(key);
  std::filesystem::remove(key);
  const CommandResult no_key = Run({"certs", "--dir=" + folder_});
  EXPECT_EQ(no_key.exit_code, 1);
  EXPECT_THAT(no_key.err, AllOf(HasSubstr(key), HasSubstr("is not replaced"),
                                testing::Not(HasSubstr("interrupted"))));
  std::ofstream(key) << kept;
  const std::string certificate = folder_ + "/ca.crt";
  std::filesystem::rename(certificate, folder_ + "/gone");
  const CommandResult no_certificate = Run({"certs", "--dir=" + folder_});
  EXPECT_EQ(no_certificate.exit_code, 1);
  EXPECT_THAT(no_certificate.err, HasSubstr("was interrupted, nobody trusts this authority yet: "
                                            "remove " +
                                            key));
  // Another authority's certificate beside the key.
  std::ofstream(certificate) << TestAuthority().certificate();
  const CommandResult other = Run({"certs", "--dir=" + folder_});
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_THAT(other.err, HasSubstr("no certificate belongs to the key"));
}

TEST_F(CertsTest, SaysHowToReplaceAnAuthorityThatHasExpired) {
  ASSERT_THAT(Run({"certs", "--dir=" + folder_, "--worker=a"}), Succeeded());
  const std::string certificate = folder_ + "/ca.crt";
  const std::string key = folder_ + "/authority/ca.key";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const rpc::KeyPair old,
      rpc::MakeAuthority(absl::Now() - absl::Hours(5), absl::Now() - absl::Hours(3)));
  std::ofstream(certificate) << old.certificate;
  std::ofstream(key) << old.private_key;
  const CommandResult expired = Run({"certs", "--dir=" + folder_});
  EXPECT_EQ(expired.exit_code, 1);
  EXPECT_THAT(expired.err,
              AllOf(HasSubstr(" expired 3h"), HasSubstr("remove " + certificate + " and " + key)));
  // As it says.
  std::filesystem::remove(certificate);
  std::filesystem::remove(key);
  const CommandResult again = Run({"certs", "--dir=" + folder_});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(rpc::Credentials::FromFiles(client::WorkerTlsFiles(folder_, "a")), IsOk());
}

TEST_F(CertsTest, RefusesNamesThatNoCertificateBears) {
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {"--worker=a/b"}, {"--worker="}, {"--worker=coordinator"}, {"--host=a,b"}}) {
    const CommandResult result = Run(std::vector<std::string>{"certs", "--dir=" + folder_} + flags);
    EXPECT_EQ(result.exit_code, 1) << flags.front() << result.err;
  }
  EXPECT_EQ(Run({"certs"}).exit_code, 2);
  EXPECT_EQ(Run({"certs", "--dir=" + folder_, "--workers=2", "--worker=a"}).exit_code, 2);
  EXPECT_EQ(Run({"certs", "--dir=" + folder_, "--days=0"}).exit_code, 2);
}

TEST_F(CertsTest, ALocalClusterHasThemByOneOption) {
  const CommandResult up =
      Run({"up", "--mesh=fsdp=2", "--detach", "--tls=" + folder_, "--output=json"});
  ASSERT_EQ(up.exit_code, 0) << up.err;
  const std::string address = json::parse(up.out)["address"];
  const CommandResult status = Run({"status", "--output=json"});
  EXPECT_EQ(status.exit_code, 0) << status.err;
  EXPECT_EQ(json::parse(status.out)["metrics_scheme"], "https");
  const CommandResult stranger = Run({"status", "--address=" + address});
  EXPECT_EQ(stranger.exit_code, 3);
  EXPECT_THAT(stranger.err, HasSubstr("it speaks TLS"));
  const CommandResult plain = Run({"up", "--mesh=fsdp=2", "--detach"});
  EXPECT_EQ(plain.exit_code, 1);
  EXPECT_THAT(Run({"down"}), Succeeded());
}

}  // namespace
}  // namespace shardmesh::test
