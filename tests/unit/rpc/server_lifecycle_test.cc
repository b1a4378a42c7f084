// Real servers on free ports: health, reflection's list, metrics, ports in use, drain.
#include "rpc/server_lifecycle.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.pb.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "rpc/codec/status.h"
#include "rpc/metrics/metrics_endpoint.h"
#include "shardmesh/v1/session_service.grpc.pb.h"
#include "status/detail.h"
#include "tests/testing/eventually.h"
#include "tests/testing/proxy.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::rpc {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::HasSubstr;
using Health = grpc::health::v1::HealthCheckResponse;

constexpr char kThrows[] = "finds no memory";

// Opens sessions at once; renewing one waits until it is let go.
class SessionService final : public v1::SessionService::CallbackService {
 public:
  grpc::ServerUnaryReactor* OpenSession(grpc::CallbackServerContext* context,
                                        const v1::OpenSessionRequest* request,
                                        v1::OpenSessionResponse* response) override {
    {
      absl::MutexLock lock(&mutex_);
      traceparent_ = OptionsOf(*context).traceparent;
    }
    if (request->client_name() == kThrows) throw std::bad_alloc();
    auto* reactor = context->DefaultReactor();
    response->set_session_id(request->client_name());
    reactor->Finish(ToGrpc(request->client_name().empty()
                               ? BadField("client_name", "client_name is empty")
                               : absl::OkStatus()));
    return reactor;
  }
  grpc::ServerUnaryReactor* RenewSession(grpc::CallbackServerContext* context,
                                         const v1::RenewSessionRequest*,
                                         v1::RenewSessionResponse*) override {
    waiting_context = context;
    waiting = context->DefaultReactor();
    renewing.Notify();
    return waiting;
  }

  // That of the last session.
  std::string traceparent() const {
    absl::MutexLock lock(&mutex_);
    return traceparent_;
  }

  // Valid once `renewing` is notified.
  grpc::ServerUnaryReactor* waiting = nullptr;
  grpc::CallbackServerContext* waiting_context = nullptr;
  absl::Notification renewing;

 private:
  mutable absl::Mutex mutex_;
  std::string traceparent_ ABSL_GUARDED_BY(mutex_);
};

class ServerLifecycleTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<ServerLifecycle>> Start(ServerOptions options = {}) {
    const NamedService services[] = {{v1::SessionService::service_full_name(), &service_}};
    options.metrics = &metrics_;
    return ServerLifecycle::Start(options, services);
  }

  std::shared_ptr<grpc::Channel> Dial(const ServerLifecycle& server) {
    ChannelOptions options;
    options.own_connection = true;
    return *CreateChannel(server.address(), options);
  }

  absl::StatusOr<Health::ServingStatus> Check(const ServerLifecycle& server,
                                              const std::string& name) {
    grpc::ClientContext context;
    Apply(CallOptions::Within(absl::Seconds(10)), &context);
    grpc::health::v1::HealthCheckRequest request;
    request.set_service(name);
    Health response;
    const auto status =
        grpc::health::v1::Health::NewStub(Dial(server))->Check(&context, request, &response);
    if (!status.ok()) {
      return FromGrpc(status);
    }
    return response.status();
  }

  absl::Status Open(const ServerLifecycle& server, const std::string& name) {
    grpc::ClientContext context;
    CallOptions options = CallOptions::Within(absl::Seconds(10));
    options.traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    Apply(options, &context);
    v1::OpenSessionRequest request;
    request.set_client_name(name);
    v1::OpenSessionResponse response;
    return FromGrpc(
        v1::SessionService::NewStub(Dial(server))->OpenSession(&context, request, &response));
  }

  Metrics metrics_{"coordinator"};
  SessionService service_;
};

