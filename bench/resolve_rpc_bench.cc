// R1-first: one ResolveSpec at a time against an empty unary call to the same server, alternating
// in one run.
//
// The server is a coordinator in this process, reached over loopback TCP as any client's. The empty
// call is the health service's Check: a message without a body, and an answer of two bytes. Prints
// one JSON object.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "rpc/log.h"
#include "server/coordinator_server.h"
#include "sharding/mesh.h"
#include "shardmesh/v1/resolve_service.grpc.pb.h"

namespace shardmesh {
namespace {

constexpr int kWarmUp = 2'000;
constexpr int kRounds = 40;
constexpr int kCallsPerRound = 500;
constexpr double kTarget = 1.25;

double MicrosecondsOf(const auto& call) {
  const absl::Time start = absl::Now();
  call();
  return absl::ToDoubleMicroseconds(absl::Now() - start);
}

double Percentile(std::vector<double> samples, double p) {
  const auto at =
      samples.begin() + static_cast<int64_t>(p * static_cast<double>(samples.size() - 1));
  std::nth_element(samples.begin(), at, samples.end());
  return *at;
}

int Main() {
  rpc::ConfigureLog({.level = rpc::LogLevel::kOff});
  server::CoordinatorOptions options;
  options.listen_address = "127.0.0.1:0";
  options.http_address = "";
  options.mesh = *Mesh::Parse("fsdp=2,tp=2");
  const auto coordinator = server::CoordinatorServer::Start(std::move(options));
  if (!coordinator.ok()) {
    std::fprintf(stderr, "resolve_rpc_bench: %s\n", coordinator.status().ToString().c_str());
    return 1;
  }
  const auto channel =
      grpc::CreateChannel((*coordinator)->address(), grpc::InsecureChannelCredentials());
  const auto resolve = v1::ResolveService::NewStub(channel);
  const auto health = grpc::health::v1::Health::NewStub(channel);

  v1::ResolveSpecRequest question;
  for (const char* axis : {"__BATCH__", "__LENGTH__", "__EMBED__"}) {
    question.add_axes()->set_name(axis);
  }
  for (const int64_t size : {32, 128, 384}) {
    question.mutable_shape()->add_sizes(size);
  }
  const auto resolve_once = [&] {
    grpc::ClientContext context;
    v1::ResolveSpecResponse answer;
    if (!resolve->ResolveSpec(&context, question, &answer).ok() ||
        answer.effective().dimensions_size() != 3) {
      std::fprintf(stderr, "resolve_rpc_bench: a wrong answer\n");
      std::exit(1);
    }
  };
  const auto check_once = [&] {
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckResponse answer;
    if (!health->Check(&context, {}, &answer).ok()) {
      std::fprintf(stderr, "resolve_rpc_bench: the health check failed\n");
      std::exit(1);
    }
  };
  for (int i = 0; i < kWarmUp; ++i) {
    resolve_once();
    check_once();
  }
  std::vector<double> ours;
  std::vector<double> empty;
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < kCallsPerRound; ++i) {
      ours.push_back(MicrosecondsOf(resolve_once));
    }
    for (int i = 0; i < kCallsPerRound; ++i) {
      empty.push_back(MicrosecondsOf(check_once));
    }
  }
  const double ours_p50 = Percentile(ours, 0.5);
  const double empty_p50 = Percentile(empty, 0.5);
  std::printf("%s\n", nlohmann::json{{"id", "R1-first"},
                                     {"what", "ResolveSpec p50 against an empty unary call"},
                                     {"ours", ours_p50},
                                     {"peer", empty_p50},
                                     {"unit", "us"},
                                     {"ratio", ours_p50 / empty_p50},
                                     {"target", kTarget},
                                     {"met", ours_p50 <= kTarget * empty_p50}}
                          .dump()
                          .c_str());
  (*coordinator)->Drain(absl::Now() + absl::Seconds(1));
  return 0;
}

}  // namespace
}  // namespace shardmesh

int main() { return shardmesh::Main(); }
