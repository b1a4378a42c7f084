// R1: ResolveSpec against an empty unary call to the same server, alternating in one run: one call
// at a time, and 64 outstanding.
//
// The server is a coordinator in this process, reached over loopback TCP as any client's. The empty
// call is the health service's Check: a message without a body, and an answer of two bytes. The
// question is one that was asked before, as the processes of a job all ask the same; and, in the
// rows whose names end in -new, one that was never asked. Prints one JSON object for each row.
#include <google/protobuf/arena.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "rpc/log.h"
#include "rpc/mutex_checks.h"
#include "server/coordinator_server.h"
#include "sharding/mesh.h"
#include "shardmesh/v1/resolve_service.grpc.pb.h"

namespace shardmesh {
namespace {

constexpr int kWarmUp = 2'000;
constexpr int kRounds = 40;
constexpr int kCallsPerRound = 500;
constexpr double kLatencyTarget = 1.15;  // times the empty call's
constexpr double kRateTarget = 0.9;      // of the empty call's
constexpr int kOutstanding = 64;
// Room for an answer and all that it consists of, so that it is taken apart in one piece of memory.
constexpr size_t kAnswerBytes = 6'000;
constexpr int kRateRounds = 30;
constexpr absl::Duration kRateTime = absl::Milliseconds(200);

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

// Keeps kOutstanding calls of one kind going for kRateTime; returns how many a second were
// answered. `start` begins a call and has `done` called when it is answered, with whether it was
// right.
double RateOf(const std::function<void(std::function<void(bool)> done)>& start) {
  absl::Mutex mutex;
  int outstanding = 0;
  int64_t answered = 0;
  bool wrong = false;
  const absl::Time begin = absl::Now();
  const std::function<void()> next = [&] {
    start([&](bool right) {
      bool again = false;
      {
        absl::MutexLock lock(&mutex);
        wrong = wrong || !right;
        ++answered;
        again = absl::Now() - begin < kRateTime;
        outstanding -= again ? 0 : 1;
      }
      if (again) {
        next();
      }
    });
  };
  {
    absl::MutexLock lock(&mutex);
    outstanding = kOutstanding;
  }
  for (int i = 0; i < kOutstanding; ++i) {
    next();
  }
  absl::MutexLock lock(&mutex);
  mutex.Await(absl::Condition(
      +[](int* count) { return *count == 0; }, &outstanding));
  if (wrong) {
    std::fprintf(stderr, "resolve_rpc_bench: a wrong answer\n");
    std::exit(1);
  }
  return static_cast<double>(answered) / absl::ToDoubleSeconds(absl::Now() - begin);
}

void Print(const char* id, const char* what, double ours, double peer, const char* unit,
           double target, bool met) {
  std::printf("%s\n", nlohmann::json{{"id", id},
                                     {"what", what},
                                     {"ours", ours},
                                     {"peer", peer},
                                     {"unit", unit},
                                     {"ratio", ours / peer},
                                     {"target", target},
                                     {"met", met}}
                          .dump()
                          .c_str());
}

int Main() {
  rpc::SkipMutexChecks();
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
  int64_t fresh = 32;
  alignas(std::max_align_t) std::array<char, kAnswerBytes> arena_memory;
  const auto resolve_once = [&](bool is_new) {
    grpc::ClientContext context;
    question.mutable_shape()->set_sizes(0, is_new ? ++fresh : 32);
    google::protobuf::Arena arena(arena_memory.data(), arena_memory.size());
    auto& answer = *google::protobuf::Arena::CreateMessage<v1::ResolveSpecResponse>(&arena);
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
    resolve_once(false);
    check_once();
  }
  std::vector<double> ours;
  std::vector<double> ours_new;
  std::vector<double> empty;
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < kCallsPerRound; ++i) {
      ours.push_back(MicrosecondsOf([&] { resolve_once(false); }));
    }
    for (int i = 0; i < kCallsPerRound; ++i) {
      ours_new.push_back(MicrosecondsOf([&] { resolve_once(true); }));
    }
    for (int i = 0; i < kCallsPerRound; ++i) {
      empty.push_back(MicrosecondsOf(check_once));
    }
  }
  const double empty_p50 = Percentile(empty, 0.5);
  const double ours_p50 = Percentile(ours, 0.5);
  Print("R1-p50", "ResolveSpec p50 against an empty unary call", ours_p50, empty_p50, "us",
        kLatencyTarget, ours_p50 <= kLatencyTarget * empty_p50);
  const double new_p50 = Percentile(ours_new, 0.5);
  Print("R1-p50-new", "the same, each time another question", new_p50, empty_p50, "us",
        kLatencyTarget, new_p50 <= kLatencyTarget * empty_p50);

  // What an outstanding call needs until it is answered, in one piece of memory.
  struct ResolveCall {
    grpc::ClientContext context;
    alignas(std::max_align_t) std::array<char, kAnswerBytes> memory;
    google::protobuf::Arena arena{memory.data(), memory.size()};
    v1::ResolveSpecResponse& answer =
        *google::protobuf::Arena::CreateMessage<v1::ResolveSpecResponse>(&arena);
  };
  struct CheckCall {
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckResponse answer;
  };
  const grpc::health::v1::HealthCheckRequest empty_request;
  std::vector<double> ours_rates;
  std::vector<double> new_rates;
  std::vector<double> empty_rates;
  const auto start_resolve = [&](const v1::ResolveSpecRequest& asked,
                                 std::function<void(bool)> done) {
    auto* call = new ResolveCall;
    resolve->async()->ResolveSpec(
        &call->context, &asked, &call->answer,
        [call, done = std::move(done)](const grpc::Status& status) {
          const bool right = status.ok() && call->answer.effective().dimensions_size() == 3;
          delete call;
          done(right);
        });
  };
  std::atomic<int64_t> next = fresh;
  for (int round = 0; round < kRateRounds; ++round) {
    ours_rates.push_back(
        RateOf([&](std::function<void(bool)> done) { start_resolve(question, std::move(done)); }));
    new_rates.push_back(RateOf([&](std::function<void(bool)> done) {
      v1::ResolveSpecRequest asked = question;
      asked.mutable_shape()->set_sizes(0, ++next);
      start_resolve(asked, std::move(done));
    }));
    empty_rates.push_back(RateOf([&](std::function<void(bool)> done) {
      auto* call = new CheckCall;
      health->async()->Check(&call->context, &empty_request, &call->answer,
                             [call, done = std::move(done)](const grpc::Status& status) {
                               const bool right = status.ok();
                               delete call;
                               done(right);
                             });
    }));
  }
  const double ours_rate = Percentile(ours_rates, 0.5);
  const double empty_rate = Percentile(empty_rates, 0.5);
  Print("R1-64", "ResolveSpec calls a second, 64 outstanding, against empty ones", ours_rate,
        empty_rate, "1/s", kRateTarget, ours_rate >= kRateTarget * empty_rate);
  const double new_rate = Percentile(new_rates, 0.5);
  Print("R1-64-new", "the same, each time another question", new_rate, empty_rate, "1/s",
        kRateTarget, new_rate >= kRateTarget * empty_rate);
  (*coordinator)->Drain(absl::Now() + absl::Seconds(1));
  return 0;
}

}  // namespace
}  // namespace shardmesh

int main() { return shardmesh::Main(); }