TEST_F(ServerLifecycleTest, HealthFollowsReadinessButForLive) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(auto server, Start());
  const std::string service = v1::SessionService::service_full_name();
  for (const std::string& name : {std::string(), std::string("ready"), service}) {
    EXPECT_THAT(Check(*server, name), test::IsOkAndHolds(Health::NOT_SERVING)) << name;
  }
  EXPECT_THAT(Check(*server, "live"), test::IsOkAndHolds(Health::SERVING));
  server->SetReady(true);
  EXPECT_TRUE(server->ready());
  for (const std::string& name : {std::string(), std::string("ready"), service}) {
    EXPECT_THAT(Check(*server, name), test::IsOkAndHolds(Health::SERVING)) << name;
  }
  EXPECT_THAT(Check(*server, "nobody"), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(ServerLifecycleTest, ServesItsOwnProcessAloneWithoutAnAddress) {
  ServerOptions options;
  options.address.clear();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto server, Start(options));
  server->SetReady(true);
  EXPECT_EQ(server->port(), 0);
  EXPECT_EQ(server->address(), "");
  const auto stub = v1::SessionService::NewStub(server->server().InProcessChannel({}));
  const auto open = [&stub](const std::string& name) {
    grpc::ClientContext context;
    Apply(CallOptions::Within(absl::Seconds(10)), &context);
    v1::OpenSessionRequest request;
    request.set_client_name(name);
    v1::OpenSessionResponse response;
    return FromGrpc(stub->OpenSession(&context, request, &response));
  };
  EXPECT_THAT(open("a"), IsOk());
  EXPECT_THAT(open(""), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(ServerLifecycleTest, HealthSaysNoToEverythingOnceItHasFailed) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto server, Start());
  server->SetReady(true);
  server->Fail();
  for (const std::string& name : {std::string(), std::string("ready"), std::string("live"),
                                  std::string(v1::SessionService::service_full_name())}) {
    EXPECT_THAT(Check(*server, name), test::IsOkAndHolds(Health::NOT_SERVING)) << name;
  }
}

using ReflectionRequest = grpc::reflection::v1alpha::ServerReflectionRequest;
using ReflectionResponse = grpc::reflection::v1alpha::ServerReflectionResponse;

TEST_F(ServerLifecycleTest, DescribesItsServicesAndTheirMessages) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto server, Start());
  const auto stub = grpc::reflection::v1alpha::ServerReflection::NewStub(Dial(*server));
  grpc::ClientContext context;
  Apply(CallOptions::Within(absl::Seconds(10)), &context);
  const auto stream = stub->ServerReflectionInfo(&context);
  const auto ask = [&](const ReflectionRequest& request) {
    ReflectionResponse response;
    EXPECT_TRUE(stream->Write(request) && stream->Read(&response));
    EXPECT_EQ(response.original_request().SerializeAsString(), request.SerializeAsString());
    return response;
  };
  ReflectionRequest request;
  request.set_list_services("");
  std::vector<std::string> names;
  ReflectionResponse response = ask(request);
  for (const auto& each : response.list_services_response().service()) {
    names.push_back(each.name());
  }
  EXPECT_THAT(names, testing::UnorderedElementsAre(v1::SessionService::service_full_name(),
                                                   "grpc.health.v1.Health",
                                                   "grpc.reflection.v1alpha.ServerReflection"));
  // The file comes behind its imports, each of them once.
  request.set_file_containing_symbol("shardmesh.v1.SessionService.OpenSession");
  std::vector<std::string> files;
  response = ask(request);
  for (const std::string& each : response.file_descriptor_response().file_descriptor_proto()) {
    google::protobuf::FileDescriptorProto file;
    ASSERT_TRUE(file.ParseFromString(each));
    for (const std::string& import : file.dependency()) {
      EXPECT_THAT(files, testing::Contains(import)) << file.name();
    }
    EXPECT_THAT(files, testing::Not(testing::Contains(file.name())));
    files.push_back(file.name());
  }
  ASSERT_FALSE(files.empty());
  EXPECT_EQ(files.back(), "shardmesh/v1/session_service.proto");
  request.set_file_by_filename("google/protobuf/descriptor.proto");
  EXPECT_EQ(ask(request).file_descriptor_response().file_descriptor_proto_size(), 1);
  request.set_all_extension_numbers_of_type("google.protobuf.FieldOptions");
  EXPECT_EQ(ask(request).all_extension_numbers_response().base_type_name(),
            "google.protobuf.FieldOptions");

  const auto error_of = [&] { return ask(request).error_response(); };
  request.set_file_containing_symbol("shardmesh.v1.Nobody");
  EXPECT_EQ(error_of().error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(error_of().error_message(), HasSubstr("symbol \"shardmesh.v1.Nobody\""));
  request.set_file_by_filename("nobody.proto");
  EXPECT_THAT(error_of().error_message(), HasSubstr("file \"nobody.proto\""));
  request.set_all_extension_numbers_of_type("Nobody");
  EXPECT_THAT(error_of().error_message(), HasSubstr("message \"Nobody\""));
  request.mutable_file_containing_extension()->set_containing_type("google.protobuf.FieldOptions");
  request.mutable_file_containing_extension()->set_extension_number(-1);
  EXPECT_THAT(error_of().error_message(), HasSubstr("extension -1"));
  request.Clear();
  EXPECT_EQ(error_of().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(ServerLifecycleTest, AStreamOfQuestionsThatStaysOpenEndsWithTheServer) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto server, Start());
  const auto stub = grpc::reflection::v1alpha::ServerReflection::NewStub(Dial(*server));
  grpc::ClientContext context;
  const auto stream = stub->ServerReflectionInfo(&context);
  ReflectionRequest request;
  request.set_list_services("");
  ReflectionResponse response;
  ASSERT_TRUE(stream->Write(request) && stream->Read(&response));
  server->Drain(absl::Now() + absl::Milliseconds(50));
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_FALSE(stream->Finish().ok());
}

TEST_F(ServerLifecycleTest, AHandlerThatFindsNoMemoryIsNotTheClientsFault) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto server, Start());
  EXPECT_THAT(Open(*server, kThrows),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_THAT(Open(*server, "ada"), IsOk());
}

TEST_F(ServerLifecycleTest, WithoutHealthItIsReadyAndDrainsAllTheSame) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto server, Start({.health = false}));
  EXPECT_THAT(Check(*server, ""), StatusIs(absl::StatusCode::kUnimplemented));
  EXPECT_FALSE(server->ready());
  server->SetReady(true);
  EXPECT_TRUE(server->ready());
  server->Drain(absl::Now() + absl::Seconds(5));
  EXPECT_FALSE(server->ready());
  EXPECT_THAT(Check(*server, ""), StatusIs(absl::StatusCode::kUnavailable));
}

// Its host is cut off: nothing says that the connection is gone.
TEST_F(ServerLifecycleTest, TheCallsOfAPeerThatAnswersNoPingAreCancelled) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto server, Start({.keepalive_interval = absl::Seconds(1),
                                                           .keepalive_timeout = absl::Seconds(4)}));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto network, test::Proxy::Start(server->address()));
  ChannelOptions options;
  options.own_connection = true;
  const auto stub =
      v1::SessionService::NewStub(*CreateChannel(network->address(), std::move(options)));
  grpc::ClientContext context;
  v1::RenewSessionResponse response;
  grpc::Status status;
  std::thread call(
      [&] { status = stub->RenewSession(&context, v1::RenewSessionRequest(), &response); });
  service_.renewing.WaitForNotification();
  network->Set(test::Proxy::Mode::kSwallow);
  EXPECT_TRUE(test::Eventually([&] { return service_.waiting_context->IsCancelled(); }));
  EXPECT_GT(network->swallowed_bytes(), 0) << "it was asked";
  service_.waiting->Finish(grpc::Status::OK);
  context.TryCancel();
  call.join();
  EXPECT_FALSE(status.ok());
}

TEST_F(ServerLifecycleTest, AConnectionWithoutACallIsToldToGo) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto server, Start({.max_idle = absl::Milliseconds(200)}));
  const std::shared_ptr<grpc::Channel> channel = Dial(*server);
  const auto stub = v1::SessionService::NewStub(channel);
  for (int i = 0; i < 2; ++i) {
    v1::OpenSessionRequest request;
    request.set_client_name("ada");
    v1::OpenSessionResponse response;
    // A call that meets the end of the connection is tried again.
    EXPECT_TRUE(test::Eventually([&] {
      grpc::ClientContext context;
      return stub->OpenSession(&context, request, &response).ok();
    }));
    EXPECT_TRUE(test::Eventually([&] { return channel->GetState(false) == GRPC_CHANNEL_IDLE; }));
  }
}

TEST_F(ServerLifecycleTest, CallsCarryTraceContextAndErrorsCarryDetails) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(auto server, Start());
  EXPECT_THAT(Open(*server, "me"), IsOk());
  EXPECT_THAT(service_.traceparent(), HasSubstr("0af7651916cd43dd8448eb211c80319c"));
  const absl::Status refused = Open(*server, "");
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_EQ(FieldViolationsOf(refused)[0].field, "client_name");
}

TEST_F(ServerLifecycleTest, CallsAreCountedByMethodAndCode) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(auto server, Start());
  EXPECT_THAT(Open(*server, "me"), IsOk());
  EXPECT_FALSE(Open(*server, "").ok());
  server->Drain(absl::Now() + absl::Seconds(10));
  const std::string text = metrics_.Text();
  EXPECT_THAT(text, HasSubstr("shardmesh_rpc_handled_total{code=\"OK\",method=\"SessionService/"
                              "OpenSession\"} 1"));
  EXPECT_THAT(text, HasSubstr("shardmesh_rpc_handled_total{code=\"INVALID_ARGUMENT\",method="
                              "\"SessionService/OpenSession\"} 1"));
  EXPECT_THAT(text, HasSubstr("shardmesh_rpc_duration_seconds_count{method=\"SessionService/"
                              "OpenSession\"} 2"));
}

TEST_F(ServerLifecycleTest, ARequestThatDoesNotParseIsABadArgumentAndCountedAsOne) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(auto server, Start());
  const absl::Status refused = Open(*server, "\xff");
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("shardmesh.v1.OpenSessionRequest"));
  EXPECT_EQ(FieldViolationsOf(refused)[0].field, "message");
  server->Drain(absl::Now() + absl::Seconds(10));
  const std::string text = metrics_.Text();
  EXPECT_THAT(text, HasSubstr("shardmesh_rpc_handled_total{code=\"INVALID_ARGUMENT\",method="
                              "\"SessionService/OpenSession\"} 1"));
  EXPECT_THAT(text, HasSubstr("shardmesh_rpc_handled_total{code=\"UNIMPLEMENTED\",method="
                              "\"SessionService/OpenSession\"} 0"));
}

TEST_F(ServerLifecycleTest, APortInUseIsAnError) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(auto server, Start());
  ServerOptions options;
  options.address = server->address();
  const auto second = Start(options);
  EXPECT_THAT(second.status(), StatusIs(absl::StatusCode::kAlreadyExists, Reason::kAlreadyExists));
  EXPECT_TRUE(absl::StrContains(second.status().message(), server->address()));
}

TEST_F(ServerLifecycleTest, PlaintextBeyondLoopbackIsRefusedUnlessInsecure) {
  ServerOptions options;
  options.address = "0.0.0.0:0";
  EXPECT_THAT(Start(options).status(), StatusIs(absl::StatusCode::kFailedPrecondition));
  options.insecure = true;
  EXPECT_THAT(Start(options).status(), IsOk());
}

TEST_F(ServerLifecycleTest, DrainLetsRunningCallsFinish) {
  ServerOptions options;
  options.on_drain = [this] { service_.waiting->Finish(grpc::Status::OK); };
  SHARDMESH_ASSERT_OK_AND_ASSIGN(auto server, Start(options));
  server->SetReady(true);
  grpc::ClientContext context;
  Apply(CallOptions::Within(absl::Seconds(60)), &context);
  v1::RenewSessionRequest request;
  v1::RenewSessionResponse response;
  absl::Notification done;
  grpc::Status status;
  auto stub = v1::SessionService::NewStub(Dial(*server));
  stub->async()->RenewSession(&context, &request, &response, [&](grpc::Status s) {
    status = std::move(s);
    done.Notify();
  });
  ASSERT_TRUE(service_.renewing.WaitForNotificationWithTimeout(absl::Seconds(30)));
  server->Drain(absl::Now() + absl::Seconds(30));
  EXPECT_FALSE(server->ready());
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_THAT(Open(*server, "me"), StatusIs(absl::StatusCode::kUnavailable));
  server->Drain(absl::Now());  // again: nothing happens
}

TEST(ChannelTest, NobodyThereIsSaidAtOnceWithTheAddress) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto channel, CreateChannel("127.0.0.1:1"));
  const absl::Time start = absl::Now();
  const absl::Status status = WaitForConnected(*channel, "127.0.0.1:1");
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_TRUE(absl::StrContains(status.message(), "127.0.0.1:1"));
  EXPECT_LE(absl::Now() - start, kConnectTimeout + absl::Seconds(1));
}

TEST(ChannelTest, RefusesTextThatIsNoAddress) {
  EXPECT_THAT(CreateChannel("nowhere").status(), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(RetryTest, TriesAgainOnlyWhatMaySucceed) {
  RetryPolicy policy;
  policy.initial_delay = absl::Milliseconds(1);
  const auto calls_until = [&](absl::Status status, absl::Time deadline) {
    int calls = 0;
    Retry(policy, deadline, [&] {
      ++calls;
      return status;
    }).IgnoreError();
    return calls;
  };
  const absl::Time late = absl::Now() + absl::Hours(1);
  EXPECT_EQ(calls_until(absl::OkStatus(), late), 1);
  EXPECT_EQ(calls_until(absl::InvalidArgumentError(""), late), 1);
  EXPECT_EQ(calls_until(absl::UnavailableError(""), late), policy.max_attempts);
  EXPECT_EQ(calls_until(absl::UnavailableError(""), absl::Now()), 1);
  EXPECT_EQ(
      calls_until(WithRetryDelay(absl::ResourceExhaustedError(""), absl::Milliseconds(1)), late),
      policy.max_attempts);
}

TEST(BackoffTest, DoublesToItsLimitAndHeedsTheServer) {
  Backoff backoff({5, absl::Milliseconds(100), absl::Milliseconds(300)});
  const absl::Status error = absl::UnavailableError("");
  for (const int limit : {100, 200, 300, 300}) {
    const absl::Duration delay = backoff.NextDelay(error);
    EXPECT_LE(delay, absl::Milliseconds(limit));
    EXPECT_GE(delay, absl::Milliseconds(limit / 2));
  }
  EXPECT_GE(backoff.NextDelay(WithRetryDelay(error, absl::Seconds(9))), absl::Seconds(9));
  backoff.Reset();
  EXPECT_LE(backoff.NextDelay(error), absl::Milliseconds(100));
}

TEST(MetricsTest, SameNameAndLabelsAreTheSameSeries) {
  Metrics metrics("worker");
  metrics.AddCounter("shardmesh_things_total", "Things.", {{"kind", "a"}}).Add(2);
  metrics.AddCounter("shardmesh_things_total", "Things.", {{"kind", "a"}}).Add();
  const Gauge gauge = metrics.AddGauge("shardmesh_used_bytes", "Bytes in use.");
  metrics.OnScrape([gauge] { gauge.Set(42); });
  const std::string text = metrics.Text();
  EXPECT_THAT(text, HasSubstr("shardmesh_things_total{kind=\"a\"} 3"));
  EXPECT_THAT(text, HasSubstr("shardmesh_used_bytes 42"));
  EXPECT_THAT(text, HasSubstr("shardmesh_build_info{component=\"worker\",version=\""));
}

TEST(MetricsTest, ACounterOfWhatIsCountedElsewhereNeverFalls) {
  Metrics metrics("worker");
  const Counter counter = metrics.AddCounter("shardmesh_things_total", "Things.");
  for (const auto& [total, value] : {std::pair(5, 5), {5, 5}, {3, 5}, {7, 7}}) {
    counter.RaiseTo(total);
    EXPECT_EQ(counter.value(), value);
  }
}

TEST(MetricsTest, TellsOfTheProcess) {
  Metrics metrics("worker");
  const auto read = [&metrics](std::string_view name) {
    const std::string text = metrics.Text();
    const size_t at = text.find(StrCat("\n", name, " "));
    EXPECT_NE(at, std::string::npos) << name;
    return at == std::string::npos ? 0 : std::stod(text.substr(at + name.size() + 2));
  };
  const double descriptors = read("process_open_fds");
  EXPECT_GE(descriptors, 3);
  {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/dev/null", "r"),
                                                               &std::fclose);
    EXPECT_EQ(read("process_open_fds"), descriptors + 1);
  }
  EXPECT_EQ(read("process_open_fds"), descriptors);
  EXPECT_GE(read("process_max_fds"), descriptors);
  EXPECT_GT(read("process_resident_memory_bytes"), 1 << 20);
  EXPECT_GE(read("process_virtual_memory_bytes"), read("process_resident_memory_bytes"));
  const double now = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
  // The kernel tells the time of boot in whole seconds.
  EXPECT_LE(read("process_start_time_seconds"), now + 1);
  EXPECT_GT(read("process_start_time_seconds"), now - 3600);
  const double before = read("process_cpu_seconds_total");
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (read("process_cpu_seconds_total") == before && absl::Now() < deadline) {
  }
  EXPECT_GT(read("process_cpu_seconds_total"), before);
}

TEST(MetricsEndpointTest, StopsAtOnce) {
  Metrics metrics("worker");
  for (const char* address : {"127.0.0.1:0", "localhost:0"}) {
    auto endpoint = MetricsEndpoint::Start(metrics, address, Credentials::Insecure());
    ASSERT_THAT(endpoint, IsOk());
    const absl::Time start = absl::Now();
    endpoint->reset();
    EXPECT_LT(absl::Now() - start, absl::Seconds(10)) << address;
  }
}

TEST(MetricsEndpointTest, BindsAFreePortAndRefusesOneInUseOrBeyondLoopback) {
  Metrics metrics("worker");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      auto endpoint, MetricsEndpoint::Start(metrics, "127.0.0.1:0", Credentials::Insecure()));
  EXPECT_GT(endpoint->port(), 0);
  EXPECT_THAT(MetricsEndpoint::Start(metrics, StrCat("127.0.0.1:", endpoint->port()),
                                     Credentials::Insecure())
                  .status(),
              StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_THAT(MetricsEndpoint::Start(metrics, "0.0.0.0:0", Credentials::Insecure()).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

}  // namespace
}  // namespace shardmesh::rpc
